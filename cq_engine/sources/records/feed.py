"""USING LOG over records: each tick reads what has come, and commits it in bounded pieces, each with the position after it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import closing
from typing import Any, ClassVar, Generic, TypeVar

from cq_engine.catalog.model import Capture, DeclaredSource, Table
from cq_engine.grammar.statements import CreateTable
from cq_engine.sources.json_values import Unreadable
from cq_engine.sources.methods.base import Method, Place
from cq_engine.sources.options import option
from cq_engine.sources.poison import DeadLetters, Layout, note, side_tables
from cq_engine.sources.records.changes import Changes
from cq_engine.sources.records.record import Record, Records
from cq_engine.sources.tick import Tick

__all__ = ["RecordFeed"]

E = TypeVar("E")


class RecordFeed(Method, Generic[E]):
    """A subclass says what a record tells, an event, and what this changes. Positions are how far each place was read."""

    letters: ClassVar[Layout]
    """The columns of dead letters."""

    @abstractmethod
    def records(self, declared: DeclaredSource) -> Records:
        """The log. Raises SourceError."""

    @abstractmethod
    def event(self, tick: Tick, record: Record) -> E | None:
        """What a record tells, where that concerns the capture. Raises Unreadable."""

    @abstractmethod
    def change(self, changes: Changes, event: E) -> None:
        """Adds what an event changes. Raises Unreadable, and has added nothing then."""

    @abstractmethod
    def letter(self, shown: str, record: Record, reason: str) -> tuple[Any, ...]:
        """A record that cannot be read, in the columns of `letters`."""

    def transaction(self, event: E) -> str | None:
        """The transaction that an event belongs to; None where it is one of its own."""
        del event
        return None

    def empties(self, event: E) -> bool:
        """Whether the event is that the table has no rows any more."""
        del event
        return False

    # ------------------------------------------------------------ what every method has

    def check(
        self, declared: DeclaredSource, capture: Capture, table: Table, place: Place
    ) -> tuple[Capture, list[str]]:
        del table, place
        self.records(declared).check()
        return capture, note(capture)

    def side_tables(self, capture: Capture, table: Table) -> Sequence[CreateTable]:
        del table
        return side_tables(capture, self.letters)

    def run(self, tick: Tick, declared: DeclaredSource) -> None:
        _Reading(self, tick, self.records(declared)).run()


class _Reading(Generic[E]):
    """A tick: how far was read, and what of it is not written yet."""

    def __init__(self, feed: RecordFeed[E], tick: Tick, records: Records) -> None:
        self._feed = feed
        self._tick = tick
        self._records = records
        self._reached: dict[str, int] = {}
        self._changes = self._none()

    def _none(self) -> Changes:
        return Changes(self._tick, DeadLetters(self._tick.capture, self._feed.letters))

    def run(self) -> None:
        tick, position = self._tick, self._tick.position
        if position is None and option(tick.capture, "initial") == "none":
            tick.move(self._records.position(self._records.ends()))
            return
        self._reached = {} if position is None else self._records.reached(position)
        last: str | None = None
        with closing(self._records.read(dict(self._reached))) as records:  # type: ignore[type-var]
            for record in records:
                last = self._take(record, last)
                self._reached[record.place] = record.end
        if len(self._changes) or self._records.position(self._reached) != position:
            self._write()
        else:
            tick.move(position)

    def _take(self, record: Record, last: str | None) -> str | None:
        """Takes a record after one of the transaction `last`; the transaction of this one."""
        if record.is_mark:
            return last
        self._tick.read += 1
        event, wrong = None, ""
        try:
            event = self._feed.event(self._tick, record)
        except Unreadable as reason:
            wrong = str(reason)
        limits, count = self._tick.services.limits, len(self._changes)
        if count + 2 > limits.apply_rows or (count >= limits.pending_rows and self._begins(event, last)):
            self._write()
        if wrong:
            self._refuse(record, wrong)
        if event is None:
            return last
        if self._feed.empties(event):  # a commit of its own, after what was before it
            self._write()
            self._reached[record.place] = record.end
            self._tick.replace((), self._records.position(self._reached))
        else:
            try:
                self._feed.change(self._changes, event)
            except Unreadable as reason:
                self._refuse(record, str(reason))
        return self._feed.transaction(event)

    def _begins(self, event: E | None, last: str | None) -> bool:
        """Whether what comes is no part of the transaction `last`."""
        if event is None:
            return not self._changes.values  # there are dead letters alone
        found = self._feed.transaction(event)
        return found is None or found != last

    def _refuse(self, record: Record, reason: str) -> None:
        letter = self._feed.letter(self._records.shown(record), record, reason)
        self._changes.letters.refuse(letter, self._records.refused(self._tick.capture, record, reason))

    def _write(self) -> None:
        self._tick.apply(self._changes.take(), self._records.position(self._reached), transactional=True)
        self._changes = self._none()
