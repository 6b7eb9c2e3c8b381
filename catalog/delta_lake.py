"""Publishing to Delta Lake: the open face of the warehouse.

| Delta table | rows |
|---|---|
| `tables/<name>` | a base table as of its newest snapshot (COMPACT TABLE and bulk loads into a compact table advance it), its columns |
| `changes/<name>` | the change log of a base table: its columns, `_row_id` where it has no primary key, `_change_type`, `_commit_version`, `_commit_timestamp` |
| `deltas/<name>` | the delta log of a continuous query: the same, with `_sequence` and `_refresh_time` |

`_row_id` stands in logs because it alone says which before-image belongs to which after-image; `tables` leave it out.
Every Delta commit carries the application transaction `cq-engine` and, in its metadata, `cq_engine.commit_version`:
the newest commit version that the Delta table then holds. Data files lie inside the Delta tables and are not copied,
but for insert-only files, which serve the snapshot and are copied for the log. Intervals cannot be published.

Publishing can be repeated and interrupted anywhere: Delta is asked what it has before anything is added.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from cq_engine.catalog.attempts import root_of
from cq_engine.catalog.delta_compaction import discard, small_files, write_merged
from cq_engine.catalog.delta_durable import flush_log, mend_log
from cq_engine.catalog.delta_files import add_action, copy_inserts, delta_schema, relative, remove_action
from cq_engine.catalog.flush import flush, log_columns
from cq_engine.catalog.model import ChangeSet, DataFile, Layout, VersionedTable
from cq_engine.catalog.store import Catalog
from cq_engine.catalog.view import Published, WriteSet, versioned_tables
from cq_engine.core import faults
from cq_engine.core.columns import Column
from cq_engine.core.disk import disk_error
from cq_engine.core.keeping import keep
from cq_engine.core.troubles import Troubles

__all__ = ["APPLICATION", "Publisher"]

APPLICATION = "cq-engine"


class Publisher:
    """Publishes what is committed. One per writing process; `publish` may be called from any thread."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self._handles: dict[tuple[int, str], DeltaTable] = {}
        self._lock = threading.Lock()

    def publish(self) -> int:
        """Flushes all inline changes, then publishes every table up to its newest flushed version. Returns the
        number of Delta commits.

        Raises StorageError, when all others are published, for the tables of which a data file or the Delta table is not
        as the catalog says.
        """
        with self._lock:
            faults.point("publish.begin")
            troubles = Troubles()
            if flush(self.catalog, troubles):
                faults.point("publish.file")
            tables = versioned_tables(self.catalog.state)
            self.forget_gone()
            commits = 0
            for table in tables.values():
                if table.kind in ("base", "changes", "delta"):
                    with troubles.of(table.name):
                        commits += self._publish(table)
                    if table.name in troubles.found:  # the next time, it is looked at anew
                        self._handles = {k: h for k, h in self._handles.items() if k[0] != table.id}
            troubles.check("publishing to Delta Lake")
            return commits

    def forget_gone(self) -> None:
        """Takes the Delta tables of what is gone out of memory."""
        there = versioned_tables(self.catalog.state)
        keep(self._handles, {key for key in list(self._handles) if key[0] in there})

    def pending(self) -> tuple[int, int]:
        """Inline change sets that are not flushed yet, and their rows: for deciding when to publish."""
        view = self.catalog.view
        with view.lock:
            waiting = [c.rows for t in view.layouts.values() for c in t.changes if c.inline_id is not None]
        return len(waiting), sum(waiting)

    def close(self) -> None:
        with self._lock:
            self._handles.clear()

    # ------------------------------------------------------------ one table

    def _publish(self, table: VersionedTable) -> int:
        try:
            commits = self._publish_log(table)
            return commits + (self._publish_table(table) if table.kind == "base" else 0)
        except (DeltaError, OSError) as error:
            raise disk_error(f"publish {table.name} to Delta Lake", error, self.catalog.warehouse) from error

    def _publish_log(self, table: VersionedTable) -> int:
        catalog = self.catalog
        storage = catalog.storage_of(table)
        pending = self._flushed_change_sets(table.id, storage.published_log)
        if not pending and (storage.published_log or (table.id, "log") in self._handles):
            return 0
        catalog.check_lease()
        columns = log_columns(table)
        root = root_of(storage, "log")
        found = self._open((table.id, "log"), root, columns, f"{table.name} changes")
        if found is None:
            return 0
        handle, is_new = found
        if is_new and storage.published_log:  # somebody removed the Delta table: build it again
            pending = self._flushed_change_sets(table.id, 0)
        pending = [c for c in pending if c.high > (handle.transaction_version(APPLICATION) or 0)]
        files = [file for changes in pending for file in self._log_files(table, changes, root)]
        actions: list[AddAction | RemoveAction] = [
            *catalog.store.together(lambda file: add_action(catalog.store, root, file, columns), files)
        ]
        high = max((c.high for c in pending), default=0)
        if actions:
            self._commit_log(handle, root, actions, high)
            faults.point("publish.committed")
        done = max(high, handle.transaction_version(APPLICATION) or 0)
        if done > storage.published_log:
            catalog.write_set(WriteSet(published=[Published(table.id, "log", done)]))
        return (1 if actions else 0) + self._compact_log(handle, table, root)

    def _compact_log(self, handle: DeltaTable, table: VersionedTable, root: str) -> int:
        """Makes one of many small files of a published log. Where another writer comes first, the next publication does."""
        store, columns = self.catalog.store, log_columns(table)
        files = small_files(handle, self.catalog.limits)
        if not files:
            return 0
        merged = write_merged(self.catalog, table, root, files)
        faults.point("publish.file")
        actions: list[AddAction | RemoveAction] = [remove_action(file.path, news=False) for file in files]
        actions.append(add_action(store, root, merged, columns, news=False))
        try:
            self.catalog.check_lease()
            self._commit(handle, root, actions, handle.transaction_version(APPLICATION) or 0)
        except CommitFailedError:
            handle.update_incremental()
            if relative(merged, root) not in _named(handle):  # else it was ours, and only the answer was lost
                discard(store, merged.path)
                return 0
        faults.point("publish.committed")
        return 1

    def _flushed_change_sets(self, table_id: int, after: int) -> list[ChangeSet]:
        """The change sets above the version `after` whose versions have no inline rows any more."""
        view = self.catalog.view
        with view.lock:
            waiting = view.layout(table_id).changes_after(after)
        end = min((c.low for c in waiting if c.inline_id is not None), default=None)
        return [c for c in waiting if end is None or c.high < end]

    def _log_files(self, table: VersionedTable, changes: ChangeSet, root: str) -> Iterable[DataFile]:
        if not changes.insert_only:
            return changes.files
        copies = copy_inserts(self.catalog, table, changes, root)
        faults.point("publish.file")
        return copies

    def _commit_log(
        self, handle: DeltaTable, root: str, actions: list[AddAction | RemoveAction], version: int
    ) -> None:
        for last in (False,) * (self.catalog.limits.publish_tries - 1) + (True,):
            try:
                self._commit(handle, root, actions, version)
                return
            except CommitFailedError:
                self.catalog.check_lease()  # it may be our successor who was faster
                handle.update_incremental()
                if (handle.transaction_version(APPLICATION) or 0) >= version:
                    return
                if last:
                    raise

    def _publish_table(self, table: VersionedTable) -> int:
        catalog = self.catalog
        storage = catalog.storage_of(table)
        layout = catalog.layout(table.id, catalog.newest_version)
        if layout.base <= storage.published_table:
            return 0
        catalog.check_lease()
        root = root_of(storage, "snapshot")
        found = self._open((table.id, "table"), root, table.columns, table.name)
        if found is None:
            return 0
        commits = self._commit_snapshot(found[0], layout, root, table.columns)
        catalog.write_set(WriteSet(published=[Published(table.id, "table", layout.base)]))
        return commits

    def _commit_snapshot(
        self, handle: DeltaTable, layout: Layout, root: str, columns: tuple[Column, ...]
    ) -> int:
        """Makes the Delta table hold exactly the snapshot's files."""
        store = self.catalog.store
        wanted = {relative(file, root): file for file in layout.snapshot}
        for last in (False,) * (self.catalog.limits.publish_tries - 1) + (True,):
            there = _named(handle)
            new = [file for path, file in wanted.items() if path not in there]
            actions: list[AddAction | RemoveAction] = [
                *store.together(lambda file: add_action(store, root, file, columns), new)
            ]
            actions += [remove_action(path) for path in sorted(there - wanted.keys())]
            if not actions:
                return 0
            try:
                self._commit(handle, root, actions, layout.base)
                faults.point("publish.committed")
                return 1
            except CommitFailedError:
                self.catalog.check_lease()  # it may be our successor who was faster
                handle.update_incremental()
                if last:
                    raise
        return 0

    # ------------------------------------------------------------ Delta tables

    def _open(
        self, key: tuple[int, str], root: str, columns: tuple[Column, ...], name: str
    ) -> tuple[DeltaTable, bool] | None:
        """The Delta table at `root` with (at least) `columns`, and whether it was made now; None where Delta Lake
        does not have their types."""
        schema = delta_schema(columns)
        if schema is None:
            return None
        store = self.catalog.store
        uri, options = store.uri(root), store.delta_options
        is_new = False
        handle = self._handles.get(key)
        if handle is None:
            mend_log(store, root)
            is_new = not DeltaTable.is_deltatable(uri, options)
            if is_new:
                handle = DeltaTable.create(uri, schema, name=name, storage_options=options)
            else:
                handle = DeltaTable(uri, storage_options=options)
            self._handles[key] = handle
        before = handle.version()
        _add_columns(handle, schema, self.catalog.limits.publish_tries)
        if handle.version() > before:
            flush_log(store, root, before + 1)
        return handle, is_new

    def _commit(
        self,
        handle: DeltaTable,
        root: str,
        actions: list[AddAction | RemoveAction],
        version: int,
    ) -> None:
        """One durable Delta commit, as a compare-and-set on the version that `handle` has seen."""
        faults.point("publish.commit")
        properties = CommitProperties(
            custom_metadata={"cq_engine.commit_version": version},
            max_commit_retries=0,
            app_transactions=[Transaction(APPLICATION, version)],
        )
        seen = handle.version()
        handle.create_write_transaction(actions, "append", handle.schema(), commit_properties=properties)
        handle.update_incremental()
        if handle.version() % self.catalog.limits.checkpoint_commits == 0:
            handle.create_checkpoint()
        flush_log(self.catalog.store, root, seen and seen + 1)  # with the first one, what made the table


def _named(handle: DeltaTable) -> set[str]:
    """The data files of the Delta table's version, relative to it."""
    return set(pa.table(handle.get_add_actions()).column("path").to_pylist())


def _add_columns(handle: DeltaTable, schema: Schema, tries: int) -> None:
    for last in (False,) * (tries - 1) + (True,):
        there = {field.name for field in handle.schema().fields}
        missing = [field for field in schema.fields if field.name not in there]
        if not missing:
            return
        try:
            handle.alter.add_columns(missing)
        except CommitFailedError:  # somebody else, such as VACUUM, has changed the table's properties
            if last:
                raise
        handle.update_incremental()
