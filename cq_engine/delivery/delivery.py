"""Serving the destinations of queries from their delta logs."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from cq_engine.catalog.model import ContinuousQuery, Cursor
from cq_engine.context.services import Services
from cq_engine.core.clock import ManualClock
from cq_engine.core.errors import CQError, DestinationError, LeaseError
from cq_engine.core.keeping import keep
from cq_engine.delivery.of_query import DestinationsOfQueries, cursor_of
from cq_engine.delivery.undelivered import Undelivered, refusal
from cq_engine.destinations import (
    Callbacks,
    Delivered,
    Destination,
    Policy,
    Retry,
    class_of,
    give_up,
    needed_from,
    resolve,
)
from cq_engine.destinations.event_loop import caller
from cq_engine.grammar import DestinationRef, OnDemand
from cq_engine.schedule.scheduler import Scheduler

__all__ = ["Changed", "Delivery"]

_log = logging.getLogger(__name__)

Changed = Mapping[str, frozenset[str]]
"""Table → which of INSERT, DELETE, UPDATE a commit did to it."""
Committed = Callable[[int, Changed], None]

ONCE = Retry(attempts=1)
"""A batch is tried once in a delivery: the pauses are between deliveries, where nobody waits."""


class Delivery(DestinationsOfQueries):
    """Delivers to every destination of a query, each on its own: a failing or slow one delays only itself.

    A refresh serves tables in its own thread, so that they are up to date when it returns. Others too, until
    `start`; from then on each of the others (`Destination.background`) has a thread for as long as it has something to
    receive, and a destination that failed is tried again after a pause, which grows with every failure in a row. `newest` gives the newest version
    at which a member of a query group has a delta.
    """

    def __init__(
        self,
        services: Services,
        callbacks: Callbacks,
        committed: Committed,
        newest: Callable[[ContinuousQuery], int] = lambda _: 0,
        *,
        retry: Retry | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(services, callbacks)
        self.committed = committed
        self.retry = retry or Retry(base=0.25, cap=60.0)
        self._sleep = sleep
        self._newest = newest
        self._guard = threading.Lock()
        self._busy: dict[str, _Turn] = {}
        self._owners: dict[str, int] = {}
        self._jobs: dict[str, tuple[str, DestinationRef]] = {}
        self._timers: dict[str, threading.Timer] = {}
        self._failures: dict[str, tuple[int, str]] = {}
        """Failures in a row and the last one, as the cursor has them where the catalog can be written."""
        self._background = False
        self._stopped = threading.Event()
        # Its clock stands still: deliveries are due when they are woken, never by the time.
        clock = ManualClock(services.now())
        self._runs = Scheduler(
            clock, self._run, on_error=self._note_failure, workers=services.limits.deliveries
        )

    # ------------------------------------------------------------ life

    def start(self) -> None:
        """From now on what a refresh need not wait for is served in the background."""
        self._background = True
        self._stopped.clear()
        self._runs.start()

    def stop(self) -> None:
        """Begins no more batches and waits for those under way; what is left comes after a restart."""
        self._stopped.set()
        with self._guard:
            self._background = False
            timers = list(self._timers.values())
            self._timers.clear()
        for timer in timers:
            timer.cancel()
        self._runs.shutdown(wait=True)
        self.callbacks.loop.close()

    # ------------------------------------------------------------ delivering

    def deliver(self, query: ContinuousQuery) -> None:
        """Brings the destinations up to the query's position: tables now, others now or in the background.

        A destination's failure is recorded with its cursor and logged, and does not raise.
        """
        for ref in self.served(query):
            if self.at_rest(query, ref) or not self.serves(ref):
                continue
            if not (self._background and class_of(ref).background):
                self._try(query, ref)
            elif _job(query, ref) not in self._timers:
                self._wake(query, ref)

    def wake(self, query: ContinuousQuery) -> None:
        """Serves in the background, at once, what waits and can be served."""
        for ref, _ in self.waiting(query):
            if self._background and self.serves(ref) and not self.is_missing(ref):
                self._clear_pause(_job(query, ref))
                self._wake(query, ref)

    def drain(self, queries: Iterable[ContinuousQuery], deadline: float | None = None) -> bool:
        """Serves all that waits now, without regard to pauses, and again a few times what fails.

        Args:
            queries: whose destinations are served.
            deadline: when to give up, on `time.monotonic()`.

        Returns:
            False where the deadline has passed.

        Raises:
            DestinationError: destinations refuse every time; the error names them.
        """
        chosen = list(queries)
        attempts = max([self.retry.attempts, *(self.given_up_after(query) for query in chosen)])
        for attempt in range(1, attempts + 1):
            for query in chosen:
                for ref, _ in self.waiting(query):
                    self._clear_pause(_job(query, ref))
                    self._wake(query, ref)
            if not self._runs.drain(_remaining(deadline)):
                return False
            failing = [each for each in self.undelivered(chosen) if each.error]
            if not failing:
                return True
            if attempt == attempts or all(self.is_missing(each.destination) for each in failing):
                raise refusal(failing)
            left = _remaining(deadline)
            pause = self.retry.pause(attempt)
            if left is not None and left < pause:
                return False
            self._sleep(pause)
        return True

    def undelivered(
        self, queries: Iterable[ContinuousQuery], *, elsewhere: bool = False
    ) -> list[Undelivered]:
        """What `waiting` gives for all of these queries, with what it waits for."""
        catalog = self.services.catalog
        return [
            Undelivered(query.name, ref, 0 if cursor is None else cursor.version,
                        catalog.status(query.name).position, "" if cursor is None else cursor.error)
            for query in queries
            for ref, cursor in self.waiting(query, elsewhere=elsewhere)
        ]  # fmt: skip

    def waiting(
        self, query: ContinuousQuery, *, elsewhere: bool = False
    ) -> list[tuple[DestinationRef, Cursor | None]]:
        """The destinations that have not received everything that the log holds up to the query's position, without those
        that are paused: those that this process serves, or those that others do."""
        catalog = self.services.catalog
        upto = catalog.status(query.name).position
        found = []
        for ref in self.served(query):
            if self.serves(ref) == elsewhere:
                continue
            cursor = catalog.cursor(query.name, cursor_of(ref))
            after = 0 if cursor is None else needed_from(cursor)
            ordered = cursor is not None and cursor.sequence < 0
            if self.policy(ref).at_rest(cursor):
                continue
            if ordered or (after < upto and self.has_rows(query, after, upto)):
                found.append((ref, cursor))
        return found

    def told(self, cursor: Cursor) -> Cursor:
        """The cursor, with a failure that could not be written into the catalog."""
        failures, error = self._failures.get(_named(cursor.destination, cursor.query), (0, ""))
        return cursor if cursor.error or not failures else replace(cursor, failures=failures, error=error)

    def has_rows(self, query: ContinuousQuery, after: int, upto: int) -> bool:
        """Whether the query's delta log has rows of (after, upto]."""
        if not self.services.catalog.changes(query.result.id, after + 1, upto):
            return False
        return query.group is None or self._newest(query) > after

    # ------------------------------------------------------------ one destination

    def _try(self, query: ContinuousQuery, ref: DestinationRef) -> None:
        """Serves a destination; its failure is for the log and, in the background, for a later time."""
        try:
            self._serve(query, ref)
        except LeaseError:
            raise
        except Exception as error:  # noqa: BLE001 - the refresh before it has succeeded
            self._note(query, ref, error)
        else:
            self._clear_pause(_job(query, ref))
            self._failures.pop(_job(query, ref), None)

    def _note(self, query: ContinuousQuery, ref: DestinationRef, error: BaseException) -> None:
        tries = self._failures.get(_job(query, ref), (0, ""))[0] + 1
        said = error.message if isinstance(error, CQError) else repr(error)
        self._failures[_job(query, ref)] = tries, said
        if isinstance(error, CQError):
            _log.warning("%s", error.message)
        else:
            _log.error("destination %s: %r", _job(query, ref), error)
            self._record(query, ref, repr(error))
        if self.now(query) is None:  # dropped while it was served, so that nobody forgets this later
            self._failures.pop(_job(query, ref), None)
            return
        self._pause(query, ref, tries, error.wait_seconds if isinstance(error, DestinationError) else 0.0)

    def _serve(self, query: ContinuousQuery, ref: DestinationRef) -> None:
        """Delivers until the destination stands at the query's position. Raises DestinationError."""
        with self._alone(_job(query, ref)) as alone:
            while alone and not self._stopped.is_set():
                if self.at_rest(query, ref) or not self.is_wanted(query, ref):
                    return
                destination = self._resolve(query, ref)
                position = self.services.catalog.status(query.name).position
                several = list(self._deliver(destination, position, self.policy(ref)))
                if not several:
                    return

    def _deliver(self, destination: Destination, upto: int, policy: Policy) -> Iterator[Delivered]:
        """Each delivery that was made. Raises DestinationError where there is nothing to be put aside, or not yet."""
        try:
            delivered = destination.deliver(upto)
            steps = iter(() if delivered is None else (delivered,))
        except DestinationError:
            if policy.on_failure != "dead_letter" or not policy.exhausted(destination.cursor):
                raise
            steps = give_up(destination, upto)
        for step in steps:
            if step.version is not None:
                self.committed(step.version, step.changed)
            yield step

    @contextmanager
    def _alone(self, job: str) -> Iterator[bool]:
        """Holds the destination; False inside a callback that has caused a delivery to itself, which comes after."""
        me = caller()
        with self._guard:
            inside = self._owners.get(job) == me
            turn = self._busy.setdefault(job, _Turn())
            turn.wanted += not inside
        if inside:
            yield False
            return
        try:
            with turn.lock:
                self._owners[job] = me
                try:
                    yield True
                finally:
                    del self._owners[job]
        finally:
            with self._guard:
                turn.wanted -= 1
                if not turn.wanted:
                    del self._busy[job]

    def _resolve(self, query: ContinuousQuery, ref: DestinationRef) -> Destination:
        try:
            return resolve(
                self.services, query, ref, self.callbacks, retry=ONCE, stopped=self._stopped.is_set
            )
        except DestinationError as error:
            self._record(query, ref, error.message)
            raise

    def _record(self, query: ContinuousQuery, ref: DestinationRef, message: str) -> None:
        """Writes into the cursor why the destination could not be served, once; not where the catalog cannot be written."""
        name = cursor_of(ref)
        catalog = self.services.catalog
        known = catalog.cursor(query.name, name)
        if known is None or known.error != message:
            with suppress(Exception), catalog.write(by_any=True) as unit:
                cursor = catalog.cursor(query.name, name) or Cursor(query.name, name, 0)
                unit.set_cursor(replace(cursor, failures=cursor.failures + 1, error=message))

    # ------------------------------------------------------------ in the background

    def _wake(self, query: ContinuousQuery, ref: DestinationRef) -> None:
        job = _job(query, ref)
        self._jobs[job] = (query.name, ref)
        self._runs.add(job, OnDemand())
        self._runs.wake(job)

    def forget_gone(self) -> None:
        """Takes destinations that no query has any more out of memory; one that is tried again later is not."""
        if not (self._jobs or self._failures):
            return
        queries = self.services.catalog.state.queries.values()
        there = {_job(query, ref) for query in queries for ref in self.refs(query)}
        with self._guard:
            timers = keep(self._timers, there)
        for timer in timers:
            timer.cancel()
        for job in self._runs.names():
            if job not in there:
                self._runs.remove(job)
        keep(self._failures, there)
        keep(self._jobs, there)

    def _run(self, job: str) -> None:
        known = self._of(job)
        if known is not None and known[1] in self.served(known[0]):
            self._try(*known)

    def _of(self, job: str) -> tuple[ContinuousQuery, DestinationRef] | None:
        """The query and the destination of a job; a query that is gone may be forgotten while its job runs."""
        name, ref = self._jobs.get(job, ("", None))
        query = self.services.catalog.state.queries.get(name.lower())
        return None if query is None or ref is None else (query, ref)

    def _note_failure(self, job: str, error: BaseException) -> None:
        """What `_try` lets through: a lost lease, after which nothing is tried, and what is no Exception."""
        known = self._of(job)
        if known is None or isinstance(error, LeaseError):
            _log.error("destination %s: %s", job, error)
        else:
            self._note(*known, error)

    def _pause(self, query: ContinuousQuery, ref: DestinationRef, tries: int, least: float) -> None:
        """Tries again later, after so many `tries`, not before `least` seconds; a callback that is not there is tried when it is
        registered."""
        cursor = self.services.catalog.cursor(query.name, cursor_of(ref))
        if self.at_rest(query, ref):
            return
        seconds = (
            self.policy(ref).retry(self.retry).pause(max(tries, cursor.failures if cursor is not None else 1))
        )
        seconds = max(seconds, least) * (1 + random.uniform(0, class_of(ref).jitter))  # noqa: S311 - no secret
        timer = threading.Timer(seconds, self._resume, [query, ref])
        timer.daemon = True
        with self._guard:
            if not self._background or self.is_missing(ref):
                return
            earlier = self._timers.pop(_job(query, ref), None)
            self._timers[_job(query, ref)] = timer
        if earlier is not None:
            earlier.cancel()
        timer.start()

    def _resume(self, query: ContinuousQuery, ref: DestinationRef) -> None:
        self._clear_pause(_job(query, ref))
        if self.now(query) is not None:
            self._wake(query, ref)

    def _clear_pause(self, job: str) -> None:
        with self._guard:
            timer = self._timers.pop(job, None)
        if timer is not None:
            timer.cancel()


@dataclass
class _Turn:
    """Who serves a destination holds `lock`; it goes when nobody wants it."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    wanted: int = 0


def _job(query: ContinuousQuery, ref: DestinationRef) -> str:
    return _named(cursor_of(ref), query.name)


def _named(destination: str, query: str) -> str:
    return f"{destination} of {query.lower()}"


def _remaining(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())
