"""Callbacks that note how they are called, and the deltas that they are called with."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cq_engine.catalog.model import QueryStatus, RefreshRecord
from cq_engine.destinations import CallbackDestination, Retry
from cq_engine.destinations.contract import World
from cq_engine.destinations.contract.world import row

ONCE = Retry(attempts=1)
LONG = 20.0


class Calls:
    """A callback that notes what it is given, and finds calls that overlap and have a key in common."""

    def __init__(self, during: Callable[[Any], object] = lambda _: None) -> None:
        self.during = during
        self.accepted: list[tuple[int, int]] = []
        self.by_key: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self.batches: list[list[tuple[int, int]]] = []
        self.most = 0
        self._open: list[set[int]] = []
        self._lock = threading.Lock()

    def __call__(self, batch: Any) -> None:
        keys = self._begin(batch)
        try:
            self.during(batch)
            self._accept(batch)
        finally:
            with self._lock:
                self._open.remove(keys)

    def _begin(self, batch: Any) -> set[int]:
        keys = {d.key[0] for d in batch}
        with self._lock:
            assert all(keys.isdisjoint(others) for others in self._open), "two calls with one key"
            self._open.append(keys)
            self.most = max(self.most, len(self._open))
        return keys

    def _accept(self, batch: Any) -> None:
        with self._lock:
            places = [(d.commit_version, d.sequence) for d in batch]
            self.batches.append(places)
            self.accepted += places
            for delta in batch:
                self.by_key[delta.key[0]].append((delta.commit_version, delta.sequence))


class Async(Calls):
    """The same on the event loop."""

    async def __call__(self, batch: Any) -> None:  # type: ignore[override]
        keys = self._begin(batch)
        try:
            result = self.during(batch)
            if result is not None:
                await result  # type: ignore[misc]
            await asyncio.sleep(0)
            self._accept(batch)
        finally:
            with self._lock:
                self._open.remove(keys)


@contextmanager
def a_world() -> Iterator[World]:
    with tempfile.TemporaryDirectory() as directory:
        made = World(Path(directory, "warehouse"))
        yield made
        made.catalog.close()


def filled(world: World, commits: list[list[int]]) -> list[tuple[int, int]]:
    """Commits that insert and then update these keys in turn; the places of all deltas, in order."""
    seen: set[int] = set()
    places = []
    for keys in commits:
        deltas = [("U", row(k), row(k, "x")) if k in seen else ("I", row(k)) for k in keys]
        seen |= set(keys)
        version = world.refresh(*deltas)
        places += [(version, n) for n in range(1, len(keys) + 1)]
    return places


def refreshed(world: World, *ends: int) -> None:
    """Refreshes have ended at these versions."""
    for end in ends:
        before = world.catalog.status("Totals").position
        with world.catalog.write() as unit:
            unit.add_refresh(RefreshRecord("Totals", before, end, 1, 0, 0, "", 0.0, world.clock.now()))
            unit.set_status("Totals", QueryStatus(end))


def destination(world: World, function: Any, **options: Any) -> CallbackDestination:
    options.setdefault("retry", ONCE)
    return CallbackDestination(world.services, world.query, "a", function, **options)
