"""The commit of a transaction: conflicts, constraints, files, one catalog transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone

import pyarrow as pa
from pyspark.sql import functions as f

from cq_engine.catalog.change_rows import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION, KINDS
from cq_engine.catalog.model import CatalogState, DataFile, Table
from cq_engine.catalog.unit import UnitOfWork
from cq_engine.context import staging
from cq_engine.context.services import Services
from cq_engine.core import faults, interrupts
from cq_engine.core.arrays import repeated
from cq_engine.core.columns import Column
from cq_engine.core.errors import ConflictError, TransactionError
from cq_engine.core.values import python_rows
from cq_engine.spark.arrow_io import to_arrow
from cq_engine.spark.sql import quote
from cq_engine.storage.rows import change_columns, conform, identity_columns, identity_keys
from cq_engine.transactions import bulk
from cq_engine.transactions.constraints import Change, check
from cq_engine.transactions.workspace import Workspace
from cq_engine.transactions.write_set import BulkPending, Net, SmallPending

__all__ = [
    "Also",
    "Committed",
    "check_definitions",
    "commit",
    "next_timestamp",
    "nothing",
    "with_version",
]

Also = Callable[[UnitOfWork, int], None]
"""Says what else is to be written with the commit of a version."""


def nothing(_: UnitOfWork, __: int) -> None:
    """Nothing else is written."""


@dataclass(frozen=True)
class Committed:
    """What a commit did: table name → which of INSERT, DELETE, UPDATE."""

    version: int
    timestamp: datetime
    changed: dict[str, frozenset[str]]


@dataclass
class _Write:
    """How one table's change goes into the unit of work."""

    table: Table
    kinds: frozenset[str]
    rows: pa.Table | None = None
    files: list[DataFile] = field(default_factory=list)
    insert_only: bool = False
    staged_before: bool = False
    """Whether the files are those of the transaction's statements."""

    def add_to(self, unit: UnitOfWork, version: int) -> None:
        storage = self.table.storage
        if self.rows is not None:
            unit.add_changes(storage, version, version, self.rows)
        else:
            unit.add_change_files(
                storage, version, version, self.files, self.kinds, insert_only=self.insert_only
            )


def commit(
    transaction: Workspace,
    commit_time: datetime | None,
    done: Callable[[Committed], None],
    also: Also = nothing,
) -> None:
    """Commits the net changes, under the commit lock, and calls `done`; nothing where there are none."""
    faults.point("commit.begin")
    services = transaction.services
    nets = {name: p.net() for name, p in transaction.pending.items() if isinstance(p, SmallPending)}
    bulks = {name: p for name, p in transaction.pending.items() if isinstance(p, BulkPending)}
    changes = _changes(transaction, nets, bulks)
    if not changes:
        return
    catalog = services.catalog
    if _is_large(services, changes):
        transaction.attempt()  # is to be known before its files are
        for _ in range(services.limits.commit_tries):  # beside the commits of other processes
            with catalog.lock:
                catalog.follow()
                prepared = _prepare(transaction, changes, commit_time)
                with catalog.exclusive(by_any=True):
                    if catalog.newest_version + 1 == prepared.version and catalog.state is prepared.state:
                        _commit(transaction, prepared, done, also)
                        return
            for write in prepared.writes:
                if not write.staged_before:
                    staging.discard(services, write.files)
    with catalog.exclusive(by_any=True):
        _commit(transaction, _prepare(transaction, changes, commit_time), done, also)


@dataclass(frozen=True)
class _Prepared:
    """A commit that was checked and is to be written, if `version` is the next one and nothing else is defined."""

    version: int
    timestamp: datetime
    state: CatalogState
    writes: list[_Write]


def _is_large(services: Services, changes: Mapping[str, Change]) -> bool:
    """Whether something of it goes into files, or is checked by Spark."""
    nets = [change.net for change in changes.values()]
    return any(net is None or net.nbytes > services.limits.inline_bytes for net in nets)


def _prepare(
    transaction: Workspace, changes: Mapping[str, Change], commit_time: datetime | None
) -> _Prepared:
    """Checks conflicts and constraints against everything that is committed, and writes the files."""
    services = transaction.services
    check_definitions(services.catalog.state, [change.table for change in changes.values()])
    _check_conflicts(transaction, changes)
    version, state = services.catalog.newest_version + 1, services.catalog.state
    timestamp = next_timestamp(services, commit_time)
    check(services, state, changes)
    writes = [_write(transaction, change, version, timestamp) for change in changes.values()]
    faults.point("commit.staged")
    return _Prepared(version, timestamp, state, writes)


def _commit(
    transaction: Workspace, prepared: _Prepared, done: Callable[[Committed], None], also: Also
) -> None:
    version, writes = prepared.version, prepared.writes
    with interrupts.deferred():  # who is interrupted when it is durable knows that it is
        with transaction.services.catalog.write(transaction.hand_over(), by_any=True) as unit:
            unit.add_commit(version, prepared.timestamp)
            for write in writes:
                write.add_to(unit, version)
            also(unit, version)
            faults.point("commit.before_catalog")
        done(Committed(version, prepared.timestamp, {write.table.name: write.kinds for write in writes}))
    faults.point("commit.after_catalog")


def next_timestamp(services: Services, commit_time: datetime | None) -> datetime:
    """The time of the next commit. Raises TransactionError where `commit_time` lies before the newest commit."""
    newest = services.catalog.newest_timestamp
    if commit_time is None:
        now = services.now()
        return now if newest is None or now >= newest else newest
    moment = commit_time.replace(tzinfo=timezone.utc) if commit_time.tzinfo is None else commit_time
    moment = moment.astimezone(timezone.utc)
    if newest is not None and moment < newest:
        raise TransactionError(
            f"the commit time {moment.isoformat()} lies before the newest commit's, {newest.isoformat()}",
            detail="commit timestamps never decrease",
            hint="to replay history, open the engine with a clock of your own from the start: connect(..., clock=...)",
        )
    return moment


def with_version(rows: pa.Table, version: int) -> pa.Table:
    """Change rows with their commit version."""
    return rows.append_column(COMMIT_VERSION, repeated(version, pa.int64(), rows.num_rows))


def _changes(
    transaction: Workspace, nets: Mapping[str, Net], bulks: Mapping[str, BulkPending]
) -> dict[str, Change]:
    reader = transaction.services.reader
    changes: dict[str, Change] = {}
    for name, net in nets.items():
        pending = transaction.pending[name]
        if isinstance(pending, SmallPending) and net.rows:
            changes[name] = Change(pending.table, pending, net=net, duplicates=pending.duplicates())
    for name, staged in bulks.items():
        if staged.plain or staged.signed:
            changes[name] = Change(staged.table, staged, signed=bulk.sign(reader, staged))
    return changes


def check_definitions(state: CatalogState, tables: Iterable[Table]) -> None:
    """Raises ConflictError where a table is not in `state` as it was when its changes were read."""
    for table in tables:
        now = state.tables.get(table.name.lower())
        if now is None or now.storage.id != table.storage.id or now.columns != table.columns:
            raise ConflictError(
                f"table {table.name} was altered or dropped since the transaction began",
                hint="retry it",
            )


def _check_conflicts(transaction: Workspace, changes: Mapping[str, Change]) -> None:
    """A table that was read, or a row that was written, must not have changed since the snapshot."""
    catalog = transaction.services.catalog
    newest = catalog.newest_version
    if newest == transaction.snapshot:
        return
    for name in {*transaction.read, *changes}:
        table = transaction.state.tables[name.lower()]
        if catalog.floor(table.storage.id) > transaction.snapshot:
            raise ConflictError(
                f"what table {name} held when this transaction began is no longer kept",
                detail=f"it began at version {transaction.snapshot}, and its process was silent for too long",
                hint="retry the transaction",
            )
    for name in sorted(transaction.read):
        table = transaction.state.tables[name.lower()]
        if catalog.changes(table.storage.id, transaction.snapshot + 1, newest):
            raise ConflictError(
                f"table {name} was changed by another transaction since this one read it",
                detail=f"this transaction began at version {transaction.snapshot}, the newest is {newest}",
                hint="retry the transaction",
            )
    for change in changes.values():
        if catalog.changes(change.table.storage.id, transaction.snapshot + 1, newest):
            _check_rows(transaction, change, newest)


def _check_rows(transaction: Workspace, change: Change, newest: int) -> None:
    reader, storage = transaction.services.reader, change.table.storage
    identity = identity_columns(storage)
    clash: list[object] = []
    others = reader.changes_arrow(storage, transaction.snapshot, newest)
    if change.net is not None and others is not None:
        theirs = set(identity_keys(others, identity))
        mine = pa.concat_tables([change.net.removed_rows(), change.net.added_rows()])
        clash = [key for key in identity_keys(mine, identity) if key in theirs][:1]
    else:
        keys = [quote(name) for name in storage.identity]
        rows = change.frame(reader).alias("m")
        other = reader.changes(storage, transaction.snapshot, newest).select(*keys).alias("t")
        on = [f.col(f"m.{key}").eqNullSafe(f.col(f"t.{key}")) for key in keys]
        found = to_arrow(rows.join(other, on, "left_semi").select(*keys).limit(1))
        clash = [tuple(row.values()) for row in python_rows(found)]
    if clash:
        raise ConflictError(
            f"a row of table {change.table.name} was changed by another transaction since this one began",
            detail=f"its identity ({', '.join(storage.identity)}) is {clash[0]}",
            hint="retry the transaction",
        )


def _write(transaction: Workspace, change: Change, version: int, timestamp: datetime) -> _Write:
    services, table = transaction.services, change.table
    if change.net is not None:
        return _write_small(transaction, table, change.net, version, timestamp)
    pending = change.pending
    if not isinstance(pending, BulkPending):
        raise TypeError("a change on the driver has its net")
    if not pending.signed:
        return _Write(
            table, frozenset({"INSERT"}), files=list(pending.plain), insert_only=True, staged_before=True
        )
    rows = bulk.change_rows(table, bulk.sign(services.reader, pending), version, timestamp)
    files = staging.stage_rows(services, transaction.attempt(), table, rows, "log")
    stored = services.reader.files(files, [Column(CHANGE_TYPE, "string")]).distinct()
    kinds = {row[0] for row in stored.collect()}
    return _Write(table, frozenset().union(*(KINDS[kind] for kind in kinds)), files=files)


def _write_small(transaction: Workspace, table: Table, net: Net, version: int, timestamp: datetime) -> _Write:
    services = transaction.services
    if net.changes().nbytes <= services.limits.inline_bytes:
        rows = conform(with_version(net.changes(), version), change_columns(table.storage))
        return _Write(table, net.kinds, rows=rows)
    if net.kinds == {"INSERT"}:
        rows = net.inserted
        with suppress(pa.ArrowException):  # a clustering column whose type Arrow does not sort
            rows = rows.sort_by([(name, "ascending") for name in staging.clustering(table)])
        files = staging.stage_arrow(services, transaction.attempt(), table, rows, "snapshot")
        return _Write(table, net.kinds, files=files, insert_only=True)
    rows = conform(with_version(net.changes(), version), change_columns(table.storage))
    moments = repeated(timestamp, pa.timestamp("us", tz="UTC"), rows.num_rows)
    rows = rows.append_column(COMMIT_TIMESTAMP, moments)
    return _Write(
        table, net.kinds, files=staging.stage_arrow(services, transaction.attempt(), table, rows, "log")
    )
