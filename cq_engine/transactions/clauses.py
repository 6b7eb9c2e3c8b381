"""A DML text as tokens with nesting depth: where its clauses start, without a grammar for the expressions in them."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot.tokenizer_core import TokenType

from cq_engine.core.errors import CQSyntaxError, location_at
from cq_engine.planner.tokens import scan

__all__ = ["Clauses", "Span"]

Span = tuple[int, int]
"""Token numbers [first, after)."""

_OPENING, _CLOSING = {"(", "[", "CASE"}, {")", "]", "END"}


class Clauses:
    """The tokens of a statement; CASE ... END nests like a parenthesis."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._tokens = [t for t in scan(text) if t.token_type != TokenType.SEMICOLON]
        self._words = [
            "" if t.token_type in (TokenType.STRING, TokenType.IDENTIFIER) else t.text.upper()
            for t in self._tokens
        ]
        self._depths: list[int] = []
        depth = 0
        for word in self._words:
            depth -= word in _CLOSING
            self._depths.append(depth)
            depth += word in _OPENING

    def __len__(self) -> int:
        return len(self._tokens)

    def word(self, at: int) -> str:
        """The token in upper case; empty for strings, quoted names and past the end."""
        return self._words[at] if 0 <= at < len(self._words) else ""

    def is_at(self, at: int, *words: str) -> bool:
        """True where these words stand."""
        return all(self.word(at + n) == word for n, word in enumerate(words))

    def find(self, start: int, *words: str, end: int | None = None) -> int:
        """The first of `words` outside parentheses from `start` on, else `end`."""
        last = len(self) if end is None else end
        depth = self._depths[start] if start < len(self) else 0
        for at in range(start, last):
            if self._words[at] in words and self._depths[at] <= depth:
                return at
        return last

    def split(self, span: Span, separator: str = ",") -> list[Span]:
        """The parts of `span` between separators outside parentheses."""
        parts, start = [], span[0]
        while True:
            at = self.find(start, separator, end=span[1])
            parts.append((start, at))
            if at >= span[1]:
                return parts
            start = at + 1

    def closing(self, at: int) -> int:
        """The parenthesis that closes the one at `at`."""
        for n in range(at + 1, len(self)):
            if self._depths[n] == self._depths[at] and self._words[n] == ")":
                return n
        raise self.error("a parenthesis is not closed", at)

    def offsets(self, span: Span) -> tuple[int, int]:
        """Where the span stands in the text."""
        if span[0] >= span[1]:
            return (len(self.text), len(self.text))
        return self._tokens[span[0]].start, self._tokens[span[1] - 1].end + 1

    def slice(self, span: Span) -> str:
        """The span as written."""
        start, end = self.offsets(span)
        return self.text[start:end]

    def name(self, at: int) -> str:
        """The identifier at `at`, unquoted."""
        if at < len(self) and (self._words[at] == "" or self._words[at].replace("_", "a").isalnum()):
            return self._tokens[at].text
        raise self.error("a name must stand here", at)

    def names(self, span: Span) -> list[str]:
        """A comma-separated list of names."""
        return [self.name(part[0]) for part in self.split(span)]

    def error(self, message: str, at: int, hint: str = "") -> CQSyntaxError:
        """A syntax error at a token."""
        offset = self._tokens[at].start if at < len(self) else len(self.text)
        return CQSyntaxError(message, hint=hint, location=location_at(self.text, offset))

    def assignments(self, span: Span) -> list[tuple[str, Span]]:
        """`[alias.]column = expression, ...` as (column, expression)."""
        return [self._assignment(part) for part in self.split(span)]

    def _assignment(self, span: Span) -> tuple[str, Span]:
        equals = self.find(span[0], "=", end=span[1])
        parts: Sequence[Span] = self.split((span[0], equals), ".")
        if equals >= span[1] or len(parts) > 2 or any(b - a != 1 for a, b in parts):
            raise self.error("an assignment is `column = expression`", span[0])
        return self.name(parts[-1][0]), (equals + 1, span[1])
