"""Whether the states of a view are what a level of consistency promises, judged by the history of the sources' states.

A state of the view comes with the positions that it claims to be at. `complete` and `strong` take them as a witness; `ordered`
looks for one itself, among all orders of the updates, so it believes nothing of what the algorithm says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product

from cq_engine.sources.sweep.model import Position
from tests.sources.sweep.evaluated import Bag, evaluate
from tests.sources.sweep.network import Network

__all__ = ["History", "Inconsistent", "State", "complete", "convergent", "ordered", "strong"]

Vector = tuple[int, ...]
"""By source of the view, how many of its updates."""
State = tuple[Mapping[str, Position], Bag]


class Inconsistent(AssertionError):
    """A state, or an order of states, that the level of consistency does not allow."""


@dataclass
class History:
    """The states that the view had, had it been computed from the sources at any moment."""

    network: Network
    _known: dict[Vector, Bag] = field(default_factory=dict)

    def vector(self, positions: Mapping[str, Position]) -> Vector:
        """Updates of each source up to the positions, each of which is the start or that of an update."""
        found = []
        for source in self.network.view.sources:
            log = self.network.sources[source].log
            count = sum(update.position <= positions[source] for update in log)
            if positions[source] != (log[count - 1].position if count else 0):
                raise Inconsistent(f"{source} has no update at {positions[source]}")
            found.append(count)
        return tuple(found)

    @property
    def end(self) -> Vector:
        """All updates."""
        return tuple(len(self.network.sources[source].log) for source in self.network.view.sources)

    def at(self, vector: Vector) -> Bag:
        """The view over the sources' states after so many updates of each."""
        if vector not in self._known:
            states = {
                source: self.network.sources[source].states[count]
                for source, count in zip(self.network.view.sources, vector)
            }
            self._known[vector] = evaluate(
                self.network.view,
                {
                    relation.name: states[relation.source][self.network.tables[relation.name]].values()
                    for relation in self.network.view.relations
                },
            )
        return self._known[vector]


def complete(history: History, states: Sequence[State]) -> None:
    """Every update of every source is a state of its own, each source's in their order, and all are there at the end."""
    strong(history, states)
    vectors = [history.vector(positions) for positions, _ in states]
    for before, after in pairwise(vectors):
        if sum(after) != sum(before) + 1:
            raise Inconsistent(f"{before} → {after} is not one update")


def strong(history: History, states: Sequence[State]) -> None:
    """Every state is that of the view at some states of the sources, which never go back, and all is there at the end."""
    last: Vector = (0,) * len(history.end)
    for number, (positions, view) in enumerate(states):
        vector = history.vector(positions)
        if any(now < before for now, before in zip(vector, last)):
            raise Inconsistent(f"state {number} goes back from {last} to {vector}")
        _same(history, vector, view, f"state {number}")
        last = vector
    convergent(history, states)


def convergent(history: History, states: Sequence[State]) -> None:
    """The last state is that of the view at the last states of the sources."""
    positions, view = states[-1]
    if history.vector(positions) != history.end:
        raise Inconsistent(f"the end is {history.end}, the view at {history.vector(positions)}")
    _same(history, history.end, view, "the last state")


def ordered(history: History, states: Sequence[Bag], *, one_by_one: bool) -> None:
    """Some order of the updates explains the states: `one_by_one`, each update is a state (complete), else any may be left out
    (strong). All updates are there at the end."""
    reached: set[Vector] = {(0,) * len(history.end)}
    reached = {vector for vector in reached if history.at(vector) == states[0]}
    for number, view in enumerate(states[1:], 1):
        after = _one_more if one_by_one else _any_more
        reached = {
            later
            for later in {later for vector in reached for later in after(vector, history.end)}
            if history.at(later) == view
        }
        if not reached:
            raise Inconsistent(f"no order of the updates explains state {number}")
    if history.end not in reached:
        raise Inconsistent(f"the last state is none with all updates, {history.end}")


def _one_more(vector: Vector, end: Vector) -> Iterator[Vector]:
    for place, count in enumerate(vector):
        if count < end[place]:
            yield (*vector[:place], count + 1, *vector[place + 1 :])


def _any_more(vector: Vector, end: Vector) -> Iterator[Vector]:
    yield from product(*(range(count, most + 1) for count, most in zip(vector, end)))


def _same(history: History, vector: Vector, view: Bag, what: str) -> None:
    expected = history.at(vector)
    if view != expected:
        raise Inconsistent(
            f"{what} at {vector}: missing {dict(expected - view)}, too much {dict(view - expected)}"
        )
