"""Calls that Spark writes with words between their arguments: trim(BOTH a FROM b), substr(a FROM b), struct(a AS b)."""

# ruff: noqa: SLF001 - parsers are extended through their protected methods
from __future__ import annotations

from collections.abc import Callable
from typing import cast

from sqlglot import exp
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import TokenType

from cq_engine.algebra.calls import FUNCTIONS, call, field_name

__all__ = ["parse_any", "parse_position", "parse_struct", "parse_trim", "parse_words"]


def parse_any(parser: SparkParser) -> exp.Expr | None:
    """`any(x)`, the aggregate; `LIKE ANY (...)`."""
    before = parser._tokens[parser._index - 2].token_type if parser._index > 1 else None
    if before in (TokenType.LIKE, TokenType.ILIKE):
        return parser.expression(exp.Any(this=parser._parse_bitwise()))
    if not parser._match(TokenType.L_PAREN):
        parser._retreat(parser._index - 1)
        return None
    made = FUNCTIONS["any"](parser._parse_csv(parser._parse_lambda))
    parser._match_r_paren(made)
    return made


def parse_words(name: str, *separators: str) -> Callable[[SparkParser], exp.Expr]:
    """A call whose arguments may be separated by words: overlay(a PLACING b FROM c FOR d)."""

    def parse(parser: SparkParser) -> exp.Expr:
        arguments = [parser._parse_lambda()] if parser._curr.token_type != TokenType.R_PAREN else []
        arguments += [
            parser._parse_lambda()
            for word in separators
            if parser._match(TokenType.COMMA) or parser._match_text_seq(word)
        ]
        while parser._match(TokenType.COMMA):
            arguments.append(parser._parse_lambda())
        return call(name, [a for a in arguments if a is not None])

    return parse


def parse_position(parser: SparkParser) -> exp.Expr:
    first = parser._parse_bitwise()
    if parser._match(TokenType.IN):
        return call("position", [a for a in (first, parser._parse_bitwise()) if a is not None])
    rest = parser._parse_csv(parser._parse_lambda) if parser._match(TokenType.COMMA) else []
    return call("position", [a for a in (first, *rest) if a is not None])


def parse_trim(parser: SparkParser) -> exp.Expr:
    """trim(BOTH a FROM b) is btrim(b, a); trim, ltrim and rtrim take the two the other way round."""
    side = parser._prev.text.upper() if parser._match_texts(("BOTH", "LEADING", "TRAILING")) else ""
    name = {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(side, "trim")
    first = [] if side and parser._match(TokenType.FROM, advance=False) else [parser._parse_bitwise()]
    if parser._match_set((TokenType.FROM, TokenType.COMMA)):
        first.append(parser._parse_bitwise())
    return call(name, [a for a in first if a is not None])


def parse_struct(parser: SparkParser) -> exp.Expr:
    """struct(a, x.b, c AS d) with its fields named, as the columns have other names in a plan."""
    fields: list[exp.Expr] = []
    while parser._curr.token_type != TokenType.R_PAREN:
        each = cast("exp.Expr", parser._parse_alias(parser._parse_lambda()))
        if isinstance(each, exp.Alias):
            name, each = each.args["alias"], each.this
        else:
            name = field_name(each) or exp.to_identifier(f"col{len(fields) + 1}")
        fields.append(each if each.is_star else exp.PropertyEQ(this=name, expression=each))
        if not parser._match(TokenType.COMMA):
            break
    return exp.Struct(expressions=fields)
