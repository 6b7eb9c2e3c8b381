"""Column lineage: which columns of its inputs a column of a node passes on unchanged.

Everything that asks where a column comes from asks here, one step at a time: which table it is of, which type it has,
which change rows have its values, how the user calls it.

>>> from cq_engine.algebra.nodes import Project, Scan, column
>>> orders = Scan("orders", (("o_1", "o"), ("cust_2", "cust")))
>>> shown = Project(orders, (("customer_3", column("cust_2")), ("one_4", exp.Literal.number(1))))
>>> lineage(shown, "customer_3").columns == (ColumnOf(orders, "cust_2"),)
True
>>> lineage(shown, "one_4") is None
True
>>> [(type(each).__name__, name) for each, name in path(shown, "customer_3")]
[('Project', 'customer_3'), ('Scan', 'cust_2')]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import NamedTuple
from weakref import WeakKeyDictionary

from sqlglot import exp

from cq_engine.algebra import nodes
from cq_engine.algebra.nodes import FROM, TO, Named, Node, PlanError, children, inner_first

__all__ = [
    "ChangeColumns",
    "ColumnOf",
    "Lineage",
    "change_columns",
    "column_types",
    "equal_columns",
    "lineage",
    "lineages",
    "path",
    "row_lineages",
]


class ColumnOf(NamedTuple):
    node: Node
    name: str


@dataclass(frozen=True)
class Lineage:
    """One step down: all values of the column are values of `columns` of the inputs (together, where there are several).

    `equal` are other columns of the inputs that an inner join holds equal to it; with `padded` an outer join adds NULL.
    """

    columns: tuple[ColumnOf, ...]
    equal: tuple[ColumnOf, ...] = ()
    padded: bool = False


Lineages = Mapping[str, Lineage]
_KNOWN: WeakKeyDictionary[Node, Lineages] = WeakKeyDictionary()


def lineage(node: Node, name: str) -> Lineage | None:
    """Where the column `name` of `node` comes from; None where `node` makes it, or reads it from outside of the plan."""
    steps = _KNOWN.get(node)
    if steps is None:
        steps = _KNOWN[node] = lineages(node)
    return steps.get(name)


def path(node: Node, name: str) -> list[ColumnOf]:
    """The column, and what it is below, as far down as it is one column of one input: where it is made comes last."""
    found = [ColumnOf(node, name)]
    while (step := lineage(*found[-1])) is not None and len(step.columns) == 1:
        found.append(step.columns[0])
    return found


def row_lineages(node: Node, names: Sequence[str]) -> list[list[tuple[Node, tuple[str, ...]]]]:
    """Where several columns of `node` come from together: the ways to know them, each by inputs and columns of these.

    All rows of `node` have in the columns `names` what rows of the inputs of one way (together, where there are several)
    have in theirs. There is no way where the columns come from different inputs, or an outer join adds NULL.

    >>> from cq_engine.algebra.nodes import Join, Scan, column
    >>> a, b = Scan("a", (("x_1", "x"), ("y_2", "y"))), Scan("b", (("x_3", "x"), ("z_4", "z")))
    >>> joined = Join((a, b), (exp.EQ(this=column("x_1"), expression=column("x_3")),))
    >>> [[columns for _, columns in way] for way in row_lineages(joined, ("x_1", "z_4"))]
    [[('x_3', 'z_4')]]
    >>> row_lineages(joined, ("y_2", "z_4"))
    []
    """
    steps = [lineage(node, name) for name in names]
    found = [step for step in steps if step is not None and not step.padded]
    if len(found) < len(names):
        return []
    if isinstance(node, nodes.UnionAll):
        places = zip(node.inputs, zip(*(step.columns for step in found)))
        return [[(each, tuple(column.name for column in columns)) for each, columns in places]]
    inputs = children(node)
    if len({*map(id, inputs)}) < len(inputs):
        return []  # an input stands for two rows
    by_name = [{id(c.node): c.name for c in (*step.equal, *step.columns)} for step in found]
    ways = [(each, [known.get(id(each)) for known in by_name]) for each in inputs]
    return [[(each, tuple(map(str, columns)))] for each, columns in ways if None not in columns]


def column_types(root: Node, of_table: Callable[[str, str], str]) -> dict[str, str]:
    """The types of the columns of a plan that come from tables unchanged, by their names in the plan.

    `of_table` gives the type of a table's column.
    """
    found: dict[str, str] = {}
    for node in inner_first(root):
        if isinstance(node, nodes.Scan):
            found.update((name, of_table(node.table, source)) for name, source in node.fields)
        elif not isinstance(node, nodes.SetOperation):  # its type is that of both sides
            for name, step in lineages(node).items():
                kinds = {found.get(each.name) for each in step.columns}
                kind = kinds.pop() if len(kinds) == 1 else None
                if kind is not None:
                    found[name] = kind
    return found


ChangeColumns = frozenset[tuple[str, str]]
"""(table, its column) pairs: their change rows have at least the values in question."""


def change_columns(node: Node, name: str) -> ChangeColumns | None:
    """The change rows' columns that together have every value of the column `name` of `node`; None if others do.

    Where a delta is too large for the driver, the keys that it wants of a table are still a query over change rows only.
    """
    if isinstance(node, nodes.Empty):
        return frozenset()
    if isinstance(node, nodes.Changes):
        return (
            frozenset({(node.scan.table, node.scan.source_of(name))}) if name in node.scan.columns else None
        )
    step = lineage(node, name)
    if step is None or step.padded:
        return None
    parts = [change_columns(*each) for each in step.columns]
    known = [part for part in parts if part is not None]
    if len(known) == len(parts):
        return frozenset().union(*known)
    others = (change_columns(*each) for each in step.equal)
    return next((each for each in others if each is not None), None)


def equal_columns(conditions: Iterable[exp.Expr]) -> list[tuple[str, str, bool]]:
    """The pairs of columns that the conditions compare, and whether NULL is equal to NULL there."""
    found = []
    for condition in conditions:
        bare = condition.unnest()
        if isinstance(bare, (exp.EQ, exp.NullSafeEQ)):
            left, right = bare.left.unnest(), bare.right.unnest()
            if isinstance(left, exp.Column) and isinstance(right, exp.Column):
                found.append((left.name, right.name, isinstance(bare, exp.NullSafeEQ)))
    return found


# ------------------------------------------------------------------------------------------------ per node


@singledispatch
def lineages(node: Node) -> Lineages:
    """The lineage of every column of `node` that is one of its inputs' columns unchanged."""
    raise PlanError(f"no lineage for {type(node).__name__}")


@lineages.register(nodes.Scan)
@lineages.register(nodes.Changes)
@lineages.register(nodes.History)
@lineages.register(nodes.StateRows)
@lineages.register(nodes.Given)
@lineages.register(nodes.Values)
@lineages.register(nodes.Empty)
def _leaf(node: Node) -> Lineages:
    return {}


@lineages.register(nodes.Filter)
@lineages.register(nodes.Distinct)
@lineages.register(nodes.Limit)
@lineages.register(nodes.Window)
@lineages.register(nodes.Generate)
def _rows(node: nodes.Filter | nodes.Distinct | nodes.Limit | nodes.Window | nodes.Generate) -> Lineages:
    return _columns(node.input)


@lineages.register(nodes.SemiJoin)
@lineages.register(nodes.Mark)
def _left(node: nodes.SemiJoin | nodes.Mark) -> Lineages:
    return _columns(node.left)


@lineages.register
def _edges(node: nodes.Edges) -> Lineages:
    return {name: step for name, step in _columns(node.input).items() if name not in (FROM, TO)}


@lineages.register
def _project(node: nodes.Project) -> Lineages:
    return _item_lineages(node.input, node.items)


@lineages.register
def _aggregate(node: nodes.Aggregate) -> Lineages:
    return _item_lineages(node.input, node.keys)


@lineages.register
def _union(node: nodes.UnionAll) -> Lineages:
    places = zip(node.names, zip(*(each.columns for each in node.inputs)))
    return {name: Lineage(tuple(map(ColumnOf, node.inputs, columns))) for name, columns in places}


@lineages.register
def _set_operation(node: nodes.SetOperation) -> Lineages:
    return {name: Lineage((ColumnOf(node.left, own),)) for name, own in zip(node.names, node.left.columns)}


@lineages.register
def _join(node: nodes.Join) -> Lineages:
    found = {name: step for each in node.inputs for name, step in _columns(each).items()}
    equal: dict[str, list[ColumnOf]] = {}
    for a, b, _ in equal_columns(node.conditions):
        equal.setdefault(a, []).extend(found[b].columns)
        equal.setdefault(b, []).extend(found[a].columns)
    return {**found, **{name: Lineage(found[name].columns, tuple(more)) for name, more in equal.items()}}


@lineages.register
def _outer_join(node: nodes.OuterJoin) -> Lineages:
    left = _columns(node.left, padded=node.kind != "LEFT")
    return {**left, **_columns(node.right, padded=node.kind != "RIGHT")}


def _columns(node: Node, padded: bool = False) -> dict[str, Lineage]:
    return {name: Lineage((ColumnOf(node, name),), (), padded) for name in node.columns}


def _item_lineages(below: Node, items: Named) -> Lineages:
    bare = ((name, expression.unnest()) for name, expression in items)
    return {name: Lineage((ColumnOf(below, e.name),)) for name, e in bare if isinstance(e, exp.Column)}
