"""What somebody waits for, so that work in the background can step aside."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from cq_engine.core.interrupts import deferred

__all__ = ["Foreground"]


class Foreground:
    """Counts what is under way that somebody waits for. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._under_way = 0
        self._ended = time.monotonic()

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Somebody waits for the block."""
        with self._changed:
            self._under_way += 1
        try:
            yield
        finally:
            with deferred(), self._changed:
                self._under_way -= 1
                self._ended = time.monotonic()
                self._changed.notify_all()

    def step_aside(self, quiet: float, most: float, stopped: threading.Event) -> None:
        """Waits until nobody has waited for anything for `quiet` seconds from now on; at most for `most` seconds, and no longer
        than until `stopped` is set."""
        begin = time.monotonic()
        while (left := begin + most - time.monotonic()) > 0 and not stopped.is_set():
            with self._changed:
                if self._under_way:
                    self._changed.wait(min(left, 0.1))  # a while at a time, for `stopped`
                    continue
                since = time.monotonic() - max(self._ended, begin)
            if since >= quiet:
                return
            stopped.wait(min(left, quiet - since))
