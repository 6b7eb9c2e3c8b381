"""What a process knows of the catalog: everything but the change rows, in memory, so that reading costs microseconds.

`Facts` are what one write transaction says. They are resolved against the view, written to the database
(catalog/persist.py), and only then applied to the view.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

from cq_engine.catalog.commits import CommitIndex
from cq_engine.catalog.layouts import TableLayout
from cq_engine.catalog.model import (
    CatalogState,
    ChangeSet,
    ContinuousQuery,
    Cursor,
    DataFile,
    QueryStatus,
    RefreshRecord,
    SqlFunction,
    Table,
    VersionedTable,
)

__all__ = [
    "Facts",
    "Published",
    "Replaced",
    "Retired",
    "Staged",
    "StateDiff",
    "Storage",
    "View",
    "versioned_tables",
]


@dataclass(frozen=True)
class Storage:
    """Where and how far a versioned table is stored. Outlives a dropped table until its files are gone."""

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


@dataclass(frozen=True)
class Staged:
    """A change set to be added, with its rows where they are inline."""

    table: VersionedTable
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
    """A flush: `new`, in a file, takes the place of inline change sets. `rows` go to the cache."""

    table_id: int
    old: tuple[ChangeSet, ...]
    new: ChangeSet
    rows: pa.Table


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


@dataclass(frozen=True)
class StateDiff:
    """What a new state changes. `gone` are ids of versioned tables."""

    put_tables: tuple[Table, ...]
    put_queries: tuple[ContinuousQuery, ...]
    removed_tables: tuple[str, ...]
    removed_queries: tuple[str, ...]
    forgotten_queries: tuple[str, ...]
    """Removed, or replaced by another query of the same name: status, cursors and refreshes go."""
    gone: frozenset[int]
    put_functions: tuple[SqlFunction, ...] = ()
    removed_functions: tuple[str, ...] = ()


@dataclass
class Facts:
    """What one write transaction says."""

    commits: list[tuple[int, int]] = field(default_factory=list)
    staged: list[Staged] = field(default_factory=list)
    advances: list[Advance] = field(default_factory=list)
    replaced: list[Replaced] = field(default_factory=list)
    retired: list[Retired] = field(default_factory=list)
    published: list[Published] = field(default_factory=list)
    state: CatalogState | None = None
    diff: StateDiff | None = None
    storage: list[Storage] = field(default_factory=list)
    statuses: dict[str, QueryStatus] = field(default_factory=dict)
    cursors: dict[tuple[str, str], Cursor | None] = field(default_factory=dict)
    refreshes: list[RefreshRecord] = field(default_factory=list)


class View:
    """The catalog in memory. `lock` guards the parts that change in place; it is held for microseconds."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.generation = -1
        self.state = CatalogState()
        self.commits = CommitIndex()
        self.layouts: dict[int, TableLayout] = {}
        self.storage: dict[int, Storage] = {}
        self.statuses: dict[str, QueryStatus] = {}
        self.cursors: dict[tuple[str, str], Cursor] = {}
        self.next_change_id = 1

    def layout(self, table_id: int) -> TableLayout:
        """The index of a table; an empty one where nothing is stored yet. Call it with `lock` held."""
        found = self.layouts.get(table_id)
        if found is None:
            found = self.layouts[table_id] = TableLayout(table_id)
        return found

    def directory_name(self, table: VersionedTable, others: Iterable[Storage] = ()) -> str:
        """A directory name for a new table: its own if that is plain ASCII and free, else with its id."""
        taken = {s.directory.lower() for s in (*self.storage.values(), *others) if s.kind == table.kind}
        plain = re.sub(r"[^A-Za-z0-9_]", "_", table.name).lstrip("_")
        if table.kind in ("state", "result"):
            return f"{table.kind}-{table.id}"
        free = plain == table.name and plain.lower() not in taken
        return plain if free else f"{plain[:80] or 'table'}-{table.id}"

    def diff(self, state: CatalogState) -> StateDiff:
        """What `state` changes of the current one."""
        old = self.state
        before, after = versioned_tables(old), versioned_tables(state)
        replaced = [
            name
            for name, query in old.queries.items()
            if name not in state.queries or state.queries[name].id != query.id
        ]
        return StateDiff(
            tuple(t for name, t in state.tables.items() if old.tables.get(name) != t),
            tuple(q for name, q in state.queries.items() if old.queries.get(name) != q),
            tuple(name for name in old.tables if name not in state.tables),
            tuple(name for name in old.queries if name not in state.queries),
            tuple(replaced),
            frozenset(before.keys() - after.keys()),
            tuple(f for name, f in state.functions.items() if old.functions.get(name) != f),
            tuple(name for name in old.functions if name not in state.functions),
        )

    def apply(self, facts: Facts) -> None:
        """Shows what the database now holds. The commit comes last: who sees it sees all that belongs to it."""
        with self.lock:
            self._apply_state(facts)
            for storage in facts.storage:
                self.storage[storage.table_id] = storage
            for staged in facts.staged:
                self.layout(staged.changes.table_id).add_change(staged.changes)
            for advance in facts.advances:
                self.layout(advance.table_id).advance(advance.version, advance.add, advance.remove)
            for replaced in facts.replaced:
                layout = self.layout(replaced.table_id)
                layout.replace_changes((c.id for c in replaced.old), replaced.new)
            for retired in facts.retired:
                self.layout(retired.table_id).forget(retired.floor, retired.files, retired.changes)
                self._store(retired.table_id, floor=retired.floor)
            for published in facts.published:
                self._store(published.table_id, **{f"published_{published.face}": published.version})
            self.statuses.update(facts.statuses)
            for key, cursor in facts.cursors.items():
                if cursor is None:
                    self.cursors.pop(key, None)
                else:
                    self.cursors[key] = cursor
            for version, micros in facts.commits:
                self.commits.add(version, micros)

    def _apply_state(self, facts: Facts) -> None:
        if facts.state is None or facts.diff is None:
            return
        for query in facts.diff.forgotten_queries:
            self.statuses.pop(query, None)
            for key in [k for k in self.cursors if k[0] == query]:
                del self.cursors[key]
        for table_id in facts.diff.gone:
            self.layouts.pop(table_id, None)
            self._store(table_id, dropped=True)
        self.state = facts.state

    def _store(self, table_id: int, **changed: int | bool) -> None:
        if table_id in self.storage:
            self.storage[table_id] = replace(self.storage[table_id], **changed)  # type: ignore[arg-type]


def versioned_tables(state: CatalogState) -> Mapping[int, VersionedTable]:
    """Every versioned table of a state by id: base tables; delta logs, stored blocks and results of queries."""
    return {table.id: table for table in _versioned(state)}


def _versioned(state: CatalogState) -> Iterator[VersionedTable]:
    for table in state.tables.values():
        yield table.storage
    for query in state.queries.values():
        yield query.result
        for _, stored in query.states:
            yield stored
        if query.relation is not None:
            yield query.relation.storage
