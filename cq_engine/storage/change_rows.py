"""Change rows as they are stored: the files and inline rows that the catalog lists, in Arrow or as DataFrames."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import reduce, wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from cq_engine.catalog import tables
from cq_engine.catalog.change_rows import CHANGE_TYPE, COMMIT_VERSION, INSERT, MEMBER
from cq_engine.catalog.model import ChangeSet, DataFile, VersionedTable
from cq_engine.catalog.store import Catalog
from cq_engine.core.arrays import repeated
from cq_engine.core.columns import Column
from cq_engine.core.errors import StorageError
from cq_engine.core.limits import Limits
from cq_engine.core.types import spark_type
from cq_engine.spark.arrow_io import from_arrow
from cq_engine.spark.sql import quote
from cq_engine.storage.change_runs import ChangeRuns
from cq_engine.storage.data_files import read_files
from cq_engine.storage.joined_changes import JoinedChanges
from cq_engine.storage.rows import change_columns, conform, empty, open_dataset

if TYPE_CHECKING:
    import pyarrow.dataset as ds

__all__ = ["ChangeReader", "retry_reading"]


_Method = TypeVar("_Method", bound=Callable[..., Any])


def retry_reading(method: _Method) -> _Method:
    """Reads again where inline rows were flushed to a file between the layout and the reading of it."""

    @wraps(method)
    def reading(*args: Any, **keywords: Any) -> Any:
        for _ in range(3):
            try:
                return method(*args, **keywords)
            except StorageError as error:
                if "layout again" not in error.hint:
                    raise
        return method(*args, **keywords)

    return cast("_Method", reading)


class ChangeReader:
    """Reads the files of versioned tables and the change rows in them. It keeps nothing but what was put together of small change sets."""

    def __init__(self, catalog: Catalog, spark: Callable[[], SparkSession]) -> None:
        self.catalog = catalog
        self.spark = spark
        self.joined = JoinedChanges(catalog.limits.joined_bytes, catalog.limits.joined_rows)

    @property
    def limits(self) -> Limits:
        """The bounds that everything works within."""
        return self.catalog.limits

    # ------------------------------------------------------------ Arrow and files as DataFrames

    def frame(self, rows: pa.Table, columns: Sequence[Column]) -> DataFrame:
        """Arrow rows as a DataFrame with exactly `columns`."""
        return from_arrow(self.spark(), conform(rows, columns), columns, self.limits.local_bytes)

    def one_part(self, rows: pa.Table, columns: Sequence[Column]) -> DataFrame:
        """The same in one partition, where one task has soon done what follows."""
        frame = self.frame(rows, columns)
        return frame.coalesce(1) if rows.nbytes <= self.limits.one_part_bytes else frame

    def files(
        self,
        files: Sequence[DataFile],
        columns: Sequence[Column],
        restrict: Mapping[str, pa.Array] | None = None,
        wanted: Collection[str] | None = None,
    ) -> DataFrame:
        """Parquet files of the warehouse as a DataFrame with exactly `columns`; columns a file lacks are NULL, and those that
        are not `wanted` may be. Of rows without a value that is wanted by `restrict` some may be missing."""
        if wanted is not None and not self.catalog.store.is_local:
            read = [c for c in columns if c.name in wanted]
            rows = self.files(files, read, restrict)
            nulls = {c.name: f.lit(None).cast(spark_type(c.type)) for c in columns if c not in read}
            return rows.select(*(nulls.get(c.name, f.col(quote(c.name))).alias(c.name) for c in columns))
        if not files:
            return self.frame(empty(columns), columns)
        return read_files(self.spark(), self.catalog.store, files, columns, self.limits, restrict)

    def read_files(
        self,
        table: VersionedTable,
        files: Sequence[DataFile],
        columns: Sequence[Column],
        *,
        use_threads: bool = True,
    ) -> pa.Table:
        """Parquet files of `table` as Arrow, decoded by all cores or by this thread. Raises StorageError."""
        with self.reading(table, files):
            found = self._dataset(files, columns)
            return self.catalog.store.ask(lambda: found.to_table(use_threads=use_threads))

    def read_in_parts(
        self, table: VersionedTable, files: Sequence[DataFile], columns: Sequence[Column]
    ) -> Iterator[pa.RecordBatch]:
        """The same in parts, one file after the other, of which few are in memory at a time. Raises StorageError."""
        with self.reading(table, files):
            parts = self._dataset(files, columns).to_batches(batch_readahead=2, fragment_readahead=1)
            while (part := self.catalog.store.ask(lambda: next(parts, None))) is not None:
                yield part

    def _dataset(self, files: Sequence[DataFile], columns: Sequence[Column]) -> ds.Dataset:
        return open_dataset(self.paths(files), columns, self.catalog.store.filesystem)

    def reading(self, table: VersionedTable, files: Sequence[DataFile]) -> AbstractContextManager[None]:
        """A block that reads `files` of `table`; what it fails with is a StorageError that names both."""
        return tables.reading(f"read the rows of {table.name}", self.catalog.store, files)

    def paths(self, files: Sequence[DataFile]) -> list[str]:
        """What data files are called in the store's file system: their absolute paths, where it is the local one."""
        path = self.catalog.store.path
        return [path(file.path) for file in files]

    # ------------------------------------------------------------ changes

    @retry_reading
    def changes(self, table: VersionedTable, a: int, b: int) -> DataFrame:
        """The change rows of (a, b]: physical columns, `_change_type`, `_commit_version` (delta logs: also
        `_sequence`, `_refresh_time`), in no order.

        Raises StorageError where `a` lies below what is kept.
        """
        _, sets = self._change_sets(table, a, b)
        if table.part is None:
            return self._changes_frame(table, sets, a, b)
        rows = self._changes_frame(shared_log(table), sets, a, b)
        return rows.where(f.col(MEMBER) == table.part).drop(MEMBER)

    def changes_arrow(
        self,
        table: VersionedTable,
        a: int,
        b: int,
        limit_rows: int | None = None,
        limit_bytes: int | None = None,
    ) -> pa.Table | None:
        """The rows of `changes` as Arrow, in version order, or None where they are many (more than `limit_rows`, or than
        the engine's limit; more than `limit_bytes` in memory) or in many files."""
        runs = self.change_runs(table, a, b, limit_rows, limit_bytes)
        return None if runs is None else runs.table

    @retry_reading
    def change_runs(
        self,
        table: VersionedTable,
        a: int,
        b: int,
        limit_rows: int | None = None,
        limit_bytes: int | None = None,
    ) -> ChangeRuns | None:
        """The same in runs, for who needs some of them: where they go on from a snapshot, as they are kept."""
        base, sets = self._change_sets(table, a, b)
        log = table if table.part is None else shared_log(table)
        if base == a:
            runs = self.rows_since(log, sets, a, b, limit_rows, limit_bytes)
        else:
            rows = self.rows_of(log, sets, a, b, limit_rows, limit_bytes=limit_bytes)
            runs = None if rows is None else ChangeRuns.of(rows)
        if runs is None or table.part is None:
            return runs
        return ChangeRuns.of(runs.table.filter(pc.field(MEMBER) == table.part).drop_columns([MEMBER]))

    def _change_sets(self, table: VersionedTable, a: int, b: int) -> tuple[int | None, list[ChangeSet]]:
        """Those with rows of (a, b], and the snapshot's version that they come after."""
        if b <= a:
            return None, []
        layout = self.catalog.layout(table.id, a)
        return layout.base, [s for s in layout.changes if s.high > a and s.low <= b]

    def _changes_frame(self, table: VersionedTable, sets: Sequence[ChangeSet], a: int, b: int) -> DataFrame:
        columns = change_columns(table)
        parts: list[DataFrame] = []
        inlined = [self._inline(table, s, a, b) for s in sets if s.inline_id is not None]
        if inlined:
            parts.append(self.frame(pa.concat_tables(inlined), columns))
        stored = [s for s in sets if s.inline_id is None]
        whole = [s for s in stored if not s.insert_only and s.low != s.high]
        if whole:
            rows = self.files([file for s in whole for file in s.files], columns)
            if any(s.low <= a or s.high > b for s in whole):
                rows = rows.where(f.col(COMMIT_VERSION).between(a + 1, b))
            parts.append(rows)
        parts += [self._one_version(table, s) for s in stored if s.insert_only or s.low == s.high]
        if not parts:
            return self.frame(empty(columns), columns)
        return reduce(DataFrame.unionAll, parts)

    def _one_version(self, table: VersionedTable, change_set: ChangeSet) -> DataFrame:
        """The rows of files that belong to one version, which is a constant of the files."""
        columns = change_columns(table)
        fixed = {COMMIT_VERSION, CHANGE_TYPE} if change_set.insert_only else {COMMIT_VERSION}
        rows = self.files(change_set.files, [c for c in columns if c.name not in fixed])
        constants: dict[str, SparkColumn] = {COMMIT_VERSION: f.lit(change_set.low).cast("bigint")}
        if change_set.insert_only:
            constants[CHANGE_TYPE] = f.lit(INSERT)
        return rows.select(
            *(
                constants[c.name].alias(c.name) if c.name in constants else f.col(quote(c.name))
                for c in columns
            )
        )

    def rows_of(
        self,
        table: VersionedTable,
        sets: Sequence[ChangeSet],
        a: int,
        b: int,
        limit_rows: int | None = None,
        limit_files: int | None = None,
        limit_bytes: int | None = None,
    ) -> pa.Table | None:
        """The rows of (a, b] in `sets`, of one layout, as `changes_arrow` gives them."""
        limits = self.limits
        if sum(s.rows_within(a, b) for s in sets) > (
            limits.change_rows if limit_rows is None else limit_rows
        ):
            return None
        columns = change_columns(table)
        cached = {s.id: self._cached(s, columns) for s in sets}
        stored = {s.id for s in sets if s.inline_id is None and cached[s.id] is None}
        files = [file for s in sets if s.id in stored for file in s.files]
        if len(files) > (limits.change_files if limit_files is None else limit_files):
            return None
        if sum(file.bytes for file in files) > limits.change_bytes:
            return None
        parts, taken = [], 0
        for each in sets:
            rows = cached[each.id]
            if rows is None and each.id in stored:
                rows = self._read_change_set(table, each, a, b)
            elif rows is None:
                rows = self.catalog.inline(each)
            parts.append(_rows_between(conform(rows, columns), each, a, b))
            taken += parts[-1].nbytes
            if limit_bytes is not None and taken > limit_bytes:
                return None
        return pa.concat_tables(parts).combine_chunks() if parts else empty(columns)

    def rows_since(
        self,
        table: VersionedTable,
        sets: Sequence[ChangeSet],
        base: int,
        version: int,
        limit_rows: int | None = None,
        limit_bytes: int | None = None,
    ) -> ChangeRuns | None:
        """What `rows_of` gives of a log from the snapshot at `base` on; what was put together the last time is not again."""
        limits = self.limits
        count = sum(each.rows_within(base, version) for each in sets)
        if count > (limits.change_rows if limit_rows is None else limit_rows):
            return None
        begin = max((n for n, each in enumerate(sets, 1) if each.low <= base), default=0)
        end = next((n for n in range(begin, len(sets)) if sets[n].high > version), len(sets))
        if end - begin < limits.joined_sets and count < limits.joined_rows:
            begin = end = 0
        key, whole = (table.id, change_columns(table)), sets[begin:end]
        known, there = self.joined.find(key, whole) if whole else (0, None)
        parts = [
            self.rows_of(table, part, base, version, limit_rows, limit_bytes=limit_bytes)
            for part in (sets[:begin], whole[known:], sets[end:])
        ]
        if any(part is None for part in parts):
            return None
        before, new, after = parts
        if known < len(whole):
            self.joined.add(key, known, whole, new)
        runs = [ChangeRuns.of(before), *([] if there is None else [there]), *map(ChangeRuns.of, (new, after))]
        rows = reduce(ChangeRuns.__add__, runs)
        return None if limit_bytes is not None and rows.nbytes > limit_bytes else rows

    def _cached(self, change_set: ChangeSet, columns: Sequence[Column]) -> pa.Table | None:
        """The rows of a change set that are in memory; those that were read from its files, if with all `columns`."""
        rows = self.catalog.cached(change_set)
        if (
            rows is None
            or change_set.inline_id is not None
            or {c.name for c in columns} <= set(rows.column_names)
        ):
            return rows
        return None

    def _inline(self, table: VersionedTable, change_set: ChangeSet, a: int, b: int) -> pa.Table:
        return _rows_between(
            conform(self.catalog.inline(change_set), change_columns(table)), change_set, a, b
        )

    def _read_change_set(self, table: VersionedTable, change_set: ChangeSet, a: int, b: int) -> pa.Table:
        """The rows of (a, b], at least, of a change set that has files. Where they are few, all rows are read and stay in memory
        while that has room: until they are merged into the snapshot, every refresh and every commit reads them."""
        columns = change_columns(table)
        if not change_set.files:
            return empty(columns)
        constant = set()
        if change_set.insert_only or change_set.low == change_set.high:
            constant.add(COMMIT_VERSION)
        if change_set.insert_only:
            constant.add(CHANGE_TYPE)
        stored = [c for c in columns if c.name not in constant]
        bound = self.limits.kept_change_bytes
        if change_set.low != change_set.high and sum(file.bytes for file in change_set.files) > bound:
            version = pc.field(COMMIT_VERSION)
            with self.reading(table, change_set.files):
                found, wanted = self._dataset(change_set.files, stored), (version > a) & (version <= b)
                return conform(self.catalog.store.ask(lambda: found.to_table(filter=wanted)), columns)
        rows = self.read_files(table, change_set.files, stored)
        if COMMIT_VERSION in constant:
            rows = rows.append_column(COMMIT_VERSION, repeated(change_set.low, pa.int64(), rows.num_rows))
        if CHANGE_TYPE in constant:
            rows = rows.append_column(CHANGE_TYPE, repeated(INSERT, pa.string(), rows.num_rows))
        rows = conform(rows, columns)
        if rows.nbytes <= bound:
            self.catalog.keep(change_set, rows)
        return rows


def shared_log(table: VersionedTable) -> VersionedTable:
    """The delta log of which `table` is a part."""
    return replace(table, columns=(*table.columns, Column(MEMBER, "bigint")), part=None)


def _rows_between(rows: pa.Table, change_set: ChangeSet, a: int, b: int) -> pa.Table:
    if change_set.low > a and change_set.high <= b:
        return rows
    version = pc.field(COMMIT_VERSION)
    return rows.filter((version > a) & (version <= b))
