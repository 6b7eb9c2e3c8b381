"""A table of the warehouse as a destination: every delivery is one ordinary commit, exactly once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import ClassVar

import pyarrow as pa

from cq_engine.catalog.apply import create_table, find_table
from cq_engine.catalog.attempts import Attempt
from cq_engine.catalog.change_rows import CHANGE_TYPE, COMMIT_VERSION, INSERT, ROW_ID
from cq_engine.catalog.destinations import is_merge
from cq_engine.catalog.model import (
    CatalogState,
    ContinuousQuery,
    Cursor,
    DataFile,
    DeclaredDestination,
    Table,
)
from cq_engine.catalog.unit import UnitOfWork
from cq_engine.context.services import Services
from cq_engine.context.staging import clustering, stage_arrow, stage_plain
from cq_engine.core import faults
from cq_engine.core.errors import AnalysisError, DestinationError, did_you_mean
from cq_engine.core.types import arrow_schema, spark_type
from cq_engine.destinations.base import Delivered, Destination
from cq_engine.destinations.constraints import check_files, check_rows
from cq_engine.destinations.fit import check, columns_for
from cq_engine.destinations.kind_parts import Kind, Place, Wanted
from cq_engine.destinations.layout import output_frame, output_rows
from cq_engine.destinations.log import commit_times, count_rows, needed_from, read_frame, read_small
from cq_engine.destinations.options import COMMON, one_of
from cq_engine.destinations.pairs import select_markers
from cq_engine.destinations.triggers.depth import depth_of
from cq_engine.grammar import ColumnSpec, CreateTable
from cq_engine.spark.widths import size_of_rows

__all__ = ["KIND", "TableDestination"]


@dataclass(frozen=True)
class _Staged:
    """Rows to append, not yet part of the table: inline, or in the files of an attempt."""

    count: int
    rows: pa.Table | None = None
    files: tuple[DataFile, ...] = ()
    attempt: Attempt | None = None


class TableDestination(Destination):
    """Appends the deltas to `table` in the layout of the query's SELECT list.

    A delivery takes everything up to the version it is told and is one commit with a version of its own: the commit,
    the rows and the cursor are one catalog transaction. Where nothing is to be appended, only the cursor moves.
    """

    kind: ClassVar[str] = "TABLE"
    exactly_once: ClassVar[bool] = True

    def __init__(self, services: Services, query: ContinuousQuery, table: Table) -> None:
        super().__init__(services, query, table.name)
        self.table = table

    @classmethod
    def admit(
        cls,
        services: Services,  # noqa: ARG003 - as of a destination
        query: ContinuousQuery,
        state: CatalogState,
        name: str,
    ) -> CatalogState:
        """A table that does not exist is created."""
        table = state.tables.get(name.lower())
        if table is not None:
            check(query, table)
            return state
        columns = tuple(ColumnSpec(c.name, c.type) for c in columns_for(query))
        state = create_table(state, CreateTable(name, columns), query.created_version)
        created = replace(find_table(state, name), created_by=query.name)
        return replace(state, tables={**state.tables, name.lower(): created})

    def _deliver(self, cursor: Cursor, upto: int) -> Delivered:
        check(self.query, self.table)
        staged = self._stage(cursor, upto)
        faults.point("deliver.begin")
        checked = self._check_constraints(staged)
        delivered = self._commit(cursor, upto, staged, checked)
        faults.point("deliver.after_cursor")
        return delivered

    # ------------------------------------------------------------ the rows

    def _stage(self, cursor: Cursor, upto: int) -> _Staged:
        wide = read_small(self.services, self.query, cursor, upto)
        if wide is None:
            return self._stage_bulk(cursor, upto)
        wide = select_markers(wide, self.query.markers)
        if wide.num_rows == 0:
            return _Staged(0)
        versions = wide.column("version")
        times = commit_times(self.services, versions[0].as_py(), versions[-1].as_py())
        rows = self._as_table_rows(output_rows(self.query, wide, times))
        if rows.nbytes <= self.services.limits.table_inline_bytes:
            return _Staged(rows.num_rows, rows=rows)
        attempt = self.services.catalog.attempt("deliver")
        try:
            rows = self._cluster(rows)
            files = stage_arrow(self.services, attempt, self.table, self._with_row_ids(rows), "snapshot")
        except BaseException:
            attempt.abandon()
            raise
        return _Staged(rows.num_rows, files=tuple(files), attempt=attempt)

    def _stage_bulk(self, cursor: Cursor, upto: int) -> _Staged:
        """Executors write the rows."""
        changes = read_frame(self.services, self.query, cursor, upto, self.query.markers)
        rows = output_frame(self.services, self.query, changes, self._all_times(cursor, upto))
        rows = rows.toDF(*(column.name for column in self.table.columns))
        rows = rows.select(
            *(rows[n].cast(spark_type(c.type)).alias(c.name) for n, c in enumerate(self.table.columns))
        )
        size = size_of_rows(count_rows(self.services, self.query, cursor, upto), self.table.columns)
        attempt = self.services.catalog.attempt("deliver")
        try:
            files = stage_plain(self.services, attempt, self.table, rows, size)
        except BaseException:
            attempt.abandon()
            raise
        return _Staged(sum(file.rows for file in files), files=tuple(files), attempt=attempt)

    def _all_times(self, cursor: Cursor, upto: int) -> dict[int, datetime]:
        if not any(output.kind == "commit_time" for output in self.query.outputs):
            return {}
        return self.services.catalog.timestamps(needed_from(cursor) + 1, upto)

    def _as_table_rows(self, rows: pa.Table) -> pa.Table:
        """Output rows with the names and types of the table's columns."""
        schema = arrow_schema(self.table.columns)
        return pa.Table.from_arrays(
            [column.cast(field.type) for column, field in zip(rows.columns, schema)], schema=schema
        )

    def _cluster(self, rows: pa.Table) -> pa.Table:
        keys = [name for name in clustering(self.table) if name in rows.column_names]
        sortable = [name for name in keys if not pa.types.is_nested(rows.column(name).type)]
        return rows.sort_by([(name, "ascending") for name in sortable]) if sortable else rows

    def _with_row_ids(self, rows: pa.Table) -> pa.Table:
        if not self.table.storage.has_row_id:
            return rows
        first = self.services.catalog.reserve_row_ids(self.table.storage.id, rows.num_rows)
        ids = pa.array(range(first, first + rows.num_rows), pa.int64())
        return rows.append_column(ROW_ID, ids)

    # ------------------------------------------------------------ the commit

    def _commit(self, cursor: Cursor, upto: int, staged: _Staged, checked: int) -> Delivered:
        catalog = self.services.catalog
        moved = self._move(cursor, upto, rows=staged.count)
        depth = depth_of(self.services, self.query, cursor.version, upto)
        with catalog.exclusive():
            version = catalog.newest_version + 1 if staged.count else None
            self._check_again(cursor, staged, checked)
            with catalog.write(staged.attempt) as unit:
                if version is not None:
                    self._append(unit, version, staged)
                    unit.set_depth(version, depth)
                unit.set_cursor(moved, after=cursor)
                faults.point("deliver.before_cursor")
        changed = {self.table.name: frozenset({"INSERT"})} if version is not None else {}
        return Delivered(moved, staged.count, version, changed)

    def _append(self, unit: UnitOfWork, version: int, staged: _Staged) -> None:
        catalog, storage = self.services.catalog, self.table.storage
        now, newest = self.services.now(), catalog.newest_timestamp
        unit.add_commit(version, now if newest is None else max(now, newest))
        if staged.rows is None:
            unit.add_change_files(
                storage, version, version, staged.files, frozenset({"INSERT"}), insert_only=True
            )
            return
        rows = self._with_row_ids(staged.rows)
        rows = rows.append_column(CHANGE_TYPE, pa.repeat(pa.scalar(INSERT), rows.num_rows))
        rows = rows.append_column(COMMIT_VERSION, pa.repeat(pa.scalar(version, pa.int64()), rows.num_rows))
        unit.add_changes(storage, version, version, rows)

    def _check_again(self, cursor: Cursor, staged: _Staged, checked: int) -> None:
        """What may have changed since version `checked`; call it with the commit lock held."""
        catalog = self.services.catalog
        with _abandoning(staged):
            self._check_cursor(cursor)
            if staged.count:
                self._check_table()
            if catalog.changes(self.table.storage.id, checked + 1, catalog.newest_version):
                self._check_constraints(staged)

    def _check_cursor(self, cursor: Cursor) -> None:
        """Exactly once also where two deliveries overlap: the second one finds that the cursor has moved."""
        now = self.cursor
        if (now.version, now.sequence) != (cursor.version, cursor.sequence):
            raise DestinationError(
                f"table {self.name} was served by another delivery of continuous query {self.query.name} meanwhile",
                hint="nothing is lost; what is left comes with the next delivery",
            )

    def _check_table(self) -> None:
        found = self.services.catalog.state.tables.get(self.name.lower())
        if found is None or found.storage != self.table.storage:
            raise DestinationError(
                f"table {self.name} was {'dropped' if found is None else 'changed'} while continuous query "
                f"{self.query.name} delivered to it",
                hint="nothing is lost; the deltas come with the next delivery to a table of that name",
            )

    def _check_constraints(self, staged: _Staged) -> int:
        """Raises DestinationError where the rows violate a constraint of the table at its newest version, which is
        returned."""
        version = self.services.catalog.newest_version
        with _abandoning(staged):
            if staged.rows is not None:
                check_rows(self.services, self.query, self.table, staged.rows, version)
            elif staged.files:
                check_files(self.services, self.query, self.table, staged.files, version)
        return version


@contextmanager
def _abandoning(staged: _Staged) -> Iterator[None]:
    """Removes the staged files where the block raises: nothing refers to them yet."""
    try:
        yield
    except BaseException:
        if staged.attempt is not None:
            staged.attempt.abandon()
        raise


def _make(wanted: Wanted) -> TableDestination:
    query, reference = wanted.query, wanted.reference
    tables = wanted.state.tables
    table = tables.get(reference.name.lower())
    if table is None:
        names = [t.name for t in tables.values()] + list(wanted.callbacks.names())
        raise DestinationError(
            f"continuous query {query.name} delivers to {reference.name}, which is no table"
            + ("" if reference.kind else " and no registered callback"),
            hint=did_you_mean(reference.name, names)
            or f"create table {reference.name}, or register the callback",
        )
    return TableDestination(wanted.services, query, table)


def _check(destination: DeclaredDestination, place: Place) -> None:
    for name, _ in destination.options:
        if name in COMMON and is_merge(destination):
            raise AnalysisError(
                f"{name} is not for mode = 'merge'",
                detail="the query's own refreshes write the table, and there is nothing that could fail by itself",
                hint="leave it out",
                location=place(name),
            )


KIND = Kind(TableDestination, {"mode": one_of("history", "merge"), **COMMON}, _make, _check)
