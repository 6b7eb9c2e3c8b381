"""What can be read of a catalog: everything but change rows from memory (catalog/view.py), which follows from the
database."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime

import pyarrow as pa
import sqlalchemy as sa

from cq_engine.catalog import journal, persist
from cq_engine.catalog.database import Database
from cq_engine.catalog.groups import owner
from cq_engine.catalog.inline import InlineCache, decode
from cq_engine.catalog.model import (
    CaptureStatus,
    CatalogState,
    ChangeSet,
    Cursor,
    Layout,
    QueryStatus,
    RefreshRecord,
)
from cq_engine.catalog.sources import find_capture
from cq_engine.catalog.view import View, WriteSet
from cq_engine.catalog.watchers import Watchers
from cq_engine.core import interrupts
from cq_engine.core.errors import CatalogError, StorageError
from cq_engine.core.limits import Limits

__all__ = ["Reading"]

_FETCHED = 1_000
"""Change sets of other processes that are read ahead; of more, only those that somebody asks for."""


class Reading:
    """The base of `Catalog`. `lock` is the commit lock; `cache` has change rows.

    Memory follows from the database: after a write that an exception, of whatever kind, has left in doubt, it is read
    again before anybody looks at it. What other processes write is followed write by write, by the journal
    (catalog/journal.py).
    """

    def __init__(self, database: Database, read_only: bool, limits: Limits) -> None:
        self.read_only = read_only
        self.limits = limits
        self.lock = threading.RLock()
        self.cache = InlineCache(limits.inline_cache_bytes)
        self.watchers = Watchers()
        self._database = database
        self._doubtful = False
        """Whether the database may hold something else than `_view`."""
        self._view = self._load()
        self._news: deque[WriteSet | None] = deque()
        """What others have written since `take_news`; None where everything was read again."""

    @property
    def view(self) -> View:
        """What is known now; a read-only catalog asks the database first."""
        if self.read_only or self._doubtful:
            self.follow()
        return self._view

    def follow(self, *, wait: float = -1) -> bool:
        """Takes in what other processes have written; without news this costs microseconds. While this process writes, which
        takes it in itself, it waits for so many seconds (-1: as long as it takes); False where it did not."""
        if not self._doubtful and self._database.generation() == self._view.generation:
            return True
        with interrupts.taken(self.lock, wait) as has_it:
            if has_it:
                with interrupts.deferred(), self._reading() as connection:
                    self._catch_up(connection)
        return has_it

    def take_news(self) -> list[WriteSet | None]:
        """What others have written and this process has followed since it was asked last, the rows left out. Does not wait
        for the lock."""
        return [self._news.popleft() for _ in range(len(self._news))]

    @property
    def state(self) -> CatalogState:
        return self.view.state

    @property
    def newest_version(self) -> int:
        return self.view.commits.newest_version

    @property
    def known_version(self) -> int:
        """The newest version that memory has, whatever the database has: does not wait."""
        return self._view.commits.newest_version

    @property
    def newest_timestamp(self) -> datetime | None:
        return self.view.commits.newest_timestamp

    def timestamp(self, version: int) -> datetime:
        """When `version` was committed; StorageError where there is no such commit."""
        return self.view.commits.timestamp(version)

    def timestamps(self, low: int, high: int) -> dict[int, datetime]:
        """The commit times of the versions in [low, high]."""
        return self.view.commits.timestamps(low, high)

    def version_at(self, moment: datetime) -> int:
        """The newest commit at or before `moment`; StorageError before the first one."""
        return self.view.commits.version_at(moment)

    def status(self, query: str) -> QueryStatus:
        """CatalogError where there is no such query. A member of a query group has the query group's."""
        found = self.view.status(query)
        if found is None:
            raise CatalogError(f"there is no continuous query {query}")
        return found

    def capture_status(self, name: str) -> CaptureStatus:
        """Where a capture stands; CatalogError where there is no such capture."""
        view = self.view
        return view.captures.get(find_capture(view.state, name).name.lower(), CaptureStatus())

    def cursor(self, query: str, destination: str) -> Cursor | None:
        return self.view.cursors.get((query.lower(), destination))

    def cursors(self, query: str) -> list[Cursor]:
        return self.view.cursors_of(query)

    def refreshes(self, query: str | None = None, limit: int = 100) -> list[RefreshRecord]:
        """The last `limit` refreshes, newest first; of a member of a query group the query group's."""
        name = None if query is None else owner(self.state, query)
        with self._reading() as connection:
            return persist.read_refreshes(connection, name, limit)

    def refresh_around(self, query: str, version: int) -> RefreshRecord | None:
        """The refresh that began before `version` and ended after it; None where a refresh ended there, or none is known."""
        name = owner(self.state, query)
        with self._reading() as connection:
            return next(iter(persist.read_refreshes(connection, name, 1, version)), None)

    def depths(self, low: int, high: int) -> dict[int, int]:
        """The commits from `low` to `high` that triggers have led to, and how many; others are users' own."""
        with self._reading() as connection:
            return persist.read_depths(connection, low, high)

    def layout(self, table_id: int, at: int) -> Layout:
        """What to read for the image at `at` and the changes since: the largest snapshot at or below `at`, and
        every change set that reaches above it. StorageError where `at` lies below what is kept."""
        view = self.view
        with view.lock:
            return view.layout(table_id).at(at)

    def floor(self, table_id: int) -> int:
        """The oldest version of the table that is kept."""
        view = self.view
        with view.lock:
            return view.layout(table_id).floor

    def changes(self, table_id: int, low: int, high: int) -> tuple[ChangeSet, ...]:
        """The change sets that overlap the versions [low, high], in version order, snapshots aside."""
        view = self.view
        with view.lock:
            return tuple(c for c in view.layout(table_id).changes_after(low - 1) if c.low <= high)

    def inline(self, change_set: ChangeSet) -> pa.Table:
        """The rows of an inline change set, or of one that was flushed to a file and is still in memory.

        Raises StorageError where they are neither (see `cached`).
        """
        found = self.cache.get(change_set)
        if found is not None:
            return found
        with self._reading() as connection:
            data = persist.read_inline(connection, [change_set.id]).get(change_set.id)
        if data is None:
            self.follow()
            raise StorageError(
                f"change set {change_set.id} of versioned table {change_set.table_id} is not inline",
                detail="it was flushed to a file or dropped since its layout was read",
                hint="ask for the layout again",
            )
        rows = decode(data)
        self.cache.put(change_set, rows)
        return rows

    def cached(self, change_set: ChangeSet) -> pa.Table | None:
        """The rows of a change set if they are in memory, in the form of `inline` also where it has files."""
        return self.cache.get(change_set)

    def keep(self, change_set: ChangeSet, rows: pa.Table) -> None:
        """Keeps the rows of a change set that were read from its files, in that form, while there is room."""
        self.cache.put(change_set, rows)

    def read_changes(self, changes: list[ChangeSet]) -> list[pa.Table]:
        """The rows of inline change sets, in bulk and past the cache."""
        with self._reading() as connection:
            found = persist.read_inline(connection, [c.id for c in changes if self.cache.get(c) is None])
        tables = []
        for change_set in changes:
            rows = self.cache.get(change_set)
            tables.append(decode(found[change_set.id]) if rows is None else rows)
        return tables

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A read transaction on the database, for what is not kept in memory."""
        with self._reading() as connection:
            yield connection

    def database_time(self, connection: sa.Connection) -> int:
        """Microseconds since 1970 by the clock that all processes share."""
        return self._database.now(connection)

    # ------------------------------------------------------------ inside

    @contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        with self._database.failing_as("read the catalog"), self._database.reading() as connection:
            yield connection

    def _load(self) -> View:
        with self._reading() as connection:
            return persist.load(connection)

    def _look_again(self) -> None:
        self._doubtful = True
        with suppress(StorageError):  # then whoever looks next is told
            self.follow()

    def _catch_up(self, connection: sa.Connection) -> None:
        """Applies what the journal has after this view, in a transaction; reads everything where it begins later."""
        view = self._view
        if self._doubtful:
            self._take(persist.load(connection))
            return
        newest = journal.newest(connection)
        steps = journal.read_after(connection, view.generation)
        if [number for number, _ in steps] != list(range(view.generation + 1, newest + 1)):
            self._take(persist.load(connection))
            return
        self._doubtful = True
        for _, text in steps:
            writes = journal.from_text(text, view)
            self._show(view, writes)
            if not self.read_only:
                self._news.append(writes)
        self._doubtful = False
        if self._refreshes():
            self._fetch(connection)

    def _refreshes(self) -> bool:
        """Whether this process will soon read the rows of what others commit."""
        return False

    def _fetch(self, connection: sa.Connection) -> None:
        """Reads the rows of what others have committed, all at once."""
        new = [s.changes for writes in list(self._news) if writes is not None for s in writes.staged]
        wanted = {c.id: c for c in new if c.inline_id is not None and self.cache.get(c) is None}
        if len(wanted) <= _FETCHED:
            for number, data in persist.read_inline(connection, wanted).items():
                self.cache.put(wanted[number], decode(data))

    def _take(self, view: View) -> None:
        """Memory is what was read anew."""
        self._view = view
        self._doubtful = False
        if not self.read_only:
            self._news.append(None)
        self.watchers.tell(None)

    def _show(self, view: View, writes: WriteSet) -> None:
        """Memory has what the database has."""
        gone = [c for entry in writes.retired for c in view.change_sets(entry.table_id, entry.changes)]
        view.apply(writes)
        for each in gone:
            self.cache.discard(each)
        for staged in writes.staged:
            if staged.rows is not None:
                self.cache.put(staged.changes, staged.rows)
        for replaced in writes.replaced:
            for old in replaced.old:
                self.cache.discard(old)
            if replaced.rows is not None:
                self.cache.put(replaced.new, replaced.rows)
        if writes.state is not None or writes.statuses:
            self.watchers.tell(None if writes.state is not None else writes.statuses)
