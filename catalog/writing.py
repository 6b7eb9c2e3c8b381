"""Write transactions on the catalog: one of this process at a time, and of all processes, with memory that is up to date."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from weakref import WeakValueDictionary, ref

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from cq_engine.catalog import durable, garbage, journal, lease, persist, schema
from cq_engine.catalog.attempts import Attempt, attempt_directories, new_attempt_id
from cq_engine.catalog.database import Database
from cq_engine.catalog.model import VersionedTable
from cq_engine.catalog.reading import Reading
from cq_engine.catalog.storage.base import Store
from cq_engine.catalog.unit import UnitOfWork, resolve
from cq_engine.catalog.view import Storage, View, WriteSet
from cq_engine.core import calls, faults, interrupts
from cq_engine.core.clock import Clock
from cq_engine.core.errors import CatalogError, CQError, LeaseError, StorageError, TransactionError
from cq_engine.core.limits import DEFAULT_LIMITS, Limits

__all__ = ["Writing"]


class Writing(Reading):
    """The base of `Catalog` that writes. `number` and `epoch` say who it is to the other processes."""

    def __init__(
        self,
        store: Store,
        database: Database,
        clock: Clock,
        *,
        read_only: bool = False,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        super().__init__(database, read_only=read_only, limits=limits)
        self.store = store
        """Where the files are."""
        self.clock = clock
        self.number = 0
        """This process's among those that write; another one after it was taken for dead."""
        self.epoch = 0
        """The lease's, where this process has the duties as far as it knows; else 0."""
        self.reads: Callable[[], tuple[int, int, float]] = lambda: (self.known_version, 0, 0.0)
        """The lowest version that this process reads, its open transactions, and seconds since its oldest statement began."""
        self._change_ids = itertools.count(1)
        self._row_ids: dict[int, tuple[int, int]] = {}
        """By table id, the ids from the first up to the second are this process's to give to rows."""
        self._live_attempts: WeakValueDictionary[str, Attempt] = WeakValueDictionary()
        """Those that somebody in this process holds. The files of others go with the next sweep."""
        self._interrupted: list[Attempt] = []
        """Those that the next attempt has to give up."""
        self._opened: _Opened | None = None
        self._ending = threading.Lock()
        self._duties = threading.Lock()
        """Held while `epoch` changes: signs of life are given by another thread than takes the duties."""
        self._closed = False

    @property
    def warehouse(self) -> str:
        """The absolute directory of the warehouse, or its URL."""
        return self.store.location

    @contextmanager
    def exclusive(self, *, by_any: bool = False) -> Iterator[sa.Connection]:
        """A block in which no other process writes and memory is up to date: what is computed in it is still so when it
        is written. The first write in it ends that. Raises as `write` does."""
        self._check_writable()
        with self.lock:
            block = _Block()
            if self._opened is not None and self._opened.block() is None:
                self._take_back()  # of a block that was interrupted while it ended
            outer = self._opened is not None
            try:
                if not outer:
                    with interrupts.deferred():
                        self._begin(block)
                opened = self._opened
                if opened is None:
                    raise CatalogError("the warehouse was closed")
                if not by_any:
                    self._check_epoch(opened.epoch, self.epoch)
                yield opened.connection
            finally:
                if not outer:
                    with interrupts.deferred():
                        self._take_back()

    @contextmanager
    def write(self, attempt: Attempt | None = None, *, by_any: bool = False) -> Iterator[UnitOfWork]:
        """One transaction: what the block says becomes durable and visible when it ends, all of it or nothing.

        With `attempt`, its files belong to the transaction; they are removed where nothing was written. It belongs to
        the duties unless it is said that any process may write it. Raises LeaseError where this process does not have
        them, what `resolve` finds wrong, ConflictError where the database is not as this process knew it, and
        StorageError where the database fails.
        """
        unit = UnitOfWork(lambda: next(self._change_ids))
        try:
            with self.exclusive(by_any=by_any):
                yield unit
                self.write_set(unit.writes, attempt, by_any=by_any)
        except BaseException:
            if attempt is not None:
                self._abandon(attempt)  # which an attempt that was written outlives
            raise

    def write_set(
        self,
        writes: WriteSet,
        attempt: Attempt | None = None,
        also: Callable[[sa.Connection], object] | None = None,
        *,
        by_any: bool = False,
        within: bool = False,
    ) -> None:
        """The end of `write`, also for this package's own writes; `also` says the rest of the transaction. One that is
        `within` another's transaction becomes durable with it.

        Ctrl-C waits until memory has what is durable. What nevertheless interrupts this makes it read everything again.
        """
        with self.lock, interrupts.deferred():
            doubtful, generation, view, number = False, 0, self._view, self.number
            try:
                with self.exclusive(by_any=by_any) as connection:
                    view = self.view
                    self._resolve(view, writes, attempt)
                    doubtful = True
                    with self._database.failing_as("write to the catalog"):
                        generation = view.generation + 1
                        persist.write(connection, writes, view, self._database.now(connection))
                        journal.add(connection, generation, writes, number)
                        self._database.notify(connection)
                        if attempt is not None:
                            self._use(connection, attempt.id)
                        if also is not None:
                            also(connection)
                        if not within:
                            self._commit()
                    durable.note(view, writes)
                    self._show(view, writes)
                    if within and self._opened is not None:
                        self._opened.shown = True
            except BaseException as error:
                if not within:
                    self._take_back()
                if doubtful:
                    self._look_again()
                lost = doubtful and not within and isinstance(error, StorageError)
                if not (lost and self._is_stored(generation, writes, number)):
                    raise
                durable.note(view, writes)  # the answer to COMMIT was lost, and it was done

    def _is_stored(self, generation: int, writes: WriteSet, number: int) -> bool:
        """Whether `writes` are known to be in the database, as the step of process `number` to `generation`."""
        try:
            with self._reading() as connection:
                return journal.has(connection, generation, writes, number)
        except CQError:
            return False

    def _resolve(self, view: View, writes: WriteSet, attempt: Attempt | None) -> None:
        if attempt is not None and attempt.epoch not in (0, self.epoch):
            raise _lost()  # and has had the duties again since
        try:
            resolve(view, writes)
        except TransactionError as error:
            if self._opened is not None and self._opened.moved:  # it was right before others came
                raise schema.stale("the catalog") from error
            raise

    def keep_open(self) -> None:
        """Has the server see that this process is alive where it has a write transaction open; else the server ends it."""
        with self._ending:
            if self._opened is not None and self._opened.begun:
                self._database.keep_open(self._opened.connection)

    def next_change_id(self) -> int:
        """The id of a change set, which no other process gives."""
        return next(self._change_ids)

    def check_lease(self) -> None:
        """Raises LeaseError where this process does not have the duties (any more): before anything is done outside the
        catalog."""
        known = self.epoch  # asked first: another thread may take the duties meanwhile
        with self._reading() as connection:
            self._check_epoch(lease.look(connection).epoch, known)

    def attempt(self, kind: str, *, by_any: bool = False) -> Attempt:
        """Registers an attempt to write files; `kind` is a word that says what for. It belongs to the duties unless it is
        said that any process may make it."""
        self._abandon_interrupted()
        with self.aside(by_any=by_any) as connection:
            self._enlist(connection)  # the attempts of who is not on the list are given up
            named, epoch = new_attempt_id(kind, self.number), 0 if by_any else self.epoch
            made = Attempt(named, self.storage_of, self._abandon, epoch)
            self._live_attempts[made.id] = made
            row = {"id": made.id, "process": self.number, "kind": kind}
            started = self._database.now(connection)
            connection.execute(schema.attempts.insert().values(started=started, **row))
        return made

    def storage_of(self, table: VersionedTable) -> Storage:
        """Where the table is stored; decided now for a table that the catalog is about to have."""
        found = self.view.storage.get(table.id)
        if found is None:
            with self.lock:
                within = self._opened is not None
                with self.exclusive(by_any=True):
                    found = self.view.storage.get(table.id)
                    if found is None:
                        found = Storage(table.id, table.kind, self.view.directory_name(table))
                        new = WriteSet(storage=[found], next_id=table.id + 1)
                        self.write_set(new, by_any=True, within=within)
        return found

    # ------------------------------------------------------------ inside

    def _enlist(self, connection: sa.Connection) -> None:
        """Puts this process on the list of those that are alive, under another number where it was taken for dead."""
        raise NotImplementedError

    def _check_writable(self) -> None:
        if self.read_only:
            raise CatalogError("the warehouse is open for reading only", hint="open it without read_only")
        if self._closed:
            raise CatalogError("the warehouse was closed")

    def _check_epoch(self, epoch: int, known: int) -> None:
        """Raises LeaseError where the duties are not this process's, which knew of epoch `known` when it was `epoch`."""
        if known and known == epoch:
            return
        if known:
            self._lose(known)
            raise _lost()
        raise LeaseError("this process does not have the warehouse's duties", hint=_WHO_HAS_THEM)

    def _lose(self, known: int) -> None:
        """Forgets the duties of epoch `known`; not those that this process has taken since it knew of them."""
        with self._duties:
            if self.epoch == known:
                self.epoch = 0

    def _begin(self, block: _Block) -> None:
        """Begins the one write transaction of this process; from now on no other process writes."""
        with self._database.failing_as("write to the catalog"):
            faults.point("catalog.begin")
            opened = self._opened = _Opened(self._database.to_write(), ref(block))
            opened.connection.begin()
            opened.epoch, generation = lease.locked(opened.connection)
            opened.begun = True
            if self._doubtful or generation != self._view.generation:
                opened.moved = True
                self._catch_up(opened.connection)

    def _commit(self) -> None:
        opened = self._opened
        if opened is not None:
            faults.point("catalog.before_commit")
            with self._ending:
                self._database.end_writing(opened.connection, commit=True)
                self._opened = None
            faults.point("catalog.after_commit")

    def _take_back(self) -> None:
        """Takes back what was not committed; memory that has it already is read again."""
        opened = self._opened
        if opened is not None:
            if opened.shown:
                self._doubtful = True
                self._row_ids.clear()  # those that were reserved in it are anybody's
            with self._ending:
                with suppress(SQLAlchemyError):
                    self._database.end_writing(opened.connection, commit=False)
                self._opened = None

    @contextmanager
    def aside(self, *, by_any: bool = True) -> Iterator[sa.Connection]:
        """A write transaction that changes nothing of what is kept in memory; inside of another
        one, a part of that. Memory is up to date in it, and no other process writes."""
        with self.lock:
            joins = self._opened is not None
            with (
                self.exclusive(by_any=by_any) as connection,
                self._database.failing_as("write to the catalog"),
            ):
                yield connection
                if not joins:
                    with interrupts.deferred():
                        self._commit()

    def _abandon(self, attempt: Attempt) -> None:
        """Removes the files of an attempt, unless a transaction uses them or the attempt was ended by others. Where catalog or
        store cannot be written, `sweep` does it later; as a part of a transaction, which would keep the half of it, it fails. Ctrl-C does
        not wait for a network: then the next attempt of this process does it."""
        self._live_attempts.pop(attempt.id, None)
        under_way = calls.current()
        with self.lock:
            within = self._opened is not None and self._opened.block() is not None
            if not within and not self.store.is_local and under_way is not None and under_way.cancelled:
                self._interrupted.append(attempt)
                return
            try:
                with self.aside() as connection:
                    left = self._give_up(connection, attempt.id)
            except CQError:
                if within:
                    raise
                return
        with suppress(CQError):
            self._remove(left)

    def _abandon_interrupted(self) -> None:
        while self._interrupted and self._opened is None:
            attempt = self._interrupted.pop()
            try:
                self._abandon(attempt)
            except (CQError, OSError):
                self._interrupted.append(attempt)
                return

    def _give_up_left(self, connection: sa.Connection) -> list[str]:
        """Ends the attempts that nobody works on: this process's own that it let go of, and those of processes that are not
        on the list any more because they are dead; their directories."""
        alive = set(connection.execute(sa.select(schema.processes.c.id)).scalars()) - {self.number}
        registered = connection.execute(sa.select(schema.attempts.c.id, schema.attempts.c.process)).all()
        left = [i for i, process in registered if process not in alive and i not in self._live_attempts]
        return [path for attempt_id in left for path in self._give_up(connection, attempt_id)]

    def _give_up(self, connection: sa.Connection, attempt_id: str) -> list[str]:
        """Ends an attempt whose files nobody is to refer to; its directories, which are listed to be removed."""
        if not self._end_attempt(connection, attempt_id):
            return []
        made = attempt_directories(self.store, list(self._view.storage.values()), attempt_id)
        left = [f"{path}/" for path in made]
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
        gone, problems = garbage.remove(self.store, paths)
        faults.point("vacuum.files")
        with self.aside() as connection:
            garbage.forget(connection, gone)
        if problems:
            raise StorageError(
                f"{len(problems)} of {len(paths)} files and directories that nothing refers to could not be removed",
                detail="; ".join(problems[:3]),
                hint="they are tried again with the next VACUUM, and when the warehouse is opened",
            )


_WHO_HAS_THEM = "the process that has them does what there is to be done"


def _lost() -> LeaseError:
    return LeaseError(
        "this process no longer holds the warehouse's duties",
        detail="another process has taken them; nothing was written",
        hint=_WHO_HAS_THEM,
    )


class _Block:
    """A block that writes; it is gone when the block has ended."""


@dataclass
class _Opened:
    """A write transaction."""

    connection: sa.Connection
    block: ref[_Block]
    epoch: int = 0
    begun: bool = False
    """Whether other writers wait for its end; before, it waits for theirs."""
    moved: bool = False
    """Whether others had written something that memory did not have."""
    shown: bool = False
    """Whether memory has what is not durable yet."""
