"""Versions that somebody reads who has no position in the catalog: open transactions, queries that are being created."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

__all__ = ["ReadHolds"]


class ReadHolds:
    """Who holds which version. A holder that is forgotten holds nothing."""

    def __init__(self) -> None:
        self._held: WeakKeyDictionary[object, int] = WeakKeyDictionary()
        self._begun: dict[object, float] = {}
        """When the statements began that run now."""
        self._lock = threading.Lock()

    def hold(self, holder: object, version: int) -> None:
        """Keeps what is needed to read at `version`. Call it with the commit lock held where the version was chosen."""
        with self._lock:
            self._held[holder] = version

    def release(self, holder: object) -> None:
        with self._lock:
            self._held.pop(holder, None)

    @contextmanager
    def held(self, version: int) -> Iterator[None]:
        """Holds a version for a block."""
        holder = _Holder()
        self.hold(holder, version)
        try:
            yield
        finally:
            self.release(holder)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """A statement: the files that it finds stay until it has ended."""
        key = object()
        with self._lock:
            self._begun[key] = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                del self._begun[key]

    def __len__(self) -> int:
        return len(self._held)

    def oldest(self) -> float:
        """For how many seconds the oldest statement has run."""
        with self._lock:
            return time.monotonic() - min(self._begun.values()) if self._begun else 0.0

    def lowest(self, newest: int) -> int:
        """The lowest version that is held; `newest` where none is below it."""
        with self._lock:
            return min([newest, *self._held.values()])


class _Holder:
    """Something that can be held by a weak reference."""
