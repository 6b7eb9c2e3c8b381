"""Splitting a script into statements, with their places."""

from __future__ import annotations

from dataclasses import dataclass

from cq_engine.grammar.scan import scan
from cq_engine.grammar.source import SourceText

__all__ = ["ScriptItem", "is_complete", "split"]


@dataclass(frozen=True)
class ScriptItem:
    """One statement of a script: its text without the semicolon and without comments around it."""

    text: str
    source: str
    line: int
    column: int
    offset: int
    """Where `text` starts in the script, in characters."""


def split(text: str, source: str = "<script>") -> list[ScriptItem]:
    """The statements of `text`, which semicolons separate; statements without words are dropped.

    A string or comment that does not end takes the rest of the text: `parse` says what is wrong with it.
    """
    found = scan(text)
    whole = SourceText(text, source)
    items = []
    start = 0
    for end in (*found.separators, len(text)):
        code = found.code[start:end]
        # A comment that never ends is blank in `code`, but must not vanish.
        if end == len(text) and found.unclosed is not None and found.unclosed.key == "unclosed_comment":
            code = code[: found.unclosed.offset - start] + text[found.unclosed.offset : end]
        stripped = code.strip()
        if stripped:
            offset = start + len(code) - len(code.lstrip())
            line, column = whole.position(offset)
            items.append(ScriptItem(text[offset : offset + len(stripped)], source, line, column, offset))
        start = end + 1
    return items


def is_complete(text: str) -> bool:
    """Whether a prompt may run `text`: its last statement ends with a semicolon outside strings and comments."""
    found = scan(text)
    return found.unclosed is None and found.code.rstrip().endswith(";")
