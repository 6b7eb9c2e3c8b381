"""This process as one of those that write to a warehouse: its signs of life, the duties, the callbacks that it has."""

from __future__ import annotations

import itertools
import math
from contextlib import suppress

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from cq_engine.catalog import lease, processes
from cq_engine.catalog.database import Database
from cq_engine.catalog.lease import Holder
from cq_engine.catalog.processes import Process, Reads
from cq_engine.catalog.storage.base import Store
from cq_engine.catalog.view import WriteSet
from cq_engine.catalog.writing import Writing
from cq_engine.core import interrupts
from cq_engine.core.clock import Clock
from cq_engine.core.errors import CQError, DestinationError, LeaseError, StorageError
from cq_engine.core.limits import DEFAULT_LIMITS, Limits

__all__ = ["Member"]


class Member(Writing):
    """The base of `Catalog` that knows of the other processes."""

    def __init__(
        self,
        store: Store,
        database: Database,
        clock: Clock,
        *,
        read_only: bool = False,
        holder: str | None = None,
        yields: bool = False,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        super().__init__(store, database, clock, read_only=read_only, limits=limits)
        self.waits = False
        """Whether it takes the duties as soon as nobody has them, or somebody who yields."""
        self._me = Holder.this_process(holder, yields=yields)
        self._callbacks: set[str] = set()
        self._beaten = 0
        """The last sign of life, by the database's clock."""

    @property
    def has_duties(self) -> bool:
        """Whether this process has the duties, as far as it knows; a write finds out."""
        return self.epoch > 0

    @property
    def keeps_duties(self) -> bool:
        """Whether it goes on with the duties when it has done what it took them for."""
        return self.waits or self._me.yields

    def take_duties(self, *, silent: bool = True) -> LeaseError | None:
        """Takes the duties where they are free; else the error that says who has them. Those of a process that was
        silent for too long, which may only have been kept from writing, are taken with `silent`."""
        with self.exclusive(by_any=True) as connection:
            now = self._sign(connection, self.reads())
            held = lease.look(connection)
            if self._holds(held, self.epoch):
                return None
            if not self._may_take(held, now, self.limits.lease_seconds if silent else math.inf):
                return held.refusal(now)
            taken: list[int] = []
            self.write_set(WriteSet(), also=lambda c: taken.append(lease.take(c, self.number)), by_any=True)
            with self._duties:
                (self.epoch,) = taken
        return None

    def take_if_free(self) -> None:
        """Takes the duties where this process waits for them and they are free."""
        if self.waits and not self.epoch:
            with self._reading() as connection:
                free = self._may_take(lease.look(connection), self._database.now(connection), math.inf)
            if free:
                self.take_duties(silent=False)

    def give_duties(self) -> None:
        """Gives the duties back, where this process has them."""
        epoch = self._lay_down()
        if epoch:
            self.write_set(WriteSet(), also=lambda connection: lease.release(connection, epoch), by_any=True)

    def duties_holder(self) -> Holder | None:
        """Who has the duties; None where they are free."""
        with self._reading() as connection:
            held, now = lease.look(connection), self._database.now(connection)
        return None if held.is_free(now, self.limits.lease_seconds) else held.holder

    def processes(self) -> tuple[int, int, list[Process]]:
        """The database's time in microseconds, the number of the process with the duties (0: none), and the processes
        that have the warehouse open to write."""
        if not self.read_only:
            self.beat()  # with what this one reads now
        with self._reading() as connection:
            now, held = self._database.now(connection), lease.look(connection)
            return now, held.number, processes.listed(connection)

    def register_callback(self, name: str) -> None:
        """Makes this process the one that has callback `name`. DestinationError where another one has it, which has given
        signs of life."""
        key = name.lower()
        with self.exclusive(by_any=True) as connection:
            self._enlist(connection)
            number = self.view.callbacks.get(key)
            if number not in (None, self.number):
                self._check_free(connection, name, number)
            if number != self.number:
                self.write_set(WriteSet(callbacks={key: self.number}), by_any=True)
        self._callbacks.add(key)

    def _check_free(self, connection: sa.Connection, name: str, number: int | None) -> None:
        since = self._silent_since(connection)
        for each in processes.listed(connection):
            if each.number == number and each.heartbeat > since and not each.holder.is_dead():
                raise DestinationError(
                    f"callback {name} is registered by {each.holder}",
                    detail="a callback has one place, so that it gets every batch in order",
                    hint="choose another name, or end that process",
                )

    def check_callback(self, name: str) -> None:
        """Raises LeaseError where this process does not have callback `name` (any more): it may have been taken for
        dead, and another one may have given the next batch. What nobody has belongs to the duties."""
        self.follow()
        if self.view.callbacks.get(name.lower()) != self.number:
            self.check_lease()

    def beat(self) -> None:
        """Gives a sign of life, and sees whether the duties have changed hands; with them, buries who is dead.

        Others are not taken for dead where this process itself was late: what kept it may have kept all of them.
        """
        limits, number, beaten, known = self.limits, self.number, self._beaten, self.epoch
        reads = self.reads()  # which takes the lock that comes before the database's
        try:
            with self._database.writing() as connection:
                now = self._sign(connection, reads)
                late = now - beaten > 1_000_000 * (2 * limits.heartbeat_seconds + 1.0)
                silence = math.inf if late else limits.lease_seconds
                held = lease.look(connection)
                mine = self._holds(held, known)
                ended = mine and bool(processes.dead(connection, now, silence))
                free = not mine and self._may_take(held, now, silence)
        except SQLAlchemyError:  # whoever writes next will say so, if it lasts
            return
        if not mine:
            self._lose(known)
        for name in list(self._callbacks) if self.number != number else ():
            with suppress(CQError):
                self.register_callback(name)
        if ended:
            self._bury(silence)
        if free and self.waits:
            self.take_duties(silent=not late)

    # ------------------------------------------------------------ inside

    def _enter(self, duties: bool | None) -> None:
        """This process is one of those that write; with the duties, it looks after what others have left."""
        with interrupts.deferred(), self._database.writing() as connection:
            self._enlist(connection)
        self.waits = duties is not False and not self._me.yields
        refused = None if duties is False else self.take_duties(silent=duties is True)
        if refused is not None and duties:
            raise refused

    def _refreshes(self) -> bool:
        return self.epoch > 0

    def _enlist(self, connection: sa.Connection) -> None:
        if not processes.has(connection, self.number):
            now = self._database.now(connection)
            self.number = processes.register(connection, self._me, now, Reads.of(self.reads(), now))
            self._change_ids = itertools.count((self.number << 32) + 1)
            self._beaten = now

    def _silent_since(self, connection: sa.Connection) -> int:
        """What a process reads and has counts where it has given a sign of life after this moment."""
        return self._database.now(connection) - int(self.limits.lease_seconds * 1_000_000)

    def _sign(self, connection: sa.Connection, reads: tuple[int, int, float]) -> int:
        """A sign of life; when."""
        self._enlist(connection)
        self._beaten = now = self._database.now(connection)
        processes.beat(connection, self.number, now, Reads.of(reads, now))
        return now

    def _holds(self, held: lease.Held, known: int) -> bool:
        return known > 0 and (held.epoch, held.number) == (known, self.number)

    def _lay_down(self) -> int:
        """Forgets the duties; their epoch, 0 where it had none."""
        with self._duties:
            epoch, self.epoch = self.epoch, 0
        return epoch

    def _may_take(self, held: lease.Held, now: int, silence: float) -> bool:
        """Whether the duties are free for this process, or its own, which could not be given back."""
        yielded = self.waits and held.holder is not None and held.holder.yields
        return yielded or held.number == self.number or held.is_free(now, silence)

    def _leave(self) -> None:
        epoch = self._lay_down()

        def leave(connection: sa.Connection) -> None:
            processes.remove(connection, [self.number])
            lease.release(connection, epoch)

        try:
            with self.exclusive(by_any=True):
                mine = dict.fromkeys((n for n, p in self.view.callbacks.items() if p == self.number), 0)
                self.write_set(WriteSet(callbacks=mine), also=leave, by_any=True)
        except CQError:  # once more, with no more than others need to go on, though they learn of it later
            with self._database.writing() as connection:
                leave(connection)

    def _bury(self, silence: float = math.inf) -> None:
        """Ends what is left of processes that have ended, that were silent for so long where nobody knows, or that are not
        listed any more."""
        left: list[str] = []

        with self.exclusive() as connection:
            gone = processes.dead(connection, self._database.now(connection), silence)
            there = {each.number for each in processes.listed(connection)} - set(gone)

            def bury(connection: sa.Connection) -> None:
                processes.remove(connection, gone)
                left.extend(self._give_up_left(connection))

            lost = dict.fromkeys((n for n, p in self.view.callbacks.items() if p not in there), 0)
            self.write_set(WriteSet(callbacks=lost), also=bury)
        with suppress(StorageError):  # it is listed
            self._remove(left)
