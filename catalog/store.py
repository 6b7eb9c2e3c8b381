"""The catalog of a warehouse: the one place that says what exists and which files hold it.

A `Catalog` keeps everything but change rows in memory (catalog/view.py). A writer holds the warehouse's lease and is
the only one to change it; a reader looks again where the database has changed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from weakref import WeakValueDictionary

import sqlalchemy as sa
from sqlalchemy.engine import URL
from sqlalchemy.exc import SQLAlchemyError

from cq_engine.catalog import durable, garbage, journal, migrations, persist, schema
from cq_engine.catalog.attempts import TOPS, Attempt, attempt_directories, new_attempt_id, roots
from cq_engine.catalog.lease import Lease
from cq_engine.catalog.model import VersionedTable
from cq_engine.catalog.reading import Reading
from cq_engine.catalog.retention import forgettable, retire
from cq_engine.catalog.schema import Database, local_path
from cq_engine.catalog.unit import UnitOfWork, resolve
from cq_engine.catalog.urls import Address, parse
from cq_engine.catalog.view import Storage, View, WriteSet, versioned_tables
from cq_engine.core import faults, interrupts, private
from cq_engine.core.clock import Clock
from cq_engine.core.disk import disk_error
from cq_engine.core.errors import CatalogError, CQError, StorageError
from cq_engine.core.limits import DEFAULT_LIMITS, Limits

__all__ = ["Catalog"]

_log = logging.getLogger(__name__)


class Catalog(Reading):
    """Open it with `Catalog.open`. Safe to use from several threads; `lock` is the commit lock."""

    def __init__(
        self,
        warehouse: str,
        database: Database,
        lease: Lease | None,
        clock: Clock,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        super().__init__(database, read_only=lease is None, limits=limits)
        self.warehouse = warehouse
        self.clock = clock
        self._lease = lease
        self._live_attempts: WeakValueDictionary[str, Attempt] = WeakValueDictionary()
        """Those that somebody in this process holds. The files of others go with the next sweep."""
        self._row_ids: dict[int, tuple[int, int]] = {}

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
        file = path / "catalog.db"
        address = parse(url) if url else Address(URL.create("sqlite", database=str(file)))
        if read_only and (not path.is_dir() or (url is None and not file.is_file())):
            raise CatalogError(
                f"there is no warehouse at {warehouse}", hint="open it once without read_only to create it"
            )
        database = Database(address, read_only)
        if not read_only:
            _make(path, file if url is None else None)
        lease: Lease | None = None
        with database.failing_as(f"open the catalog {address.shown}"):
            try:
                if read_only:
                    with database.reading() as connection:
                        migrations.check(connection)
                else:
                    with database.writing() as connection:
                        migrations.prepare(connection, str(path), bound=url is not None)
                        faults.point("open.migrating")
                    faults.point("open.migrated")
                    with interrupts.deferred():
                        lease = Lease.take(database, holder, limits)
                    faults.point("open.leased")
                catalog = cls(str(path), database, lease, clock, limits)
                if not read_only:
                    catalog.recover()
            except BaseException:
                if lease is not None:
                    with suppress(SQLAlchemyError):
                        lease.release()
                database.close()
                raise
        return catalog

    # ------------------------------------------------------------ writing

    @contextmanager
    def write(self, attempt: Attempt | None = None) -> Iterator[UnitOfWork]:
        """One transaction: what the block says becomes durable and visible when it ends, all of it or nothing.

        With `attempt`, its files belong to the transaction; they are removed where nothing was written. Raises
        LeaseError where another process has taken the warehouse over, what `resolve` finds wrong, ConflictError where
        the database is not as this process knew it, and StorageError where the database fails.
        """
        self._check_writable()
        unit = UnitOfWork(lambda: next(self._change_ids))
        try:
            yield unit
            self.write_set(unit.writes, attempt)
        except BaseException:
            if attempt is not None:
                with suppress(CQError):
                    self._abandon(attempt)  # which an attempt that was written outlives
            raise

    def write_set(
        self,
        writes: WriteSet,
        attempt: Attempt | None = None,
        also: Callable[[sa.Connection], None] | None = None,
    ) -> None:
        """The end of `write`, also for this package's own writes; `also` says the rest of the transaction.

        Ctrl-C waits until memory has what is durable. What nevertheless interrupts this makes it read everything again.
        """
        with self.lock, interrupts.deferred():
            view = self.view
            generation = view.generation + 1
            try:
                resolve(view, writes)
                with self._transaction(view) as connection:
                    persist.write(connection, writes, view, self._database.now(connection))
                    journal.add(connection, generation, writes)
                    if attempt is not None:
                        self._use(connection, attempt.id)
                    if also is not None:
                        also(connection)
                durable.note(view, writes)
                self._show(view, writes)
            except BaseException as error:
                self._look_again()
                if not isinstance(error, StorageError) or not self._is_stored(generation, writes):
                    raise
                durable.note(view, writes)  # the answer to COMMIT was lost, and it was done
            if attempt is not None:
                self._live_attempts.pop(attempt.id, None)

    def _is_stored(self, generation: int, writes: WriteSet) -> bool:
        """Whether `writes` are known to be in the database, as this process's step to `generation`."""
        try:
            with self._reading() as connection:
                if self._lease is not None:
                    self._lease.check(connection)
                return journal.has(connection, generation, writes)
        except CQError:
            return False

    def check_lease(self) -> None:
        """Raises LeaseError where another process has taken the warehouse over: before anything is done outside the
        catalog."""
        with self._reading() as connection:
            if self._lease is not None:
                self._lease.check(connection)

    def reserve_row_ids(self, table_id: int, count: int) -> int:
        """The first of `count` ids that no row of the table has had or will have."""
        with self.lock:
            first, limit = self._row_ids.get(table_id, (0, 0))
            if limit - first < count:
                storage = self.view.storage.get(table_id)
                if storage is None:
                    raise CatalogError(f"versioned table {table_id} is not in the catalog")
                first = storage.next_row_id
                limit = first + max(count, self.limits.row_ids)
                self.write_set(WriteSet(row_ids={table_id: limit}))
            self._row_ids[table_id] = (first + count, limit)
            return first

    def attempt(self, kind: str) -> Attempt:
        """Registers an attempt to write files; `kind` is a word that says what for."""
        self._check_writable()
        attempt_id = new_attempt_id(kind, self._lease.epoch if self._lease else 0)
        made = Attempt(attempt_id, self.warehouse, self.storage_of, self._abandon)
        self._live_attempts[attempt_id] = made
        with self.lock, self._transaction() as connection:
            started = self._database.now(connection)
            connection.execute(schema.attempts.insert().values(id=attempt_id, kind=kind, started=started))
        return made

    def storage_of(self, table: VersionedTable) -> Storage:
        """Where the table is stored; decided now for a table that the catalog is about to have."""
        found = self.view.storage.get(table.id)
        if found is None:
            with self.lock:
                found = self.view.storage.get(table.id)
                if found is None:
                    found = Storage(table.id, table.kind, self.view.directory_name(table))
                    self.write_set(WriteSet(storage=[found], next_id=table.id + 1))
        return found

    def recover(self) -> None:
        """Removes what nobody refers to: files of attempts without their transaction, and dropped tables."""
        view = self.view
        known = versioned_tables(view.state)
        left = [s for s in view.storage.values() if s.table_id not in known and not self._live_attempts]
        with self.lock, self._transaction() as connection:
            self._give_up_left(connection)
        try:
            self.sweep(left=left)
        except StorageError as error:  # it is on the list, and no reason not to open
            _log.warning("%s: %s", error.message, error.detail)

    def forget(self, holds: Callable[[], Mapping[int, int]], *, logs: bool = False) -> int:
        """Forgets the images below the holds (by table id, the oldest version that somebody still reads; asked for with
        the commit lock held), with `logs` the change rows, too, and what is known of commits and refreshes below all of
        them. The number of files that `sweep` is to remove."""
        with self.lock:
            held = holds()
            writes = WriteSet(retired=retire(self.view, held, logs=logs))
            stored = (n for n, layout in self.view.layouts.items() if layout.changes or layout.files)
            if logs and held and all(number in held for number in stored):
                writes.read_from = min(held.values())
                writes.forgotten = forgettable(self.view, writes.read_from, writes.retired)
            self.write_set(writes)
        return sum(len(entry.files) for entry in writes.retired)

    def sweep(self, seconds: float = 0.0, *, left: Sequence[Storage] = ()) -> int:
        """Removes the files that were forgotten at least `seconds` ago, those of attempts that could not be given up
        when they failed, and dropped tables, with `left`; the number of files. Raises StorageError where some could not
        be removed; they stay on the list."""
        found: list[str] = []

        def choose(connection: sa.Connection) -> None:
            latest = self._database.now(connection) - int(seconds * 1_000_000)
            found.extend(self._give_up_left(connection))
            found.extend(garbage.doomed_paths(connection, latest))

        with self.lock:
            gone = [s for s in self.view.storage.values() if s.dropped or s in left]
            self.write_set(WriteSet(erased=gone), also=choose)
        directories = [f"{root}/" for storage in gone for root in roots(storage)]
        self._remove(list(dict.fromkeys([*found, *directories])))
        return sum(not path.endswith("/") for path in found)

    def close(self) -> None:
        """Gives the lease back. The catalog cannot be used after that."""
        if self._lease is not None:
            with suppress(SQLAlchemyError), interrupts.deferred():
                self._lease.release()
            self._lease = None
        self._database.close()

    # ------------------------------------------------------------ inside

    def _check_writable(self) -> None:
        if self.read_only:
            raise CatalogError("the warehouse is open for reading only", hint="open it without read_only")

    @contextmanager
    def _transaction(self, view: View | None = None) -> Iterator[sa.Connection]:
        """A write transaction of the lease's holder; with `view` one that builds on it, and changes it."""
        self._check_writable()
        if self._lease is None:
            raise CatalogError("the warehouse was closed")
        database = self._database
        with database.failing_as("write to the catalog"), interrupts.deferred():
            faults.point("catalog.begin")
            with database.writing() as connection:
                self._lease.guard(connection, None if view is None else view.generation)
                yield connection
                faults.point("catalog.before_commit")
            faults.point("catalog.after_commit")

    def _abandon(self, attempt: Attempt) -> None:
        """Removes the files of an attempt, unless a transaction uses them or another process has taken over. Where the
        catalog cannot be written, `sweep` does it later."""
        self._live_attempts.pop(attempt.id, None)
        with self.lock, self._transaction() as connection:
            left = self._give_up(connection, attempt.id)
        self._remove(left)

    def _give_up_left(self, connection: sa.Connection) -> list[str]:
        """Ends the attempts that nobody works on; their directories."""
        registered = connection.execute(sa.select(schema.attempts.c.id)).scalars().all()
        left = [each for each in registered if each not in self._live_attempts]
        return [path for attempt_id in left for path in self._give_up(connection, attempt_id)]

    def _give_up(self, connection: sa.Connection, attempt_id: str) -> list[str]:
        """Ends an attempt whose files nobody is to refer to; its directories, which are listed to be removed."""
        if not self._end_attempt(connection, attempt_id):
            return []
        made = attempt_directories(self.warehouse, list(self._view.storage.values()), attempt_id)
        left = [f"{path.relative_to(self.warehouse).as_posix()}/" for path in made]
        persist.doom(connection, left, self._database.now(connection))
        return left

    def _use(self, connection: sa.Connection, attempt_id: str) -> None:
        """Ends an attempt whose files belong to the transaction from now on."""
        if not self._end_attempt(connection, attempt_id):
            raise schema.stale(f"attempt {attempt_id}")

    def _end_attempt(self, connection: sa.Connection, attempt_id: str) -> bool:
        """False where it has ended already."""
        ended = connection.execute(schema.attempts.delete().where(schema.attempts.c.id == attempt_id))
        return ended.rowcount == 1

    def _remove(self, paths: list[str]) -> None:
        """Removes what is listed to go, and takes it off the list."""
        if not paths:
            return
        gone, problems = garbage.remove(self.warehouse, paths)
        faults.point("vacuum.files")
        with self.lock, self._transaction() as connection:
            garbage.forget(connection, gone)
        if problems:
            raise StorageError(
                f"{len(problems)} of {len(paths)} files and directories that nothing refers to could not be removed",
                detail="; ".join(problems[:3]),
                hint="they are tried again with the next VACUUM, and when the warehouse is opened",
            )


def _make(warehouse: Path, file: Path | None) -> None:
    """Makes what is not there of a warehouse, for this account alone; `file` is the catalog where that lies in it."""
    try:
        for directory in (warehouse, *(warehouse / name for name in TOPS)):
            private.make_directory(directory)
        if file is not None:
            private.touch(file)
    except OSError as error:
        hint = "give a directory in which this account may write, on a disk that has room"
        raise disk_error(f"make the warehouse {warehouse}", error, hint=hint) from error
