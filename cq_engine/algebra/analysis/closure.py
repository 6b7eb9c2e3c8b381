"""Functional dependencies: which columns of a plan hold one value once some others do.

A table's key fixes its row; an equality carries a value from one side of a join to the other. This is how
`GROUP BY customer.name, orders.oid` has the key `(oid)` where orders is joined with its customer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import singledispatch

from sqlglot import exp

from cq_engine.algebra.functions import conjuncts
from cq_engine.algebra.nodes import (
    Aggregate,
    Distinct,
    Filter,
    Generate,
    Join,
    Limit,
    Mark,
    Node,
    OuterJoin,
    PlanError,
    Project,
    Scan,
    SemiJoin,
    SetOperation,
    UnionAll,
    Values,
    Window,
    references,
)

__all__ = ["closure", "reduced"]

Unique = Callable[[str], "tuple[str, ...] | None"]
"""Table name → its primary key's columns, or None."""
Equal = Callable[[str, str], bool]
"""Does = between two columns mean that they hold one value?"""


def reduced(node: Node, columns: Iterable[str], unique: Unique, equal: Equal) -> list[str]:
    """`columns` of `node` without those that the others fix; later ones go first."""
    kept = list(columns)
    for each in reversed(list(kept)):
        rest = [name for name in kept if name != each]
        if each in closure(node, frozenset(rest), unique, equal):
            kept = rest
    return kept


@singledispatch
def closure(node: Node, fixed: frozenset[str], unique: Unique, equal: Equal) -> frozenset[str]:
    """The columns of `node` that are fixed where the columns `fixed` are."""
    raise PlanError(f"no dependencies for {type(node).__name__}")


@closure.register(Values)
@closure.register(UnionAll)
@closure.register(SetOperation)
@closure.register(OuterJoin)
@closure.register(Generate)
@closure.register(Window)
@closure.register(SemiJoin)
@closure.register(Mark)
@closure.register(Limit)
def _just_these(node: Node, fixed: frozenset[str], unique: Unique, equal: Equal) -> frozenset[str]:
    return fixed


@closure.register
def _scan(node: Scan, fixed: frozenset[str], unique: Unique, equal: Equal) -> frozenset[str]:
    key = unique(node.table)
    names = {source.lower(): name for name, source in node.fields}
    if key is not None and {names[part.lower()] for part in key} <= fixed:
        return fixed | frozenset(node.columns)
    return fixed


@closure.register
def _filter(node: Filter, fixed: frozenset[str], unique: Unique, equal: Equal) -> frozenset[str]:
    return _until_stable((node.input,), conjuncts(node.condition), fixed, unique, equal)


@closure.register
def _join(node: Join, fixed: frozenset[str], unique: Unique, equal: Equal) -> frozenset[str]:
    parts = [part for condition in node.conditions for part in conjuncts(condition)]
    return _until_stable(node.inputs, parts, fixed, unique, equal)


def _until_stable(
    inputs: tuple[Node, ...], conditions: list[exp.Expr], fixed: frozenset[str], unique: Unique, equal: Equal
) -> frozenset[str]:
    while True:
        before = fixed
        for each in inputs:
            own = frozenset(each.columns)
            fixed |= closure(each, fixed & own, unique, equal)
        for condition in conditions:
            if isinstance(condition, exp.EQ):
                left, right = condition.left.unnest(), condition.right.unnest()
                if (
                    isinstance(left, exp.Column)
                    and isinstance(right, exp.Column)
                    and equal(left.name, right.name)
                ):
                    pair = frozenset({left.name, right.name})
                    fixed |= pair if pair & fixed else frozenset()
        if fixed == before:
            return fixed


@closure.register
def _project(node: Project, fixed: frozenset[str], unique: Unique, equal: Equal) -> frozenset[str]:
    items = [(name, expression.unnest()) for name, expression in node.items]
    below = frozenset(e.name for name, e in items if name in fixed and isinstance(e, exp.Column))
    known = closure(node.input, below, unique, equal)
    return fixed | frozenset(name for name, e in items if references(e) <= known)


@closure.register
def _aggregate(node: Aggregate, fixed: frozenset[str], unique: Unique, equal: Equal) -> frozenset[str]:
    keys = [(name, expression.unnest()) for name, expression in node.keys]
    below = frozenset(e.name for name, e in keys if name in fixed and isinstance(e, exp.Column))
    known = closure(node.input, below, unique, equal)
    fixed |= frozenset(name for name, e in keys if references(e) <= known)
    return frozenset(node.columns) | fixed if {name for name, _ in keys} <= fixed else fixed


@closure.register
def _distinct(node: Distinct, fixed: frozenset[str], unique: Unique, equal: Equal) -> frozenset[str]:
    return closure(node.input, fixed, unique, equal)
