"""A snapshot and the changes pending over it: what a transaction sees, and how effects of statements come in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from cq_engine.catalog.attempts import Attempt
from cq_engine.catalog.change_rows import ROW_ID
from cq_engine.catalog.model import CatalogState, DataFile, Table
from cq_engine.context import staging
from cq_engine.context.services import Services
from cq_engine.core.arrays import array
from cq_engine.core.errors import CQError
from cq_engine.core.values import python_rows
from cq_engine.spark.arrow_io import few_rows, to_arrow
from cq_engine.spark.persisting import persisted
from cq_engine.spark.settings import wide_settings
from cq_engine.spark.sql import translate_errors
from cq_engine.spark.widths import Size, size_of_files, size_of_rows
from cq_engine.storage.file_look_ups import Restrict, filter_rows
from cq_engine.storage.rows import conform, empty, identity_columns, identity_keys
from cq_engine.storage.sizes import size_at
from cq_engine.transactions import bulk, dml
from cq_engine.transactions.merge import MergeEffect
from cq_engine.transactions.write_set import BulkPending, SmallPending

__all__ = ["Workspace"]


class Workspace:
    """Effects of up to `driver_rows` rows are taken by the driver, larger ones are staged by executors."""

    def __init__(self, services: Services, snapshot: int, driver_rows: int) -> None:
        self.services = services
        self.snapshot = snapshot
        self.state: CatalogState = services.catalog.state
        self.read: set[str] = set()
        """Names of the tables that DML has read."""
        self.pending: dict[str, SmallPending | BulkPending] = {}
        self._driver_rows = driver_rows
        self._seen = Size()
        """How much the tables have that statements have looked at."""
        self._attempt: Attempt | None = None
        self._scratch: Attempt | None = None

    # ------------------------------------------------------------ what the transaction sees

    def view(self, table: Table, restrict: Restrict | None = None) -> DataFrame:
        """The physical rows as this transaction sees them; with `restrict` at least those with wanted values."""
        reader = self.services.reader
        pending = self.pending.get(table.name)
        if restrict and not isinstance(pending, BulkPending):
            rows = reader.restricted_image(table.storage, self.snapshot, restrict)
            if rows is not None:
                rows = rows if pending is None else pending.overlay(rows)
                return reader.frame(filter_rows(rows, restrict), table.storage.physical_columns)
        self._seen += size_at(self.services.catalog, [table.storage], self.snapshot)
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

    # ------------------------------------------------------------ how wide executors work

    def _size(self) -> Size:
        """How much statements have looked at, and what is pending in files."""
        pending = (each for each in self.pending.values() if isinstance(each, BulkPending))
        return sum((size_of_files((*each.plain, *each.signed)) for each in pending), self._seen)

    @contextmanager
    def _wide(self) -> Iterator[None]:
        """A block whose shuffles are as wide as what it works on is large."""
        size = self._size()
        if size.rows <= self._driver_rows:
            yield
            return
        with wide_settings(self.services.spark(), size.bytes, self.services.limits):
            yield

    def _once(self, frame: DataFrame) -> AbstractContextManager[DataFrame]:
        """A block in which the rows are computed once, where that takes time."""
        return persisted(frame) if self._size().rows > self._driver_rows else nullcontext(frame)

    # ------------------------------------------------------------ files

    def attempt(self) -> Attempt:
        """The attempt whose files the commit will own."""
        if self._attempt is None:
            self._attempt = self.services.catalog.attempt("transaction", by_any=True)
        return self._attempt

    def scratch(self) -> Attempt:
        """The attempt of files that end with the transaction."""
        if self._scratch is None:
            self._scratch = self.services.catalog.attempt("staging", by_any=True)
        return self._scratch

    def hand_over(self) -> Attempt | None:
        """The attempt of `attempt()`, if there was need of one. From now on its files are the catalog's: a write that
        fails may still have become durable, so only recovery may remove them."""
        attempt, self._attempt = self._attempt, None
        return attempt

    def _forget(self) -> None:
        """Drops what is pending, with its files."""
        for attempt in (self._scratch, self._attempt):
            if attempt is not None:
                attempt.abandon()
        self._scratch = self._attempt = None
        self.pending = {}

    # ------------------------------------------------------------ effects

    def _absorb(self, effect: dml.Effect) -> int:
        """Takes an effect in; the number of rows that it inserted, updated or deleted."""
        table = effect.table
        with self._wide():
            if effect.rows is not None:
                return self._insert_arrow(table, conform(effect.rows, table.columns), effect.overwrite)
            if effect.inserts is not None:
                with self._once(effect.inserts) as rows:
                    return self._insert_frame(table, rows, effect.overwrite)
            if effect.pairs is not None:
                with self._once(effect.pairs) as pairs:
                    return self._change(table, replace(effect, pairs=pairs))
            return self._insert_arrow(table, empty(table.columns), overwrite=True)

    def _insert_frame(self, table: Table, frame: DataFrame, overwrite: bool) -> int:
        pending = self.pending.get(table.name)
        if not isinstance(pending, BulkPending):
            rows = few_rows(frame, self._driver_rows)
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
            rows = few_rows(effect.pairs, self._driver_rows)
            if rows is not None:
                return self._change_small(
                    table, rows, check, not check or getattr(effect, "check_cardinality", True)
                )
        if not check:
            return self._stage_signed(table, [bulk.signed_pairs(table, effect.pairs)])
        with self._with_fresh_ids(table, effect.pairs) as pairs:
            checked = self._checked_merge(table, pairs, getattr(effect, "check_cardinality", True))
            return self._stage_signed(table, [bulk.signed_pairs(table, checked)])

    @contextmanager
    def _with_fresh_ids(self, table: Table, pairs: DataFrame) -> Iterator[DataFrame]:
        """Pairs whose new rows have hidden identities where the table has them. Executors keep the pairs, so that it is known in
        which partitions new rows are."""
        if not table.storage.has_row_id:
            yield pairs
            return
        with nullcontext(pairs) if pairs.is_cached else persisted(pairs) as kept:
            new = kept.where(f.col("_kind") == "I").select(f.spark_partition_id().alias("part"))
            with translate_errors():
                (last,) = to_arrow(new.agg(f.max("part").alias("last"))).column("last").to_pylist()
            if last is None:
                yield kept
                return
            name = f"_n{len(table.columns)}"
            fresh = staging.fresh_row_ids(self.services, table, last + 1)
            yield kept.withColumn(name, f.when(f.col("_kind") == "I", fresh).otherwise(f.col(name)))

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
        keys = identity_keys(removed, identity_columns(table.storage))
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
        with translate_errors():
            twice = to_arrow(acting.groupBy(*keys).count().where("count > 1").limit(1))
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
        if pending.rows > 4 * self._driver_rows:
            self._stage_signed(table, [])

    def _with_row_ids(self, table: Table, rows: pa.Table) -> pa.Table:
        first = self.services.catalog.reserve_row_ids(table.storage.id, rows.num_rows) if rows.num_rows else 0
        return rows.append_column(ROW_ID, array(range(first, first + rows.num_rows), pa.int64()))

    def _stage_insert(
        self, table: Table, frame: DataFrame, size: Size | None, *, in_ranges: bool = False
    ) -> int:
        pending = self.pending.get(table.name)
        files = self._stage_plain(self.attempt(), table, frame, size, in_ranges=in_ranges)
        count = sum(file.rows for file in files)
        if isinstance(pending, BulkPending) and not pending.signed:
            self.pending[table.name] = BulkPending(table, plain=(*pending.plain, *files))
        elif pending is None:
            self.pending[table.name] = BulkPending(table, plain=tuple(files))
        else:
            added = bulk.sign(self.services.reader, BulkPending(table, plain=tuple(files)))
            self._stage_signed(table, [added])
            staging.discard(self.services, files)
        return count

    def _stage_plain(
        self, attempt: Attempt, table: Table, frame: DataFrame, size: Size | None, *, in_ranges: bool = False
    ) -> list[DataFile]:
        """The rows in files; executors keep and count them first where nobody knows how many they are, but for ranges."""
        if (in_ranges and not table.storage.has_row_id) or size is not None:
            return staging.stage_plain(
                self.services, attempt, table, frame, size or Size(), in_ranges=in_ranges
            )
        with persisted(frame) as kept, translate_errors():
            known = size_of_rows(kept.count(), table.columns)
            return staging.stage_plain(self.services, attempt, table, kept, known)

    def _all_removed(self, table: Table) -> DataFrame:
        self.read.add(table.name)
        return self.view(table).withColumn(staging.SIGN, f.lit(-1))

    def _remove_all(self, table: Table, frame: DataFrame) -> None:
        """INSERT OVERWRITE with many rows."""
        files = self._stage_plain(self.scratch(), table, frame, None)
        added = bulk.sign(self.services.reader, BulkPending(table, plain=tuple(files)))
        self._stage_signed(table, [added, self._all_removed(table)])

    def _stage_signed(self, table: Table, parts: Sequence[DataFrame]) -> int:
        """Adds signed rows to what is pending, in files; -1, because rows are not counted on the way."""
        pending = self.pending.get(table.name)
        before = [] if pending is None else [bulk.sign(self.services.reader, pending)]
        frame = bulk.net(table, [*before, *parts])
        files = staging.stage_rows(self.services, self.scratch(), table, frame, "log")
        self.pending[table.name] = BulkPending(table, signed=tuple(files))
        if isinstance(pending, BulkPending):
            staging.discard(self.services, (*pending.plain, *pending.signed))
        return -1


def _side(rows: pa.Table, prefix: str, columns: Sequence[Any]) -> pa.Table:
    picked = rows.select([f"{prefix}{n}" for n in range(len(columns))])
    return conform(picked.rename_columns([c.name for c in columns]), columns)


def _cardinality(table: Table, row: pa.Table) -> CQError:
    values = ", ".join(str(v) for v in python_rows(row)[0].values())
    return CQError(
        f"MERGE INTO {table.name} would change one row several times",
        detail=f"more than one source row matches the target row ({values})",
        hint="make the source unique by the columns of the ON condition",
    )
