"""Subqueries in expressions, without correlation: as semi, anti and outer joins.

EXISTS and IN as a condition of their own are semi joins, their negations anti joins. Where outer columns are only
compared for equality (`u.k = t.k`), the subquery is evaluated without them, with the inner side as one more column
(and as a key of its aggregates), and joined by it. Everything else goes through the *domain*: the distinct values D of
the outer columns that the subquery reads. The subquery is evaluated once for D, with D as one more input of its FROM
and as a key of its aggregates, and joined back by D's columns (Neumann & Kemper, "Unnesting Arbitrary Queries",
BTW 2015). Either way a change of an inner row touches only the outer rows with its values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp

from cq_engine.algebra.lowering.lowered import Domain, Environment, Lowered
from cq_engine.algebra.lowering.scope import Scope
from cq_engine.algebra.names import Names
from cq_engine.algebra.nodes import (
    Aggregate,
    Distinct,
    Mark,
    Node,
    Project,
    Scan,
    SemiJoin,
    children,
    column,
    references,
)

__all__ = [
    "STAND_IN",
    "Pending",
    "domain_of",
    "in_conditions",
    "is_condition",
    "mark",
    "null_safe",
    "only_row",
    "reads",
    "stands_in",
]

STAND_IN = ""
"""The table of a leaf that stands for a domain while it is found out which outer columns a subquery reads."""


@dataclass(frozen=True)
class Pending:
    """A subquery that stands in an expression as the column `name` until it is joined.

    `kind` is EXISTS, IN, NOT IN or SCALAR; `left` are the outer operands of IN. `outer` are the outer expressions that
    it reads, by what they were when it was read: a GROUP BY changes them. `lowered` is its plan where it reads none.
    """

    name: str
    kind: str
    query: exp.Expr
    left: tuple[exp.Expr, ...]
    scope: Scope
    environment: Environment
    outer: Mapping[str, exp.Expr]
    lowered: Lowered | None = None

    def references(self) -> frozenset[str]:
        """The columns of the query around that it reads."""
        return frozenset[str]().union(*(references(e) for e in (*self.left, *self.outer.values())))


def is_condition(condition: exp.Expr, pending: Mapping[str, Pending]) -> tuple[Pending, bool] | None:
    """(the subquery, is it an anti join) where `condition` is nothing but EXISTS, IN or the negation of one."""
    bare, negated = condition.unnest(), False
    while isinstance(bare, exp.Not):
        bare, negated = bare.this.unnest(), not negated
    if isinstance(bare, exp.Column) and bare.name in pending and pending[bare.name].kind != "SCALAR":
        return pending[bare.name], negated
    return None


def stands_in(node: Node) -> bool:
    """Is there a leaf below `node` that only stands for a domain? Then Spark cannot be asked for types."""
    leaf = isinstance(node, Scan) and node.table == STAND_IN
    return leaf or any(map(stands_in, children(node)))


def domain_of(node: Node, values: Sequence[exp.Expr], names: Names) -> Domain:
    """The domain of outer expressions over `node`."""
    columns = tuple(names.fresh(v.name if isinstance(v, exp.Column) else "outer") for v in values)
    rows = Project(node, tuple(zip(columns, (v.copy() for v in values))))
    return Domain(Distinct(rows, internal=True), columns)


def null_safe(values: Sequence[exp.Expr], columns: Sequence[str]) -> tuple[exp.Expr, ...]:
    return tuple(exp.NullSafeEQ(this=bracket(v), expression=column(c)) for v, c in zip(values, columns))


def equal(values: Sequence[exp.Expr], columns: Sequence[str]) -> tuple[exp.Expr, ...]:
    return tuple(exp.EQ(this=bracket(v), expression=column(c)) for v, c in zip(values, columns))


def bracket(value: exp.Expr) -> exp.Expr:
    return value.copy() if isinstance(value, (exp.Column, exp.Paren)) else exp.Paren(this=value.copy())


def semi(node: Node, rows: Node, conditions: Sequence[exp.Expr], anti: bool) -> Node:
    """The rows of `node` with (without) a match."""
    return SemiJoin(node, rows, anti, tuple(conditions))


def in_conditions(left: Sequence[exp.Expr], right: Sequence[str], unknown: bool) -> list[exp.Expr]:
    """The match of IN; of NOT IN (`unknown`) a match is whatever is not surely different: NULLs match everything."""
    found: list[exp.Expr] = []
    for value, name in zip(left, right):
        same: exp.Expr = exp.EQ(this=bracket(value), expression=column(name))
        if unknown:
            null = exp.Or(
                this=exp.Is(this=bracket(value), expression=exp.Null()),
                expression=exp.Is(this=column(name), expression=exp.Null()),
            )
            same = exp.Paren(this=exp.Or(this=same, expression=null))
        found.append(same)
    return found


def mark(
    node: Node, rows: Node, pairs: Sequence[tuple[exp.Expr, str, bool]], names: Names
) -> tuple[Node, exp.Expr]:
    """`node` with a test that is true where `rows` has a match, else false; never NULL, as in Spark.

    `pairs` are (a value over `node`, the column of `rows` that it must equal, do NULLs match NULLs).
    """
    conditions: list[exp.Expr] = []
    for value, theirs, safe in pairs:
        conditions += null_safe([value], [theirs]) if safe else equal([value], [theirs])
    return mark_matches(node, rows, conditions, names)


def mark_matches(
    node: Node, rows: Node, conditions: Sequence[exp.Expr], names: Names
) -> tuple[Node, exp.Expr]:
    """Likewise, where a match is any condition over both."""
    flag = names.fresh("mark")
    return Mark(node, rows, tuple(conditions), flag), column(flag)


def is_there(flag: str) -> exp.Expr:
    return exp.Not(this=exp.Is(this=column(flag), expression=exp.Null()))


def only_row(rows: Node, keys: Sequence[str], value: str, names: Names) -> tuple[Node, str]:
    """The single `value` of each key, NULL-padded by the join that follows; two rows are Spark's error."""
    result = names.fresh(value.rsplit("_", 1)[0])
    many = exp.GT(this=exp.Count(this=exp.Star()), expression=exp.Literal.number(1))
    message = exp.Literal.string("a scalar subquery gave more than one row")
    failure = exp.Anonymous(this="raise_error", expressions=[message])
    checked = exp.Case(ifs=[exp.If(this=many, true=failure)], default=exp.AnyValue(this=column(value)))
    group = tuple((k, column(k)) for k in keys)
    if not keys:
        return Aggregate(rows, (), ((result, checked),), scalar=True), result
    return Aggregate(rows, group, ((result, checked),)), result


def reads(expressions: Sequence[exp.Expr], pending: Mapping[str, Pending]) -> list[Pending]:
    """The subqueries that stand in `expressions`, in order."""
    found: list[Pending] = []
    for each in expressions:
        for name in sorted(references(each)):
            if name in pending and pending[name] not in found:
                found.append(pending[name])
    return found
