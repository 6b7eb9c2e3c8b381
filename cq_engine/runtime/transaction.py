"""A transaction: a snapshot, what it has changed so far, and its commit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from cq_engine.catalog.attempts import Attempt
from cq_engine.catalog.model import ROW_ID, CatalogState, Table
from cq_engine.errors import AnalysisError, CQError, TransactionError
from cq_engine.grammar.statements import CopyInto, Dml, Query, Statement
from cq_engine.result import Result
from cq_engine.runtime import bulk, commit, dml, staging
from cq_engine.runtime.clauses import Clauses
from cq_engine.runtime.copy import copy_frame
from cq_engine.runtime.merge import MergeEffect, merge
from cq_engine.runtime.pending import BulkPending, SmallPending
from cq_engine.runtime.query import Resolver, run_query, unknown_table
from cq_engine.runtime.reader import Restrict
from cq_engine.runtime.rows import conform, empty, identity_keys
from cq_engine.runtime.services import Services
from cq_engine.runtime.sql import SPARK_ERRORS, quote, translate_spark_error
from cq_engine.runtime.store_assignment import select

__all__ = ["Transaction"]

PENDING_ROWS = 100_000
"""Rows of one statement's effect that the driver takes; more are staged by executors."""

Rows: TypeAlias = "pa.Table | DataFrame | Iterable[Mapping[str, Any]] | Iterable[Sequence[Any]]"

_STATEMENTS: dict[str, Callable[[Clauses, Resolver], dml.Effect]] = {
    "INSERT": dml.insert,
    "UPDATE": dml.update,
    "DELETE": dml.delete,
    "TRUNCATE": dml.truncate,
    "MERGE": merge,
}
_DONE = {
    "INSERT": "inserted",
    "UPDATE": "updated",
    "DELETE": "deleted",
    "MERGE": "merged",
    "TRUNCATE": "deleted",
}


class Transaction:
    """Sees the newest commit at its beginning and its own changes. Not for several threads at once.

    A statement that fails leaves nothing behind; the transaction goes on. After `commit`, `commit_version` is the
    version or None, and `changed` says which kinds of change each table had.
    """

    def __init__(self, services: Services) -> None:
        self.services = services
        with services.catalog.lock:
            self.snapshot = services.catalog.newest_version
            self.state: CatalogState = services.catalog.state
        self.commit_version: int | None = None
        self.commit_timestamp: datetime | None = None
        self.changed: dict[str, frozenset[str]] = {}
        self.read: set[str] = set()
        """Names of the tables that DML has read."""
        self.pending: dict[str, SmallPending | BulkPending] = {}
        self.is_open = True
        self._attempt: Attempt | None = None
        self._scratch: Attempt | None = None

    # ------------------------------------------------------------ statements

    def execute(self, statement: Statement, text: str = "") -> Result:  # noqa: ARG002 - statements hold their text
        """Runs DML, COPY INTO or a query.

        Raises CQSyntaxError, AnalysisError, ConstraintError, CQError (evaluation), TransactionError (it has ended).
        """
        self._check_open()
        if isinstance(statement, Query):
            return run_query(self.services, statement.text, transaction=self)
        if isinstance(statement, CopyInto):
            return self._copy(statement)
        if not isinstance(statement, Dml):
            raise TransactionError(
                f"{type(statement).__name__} cannot run in a transaction", hint="COMMIT or ROLLBACK first"
            )
        run = _STATEMENTS.get(statement.kind.upper())
        if run is None:
            raise AnalysisError(f"{statement.kind} is not a statement that changes rows")
        resolver = Resolver(self.services, transaction=self)
        effect = run(Clauses(statement.text), resolver)
        count = self._absorb(effect)
        self.read |= resolver.read
        return _result(count, _DONE[statement.kind.upper()])

    def insert(self, table: str, rows: Rows) -> Result:
        """Inserts Arrow rows, a DataFrame, mappings (by name) or sequences (by position).

        Arrow and DataFrame columns go by name; columns that are left out become NULL. Raises AnalysisError.
        """
        self._check_open()
        found = self.table(table)
        if isinstance(rows, DataFrame):
            return _result(self._insert_frame(found, by_name(found, rows), overwrite=False), "inserted")
        return _result(self._insert_arrow(found, _arrow_rows(found, rows), overwrite=False), "inserted")

    def update(self, table: str, changes: Mapping[str, str], where: str | None = None) -> Result:
        """Sets columns to SQL expressions in the rows for which `where` holds (default: all)."""
        sets = ", ".join(f"{quote(name)} = {expression}" for name, expression in changes.items())
        text = f"UPDATE {quote(table)} SET {sets}" + (f" WHERE {where}" if where else "")
        return self.execute(Dml("UPDATE", text), text)

    def delete(self, table: str, where: str | None = None) -> Result:
        """Deletes the rows for which `where` holds (default: all)."""
        text = f"DELETE FROM {quote(table)}" + (f" WHERE {where}" if where else "")
        return self.execute(Dml("DELETE", text), text)

    def load(self, table: str, frame: DataFrame, estimate: int | None = None) -> int:
        """Inserts a DataFrame (by name) with executors writing; the number of rows. For initial loads."""
        self._check_open()
        found = self.table(table)
        return self._stage_insert(found, by_name(found, frame), estimate)

    def commit(self, commit_time: datetime | None = None) -> int | None:
        """Makes the net changes durable as one commit; its version, or None where there is no net change.

        The transaction has ended whatever happens. Raises ConflictError (retry it), ConstraintError,
        TransactionError (a commit time before the newest commit's), StorageError, LeaseError.
        """
        self._check_open()
        try:
            done = commit.commit(self, commit_time)
        finally:
            self._end()
        if done is not None:
            self.commit_version, self.commit_timestamp, self.changed = (
                done.version,
                done.timestamp,
                done.changed,
            )
        return self.commit_version

    def rollback(self) -> None:
        """Forgets everything."""
        self._check_open()
        self._end()

    # ------------------------------------------------------------ what the transaction sees

    def table(self, name: str) -> Table:
        """A table by its name. Raises AnalysisError."""
        found = self.state.tables.get(name.lower())
        if found is None:
            raise unknown_table(self.state, name)
        return found

    def view(self, table: Table, restrict: Restrict | None = None) -> DataFrame:
        """The physical rows as this transaction sees them; with `restrict` at least those with wanted values."""
        reader = self.services.reader
        pending = self.pending.get(table.name)
        if restrict and not isinstance(pending, BulkPending):
            rows = reader.restricted_image(table.storage, self.snapshot, restrict)
            if rows is not None:
                rows = rows if pending is None else pending.overlay(rows)
                return reader.frame(_kept(rows, restrict), table.storage.physical_columns)
        if pending is None:
            return reader.image(table.storage, self.snapshot)
        small = self.small_view(table)
        if small is not None:
            return reader.frame(small, table.storage.physical_columns)
        return bulk.overlay(reader, reader.image(table.storage, self.snapshot), pending)

    def small_view(self, table: Table) -> pa.Table | None:
        """The same as Arrow, where the table and what is pending are small."""
        pending = self.pending.get(table.name)
        if isinstance(pending, BulkPending):
            return None
        small = self.services.reader.small_image(table.storage, self.snapshot)
        return small if small is None or pending is None else pending.overlay(small)

    def attempt(self) -> Attempt:
        """The attempt whose files the commit will own."""
        if self._attempt is None:
            self._attempt = self.services.catalog.attempt("transaction")
        return self._attempt

    def scratch(self) -> Attempt:
        """The attempt of files that end with the transaction."""
        if self._scratch is None:
            self._scratch = self.services.catalog.attempt("staging")
        return self._scratch

    def hand_over(self) -> Attempt | None:
        """The attempt of `attempt()`, if there was need of one. From now on its files are the catalog's: a write that
        fails may still have become durable, so only recovery may remove them."""
        attempt, self._attempt = self._attempt, None
        return attempt

    # ------------------------------------------------------------ effects

    def _absorb(self, effect: dml.Effect) -> int:
        """Takes an effect in; the number of rows that it inserted, updated or deleted."""
        table = effect.table
        if effect.rows is not None:
            return self._insert_arrow(table, conform(effect.rows, table.columns), effect.overwrite)
        if effect.inserts is not None:
            return self._insert_frame(table, effect.inserts, effect.overwrite)
        if effect.pairs is not None:
            return self._change(table, effect)
        return self._insert_arrow(table, empty(table.columns), overwrite=True)

    def _insert_frame(self, table: Table, frame: DataFrame, overwrite: bool) -> int:
        pending = self.pending.get(table.name)
        if not isinstance(pending, BulkPending):
            rows = _collect(frame)
            if rows is not None:
                return self._insert_arrow(table, conform(rows, table.columns), overwrite)
        if overwrite:
            self._remove_all(table, frame)
            return -1
        return self._stage_insert(table, frame, None)

    def _insert_arrow(self, table: Table, rows: pa.Table, overwrite: bool) -> int:
        pending = self.pending.get(table.name)
        if table.storage.has_row_id:
            rows = self._with_row_ids(table, rows)
        removed = self.small_view(table) if overwrite else empty(table.storage.physical_columns)
        if removed is None or isinstance(pending, BulkPending):
            columns = table.storage.physical_columns
            added = self.services.reader.frame(rows, columns).withColumn(staging.SIGN, f.lit(1))
            parts = [added, self._all_removed(table)] if overwrite else [added]
            self._stage_signed(table, parts)
            return int(rows.num_rows)
        if overwrite:
            self.read.add(table.name)
        self._apply(table, removed, rows)
        return int(rows.num_rows or removed.num_rows)

    def _change(self, table: Table, effect: dml.Effect) -> int:
        if effect.pairs is None:
            raise ValueError("an effect without pairs is an insert")
        check = isinstance(effect, MergeEffect)
        if not isinstance(self.pending.get(table.name), BulkPending):
            rows = _collect(effect.pairs)
            if rows is not None:
                return self._change_small(
                    table, rows, check, not check or getattr(effect, "check_cardinality", True)
                )
        pairs = effect.pairs
        if check:
            pairs = self._checked_merge(table, pairs, getattr(effect, "check_cardinality", True))
        if table.storage.has_row_id:
            position = len(table.columns)
            first = self.services.catalog.reserve_row_ids(table.storage.id, 1 << 48)
            fresh = f.lit(first).cast("bigint") + f.monotonically_increasing_id()
            pairs = pairs.withColumn(f"_n{position}", f.coalesce(f.col(f"_n{position}"), fresh))
        return self._stage_signed(table, [bulk.signed_pairs(table, pairs)])

    def _change_small(self, table: Table, rows: pa.Table, merging: bool, check: bool) -> int:
        columns = table.storage.physical_columns
        kinds = rows.column("_kind").to_pylist()
        gone = [n for n, kind in enumerate(kinds) if kind != "I"]
        removed = _side(rows.take(pa.array(gone, pa.int64())), "_o", columns)
        if merging:
            gone, removed, rows = self._distinct_targets(table, gone, removed, rows, check=check)
            kinds = rows.column("_kind").to_pylist()
        came = [n for n, kind in enumerate(kinds) if kind != "D"]
        added = _side(rows.take(pa.array(came, pa.int64())), "_n", columns)
        if table.storage.has_row_id and "I" in kinds:
            ids = added.column(ROW_ID).to_pylist()
            first = self.services.catalog.reserve_row_ids(table.storage.id, ids.count(None))
            fresh = iter(range(first, first + ids.count(None)))
            known = pa.array([next(fresh) if i is None else i for i in ids], pa.int64())
            added = added.set_column(added.column_names.index(ROW_ID), ROW_ID, known)
        self._apply(table, removed, added)
        return len(kinds)

    def _distinct_targets(
        self,
        table: Table,
        gone: list[int],
        removed: pa.Table,
        rows: pa.Table,
        *,
        check: bool,
    ) -> tuple[list[int], pa.Table, pa.Table]:
        """A target row may stand in one pair only, or in several that all delete it."""
        keys = identity_keys(removed, table.storage.identity)
        if len(set(keys)) == len(keys):
            return gone, removed, rows
        first: dict[Any, int] = {}
        for n, key in enumerate(keys):
            if first.setdefault(key, n) != n and check:
                raise _cardinality(table, removed.slice(n, 1))
        inserts = [n for n, kind in enumerate(rows.column("_kind").to_pylist()) if kind == "I"]
        kept = sorted(inserts + [gone[n] for n in first.values()])
        return (
            gone,
            removed.take(pa.array(list(first.values()), pa.int64())),
            rows.take(pa.array(kept, pa.int64())),
        )

    def _checked_merge(self, table: Table, pairs: DataFrame, check: bool) -> DataFrame:
        keys = [
            f"_o{n}" for n, c in enumerate(table.storage.physical_columns) if c.name in table.storage.identity
        ]
        acting = pairs.where(f.col("_kind") != "I")
        if not check:
            return pairs.where(f.col("_kind") == "I").unionAll(acting.dropDuplicates(keys))
        twice = _rows(acting.groupBy(*keys).count().where("count > 1").limit(1))
        if twice.num_rows:
            raise _cardinality(table, twice.drop_columns(["count"]))
        return pairs

    # ------------------------------------------------------------ pending

    def _apply(self, table: Table, removed: pa.Table, added: pa.Table) -> None:
        pending = self.pending.get(table.name)
        if pending is None:
            pending = self.pending[table.name] = SmallPending(table)
        if isinstance(pending, BulkPending):
            raise TypeError("small effects on a bulk table are staged")
        pending.apply(removed, added)
        if pending.rows > 4 * PENDING_ROWS:
            self._stage_signed(table, [])

    def _with_row_ids(self, table: Table, rows: pa.Table) -> pa.Table:
        first = self.services.catalog.reserve_row_ids(table.storage.id, rows.num_rows) if rows.num_rows else 0
        return rows.append_column(ROW_ID, pa.array(range(first, first + rows.num_rows), pa.int64()))

    def _stage_insert(self, table: Table, frame: DataFrame, estimate: int | None) -> int:
        pending = self.pending.get(table.name)
        files = staging.stage_plain(self.services, self.attempt(), table, frame, estimate)
        count = sum(file.rows for file in files)
        if isinstance(pending, BulkPending) and not pending.signed:
            self.pending[table.name] = BulkPending(table, plain=(*pending.plain, *files))
        elif pending is None:
            self.pending[table.name] = BulkPending(table, plain=tuple(files))
        else:
            added = bulk.signed(self.services.reader, BulkPending(table, plain=tuple(files)))
            self._stage_signed(table, [added])
            staging.discard(self.services, files)
        return count

    def _all_removed(self, table: Table) -> DataFrame:
        self.read.add(table.name)
        return self.view(table).withColumn(staging.SIGN, f.lit(-1))

    def _remove_all(self, table: Table, frame: DataFrame) -> None:
        """INSERT OVERWRITE with many rows."""
        files = staging.stage_plain(self.services, self.scratch(), table, frame)
        added = bulk.signed(self.services.reader, BulkPending(table, plain=tuple(files)))
        self._stage_signed(table, [added, self._all_removed(table)])

    def _stage_signed(self, table: Table, parts: Sequence[DataFrame]) -> int:
        """Adds signed rows to what is pending, in files; -1, because rows are not counted on the way."""
        pending = self.pending.get(table.name)
        before = [] if pending is None else [bulk.signed(self.services.reader, pending)]
        frame = bulk.net(table, [*before, *parts])
        files = staging.stage_rows(self.services, self.scratch(), table, frame, "log")
        self.pending[table.name] = BulkPending(table, signed=tuple(files))
        if isinstance(pending, BulkPending):
            staging.discard(self.services, (*pending.plain, *pending.signed))
        return -1

    def _copy(self, statement: CopyInto) -> Result:
        table = self.table(statement.table)
        frame, estimate = copy_frame(self.services, table, statement)
        if estimate is not None and estimate <= PENDING_ROWS:
            return _result(self._insert_frame(table, frame, overwrite=False), "copied")
        return _result(self._stage_insert(table, frame, estimate), "copied")

    def _check_open(self) -> None:
        if not self.is_open:
            raise TransactionError("the transaction has ended", hint="begin another one")

    def _end(self) -> None:
        self.is_open = False
        for attempt in (self._scratch, self._attempt):
            if attempt is not None:
                with suppress(CQError):  # recovery removes what stays
                    attempt.abandon()
        self._scratch = self._attempt = None
        self.pending = {}


def by_name(table: Table, frame: DataFrame) -> DataFrame:
    """A frame's columns assigned to the table's by name. Raises AnalysisError."""
    wanted = [dml.find_column(table, name) for name in frame.columns]
    if len(set(wanted)) < len(wanted):
        raise AnalysisError(f"rows for {table.name} have a column twice")
    plain = frame.toDF(*(f"_s{n}" for n in wanted))
    sources = [f"_s{n}" if n in wanted else None for n in range(len(table.columns))]
    return plain.select(*select(table, table.columns, sources, plain.schema))


def _kept(rows: pa.Table, restrict: Restrict) -> pa.Table:
    for name, values in restrict.items():
        rows = rows.filter(pc.is_in(rows.column(name), value_set=values))
    return rows


def _collect(frame: DataFrame) -> pa.Table | None:
    """The rows as Arrow if the driver takes that many, else None."""
    rows = _rows(frame.limit(PENDING_ROWS + 1))
    return rows if rows.num_rows <= PENDING_ROWS else None


def _rows(frame: DataFrame) -> pa.Table:
    try:
        return frame.toArrow()
    except SPARK_ERRORS as error:
        raise translate_spark_error(error) from error


def _side(rows: pa.Table, prefix: str, columns: Sequence[Any]) -> pa.Table:
    picked = rows.select([f"{prefix}{n}" for n in range(len(columns))])
    return conform(picked.rename_columns([c.name for c in columns]), columns)


def _arrow_rows(table: Table, rows: Any) -> pa.Table:
    """Rows of Python values or Arrow as the table's columns."""
    if not isinstance(rows, pa.Table):
        listed = list(rows)
        if listed and not isinstance(listed[0], Mapping):
            if any(len(row) != len(table.columns) for row in listed):
                raise AnalysisError(f"a row for {table.name} has {len(table.columns)} values")
            listed = [dict(zip((c.name for c in table.columns), row)) for row in listed]
        names = list(dict.fromkeys(name for row in listed for name in row))
        positions = {name: dml.find_column(table, name) for name in names}
        from cq_engine.types import arrow_type

        arrays = {}
        for name, n in positions.items():
            column = table.columns[n]
            try:
                arrays[column.name] = pa.array([row.get(name) for row in listed], arrow_type(column.type))
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                raise _unfit(table, column.name, column.type, error) from error
        rows = pa.table(arrays) if arrays else empty(table.columns)
    renamed = rows.rename_columns(
        [table.columns[dml.find_column(table, name)].name for name in rows.column_names]
    )
    try:
        return conform(renamed, table.columns)
    except (pa.ArrowException, ValueError) as error:
        raise AnalysisError(f"the rows do not fit table {table.name}", detail=str(error)) from error


def _unfit(table: Table, name: str, kind: str, error: Exception) -> CQError:
    return AnalysisError(
        f"a value does not fit column {table.name}.{name}, which is {kind}", detail=str(error)
    )


def _cardinality(table: Table, row: pa.Table) -> CQError:
    values = ", ".join(str(v) for v in row.to_pylist()[0].values())
    return CQError(
        f"MERGE INTO {table.name} would change one row several times",
        detail=f"more than one source row matches the target row ({values})",
        hint="make the source unique by the columns of the ON condition",
    )


def _result(count: int, done: str) -> Result:
    rows = "row" if count == 1 else "rows"
    return Result(message=f"{count} {rows} {done}" if count >= 0 else f"rows {done}", rowcount=count)
