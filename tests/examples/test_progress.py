"""Progress bars and lines of the examples."""

from __future__ import annotations

import doctest
import io

import progress
from progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_doctests() -> None:
    assert doctest.testmod(progress).failed == 0


def test_plain_lines_are_sparse() -> None:
    plain = io.StringIO()
    assert len(list(progress.progress(range(1000), "days", stream=plain))) == 1000
    assert plain.getvalue() == "days: 1000 of 1000 (100 %)\n"


def test_without_a_total() -> None:
    plain = io.StringIO()
    with Progress("rows", stream=plain) as bar:
        bar.advance(5)
        bar.advance(2)
    assert plain.getvalue() == "rows: 7\n"


def test_a_bar_at_a_terminal() -> None:
    terminal = Terminal()
    assert list(progress.progress("abc", "letters", stream=terminal)) == ["a", "b", "c"]
    assert "letters" in terminal.getvalue()
    assert "3/3" in terminal.getvalue()
