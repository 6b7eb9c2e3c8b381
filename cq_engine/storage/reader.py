"""Images of versioned tables: the rows after a commit, from snapshots and the change rows since.

Everything is read from the files and inline rows that the catalog lists, never by listing a directory. Identity
is NULL-safe, NaN = NaN, −0.0 = 0.0 (SEMANTICS §2).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from functools import partial, reduce
from operator import attrgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from cachetools import LRUCache
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f
from pyspark.sql import types as t

from cq_engine.catalog.change_rows import CHANGE_TYPE, COMMIT_VERSION, DELETE, UPDATE_PREIMAGE
from cq_engine.catalog.differences import versioned_tables
from cq_engine.catalog.model import Layout, VersionedTable
from cq_engine.catalog.store import Catalog
from cq_engine.core.beside import Beside
from cq_engine.core.capabilities import Use, can
from cq_engine.core.columns import Column
from cq_engine.core.keeping import keep
from cq_engine.core.types import spark_type
from cq_engine.spark.arrow_io import to_arrow
from cq_engine.spark.sql import quote
from cq_engine.storage.change_rows import ChangeReader, retry_reading
from cq_engine.storage.change_runs import ChangeRuns
from cq_engine.storage.file_look_ups import (
    Choose,
    FileLookUps,
    Restrict,
    prune_files,
    restriction,
    value_count,
)
from cq_engine.storage.identities import KeySet, combinations
from cq_engine.storage.resident_images import ResidentImages
from cq_engine.storage.rows import conform, empty, identity_columns, identity_keys
from cq_engine.storage.uncompacted_log import UncompactedLog

__all__ = ["Reader", "join_identities", "relevant_changes"]


def _no_constants(table: VersionedTable) -> pa.Table:
    return empty(table.physical_columns)


class Reader(ChangeReader):
    """Reads versioned tables through Arrow where they are small and through Spark where not. Thread-safe."""

    def __init__(
        self,
        catalog: Catalog,
        spark: Callable[[], SparkSession],
        constants: Callable[[VersionedTable], pa.Table] = _no_constants,
    ) -> None:
        """`constants` gives the rows of a table of kind constants, which is not stored."""
        super().__init__(catalog, spark)
        self.constants = constants
        self._lock = threading.RLock()
        self.look_ups = FileLookUps(catalog.limits, catalog.store.filesystem)
        self._residents = ResidentImages(self)
        self._images: LRUCache[tuple[int, int, tuple[Column, ...]], pa.Table]
        self._images = LRUCache(self.limits.small_bytes // 2, getsizeof=attrgetter("nbytes"))
        self._frames: LRUCache[tuple[int, int, tuple[Column, ...], int], DataFrame]
        self._frames = LRUCache(self.limits.image_frames)

    # ------------------------------------------------------------ snapshots

    def base(
        self,
        table: VersionedTable,
        layout: Layout,
        restrict: Restrict | None = None,
        wanted: Collection[str] | None = None,
        sought: Restrict | None = None,
    ) -> DataFrame:
        """The snapshot rows of `layout`, physical columns. Those that are neither `wanted`, nor the identity, nor restricted
        may be NULL, and rows without the values that are `sought` missing: a task that reads an object store does not know
        what the query above it needs.

        With `restrict` at least the rows with wanted values: files are pruned by the catalog's statistics; few files
        are read by the driver into Arrow, many by Spark with a pushed-down IN.
        """
        columns = table.physical_columns
        if wanted is not None:
            wanted = {*table.identity, *(restrict or ()), *(sought or ()), *wanted}
        if restrict is None:
            return self.files(prune_files(layout.snapshot, sought or {}), columns, sought, wanted)
        found = self.base_arrow(table, layout, restrict)
        if found is not None:
            return self.frame(found, columns)
        rows = self.files(prune_files(layout.snapshot, restrict), columns, restrict, wanted)
        for name, values in restrict.items():
            rows = self._keep(rows, table, name, values)
        return rows

    def base_arrow(
        self,
        table: VersionedTable,
        layout: Layout,
        restrict: Restrict,
        wanted: Collection[str] | None = None,
        choose: Choose | None = None,
    ) -> pa.Table | None:
        """The rows of `base` with `restrict` as Arrow, of these the chosen ones, or None where that would be too many files or
        rows.

        Of the columns that are neither `wanted`, nor the identity, nor restricted, the values are NULL.
        """
        columns = table.physical_columns
        files = prune_files(layout.snapshot, restrict)
        if len(files) > self.limits.look_up_files:
            return None
        names = {*table.identity, *restrict, *(c.name for c in columns if wanted is None or c.name in wanted)}
        read = [c for c in columns if c.name in names]
        opened = [(path, file.rows) for path, file in zip(self.paths(files), files)]
        with self.reading(table, files):
            rows = self.catalog.store.ask(
                lambda: self.look_ups.rows(table.id, opened, read, restrict, self.limits.look_up_rows, choose)
            )
        return None if rows is None else conform(rows, columns)

    def _keep(self, rows: DataFrame, table: VersionedTable, name: str, values: pa.Array) -> DataFrame:
        column = next(c for c in table.physical_columns if c.name == name)
        wanted = pc.unique(values)
        few = len(wanted) <= self.limits.in_list
        known = _literals(wanted.drop_null(), spark_type(column.type)) if few else None
        if known is not None:
            condition = _column(name).isin(known) if known else f.lit(False)
            return rows.where(condition | _column(name).isNull() if wanted.null_count else condition)
        keys = self.frame(pa.table({name: wanted}), [column]).withColumnRenamed(name, "_cq_wanted")
        return rows.join(f.broadcast(keys), _column(name).eqNullSafe(f.col("_cq_wanted")), "left_semi")

    # ------------------------------------------------------------ images

    @retry_reading
    def image(
        self,
        table: VersionedTable,
        version: int,
        restrict: Restrict | None = None,
        wanted: Collection[str] | None = None,
        sought: Restrict | None = None,
    ) -> DataFrame:
        """The rows after commit `version`, physical columns; with `restrict` at least those with wanted values. Columns that
        are neither `wanted`, nor the identity, nor restricted may be NULL, and those without the values that are `sought` missing.

        Raises StorageError where `version` lies below what is kept.
        """
        small = self.small_image(table, version)
        if table.kind == "constants":
            assert small is not None
            return self.frame(small, table.physical_columns)
        if small is not None:
            return self._small_frame(table, version, small)
        layout = self.catalog.layout(table.id, version)
        sets = [s for s in layout.changes if s.low <= version]
        base = self.base(table, layout, restrict, wanted, sought)
        if not sets:
            return base
        log = self._changes_frame(table, sets, layout.base, version)
        return _overlay(table, base, log, all(s.kinds <= {"INSERT"} for s in sets))

    @retry_reading
    def small_image(self, table: VersionedTable, version: int) -> pa.Table | None:
        """The rows after commit `version` as Arrow, or None where the table is not small."""
        if table.kind == "constants":
            return self.constants(table)
        key = (table.id, version, table.physical_columns)
        if version < self.catalog.floor(table.id):
            self.catalog.layout(table.id, version)  # says so, though it may still be in memory
        with self._lock:
            if key in self._images:
                return self._images[key]
            resident = self._residents.at(table, version)
            if resident is None:
                return None
            rows = resident.rows()
            self._images[key] = rows
            return rows

    @retry_reading
    def lookup(self, table: VersionedTable, version: int, keys: pa.Table) -> pa.Table:
        """The rows after commit `version` whose identity stands in `keys` (the identity columns), as Arrow.

        Reads of a large table are restricted to the keys.
        """
        with self._lock:
            resident = self._residents.at(table, version)
            if resident is not None:
                return resident.find(set(identity_keys(keys, identity_columns(table))))
        identity = identity_columns(table)
        restrict, choose = restriction(keys, identity), combinations(keys, identity)
        found = self._read_restricted(table, version, restrict, choose)
        if found is None:
            found = self._semi_join(table, version, keys, restrict)
        holds = choose or KeySet.of(keys, identity).holds
        return found.filter(pa.array(holds(found)))

    @retry_reading
    def restricted_image(
        self, table: VersionedTable, version: int, restrict: Restrict, choose: Choose | None = None
    ) -> pa.Table | None:
        """At least the rows after commit `version` with wanted values that are chosen, as Arrow; None where they are many."""
        small = self.small_image(table, version)
        return small if small is not None else self._read_restricted(table, version, restrict, choose)

    def is_small(self, table: VersionedTable, version: int) -> bool:
        """True where `small_image` gives rows."""
        return self.small_image(table, version) is not None

    def forget_all(self) -> None:
        """Reads every table anew: another process may have added rows at versions that this one has in memory."""
        with self._lock:
            self._residents.keep_tables(())
            self.joined.keep_tables(())
            self._images.clear()
            self._frames.clear()

    def forget(self, table: VersionedTable) -> None:
        """Reads the table anew: rows have been added at a version that it had already."""
        with self._lock:
            self._residents.forget(table)
            self.joined.forget(table.id)
            for key in [key for key in self._images if key[0] == table.id]:
                del self._images[key]
            for frame in [frame for frame in self._frames if frame[0] == table.id]:
                del self._frames[frame]

    def forget_gone(self) -> None:
        """Takes the rows of tables that are gone out of memory."""
        there = versioned_tables(self.catalog.state)
        with self._lock:
            self._residents.keep_tables(there)
            self.joined.keep_tables(there)
            keep(self._images, {key for key in self._images if key[0] in there})
            keep(self._frames, {key for key in self._frames if key[0] in there})
        self.look_ups.indexed.keep_tables(there)

    def _read_restricted(
        self, table: VersionedTable, version: int, restrict: Restrict, choose: Choose | None = None
    ) -> pa.Table | None:
        layout = self.catalog.layout(table.id, version)
        sets = [s for s in layout.changes if s.low <= version]
        limits = self.limits
        most = limits.driver_changes, limits.driver_change_bytes
        changes = self.rows_since(table, sets, layout.base, version, *most)
        if changes is None:
            return None
        look_up = partial(self.base_arrow, table, layout, restrict, choose=choose)
        with Beside(look_up, min(changes.num_rows, value_count(restrict))) as base:
            changes = relevant_changes(table, changes, base, restrict, limits.relevant_rows)
            rows = base()
        if rows is None:
            return None
        return UncompactedLog.of(table, changes, version, version, compressed=False).image(rows)

    def _semi_join(self, table: VersionedTable, version: int, keys: pa.Table, restrict: Restrict) -> pa.Table:
        identity = identity_columns(table)
        wanted = self.frame(keys.select([c.name for c in identity]).combine_chunks(), identity).distinct()
        rows = join_identities(self.image(table, version, restrict), wanted, table.identity, "left_semi")
        return conform(to_arrow(rows), table.physical_columns)

    def _small_frame(self, table: VersionedTable, version: int, rows: pa.Table) -> DataFrame:
        spark = self.spark()
        key = (table.id, version, table.physical_columns, id(spark))
        with self._lock:
            if key not in self._frames:
                self._frames[key] = self.frame(rows, table.physical_columns)
            return self._frames[key]


def _overlay(table: VersionedTable, base: DataFrame, log: DataFrame, only_inserts: bool) -> DataFrame:
    """`base` with the change rows of `log` applied: one Spark expression."""
    columns = [_column(c.name) for c in table.physical_columns]
    if only_inserts:
        return base.unionAll(log.select(*columns))
    last = Window.partitionBy(*(_column(name) for name in table.identity)).orderBy(
        f.col(COMMIT_VERSION).desc()
    )
    newest = (
        log.where(f.col(CHANGE_TYPE) != UPDATE_PREIMAGE)
        .withColumn("_cq_newest", f.row_number().over(last))
        .where(f.col("_cq_newest") == 1)
    )
    after = newest.where(f.col(CHANGE_TYPE) != DELETE).select(*columns)
    return join_identities(base, newest, table.identity, "left_anti").unionAll(after)


def join_identities(rows: DataFrame, others: DataFrame, identity: Sequence[str], how: str) -> DataFrame:
    """The rows with (`how` is left_semi) or without (left_anti) an identity that one of `others` has."""
    keys = others.select(
        *(_column(name).alias(f"_cq_k{n}") for n, name in enumerate(identity)), f.lit(1).alias("_cq_k")
    )
    same = [_column(name).eqNullSafe(f.col(f"_cq_k{n}")) for n, name in enumerate(identity)]
    return rows.join(keys, reduce(SparkColumn.__and__, same, f.lit(True)), how)


def relevant_changes(
    table: VersionedTable,
    changes: ChangeRuns,
    base: Callable[[], pa.Table | None],
    restrict: Restrict,
    most: int,
) -> pa.Table:
    """The change rows of identities that have a change row with wanted values, or a row in `base` that may have had them.

    Others cannot be in the image with wanted values. At least these: of types whose equality Arrow does not know, all. A row of
    `base` without wanted values may lack its changes. Without a base there is no image, and it is all the same.
    """
    identity = identity_columns(table)
    if changes.num_rows <= most or not all(can(c.type, Use.EQUAL) for c in identity):
        return changes.table
    kinds = {name: changes.schema.field(name).type for name in restrict}
    wanted = changes.having({name: values.cast(kinds[name]) for name, values in restrict.items()})
    if restrict.keys() <= {c.name for c in identity}:
        return wanted  # which has all change rows of an identity, or none of them
    names, rows = [c.name for c in identity], base()
    if rows is None:
        return wanted
    named = pa.concat_tables([rows.select(names), wanted.select(names)])
    return changes.having(restriction(named, identity))


_PLAIN = (
    t.BooleanType,
    t.ByteType,
    t.ShortType,
    t.IntegerType,
    t.LongType,
    t.DecimalType,
    t.StringType,
    t.BinaryType,
)


def _literals(values: pa.Array, kind: t.DataType) -> list[Any] | None:
    """What `isin` takes for the values of a column of type `kind`; None for types of which it makes other ones.

    PySpark sends days and times as Java's, in whose calendar those before 1582 are others, and local times as
    instants in the process's time zone.
    """
    if isinstance(kind, t.DateType):
        return [f.date_from_unix_date(f.lit(days)) for days in values.cast(pa.int32()).to_pylist()]
    if isinstance(kind, t.TimestampType):
        return [f.timestamp_micros(f.lit(micros)) for micros in values.cast(pa.int64()).to_pylist()]
    return values.to_pylist() if isinstance(kind, _PLAIN) else None


def _column(name: str) -> SparkColumn:
    return f.col(quote(name))
