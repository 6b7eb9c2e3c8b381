"""Subqueries that read outer columns in equalities only, rewritten to read none.

    (SELECT f(x) FROM u WHERE u.k = t.k AND p)   →   SELECT f(x), u.k FROM u WHERE p GROUP BY u.k,   joined on u.k = t.k

So the subquery is one aggregate (or one scan) for all outer rows, and its state can be carried. Where `=` compares
another type than that of u.k, it is the groups of that type, CAST(u.k AS ...).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlglot import exp

from cq_engine.algebra.coercion import cast
from cq_engine.algebra.functions import aggregate_calls, call_name, conjuncts
from cq_engine.algebra.lowering.generators import is_generator
from cq_engine.algebra.lowering.scope import Scope, names_in

__all__ = ["Keyed", "keyed_query"]

_NULL_WHEN_EMPTY = frozenset(
    [
        "any_value",
        "avg",
        "bit_and",
        "bit_or",
        "bit_xor",
        "bool_and",
        "bool_or",
        "corr",
        "covar_pop",
        "covar_samp",
        "every",
        "first",
        "first_value",
        "kurtosis",
        "last",
        "last_value",
        "logical_and",
        "logical_or",
        "max",
        "max_by",
        "mean",
        "median",
        "min",
        "min_by",
        "mode",
        "percentile",
        "skewness",
        "some",
        "std",
        "stddev",
        "stddev_pop",
        "stddev_samp",
        "sum",
        "var_pop",
        "var_samp",
        "variance",
        "variance_pop",
    ]
)


@dataclass(frozen=True)
class Keyed:
    """`query` gives the subquery's columns, then one for each of `values`, outer expressions that it must equal.

    `safe` says of each whether NULLs are equal. `empty` is a scalar aggregate's value over no rows, where not NULL.
    """

    query: exp.Select
    values: tuple[exp.Expr, ...]
    safe: tuple[bool, ...]
    aggregated: bool
    empty: exp.Expr | None


def keyed_query(
    query: exp.Select,
    kind: str,
    inner: Scope,
    outer: Scope,
    resolved: Callable[[exp.Expr], exp.Expr],
    compared: Sequence[str | None] = (),
) -> Keyed | None:
    """The rewritten subquery, or None where it does not have this form.

    Args:
        inner: what names mean in its FROM clause.
        outer: what they mean around it.
        resolved: an outer expression over the outer plan.
        compared: for each equality the type that it compares, where that is not the type of both sides.
    """
    if any(query.args.get(each) for each in ("limit", "offset", "qualify", "windows", "laterals")):
        return None
    items = query.selects if kind != "EXISTS" else []
    if any(_is_special(each) for each in items):
        return None

    def reads_outer(node: exp.Expr) -> bool:
        return any(inner.find(parts) is None and outer.find(parts) is not None for parts in names_in(node))

    split = _split(query, reads_outer)
    if split is None:
        return None
    rest, keys, values, safe = split
    casts = [kind or "" for kind in compared] or [""] * len(keys)
    keys = [cast(key, to) if to else key for key, to in zip(keys, casts)]
    having = query.args.get("having")
    if any(reads_outer(each) for each in [*items, *([having] if having else [])]):
        return None
    aggregated = any(aggregate_calls(each) for each in [*query.selects, *([having] if having else [])])
    group = query.args.get("group")
    grouped = _group(group, keys, reads_outer, needed=aggregated)
    if grouped is False or (aggregated and group is None and (kind != "SCALAR" or having)):
        return None
    empty = None
    if aggregated and group is None:
        found = _empty_value(items[0].unalias())
        if found is None:
            return None
        empty = found if not isinstance(found, exp.Null) else None
    result = query.copy()
    named = [exp.alias_(key.copy(), f"_key{i}") for i, key in enumerate(keys)]
    result.set("expressions", [*(each.copy() for each in items), *named])
    result.set("where", exp.Where(this=exp.and_(*(each.copy() for each in rest))) if rest else None)
    result.set("group", grouped if isinstance(grouped, exp.Group) else None)
    result.set("order", None)
    alone = aggregated and group is None
    outside = (cast(resolved(v), to) if to else resolved(v) for v, to in zip(values, casts))
    return Keyed(result, tuple(outside), tuple(safe), alone, empty)


def _is_special(item: exp.Expr) -> bool:
    """Window functions, stars and generators mean something else with one column more."""
    stars = [star for star in item.find_all(exp.Star) if not isinstance(star.parent, exp.Count)]
    return bool(stars) or item.find(exp.Window) is not None or is_generator(item.unalias())


def _split(
    query: exp.Select, reads_outer: Callable[[exp.Expr], bool]
) -> tuple[list[exp.Expr], list[exp.Expr], list[exp.Expr], list[bool]] | None:
    """(conditions without outer columns; inner and outer sides of equalities; are they null-safe), or None."""
    rest: list[exp.Expr] = []
    keys: list[exp.Expr] = []
    values: list[exp.Expr] = []
    safe: list[bool] = []
    where = query.args.get("where")
    for each in conjuncts(where.this) if where else []:
        if not reads_outer(each):
            rest.append(each)
            continue
        if not isinstance(each, (exp.EQ, exp.NullSafeEQ)) or each.find(exp.Query):
            return None
        sides = sorted((each.left, each.right), key=reads_outer)
        if reads_outer(sides[0]) or not _only_outer(sides[1], reads_outer):
            return None
        keys.append(sides[0])
        values.append(sides[1])
        safe.append(isinstance(each, exp.NullSafeEQ))
    return (rest, keys, values, safe) if keys else None


def _only_outer(node: exp.Expr, reads_outer: Callable[[exp.Expr], bool]) -> bool:
    return all(reads_outer(each) for each in node.find_all(exp.Column))


def _group(
    group: exp.Group | None, keys: Sequence[exp.Expr], reads_outer: Callable[[exp.Expr], bool], needed: bool
) -> exp.Group | bool:
    """The GROUP BY with the keys; False where they cannot be added, True where none is needed."""
    if group is None:
        return exp.Group(expressions=[key.copy() for key in keys]) if needed else True
    plain = {key for key, value in group.args.items() if value} <= {"expressions"}
    if not plain or any(isinstance(e, (exp.Literal, exp.Func)) or reads_outer(e) for e in group.expressions):
        return False
    return exp.Group(expressions=[e.copy() for e in (*group.expressions, *keys)])


def _empty_value(item: exp.Expr) -> exp.Expr | None:
    """The value over no rows of an expression over aggregate calls, or None where it is not known."""
    copy = item.copy()
    for call in aggregate_calls(copy):
        bare = call
        while isinstance(bare, (exp.Filter, exp.IgnoreNulls, exp.RespectNulls, exp.WithinGroup)):
            bare = bare.this
        value: exp.Expr
        if isinstance(bare, (exp.Count, exp.CountIf)):
            value = exp.Cast(this=exp.Literal.number(0), to=exp.DataType.build("bigint", dialect="spark"))
        elif call_name(bare) in _NULL_WHEN_EMPTY:
            value = exp.Null()
        else:
            return None
        if call is copy:
            return value
        call.replace(value)
    return None if copy.find(exp.Column, exp.Query) else copy
