"""Progress of long loops: a bar at a terminal, a line now and then elsewhere.

>>> import io
>>> plain = io.StringIO()
>>> sum(progress([1, 2, 3], "adding", stream=plain, seconds=0))
6
>>> print(plain.getvalue(), end="")
adding: 1 of 3 (33 %)
adding: 2 of 3 (67 %)
adding: 3 of 3 (100 %)
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sized
from types import TracebackType
from typing import TYPE_CHECKING, TextIO, TypeVar

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichProgress

__all__ = ["Progress", "progress"]

T = TypeVar("T")

PLAIN_SECONDS = 5.0
"""The least time between two lines where there is no terminal."""


class Progress:
    """Counts steps of one task; a context manager.

    Args:
        label: what is being done.
        total: how many steps there are, None where nobody knows.
        stream: where to write; standard error by default, so that output can be redirected.
        console: what other lines are written with meanwhile. Where it is a terminal the bar stays below them.
        seconds: the least time between two plain lines.
    """

    def __init__(
        self,
        label: str,
        total: int | None = None,
        *,
        stream: TextIO | None = None,
        seconds: float = PLAIN_SECONDS,
        console: Console | None = None,
    ) -> None:
        self._console = console if console is not None and console.is_terminal else None
        self._label = label
        self._total = total
        self._stream = sys.stderr if stream is None else stream
        self._seconds = seconds
        self._done = 0
        self._told = -1
        self._told_at = time.monotonic()
        self._bar: RichProgress | None = None

    def __enter__(self) -> Progress:
        if self._console is not None or self._stream.isatty():
            self._bar = _rich(self._stream, self._console)
            self._bar.add_task(self._label, total=self._total)
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._told != self._done:
            self._tell()

    def advance(self, steps: int = 1) -> None:
        """Counts `steps` as done."""
        self._done += steps
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=self._done)
        elif time.monotonic() - self._told_at >= self._seconds:
            self._tell()

    def _tell(self) -> None:
        share = f" ({round(100 * self._done / self._total)} %)" if self._total else ""
        of = f" of {self._total}" if self._total is not None else ""
        self._stream.write(f"{self._label}: {self._done}{of}{share}\n")
        self._stream.flush()
        self._told, self._told_at = self._done, time.monotonic()


def progress(
    items: Iterable[T],
    label: str,
    total: int | None = None,
    *,
    stream: TextIO | None = None,
    seconds: float = PLAIN_SECONDS,
) -> Iterator[T]:
    """The items, and progress while they are taken. `total` is the number of items where they do not know it."""
    if total is None and isinstance(items, Sized):
        total = len(items)
    with Progress(label, total, stream=stream, seconds=seconds) as bar:
        for item in items:
            yield item
            bar.advance()


def _rich(stream: TextIO, console: Console | None) -> RichProgress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as RichProgress

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return RichProgress(*columns, console=console or Console(file=stream))
