"""A stream of changes from elsewhere: many source transactions become as many commits, in one catalog transaction."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timezone
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from cq_engine import faults
from cq_engine.catalog.model import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    DELETE,
    INSERT,
    ROW_ID,
    UPDATE_POSTIMAGE,
    UPDATE_PREIMAGE,
    Table,
)
from cq_engine.errors import AnalysisError, ConstraintError, TransactionError
from cq_engine.grammar.statements import CopyInto
from cq_engine.runtime import staging
from cq_engine.runtime.commit import INLINE_BYTES, next_timestamp
from cq_engine.runtime.constraints import Change, check, check_not_null
from cq_engine.runtime.copy import format_of
from cq_engine.runtime.pending import SmallPending
from cq_engine.runtime.query import unknown_table
from cq_engine.runtime.rows import change_columns, conform, identity_keys, row_values
from cq_engine.runtime.services import Services
from cq_engine.runtime.sql import SPARK_ERRORS, translate_spark_error
from cq_engine.runtime.store_assignment import select
from cq_engine.types import spark_type

__all__ = ["Applied", "apply_all", "apply_changes"]

OPERATIONS: Mapping[str, str] = {"I": "insert", "U": "update", "D": "delete"}
_ALLOWED = ("insert", "update", "delete", "upsert")
Rows: TypeAlias = "pa.Table | DataFrame | str"
"""A string is the path of CSV (with header), JSON or Parquet files."""


@dataclass(frozen=True)
class _Form:
    """Which columns say what, and what the operations' words mean."""

    op: str
    words: Mapping[str, str]
    transaction: str | None
    order: str | None
    time: str | None


@dataclass(frozen=True)
class Applied:
    """The commit versions in order, and per version the tables with which of INSERT, DELETE, UPDATE they had."""

    versions: list[int]
    changed: dict[int, dict[str, frozenset[str]]]


@dataclass
class _Batch:
    """One table's changes: `rows` as physical columns, then per row its operation, transaction and order."""

    table: Table
    rows: pa.Table
    old_keys: list[Hashable] | None
    operations: list[str]
    transactions: list[Any]
    orders: list[Any]
    times: list[Any]


@dataclass
class _Events:
    """Net changes of one table, as positions in an arena of rows."""

    before: list[int] = field(default_factory=list)
    after: list[int] = field(default_factory=list)
    version: list[int] = field(default_factory=list)


def apply_changes(
    services: Services,
    batches: Mapping[str, Rows],
    *,
    op: str = "op",
    operations: Mapping[str, str] | None = None,
    transaction: str | None = None,
    order: str | None = None,
    commit_time: str | datetime | None = None,
) -> list[int]:
    """`apply_all`, of which only the commit versions are told."""
    return apply_all(
        services,
        batches,
        op=op,
        operations=operations,
        transaction=transaction,
        order=order,
        commit_time=commit_time,
    ).versions


def apply_all(
    services: Services,
    batches: Mapping[str, Rows],
    *,
    op: str = "op",
    operations: Mapping[str, str] | None = None,
    transaction: str | None = None,
    order: str | None = None,
    commit_time: str | datetime | None = None,
) -> Applied:
    """Applies changes of several tables and source transactions, atomically.

    Args:
        services: the engine's parts.
        batches: per table an Arrow table or a DataFrame: the table's columns, `op`, and the columns named below.
            An update may change the key where a column `old_<key>` tells the key before. Other `old_` columns are
            accepted; pre-images are always those that the table has.
        op: the column with the operation.
        operations: its values → insert, update, delete or upsert.
        transaction: the column whose distinct values become one commit each, ordered by their least `order`, else by
            value; None: everything is one commit.
        order: the column that orders changes inside a transaction and transactions; None: the rows' own order.
        commit_time: a column (its greatest value in a transaction counts), or one value, or None for the clock.

    Returns:
        One version for every source transaction, in order, also where its net change is empty.

    Raises:
        AnalysisError: a table or column is unknown, an operation is unknown.
        ConstraintError: a key that is to be inserted exists, or one to be updated or deleted does not; NOT NULL.
        TransactionError: a commit time goes back.
    """
    words = {**OPERATIONS, **(operations or {})}
    form = _Form(op, words, transaction, order, commit_time if isinstance(commit_time, str) else None)
    prepared = [_prepare(services, name, rows, form) for name, rows in batches.items()]
    ranks, times = _ranked(prepared, order is not None)
    if not ranks:
        return Applied([], {})
    with services.catalog.lock:
        first = services.catalog.newest_version + 1
        stamps = _timestamps(services, times, commit_time)
        logs = [_replay(services, batch, ranks, first) for batch in prepared]
        _check(services, prepared, logs)
        return _write(services, prepared, logs, first, stamps)


# ---------------------------------------------------------------- what was given


def _prepare(
    services: Services,
    name: str,
    given: Rows,
    form: _Form,
) -> _Batch:
    table = services.catalog.state.tables.get(name.lower())
    if table is None:
        raise unknown_table(services.catalog.state, name)
    if isinstance(given, str):
        given = _read(services, table, given)
    extra = [c for c in (form.op, form.transaction, form.order, form.time) if c]
    names = given.columns if isinstance(given, DataFrame) else given.column_names
    present = {c.lower(): c for c in names}
    for wanted in extra:
        if wanted.lower() not in present:
            raise AnalysisError(
                f"the changes of {table.name} have no column {wanted}", hint=f"they have {', '.join(names)}"
            )
    missing = [c.name for c in table.columns if c.name.lower() not in present]
    if missing:
        raise AnalysisError(
            f"the changes of {table.name} have no column {missing[0]}", hint="give every column of the table"
        )
    key = table.primary_key or ()
    old = [f"old_{c}" for c in key]
    has_old = bool(old) and all(c.lower() in present for c in old)
    rows, others = _columns(table, given, present, [*extra, *(old if has_old else [])])
    ops = [_operation(table, value, form.words) for value in others[form.op].to_pylist()]
    count = rows.num_rows
    return _Batch(
        table,
        rows,
        _old_keys(table, others, old) if has_old else None,
        ops,
        others[form.transaction].to_pylist() if form.transaction else [None] * count,
        others[form.order].to_pylist() if form.order else list(range(count)),
        others[form.time].to_pylist() if form.time else [None] * count,
    )


def _read(services: Services, table: Table, path: str) -> DataFrame:
    """Files of changes; in CSV the table's own columns (also as `old_`) have their types, others are inferred."""
    kind = format_of(CopyInto(table.name, path))
    reader = services.spark().read
    try:
        if kind == "parquet":
            return reader.parquet(path)
        frame = reader.json(path) if kind == "json" else reader.csv(path, header=True, inferSchema=True)
        types = {c.name.lower(): spark_type(c.type) for c in table.columns}
        fields = [
            t.StructField(given.name, types.get(given.name.lower().removeprefix("old_"), given.dataType))
            for given in frame.schema.fields
        ]
        schema = t.StructType(fields)
        reader = reader.schema(schema).option("mode", "FAILFAST")
        return reader.json(path) if kind == "json" else reader.csv(path, header=True)
    except SPARK_ERRORS as error:
        raise translate_spark_error(error) from error


def _columns(
    table: Table, given: pa.Table | DataFrame, present: Mapping[str, str], extra: Sequence[str]
) -> tuple[pa.Table, dict[str, pa.ChunkedArray]]:
    sources = [present[c.name.lower()] for c in table.columns]
    if isinstance(given, DataFrame):
        frame = given
        picked = select(table, table.columns, sources, frame.schema)
        more = [f.col(f"`{present[c.lower()]}`").alias(f"_extra{n}") for n, c in enumerate(extra)]
        try:
            arrow = frame.select(*picked, *more).toArrow()
        except SPARK_ERRORS as error:
            raise translate_spark_error(error) from error
        rows = conform(arrow.select([c.name for c in table.columns]), table.columns)
        return rows, {c: arrow.column(f"_extra{n}") for n, c in enumerate(extra)}
    renamed = given.select(sources).rename_columns([c.name for c in table.columns])
    try:
        rows = conform(renamed, table.columns)
    except (pa.ArrowException, ValueError) as error:
        raise AnalysisError(f"the changes do not fit table {table.name}", detail=str(error)) from error
    return rows, {c: given.column(present[c.lower()]) for c in extra}


def _old_keys(table: Table, others: Mapping[str, pa.ChunkedArray], old: Sequence[str]) -> list[Hashable]:
    key = table.primary_key or ()
    columns = {c.name: c for c in table.columns}
    named = pa.table({name: others[o] for name, o in zip(key, old)})
    return identity_keys(conform(named, [columns[name] for name in key]), key)


def _operation(table: Table, value: object, words: Mapping[str, str]) -> str:
    word = words.get(str(value), str(value).lower())
    if word not in _ALLOWED:
        raise AnalysisError(
            f"the changes of {table.name} have an unknown operation {value!r}",
            hint=f"operations maps values to {', '.join(_ALLOWED)}; now it has {dict(words)}",
        )
    return word


# ---------------------------------------------------------------- the order of transactions


def _ranked(batches: Sequence[_Batch], ordered: bool) -> tuple[dict[Any, int], list[Any]]:
    """Transaction → its place, and the greatest commit time of each in that order."""
    least: dict[Any, Any] = {}
    greatest: dict[Any, Any] = {}
    for batch in batches:
        for value, place, moment in zip(batch.transactions, batch.orders, batch.times):
            if value not in least or (ordered and place < least[value]):
                least[value] = place
            if moment is not None and (greatest.get(value) is None or moment > greatest[value]):
                greatest[value] = moment
    try:
        inorder = (
            sorted(least, key=(lambda v: least[v]) if ordered else (lambda v: v))
            if len(least) > 1
            else list(least)
        )
    except TypeError as error:
        raise AnalysisError(
            "the transactions cannot be ordered", detail=str(error), hint="name an `order` column"
        ) from error
    return {value: n for n, value in enumerate(inorder)}, [greatest.get(value) for value in inorder]


def _timestamps(
    services: Services, times: Sequence[Any], commit_time: str | datetime | None
) -> list[datetime]:
    if not isinstance(commit_time, str):
        return [next_timestamp(services, commit_time)] * len(times)
    found: list[datetime] = []
    for value in times:
        moment = next_timestamp(services, _moment(value))
        if found and moment < found[-1]:
            raise TransactionError(
                f"the commit time {moment.isoformat()} lies before that of the transaction before it",
                detail=f"which is {found[-1].isoformat()}",
                hint="order the transactions by their commit time",
            )
        found.append(moment)
    return found


def _moment(value: Any) -> datetime | None:
    if value is None or isinstance(value, datetime):
        return value
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day, tzinfo=timezone.utc)
    raise AnalysisError(f"a commit time is a timestamp, not {value!r}")


# ---------------------------------------------------------------- net changes per transaction


@dataclass
class _Log:
    """An arena of rows and the net changes in it."""

    arena: pa.Table
    events: _Events

    def without_no_ops(self) -> _Log:
        """Drops updates whose rows are equal."""
        pairs = [
            n for n, (a, b) in enumerate(zip(self.events.before, self.events.after)) if a >= 0 and b >= 0
        ]
        old = self.arena.take(pa.array([self.events.before[n] for n in pairs], pa.int64()))
        new = self.arena.take(pa.array([self.events.after[n] for n in pairs], pa.int64()))
        same = {n for n, a, b in zip(pairs, row_values(old), row_values(new)) if a == b}
        kept = [n for n in range(len(self.events.before)) if n not in same]
        events = _Events(
            *(
                [column[n] for n in kept]
                for column in (self.events.before, self.events.after, self.events.version)
            )
        )
        return _Log(self.arena, events)


def _replay(services: Services, batch: _Batch, ranks: Mapping[Any, int], first: int) -> _Log:
    """Follows every row's chain of images through the batch."""
    table = batch.table
    rows = _with_row_ids(services, table, batch)
    keys = identity_keys(rows, table.storage.identity)
    there = _existing(services, batch, rows, keys)
    arena = pa.concat_tables([rows, there]).combine_chunks()
    current: dict[Hashable, int] = {
        key: rows.num_rows + n for n, key in enumerate(identity_keys(there, table.storage.identity))
    }
    events = _Events()
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
    return _Log(arena, events).without_no_ops()


def _flush(
    events: _Events, touched: dict[Hashable, int], current: Mapping[Hashable, int], version: int
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


def _with_row_ids(services: Services, table: Table, batch: _Batch) -> pa.Table:
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


def _existing(services: Services, batch: _Batch, rows: pa.Table, keys: Sequence[Hashable]) -> pa.Table:
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


# ---------------------------------------------------------------- checks and writing


def _check(services: Services, batches: Sequence[_Batch], logs: Sequence[_Log]) -> None:
    """NOT NULL on every row that comes, foreign keys on the batch as a whole."""
    changes: dict[str, Change] = {}
    for batch, log in zip(batches, logs):
        came = [n for n in log.events.after if n >= 0]
        check_not_null(batch.table, log.arena.take(pa.array(came, pa.int64())))
        ends: dict[Hashable, tuple[int, int]] = {}
        keys = identity_keys(log.arena, batch.table.storage.identity)
        for before, after in zip(log.events.before, log.events.after):
            key = keys[before if before >= 0 else after]
            ends[key] = (ends[key][0] if key in ends else before, after)
        pending = SmallPending(batch.table)
        gone = pa.array([before for before, _ in ends.values() if before >= 0], pa.int64())
        new = pa.array([after for _, after in ends.values() if after >= 0], pa.int64())
        pending.apply(log.arena.take(gone), log.arena.take(new))
        net = pending.net()
        if net.rows:
            changes[batch.table.name] = Change(batch.table, pending, net=net, duplicates=pending.duplicates())
    state = services.catalog.state
    if any(key.enforced for table in state.tables.values() for key in table.foreign_keys):
        check(services, state, changes)


def _write(
    services: Services,
    batches: Sequence[_Batch],
    logs: Sequence[_Log],
    first: int,
    stamps: Sequence[datetime],
) -> Applied:
    catalog = services.catalog
    faults.point("commit.begin")
    parts = [
        (batch.table, _change_rows(batch.table, log))
        for batch, log in zip(batches, logs)
        if log.events.version
    ]
    attempt = catalog.attempt("apply") if any(rows.nbytes > INLINE_BYTES for _, rows in parts) else None
    try:
        files = [
            _stage(services, attempt, table, rows, first=first, stamps=stamps)
            if attempt is not None and rows.nbytes > INLINE_BYTES
            else []
            for table, rows in parts
        ]
    except BaseException:
        if attempt is not None:
            attempt.abandon()
        raise
    faults.point("commit.staged")
    with catalog.write(attempt) as unit:  # a write that fails may be durable: only recovery removes its files
        for n, stamp in enumerate(stamps):
            unit.add_commit(first + n, stamp)
        for (table, rows), staged in zip(parts, files):
            low, high = (pc.min_max(rows.column(COMMIT_VERSION))[k].as_py() for k in ("min", "max"))
            if staged:
                unit.add_change_files(table.storage, low, high, staged, _kinds(rows))
            else:
                unit.add_changes(table.storage, low, high, rows)
        faults.point("commit.before_catalog")
    faults.point("commit.after_catalog")
    return Applied([first + n for n in range(len(stamps))], _changed(parts))


def _change_rows(table: Table, log: _Log) -> pa.Table:
    """The net changes as change rows in version order."""
    events = log.events
    positions: list[int] = []
    kinds: list[str] = []
    versions: list[int] = []
    for before, after, version in zip(events.before, events.after, events.version):
        update = before >= 0 and after >= 0
        if before >= 0:
            positions.append(before)
            kinds.append(UPDATE_PREIMAGE if update else DELETE)
            versions.append(version)
        if after >= 0:
            positions.append(after)
            kinds.append(UPDATE_POSTIMAGE if update else INSERT)
            versions.append(version)
    rows = log.arena.take(pa.array(positions, pa.int64())).combine_chunks()
    rows = rows.append_column(CHANGE_TYPE, pa.array(kinds, pa.string()))
    rows = rows.append_column(COMMIT_VERSION, pa.array(versions, pa.int64()))
    return conform(rows, change_columns(table.storage))


def _stage(
    services: Services, attempt: Any, table: Table, rows: pa.Table, *, first: int, stamps: Sequence[datetime]
) -> list[Any]:
    moments = pa.array(stamps, pa.timestamp("us", tz="UTC"))
    places = pc.subtract(rows.column(COMMIT_VERSION), first)
    timed = rows.append_column(COMMIT_TIMESTAMP, moments.take(places.combine_chunks()))
    return staging.stage_arrow(services, attempt, table, timed, "log")


_WORDS = {INSERT: "INSERT", DELETE: "DELETE", UPDATE_PREIMAGE: "UPDATE", UPDATE_POSTIMAGE: "UPDATE"}


def _kinds(rows: pa.Table) -> frozenset[str]:
    return frozenset(_WORDS[kind] for kind in pc.unique(rows.column(CHANGE_TYPE)).to_pylist())


def _changed(parts: Sequence[tuple[Table, pa.Table]]) -> dict[int, dict[str, frozenset[str]]]:
    found: dict[int, dict[str, set[str]]] = {}
    for table, rows in parts:
        for version, kind in set(_pairs(rows)):
            found.setdefault(version, {}).setdefault(table.name, set()).add(_WORDS[kind])
    return {v: {name: frozenset(kinds) for name, kinds in by.items()} for v, by in sorted(found.items())}


def _pairs(rows: pa.Table) -> Iterator[tuple[int, str]]:
    return zip(rows.column(COMMIT_VERSION).to_pylist(), rows.column(CHANGE_TYPE).to_pylist())
