"""What one write transaction says is collected by a UnitOfWork and checked when it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime

import pyarrow as pa

from cq_engine.catalog import capture_statuses
from cq_engine.catalog.commits import to_micros
from cq_engine.catalog.differences import diff
from cq_engine.catalog.groups import carry_on
from cq_engine.catalog.inline import encode, kinds_of
from cq_engine.catalog.model import (
    CaptureStatus,
    CatalogState,
    ChangeSet,
    Cursor,
    DataFile,
    QueryStatus,
    RefreshRecord,
    VersionedTable,
)
from cq_engine.catalog.schema import stale
from cq_engine.catalog.view import (
    Advance,
    Published,
    Replaced,
    Retired,
    Staged,
    Storage,
    View,
    WriteSet,
)
from cq_engine.core.errors import CatalogError, StorageError

__all__ = ["UnitOfWork", "resolve"]


class UnitOfWork:
    """Collects what one write transaction says; `Catalog.write` writes it at the end, all of it or nothing."""

    def __init__(self, new_id: Callable[[], int]) -> None:
        self.writes = WriteSet()
        self._new_id = new_id

    def add_commit(self, version: int, timestamp: datetime) -> None:
        """The commit `version`; TransactionError at the end unless both it and its time follow the newest."""
        self.writes.commits.append((version, to_micros(timestamp)))

    def set_depth(self, version: int, depth: int) -> None:
        """How many triggers have led to the new commit `version`; not said of those of users."""
        if depth:
            self.writes.depths[version] = depth

    def add_changes(self, table: VersionedTable, low: int, high: int, rows: pa.Table) -> None:
        """Inline change rows of the versions [low, high]; nothing where there are no rows.

        `rows` has the table's physical columns, `_change_type` and `_commit_version`; of a delta log also
        `_sequence` and `_refresh_time`.
        """
        if rows.num_rows == 0:
            return
        number = self._new_id()
        changes = ChangeSet(table.id, low, high, rows.num_rows, kinds_of(rows), inline_id=number, id=number)
        self.writes.staged.append(Staged(table.name, changes, encode(rows), rows))

    def add_change_files(
        self,
        table: VersionedTable,
        low: int,
        high: int,
        files: Sequence[DataFile],
        kinds: frozenset[str],
        *,
        insert_only: bool = False,
        rows: pa.Table | None = None,
    ) -> None:
        """Change rows of the versions [low, high] in files; nothing where `files` is empty. Where their `rows` are told, in the
        form of inline ones, these stay in memory for the next readers, while there is room.

        With `insert_only` the files hold plain rows, inserts of version `low` = `high`. Where the table has no other
        change set above its newest snapshot, they become part of its snapshot, which advances to `low`.
        """
        if insert_only and low != high:
            raise StorageError(
                f"insert-only files of {table.name} are of one version, not of {low} to {high}"
            )
        if files:
            changes = ChangeSet(
                table.id,
                low,
                high,
                sum(f.rows for f in files),
                frozenset(kinds),
                files=tuple(files),
                insert_only=insert_only,
                id=self._new_id(),
            )
            self.writes.staged.append(Staged(table.name, changes, rows=rows))

    def advance_snapshot(
        self, table: VersionedTable, version: int, add: Sequence[DataFile], remove: Sequence[str]
    ) -> None:
        """A snapshot of the table at `version`: the newest one's files, without `remove`, with `add`."""
        self.writes.advances.append(Advance(table.id, version, tuple(add), tuple(remove)))

    def set_floor(self, table: VersionedTable, floor: int) -> None:
        """Of a new delta log: the version below which it has no rows because nobody keeps them any more."""
        self.writes.retired.append(Retired(table.id, floor, (), ()))

    def set_state(self, state: CatalogState) -> None:
        """All definitions. What is stored and not in `state` is dropped with its data."""
        self.writes.state = state

    def set_status(self, query: str, status: QueryStatus) -> None:
        self.writes.statuses[query.lower()] = status

    def set_cursor(self, cursor: Cursor, after: Cursor | None = None) -> None:
        """Where a destination stands now. With `after`, ConflictError at the end unless it stands there until then."""
        key = (cursor.query.lower(), cursor.destination)
        self.writes.cursors[key] = cursor
        if after is not None:
            self.writes.after[key] = after

    def drop_cursor(self, query: str, destination: str) -> None:
        self.writes.cursors[(query.lower(), destination)] = None

    def set_capture(self, name: str, status: CaptureStatus, after: CaptureStatus | None = None) -> None:
        """Where a capture stands now. With `after`, ConflictError at the end unless that is its status until then.

        `ticks` is counted on where the writer has not done that. A new capture has the status `CaptureStatus()` unless
        the transaction that creates it says another; a capture that is dropped has none.
        """
        self.writes.captures[name.lower()] = status
        if after is not None:
            self.writes.captured_after[name.lower()] = after

    def add_refresh(self, record: RefreshRecord) -> None:
        self.writes.refreshes.append(record)


def resolve(view: View, writes: WriteSet) -> None:
    """Completes `writes` against the current view, or raises where they cannot follow it. Call it with the commit
    lock held.

    Raises TransactionError (commits out of order), CatalogError (a table that the catalog does not have),
    StorageError (changes at or below a snapshot, a file that is not there to be removed) and ConflictError (a query, a
    destination or a capture that does not stand where the writes begin).
    """
    newest = view.commits
    for place, (version, micros) in enumerate(writes.commits):
        newest.check_next(version, micros)
        if place and writes.commits[place - 1][0] >= version:
            raise StorageError("commit versions of one transaction must increase")
    if writes.state is not None:
        if writes.state.edition not in (None, view.state.edition):
            raise stale("what is defined")
        writes.state = carry_on(view.state, writes.state)
        if writes.state.next_id < view.state.next_id:  # an id is never given twice
            writes.state = replace(writes.state, next_id=view.state.next_id)
        writes.diff = diff(view.state, writes.state)
    put = writes.diff.put_storage if writes.diff is not None else ()
    gone = writes.diff.gone if writes.diff is not None else frozenset()
    new = {table.id for table in put}
    known = view.tables()
    named = {s.changes.table_id: s.name for s in writes.staged}
    named.update({a.table_id: f"table {a.table_id}" for a in writes.advances})
    for table_id, name in named.items():
        if table_id not in new and (table_id not in known or table_id in gone):
            raise CatalogError(f"{name} (versioned table {table_id}) is not in the catalog")
    if writes.state is not None:
        for table in put:
            if table.id not in view.storage:
                name = view.directory_name(table, writes.storage)
                writes.storage.append(Storage(table.id, table.kind, name))
    _check_positions(view, writes)
    capture_statuses.resolve(view, writes)
    with view.lock:
        _promote(view, writes)
        _check_advances(view, writes)
        writes.published = [p for p in writes.published if p.table_id in view.storage]
        _republish(view, writes)
        writes.replaced = [r for r in writes.replaced if _all_there(view, r)]


def _check_positions(view: View, writes: WriteSet) -> None:
    """A refresh begins where its query stands, a delivery where its cursor stands."""
    forgotten = writes.diff.forgotten_queries if writes.diff is not None else ()
    for record in writes.refreshes:
        name = record.query.lower()
        status = view.statuses.get(name)
        if status is not None and name not in forgotten and status.position != record.from_version:
            raise stale(f"the position of {record.query}")
    for key, after in writes.after.items():
        now = view.cursors.get(key)
        stands = (0, 0) if now is None else (now.version, now.sequence)
        if stands != (after.version, after.sequence):
            raise stale(f"the cursor of {after.destination}")


def _republish(view: View, writes: WriteSet) -> None:
    """A snapshot that was published and is advanced to its own version (compacted) has to be published again."""
    for advance in writes.advances:
        storage = view.storage.get(advance.table_id)
        if storage is not None and storage.published_table >= advance.version:
            writes.published.append(Published(advance.table_id, "table", advance.version - 1))


def _all_there(view: View, replaced: Replaced) -> bool:
    """False where the table was dropped, or retention took change sets, while they were flushed."""
    there = {c.id for c in view.layout(replaced.table_id).changes}
    return all(c.id in there for c in replaced.old)


def _promote(view: View, writes: WriteSet) -> None:
    """Insert-only files become snapshot files where the table has no other change above its newest snapshot."""
    by_table: dict[int, list[ChangeSet]] = {}
    for staged in writes.staged:
        by_table.setdefault(staged.changes.table_id, []).append(staged.changes)
    advanced = {a.table_id: a.version for a in writes.advances}
    for table_id, sets in by_table.items():
        layout = view.layout(table_id)
        snapshot = layout.newest_snapshot
        for changes in sets:
            if changes.high <= snapshot:
                raise StorageError(
                    f"changes of version {changes.high} would lie below the snapshot {snapshot}"
                    f" of versioned table {table_id}",
                    detail="nobody would see them",
                )
        plain = all(c.insert_only and c.low == sets[0].low for c in sets)
        if plain and layout.newest_change <= snapshot and table_id not in advanced:
            files = tuple(f for c in sets for f in c.files)
            writes.advances.append(Advance(table_id, sets[0].low, files, ()))


def _check_advances(view: View, writes: WriteSet) -> None:
    fresh: set[str] = set()
    for advance in writes.advances:
        layout = view.layout(advance.table_id)
        if advance.version < layout.newest_snapshot:
            raise StorageError(
                f"snapshot {advance.version} of versioned table {advance.table_id} lies before its newest,"
                f" {layout.newest_snapshot}"
            )
        for path in advance.remove:
            there = layout.files.get(path)
            if there is None or there.removed is not None:
                raise StorageError(f"{path} is not a snapshot file of versioned table {advance.table_id}")
        for file in advance.add:
            if file.path in fresh or file.path in layout.files:
                raise StorageError(f"{file.path} is a snapshot file already")
            fresh.add(file.path)
