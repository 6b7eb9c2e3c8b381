"""The LALR parser, built from the .lark files at first use and then kept."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from lark import Lark, Token
from lark.lark import PostLex


class _NamesEverywhere(PostLex):
    """Lets the contextual lexer see a name in every state.

    Without it, `ONCE` would be read as the keyword ON and a rest wherever only keywords can follow.
    """

    always_accept = ("NAME",)

    def process(self, stream: Iterator[Token]) -> Iterator[Token]:
        return stream


@lru_cache(maxsize=1)
def parser() -> Lark:
    """The parser of cq.lark; its input has its comments blanked (scan.py)."""
    return Lark.open_from_package(
        __package__,
        "cq.lark",
        ("",),
        parser="lalr",
        propagate_positions=True,
        maybe_placeholders=True,
        postlex=_NamesEverywhere(),
    )


@lru_cache(maxsize=1)
def keywords() -> dict[str, tuple[str, ...]]:
    """For every terminal the words that it may be: one for a keyword, several for UNIT and QUERY, none for names."""
    words: dict[str, tuple[str, ...]] = {
        terminal.name: (terminal.pattern.value,) if terminal.pattern.value.isalpha() else ()
        for terminal in parser().terminals
        if terminal.pattern.type == "str"
    }
    words["FORMAT_OPTIONS"] = ("FORMAT_OPTIONS",)
    words["UNIT"] = ("SECONDS", "MINUTES", "HOURS", "DAYS", "WEEKS", "MONTHS")
    words["QUERY"] = ("SELECT", "WITH", "VALUES", "FROM")
    words["INSERT_REST"] = ("INTO", "OVERWRITE")
    words["DELETE_REST"] = ("FROM",)
    words["MERGE_REST"] = ("INTO",)
    words["TRUNCATE_REST"] = ("TABLE",)
    return words
