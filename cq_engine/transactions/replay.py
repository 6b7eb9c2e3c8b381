"""Replay of one table's changes: every row's chain of images becomes one net change per source transaction."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from cq_engine.catalog.model import ROW_ID, Table
from cq_engine.context.services import Services
from cq_engine.core.errors import AnalysisError, ConstraintError
from cq_engine.storage.rows import conform, identity_columns, identity_keys, row_values
from cq_engine.transactions.change_batches import Batch

__all__ = ["Events", "Log", "replay"]


@dataclass
class Events:
    """Net changes of one table, as positions in a table of rows."""

    before: list[int] = field(default_factory=list)
    after: list[int] = field(default_factory=list)
    version: list[int] = field(default_factory=list)


@dataclass
class Log:
    """Rows, and the net changes among them."""

    rows: pa.Table
    events: Events

    def without_no_ops(self) -> Log:
        """Drops updates whose rows are equal."""
        pairs = [
            n for n, (a, b) in enumerate(zip(self.events.before, self.events.after)) if a >= 0 and b >= 0
        ]
        old = self.rows.take(pa.array([self.events.before[n] for n in pairs], pa.int64()))
        new = self.rows.take(pa.array([self.events.after[n] for n in pairs], pa.int64()))
        same = {n for n, a, b in zip(pairs, row_values(old), row_values(new)) if a == b}
        kept = [n for n in range(len(self.events.before)) if n not in same]
        events = Events(
            *(
                [column[n] for n in kept]
                for column in (self.events.before, self.events.after, self.events.version)
            )
        )
        return Log(self.rows, events)


def replay(services: Services, batch: Batch, ranks: Mapping[Any, int], first: int) -> Log:
    """Follows every row's chain of images through the batch.

    Args:
        services: the engine's parts.
        batch: the changes.
        ranks: source transaction → its place.
        first: the commit version of the first one.

    Raises:
        ConstraintError: a key that is to be inserted exists, or one to be updated or deleted does not.
        AnalysisError: a large table's keys are to be changed.
    """
    table = batch.table
    rows = _with_row_ids(services, table, batch)
    identity = identity_columns(table.storage)
    keys = identity_keys(rows, identity)
    there = _existing(services, batch, rows, keys)
    images = pa.concat_tables([rows, there]).combine_chunks()
    current: dict[Hashable, int] = {
        key: rows.num_rows + n for n, key in enumerate(identity_keys(there, identity))
    }
    events = Events()
    touched: dict[Hashable, int] = {}
    rank = -1
    for n in sorted(range(rows.num_rows), key=lambda i: (ranks[batch.transactions[i]], batch.orders[i])):
        if ranks[batch.transactions[n]] != rank:
            _flush(events, touched, current, first + rank)
            rank = ranks[batch.transactions[n]]
        operation, key = batch.operations[n], keys[n]
        old_key = key if batch.old_keys is None or operation in ("insert", "upsert") else batch.old_keys[n]
        if operation == "delete" and batch.old_keys is not None and old_key not in current:
            old_key = key  # old columns that a deletion leaves empty
        if operation == "update" and batch.old_keys is not None and old_key is None:
            old_key = key
        _check_step(table, operation, rows, n, key=key, old_key=old_key, current=current)
        touched.setdefault(old_key, current.get(old_key, -1))
        if operation == "delete" or old_key != key:
            current.pop(old_key, None)
        if operation != "delete":
            touched.setdefault(key, current.get(key, -1))
            current[key] = n
    _flush(events, touched, current, first + rank)
    return Log(images, events).without_no_ops()


def _flush(
    events: Events, touched: dict[Hashable, int], current: Mapping[Hashable, int], version: int
) -> None:
    for key, before in touched.items():
        after = current.get(key, -1)
        if before >= 0 or after >= 0:
            events.before.append(before)
            events.after.append(after)
            events.version.append(version)
    touched.clear()


def _check_step(
    table: Table,
    operation: str,
    rows: pa.Table,
    n: int,
    *,
    key: Hashable,
    old_key: Hashable,
    current: Mapping[Hashable, int],
) -> None:
    exists = old_key in current
    if operation == "insert" and exists:
        raise _step_error(table, rows, n, "insert", "a row with this key exists already")
    if operation in ("update", "delete") and not exists:
        raise _step_error(table, rows, n, operation, "there is no row with this key")
    if operation == "update" and old_key != key and key in current:
        raise _step_error(table, rows, n, "update", "a row with the new key exists already")


def _step_error(table: Table, rows: pa.Table, n: int, operation: str, why: str) -> ConstraintError:
    row = ", ".join(f"{k} = {v!r}" for k, v in rows.slice(n, 1).to_pylist()[0].items() if k != ROW_ID)
    return ConstraintError(
        f"cannot {operation} a row of table {table.name}: {why}",
        detail=f"the change is ({row})",
        hint="nothing of the batch was applied; an operation `upsert` inserts or updates",
    )


def _with_row_ids(services: Services, table: Table, batch: Batch) -> pa.Table:
    if not table.storage.has_row_id:
        return batch.rows
    wrong = next((n for n, operation in enumerate(batch.operations) if operation != "insert"), None)
    if wrong is not None:
        raise ConstraintError(
            f"table {table.name} has no PRIMARY KEY, so that {batch.operations[wrong]} cannot find its row",
            hint="only inserts can be applied to it",
        )
    count = batch.rows.num_rows
    start = services.catalog.reserve_row_ids(table.storage.id, count) if count else 0
    return batch.rows.append_column(ROW_ID, pa.array(range(start, start + count), pa.int64()))


def _existing(services: Services, batch: Batch, rows: pa.Table, keys: Sequence[Hashable]) -> pa.Table:
    """The rows that the table has now for every key that the batch names."""
    storage = batch.table.storage
    if storage.has_row_id:
        return rows.slice(0, 0)
    wanted = rows.select(list(storage.identity))
    newest = services.catalog.newest_version
    if batch.old_keys is not None:
        small = services.reader.small_image(storage, newest)
        if small is not None:
            return small
        strange = set(batch.old_keys) - set(keys)
        if strange:
            raise AnalysisError(
                f"changes of keys of the large table {batch.table.name} cannot be applied",
                hint="give a key update as a delete and an insert",
            )
    return conform(services.reader.lookup(storage, newest, wanted), storage.physical_columns)
