"""A query's text as words and literals: texts that differ in literals only have the same words."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sqlglot.tokenizer_core import TokenType

from cq_engine.algebra.dialect import CQSpark
from cq_engine.planner.tokens import scan

__all__ = ["SPECIAL_TIME", "Constant", "Words", "number_type", "read_words"]

SPECIAL_TIME = re.compile(r"\s*(now|today|tomorrow|yesterday)\b[^()#]*", re.IGNORECASE)
"""Strings that Spark reads as a date or a time that goes on; they are words, since what they mean depends on the rest."""


@dataclass(frozen=True)
class Constant:
    """A literal of a text: where it begins, its value as text, its type in Spark."""

    start: int
    value: str
    type: str


@dataclass(frozen=True)
class Words:
    """A text as words, in which a literal is just its type, and the literals."""

    words: tuple[tuple[str, str], ...]
    literals: tuple[Constant, ...]


def read_words(text: str) -> Words:
    """Texts whose `words` are equal differ in their literals only.

    >>> one, other = read_words("SELECT * FROM t WHERE a = 7"), read_words("SELECT *  FROM t WHERE a = 85")
    >>> one.words == other.words, [literal.value for literal in other.literals]
    (True, ['85'])
    """
    words, literals = [], []
    for token in scan(
        text, CQSpark
    ):  # as the parser of plans reads them: a literal is the same here and there
        kind = token.token_type
        if kind == TokenType.NUMBER or (kind == TokenType.STRING and not SPECIAL_TIME.fullmatch(token.text)):
            type_ = number_type(token.text) if kind == TokenType.NUMBER else "string"
            literals.append(Constant(token.start, token.text, type_))
            words.append((kind.name, type_))
        else:
            words.append((kind.name, text[token.start : token.end + 1]))
    return Words(tuple(words), tuple(literals))


def number_type(text: str) -> str:
    """The type that Spark gives to a number without suffix.

    >>> number_type("7"), number_type("3000000000"), number_type("10.50"), number_type(".05"), number_type("1e3")
    ('int', 'bigint', 'decimal(4,2)', 'decimal(2,2)', 'double')
    """
    if re.fullmatch(r"\d+", text):
        value = int(text)
        if value <= 2**31 - 1:
            return "int"
        return "bigint" if value <= 2**63 - 1 else f"decimal({len(str(value))},0)"
    if re.fullmatch(r"\d*\.\d*", text):
        fraction = text.split(".")[1]
        digits = len(str(int(text.replace(".", "") or "0")))
        return f"decimal({max(digits, len(fraction))},{len(fraction)})"
    return "double"
