"""Which change rows the values of a delta plan's column come from.

Where a delta is too large for the driver, the keys that it wants of a table are still a query over change rows only.

>>> from cq_engine.algebra.nodes import Changes, Filter, Project, Scan, column
>>> from sqlglot import parse_one
>>> lines = Changes(Scan("lines", (("o_1", "o"), ("item_2", "item"))))
>>> some = Project(Filter(lines, parse_one("item_2 > 3")), (("order_3", column("o_1")),))
>>> origins(some, "order_3")
frozenset({('lines', 'o')})
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from cq_engine.algebra.nodes import (
    Aggregate,
    Changes,
    Distinct,
    Edges,
    Empty,
    Filter,
    Generate,
    Join,
    Limit,
    Mark,
    Node,
    Project,
    SemiJoin,
    UnionAll,
    Window,
)

__all__ = ["Origins", "origins"]

Origins = frozenset[tuple[str, str]]
"""(table, its column) pairs: their change rows have at least the values in question."""


def origins(node: Node, name: str) -> Origins | None:
    """The change rows' columns that together have every value of the column `name` of `node`; None if others do."""
    if isinstance(node, Changes):
        return (
            frozenset({(node.scan.table, node.scan.source_of(name))}) if name in node.scan.columns else None
        )
    if isinstance(node, (SemiJoin, Mark)):
        return origins(node.left, name) if name in node.left.columns else None
    if isinstance(node, (Filter, Distinct, Limit, Edges, Window, Generate)):
        return origins(node.input, name) if name in node.input.columns else None
    if isinstance(node, (Project, Aggregate)):
        named = node.items if isinstance(node, Project) else node.keys
        bare = dict(named).get(name, exp.Null()).unnest()
        return origins(node.input, bare.name) if isinstance(bare, exp.Column) else None
    if isinstance(node, Join):
        found = (_of_input(node.inputs, each) for each in (name, *_equal(node.conditions, name)))
        return next((each for each in found if each is not None), None)
    if isinstance(node, UnionAll):
        place = node.names.index(name)
        parts = [origins(each, each.columns[place]) for each in node.inputs]
        known = [part for part in parts if part is not None]
        return frozenset().union(*known) if len(known) == len(parts) else None
    return frozenset() if isinstance(node, Empty) else None


def _of_input(inputs: Sequence[Node], name: str) -> Origins | None:
    return next((origins(each, name) for each in inputs if name in each.columns), None)


def _equal(conditions: Sequence[exp.Expr], name: str) -> list[str]:
    """The columns that an inner join holds equal to `name`."""
    found = []
    for condition in conditions:
        if isinstance(condition, (exp.EQ, exp.NullSafeEQ)):
            sides = [condition.left.unnest(), condition.right.unnest()]
            names = [side.name for side in sides if isinstance(side, exp.Column)]
            if len(names) == 2 and name in names:
                found.append(names[1 - names.index(name)])
    return found
