"""Column pruning: a plan reads of each table only what its result depends on, and what identifies the table's rows.

A refresh looks up rows of the tables, hands them over to Spark and carries their columns through every operator of the
delta plan. Columns of a plan have names of their own, so that one set of names says what is read anywhere.

>>> from cq_engine.algebra.nodes import Project, Scan, column
>>> lines = Scan("line", (("oid_1", "oid"), ("no_2", "no"), ("price_3", "price"), ("note_4", "note")))
>>> shown = Project(lines, (("price_5", column("price_3")), ("note_6", column("note_4"))))
>>> prune(shown, ["price_5"], lambda table: ["oid", "no"]).input.columns
('oid_1', 'no_2', 'price_3')
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Set
from dataclasses import replace
from functools import singledispatch

from sqlglot import exp

from cq_engine.algebra import nodes
from cq_engine.algebra.nodes import Named, Node, PlanError, children, inner_first, references
from cq_engine.algebra.rebuild import rebuild

__all__ = ["prune", "reads", "scans"]


def prune(node: Node, outputs: Iterable[str], keys: Callable[[str], Collection[str]]) -> Node:
    """`node` without columns that none of `outputs` depends on; of a table its `keys` stay."""
    needed = _needed_columns(node, frozenset(outputs))

    def shown(each: Node) -> Node:
        if not isinstance(each, nodes.Project):
            return each
        items = _needed_items(each, needed)
        return each if len(items) == len(each.items) else replace(each, items=items)

    def read(each: Node) -> Node:
        if not isinstance(each, nodes.Scan):
            return each
        stay = {key.lower() for key in keys(each.table)}
        fields = [f for f in each.fields if f[0] in needed or f[1].lower() in stay] or each.fields[:1]
        return each if len(fields) == len(each.fields) else replace(each, fields=tuple(fields))

    return rebuild(node, read, shown)


def _needed_items(node: nodes.Project, needed: Set[str]) -> Named:
    return tuple(item for item in node.items if item[0] in needed) or node.items[:1]


def scans(node: Node) -> Iterator[nodes.Scan]:
    """The scans of a plan, each once."""
    return (each for each in inner_first(node) if isinstance(each, nodes.Scan))


def _needed_columns(root: Node, outputs: Set[str]) -> Set[str]:
    """The columns anywhere in the plan that `outputs` depend on."""
    downwards = inner_first(root)[::-1]
    found, before = set(outputs), -1
    while before < len(found):
        before = len(found)
        for node in downwards:
            found |= reads(node, found)
    return found


@singledispatch
def reads(node: Node, needed: Set[str]) -> Set[str]:
    """What `node` itself reads of its inputs, where of its own columns those in `needed` are read."""
    raise PlanError(f"nothing says what {type(node).__name__} reads")


@reads.register(nodes.Scan)
@reads.register(nodes.Values)
@reads.register(nodes.Distinct)
@reads.register(nodes.UnionAll)
@reads.register(nodes.SetOperation)
def _everything(node: Node, needed: Set[str]) -> Set[str]:
    return {name for child in children(node) for name in child.columns}


@reads.register
def _project(node: nodes.Project, needed: Set[str]) -> Set[str]:
    return _references(expression for _, expression in _needed_items(node, needed))


@reads.register
def _filter(node: nodes.Filter, needed: Set[str]) -> Set[str]:
    return references(node.condition)


@reads.register(nodes.Join)
@reads.register(nodes.OuterJoin)
@reads.register(nodes.SemiJoin)
@reads.register(nodes.Mark)
def _join(node: nodes.Join | nodes.OuterJoin | nodes.SemiJoin | nodes.Mark, needed: Set[str]) -> Set[str]:
    return _references(node.conditions)


@reads.register
def _aggregate(node: nodes.Aggregate, needed: Set[str]) -> Set[str]:
    return _references(expression for _, expression in node.keys + node.functions)


@reads.register
def _window(node: nodes.Window, needed: Set[str]) -> Set[str]:
    return _references((*(expression for _, expression in node.functions), *node.keys))


@reads.register
def _generate(node: nodes.Generate, needed: Set[str]) -> Set[str]:
    return references(node.call)


@reads.register
def _limit(node: nodes.Limit, needed: Set[str]) -> Set[str]:
    return _references(node.order) | set(node.keys)


def _references(expressions: Iterable[exp.Expr]) -> Set[str]:
    return frozenset().union(*(references(each) for each in expressions))
