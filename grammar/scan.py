"""Strings, quoted names, comments, brackets and semicolons of a text: what must be known before any grammar.

Comments nest, and a `;` in a string separates nothing; neither is for an LALR grammar. One pass over the text finds
them for the parser, the script splitter and the error messages alike.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from cq_engine.grammar.blocks import Block, find_blocks

_MARK = re.compile(
    r"""
      (?P<raw>(?<!\w)[rR](?:'[^']*'|"[^"]*"))
    | (?P<string>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
    | (?P<name>`(?:[^`]|``)*`)
    | (?P<line>--[^\r\n]*)
    | (?P<block>/\*)
    | (?P<bracket>[()])
    | (?P<separator>;)
    | (?P<unclosed>['"`])
    """,
    re.VERBOSE | re.DOTALL,
)
_COMMENT_MARK = re.compile(r"/\*|\*/")

_UNCLOSED = {"'": "unclosed_string", '"': "unclosed_string", "`": "unclosed_name"}


@dataclass(frozen=True)
class Problem:
    """What is wrong with the text: the key of a row in messages.py, and where."""

    key: str
    offset: int


@dataclass(frozen=True)
class Scan:
    """What `scan` found. Offsets count characters of the text."""

    code: str
    """The text with every comment blanked; lines and offsets are those of the text."""
    skeleton: str
    """`code` with strings and quoted names blanked too: keywords, brackets, plain names."""
    separators: tuple[int, ...]
    """The semicolons that separate statements."""
    unclosed: Problem | None
    """A string, quoted name, comment or script that does not end."""
    unbalanced: Problem | None
    """The first bracket without its partner (the innermost open one, if one is never closed)."""
    blocks: tuple[Block, ...] = ()
    """The scripts of triggers, whose semicolons separate no statements of this text."""


def scan(text: str) -> Scan:
    """Finds comments, strings and separators of `text`, which may hold several statements."""
    comments: list[tuple[int, int]] = []
    literals: list[tuple[int, int]] = []
    separators: list[int] = []
    open_brackets: list[int] = []
    unclosed = unbalanced = None
    at = 0
    while (mark := _MARK.search(text, at)) is not None:
        start, at = mark.span()
        kind = mark.lastgroup
        if kind == "block":
            end = _end_of_comment(text, at)
            if end is None:
                unclosed = Problem("unclosed_comment", start)
            at = len(text) if end is None else end
        if kind in ("line", "block"):
            comments.append((start, at))
        elif kind in ("raw", "string", "name"):
            literals.append((start, at))
        elif kind == "separator":
            separators.append(start)
        elif kind == "unclosed":
            unclosed = Problem(_UNCLOSED[mark.group()], start)
            literals.append((start, len(text)))
            break
        elif mark.group() == "(":
            open_brackets.append(start)
        elif open_brackets:
            open_brackets.pop()
        elif unbalanced is None:
            unbalanced = Problem("stray_bracket", start)
    if unbalanced is None and open_brackets:
        unbalanced = Problem("unclosed_bracket", open_brackets[-1])
    code = _blank(text, comments)
    skeleton = _blank(code, literals)
    blocks, separators = find_blocks(skeleton, separators)
    unclosed = unclosed or _open_script(blocks)
    return Scan(code, skeleton, tuple(separators), unclosed, unbalanced, tuple(blocks))


def _open_script(blocks: Sequence[Block]) -> Problem | None:
    is_open = bool(blocks) and blocks[-1].end is None
    return Problem("unclosed_script", blocks[-1].begin) if is_open else None


def _end_of_comment(text: str, at: int) -> int | None:
    """Where the bracketed comment ends whose `/*` ends at `at`; None if it does not."""
    depth = 1
    for mark in _COMMENT_MARK.finditer(text, at):
        depth += 1 if mark.group() == "/*" else -1
        if depth == 0:
            return mark.end()
    return None


def _blank(text: str, spans: list[tuple[int, int]]) -> str:
    """`text` with the characters in `spans` replaced by blanks; line ends stay."""
    pieces = []
    done = 0
    for start, end in spans:
        pieces.append(text[done:start])
        pieces.append(re.sub(r"[^\r\n]", " ", text[start:end]))
        done = end
    pieces.append(text[done:])
    return "".join(pieces)
