"""Ctrl-C held back over the few steps that must not be split, such as a COMMIT and the update of memory after it."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import AbstractContextManager
from types import FrameType, TracebackType

__all__ = ["deferred", "is_deferring", "is_interrupt"]

PATIENCE = 5.0
"""Seconds after which another Ctrl-C is not held back any more: what it waits for may never end."""


class _Deferral(AbstractContextManager[None]):
    """Blocks may lie inside each other; the outermost one does the work. Only the main thread is ever interrupted, so
    this is the main thread's alone."""

    def __init__(self) -> None:
        self._depth = 0
        self._arrived: FrameType | None = None
        self._pending = False
        self._since = 0.0
        self._previous: signal._HANDLER = None

    @property
    def is_on(self) -> bool:
        return self._depth > 0

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        if self._depth:
            self._depth += 1
            return
        previous = signal.getsignal(signal.SIGINT)
        if callable(previous):  # else it is ignored, fatal, or not Python's: nothing is raised in the block
            if previous != self._note:
                self._previous = previous
            self._pending = False
            signal.signal(signal.SIGINT, self._note)
            self._depth = 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._depth or threading.current_thread() is not threading.main_thread():
            return
        self._depth -= 1
        if self._depth:
            return
        if signal.getsignal(signal.SIGINT) == self._note:
            signal.signal(signal.SIGINT, self._previous)
        if self._pending and callable(self._previous):
            arrived, self._arrived, self._pending = self._arrived, None, False
            self._previous(signal.SIGINT, arrived)

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if not self._pending:
            self._pending, self._since, self._arrived = True, now, frame
        elif self._depth and now - self._since > PATIENCE and callable(self._previous):
            self._since = now
            self._previous(number, frame)


_deferral = _Deferral()


def is_interrupt(error: BaseException) -> bool:
    """Whether it is Ctrl-C: KeyboardInterrupt in the main thread, the only one that signals interrupt."""
    return isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()


def is_deferring() -> bool:
    """Whether Ctrl-C is held back now."""
    return _deferral.is_on


def deferred() -> AbstractContextManager[None]:
    """A block during which SIGINT is noted; at its end, the handler that was there is called for it.

    In threads other than the main one, where Python runs no signal handlers, the block is a block.

    >>> with deferred():
    ...     pass
    """
    return _deferral
