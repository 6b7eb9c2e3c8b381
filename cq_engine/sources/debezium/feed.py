"""USING LOG over envelopes of Debezium: the source's transactions become ours, with their times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property
from typing import Any

import pyarrow as pa

from cq_engine.catalog.model import Capture, DeclaredSource, Table
from cq_engine.core.arrays import array
from cq_engine.core.columns import Column
from cq_engine.core.errors import SourceError
from cq_engine.core.types import arrow_type
from cq_engine.grammar.statements import ColumnSpec, CreateTable
from cq_engine.sources.debezium.envelope import Event, read_line, value_of
from cq_engine.sources.debezium.files import Line, check, lines
from cq_engine.sources.json_values import Unreadable
from cq_engine.sources.methods.base import Method, Place
from cq_engine.sources.options import option
from cq_engine.sources.tick import (
    COMMITTED,
    DELETE,
    INSERT,
    OPERATION,
    TRANSACTION,
    UPSERT,
    Tick,
    with_operation,
)

__all__ = ["DebeziumFeed", "dead_letters_of"]


def dead_letters_of(name: str) -> str:
    """The name of the table that takes the envelopes that cannot be read."""
    return f"{name}_dead"


@dataclass
class _Changes:
    """Changes of one commit or several, column by column."""

    tick: Tick
    values: list[list[Any]] = field(default_factory=list)
    operations: list[str] = field(default_factory=list)
    transactions: list[int] = field(default_factory=list)
    times: list[datetime] = field(default_factory=list)
    dead: list[tuple[str, int, str, str]] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.values) + len(self.dead)

    def add(self, event: Event) -> None:
        """Adds what an event changes. Raises Unreadable, and has nothing of it then."""
        row = None if event.op == "d" else self._row(event, event.after or {})
        old = None if event.before is None else self._key(event, event.before, whole=event.op == "d")
        new = None if old is None or event.op == "d" else self._key(event, event.after or {}, whole=True)
        moment = datetime.fromtimestamp((event.milliseconds or 0) / 1000, timezone.utc)
        number = len(self.numbers)
        if event.transaction is not None:
            number = self.numbers.setdefault(event.transaction, number)
        else:
            self.numbers[f"\\0{number}"] = number
        if old is not None and old != new:
            self._append(DELETE, old, number, moment)
        if row is not None:
            self._append(UPSERT, row, number, moment)

    @cached_property
    def _columns(self) -> list[tuple[str, Column, bool]]:
        """The source's name of each column, the column, and whether it is one of the key."""
        sources = {each.target: each.name for each in self.tick.capture.columns}
        key = {name.lower() for name in self.tick.key}
        return [(sources[c.name], c, c.name.lower() in key) for c in self.tick.columns]

    def _row(self, event: Event, row: Any) -> list[Any]:
        return [value_of(row, name, column, event.names) for name, column, _ in self._columns]

    def _key(self, event: Event, row: Any, *, whole: bool) -> list[Any] | None:
        """A row with the key alone; None where the row does not have it and need not."""
        if not whole and any(name not in row for name, _, is_key in self._columns if is_key):
            return None
        return [
            value_of(row, name, column, event.names) if is_key else None
            for name, column, is_key in self._columns
        ]

    def _append(self, operation: str, row: list[Any], number: int, moment: datetime) -> None:
        self.values.append(row)
        self.operations.append(operation)
        self.transactions.append(number)
        self.times.append(moment)

    def rows(self) -> pa.Table:
        values = list(zip(*self.values)) if self.values else [()] * len(self._columns)
        arrays = {
            column.name: array(some, arrow_type(column.type))
            for (_, column, _), some in zip(self._columns, values)
        }
        arrays[OPERATION] = pa.array(self.operations, pa.string())
        arrays[TRANSACTION] = pa.array(self.transactions, pa.int64())
        arrays[COMMITTED] = pa.array(self.times, pa.timestamp("us", tz="UTC"))
        return pa.table(arrays)


class DebeziumFeed(Method):
    """Positions are how many bytes of each file were read."""

    def check(
        self, declared: DeclaredSource, capture: Capture, table: Table, place: Place
    ) -> tuple[Capture, list[str]]:
        del table, place
        check(declared)
        if option(capture, "on_poison") == "dead_letter":
            return capture, [f"what cannot be read of it goes to table {dead_letters_of(capture.name)}"]
        return capture, []

    def side_tables(self, capture: Capture, table: Table) -> Sequence[CreateTable]:
        del table
        if option(capture, "on_poison") != "dead_letter":
            return ()
        columns = (("file", "STRING"), ("start", "BIGINT"), ("reason", "STRING"), ("envelope", "STRING"))
        return [CreateTable(dead_letters_of(capture.name), tuple(ColumnSpec(*each) for each in columns))]

    def run(self, tick: Tick, declared: DeclaredSource) -> None:
        position = tick.position
        read = dict((position or {}).get("files", {}))
        if position is None and option(tick.capture, "initial") == "none":
            for line in lines(declared, read):
                read[line.file] = line.end
        changes, last = _Changes(tick), None
        for line in lines(declared, read):
            tick.read += 1
            event = self._event(tick, line, changes)
            limits, count = tick.services.limits, len(changes)
            if count + 2 > limits.apply_rows or (
                count >= limits.pending_rows and _begins_another(event, last)
            ):
                changes = self._write(tick, changes, read)
            if event is not None:
                last = event.transaction
                changes = self._take(tick, line, event, changes, read)
            read[line.file] = line.end
        if position is None or len(changes) or position["files"] != read:
            self._write(tick, changes, read)
        else:
            tick.move(position)

    def _event(self, tick: Tick, line: Line, changes: _Changes) -> Event | None:
        """What the line says, where that concerns the capture."""
        try:
            event = read_line(line.text)
        except Unreadable as reason:
            self._refuse(tick, line, reason, changes)
            return None
        wanted = tick.capture.relation
        return event if event is None or wanted is None or wanted.lower() in event.tables else None

    def _take(
        self, tick: Tick, line: Line, event: Event, changes: _Changes, read: dict[str, int]
    ) -> _Changes:
        """Adds an event; a truncation is a commit of its own, after what was before it."""
        if event.op == "t":
            self._write(tick, changes, read)
            tick.replace((), {"files": {**read, line.file: line.end}})
            return _Changes(tick)
        try:
            changes.add(event)
        except Unreadable as reason:
            self._refuse(tick, line, reason, changes)
        return changes

    def _refuse(self, tick: Tick, line: Line, reason: Unreadable, changes: _Changes) -> None:
        if option(tick.capture, "on_poison") != "dead_letter":
            raise SourceError(
                f"a line of {line.file} is no envelope for capture {tick.capture.name}",
                detail=f"at byte {line.start}: {reason}",
                hint="mend the file and say ALTER CAPTURE ... RESUME; with on_poison = 'dead_letter' such lines are put aside",
            )
        shown = line.text.decode("utf-8", "replace").rstrip("\n")
        changes.dead.append((line.file, line.start, str(reason), shown))

    def _write(self, tick: Tick, changes: _Changes, read: dict[str, int]) -> _Changes:
        """Writes the changes; what comes next is added to others."""
        given = {tick.table.name: changes.rows()}
        if changes.dead:
            names = ("file", "start", "reason", "envelope")
            dead = pa.table(dict(zip(names, map(list, zip(*changes.dead)))))
            dead = with_operation(dead, INSERT)
            last = max(changes.transactions, default=0)
            moment = max(changes.times, default=tick.services.now())
            dead = dead.append_column(TRANSACTION, pa.repeat(last, dead.num_rows))
            kind = pa.timestamp("us", tz="UTC")
            given[dead_letters_of(tick.capture.name)] = dead.append_column(
                COMMITTED, pa.array([moment] * dead.num_rows, kind)
            )
        tick.apply(given, {"files": dict(read)}, transactional=True)
        return _Changes(tick)


def _begins_another(event: Event | None, last: str | None) -> bool:
    """Whether what comes is no part of the transaction `last`."""
    return event is not None and (event.transaction is None or event.transaction != last)
