"""Ctrl-C held back over the few steps that must not be split, such as a COMMIT and the update of memory after it."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import AbstractContextManager
from types import FrameType, TracebackType
from typing import Protocol

__all__ = ["BEGINNING", "arrived", "deferred", "is_deferring", "is_interrupt", "taken"]

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


BEGINNING = _Deferral.__enter__.__code__
"""In which a block of `deferred` begins."""
_deferral = _Deferral()


class _Lock(Protocol):
    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...
    def release(self) -> None: ...
    def __enter__(self) -> bool: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class _Taken(AbstractContextManager[bool]):
    def __init__(self, lock: _Lock, wait: float) -> None:
        self._lock, self._wait, self._has = lock, wait, False

    def __enter__(self) -> bool:
        self._has = self._lock.acquire(timeout=self._wait)
        return self._has

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._has:
            self._lock.release()


def taken(lock: _Lock, wait: float = 0) -> AbstractContextManager[bool]:
    """A block with the lock, if it can be had within so many seconds (negative: as long as it takes): whether it has it. Ctrl-C
    breaks the waiting off only where it may be for ever.

    >>> lock = threading.Lock()
    >>> with taken(lock) as first, taken(lock) as second:
    ...     first, second
    (True, False)
    """
    return lock if wait < 0 else _Taken(lock, wait)


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


def arrived(frame: FrameType | None) -> FrameType | None:
    """Where the signal came that was held back; the frame, if none was."""
    while frame is not None and (
        frame.f_code is _Deferral._note.__code__  # noqa: SLF001 - of this module
        or (frame.f_code is _Deferral.__exit__.__code__ and not _deferral.is_on)
    ):
        frame = frame.f_back
    return frame
