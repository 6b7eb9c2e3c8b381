"""Physical reading of versioned tables: change rows, snapshots, images.

Everything is read from the file lists and inline rows that the catalog pins, never by listing a directory. Identity
is NULL-safe, NaN = NaN, −0.0 = 0.0 (SEMANTICS §2).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import reduce, wraps
from typing import Any, TypeVar, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from cq_engine.catalog import tables
from cq_engine.catalog.model import (
    CHANGE_TYPE,
    COMMIT_VERSION,
    DELETE,
    INSERT,
    UPDATE_PREIMAGE,
    ChangeSet,
    Column,
    DataFile,
    Layout,
    VersionedTable,
)
from cq_engine.catalog.store import Catalog
from cq_engine.errors import StorageError
from cq_engine.runtime.rows import Arena, change_columns, conform, empty, identity_keys, open_dataset
from cq_engine.types import spark_schema

__all__ = ["Reader"]

Restrict = Mapping[str, pa.Array]
"""Column → wanted values. A read with it gives at least the rows that have a wanted value in every column."""

SMALL_ROWS = 50_000
"""A table with at most this many rows has an image in memory."""
SMALL_BYTES = 64 * 2**20
"""All images in memory together."""
TAIL_ROWS = 200_000
"""Change rows that the driver is willing to apply to build one image in memory."""
RESTRICT_FILES = 64
"""Files, after pruning, that the driver reads itself."""
RESTRICT_ROWS = 200_000
"""Rows that the driver takes out of them."""
IN_LIST = 1_000
"""Literals in one pushed-down IN; more become a broadcast semi-join."""
CHANGE_FILES = 16
"""Change files that the driver reads itself."""
FRAMES = 64
"""DataFrames of images in memory that are kept for the next statement."""


_Method = TypeVar("_Method", bound=Callable[..., Any])


def _again(method: _Method) -> _Method:
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


class Reader:
    """Reads versioned tables through Arrow where they are small and through Spark where not. Thread-safe."""

    def __init__(self, catalog: Catalog, spark: Callable[[], SparkSession]) -> None:
        self.catalog = catalog
        self.spark = spark
        self._lock = threading.RLock()
        self._arenas: OrderedDict[int, Arena] = OrderedDict()
        self._images: OrderedDict[tuple[int, int, tuple[Column, ...]], pa.Table] = OrderedDict()
        self._frames: OrderedDict[tuple[int, int, tuple[Column, ...], int], DataFrame] = OrderedDict()

    # ------------------------------------------------------------ Arrow and files as DataFrames

    def frame(self, rows: pa.Table, columns: Sequence[Column]) -> DataFrame:
        """Arrow rows as a DataFrame with exactly `columns`."""
        # An empty chunk between others would end Spark's reading there: combine them first.
        whole = conform(rows, columns).combine_chunks()
        return self.spark().createDataFrame(whole, schema=spark_schema(columns))

    def files(self, files: Sequence[DataFile], columns: Sequence[Column]) -> DataFrame:
        """Parquet files of the warehouse as a DataFrame with exactly `columns`; columns a file lacks are NULL."""
        if not files:
            return self.frame(empty(columns), columns)
        return self.spark().read.schema(spark_schema(columns)).parquet(*self.paths(files))

    def paths(self, files: Sequence[DataFile]) -> list[str]:
        """The absolute paths of data files."""
        root = self.catalog.warehouse.rstrip("/")
        return [f"{root}/{file.path}" for file in files]

    # ------------------------------------------------------------ changes

    @_again
    def changes(self, table: VersionedTable, a: int, b: int) -> DataFrame:
        """The change rows of (a, b]: physical columns, `_change_type`, `_commit_version` (delta logs: also
        `_sequence`, `_refresh_time`), in no order.

        Raises StorageError where `a` lies below what is kept.
        """
        return self._changes_frame(table, self._change_sets(table, a, b), a, b)

    @_again
    def changes_arrow(
        self, table: VersionedTable, a: int, b: int, limit_rows: int = TAIL_ROWS
    ) -> pa.Table | None:
        """The rows of `changes` as Arrow, in version order, or None where they are many or in many files."""
        return self._changes_arrow(table, self._change_sets(table, a, b), a, b, limit_rows)

    def _change_sets(self, table: VersionedTable, a: int, b: int) -> list[ChangeSet]:
        if b <= a:
            return []
        layout = self.catalog.layout(table.id, a)
        return [s for s in layout.changes if s.high > a and s.low <= b]

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
        constants: dict[str, SparkColumn] = {COMMIT_VERSION: f.lit(change_set.low).cast("bigint")}
        if change_set.insert_only:
            constants[CHANGE_TYPE] = f.lit(INSERT)
        stored = [c for c in columns if c.name not in constants]
        rows = self.files(change_set.files, stored)
        return rows.select(
            *(constants[c.name].alias(c.name) if c.name in constants else _column(c.name) for c in columns)
        )

    def _changes_arrow(
        self, table: VersionedTable, sets: Sequence[ChangeSet], a: int, b: int, limit_rows: int
    ) -> pa.Table | None:
        if sum(s.rows for s in sets) > limit_rows:
            return None
        in_memory = [s for s in sets if s.inline_id is not None or self.catalog.cached(s) is not None]
        stored = {s.id for s in sets} - {s.id for s in in_memory}
        if sum(len(s.files) for s in sets if s.id in stored) > CHANGE_FILES:
            return None
        columns = change_columns(table)
        parts = [
            self._stored(table, s, a, b) if s.id in stored else self._inline(table, s, a, b) for s in sets
        ]
        return pa.concat_tables(parts).combine_chunks() if parts else empty(columns)

    def _inline(self, table: VersionedTable, change_set: ChangeSet, a: int, b: int) -> pa.Table:
        kept = self.catalog.cached(change_set)
        rows = conform(self.catalog.inline(change_set) if kept is None else kept, change_columns(table))
        return _between(rows, a, b) if change_set.low <= a or change_set.high > b else rows

    def _stored(self, table: VersionedTable, change_set: ChangeSet, a: int, b: int) -> pa.Table:
        columns = change_columns(table)
        if not change_set.files:
            return empty(columns)
        one = change_set.insert_only or change_set.low == change_set.high
        constant = {COMMIT_VERSION} if one else set()
        if change_set.insert_only:
            constant.add(CHANGE_TYPE)
        rows = open_dataset(
            self.paths(change_set.files), [c for c in columns if c.name not in constant]
        ).to_table()
        if one:
            rows = rows.append_column(COMMIT_VERSION, pa.array([change_set.low] * rows.num_rows, pa.int64()))
        if change_set.insert_only:
            rows = rows.append_column(CHANGE_TYPE, pa.array([INSERT] * rows.num_rows, pa.string()))
        rows = conform(rows, columns)
        return rows if one else _between(rows, a, b)

    # ------------------------------------------------------------ snapshots

    def base(self, table: VersionedTable, layout: Layout, restrict: Restrict | None = None) -> DataFrame:
        """The snapshot rows of `layout`, physical columns.

        With `restrict` at least the rows with wanted values: files are pruned by the catalog's statistics; few files
        are read by the driver into Arrow, many by Spark with a pushed-down IN.
        """
        columns = table.physical_columns
        if restrict is None:
            return self.files(layout.snapshot, columns)
        found = self.base_arrow(table, layout, restrict)
        if found is not None:
            return self.frame(found, columns)
        rows = self.files(_pruned(layout.snapshot, restrict), columns)
        for name, values in restrict.items():
            rows = self._keep(rows, table, name, values)
        return rows

    def base_arrow(self, table: VersionedTable, layout: Layout, restrict: Restrict) -> pa.Table | None:
        """The rows of `base` with `restrict` as Arrow, or None where that would be too many files or rows."""
        columns = table.physical_columns
        files = _pruned(layout.snapshot, restrict)
        if not files:
            return empty(columns)
        if len(files) > RESTRICT_FILES:
            return None
        dataset = open_dataset(self.paths(files), columns)
        conditions = [c for c in (_is_in(dataset.schema, n, v) for n, v in restrict.items()) if c is not None]
        condition = reduce(lambda x, y: x & y, conditions) if conditions else None
        rows = dataset.scanner(filter=condition).head(RESTRICT_ROWS + 1)
        return None if rows.num_rows > RESTRICT_ROWS else rows

    def _keep(self, rows: DataFrame, table: VersionedTable, name: str, values: pa.Array) -> DataFrame:
        column = next(c for c in table.physical_columns if c.name == name)
        wanted = pc.unique(values)
        if len(wanted) <= IN_LIST and not pa.types.is_nested(wanted.type):
            known = wanted.drop_null()
            condition = _column(name).isin(known.to_pylist()) if len(known) else f.lit(False)
            return rows.where(condition | _column(name).isNull() if wanted.null_count else condition)
        keys = self.frame(pa.table({name: wanted}), [column]).withColumnRenamed(name, "_wanted")
        return rows.join(f.broadcast(keys), _column(name).eqNullSafe(f.col("_wanted")), "left_semi")

    # ------------------------------------------------------------ images

    @_again
    def image(self, table: VersionedTable, version: int, restrict: Restrict | None = None) -> DataFrame:
        """The rows after commit `version`, physical columns; with `restrict` at least those with wanted values.

        Raises StorageError where `version` lies below what is kept.
        """
        small = self.small_image(table, version)
        if small is not None:
            return self._small_frame(table, version, small)
        layout = self.catalog.layout(table.id, version)
        sets = [s for s in layout.changes if s.low <= version]
        base = self.base(table, layout, restrict)
        if not sets:
            return base
        tail = self._changes_frame(table, sets, layout.base, version)
        return _overlay(table, base, tail, all(s.kinds <= {"INSERT"} for s in sets))

    @_again
    def small_image(self, table: VersionedTable, version: int) -> pa.Table | None:
        """The rows after commit `version` as Arrow, or None where the table is not small."""
        key = (table.id, version, table.physical_columns)
        with self._lock:
            if key in self._images:
                self._images.move_to_end(key)
                return self._images[key]
            arena = self._arena(table, version)
            if arena is None:
                return None
            rows = self._images[key] = arena.rows()
            while (
                len(self._images) > 1
                and sum(image.nbytes for image in self._images.values()) > SMALL_BYTES // 2
            ):
                self._images.popitem(last=False)
            return rows

    @_again
    def lookup(self, table: VersionedTable, version: int, keys: pa.Table) -> pa.Table:
        """The rows after commit `version` whose identity stands in `keys` (the identity columns), as Arrow.

        Reads of a large table are restricted to the keys.
        """
        wanted = set(identity_keys(keys, table.identity))
        with self._lock:
            arena = self._arena(table, version)
            if arena is not None:
                return arena.find(wanted)
        restrict = {name: pc.unique(keys.column(name).combine_chunks()) for name in table.identity}
        found = self._restricted(table, version, restrict)
        if found is None:
            found = self._semi_join(table, version, keys, restrict)
        hits = [n for n, key in enumerate(identity_keys(found, table.identity)) if key in wanted]
        return found.take(pa.array(hits, pa.int64()))

    @_again
    def restricted_image(self, table: VersionedTable, version: int, restrict: Restrict) -> pa.Table | None:
        """At least the rows after commit `version` with wanted values, as Arrow; None where they are many."""
        small = self.small_image(table, version)
        return small if small is not None else self._restricted(table, version, restrict)

    def is_small(self, table: VersionedTable, version: int) -> bool:
        """True where `small_image` gives rows."""
        return self.small_image(table, version) is not None

    def _restricted(self, table: VersionedTable, version: int, restrict: Restrict) -> pa.Table | None:
        layout = self.catalog.layout(table.id, version)
        sets = [s for s in layout.changes if s.low <= version]
        changes = self._changes_arrow(table, sets, layout.base, version, TAIL_ROWS)
        base = self.base_arrow(table, layout, restrict) if changes is not None else None
        if changes is None or base is None:
            return None
        arena = Arena(table.physical_columns, table.identity)
        arena.load(base, layout.base)
        arena.advance(changes, version)
        return arena.rows()

    def _semi_join(self, table: VersionedTable, version: int, keys: pa.Table, restrict: Restrict) -> pa.Table:
        identity = [c for c in table.physical_columns if c.name in table.identity]
        wanted = self.frame(keys.select([c.name for c in identity]).combine_chunks(), identity)
        wanted = wanted.select(*(_column(c.name).alias(f"_k{n}") for n, c in enumerate(identity))).distinct()
        on = [_column(c.name).eqNullSafe(f.col(f"_k{n}")) for n, c in enumerate(identity)]
        rows = self.image(table, version, restrict).join(wanted, on, "left_semi")
        return conform(rows.toArrow(), table.physical_columns)

    def _arena(self, table: VersionedTable, version: int) -> Arena | None:
        """The arena of a small table at exactly `version`; the newest one seen is kept and moved forward."""
        columns = table.physical_columns
        kept = self._arenas.get(table.id)
        if kept is not None and kept.columns == columns:
            if kept.version == version:
                self._arenas.move_to_end(table.id)
                return kept
            if kept.version < version and self._advance(table, kept, version):
                return kept
        arena = self._build(table, version)
        if arena is not None and (kept is None or kept.version < version or kept.columns != columns):
            self._arenas[table.id] = arena
            self._arenas.move_to_end(table.id)
            while len(self._arenas) > 1 and sum(a.nbytes for a in self._arenas.values()) > SMALL_BYTES // 2:
                self._arenas.popitem(last=False)
        return arena

    def _advance(self, table: VersionedTable, arena: Arena, version: int) -> bool:
        changes = self.changes_arrow(table, arena.version, version, SMALL_ROWS)
        if changes is None or len(arena) + changes.num_rows > 2 * SMALL_ROWS:
            del self._arenas[table.id]
            return False
        arena.advance(changes, version)
        if len(arena) > SMALL_ROWS or arena.nbytes > SMALL_BYTES // 4:
            del self._arenas[table.id]
            return False
        self._arenas.move_to_end(table.id)
        return True

    def _build(self, table: VersionedTable, version: int) -> Arena | None:
        layout = self.catalog.layout(table.id, version)
        if sum(file.rows for file in layout.snapshot) > SMALL_ROWS or len(layout.snapshot) > RESTRICT_FILES:
            return None
        sets = [s for s in layout.changes if s.low <= version]
        changes = self._changes_arrow(table, sets, layout.base, version, TAIL_ROWS)
        if changes is None:
            return None
        arena = Arena(table.physical_columns, table.identity)
        if layout.snapshot:
            arena.load(
                open_dataset(self.paths(layout.snapshot), table.physical_columns).to_table(), layout.base
            )
        arena.advance(changes, version)
        return arena if len(arena) <= SMALL_ROWS and arena.nbytes <= SMALL_BYTES // 4 else None

    def _small_frame(self, table: VersionedTable, version: int, rows: pa.Table) -> DataFrame:
        spark = self.spark()
        key = (table.id, version, table.physical_columns, id(spark))
        with self._lock:
            if key not in self._frames:
                self._frames[key] = self.frame(rows, table.physical_columns)
                while len(self._frames) > FRAMES:
                    self._frames.popitem(last=False)
            self._frames.move_to_end(key)
            return self._frames[key]


def _overlay(table: VersionedTable, base: DataFrame, tail: DataFrame, only_inserts: bool) -> DataFrame:
    """`base` with the change rows of `tail` applied: one Spark expression."""
    columns = [_column(c.name) for c in table.physical_columns]
    if only_inserts:
        return base.unionAll(tail.select(*columns))
    last = Window.partitionBy(*(_column(name) for name in table.identity)).orderBy(
        f.col(COMMIT_VERSION).desc()
    )
    newest = (
        tail.where(f.col(CHANGE_TYPE) != UPDATE_PREIMAGE)
        .withColumn("_n", f.row_number().over(last))
        .where(f.col("_n") == 1)
    )
    after = newest.where(f.col(CHANGE_TYPE) != DELETE).select(*columns)
    if not table.identity:
        return base.join(newest.select(f.lit(1).alias("_k")), how="left_anti").unionAll(after)
    touched = newest.select(*(_column(name).alias(f"_k{n}") for n, name in enumerate(table.identity)))
    on = [_column(name).eqNullSafe(f.col(f"_k{n}")) for n, name in enumerate(table.identity)]
    return base.join(touched, on, "left_anti").unionAll(after)


def _between(rows: pa.Table, a: int, b: int) -> pa.Table:
    version = pc.field(COMMIT_VERSION)
    return rows.filter((version > a) & (version <= b))


def _pruned(files: Sequence[DataFile], restrict: Restrict) -> list[DataFile]:
    kept = list(files)
    for name, values in restrict.items():
        if values.null_count == 0 and not pa.types.is_floating(values.type):
            kept = list(tables.prune(kept, name, values))
    return kept


def _is_in(schema: pa.Schema, name: str, values: pa.Array) -> pc.Expression | None:
    kind = schema.field(name).type
    if pa.types.is_floating(kind) or pa.types.is_nested(kind):
        return None
    condition = pc.field(name).isin(pc.unique(values).drop_null().cast(kind))
    return condition | pc.field(name).is_null() if values.null_count else condition


def _column(name: str) -> SparkColumn:
    return f.col("`" + name.replace("`", "``") + "`")
