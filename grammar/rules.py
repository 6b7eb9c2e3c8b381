"""What the rules of cq.lark share: names, literals, options, and clauses that may stand once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

from lark import Token, Transformer, v_args

from cq_engine.grammar import diagnostics
from cq_engine.grammar.clauses import Options
from cq_engine.grammar.names import string_value, unquote_name
from cq_engine.grammar.source import SourceText
from cq_engine.grammar.statements import Statement

Clause = tuple[str, Any, int]
"""A clause: its name in messages, its value, its offset."""

_NEVER_NAMES = ("AS", "SELECT", "FROM", "WHERE", "WITH")
"""`CREATE CONTINUOUS QUERY AS SELECT ...` has forgotten its name; it is not called AS."""


@v_args(inline=True)
class Rules(Transformer[Token, Statement]):
    """Terminals become their values and keep their offsets; rules with a position take `meta` first."""

    def __init__(self, source: SourceText) -> None:
        super().__init__()
        self.source = source

    def fail(self, key: str, offset: int | None, **fields: str) -> NoReturn:
        """Raises the error that messages.py has under `key`."""
        raise diagnostics.error(key, self.source, offset or 0, **fields)

    def slice(self, token: Token) -> str:
        """The text of `token` as it was written, comments included."""
        return self.source.text[token.start_pos : token.end_pos]

    def once(self, clauses: Iterable[Clause]) -> dict[str, Any]:
        """The clauses by name; an error where one stands twice."""
        found: dict[str, Any] = {}
        for name, value, offset in clauses:
            if name in found:
                self.fail("duplicate_clause", offset, clause=name)
            found[name] = value
        return found

    # ------------------------------------------------------------ terminals

    def NAME(self, token: Token) -> Token:  # noqa: N802 - lark calls it by the terminal's name
        if token.upper() in _NEVER_NAMES:
            self.fail("reserved_name", token.start_pos, found=f"'{token}'")
        return token.update(value=unquote_name(token))

    def STRING(self, token: Token) -> Token:  # noqa: N802 - as above
        return token.update(value=string_value(token))

    # ------------------------------------------------------------ keywords, lists of names, options

    def yes(self) -> bool:
        return True

    def keyword(self, *words: Token) -> str:
        return " ".join(words).upper()

    def names(self, *names: Token) -> tuple[str, ...]:
        return tuple(map(str, names))

    def dotted(self, *parts: Token) -> str:
        return ".".join(parts)

    def quantity(self, number: Token, unit: Token) -> str:
        return f"{number} {unit.upper()}"

    def option_value(self, value: str) -> str:
        text = str(value)
        if isinstance(value, Token) and value.type == "STRING":
            return text
        return text.lower() if text.upper() in ("TRUE", "FALSE") else text

    def option_name(self, name: str) -> str:
        return str(name).lower()

    @v_args(meta=True, inline=True)
    def option(self, meta: Any, name: str, value: str) -> Clause:
        return name, value, meta.start_pos

    def option_list(self, *options: Clause | None) -> Options:
        found: dict[str, str] = {}
        for option in options:
            if option is None:
                continue
            name, value, offset = option
            if name in found:
                self.fail("duplicate_option", offset, option=name)
            found[name] = value
        return tuple(found.items())
