"""What stands in for the engine where queries are scheduled."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime, timezone

START = datetime(2024, 1, 1, tzinfo=timezone.utc)
LONG = 20.0
"""Seconds that nothing here should take."""


class Runs:
    """Stands in for the engine: records the runs, and can hold one up or make it fail."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.errors: list[tuple[str, str]] = []
        self.during: dict[str, Callable[[], object]] = {}

    def run(self, name: str) -> None:
        self.names.append(name)
        if name in self.during:
            self.during[name]()

    def on_error(self, name: str, error: Exception) -> None:
        self.errors.append((name, str(error)))


class Gate:
    """A place where a run waits until the test lets it go on."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.open = threading.Semaphore(0)

    def __call__(self) -> None:
        self.entered.release()
        assert self.open.acquire(timeout=LONG)


def insert(*tables: str) -> dict[str, frozenset[str]]:
    return {table: frozenset({"INSERT"}) for table in tables}
