"""Subqueries in expressions, without correlation: as semi, anti and outer joins.

EXISTS and IN as a condition of their own are semi joins, their negations anti joins. Everything else goes through the
*domain*: the distinct values D of the outer columns that the subquery reads. The subquery is evaluated once for D,
with D as one more input of its FROM and as a key of its aggregates, and joined back by D's columns (Neumann & Kemper,
"Unnesting Arbitrary Queries", BTW 2015). So a change of an inner row touches only the outer rows with its values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp

from cq_engine.algebra.names import Names
from cq_engine.algebra.nodes import (
    Aggregate,
    Distinct,
    Join,
    Node,
    OuterJoin,
    Project,
    SemiJoin,
    column,
    references,
)

__all__ = ["Domain", "Pending", "is_condition", "outer_columns"]

Fields = dict[str, exp.Expr]
Sources = Mapping[str, Fields]


@dataclass(frozen=True)
class Pending:
    """A subquery that stands in an expression as the column `name` until it is joined.

    `kind` is EXISTS, IN or SCALAR; `left` are the outer operands of IN; `sources` what the outer names mean.
    """

    name: str
    kind: str
    query: exp.Expr
    left: tuple[exp.Expr, ...]
    sources: Sources
    negated: bool = False


@dataclass(frozen=True)
class Domain:
    """The values of the outer columns: `node` has `columns`, and `sources` resolve the outer names to them."""

    node: Node
    columns: tuple[str, ...]
    sources: Sources


def as_pending(
    node: exp.Expr, name: str, resolve: Callable[[exp.Expr], exp.Expr], sources: Sources
) -> Pending | None:
    """The pending subquery that `node` is, or None where `node` is something else."""
    if isinstance(node, exp.Exists):
        return Pending(name, "EXISTS", _query(node.this), (), sources)
    if isinstance(node, exp.In) and node.args.get("query") is not None:
        operands = node.this.expressions if isinstance(node.this, exp.Tuple) else [node.this]
        left = tuple(resolve(each) for each in operands)
        return Pending(name, "IN", _query(node.args["query"]), left, sources)
    if isinstance(node, (exp.Subquery, exp.Select, exp.SetOperation)):
        return Pending(name, "SCALAR", _query(node), (), sources)
    return None


def _query(node: exp.Expr) -> exp.Expr:
    while isinstance(node, exp.Subquery) and not node.args.get("with_"):
        node = node.this
    return node


def outer_columns(query: exp.Expr, sources: Sources) -> list[tuple[str, str]]:
    """(alias, column) of the outer columns that `query` reads, in lower case, each once."""
    inner = {
        t.alias_or_name.lower()
        for t in query.find_all(exp.Table, exp.Subquery, exp.Lateral)
        if t.alias_or_name
    }
    found: list[tuple[str, str]] = []
    for each in query.find_all(exp.Column):
        alias, name = each.table.lower(), each.name.lower()
        if (
            alias
            and alias not in inner
            and alias in sources
            and name in sources[alias]
            and (alias, name) not in found
        ):
            found.append((alias, name))
    return found


def is_condition(condition: exp.Expr, pending: Mapping[str, Pending]) -> tuple[Pending, bool] | None:
    """(the subquery, is it negated) where `condition` is nothing but EXISTS, IN or the negation of one."""
    bare, negated = condition.unnest(), False
    while isinstance(bare, exp.Not):
        bare, negated = bare.this.unnest(), not negated
    if isinstance(bare, exp.Column) and bare.name in pending and pending[bare.name].kind != "SCALAR":
        return pending[bare.name], negated
    return None


def domain_of(
    node: Node, outer: Sequence[tuple[str, str]], sources: Sources, names: Names
) -> tuple[Domain, tuple[exp.Expr, ...]]:
    """The domain of the outer columns over `node`, and the outer expressions that its columns stand for."""
    columns, values = [], []
    inner: dict[str, Fields] = {}
    for alias, name in outer:
        fresh = names.fresh(name)
        columns.append(fresh)
        values.append(sources[alias][name])
        inner.setdefault(alias, {})[name] = column(fresh)
    rows = Distinct(Project(node, tuple(zip(columns, (v.copy() for v in values)))))
    return Domain(rows, tuple(columns), inner), tuple(values)


def null_safe(values: Sequence[exp.Expr], columns: Sequence[str]) -> tuple[exp.Expr, ...]:
    return tuple(exp.NullSafeEQ(this=_paren(v), expression=column(c)) for v, c in zip(values, columns))


def _paren(value: exp.Expr) -> exp.Expr:
    return value.copy() if isinstance(value, exp.Column) else exp.Paren(this=value.copy())


def semi(node: Node, rows: Node, conditions: Sequence[exp.Expr], anti: bool) -> Node:
    """The rows of `node` with (without) a match."""
    return SemiJoin(node, rows, anti, tuple(conditions))


def in_conditions(left: Sequence[exp.Expr], right: Sequence[str], anti: bool) -> list[exp.Expr]:
    """The match of IN; of NOT IN a match is whatever is not surely different: NULLs match everything."""
    found: list[exp.Expr] = []
    for value, name in zip(left, right):
        equal: exp.Expr = exp.EQ(this=_paren(value), expression=column(name))
        if anti:
            null = exp.Or(
                this=exp.Is(this=_paren(value), expression=exp.Null()),
                expression=exp.Is(this=column(name), expression=exp.Null()),
            )
            equal = exp.Paren(this=exp.Or(this=equal, expression=null))
        found.append(equal)
    return found


def marked(
    node: Node, values: Sequence[exp.Expr], rows: Node, keys: Sequence[str], names: Names
) -> tuple[Node, str]:
    """`node` with a column that is 1 where `rows` has a row with its values, else NULL."""
    flag = names.fresh("mark")
    own = tuple(names.fresh("k") for _ in keys)
    if keys:
        items = tuple((mine, column(theirs)) for mine, theirs in zip(own, keys))
        once = Distinct(Project(rows, items))
        there = Project(once, (*((k, column(k)) for k in own), (flag, exp.Literal.number(1))))
        return OuterJoin(node, there, "LEFT", null_safe(values, own)), flag
    count = names.fresh("n")
    counted = Aggregate(rows, (), ((count, exp.Count(this=exp.Star())),), scalar=True)
    some = exp.Case(
        ifs=[
            exp.If(
                this=exp.GT(this=column(count), expression=exp.Literal.number(0)), true=exp.Literal.number(1)
            )
        ]
    )
    return Join((node, Project(counted, ((flag, some),))), ()), flag


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
