"""Versions that somebody reads who has no position in the catalog: open transactions, queries that are being created."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

__all__ = ["ReadHolds"]


class ReadHolds:
    """Who holds which version. A holder that is forgotten holds nothing."""

    def __init__(self) -> None:
        self._held: WeakKeyDictionary[object, int] = WeakKeyDictionary()
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

    def lowest(self, newest: int) -> int:
        """The lowest version that is held; `newest` where none is below it."""
        with self._lock:
            return min([newest, *self._held.values()])


class _Holder:
    """Something that can be held by a weak reference."""
