"""Column pruning: a plan reads of each table only what its result depends on, and what identifies the table's rows.

A refresh looks up rows of the tables, hands them over to Spark and carries their columns through every operator of the
delta plan. Columns of a plan have names of their own, so that one set of names says what is read anywhere.

>>> from cq_engine.algebra.nodes import column
>>> lines = Scan("line", (("oid_1", "oid"), ("no_2", "no"), ("price_3", "price"), ("note_4", "note")))
>>> shown = Project(lines, (("price_5", column("price_3")), ("note_6", column("note_4"))))
>>> pruned(shown, ["price_5"], lambda table: ["oid", "no"]).input.columns
('oid_1', 'no_2', 'price_3')
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Set
from dataclasses import replace

from sqlglot import exp

from cq_engine.algebra.nodes import (
    Aggregate,
    Filter,
    Generate,
    Join,
    Limit,
    Mark,
    Named,
    Node,
    OuterJoin,
    Project,
    Scan,
    SemiJoin,
    Window,
    children,
    references,
)
from cq_engine.algebra.rebuild import rebuilt

__all__ = ["pruned", "scans"]


def pruned(node: Node, outputs: Iterable[str], keys: Callable[[str], Collection[str]]) -> Node:
    """`node` without columns that none of `outputs` depends on; of a table its `keys` stay."""
    needed = _needed(node, frozenset(outputs))

    def shown(each: Node) -> Node:
        if not isinstance(each, Project):
            return each
        items = _shown(each, needed)
        return each if len(items) == len(each.items) else replace(each, items=items)

    def read(each: Node) -> Node:
        if not isinstance(each, Scan):
            return each
        stay = {key.lower() for key in keys(each.table)}
        fields = [f for f in each.fields if f[0] in needed or f[1].lower() in stay] or each.fields[:1]
        return each if len(fields) == len(each.fields) else replace(each, fields=tuple(fields))

    return rebuilt(node, read, shown)


def _shown(node: Project, needed: Set[str]) -> Named:
    return tuple(item for item in node.items if item[0] in needed) or node.items[:1]


def scans(node: Node) -> Iterator[Scan]:
    """The scans of a plan, each once."""
    return (each for each in _downward(node, set()) if isinstance(each, Scan))


def _needed(root: Node, outputs: Set[str]) -> Set[str]:
    """The columns anywhere in the plan that `outputs` depend on."""
    nodes = list(_downward(root, set()))
    found, before = set(outputs), -1
    while before < len(found):
        before = len(found)
        for node in nodes:
            found |= _read(node, found)
    return found


def _downward(node: Node, seen: set[int]) -> Iterator[Node]:
    if id(node) not in seen:
        seen.add(id(node))
        yield node
        for child in children(node):
            yield from _downward(child, seen)


def _read(node: Node, needed: Set[str]) -> Set[str]:
    """What `node` itself reads of its inputs, where of its own columns those in `needed` are read."""
    if isinstance(node, Project):
        return _references(expression for _, expression in _shown(node, needed))
    if isinstance(node, Filter):
        return references(node.condition)
    if isinstance(node, (Join, OuterJoin, SemiJoin, Mark)):
        return _references(node.conditions)
    if isinstance(node, Aggregate):
        return _references(expression for _, expression in node.keys + node.functions)
    if isinstance(node, Window):
        return _references((*(expression for _, expression in node.functions), *node.keys))
    if isinstance(node, Generate):
        return references(node.call)
    if isinstance(node, Limit):
        return _references(node.order) | set(node.keys)
    return {name for child in children(node) for name in child.columns}


def _references(expressions: Iterable[exp.Expr]) -> Set[str]:
    return frozenset().union(*(references(each) for each in expressions))
