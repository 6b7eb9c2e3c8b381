"""What SWEEP is compared with, as small as it can be: ECA, Strobe and C-Strobe over the world of `sweep_world.py`.

ECA: Zhuge, Garcia-Molina, Hammer, Widom, *View Maintenance in a Warehousing Environment*, SIGMOD 1995. Strobe and C-Strobe: Zhuge,
Garcia-Molina, Wiener, *The Strobe Algorithms for Multi-Source Warehouse Consistency*, PDIS 1996. Each has the view with the
keys of all relations, and counts the states that it installs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

from sweep_world import MOST, SAMPLE, Arrival, Partial, TooMuchError, World, join

from cq_engine.sources.sweep.model import Row

__all__ = ["ECA", "CStrobe", "Strobe", "Warehouse"]


class Warehouse(ABC):
    """A view and its states."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.n = len(world.view.relations)
        self.view = world.evaluate(world.prefix(0))
        self.states = 0

    @abstractmethod
    def run(self) -> int | None:
        """Maintains all updates; what there is to say of its messages, as of ECA."""

    def install(self) -> None:
        self.view = Counter({rows: count for rows, count in self.view.items() if count})
        self.states += 1

    def bound(self, place: int, row: Row) -> Partial:
        return tuple(row if other == place else None for other in range(self.n))


def _without(partials: Iterable[Partial], place: int, row: Row) -> dict[Partial, None]:
    return {rows: None for rows in partials if rows[place] != row}


def _unbound(rows: Partial) -> list[int]:
    """The relations that are not bound, each beside one that is or was bound before it."""
    bound = [place for place, row in enumerate(rows) if row is not None]
    left = range(bound[0] - 1, -1, -1)
    right = [place for place in range(bound[0] + 1, len(rows)) if rows[place] is None]
    return [*left, *right]


@dataclass
class _Sum:
    """A query of ECA: signed terms."""

    terms: list[tuple[int, Partial]]


class ECA(Warehouse):
    """One source with all relations, which evaluates a query in one state. A query for an update takes back what the queries
    that are under way will have of it: it is a sum of terms, and one message. The view is installed when nothing is under way."""

    def run(self) -> int:
        """Maintains all updates; terms of all queries."""
        self.under_way: list[_Sum] = []
        self.terms = 0
        for arrival in self.world.arrivals:
            self.world.at(arrival.delivered, partial(self._update, arrival))
        self.world.play()
        return self.terms

    def _update(self, arrival: Arrival) -> None:
        query = _Sum([(arrival.sign, self.bound(arrival.place, arrival.row))])
        for other in self.under_way:
            query.terms += [
                (-sign * arrival.sign, (*rows[: arrival.place], arrival.row, *rows[arrival.place + 1 :]))
                for sign, rows in other.terms
                if rows[arrival.place] is None
            ]
        if len(query.terms) > MOST:
            raise TooMuchError
        self.terms += len(query.terms)
        self.under_way.append(query)
        self.world.messages += 1
        self.world.at(self.world.now + 1, partial(self._evaluate, query))

    def _evaluate(self, query: _Sum) -> None:
        found: Counter[Partial] = Counter()
        for sign, term in query.terms:
            for rows in self._evaluated(term):
                found[rows] += sign
        self.world.at(self.world.now + 1, partial(self._answer, query, found))

    def _answer(self, query: _Sum, found: Counter[Partial]) -> None:
        self.view.update(found)
        self.under_way.remove(query)
        if not self.under_way:
            self.install()

    def _evaluated(self, term: Partial) -> list[Partial]:
        # Bound relations that are neighbours have to join, too.
        for one, other in pairwise(term):
            if one is not None and other is not None and one[2] != other[1]:
                return []
        partials = [term]
        for place in _unbound(term):
            partials = join(partials, place, self.world.rows(place, self.world.now))
        return partials


@dataclass(eq=False)
class _Question:
    """A query of Strobe, and what has been deleted since it was sent."""

    partials: Sequence[Partial]
    rest: list[int]
    deleted: list[Arrival] = field(default_factory=list)


class Strobe(Warehouse):
    """An insert asks every other source, one after the other; a delete is noted for the answers that are under way, and done
    by key. The view is installed when nothing is under way."""

    def run(self) -> None:
        """Maintains all updates."""
        self.under_way: list[_Question] = []
        self.actions: list[Callable[[], None]] = []
        for arrival in self.world.arrivals:
            self.world.at(arrival.delivered, partial(self._update, arrival))
        self.world.play()

    def _update(self, arrival: Arrival) -> None:
        if arrival.sign < 0:
            for query in self.under_way:
                query.deleted.append(arrival)
            self.actions.append(partial(self._delete, arrival))
            self._done()
        else:
            rows = self.bound(arrival.place, arrival.row)
            self.under_way.append(_Question([rows], _unbound(rows)))
            self._proceed(self.under_way[-1])

    def _proceed(self, query: _Question) -> None:
        if query.rest and query.partials:
            self.world.messages += 1
            self.world.at(self.world.now + 1, partial(self._ask, query))
            return
        self.under_way.remove(query)
        found: Iterable[Partial] = query.partials
        for arrival in query.deleted:
            found = _without(found, arrival.place, arrival.row)
        self.actions.append(partial(self._insert, found))
        self._done()

    def _ask(self, query: _Question) -> None:
        place = query.rest.pop(0)
        rows = list(self.world.rows(place, self.world.now))
        self.world.at(self.world.now + 1, partial(self._answer, query, place, rows))

    def _answer(self, query: _Question, place: int, rows: Sequence[Row]) -> None:
        query.partials = join(query.partials, place, rows)
        self._proceed(query)

    def _insert(self, found: Iterable[Partial]) -> None:
        # A key of each relation is in the view: what is there already is the same row.
        self.view = Counter(dict.fromkeys([*self.view, *found], 1))

    def _delete(self, arrival: Arrival) -> None:
        self.view = Counter(dict.fromkeys(_without(self.view, arrival.place, arrival.row), 1))

    def _done(self) -> None:
        if not self.under_way:
            for action in self.actions:
                action()
            self.actions.clear()
            self.install()


class CStrobe(Warehouse):
    """One update after the other. A delete is done by key. An insert asks every other source; what deletes that are not yet
    done have taken from an answer is asked for by queries of their own, whose answers may lack something in turn.

    Queries that bind the same relation are one (the paper's (n − 1)!), and those of one level are under way at the same time.
    """

    def run(self) -> None:
        """Maintains all updates."""
        for number, arrival in enumerate(self.world.arrivals):
            self.world.now = max(self.world.now, arrival.delivered)
            if arrival.sign < 0:
                self.view = Counter(dict.fromkeys(_without(self.view, arrival.place, arrival.row), 1))
            else:
                self.view.update(self._insert(number, arrival))
            self.install()
            if self.states % SAMPLE == 0:
                self.world.check(self.world.prefix(self.states), self.view)

    def _insert(self, number: int, arrival: Arrival) -> dict[Partial, int]:
        found: dict[Partial, None] = {}
        level: list[list[Partial]] = [[self.bound(arrival.place, arrival.row)]]
        while level:
            answers = self._answers(level)
            later = self.world.delivered()[number + 1 :]
            deleted = self._deleted(later)
            level, asked = [], level
            for query, answer in zip(asked, answers):
                found.update(dict.fromkeys(answer))
                for place in range(self.n):
                    if query[0][place] is None and (missing := join(query, place, deleted[place])):
                        level.append(missing)
        for each in self.world.delivered()[number + 1 :]:
            if each.sign > 0:
                found = _without(found, each.place, each.row)
        return dict.fromkeys(found, 1)

    def _deleted(self, later: Sequence[Arrival]) -> list[list[Row]]:
        """By relation, the rows that were there before and are not any more."""
        inserted = {each.row for each in later if each.sign > 0}
        return [
            [each.row for each in later if each.place == place and each.sign < 0 and each.row not in inserted]
            for place in range(self.n)
        ]

    def _answers(self, queries: Sequence[list[Partial]]) -> list[list[Partial]]:
        """Every query goes from source to source by itself; all take a step at the same time."""
        partials = [list(query) for query in queries]
        rests = [_unbound(query[0]) for query in queries]
        while asking := [number for number, rest in enumerate(rests) if rest and partials[number]]:
            places = [rests[number].pop(0) for number in asking]
            answers = self.world.wholes(places)
            for number, place, answer in zip(asking, places, answers):
                partials[number] = join(partials[number], place, answer)
        return partials
