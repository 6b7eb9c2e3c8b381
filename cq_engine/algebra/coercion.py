"""Equalities between types, written out: both sides in the type in which Spark compares them.

    k = s   (INT, STRING)   ⇒   CAST(k AS BIGINT) = CAST(s AS BIGINT)

The rules group, hash and look up by the sides of an equality, so that what `=` takes for equal must be equal there, too:
'1' and ' 1' are two values of a STRING, but one of what INT = STRING compares. Whole numbers of several widths stay as
they are, since they are equal exactly where their values are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from sqlglot import exp

from cq_engine.algebra.dialect import parse_expression, write
from cq_engine.algebra.functions import not_in_operands
from cq_engine.algebra.names import NotLowered
from cq_engine.algebra.nodes import Join, Mark, Node, OuterJoin, SemiJoin, references
from cq_engine.algebra.rebuild import rebuild
from cq_engine.core.errors import CQError

__all__ = ["Types", "cast", "common_types", "write_casts"]

_WHOLE = frozenset({"tinyint", "smallint", "int", "bigint"})
_Joined = Join | OuterJoin | SemiJoin | Mark


class Types(Protocol):
    """Spark's types, by analysis."""

    def __call__(self, node: Node, expressions: Sequence[exp.Expr], /) -> Sequence[str]:
        """The types of expressions over a node's columns."""

    def comparison_type(self, left: str, right: str, /) -> str | None:
        """The type in which `=` compares values of two types; None where there is no such one type."""


def cast(expression: exp.Expr, kind: str) -> exp.Expr:
    """`expression` as the Spark type `kind`.

    >>> write(cast(parse_expression("a || b"), "string collate UTF8_LCASE"))
    'CAST(a || b AS STRING COLLATE UTF8_LCASE)'
    """
    made = parse_expression(f"CAST(x AS {kind})")
    for collation in list(made.args["to"].find_all(exp.Column)):
        collation.replace(exp.var(collation.name))
    made.set("this", expression.copy())
    return made


def common_types(
    node: Node,
    pairs: Sequence[tuple[exp.Expr, exp.Expr]],
    types: Types,
    known: Mapping[str, str],
) -> list[str | None]:
    """For each pair of expressions over `node` the type in which they are compared; None where theirs will do.

    `known` are types of columns. Raises NotLowered where the comparison cannot be written with casts.
    """
    sides = [side for pair in pairs for side in pair]
    kinds = {write(s): known[s.name] for s in sides if isinstance(s, exp.Column) and s.name in known}
    asked = [s for s in sides if write(s) not in kinds]
    if asked:
        kinds |= dict(zip(map(write, asked), types(node, asked)))
    found: list[str | None] = []
    for left, right in pairs:
        one, other = kinds[write(left)], kinds[write(right)]
        if one == other or {one, other} <= _WHOLE:
            found.append(None)
            continue
        common = (
            _of_texts(node, left, right, types)
            if _are_texts(one, other)
            else types.comparison_type(one, other)
        )
        if common is None:
            raise NotLowered(f"{one} = {other} is not a comparison of values of one type")
        found.append(common)
    return found


def _are_texts(one: str, other: str) -> bool:
    return one.startswith("string") and other.startswith("string")


def _of_texts(node: Node, left: exp.Expr, right: exp.Expr, types: Types) -> str | None:
    """Of two collations the explicit one; None where an explicit one has become a column's."""
    try:
        return types(node, [exp.Coalesce(this=left.copy(), expressions=[right.copy()])])[0]
    except CQError:
        return None


def write_casts(node: Node, types: Types, known: Mapping[str, str]) -> Node:
    """`node` with casts in the equalities between types that its joins have; `known` are types of columns."""

    def rule(each: Node) -> Node:
        return (
            _cast_sides(each, types, known) if isinstance(each, (Join, OuterJoin, SemiJoin, Mark)) else each
        )

    return rebuild(node, rule)


def _cast_sides(node: _Joined, types: Types, known: Mapping[str, str]) -> _Joined:
    pairs = {i: pair for i, each in enumerate(node.conditions) if (pair := _sides(each)) is not None}
    if not pairs:
        return node
    over = node if isinstance(node, Join) else Join((node.left, node.right), ())
    conditions = list(node.conditions)
    for (i, pair), kind in zip(pairs.items(), common_types(over, list(pairs.values()), types, known)):
        if kind is not None:
            conditions[i] = _substitute(conditions[i], {write(side): cast(side, kind) for side in pair})
    return replace(node, conditions=tuple(conditions))


def _sides(condition: exp.Expr) -> tuple[exp.Expr, exp.Expr] | None:
    """What an equality, or the match of NOT IN, compares, where both are expressions over columns."""
    bare = condition.unnest()
    equality = isinstance(bare, (exp.EQ, exp.NullSafeEQ))
    found = (bare.this, bare.expression) if equality else not_in_operands(condition)
    if found is None:
        return None
    left, right = found[0].unnest(), found[1].unnest()
    return (left, right) if references(left) and references(right) else None


def _substitute(condition: exp.Expr, values: Mapping[str, exp.Expr]) -> exp.Expr:
    def replaced(part: exp.Expr) -> exp.Expr:
        found = values.get(write(part))
        return part if found is None else found.copy()

    return condition.copy().transform(replaced)
