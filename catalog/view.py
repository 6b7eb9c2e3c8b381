"""What a process knows of the catalog: everything but the change rows, in memory, so that reading costs microseconds.

A `WriteSet` is what one write transaction says. It is resolved against the view, written to the database
(catalog/persist.py), and only then applied to the view.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

import pyarrow as pa

from cq_engine.catalog.commits import CommitIndex
from cq_engine.catalog.differences import StateDiff, only_readiness, tables_of, versioned_tables
from cq_engine.catalog.groups import owner
from cq_engine.catalog.layouts import TableLayout
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

__all__ = [
    "Published",
    "Replaced",
    "Retired",
    "Staged",
    "StateDiff",
    "Storage",
    "View",
    "WriteSet",
    "tables_of",
    "versioned_tables",
]

LONGEST_NAME = 64
"""Characters of a table's name that its directory has at most."""


@dataclass(frozen=True)
class Storage:
    """Where and how far a versioned table is stored. Outlives a dropped table until its files are to be removed."""

    table_id: int
    kind: str
    directory: str
    """Its name below `tables`, `changes` or `deltas`."""
    floor: int = 0
    next_row_id: int = 1
    published_table: int = -1
    """Snapshot version that the Delta table shows; -1 before the first."""
    published_log: int = 0
    """All changes up to this version are in the published log."""
    dropped: bool = False

    @property
    def named(self) -> bool:
        """Whether the directory has the table's name, and not one with an id, which no other has anyway."""
        return "-" not in self.directory


@dataclass(frozen=True)
class Staged:
    """A change set to be added to the table `name`, with its rows where this process has them: of inline ones, and of files
    that are read next."""

    name: str
    changes: ChangeSet
    data: bytes | None = None
    rows: pa.Table | None = None


@dataclass(frozen=True)
class Advance:
    """A snapshot of a table at `version`."""

    table_id: int
    version: int
    add: tuple[DataFile, ...]
    remove: tuple[str, ...]


@dataclass(frozen=True)
class Replaced:
    """A flush: `new`, in a file, takes the place of inline change sets. `rows`, where they are known, go to the cache."""

    table_id: int
    old: tuple[ChangeSet, ...]
    new: ChangeSet
    rows: pa.Table | None = None


@dataclass(frozen=True)
class Retired:
    """What retention lets go of one table."""

    table_id: int
    floor: int
    files: tuple[str, ...]
    changes: tuple[int, ...]


@dataclass(frozen=True)
class Published:
    """How far a table's face (`table` or `log`) has been published to Delta."""

    table_id: int
    face: str
    version: int


@dataclass
class WriteSet:
    """What one write transaction says."""

    commits: list[tuple[int, int]] = field(default_factory=list)
    staged: list[Staged] = field(default_factory=list)
    advances: list[Advance] = field(default_factory=list)
    replaced: list[Replaced] = field(default_factory=list)
    retired: list[Retired] = field(default_factory=list)
    forgotten: list[int] = field(default_factory=list)
    """Commits of which nothing is kept."""
    read_from: int = 0
    """The version below which nobody reads anything, where that is known."""
    published: list[Published] = field(default_factory=list)
    state: CatalogState | None = None
    diff: StateDiff | None = None
    next_id: int = 0
    """The least id that no versioned table or query has had or will have, where it moves without a state."""
    storage: list[Storage] = field(default_factory=list)
    """Of new tables."""
    erased: list[Storage] = field(default_factory=list)
    """Of dropped tables, whose directories are to be removed."""
    row_ids: dict[int, int] = field(default_factory=dict)
    """Table id → the least row id that nobody has reserved."""
    statuses: dict[str, QueryStatus] = field(default_factory=dict)
    cursors: dict[tuple[str, str], Cursor | None] = field(default_factory=dict)
    after: dict[tuple[str, str], Cursor] = field(default_factory=dict)
    """Where cursors must stand that are moved, where the writer says so."""
    refreshes: list[RefreshRecord] = field(default_factory=list)
    depths: dict[int, int] = field(default_factory=dict)
    """Commit → how many triggers have led to it."""
    callbacks: dict[str, int] = field(default_factory=dict)
    """Name of a callback, in lower case → the process that has it; 0 where none has it any more."""
    captures: dict[str, CaptureStatus] = field(default_factory=dict)
    """Name of a capture, in lower case → its status."""
    captured_after: dict[str, CaptureStatus] = field(default_factory=dict)
    """What the statuses of captures must be when they are written, where the writer says so."""


class View:
    """The catalog in memory. `lock` guards the parts that change in place; it is held for microseconds."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.generation = -1
        """How many writes it has seen: that of the database, or it does not know all of it."""
        self.definitions = 0
        """How many of these concerned definitions: the edition of the state."""
        self.state = CatalogState()
        self.commits = CommitIndex()
        self.layouts: dict[int, TableLayout] = {}
        self.storage: dict[int, Storage] = {}
        self.statuses: dict[str, QueryStatus] = {}
        self.cursors: dict[tuple[str, str], Cursor] = {}
        self.cursor_names: dict[str, set[str]] = {}
        """Query → the destinations that it has cursors for."""
        self.callbacks: dict[str, int] = {}
        """Name of a callback, in lower case → the process that has it."""
        self.captures: dict[str, CaptureStatus] = {}
        """Name of a capture, in lower case → its status."""
        self.directories: set[tuple[str, str]] = set()
        """(kind, lower-case name) of what has been called by its name on disk."""
        self._tables: tuple[CatalogState, dict[int, VersionedTable]] = (self.state, {})

    def tables(self) -> dict[int, VersionedTable]:
        """Every versioned table of the state by id; kept, so that a commit does not look at every definition."""
        state, known = self._tables
        if state is not self.state:
            known = dict(versioned_tables(self.state))
            self._tables = (self.state, known)
        return known

    def status(self, query: str) -> QueryStatus | None:
        """Where a query is; of a member of a query group, where that is."""
        with self.lock:
            return self.statuses.get(owner(self.state, query))

    def cursors_of(self, query: str) -> list[Cursor]:
        """The cursors of a query's destinations."""
        with self.lock:
            names = self.cursor_names.get(query.lower(), ())
            return [self.cursors[query.lower(), name] for name in sorted(names)]

    def put_cursor(self, key: tuple[str, str], cursor: Cursor) -> None:
        """Takes a cursor in."""
        self.cursors[key] = cursor
        self.cursor_names.setdefault(key[0], set()).add(key[1])

    def layout(self, table_id: int) -> TableLayout:
        """The index of a table; an empty one where nothing is stored yet. Call it with `lock` held."""
        found = self.layouts.get(table_id)
        if found is None:
            found = self.layouts[table_id] = TableLayout(table_id)
        return found

    def change_sets(self, table_id: int, ids: Collection[int]) -> tuple[ChangeSet, ...]:
        """Those of a table's change sets that have these ids."""
        wanted = set(ids)
        with self.lock:
            return tuple(c for c in self.layout(table_id).changes if c.id in wanted)

    def directory_name(self, table: VersionedTable, others: Iterable[Storage] = ()) -> str:
        """A directory name for a new table, which no other has had: its own if that is short, plain ASCII and was
        never given, else with its id."""
        if table.kind in ("state", "result"):
            return f"{table.kind}-{table.id}"
        plain = re.sub(r"[^A-Za-z0-9_]", "_", table.name).lstrip("_")
        given = {s.directory.lower() for s in others if s.kind == table.kind}
        taken = plain.lower() in given or (table.kind, plain.lower()) in self.directories
        free = plain == table.name and len(plain) <= LONGEST_NAME and not taken
        return plain if free else f"{plain[:LONGEST_NAME] or 'table'}-{table.id}"

    def apply(self, writes: WriteSet) -> None:
        """Shows what the database now holds. The commit comes last: who sees it sees all that belongs to it."""
        with self.lock:
            self._apply_state(writes)
            self._apply_storage(writes)
            for staged in writes.staged:
                self.layout(staged.changes.table_id).add_change(staged.changes)
            for advance in writes.advances:
                self.layout(advance.table_id).advance(advance.version, advance.add, advance.remove)
            for replaced in writes.replaced:
                layout = self.layout(replaced.table_id)
                layout.replace_changes((c.id for c in replaced.old), replaced.new)
            for retired in writes.retired:
                self.layout(retired.table_id).forget(retired.floor, retired.files, retired.changes)
                self._store(retired.table_id, floor=retired.floor)
            self.statuses.update(writes.statuses)
            self.captures.update(writes.captures)
            for key, cursor in writes.cursors.items():
                if cursor is None:
                    self.cursors.pop(key, None)
                    self.cursor_names.get(key[0], set()).discard(key[1])
                else:
                    self.put_cursor(key, cursor)
            for name, process in writes.callbacks.items():
                self.callbacks[name] = process
                if not process:
                    del self.callbacks[name]
            self.generation += 1
            for version, micros in writes.commits:
                self.commits.add(version, micros)
            if writes.forgotten:
                self.commits = self.commits.without(writes.forgotten)

    def _apply_state(self, writes: WriteSet) -> None:
        if writes.state is None or writes.diff is None:
            return
        for query in writes.diff.forgotten_queries:
            self.statuses.pop(query, None)
            for destination in self.cursor_names.pop(query, ()):
                del self.cursors[query, destination]
        for capture in writes.diff.removed_captures:
            self.captures.pop(capture, None)
        for table_id in writes.diff.gone:
            self.layouts.pop(table_id, None)
            self._store(table_id, dropped=True)
        known = self.tables()
        for table_id in writes.diff.gone:
            known.pop(table_id, None)
        known.update((table.id, table) for table in writes.diff.put_storage)
        self.definitions += 1
        kept = only_readiness(self.state, writes.diff)
        self._show(replace(writes.state, edition=self.state.edition if kept else self.definitions), known)

    def _apply_storage(self, writes: WriteSet) -> None:
        if writes.next_id > self.state.next_id:
            self._show(replace(self.state, next_id=writes.next_id), self.tables())
        for storage in writes.storage:
            self.storage[storage.table_id] = storage
            if storage.named:
                self.directories.add((storage.kind, storage.directory.lower()))
        for storage in writes.erased:
            self.storage.pop(storage.table_id, None)
            self.layouts.pop(storage.table_id, None)
        for table_id, row_id in writes.row_ids.items():
            self._store(table_id, next_row_id=row_id)
        for published in writes.published:
            self._store(published.table_id, **{f"published_{published.face}": published.version})

    def _show(self, state: CatalogState, tables: dict[int, VersionedTable]) -> None:
        self._tables = (state, tables)
        self.state = state

    def _store(self, table_id: int, **changed: int | bool) -> None:
        if table_id in self.storage:
            self.storage[table_id] = replace(self.storage[table_id], **changed)  # type: ignore[arg-type]
