"""The catalog of a warehouse: the one place that says what exists and which files hold it.

A `Catalog` keeps everything but change rows in memory (catalog/view.py), which follows what other processes write. Any
number of processes write. What belongs to the warehouse's duties is written by the one that has the lease.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import URL
from sqlalchemy.exc import SQLAlchemyError

from cq_engine.catalog import garbage, migrations, persist, processes, schema
from cq_engine.catalog.attempts import TOPS, attempt_of, roots
from cq_engine.catalog.database import Database
from cq_engine.catalog.member import Member
from cq_engine.catalog.retention import forgettable, retire
from cq_engine.catalog.storage.base import Store
from cq_engine.catalog.storage.location import open_store
from cq_engine.catalog.urls import Address, parse
from cq_engine.catalog.view import Storage, WriteSet, versioned_tables
from cq_engine.catalog.watch import Watch
from cq_engine.core import faults, interrupts, private
from cq_engine.core.clock import Clock
from cq_engine.core.disk import disk_error
from cq_engine.core.errors import CatalogError, CQError, StorageError
from cq_engine.core.limits import DEFAULT_LIMITS, Limits

__all__ = ["Catalog"]

_log = logging.getLogger(__name__)


class Catalog(Member):
    """Open it with `Catalog.open`. Safe to use from several threads; `lock` is the commit lock."""

    watch: Watch | None = None
    """The thread that follows what other processes write."""

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
        duties: bool | None = True,
        yields: bool = False,
        storage: Mapping[str, str] | None = None,
    ) -> Catalog:
        """Opens the warehouse at `warehouse`, creating it where it is not there.

        `url` is a SQLAlchemy URL, by default SQLite in `<warehouse>/catalog.db`, which an object store cannot have; `storage`
        are its options without `storage.` in front (catalog/storage/access.py); `limits` are those of everything that
        works with this catalog. With `duties` this process takes the lease, with None where nobody has it, now or later.
        One that `yields` does not wait for it, and loses it to the next one that does.
        Raises CatalogError where a read-only one is not there, LeaseError where another process has the duties that are
        to be taken, StorageError where it cannot be reached.
        """
        store = open_store(warehouse, storage, limits)
        if url is None and not store.is_local:
            raise CatalogError(
                f"the warehouse {store.location} has no catalog",
                detail="a database cannot lie in an object store",
                hint="name one: connect(warehouse, catalog='postgresql://user@host/database'), cq --catalog URL",
            )
        file = None if url else store.file("catalog.db")
        address = Address(URL.create("sqlite", database=str(file))) if url is None else parse(url)
        if read_only and (not store.is_there() or (file is not None and not file.is_file())):
            raise CatalogError(
                f"there is no warehouse at {warehouse}", hint="open it once without read_only to create it"
            )
        database = Database(address, read_only, limits)
        if not read_only:
            _make(store, file)
        with database.failing_as(f"open the catalog {address.shown}"):
            catalog: Catalog | None = None
            try:
                if read_only:
                    with database.reading() as connection:
                        migrations.check(connection)
                else:
                    with database.writing() as connection:
                        migrations.prepare(connection, store.location, bound=url is not None)
                        faults.point("open.migrating")
                    faults.point("open.migrated")
                catalog = cls(
                    store,
                    database,
                    clock,
                    read_only=read_only,
                    holder=holder,
                    yields=yields,
                    limits=limits,
                )
                if not read_only:
                    catalog._enter(duties)
                    faults.point("open.leased")
                    if catalog.has_duties:
                        catalog.recover()
                    catalog.watch = Watch(catalog, database)
                    catalog.watch.start()
            except BaseException:
                if catalog is not None:
                    catalog.close()
                database.close()
                raise
        return catalog

    # ------------------------------------------------------------ upkeep

    def reserve_row_ids(self, table_id: int, count: int) -> int:
        """The first of `count` ids that no row of the table has had or will have."""
        with self.lock:
            first, limit = self._row_ids.get(table_id, (0, 0))
            if limit - first < count:
                within = self._opened is not None
                with self.exclusive(by_any=True):
                    storage = self.view.storage.get(table_id)
                    if storage is None:
                        raise CatalogError(f"versioned table {table_id} is not in the catalog")
                    first = storage.next_row_id
                    limit = first + max(count, self.limits.row_ids)
                    self.write_set(WriteSet(row_ids={table_id: limit}), by_any=True, within=within)
            self._row_ids[table_id] = (first + count, limit)
            return first

    def recover(self) -> None:
        """Removes what nobody refers to: files of attempts of processes that are known to have ended, and dropped tables."""
        self._bury()
        with self.exclusive() as connection:
            known = versioned_tables(self.view.state)
            begun = connection.execute(sa.select(sa.func.count()).select_from(schema.attempts)).scalar()
            left = [s for s in self.view.storage.values() if s.table_id not in known and not begun]
        try:
            self.sweep(left=left)
        except StorageError as error:  # it is on the list, and no reason not to open
            _log.warning("%s: %s", error.message, error.detail)

    def forget(self, holds: Callable[[], Mapping[int, int]], *, logs: bool = False) -> int:
        """Forgets the images below the holds (by table id, the oldest version that somebody still reads; asked for with
        the commit lock held), with `logs` the change rows, too, and what is known of commits and refreshes below all of
        them. The number of files that `sweep` is to remove."""
        with self.exclusive() as connection:
            others = processes.lowest_held(connection, self.number, self._silent_since(connection))
            held = {n: hold if others is None else min(hold, others) for n, hold in holds().items()}
            writes = WriteSet(retired=retire(self.view, held, logs=logs))
            stored = (n for n, layout in self.view.layouts.items() if layout.changes or layout.files)
            if logs and held and all(number in held for number in stored):
                writes.read_from = min(held.values())
                writes.forgotten = forgettable(self.view, writes.read_from, writes.retired)
            self.write_set(writes)
        return sum(len(entry.files) for entry in writes.retired)

    def disown(self, paths: Iterable[str]) -> int:
        """Lists files that the warehouse's Delta tables do not name (any more), for `sweep` to remove those that neither the
        catalog names nor an attempt is writing. Their number."""
        with self.exclusive() as connection:
            now = self._database.now(connection)
            known = {*garbage.doomed_paths(connection, now)}
            with self.view.lock:
                for layout in self.view.layouts.values():
                    known |= {*layout.files, *(f.path for c in layout.changes for f in c.files)}
            writing = set(connection.execute(sa.select(schema.attempts.c.id)).scalars())
            gone = [path for path in paths if path not in known and attempt_of(path) not in writing]
            if gone:
                self.write_set(WriteSet(), also=lambda connection: persist.doom(connection, gone, now))
        return len(gone)

    def sweep(self, seconds: float = 0.0, *, left: Sequence[Storage] = ()) -> int:
        """Removes the files that were forgotten at least `seconds` ago, and before anything that other processes do now
        began; those of attempts that could not be given up when they failed; and dropped tables, with `left`, as soon as no
        other process can be reading them. The number of files. Raises StorageError where some could not be removed; they
        stay on the list."""
        found: list[str] = []

        def choose(connection: sa.Connection) -> None:
            latest = self._database.now(connection) - int(seconds * 1_000_000)
            since = processes.read_since(connection, self.number, self._silent_since(connection))
            found.extend(self._give_up_left(connection))
            if since is None:
                found.extend(f"{root}/" for storage in gone for root in roots(storage))
            found.extend(garbage.doomed_paths(connection, latest if since is None else min(latest, since)))

        with self.exclusive():
            gone = [s for s in self.view.storage.values() if s.dropped or s in left]
            self.write_set(WriteSet(erased=gone), also=choose)
        self._remove(list(dict.fromkeys(found)))
        return sum(not path.endswith("/") for path in found)

    def close(self) -> None:
        """Gives back what this process has. The catalog cannot be used after that."""
        if self.watch is not None:
            self.watch.stop()
            self.watch = None
        if self.number and not self._closed:
            with suppress(CQError, SQLAlchemyError), interrupts.deferred():
                self._leave()
        self._closed = True
        self._database.close()


def _make(store: Store, file: Path | None) -> None:
    """Makes what is not there of a warehouse, for this account alone; `file` is the catalog where that lies in it."""
    try:
        store.make(TOPS)
        if file is not None:
            private.touch(file)
    except OSError as error:
        hint = "give a directory in which this account may write, on a disk that has room"
        doing = f"make the warehouse {store.location}"
        raise disk_error(doing, error, hint=hint if store.is_local else "") from error
