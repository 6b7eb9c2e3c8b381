"""Work that a second core does meanwhile: Arrow and NumPy give the interpreter up while they compute, so that two large pieces take the
time of one. Nobody waits for a core that is busy: what has not begun when its result is wanted is done by who wants it."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from types import TracebackType
from typing import Generic, TypeVar

from cq_engine.core.calls import carried

__all__ = ["Beside", "is_much", "together"]

R = TypeVar("R")

MANY_ROWS = 20_000
"""Work over fewer rows is done sooner than a thread begins with it."""


def is_much(rows: int) -> bool:
    """Is work over so many rows worth another thread?"""
    return rows >= MANY_ROWS


class Beside(Generic[R]):
    """A piece of work over so many rows. Where these are many, another thread begins with it now, as part of the same call; else it is
    done when its result is first asked for. After the `with` block it is not under way.

    It waits for nobody, takes no lock that the caller has, and what it writes nobody uses until its result is asked for.
    """

    def __init__(self, work: Callable[[], R], rows: int) -> None:
        self._work = work
        self._own: list[R] = []
        self._begun = None
        pool = _pool() if is_much(rows) else None
        if pool is not None:
            try:
                self._begun = pool.submit(carried(work))
            except RuntimeError:  # the program ends
                return

    def __call__(self) -> R:
        """The result; raises what the work raised."""
        if self._begun is not None and not self._begun.cancel():
            return self._begun.result()
        if not self._own:
            self._own.append(self._work())
        return self._own[0]

    def __enter__(self) -> Beside[R]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._begun is None or self._begun.cancel():
            return
        late: BaseException | None = None
        while not self._begun.done():
            try:
                wait([self._begun])
            except BaseException as raised:  # noqa: BLE001 - Ctrl-C once more
                late = raised
        if late is not None:
            raise late


def together(pieces: Sequence[Callable[[], R]], rows: int) -> list[R]:
    """The results of all pieces, each over so many rows, of which a second core does some. Where one fails, no other begins, and none is
    under way any more."""
    if len(pieces) < 2 or not is_much(rows):
        return [piece() for piece in pieces]
    waiting = deque(enumerate(pieces))
    found: dict[int, R] = {}

    def work() -> None:
        while waiting:
            try:
                n, piece = waiting.popleft()
            except IndexError:  # the other thread was faster
                return
            try:
                found[n] = piece()
            except BaseException:
                waiting.clear()
                raise

    with Beside(work, rows) as other:
        work()
        other()
    return [found[n] for n in range(len(pieces))]


@cache
def _pool() -> ThreadPoolExecutor | None:
    """A thread for each core but that of who asks; None where there is no other."""
    known = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return ThreadPoolExecutor(known - 1, thread_name_prefix="cq-beside") if known > 1 else None
