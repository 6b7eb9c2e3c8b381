"""Spark's pipe syntax: `FROM t |> WHERE x > 1 |> SELECT x`.

sqlglot adds each operator to the query before it, in whatever order the clauses of one SELECT are applied. That is only
right where the query has nothing yet that comes later in a SELECT: `|> LIMIT 2 |> WHERE x > 1` takes the rows first.
Here the query before the operator becomes a derived table wherever it matters. It keeps the name of the relation that
it reads, if that is a single one, as Spark lets later operators use it.
"""

# ruff: noqa: SLF001 - parsers are extended through their protected methods
from __future__ import annotations

from typing import Any

from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

__all__ = ["read_pipe"]

_SOURCE = {"from_", "joins", "laterals", "with_", "expressions", "kind", "hint"}
_TAKES = {
    **{word: frozenset({"where"}) for word in ("WHERE", "SELECT", "EXTEND", "AGGREGATE", "ORDER BY")},
    **{word: frozenset({"where", "order"}) for word in ("LIMIT", "OFFSET")},
    **{word: frozenset[str]() for word in ("JOIN", "INNER", "CROSS", "LEFT")},
}
"""The operators that can be clauses of the query before them, and which clauses besides its sources that may have."""


def read_pipe(parser: Any, query: exp.Query) -> exp.Query:
    """The query with all operators that follow it.

    Raises:
        ParseError: an operator is unknown, or stands between an ORDER BY and its LIMIT.
    """
    while parser._match(TokenType.PIPE_GT):
        word = parser._curr.text.upper()
        if query.args.get("order") and not query.args.get("limit") and word not in {"LIMIT", "OFFSET"}:
            parser.raise_error(f"|> ORDER BY stands last or before |> LIMIT, not before |> {word}")
        query = _operator(parser, query if _may_take(query, word) else _derive(query), word)
    return query


def _operator(parser: Any, query: Any, word: str) -> exp.Query:
    """The query with the operator whose first token is `word`."""
    if word == "SELECT":
        return _select(parser, query)
    if word == "EXTEND":
        parser._advance()
        return _derive(query.select(exp.Star(), *parser._parse_expressions(), append=False, copy=False))
    if word == "AS":
        return _derive(query, parser._parse_table_alias())
    if word == "ORDER BY":
        return query.order_by(parser._parse_order(), append=False, copy=False)  # type: ignore[no-any-return]
    if word in {"LIMIT", "OFFSET"}:
        return _limit(parser, query)
    if word == "TABLESAMPLE":
        query.args["from_"].this.set("sample", parser._parse_table_sample())
        return query  # type: ignore[no-any-return]
    known = parser.PIPE_SYNTAX_TRANSFORM_PARSERS.get(word)
    if known is not None:
        return known(parser, query)  # type: ignore[no-any-return]
    union = parser.parse_set_operation(this=query)
    if union is not None:
        return _derive(union)
    join = parser._parse_join()
    if join is None:
        parser.raise_error(f"unknown operator |> {word}")
    return query.join(join, copy=False)  # type: ignore[no-any-return]


def _select(parser: Any, query: Any) -> exp.Query:
    found = parser._parse_select(consume_pipe=False, parse_set_operation=False)
    allowed = {"expressions", "distinct", "kind", "hint", "windows"}
    if not isinstance(found, exp.Select) or set(_present(found)) - allowed:
        parser.raise_error("|> SELECT has expressions only: each other clause is an operator of its own")
    made = query.select(*found.expressions, append=False, copy=False)
    for name in ("distinct", "windows"):
        if found.args.get(name):
            made.set(name, found.args[name])
    return _derive(made)


def _limit(parser: Any, query: Any) -> exp.Query:
    limit, offset = parser._parse_limit(), parser._parse_offset()
    if limit is not None:
        query.set("limit", limit)
    if offset is not None:
        query.set("offset", offset)
    return query  # type: ignore[no-any-return]


def _present(query: exp.Expr) -> list[str]:
    return [name for name, value in query.args.items() if value]


def _may_take(query: exp.Query, word: str) -> bool:
    """Can the operator be a clause of the query?"""
    if not isinstance(query, exp.Select) or word not in _TAKES:
        return False
    plain = len(query.expressions) == 1 and isinstance(query.expressions[0], exp.Star)
    return plain and not set(_present(query)) - _SOURCE - _TAKES[word]


def _derive(query: exp.Query, alias: exp.TableAlias | None = None) -> exp.Select:
    """SELECT * FROM (query), under the name of the one relation that the query reads, if it is one."""
    source = query.args.get("from_") if isinstance(query, exp.Select) else None
    alone = source is not None and not query.args.get("joins") and not query.args.get("laterals")
    name = source.this.alias_or_name if alone and source is not None else ""
    alias = alias or exp.TableAlias(this=exp.to_identifier(name or "__piped", quoted=True))
    return exp.select("*").from_(exp.Subquery(this=query, alias=alias), copy=False)
