"""Compaction: changes are merged into the snapshot, so that reads start from files and the uncompacted log stays short."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from pyspark.sql import DataFrame

from cq_engine.catalog.attempts import Attempt
from cq_engine.catalog.differences import versioned_tables
from cq_engine.catalog.model import DataFile, Layout, VersionedTable
from cq_engine.context.services import Services
from cq_engine.core import faults
from cq_engine.core.columns import quote
from cq_engine.core.errors import CatalogError
from cq_engine.core.keeping import keep
from cq_engine.core.priority import yielding
from cq_engine.maintenance.copy_on_write import Merge, merged_rows, plan_merge, stats_columns, write_merge
from cq_engine.spark.settings import wide_settings
from cq_engine.spark.widths import Size, cores, file_count, size_of_files, size_of_rows
from cq_engine.storage.change_rows import retry_reading
from cq_engine.storage.data_files import write_files
from cq_engine.storage.sizes import size_at

__all__ = ["Compactor"]


class Compactor:
    """Rewrites snapshots, one at a time of a table, beside commits and refreshes: only the end takes the catalog.

    Nothing is removed here: a reader at an earlier version still finds the snapshot at or below it.
    """

    def __init__(self, services: Services) -> None:
        self.services = services
        self._later: dict[int, int] = {}
        """The weight of a table's uncompacted log at which merging it is considered again."""
        self._logs: dict[int, tuple[int, int, int]] = {}
        """By table: its newest snapshot, the version up to which its uncompacted log was weighed, and the weight."""
        self._locks: dict[int, threading.Lock] = {}
        self._guard = threading.Lock()

    def forget_gone(self) -> None:
        """Takes what is known of tables that are gone out of memory. No number of a table comes twice."""
        there = versioned_tables(self.services.catalog.state)
        keep(self._later, there)
        keep(self._logs, there)
        with self._guard:
            keep(self._locks, there)

    # ------------------------------------------------------------ when

    def is_due(self, table: VersionedTable, at: int) -> bool:
        """Whether the changes up to the version `at` are to be merged now."""
        limits = self.services.limits
        if self._estimate(table, at) <= limits.compact_rows:
            return False
        layout = self.services.catalog.layout(table.id, at)
        weight = self.weight(layout, at)
        if weight <= limits.compact_rows or weight < self._later.get(table.id, 0):
            return False
        most = limits.compact_share * weight
        if weight > limits.compact_long_rows or most > sum(file.rows for file in layout.snapshot):
            return True
        merge = self._plan(table, at)
        if merge is not None and merge.rows <= most:
            return True
        self._later[table.id] = min(limits.compact_long_rows, weight + weight // 2)
        return False

    def _estimate(self, table: VersionedTable, at: int) -> int:
        """About the weight of the table's uncompacted log, from the change sets that came since it was asked for last."""
        catalog = self.services.catalog
        view = catalog.view
        with view.lock:
            base = view.layout(table.id).newest_snapshot
        known = self._logs.get(table.id)
        if known is None or known[0] != base or known[1] > at:
            weight = self.weight(catalog.layout(table.id, at), at)
        else:
            weight = known[2] + sum(s.rows for s in catalog.changes(table.id, known[1] + 1, at))
        self._logs[table.id] = (base, at, weight)
        return weight

    def postpone(self, table: VersionedTable, at: int) -> None:
        """Not before the uncompacted log has doubled."""
        self._later[table.id] = 2 * self.weight(self.services.catalog.layout(table.id, at), at)

    def weight(self, layout: Layout, at: int) -> int:
        """What the changes of a layout up to `at` cost a look-up, in rows."""
        cached, limits = self.services.catalog.cached, self.services.limits
        sets = [s for s in layout.changes if s.low <= at]
        files = sum(len(s.files) for s in sets if s.files and cached(s) is None)
        more = max(0, files - limits.free_change_files)
        return sum(s.rows for s in sets) + limits.change_file_weight * more

    # ------------------------------------------------------------ what

    def merge(
        self, table: VersionedTable, version: int | None = None, *, in_background: bool = False
    ) -> bool:
        """Brings the snapshot to `version` (default: the newest commit) by rewriting what changed; False where nothing
        has changed since the snapshot. `in_background`, nobody waits for it.

        Raises CatalogError where the table is dropped meanwhile.
        """
        catalog = self.services.catalog
        with self._only(table):
            at = catalog.newest_version if version is None else version
            if not self._is_behind(table, at):
                return False
            merge = self._plan(table, at)
            attempt = catalog.attempt("compact")
            with _abandon_on_error(attempt):
                if merge is None:
                    files, removed = self._whole(table, at, attempt)
                else:
                    files = [*merge.kept, *self._write_merge(merge, attempt, in_background=in_background)]
                    removed = merge.removed
            self._advance(table, at, files, removed, attempt)
        return True

    def compact(self, table: VersionedTable, version: int | None = None) -> None:
        """Writes the image at `version` (default: the newest commit) as the table's snapshot: all of its files.

        Raises CatalogError where the table is dropped meanwhile.
        """
        catalog = self.services.catalog
        with self._only(table):
            at = catalog.newest_version if version is None else version
            if not self._is_behind(table, at):
                return
            attempt = catalog.attempt("compact")
            with _abandon_on_error(attempt):
                files, removed = self._whole(table, at, attempt)
            self._advance(table, at, files, removed, attempt)

    def _is_behind(self, table: VersionedTable, at: int) -> bool:
        """Whether something came since the newest snapshot, which another process may have made meanwhile."""
        catalog = self.services.catalog
        view = catalog.view
        with view.lock:
            newest = view.layout(table.id).newest_snapshot
        return newest < at and any(s.low <= at for s in catalog.layout(table.id, at).changes)

    def _plan(self, table: VersionedTable, at: int) -> Merge | None:
        @retry_reading
        def plan() -> Merge | None:
            layout = self.services.catalog.layout(table.id, at)
            return plan_merge(self.services.reader, table, layout, at)

        planned: Callable[[], Merge | None] = plan
        return planned()

    def _whole(
        self, table: VersionedTable, at: int, attempt: Attempt
    ) -> tuple[list[DataFile], Sequence[str]]:
        """Writes the whole image; its files, and those that they replace."""
        catalog = self.services.catalog
        layout = catalog.layout(table.id, at)
        size = size_at(catalog, [table], at)
        with wide_settings(self.services.spark(), size.bytes, self.services.limits):
            image = self.services.reader.image(table, at)
            files = self._write(table, image, size, attempt, f"v{at}-whole")
        return files, [f.path for f in layout.snapshot]

    def _write_merge(self, merge: Merge, attempt: Attempt, *, in_background: bool) -> list[DataFile]:
        """The new files of a merge, in Arrow; by executors where that are many rows."""
        if merge.rows <= self.services.limits.merge_driver_rows:
            write = partial(write_merge, self.services.reader, merge, attempt)
            return yielding(write) if in_background else write()
        files = size_of_files(file for file, _ in merge.rewritten)
        size = files + size_of_rows(merge.added.num_rows, merge.table.physical_columns)
        with wide_settings(self.services.spark(), size.bytes, self.services.limits):
            rows = merged_rows(self.services.reader, merge)
            return self._write(merge.table, rows, size, attempt, f"v{merge.at}-merged")

    def _write(
        self, table: VersionedTable, rows: DataFrame, size: Size, attempt: Attempt, name: str
    ) -> list[DataFile]:
        """Rows as files of a snapshot, in the order of the clustering, by executors."""
        limits = self.services.limits
        keys = [quote(name) for name in (table.cluster_by or table.identity)]
        count = file_count(size, cores(self.services.spark()), limits, limits.snapshot_file_rows)
        if keys:
            rows = rows.repartitionByRange(count, *keys).sortWithinPartitions(*keys)
        else:
            rows = rows.repartition(count)
        directory = attempt.directory(table, "snapshot") + f"/{name}"
        store, stats = self.services.catalog.store, stats_columns(table)
        return write_files(store, rows, directory, stats, limits, small_groups=True)

    def _advance(
        self, table: VersionedTable, at: int, add: Sequence[DataFile], remove: Sequence[str], attempt: Attempt
    ) -> None:
        """The new snapshot becomes visible: the only moment that others wait for."""
        catalog = self.services.catalog
        faults.point("compact.staged")
        with catalog.lock, catalog.write(attempt) as unit:
            if table.id not in catalog.view.tables():
                raise CatalogError(f"{table.name} was dropped or built anew while it was compacted")
            unit.advance_snapshot(table, at, add, remove)
        faults.point("compact.after_catalog")
        self._later.pop(table.id, None)

    @contextmanager
    def _only(self, table: VersionedTable) -> Iterator[None]:
        with self._guard:
            lock = self._locks.setdefault(table.id, threading.Lock())
        with lock:
            yield


@contextmanager
def _abandon_on_error(attempt: Attempt) -> Iterator[None]:
    """Removes the attempt's files where the block, which comes before its transaction, raises."""
    try:
        yield
    except BaseException:
        attempt.abandon()
        raise
