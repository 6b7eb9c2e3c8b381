"""ORDER BY, LIMIT and OFFSET. An order without a limit has no effect on a result, and is left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlglot import exp
from sqlglot.optimizer.simplify import simplify

from cq_engine.algebra.names import Names, NotLowered
from cq_engine.algebra.nodes import Limit, Node, Project, column

__all__ = ["cut", "is_limited", "limit_numbers", "order_keys", "with_order_key"]


def limit_numbers(query: exp.Expr) -> tuple[int | None, int]:
    """(LIMIT or None, OFFSET). Raises NotLowered for what is not a constant."""
    limit, offset = query.args.get("limit"), query.args.get("offset")
    return _number(limit), _number(offset) or 0


def is_limited(query: exp.Expr) -> bool:
    """Does the query leave out rows by their number?"""
    return limit_numbers(query) != (None, 0)


def _number(clause: exp.Expr | None) -> int | None:
    if clause is None:
        return None
    value = clause.expression
    if isinstance(value, (exp.Var, exp.Column)) and value.name.upper() == "ALL":
        return None
    while isinstance(value, (exp.Cast, exp.Paren)):
        value = value.this
    value = simplify(value.copy(), dialect="spark")
    if isinstance(value, exp.Literal) and value.name.isdigit():
        return int(value.name)
    raise NotLowered(f"{clause.sql(dialect='spark').strip()} is not a constant number")


def order_keys(
    query: exp.Expr, width: int, nth: Callable[[int], exp.Expr], resolve: Callable[[exp.Expr], exp.Expr]
) -> list[exp.Expr]:
    """The ORDER BY of a query as Ordered expressions; of ORDER BY ALL one for each of the `width` columns.

    Args:
        nth: the expression of the result column of that number, from 0.
        resolve: the expression that an ORDER BY key means.
    """
    clause = query.args.get("order")
    found: list[exp.Expr] = []
    for ordered in clause.expressions if clause is not None else []:
        key = ordered.this
        if isinstance(key, (exp.Var, exp.Column)) and key.name.upper() == "ALL" and not key.args.get("table"):
            found += [with_order_key(ordered, nth(i)) for i in range(width)]
        elif isinstance(key, exp.Literal) and key.is_int:
            found.append(with_order_key(ordered, nth(int(key.name) - 1)))
        else:
            found.append(with_order_key(ordered, resolve(key)))
    return found


def with_order_key(ordered: exp.Expr, key: exp.Expr) -> exp.Expr:
    """`ordered` (ASC, DESC, NULLS FIRST ...) by another key."""
    result = ordered.copy()
    result.set("this", key.copy())
    return result


def cut(node: Node, keys: tuple[str, ...], order: Sequence[exp.Expr], query: exp.Expr, names: Names) -> Node:
    """`node` with LIMIT and OFFSET of `query`, per value of `keys`; `order` are Ordered expressions over its columns."""
    if not is_limited(query):
        return node
    added: list[tuple[str, exp.Expr]] = []
    by = []
    for each in order:
        key = each.this.unnest()
        if not isinstance(key, exp.Column):
            added.append((names.fresh("ord"), key))
            key = column(added[-1][0])
        by.append(with_order_key(each, key))
    if added:
        node = Project(node, (*((n, column(n)) for n in node.columns), *added))
    return Limit(node, keys, tuple(by), *limit_numbers(query))
