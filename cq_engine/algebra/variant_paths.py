"""Spark's paths into variants: `v:a.b[0]` is `variant_get(v, '$.a.b[0]', 'variant')`."""

# ruff: noqa: SLF001 - parsers are extended through their protected methods
from __future__ import annotations

from typing import Any

from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

__all__ = ["variant_path"]


def variant_path(parser: Any, value: exp.Expr | None) -> exp.Expr | None:
    """The value, or what the path behind it takes out of it.

    A path that begins with a name is relative to the variant's object, one that begins with a bracket stands as it is.
    """
    while value is not None and parser._match(TokenType.COLON):
        path = "$" if parser._curr.token_type == TokenType.L_BRACKET else "$."
        path += _bracket(parser) if path == "$" else _name(parser)
        while True:
            if parser._curr.token_type == TokenType.L_BRACKET:
                path += _bracket(parser)
            elif parser._match(TokenType.DOT):
                path += f".{_name(parser)}"
            else:
                break
        arguments = [value, exp.Literal.string(path), exp.Literal.string("variant")]
        value = parser._parse_column_ops(exp.Anonymous(this="variant_get", expressions=arguments))
    return value


def _name(parser: Any) -> str:
    name = parser._parse_id_var(any_token=True)
    if name is None:
        parser.raise_error("a name is expected in the path of a variant")
    return str(name.name)


def _bracket(parser: Any) -> str:
    """`[0]`, `['name']`."""
    parser._advance()
    key = parser._parse_primary()
    if not isinstance(key, exp.Literal) or not parser._match(TokenType.R_BRACKET):
        parser.raise_error("a number or a string is expected between the brackets of a variant's path")
    return f"['{key.name}']" if key.is_string else f"[{key.name}]"
