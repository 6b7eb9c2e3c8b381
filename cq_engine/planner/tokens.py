"""A query's text as tokens."""

from __future__ import annotations

import sqlglot
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import Token

from cq_engine.core.errors import CQSyntaxError

__all__ = ["scan"]


def scan(text: str) -> list[Token]:
    """The tokens of `text` in Spark's dialect. Raises CQSyntaxError."""
    try:
        return sqlglot.tokenize(text, dialect="spark")
    except SqlglotError as error:
        raise CQSyntaxError(f"the text cannot be read: {str(error).splitlines()[0]}") from error
