"""A text with its place in a file, so that every offset in it can be shown to a person."""

from __future__ import annotations

from dataclasses import dataclass

from cq_engine.core.errors import Location


@dataclass(frozen=True)
class SourceText:
    """`text` as it stands in `name` (a file or `<input>`), its first character at `line` and `column` (from 1)."""

    text: str
    name: str = "<input>"
    line: int = 1
    column: int = 1

    def position(self, offset: int) -> tuple[int, int]:
        """Line and column of the character at `offset`; `len(text)` is allowed and means the end."""
        before = self.text[:offset]
        newlines = before.count("\n")
        in_line = len(before) - (before.rfind("\n") + 1)
        if newlines == 0:
            return self.line, self.column + in_line
        return self.line + newlines, in_line + 1

    def location(self, offset: int) -> Location:
        """The place of `offset`, with its whole line as far as the text holds it.

        Where the text begins in the middle of a line, the unknown beginning is shown as blanks, so that the caret
        stands under its character.
        """
        offset = max(0, min(offset, len(self.text)))
        line, column = self.position(offset)
        start = self.text.rfind("\n", 0, offset) + 1
        end = self.text.find("\n", offset)
        shown = self.text[start : end if end >= 0 else len(self.text)].rstrip("\r")
        if start == 0:
            shown = " " * (self.column - 1) + shown
        return Location(self.name, line, column, shown)

    def part(self, start: int, end: int | None = None) -> SourceText:
        """The text from `start` to `end`, with its own place."""
        line, column = self.position(start)
        return SourceText(self.text[start:end], self.name, line, column)
