"""The functions that this process has registered as callbacks, and what is known of each."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from cq_engine.catalog.model import Cursor
from cq_engine.destinations.event_loop import EventLoop

if TYPE_CHECKING:
    from cq_engine.destinations.envelope import DeltaBatch

__all__ = ["Callback", "Callbacks", "OutOfOrder"]

Callback: TypeAlias = "Callable[[DeltaBatch], object]"
"""One that is `async` gives an awaitable."""


class Callbacks:
    """The functions that DESTINATION CALLBACK can name, by name regardless of case. Thread-safe."""

    def __init__(self) -> None:
        self._functions: dict[str, tuple[str, Callback, Mapping[str, str]]] = {}
        self._lock = threading.Lock()
        self.loop = EventLoop()
        self.out_of_order: dict[tuple[int, str], OutOfOrder] = {}
        """By query and name, what was accepted out of turn before a failure."""

    def register(self, name: str, function: Callback, options: Mapping[str, str] | None = None) -> None:
        """Makes `function` the callback `name`; it takes the place of an earlier one. `options` are those that a
        declaration could have."""
        with self._lock:
            self._functions[name.lower()] = (name, function, options or {})

    def get(self, name: str) -> Callback | None:
        """The callback `name`, or None."""
        with self._lock:
            found = self._functions.get(name.lower())
        return None if found is None else found[1]

    def options(self, name: str) -> Mapping[str, str]:
        """What was said when the callback `name` was registered."""
        with self._lock:
            return self._functions[name.lower()][2] if name.lower() in self._functions else {}

    def names(self) -> tuple[str, ...]:
        """All names, as they were registered."""
        with self._lock:
            return tuple(name for name, _, _ in self._functions.values())


@dataclass(frozen=True)
class OutOfOrder:
    """What a destination with several calls at once accepted, after the cursor, in batches that end at `ends`."""

    cursor: Cursor
    batch: str
    ends: frozenset[tuple[int, int]]

    def at(self, cursor: Cursor, batch: str) -> frozenset[tuple[int, int]]:
        """What of it counts at a cursor: nothing where that was placed anew, or batches are other ones."""
        known, now = _place(self.cursor), _place(cursor)
        counts = batch == self.batch and (now > known or (now == known and cursor.failures > 0))
        return self.ends if counts else frozenset()


def _place(cursor: Cursor) -> tuple[int, float]:
    return cursor.version, cursor.sequence or math.inf
