"""Sources that change while they are asked, by a clock of their own: the world of `sweep_messages.py`.

A chain of relations r0 … r(n−1), each at a source of its own: r(i).b = r(i+1).a. Rows come and go one by one, at random times;
keys are never used again. A message takes the time 1, so a question is answered after 2; updates come to the
warehouse after 1, too, and are never overtaken. The rate is of updates of each source in the time of a question.
"""

from __future__ import annotations

import heapq
import itertools
import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from cq_engine.sources.sweep.model import Answer, Ask, Change, Edge, Relation, Row, Update, View

__all__ = ["Arrival", "TooMuchError", "World", "chain", "join"]

ROWS = 40
"""Rows of each relation at the start."""
VALUES = 16
"""Different values of each column that is joined: a row joins 2.5 others, so that few sweeps end before they have asked everybody."""

SAMPLE = 50
"""Of algorithms that promise every state, one in so many is checked."""
MOST = 100_000
"""Rows of a query, or its terms, and a run ends with TooMuchError."""

Partial = tuple[Row | None, ...]
"""A row of each relation, or None where it is not bound."""


class TooMuchError(Exception):
    """An algorithm has more rows or terms in its queries than are worth waiting for."""


@dataclass(frozen=True)
class Arrival:
    """One row that a source has inserted (sign +1) or deleted (−1)."""

    place: int
    row: Row
    sign: int
    committed: float
    position: int

    @property
    def delivered(self) -> float:
        """When it comes to the warehouse."""
        return self.committed + 1


def chain(n: int) -> View:
    """The join of n relations."""
    relations = tuple(Relation(f"r{place}", f"s{place}", ("k",), ("k", "a", "b")) for place in range(n))
    return View(relations, tuple(Edge((f"r{i}", "b"), (f"r{i + 1}", "a")) for i in range(n - 1)))


def join(partials: Iterable[Partial], place: int, rows: Iterable[Row]) -> list[Partial]:
    """Binds one relation to each of the rows that join what is bound beside it."""
    given = list(partials)
    if not given:
        return []
    # Column 1 joins the relation on the left (its column 2), column 2 the one on the right (its column 1).
    beside = [
        (other, theirs, own)
        for other, theirs, own in ((place - 1, 2, 1), (place + 1, 1, 2))
        if 0 <= other < len(given[0]) and given[0][other] is not None
    ]
    by: dict[Row, list[Row]] = {}
    for row in rows:
        by.setdefault(tuple(row[own] for _, _, own in beside), []).append(row)
    found = []
    for partial in given:
        bound = tuple(there[theirs] for other, theirs, _ in beside if (there := partial[other]) is not None)
        found += [(*partial[:place], row, *partial[place + 1 :]) for row in by.get(bound, ())]
        if len(found) > MOST:
            raise TooMuchError
    return found


class World:
    """The sources, their history, which a seed has written beforehand, and the clock. It is what sweeps take for `Channels`."""

    def __init__(self, n: int, rate: float, updates: int, seed: int) -> None:
        self.view = chain(n)
        self.now = 0.0
        self.messages = 0
        self._times = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        rng = random.Random(f"{seed} {n} {rate} {updates}")
        self._numbers = itertools.count()
        self.initial = [[self._row(rng) for _ in range(ROWS)] for _ in range(n)]
        self.arrivals = self._write(rng, n, rate, updates)
        self._logs = [[each for each in self.arrivals if each.place == place] for place in range(n)]
        self._updates = [
            [
                Update(
                    f"s{each.place}",
                    each.position,
                    (Change(f"r{each.place}", *((None, each.row) if each.sign > 0 else (each.row, None))),),
                )
                for each in log
            ]
            for log in self._logs
        ]
        self._rows = [dict.fromkeys(rows) for rows in self.initial]
        self._done = [0] * n

    def _row(self, rng: random.Random) -> Row:
        return (next(self._numbers), rng.randrange(VALUES), rng.randrange(VALUES))

    def _write(self, rng: random.Random, n: int, rate: float, updates: int) -> list[Arrival]:
        tables = [list(rows) for rows in self.initial]
        positions, found, moment = [0] * n, [], 0.0
        for _ in range(updates):
            moment += rng.expovariate(n * rate / 2)
            place = rng.randrange(n)
            positions[place] += 1
            if rng.random() < 0.5:
                row, sign = self._row(rng), 1
                tables[place].append(row)
            else:
                row, sign = tables[place].pop(rng.randrange(len(tables[place]))), -1
            found.append(Arrival(place, row, sign, moment, positions[place]))
        return found

    # ---------------------------------------------------------------- the clock

    def at(self, moment: float, event: Callable[[], None]) -> None:
        """Lets something happen."""
        heapq.heappush(self._events, (moment, next(self._times), event))

    def play(self) -> None:
        """Lets everything happen that anybody has planned."""
        while self._events:
            self.now, _, event = heapq.heappop(self._events)
            event()

    def rows(self, place: int, moment: float) -> Mapping[Row, None]:
        """The rows of a relation at a moment, which never goes back."""
        log = self._logs[place]
        while self._done[place] < len(log) and log[self._done[place]].committed <= moment:
            arrival = log[self._done[place]]
            self._done[place] += 1
            if arrival.sign > 0:
                self._rows[place][arrival.row] = None
            else:
                del self._rows[place][arrival.row]
        return self._rows[place]

    def delivered(self) -> Sequence[Arrival]:
        """All updates that have come to the warehouse, in the order of their times."""
        return self.arrivals[: bisect_right(self.arrivals, self.now, key=lambda each: each.delivered)]

    # ---------------------------------------------------------------- Channels

    def ask(self, asks: Sequence[Ask]) -> Sequence[Answer]:
        """The sources answer after the time 1; after 2, the answers are here."""
        self.messages += len(asks)
        answers = [self.answer(ask, self.now + 1) for ask in asks]
        self.now += 2
        return answers

    def answer(self, ask: Ask, moment: float) -> Answer:
        """What a source answers at a moment."""
        place = int(ask.relation[1:])
        [column] = self.view.relations[place].places(ask.columns)
        wanted = {key for (key,) in ask.keys}
        rows = [row for row in self.rows(place, moment) if row[column] in wanted]
        return Answer(rows, self._done[place])

    def wholes(self, places: Sequence[int]) -> Sequence[Sequence[Row]]:
        """All rows of relations, by as many questions at the same time: what joins is found by who has asked."""
        self.messages += len(places)
        answers = [list(self.rows(place, self.now + 1)) for place in places]
        self.now += 2
        return answers

    def updates(self, source: str, after: int, upto: int | None) -> Sequence[Update]:
        """What has come from a source by now, or as far as an answer has seen, which is the same: nothing is overtaken."""
        log = self._logs[int(source[1:])]
        end = bisect_right(log, self.now, key=lambda each: each.delivered)
        return self._updates[int(source[1:])][after : max(end, upto or 0)]

    # ---------------------------------------------------------------- what is right

    def prefix(self, count: int) -> Sequence[int]:
        """By source, how many of the first so many updates are its own."""
        places = Counter(each.place for each in self.arrivals[:count])
        return [places[place] for place in range(len(self.initial))]

    def check(self, vector: Sequence[int], view: Counter[Partial]) -> None:
        """Raises AssertionError where this is not the view after so many updates of each source."""
        if view != self.evaluate(vector):
            raise AssertionError(f"the view after {vector} is wrong")

    def evaluate(self, vector: Sequence[int]) -> Counter[Partial]:
        """The view after so many updates of each source."""
        partials: list[Partial] = [(None,) * len(self.initial)]
        for place, count in enumerate(vector):
            rows = dict.fromkeys(self.initial[place])
            for each in self._logs[place][:count]:
                if each.sign > 0:
                    rows[each.row] = None
                else:
                    del rows[each.row]
            partials = join(partials, place, rows)
        return Counter(partials)
