"""A simulated network: sources that commit whenever they like, one FIFO channel for each, answers from other states than now.

There is no clock. What happens between any two events is drawn from a random number generator, which is all the adversary
knows: a seeded one, or one of hypothesis, which then finds a small run that fails.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from cq_engine.sources.sweep.model import Answer, Ask, Change, Row, Update, View

__all__ = ["Habits", "Lost", "Network", "Source"]

Tables = dict[str, dict[Row, Row]]
"""By table, by key, the row."""


class Lost(Exception):
    """A connection has ended, or a process: whatever was under way is lost."""


@dataclass(frozen=True)
class Habits:
    """What a network is like; probabilities unless it says otherwise."""

    writes: float = 0.5
    """That a source commits between two events."""
    stale: float = 0.2
    """That an answer is of a state before the newest."""
    stale_by: int = 3
    """Updates that it is behind, at most."""
    late: float = 0.5
    """That a channel does not bring all that there is."""
    early: float = 0.3
    """That a channel brings more than was asked for."""
    more: float = 0.2
    """That an answer has rows that were not asked for."""
    lost: float = 0.0
    """That the connection is lost, before or after an answer."""


@dataclass
class Source:
    """One autonomous source: its tables now, and what it has committed."""

    name: str
    tables: Tables
    log: list[Update] = field(default_factory=list)
    states: list[Tables] = field(default_factory=list)
    """After so many updates."""

    def __post_init__(self) -> None:
        self.states.append(self.copy())

    def copy(self) -> Tables:
        return {name: dict(rows) for name, rows in self.tables.items()}


class Network:
    """Channels to sources. `tables` names the table of each relation; a table may be that of several relations.

    `value(rng, relation, column)` draws the values that are written. After `budget` transactions nobody writes any more.
    """

    def __init__(
        self,
        view: View,
        tables: Mapping[str, str],
        sources: Mapping[str, Source],
        value: Callable[[Random, str, str], Any],
        rng: Random,
        habits: Habits,
        budget: int,
    ) -> None:
        self.view = view
        self.tables = tables
        self.sources = sources
        self.habits = habits
        self.budget = budget
        self.asked: list[Ask] = []
        self.answers: list[Answer] = []
        self._value = value
        self._rng = rng
        self._relations = {
            table: [r for r in view.relations if tables[r.name] == table] for table in set(tables.values())
        }

    # ---------------------------------------------------------------- Channels

    def ask(self, asks: Sequence[Ask]) -> Sequence[Answer]:
        """Answers in a random order of the questions, with commits before, between and after them."""
        order = list(range(len(asks)))
        self._rng.shuffle(order)
        answers: dict[int, Answer] = {}
        for place in order:
            self._meanwhile()
            self.asked.append(asks[place])
            answers[place] = self.answer(asks[place])
            self.answers.append(answers[place])
            self._meanwhile()
        return [answers[place] for place in range(len(asks))]

    def updates(self, source: str, after: int, upto: int | None) -> Sequence[Update]:
        """The log behind a position, cut off somewhere behind `upto`."""
        self._lose()
        rest = [update for update in self.sources[source].log if update.position > after]
        needed = sum(update.position <= upto for update in rest) if upto is not None else 0
        more = self.habits.early if upto is not None else 1 - self.habits.late
        if self._chance(more):
            return rest
        return rest[: self._rng.randint(needed, len(rest))]

    # ---------------------------------------------------------------- what sources do

    def answer(self, ask: Ask) -> Answer:
        """Rows as of a state of the source, and which that is: a position that may lie between two updates."""
        source = self.sources[self.view.by_name[ask.relation].source]
        version = len(source.log)
        if self._chance(self.habits.stale):
            version = max(0, version - self._rng.randint(1, self.habits.stale_by))
        relation = self.view.by_name[ask.relation]
        rows = list(source.states[version][self.tables[ask.relation]].values())
        edges = [
            (near, edge.normal)
            for column in ask.columns
            for edge in self.view.edges
            for near in [edge.left, edge.right]
            if near == (ask.relation, column)
        ]
        normal = {near[1]: change for near, change in edges if change is not None}
        wanted = {_comparable(ask.columns, key, normal) for key in ask.keys}
        rows = [
            row
            for row in rows
            if _comparable(ask.columns, [row[place] for place in relation.places(ask.columns)], normal)
            in wanted
            or self._chance(self.habits.more)
        ]
        self._rng.shuffle(rows)
        low = source.log[version - 1].position if version else 0
        high = source.log[version].position - 1 if version < len(source.log) else low + 1
        return Answer(rows, self._rng.randint(low, max(low, high)))

    def commit(self, name: str) -> None:
        """A random transaction: one to three statements over the tables of a source."""
        source = self.sources[name]
        before = source.copy()
        changes: list[Change] = []
        for _ in range(self._rng.choice((1, 1, 1, 2, 3))):
            table = self._rng.choice(sorted(source.tables))
            for old, new in self._statement(source.tables[table], table):
                changes += [Change(relation.name, old, new) for relation in self._relations[table]]
        if not changes and self._chance(0.9):
            source.tables = before
            return
        self.record(name, changes)

    def record(self, name: str, changes: Sequence[Change]) -> None:
        """Puts a transaction, which the tables have, into the log."""
        source = self.sources[name]
        position = (source.log[-1].position if source.log else 0) + self._rng.choice((2, 2, 3, 7))
        source.log.append(Update(name, position, tuple(changes)))
        source.states.append(source.copy())

    def _statement(self, rows: dict[Row, Row], table: str) -> list[tuple[Row | None, Row | None]]:
        relation = self._relations[table][0]
        columns, places = relation.columns, relation.places(relation.key)

        def key(row: Row) -> Row:
            return tuple(row[place] for place in places)

        def draw(column: str) -> Any:
            return self._value(self._rng, relation.name, column)

        kind = self._rng.choice(("insert", "insert", "delete", "update", "update", "key", "swap", "again"))
        new = tuple(draw(column) for column in columns)
        if kind == "insert" or not rows:
            if key(new) in rows:
                return []
            rows[key(new)] = new
            return [(None, new)]
        old = self._rng.choice(sorted(rows.values(), key=repr))
        if kind == "delete":
            del rows[key(old)]
            return [(old, None)]
        if kind == "swap" and len(rows) > 1:
            # Two rows exchange their keys in one statement, as servers allow that check keys at its end.
            other = self._rng.choice(sorted((row for row in rows.values() if row is not old), key=repr))
            one, two = _with(old, places, key(other)), _with(other, places, key(old))
            rows[key(one)], rows[key(two)] = one, two
            return [(old, one), (other, two)]
        if kind == "again":
            again = _with(new, places, key(old))
            rows[key(again)] = again
            return [(old, None), (None, again)]
        place = self._rng.randrange(len(columns))
        changed = new if kind == "key" else (*old[:place], new[place], *old[place + 1 :])
        if key(changed) != key(old) and key(changed) in rows:
            return []
        del rows[key(old)]
        rows[key(changed)] = changed
        return [(old, changed)]

    # ---------------------------------------------------------------- the adversary

    def _meanwhile(self) -> None:
        self._lose()
        while self.budget > 0 and self._chance(self.habits.writes):
            self.budget -= 1
            self.commit(self._rng.choice(sorted(self.sources)))

    def _lose(self) -> None:
        if self._chance(self.habits.lost):
            raise Lost

    def _chance(self, probability: float) -> bool:
        return probability > 0 and self._rng.random() < probability


def _with(row: Row, places: Sequence[int], values: Row) -> Row:
    by_place = dict(zip(places, values))
    return tuple(by_place.get(place, value) for place, value in enumerate(row))


def _comparable(
    columns: Sequence[str], values: Sequence[Any], normal: Mapping[str, Callable[[Any], Any]]
) -> tuple[Any, ...]:
    found = []
    for column, value in zip(columns, values):
        if value is None:
            found.append(object())
        elif isinstance(value, float) and math.isnan(value):
            found.append("NaN")
        else:
            found.append(normal[column](value) if column in normal else value)
    return tuple(found)
