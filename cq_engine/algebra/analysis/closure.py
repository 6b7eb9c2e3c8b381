"""Functional dependencies: which columns of a plan hold one value once some others do.

A table's key fixes its row; an equality carries a value from one side of a join to the other. This is how
`GROUP BY customer.name, orders.oid` has the key `(oid)` where orders is joined with its customer. "One value" is up to
equality: a function of it is fixed only where it cannot tell equal values apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import singledispatch

from sqlglot import exp

from cq_engine.algebra import nodes
from cq_engine.algebra.analysis.equality import Equality
from cq_engine.algebra.analysis.lineage import path
from cq_engine.algebra.functions import conjuncts
from cq_engine.algebra.nodes import Named, Node, PlanError, references

__all__ = ["TableKey", "closure", "reduce_columns"]

TableKey = Callable[[str], "tuple[str, ...] | None"]
"""Table name → its primary key's columns, or None."""


def reduce_columns(node: Node, columns: Iterable[str], table_key: TableKey, equality: Equality) -> list[str]:
    """`columns` of `node` without those that the others fix; later ones go first."""
    kept = list(columns)
    for each in reversed(list(kept)):
        rest = [name for name in kept if name != each]
        if each in closure(node, frozenset(rest), table_key, equality):
            kept = rest
    return kept


@singledispatch
def closure(node: Node, fixed: frozenset[str], table_key: TableKey, equality: Equality) -> frozenset[str]:
    """The columns of `node` that are fixed where the columns `fixed` are."""
    raise PlanError(f"no dependencies for {type(node).__name__}")


@closure.register(nodes.Values)
@closure.register(nodes.UnionAll)
@closure.register(nodes.SetOperation)
def _just_these(node: Node, fixed: frozenset[str], table_key: TableKey, equality: Equality) -> frozenset[str]:
    return fixed


@closure.register
def _scan(node: nodes.Scan, fixed: frozenset[str], table_key: TableKey, equality: Equality) -> frozenset[str]:
    key = table_key(node.table)
    names = {source.lower(): name for name, source in node.fields}
    if key is not None and {names[part.lower()] for part in key} <= fixed:
        return fixed | frozenset(node.columns)
    return fixed


@closure.register
def _filter(
    node: nodes.Filter, fixed: frozenset[str], table_key: TableKey, equality: Equality
) -> frozenset[str]:
    return _until_stable((node.input,), conjuncts(node.condition), fixed, table_key, equality)


@closure.register
def _join(node: nodes.Join, fixed: frozenset[str], table_key: TableKey, equality: Equality) -> frozenset[str]:
    parts = [part for condition in node.conditions for part in conjuncts(condition)]
    return _until_stable(node.inputs, parts, fixed, table_key, equality)


def _until_stable(
    inputs: tuple[Node, ...],
    conditions: list[exp.Expr],
    fixed: frozenset[str],
    table_key: TableKey,
    equality: Equality,
) -> frozenset[str]:
    while True:
        before = fixed
        for each in inputs:
            own = frozenset(each.columns)
            fixed |= closure(each, fixed & own, table_key, equality)
        for condition in conditions:
            if isinstance(condition, exp.EQ):
                left, right = condition.left.unnest(), condition.right.unnest()
                if (
                    isinstance(left, exp.Column)
                    and isinstance(right, exp.Column)
                    and equality.compares(left.name, right.name)
                ):
                    pair = frozenset({left.name, right.name})
                    fixed |= pair if pair & fixed else frozenset()
        if fixed == before:
            return fixed


@closure.register
def _outer_join(
    node: nodes.OuterJoin, fixed: frozenset[str], table_key: TableKey, equality: Equality
) -> frozenset[str]:
    """What the left side of a LEFT JOIN says of its own columns.

    The right side's rules do not hold above: its constants are NULL in rows without a match, and so are the columns
    that a condition holds equal to the left side's.
    """
    side = {"LEFT": node.left, "RIGHT": node.right}.get(node.kind)
    return fixed if side is None else _of_input(side, fixed, table_key, equality)


@closure.register(nodes.SemiJoin)
@closure.register(nodes.Mark)
def _left(
    node: nodes.SemiJoin | nodes.Mark, fixed: frozenset[str], table_key: TableKey, equality: Equality
) -> frozenset[str]:
    return _of_input(node.left, fixed, table_key, equality)


@closure.register(nodes.Generate)
@closure.register(nodes.Window)
@closure.register(nodes.Limit)
@closure.register(nodes.Distinct)
def _rows(
    node: nodes.Generate | nodes.Window | nodes.Limit | nodes.Distinct,
    fixed: frozenset[str],
    table_key: TableKey,
    equality: Equality,
) -> frozenset[str]:
    return _of_input(node.input, fixed, table_key, equality)


def _of_input(node: Node, fixed: frozenset[str], table_key: TableKey, equality: Equality) -> frozenset[str]:
    return fixed | closure(node, fixed & frozenset(node.columns), table_key, equality)


@closure.register
def _project(
    node: nodes.Project, fixed: frozenset[str], table_key: TableKey, equality: Equality
) -> frozenset[str]:
    return _add_computed(node.input, node.items, fixed, table_key, equality)


@closure.register
def _aggregate(
    node: nodes.Aggregate, fixed: frozenset[str], table_key: TableKey, equality: Equality
) -> frozenset[str]:
    fixed = _add_computed(node.input, node.keys, fixed, table_key, equality)
    return frozenset(node.columns) | fixed if {name for name, _ in node.keys} <= fixed else fixed


def _add_computed(
    node: Node, items: Named, fixed: frozenset[str], table_key: TableKey, equality: Equality
) -> frozenset[str]:
    """`fixed` with the `items` over `node` that are functions of what is fixed and cannot tell equal values of it apart."""
    bare = [(name, expression.unnest()) for name, expression in items]
    below = frozenset(e.name for name, e in bare if name in fixed and isinstance(e, exp.Column))
    known = closure(node, below, table_key, equality)

    def is_one_value(name: str) -> bool:
        return equality.is_identity(name) or _is_of_one_row(node, name, known, table_key)

    def is_fixed(expression: exp.Expr) -> bool:
        used = references(expression)
        return used <= known and (isinstance(expression, exp.Column) or all(map(is_one_value, used)))

    return fixed | frozenset(name for name, e in bare if is_fixed(e))


def _is_of_one_row(node: Node, name: str, known: frozenset[str], table_key: TableKey) -> bool:
    """Is the column one of a table of which `known` fixes the row? Then it has one value, not just equal ones."""
    scan = path(node, name)[-1].node
    key = table_key(scan.table) if isinstance(scan, nodes.Scan) else None
    if not isinstance(scan, nodes.Scan) or key is None:
        return False
    names = {source.lower(): own for own, source in scan.fields}
    return all(names[part.lower()] in known for part in key)
