"""A query's text as tokens."""

from __future__ import annotations

import sqlglot
from sqlglot.dialects.dialect import DialectType
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import Token

from cq_engine.core.errors import CQSyntaxError

__all__ = ["scan"]


def scan(text: str, dialect: DialectType = "spark") -> list[Token]:
    """The tokens of `text` in Spark's dialect, or another. Raises CQSyntaxError."""
    try:
        return sqlglot.tokenize(text, dialect=dialect)
    except SqlglotError as error:
        raise CQSyntaxError(f"the text cannot be read: {str(error).splitlines()[0]}") from error
