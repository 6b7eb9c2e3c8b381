"""Sources in memory that answer at once by an index, so that only the sweeps take time."""

from __future__ import annotations

import random
from collections.abc import Sequence

from sweep_world import chain

from cq_engine.sources.sweep.model import Answer, Ask, Change, Row, Update

__all__ = ["Memory"]

HOT = 20
"""Rows that all updates are of, where they are hot."""


class Memory:
    """A chain of relations, and a queue of updates of single rows that are in the relations already."""

    def __init__(self, n: int, rows: int, updates: int, spread: str, rng: random.Random) -> None:
        self.view = chain(n)
        self._rng, self._values = rng, rows
        self._tables: dict[str, dict[int, Row]] = {f"r{place}": {} for place in range(n)}
        self._by: dict[tuple[str, str], dict[int, dict[Row, None]]] = {
            (f"r{place}", column): {} for place in range(n) for column in "ab"
        }
        self._logs: dict[str, list[Update]] = {f"s{place}": [] for place in range(n)}
        for place in range(n):
            for key in range(rows):
                self._put(place, key)
        for _ in range(updates):
            for place in range(n):
                key = rng.randrange(rows if spread == "scattered" else HOT)
                old, new = self._put(place, key)
                log = self._logs[f"s{place}"]
                log.append(Update(f"s{place}", len(log) + 1, (Change(f"r{place}", old, new),)))

    def ask(self, asks: Sequence[Ask]) -> Sequence[Answer]:
        """Rows by the index."""
        return [
            Answer(
                [row for key in ask.keys for row in self._by[ask.relation, ask.columns[0]].get(key[0], ())],
                len(self._logs[f"s{ask.relation[1:]}"]),
            )
            for ask in asks
        ]

    def updates(self, source: str, after: int, upto: int | None) -> Sequence[Update]:
        """All that is there."""
        del upto
        return self._logs[source][after:]

    def _put(self, place: int, key: int) -> tuple[Row | None, Row]:
        name = f"r{place}"
        old = self._tables[name].get(key)
        new = (key, self._rng.randrange(self._values), self._rng.randrange(self._values))
        for column, at in (("a", 1), ("b", 2)):
            if old is not None:
                del self._by[name, column][old[at]][old]
            self._by[name, column].setdefault(new[at], {})[new] = None
        self._tables[name][key] = new
        return old, new
