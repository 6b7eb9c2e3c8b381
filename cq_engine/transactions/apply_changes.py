"""A stream of changes from elsewhere: many source transactions become as many commits, in one catalog transaction."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cq_engine.catalog.attempts import Attempt
from cq_engine.catalog.change_rows import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    DELETE,
    INSERT,
    KINDS,
    UPDATE_POSTIMAGE,
    UPDATE_PREIMAGE,
)
from cq_engine.catalog.inline import kinds_of
from cq_engine.catalog.model import Table
from cq_engine.context import staging
from cq_engine.context.services import Services
from cq_engine.core import faults
from cq_engine.core.beside import Beside
from cq_engine.storage.identities import Numbers
from cq_engine.storage.rows import change_columns, conform
from cq_engine.transactions.apply_large import apply_large
from cq_engine.transactions.batch_references import check_within
from cq_engine.transactions.change_batches import (
    Batch,
    Roles,
    Rows,
    TooManyError,
    prepare,
    rank_transactions,
)
from cq_engine.transactions.commit import Also, check_definitions, nothing
from cq_engine.transactions.constraints import Change, check_foreign_keys, check_not_null
from cq_engine.transactions.large_batches import read_large
from cq_engine.transactions.partial_changes import partial_changes
from cq_engine.transactions.replay import Log, replay
from cq_engine.transactions.transaction_order import timestamps
from cq_engine.transactions.write_set import NetPending

__all__ = ["Applied", "Rows", "apply_all"]

OPERATIONS: Mapping[str, str] = {
    "I": "insert",
    "U": "update",
    "D": "delete",
    "P": "partial_update",
    "S": "upsert",
    "K": "partial_delete",
}


@dataclass(frozen=True)
class Applied:
    """The commit versions in order, and per version the tables with which of INSERT, DELETE, UPDATE they had."""

    versions: list[int]
    changed: dict[int, dict[str, frozenset[str]]]

    @property
    def tables(self) -> dict[str, frozenset[str]]:
        """The tables and their kinds of change, of all versions together."""
        found: dict[str, frozenset[str]] = {}
        for tables in self.changed.values():
            for name, kinds in tables.items():
                found[name] = found.get(name, frozenset()) | kinds
        return found


def apply_all(
    services: Services,
    batches: Mapping[str, Rows],
    *,
    op: str = "op",
    operations: Mapping[str, str] | None = None,
    transaction: str | None = None,
    order: str | None = None,
    commit_time: str | datetime | None = None,
    also: Also = nothing,
    keep_empty: bool = True,
    clamp: bool = False,
    keep: Mapping[str, Collection[str]] | None = None,
) -> Applied:
    """Applies changes of several tables and source transactions, atomically.

    Args:
        services: the engine's parts.
        batches: per table an Arrow table or a DataFrame: the table's columns, `op`, and the columns named below.
            An update may change the key where a column `old_<key>` tells the key before. Other `old_` columns are
            accepted; pre-images are always those that the table has.
        op: the column with the operation.
        operations: its values → insert, update, delete, upsert (of a row that is there or not), partial_update (of a
            row that is there) or partial_delete (by key, of a row that is there or not). A table with a snapshot
            completes them from its rows. In a table WITHOUT SNAPSHOT they stay as they are, a delete's row has the
            old values, and those of an update stand in columns `old_...`.
        transaction: the column whose distinct values become one commit each, ordered by their least `order`, else by
            value; None: everything is one commit.
        order: the column that orders changes inside a transaction and transactions; None: the rows' own order.
        commit_time: a column (its greatest value in a transaction counts), or one value, or None for the clock.
        also: says what else is written with the last of the commits.
        clamp: True: commit times that lie before the newest commit's, or after now, are these, and none goes back.
        keep: per table the columns that an upsert leaves as they are in a row that is there.
        keep_empty: False: where all of it changes nothing, nothing is committed, and `also` is not asked.

    Returns:
        One version for every source transaction, in order, also where its net change is empty.

    Raises:
        AnalysisError: a table or column is unknown, an operation is unknown.
        ConstraintError: a key that is to be inserted exists, or one to be updated or deleted does not; NOT NULL.
        TransactionError: a commit time goes back.
    """
    words = {**OPERATIONS, **(operations or {})}
    roles = Roles(op, words, transaction, order, commit_time if isinstance(commit_time, str) else None)
    try:
        prepared = [prepare(services, name, rows, roles) for name, rows in batches.items()]
    except TooManyError:
        with read_large(services, batches, roles, keep or {}) as large:
            return Applied(
                *apply_large(services, large, commit_time, also, clamp=clamp, keep_empty=keep_empty)
            )
    ranks, times = rank_transactions(prepared)
    if not times:
        return Applied([], {})
    catalog = services.catalog
    with catalog.lock:
        catalog.follow()
    in_files = sum(batch.rows.nbytes for batch in prepared) > services.limits.inline_bytes // 4
    # It is to be known before its files are.
    attempt = catalog.attempt("apply", by_any=True) if in_files else None
    try:
        with catalog.exclusive(by_any=True):
            check_definitions(catalog.state, [batch.table for batch in prepared])
            first = catalog.newest_version + 1
            stamps = timestamps(services, times, commit_time, clamp=clamp)
            changes = _changes(services, prepared, ranks, first, keep or {})
            if not keep_empty and not changes:
                return Applied([], {})
            count = sum(rows.num_rows for _, rows in changes)
            with Beside(partial(_kinds_by_version, changes), count) as kinds:
                versions = _write(services, changes, first, stamps, attempt, also)
                return Applied(versions, kinds())
    finally:
        if attempt is not None:
            attempt.abandon()  # which does nothing where it was used


def _changes(
    services: Services,
    batches: Sequence[Batch],
    ranks: Sequence[Numbers],
    first: int,
    keep: Mapping[str, Collection[str]],
) -> list[tuple[Table, pa.Table]]:
    """The tables that change with their change rows, checked."""
    known = [(batch, places) for batch, places in zip(batches, ranks) if batch.table.has_snapshot]
    logs = []
    for batch, places in known:
        log = replay(services, batch, places, first, keep.get(batch.table.name, ()))
        came = log.events.after[log.events.after >= 0]
        check_not_null(batch.table, log.rows.take(pa.array(came)))
        logs.append(log)
    _check_references(services, [batch for batch, _ in known], logs, first)
    found = [
        (batch.table, _change_rows(batch.table, log))
        for (batch, _), log in zip(known, logs)
        if len(log.events)
    ]
    for batch, places in zip(batches, ranks):
        if not batch.table.has_snapshot:
            rows = partial_changes(batch, places, first)
            if rows.num_rows:
                found.append((batch.table, rows))
    return found


def _check_references(services: Services, batches: Sequence[Batch], logs: Sequence[Log], first: int) -> None:
    """Foreign keys after every commit."""
    state = services.catalog.state
    if any(key.enforced for table in state.tables.values() for key in table.foreign_keys):
        by_name = {batch.table.name: log for batch, log in zip(batches, logs)}
        nets = {name: log.net() for name, log in by_name.items()}
        tables = {batch.table.name: batch.table for batch in batches}
        changes = {
            name: Change(tables[name], NetPending(tables[name], net), net=net)
            for name, net in nets.items()
            if net.rows
        }
        check_foreign_keys(services, state, changes)
        check_within(services, state, by_name, first)


def _write(
    services: Services,
    parts: Sequence[tuple[Table, pa.Table]],
    first: int,
    stamps: Sequence[datetime],
    attempt: Attempt | None,
    also: Also,
) -> list[int]:
    """The versions."""
    catalog = services.catalog
    faults.point("commit.begin")
    inline = services.limits.inline_bytes
    files = [
        _stage(services, attempt, table, rows, first=first, stamps=stamps)
        if attempt is not None and rows.nbytes > inline
        else []
        for table, rows in parts
    ]
    faults.point("commit.staged")
    with catalog.write(attempt if any(files) else None, by_any=True) as unit:
        for n, stamp in enumerate(stamps):
            unit.add_commit(first + n, stamp)
        for (table, rows), staged in zip(parts, files):
            low, high = (pc.min_max(rows.column(COMMIT_VERSION))[k].as_py() for k in ("min", "max"))
            if staged:
                kept = rows if rows.nbytes <= services.limits.kept_change_bytes else None
                unit.add_change_files(table.storage, low, high, staged, kinds_of(rows), rows=kept)
            else:
                unit.add_changes(table.storage, low, high, rows)
        also(unit, first + len(stamps) - 1)
        faults.point("commit.before_catalog")
    faults.point("commit.after_catalog")
    return [first + n for n in range(len(stamps))]


def _change_rows(table: Table, log: Log) -> pa.Table:
    """The net changes as change rows in version order."""
    events = log.events
    update = (events.before >= 0) & (events.after >= 0)
    words = [DELETE, INSERT, UPDATE_PREIMAGE, UPDATE_POSTIMAGE]
    positions = np.column_stack((events.before, events.after)).ravel()
    kinds = np.column_stack((np.where(update, 2, 0), np.where(update, 3, 1))).ravel()
    there = positions >= 0
    rows = log.rows.take(pa.array(positions[there])).combine_chunks()
    rows = rows.append_column(CHANGE_TYPE, pa.array(words).take(pa.array(kinds[there])))
    rows = rows.append_column(COMMIT_VERSION, pa.array(np.repeat(events.version, 2)[there]))
    return conform(rows, change_columns(table.storage))


def _stage(
    services: Services, attempt: Any, table: Table, rows: pa.Table, *, first: int, stamps: Sequence[datetime]
) -> list[Any]:
    moments = pa.array(stamps, pa.timestamp("us", tz="UTC"))
    places = pc.subtract(rows.column(COMMIT_VERSION), first)
    timed = rows.append_column(COMMIT_TIMESTAMP, moments.take(places.combine_chunks()))
    return staging.stage_arrow(services, attempt, table, timed, "log")


def _kinds_by_version(parts: Sequence[tuple[Table, pa.Table]]) -> dict[int, dict[str, frozenset[str]]]:
    found: dict[int, dict[str, set[str]]] = {}
    for table, rows in parts:
        pairs = rows.group_by([COMMIT_VERSION, CHANGE_TYPE], use_threads=False).aggregate([])
        for version, kind in zip(
            pairs.column(COMMIT_VERSION).to_pylist(), pairs.column(CHANGE_TYPE).to_pylist()
        ):
            found.setdefault(version, {}).setdefault(table.name, set()).update(KINDS[kind])
    return {v: {name: frozenset(kinds) for name, kinds in by.items()} for v, by in sorted(found.items())}
