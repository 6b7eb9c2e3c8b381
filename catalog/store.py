"""The catalog of a warehouse: the one place that says what exists and which files hold it.

A `Catalog` keeps everything but change rows in memory (catalog/view.py). A writer holds the warehouse's lease and is
the only one to change it; a reader looks again where the database has changed.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from cq_engine.catalog import garbage, migrations, persist, schema
from cq_engine.catalog.attempts import Attempt, attempt_directories, new_attempt_id, remove_tree
from cq_engine.catalog.groups import owner
from cq_engine.catalog.inline import InlineCache, decode
from cq_engine.catalog.lease import Lease
from cq_engine.catalog.model import (
    CatalogState,
    ChangeSet,
    Cursor,
    Layout,
    QueryStatus,
    RefreshRecord,
    VersionedTable,
)
from cq_engine.catalog.retention import retire
from cq_engine.catalog.schema import Database, cause, local_path
from cq_engine.catalog.unit import UnitOfWork, resolve
from cq_engine.catalog.view import Storage, View, WriteSet, versioned_tables
from cq_engine.core import faults
from cq_engine.core.clock import Clock
from cq_engine.core.errors import CatalogError, CQError, StorageError
from cq_engine.core.limits import DEFAULT_LIMITS, Limits

__all__ = ["Catalog"]


class Catalog:
    """Open it with `Catalog.open`. Safe to use from several threads; `lock` is the commit lock."""

    def __init__(
        self,
        warehouse: str,
        database: Database,
        lease: Lease | None,
        clock: Clock,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self.warehouse = warehouse
        self.read_only = lease is None
        self.clock = clock
        self.limits = limits
        self.lock = threading.RLock()
        self.cache = InlineCache(limits.inline_cache_bytes)
        self._database = database
        self._lease = lease
        self._live_attempts: set[str] = set()
        self._row_ids: dict[int, tuple[int, int]] = {}
        self._view = self._load()
        self._change_ids = itertools.count(self._view.next_change_id)

    @classmethod
    def open(
        cls,
        warehouse: str,
        *,
        url: str | None = None,
        read_only: bool = False,
        clock: Clock,
        holder: str | None = None,
        limits: Limits = DEFAULT_LIMITS,
    ) -> Catalog:
        """Opens the warehouse at `warehouse`, creating it where it is not there.

        `url` is a SQLAlchemy URL, by default SQLite in `<warehouse>/catalog.db`; `limits` are those of everything that
        works with this catalog. Raises CatalogError where a
        read-only one is not there, LeaseError where another process writes to it, StorageError where it cannot
        be reached.
        """
        path = local_path(warehouse)
        address = url or f"sqlite:///{path / 'catalog.db'}"
        if read_only and (not path.is_dir() or (url is None and not (path / "catalog.db").is_file())):
            raise CatalogError(
                f"there is no warehouse at {warehouse}", hint="open it once without read_only to create it"
            )
        if not read_only:
            path.mkdir(parents=True, exist_ok=True)
        database = Database(address, read_only)
        lease: Lease | None = None
        try:
            if read_only:
                with database.reading() as connection:
                    migrations.check(connection)
            else:
                with database.writing() as connection:
                    migrations.prepare(connection, str(path), bound=url is not None)
                lease = Lease.take(database, holder, limits)
            catalog = cls(str(path), database, lease, clock, limits)
            if not read_only:
                catalog.recover()
        except BaseException as error:
            if lease is not None:
                with suppress(SQLAlchemyError):
                    lease.release()
            database.close()
            if isinstance(error, SQLAlchemyError):
                raise StorageError(
                    f"cannot open the catalog {database.shown}", detail=cause(error)
                ) from error
            raise
        return catalog

    # ------------------------------------------------------------ reading

    @property
    def view(self) -> View:
        """What is known now; a read-only catalog reads it again where the database has changed."""
        if self.read_only:
            with self._reading() as connection:
                changed = persist.generation(connection) != self._view.generation
                if changed:
                    self._view = persist.load(connection)
        return self._view

    @property
    def state(self) -> CatalogState:
        return self.view.state

    @property
    def newest_version(self) -> int:
        return self.view.commits.newest_version

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

    def cursor(self, query: str, destination: str) -> Cursor | None:
        return self.view.cursors.get((query.lower(), destination))

    def cursors(self, query: str) -> list[Cursor]:
        return self.view.cursors_of(query)

    def refreshes(self, query: str | None = None, limit: int = 100) -> list[RefreshRecord]:
        """The last `limit` refreshes, newest first; of a member of a query group the query group's."""
        name = None if query is None else owner(self.state, query)
        with self._reading() as connection:
            return persist.read_refreshes(connection, name, limit)

    def layout(self, table_id: int, at: int) -> Layout:
        """What to read for the image at `at` and the changes since: the largest snapshot at or below `at`, and
        every change set that reaches above it. StorageError where `at` lies below what is kept."""
        view = self.view
        with view.lock:
            return view.layout(table_id).at(at)

    def floor(self, table_id: int) -> int:
        """The oldest version of the table that is kept."""
        with self.view.lock:
            return self._view.layout(table_id).floor

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

    # ------------------------------------------------------------ writing

    @contextmanager
    def write(self, attempt: Attempt | None = None) -> Iterator[UnitOfWork]:
        """One transaction: what the block says becomes durable and visible when it ends, all of it or nothing.

        With `attempt`, its files belong to the transaction; they are removed where the block raises. Raises
        LeaseError where another process has taken the warehouse over, what `resolve` finds wrong, and StorageError
        where the database fails.
        """
        self._check_writable()
        unit = UnitOfWork(lambda: next(self._change_ids))
        try:
            yield unit
        except BaseException:
            if attempt is not None:
                with suppress(CQError):
                    self._abandon(attempt)
            raise
        self.write_set(unit.writes, attempt)

    def write_set(self, writes: WriteSet, attempt: Attempt | None = None) -> None:
        """The end of `write`, also for this package's own writes."""
        with self.lock:
            resolve(self._view, writes)
            try:
                with self._transaction() as connection:
                    persist.write(connection, writes, self._database.now(connection))
                    if attempt is not None:
                        self._end_attempt(connection, attempt.id)
            except StorageError:
                self._look_again()  # the commit itself may have failed after it was done
                raise
            self._view.apply(writes)
            for staged in writes.staged:
                if staged.rows is not None:
                    self.cache.put(staged.changes, staged.rows)
            for replaced in writes.replaced:
                for old in replaced.old:
                    self.cache.discard(old)
                self.cache.put(replaced.new, replaced.rows)
        if attempt is not None:
            self._live_attempts.discard(attempt.id)

    def next_change_id(self) -> int:
        return next(self._change_ids)

    def read_changes(self, changes: list[ChangeSet]) -> list[pa.Table]:
        """The rows of inline change sets, in bulk and past the cache."""
        with self._reading() as connection:
            found = persist.read_inline(connection, [c.id for c in changes if self.cache.get(c) is None])
        tables = []
        for change_set in changes:
            rows = self.cache.get(change_set)
            tables.append(decode(found[change_set.id]) if rows is None else rows)
        return tables

    def reserve_row_ids(self, table_id: int, count: int) -> int:
        """The first of `count` ids that no row of the table has had or will have."""
        with self.lock:
            first, limit = self._row_ids.get(table_id, (0, 0))
            if limit - first < count:
                storage = self._view.storage.get(table_id)
                if storage is None:
                    raise CatalogError(f"versioned table {table_id} is not in the catalog")
                first = storage.next_row_id
                limit = first + max(count, self.limits.row_ids)
                self.write_set(WriteSet(storage=[replace(storage, next_row_id=limit)]))
            self._row_ids[table_id] = (first + count, limit)
            return first

    def attempt(self, kind: str) -> Attempt:
        """Registers an attempt to write files; `kind` is a word that says what for."""
        self._check_writable()
        attempt_id = new_attempt_id(kind, self._lease.epoch if self._lease else 0)
        self._live_attempts.add(attempt_id)
        with self.lock, self._transaction() as connection:
            started = self._database.now(connection)
            connection.execute(schema.attempts.insert().values(id=attempt_id, kind=kind, started=started))
        return Attempt(attempt_id, self.warehouse, self.storage_of, self._abandon)

    def storage_of(self, table: VersionedTable) -> Storage:
        """Where the table is stored; decided now for a table that the catalog is about to have."""
        found = self._view.storage.get(table.id)
        if found is None:
            with self.lock:
                found = self._view.storage.get(table.id)
                if found is None:
                    found = Storage(table.id, table.kind, self._view.directory_name(table))
                    self.write_set(WriteSet(storage=[found]))
        return found

    def recover(self) -> None:
        """Removes what nobody refers to: files of attempts without their transaction, and dropped tables."""
        with self._reading() as connection:
            registered = [row.id for row in connection.execute(sa.select(schema.attempts.c.id))]
        storages = list(self._view.storage.values())
        ended = [a for a in registered if a not in self._live_attempts]
        for attempt_id in ended:
            for directory in attempt_directories(self.warehouse, storages, attempt_id):
                remove_tree(directory)
        known = versioned_tables(self._view.state)
        gone = [s for s in storages if s.dropped or (s.table_id not in known and not self._live_attempts)]
        self._remove_storage(gone, ended)
        self.sweep()

    def forget(self, holds: Callable[[], Mapping[int, int]], *, logs: bool = False) -> int:
        """Forgets the images below the holds (by table id, the oldest version that somebody still reads; asked for with
        the commit lock held), with `logs` the change rows, too. The number of files that `sweep` is to remove."""
        with self.lock:
            retired = retire(self._view, holds(), logs=logs)
            self.write_set(WriteSet(retired=retired))
        return sum(len(entry.files) for entry in retired)

    def sweep(self, seconds: float = 0.0) -> int:
        """Removes the files that were forgotten at least `seconds` ago, and dropped tables; the number of files."""
        with self._reading() as connection:
            found = garbage.doomed(connection, self._database.now(connection) - int(seconds * 1_000_000))
        garbage.remove_files(self.warehouse, found)
        faults.point("vacuum.files")
        if found:
            with self.lock, self._transaction() as connection:
                garbage.forget_files(connection, found)
        self._remove_storage([s for s in self._view.storage.values() if s.dropped], [])
        return len(found)

    def close(self) -> None:
        """Gives the lease back. The catalog cannot be used after that."""
        if self._lease is not None:
            with suppress(SQLAlchemyError):
                self._lease.release()
            self._lease = None
        self._database.close()

    # ------------------------------------------------------------ inside

    def _check_writable(self) -> None:
        if self.read_only:
            raise CatalogError("the warehouse is open for reading only", hint="open it without read_only")

    @contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        try:
            with self._database.reading() as connection:
                yield connection
        except SQLAlchemyError as error:
            raise StorageError("cannot read the catalog", detail=cause(error)) from error

    @contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        self._check_writable()
        if self._lease is None:
            raise CatalogError("the warehouse was closed")
        try:
            with self._database.writing() as connection:
                self._lease.guard(connection)
                yield connection
        except SQLAlchemyError as error:
            raise StorageError("cannot write to the catalog", detail=cause(error)) from error

    def _load(self) -> View:
        with self._reading() as connection:
            return persist.load(connection)

    def _look_again(self) -> None:
        with suppress(StorageError):
            self._view = self._load()

    def _abandon(self, attempt: Attempt) -> None:
        for directory in attempt_directories(self.warehouse, list(self._view.storage.values()), attempt.id):
            remove_tree(directory)
        with self.lock, self._transaction() as connection:
            self._end_attempt(connection, attempt.id)
        self._live_attempts.discard(attempt.id)

    def _end_attempt(self, connection: sa.Connection, attempt_id: str) -> None:
        connection.execute(schema.attempts.delete().where(schema.attempts.c.id == attempt_id))

    def _remove_storage(self, gone: list[Storage], attempts: list[str]) -> None:
        """Removes the directories of tables that are gone, then the rows that named them and `attempts`."""
        if not gone and not attempts:
            return
        garbage.remove_directories(self.warehouse, gone)
        with self.lock, self._transaction() as connection:
            garbage.forget_rows(connection, gone, attempts)
        with self._view.lock:
            for storage in gone:
                self._view.storage.pop(storage.table_id, None)
                self._view.layouts.pop(storage.table_id, None)
