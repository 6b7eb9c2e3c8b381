"""The script of a trigger, `CREATE DESTINATION ... AS BEGIN statement; ... END`: its semicolons end no statement around it.

Where it ends is found by its words, before any grammar: CASE ... END nests in it. For the parser, what stands in it and
in `WHEN (...)` is one terminal each, of characters that no text has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

__all__ = ["Block", "find_blocks", "hide"]

_HEAD = re.compile(r"\s*CREATE\s+DESTINATION(?!\w)", re.IGNORECASE)
_BEGIN = re.compile(r"(?<![\w.])AS\s+(BEGIN)(?!\w)", re.IGNORECASE)
_WORD = re.compile(r"(?<![\w.])(CASE|END)(?!\w)", re.IGNORECASE)
_WHEN = re.compile(r"(?<![\w.])WHEN\s*(?=\()", re.IGNORECASE)
_AFTER = re.compile(r"\s*(?:;|\Z|(?:WHEN|FOR|WITH)(?!\w))", re.IGNORECASE)
_HIDDEN = "\x01"


@dataclass(frozen=True)
class Block:
    """`begin` is where BEGIN stands, `end` where its END does; None where it has none."""

    begin: int
    end: int | None


def find_blocks(skeleton: str, separators: Sequence[int]) -> tuple[list[Block], list[int]]:
    """The scripts in a text of statements, and the separators that stand in none of them."""
    if _BEGIN.search(skeleton) is None:
        return [], list(separators)
    blocks: list[Block] = []
    outside: list[int] = []
    start = done = 0
    for separator in (*separators, len(skeleton)):
        if start <= separator < done:  # in the script that the statement has
            continue
        if _HEAD.match(skeleton, start) and not done:
            begin = _BEGIN.search(skeleton, start, separator)
            if begin is not None:
                blocks.append(Block(begin.start(1), _end(skeleton, begin.end())))
                done = len(skeleton) if blocks[-1].end is None else blocks[-1].end
                if separator < done:
                    continue
        if separator < len(skeleton):
            outside.append(separator)
        start, done = separator + 1, 0
    return blocks, outside


def _end(skeleton: str, at: int) -> int | None:
    """The END that is the script's: outside CASE, after a semicolon or before what may follow a script."""
    depth = 0
    for word in _WORD.finditer(skeleton, at):
        if word[1].upper() == "CASE":
            depth += 1
        elif depth:
            depth -= 1
        elif skeleton[at : word.start()].rstrip()[-1:] in ("", ";") or _AFTER.match(skeleton, word.end()):
            return word.start()
    return None


def hide(code: str, skeleton: str, block: Block | None) -> str:
    """The text of CREATE DESTINATION with what stands in its script and its condition hidden."""
    if _HEAD.match(skeleton) is None:
        return code
    for start, end in _hidden(skeleton, block):
        code = code[:start] + re.sub(r"[^\r\n]", _HIDDEN, code[start:end]) + code[end:]
    return code


def _hidden(skeleton: str, block: Block | None) -> Iterator[tuple[int, int]]:
    outside = skeleton
    if block is not None and block.end is not None:
        start = block.begin + len("BEGIN")
        yield start, block.end
        outside = skeleton[:start] + " " * (block.end - start) + skeleton[block.end :]
    for when in _WHEN.finditer(outside):
        depth = 0
        for at in range(when.end(), len(outside)):
            depth += {"(": 1, ")": -1}.get(outside[at], 0)
            if depth == 0:
                yield when.end() + 1, at
                break
