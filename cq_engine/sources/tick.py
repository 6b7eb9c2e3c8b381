"""One tick of a capture: where its method stands, and how what it has found gets into the table.

Changes and the position after them are one commit, so that a tick whose process is killed has happened or has not. The
position is compared and set: a process that has lost the duties meanwhile commits nothing.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from cq_engine.catalog.apply import find_table
from cq_engine.catalog.model import Capture, CaptureStatus, Table
from cq_engine.catalog.unit import UnitOfWork
from cq_engine.context.services import Services
from cq_engine.core.arrays import is_in, repeated
from cq_engine.core.columns import Column
from cq_engine.core.errors import ConflictError, SourceError
from cq_engine.sources.bulk import Batches, fitted, key_error, merge, spool
from cq_engine.sources.spread import spread
from cq_engine.sources.sql.parts import NotBegun, Parts
from cq_engine.sources.whole import Whole
from cq_engine.storage.identities import Identities, Numbers
from cq_engine.storage.rows import conform, empty, identity_columns
from cq_engine.transactions.apply_changes import apply_all
from cq_engine.transactions.commit import Also
from cq_engine.transactions.transaction import Transaction

__all__ = [
    "COMMITTED",
    "DELETE",
    "INSERT",
    "OPERATION",
    "TRANSACTION",
    "UPSERT",
    "Tick",
    "wide",
    "with_operation",
]

_log = logging.getLogger(__name__)

OPERATION = "_operation"
TRANSACTION = "_transaction"
COMMITTED = "_committed"
INSERT = "insert"
UPSERT = "upsert"
DELETE = "partial_delete"

Position = Mapping[str, Any] | Callable[[], Mapping[str, Any]] | None
"""Where a method stands after a commit; called for when the rows that go with it have been read. None: where it began."""
Beside = Callable[[], Mapping[str, pa.Table]]
"""Changes of tables that a method keeps beside the capture's own, by their names."""


def with_operation(rows: pa.Table, operation: str) -> pa.Table:
    """Rows of a table as changes, all of one kind."""
    return rows.append_column(OPERATION, repeated(operation, pa.string(), rows.num_rows))


def wide(keys: pa.Table, columns: Sequence[Column]) -> pa.Table:
    """Keys as rows of which nothing else is known."""
    known = {name.lower(): name for name in keys.column_names}
    arrays = [
        keys.column(known[c.name.lower()]) if c.name.lower() in known else pa.nulls(keys.num_rows)
        for c in columns
    ]
    return conform(pa.table(arrays, names=[c.name for c in columns]), columns)


class Tick:
    """What a method reads and writes with.

    `versions` are the commits that it has made, `changed` what they did to which table, `rows` the change rows that they
    wrote into the capture's table (an update has two), and `read` the rows that have come from the source.
    """

    def __init__(self, services: Services, capture: Capture) -> None:
        self.services = services
        self.capture = capture
        self.status: CaptureStatus = services.catalog.capture_status(capture.name)
        self.versions: list[int] = []
        self.changed: dict[str, frozenset[str]] = {}
        self.rows = 0
        self.read = 0
        self.expected: int | None = None
        """About so many rows will have been read, where that is known."""
        self._read_elsewhere: Callable[[], int] = lambda: 0
        self._next = self.status
        self._counts_later = False
        self._uncounted = 0

    # ------------------------------------------------------------ where it stands

    @property
    def table(self) -> Table:
        """The capture's table as it is now."""
        return self.beside(self.capture.table)

    def beside(self, name: str) -> Table:
        """A table that the method keeps beside the capture's own, or this."""
        return find_table(self.services.catalog.state, name)

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the table that the capture fills."""
        return self.filled(self.table)

    def filled(self, table: Table) -> tuple[Column, ...]:
        """The columns of a table that the capture fills: of those beside its own all."""
        if table.name.lower() != self.capture.table.lower():
            return table.columns
        filled = {each.target.lower() for each in self.capture.columns}
        return tuple(column for column in table.columns if column.name.lower() in filled)

    @property
    def key(self) -> tuple[str, ...]:
        """The names of the key columns."""
        return self.table.primary_key or ()

    @property
    def position(self) -> dict[str, Any] | None:
        """What the method has noted last; None before its first commit."""
        return dict(json.loads(self.status.position)) if self.status.position else None

    @property
    def read_so_far(self) -> int:
        """The rows that have come from the source, and those that executors have read."""
        return self.read + self._read_elsewhere()

    # ------------------------------------------------------------ writing

    def apply(
        self, changes: Mapping[str, pa.Table], position: Position, *, transactional: bool = False
    ) -> None:
        """Applies changes to tables, with their operations in the column `_operation`, through the driver.

        They are one commit; where they are `transactional`, one for each of the source's transactions, whose numbers and
        commit times stand in the columns `_transaction` and `_committed`.
        """
        given = {name: self._completed(name, rows) for name, rows in changes.items() if rows.num_rows}
        if not given:
            self.move(position)
            return
        done = apply_all(
            self.services,
            given,
            op=OPERATION,
            transaction=TRANSACTION if transactional else None,
            commit_time=COMMITTED if transactional else None,
            also=self._also(position),
            keep_empty=False,
            clamp=True,
            keep={name: self._unfilled(name) for name in given},
        )
        self._note(done.versions, done.tables, position)

    def replace(self, batches: Batches, position: Position, table: Table | None = None) -> None:
        """Makes the rows of the table, by default the capture's, those of the batches, however many they are; a `Whole` of many
        rows is read by executors."""
        table = table or self.table
        if not table.has_snapshot:
            self._bring(batches, position, table)
            return
        if isinstance(batches, Whole) and self._by_executors(batches, position, table):
            return
        rows, rest = self.take(batches, self.services.limits.pending_rows, self.filled(table))
        ours = None if rows is None else self.own_rows(table)
        if rows is None or ours is None:
            given = rest if rows is None else rows.to_batches()
            self.in_bulk(lambda transaction: self._spool(transaction, given, table), position)
            return
        self.check_unique(rows, table)
        gone = ours.filter(pa.array(~self.among(ours, rows, table)))
        changes = [with_operation(rows, UPSERT), with_operation(gone.select(rows.column_names), DELETE)]
        self.apply({table.name: pa.concat_tables(changes)}, position)

    def load(self, batches: Batches, position: Position, beside: Beside = dict) -> None:
        """Inserts rows into a table without a key, however many they are. `beside` is asked for changes of further tables,
        which are inserts, when all have been read."""
        rows, rest = self.take(batches, self.services.limits.pending_rows)
        if rows is not None:
            self.apply({self.table.name: with_operation(rows, INSERT), **beside()}, position)
        else:
            self.in_bulk(lambda transaction: self._spool(transaction, rest, self.table), position, beside)

    def move(self, position: Position) -> None:
        """Nothing has changed: only the position is written."""
        self._write(self._after(position, 0, self.status.version))

    def stop(self, error: str, state: str) -> None:
        """Notes a failure beside the position, which stays."""
        status = replace(self.status, ticks=self.status.ticks + 1, state=state, error=error)
        self._write(replace(status, failures=self.status.failures + 1))

    # ------------------------------------------------------------ rows

    def take(
        self, batches: Batches, most: int, columns: Sequence[Column] | None = None
    ) -> tuple[pa.Table | None, Batches]:
        """All rows, in the types of the columns (by default those that the capture fills), where they are at most `most`;
        else None, and the batches as they were."""
        columns = self.columns if columns is None else columns
        taken: list[pa.RecordBatch] = []
        rest, count = iter(batches), 0
        for batch in rest:
            taken.append(batch)
            count += len(batch)
            if count > most:
                return None, chain(taken, rest)
        self.read += count
        if not taken:
            return empty(columns), ()
        return fitted(pa.Table.from_batches(taken), columns, self.capture.name), ()

    def own_rows(self, table: Table | None = None) -> pa.Table | None:
        """The table's rows; None where they are many."""
        transaction = Transaction(self.services)
        try:
            return transaction.small_view(transaction.table((table or self.table).name))
        finally:
            transaction.rollback()

    def among(self, rows: pa.Table, others: pa.Table, table: Table | None = None) -> Any:
        """Of each row whether its key is among those of `others`, as a NumPy mask."""
        numbers, known = self.key_numbers(rows, others, table)
        return is_in(numbers, known)

    def key_numbers(
        self, rows: pa.Table, others: pa.Table, table: Table | None = None
    ) -> tuple[Numbers, Numbers]:
        """The keys of both as numbers, which are the same where the keys are."""
        identity = identity_columns((table or self.table).storage)
        names = [column.name for column in identity]
        both = pa.concat_tables([conform(each.select(names), identity) for each in (rows, others)])
        numbers = Identities(both.combine_chunks(), identity).numbers
        return numbers[: rows.num_rows], numbers[rows.num_rows :]

    def check_unique(self, rows: pa.Table, table: Table) -> None:
        """Raises SourceError where several rows have one key."""
        identity = identity_columns(table.storage)
        keys = conform(rows.select([column.name for column in identity]), identity).combine_chunks()
        first = Identities(keys, identity).first_places()
        if len(first) < keys.num_rows:
            others = np.setdiff1d(np.arange(keys.num_rows), first)
            raise key_error(self.capture.table, keys.slice(int(others[0]), 1).to_pylist()[0])

    def _unfilled(self, name: str) -> list[str]:
        """The columns of a table that the capture does not fill."""
        table = self.beside(name)
        filled = {column.name for column in self.filled(table)}
        return [column.name for column in table.columns if column.name not in filled]

    def _completed(self, name: str, rows: pa.Table) -> pa.Table:
        """Rows with every column of the table: NULL where the capture does not fill it."""
        known = {column.lower() for column in rows.column_names}
        for column in self.beside(name).columns:
            if column.name.lower() not in known:
                rows = rows.append_column(column.name, pa.nulls(rows.num_rows))
        return rows

    def _bring(self, batches: Batches, position: Position, table: Table) -> None:
        """The first rows of a table WITHOUT SNAPSHOT, as upserts, in as many commits as the driver takes them in. The
        position goes with the last: a process that is killed before begins again.

        Raises SourceError where there were rows before: which of them are gone, nobody knows.
        """
        if self.position is not None and self.status.rows:
            raise SourceError(
                f"the source of capture {self.capture.name} has to be compared as a whole",
                detail=f"table {table.name} was created WITHOUT SNAPSHOT: there is nothing to compare it with",
                hint="drop the capture and the queries over the table, and create them anew",
            )
        columns, rest = self.filled(table), iter(batches)
        rows, count = self._some(rest), 0
        while rows:
            some = fitted(pa.Table.from_batches(rows), columns, self.capture.name)
            count += some.num_rows
            rows = self._some(rest)
            self._counts_later = bool(rows)  # that none are counted says that the first rows are not all here
            self.apply({table.name: with_operation(some, UPSERT)}, self.position if rows else position)
        self.count(count)
        if not count:
            self.move(position)

    def _some(self, batches: Iterator[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """The next batches, of about as many rows as the driver takes at once."""
        found, count = [], 0
        for batch in batches:
            found.append(batch)
            count += len(batch)
            if count >= self.services.limits.pending_rows:
                break
        return found

    def _spool(self, transaction: Transaction, batches: Batches, table: Table) -> None:
        columns = self.filled(table)
        frame = spool(transaction, table, batches, columns, self.count, self.capture.name)
        merge(transaction, table, frame, columns)

    def _by_executors(self, whole: Whole, position: Position, table: Table) -> bool:
        """Takes rows of which executors read a part each; False where there are few, or executors cannot."""
        parts = whole.parts(self.services.limits, self.filled(table))
        if parts is None:
            return False
        whole.in_parts, self.expected = True, self.read + parts.rows
        try:
            self.in_bulk(lambda transaction: self._spread(transaction, parts, table), position)
        except NotBegun as error:
            whole.in_parts = False
            said = "capture %s: the driver reads all rows alone, as executors cannot: %s"
            _log.warning(said, self.capture.name, error.message)
        return whole.in_parts

    def _spread(self, transaction: Transaction, parts: Parts, table: Table) -> None:
        try:
            rows = spread(transaction, table, parts, partial(setattr, self, "_read_elsewhere"))
        finally:
            self._read_elsewhere = lambda: 0
        self.count(rows)

    def in_bulk(self, fill: Callable[[Transaction], None], position: Position, beside: Beside = dict) -> None:
        """One commit of what `fill` does with a transaction."""
        transaction = Transaction(self.services, trusted=True)
        try:
            fill(transaction)
            for name, rows in beside().items():
                transaction.insert(name, rows.drop_columns([OPERATION]))
            transaction.commit(also=self._also(position))
        except BaseException:
            if transaction.is_open:
                transaction.rollback()
            raise
        version = transaction.commit_version
        self._note([] if version is None else [version], transaction.changed, position)

    def count(self, rows: int) -> None:
        """Notes that so many rows have come from the source."""
        self.read += rows

    # ------------------------------------------------------------ status

    def _after(self, position: Position, rows: int, version: int) -> CaptureStatus:
        return replace(
            self.status,
            position="" if position is None else json.dumps(position() if callable(position) else position),
            ticks=self.status.ticks + 1,
            state="ACTIVE" if self.status.state == "FAILED" else self.status.state,
            error="",
            failures=0,
            rows=self.status.rows + rows,
            version=version,
            last=self.services.now(),
        )

    def _also(self, position: Position) -> Also:
        table = self.table.storage.id

        def also(unit: UnitOfWork, version: int) -> None:
            self._check_same()
            rows = sum(s.changes.rows for s in unit.writes.staged if s.changes.table_id == table)
            self._uncounted += rows
            rows, self._uncounted = (0, self._uncounted) if self._counts_later else (self._uncounted, 0)
            self._next = self._after(position, rows, version)
            unit.set_capture(self.capture.name, self._next, after=self.status)

        return also

    def _note(
        self, versions: Sequence[int], changed: Mapping[str, frozenset[str]], position: Position
    ) -> None:
        """After commits, or where nothing had to be committed."""
        if not versions:
            self.move(position)
            return
        self.rows += self._next.rows - self.status.rows
        self.status = self._next
        self.versions.extend(versions)
        for name, kinds in changed.items():
            self.changed[name] = self.changed.get(name, frozenset()) | kinds

    def _check_same(self) -> None:
        if self.services.catalog.state.captures.get(self.capture.name.lower()) != self.capture:
            raise ConflictError(f"capture {self.capture.name} was altered or dropped", hint="repeat it")

    def _write(self, status: CaptureStatus) -> None:
        with self.services.catalog.write() as unit:
            self._check_same()
            unit.set_capture(self.capture.name, status, after=self.status)
        self.status = status
