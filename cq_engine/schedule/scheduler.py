"""Runs continuous queries when they are due: after commits, periodically, or both at once for many queries.

The scheduler knows queries only by name and calls `run(name)` for them. It keeps four promises:

- two runs of one query never overlap;
- who has waited longest runs first: a query that is due again while it runs goes to the end of the line;
- whatever arrives while a query waits or runs, commits or periods, causes one more run, not more;
- an error of a run is handed to `on_error` and stops nothing. Where that calls `retry`, the query runs again after a
  pause, which grows with every failure in a row, and not before, whatever arrives.

Runs have a pool of threads. Time comes from the clock: with the system's clock, an alarm wakes periodic queries;
with any other, `tick` does, so that tests and replays of history decide what time it is.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone, tzinfo

from cq_engine.core.clock import Clock, SystemClock
from cq_engine.core.errors import CQError
from cq_engine.core.retry import Retry
from cq_engine.grammar.clauses import OnCommit, OnDemand, OnDml, When
from cq_engine.schedule.alarm import Alarm
from cq_engine.schedule.entries import Schedule, Waiting, concerns

__all__ = ["Scheduler"]

_log = logging.getLogger(__name__)


class Scheduler:
    """Calls `run(name)` for the queries that are due.

    Args:
        clock: gives the time that periods are measured by.
        run: refreshes one query; called in a thread of the scheduler's, or in the caller's of `tick` and `drain`.
        on_error: told of every exception of `run`, SystemExit included where that does not end the main thread; logged
            where it is not given.
        zone: the time zone of CRON, of START without one, and of days, weeks and months. Default UTC.
        workers: how many queries may run at the same time.
        retry: the pauses after failures.
    """

    def __init__(
        self,
        clock: Clock,
        run: Callable[[str], None],
        *,
        on_error: Callable[[str, BaseException], None] | None = None,
        zone: tzinfo = timezone.utc,
        workers: int = 4,
        retry: Retry | None = None,
    ) -> None:
        self._clock = clock
        self._run = run
        self._on_error = on_error
        self._zone = zone
        self._workers = workers
        self._retry = retry or Retry()
        self._pool: ThreadPoolExecutor | None = None
        self._alarm = Alarm(self._fire, self._fire_again)
        self._schedules: dict[str, Schedule] = {}
        self._pending: dict[str, None] = {}  # a set in the order in which queries became due
        self._running: dict[str, int] = {}  # query: the thread it runs in
        self._changed = threading.Condition(threading.RLock())
        """Guards all of the above; notified when a run ends."""

    # ------------------------------------------------------------ life

    def start(self) -> None:
        """Starts the threads; what is pending already runs. Does nothing where they run."""
        with self._changed:
            if self._pool is not None:
                return
            self._pool = ThreadPoolExecutor(self._workers, thread_name_prefix="cq-refresh")
            if isinstance(self._clock, SystemClock):
                self._alarm.start()
            for name, schedule in self._schedules.items():
                self._alarm.set(name, schedule)
            for _ in self._pending:
                self._submit()

    def shutdown(self, wait: bool = True) -> None:
        """Starts no more runs; with `wait`, returns when those under way have ended. `start` starts again.

        Raises:
            CQError: `wait` inside a run, which would wait for itself.
        """
        if wait:
            self._refuse_inside_a_run("shutdown")
        with self._changed:
            pool, self._pool = self._pool, None
            alarm, self._alarm = self._alarm, Alarm(self._fire, self._fire_again)
        # Not under the lock, which the threads that end need.
        alarm.shutdown(wait=wait)
        if pool is not None:
            pool.shutdown(wait=wait)

    # ------------------------------------------------------------ queries

    def add(
        self, name: str, when: When, last_run: datetime | None = None, *, sources: Iterable[str] = ()
    ) -> None:
        """Schedules a query, or changes its schedule.

        Args:
            name: the query.
            when: its WHEN clause.
            last_run: when it ran last, None for a new query. A periodic query that has missed a moment since then is
                due at once, once.
            sources: the tables whose commits move an ON COMMIT query.

        Raises:
            AnalysisError: a period, timestamp or cron expression is not valid.
        """
        trigger, due = None, None
        if not isinstance(when, OnCommit | OnDml | OnDemand):
            from cq_engine.schedule.periods import first_due, trigger_for

            now = self._clock.now()
            trigger = trigger_for(when, last_run or now, self._zone)
            due = None if trigger is None else first_due(trigger, last_run, now)
        folded = frozenset(source.casefold() for source in sources)
        with self._changed:
            self._schedules[name] = Schedule(when, folded, trigger, due, self.waiting(name))
            self._alarm.set(name, self._schedules[name])

    def names(self) -> list[str]:
        """The queries that are scheduled."""
        with self._changed:
            return list(self._schedules)

    def knows(self, name: str) -> bool:
        """Whether the query is scheduled."""
        with self._changed:
            return name in self._schedules

    def remove(self, name: str) -> None:
        """Forgets a query, where it is known. A run under way goes on to its end; a pending one does not start."""
        with self._changed:
            self._alarm.clear(name)
            self._schedules.pop(name, None)
            self._pending.pop(name, None)
            self._changed.notify_all()

    # ------------------------------------------------------------ what makes queries due

    def note_commit(self, version: int, changed: Mapping[str, Iterable[str]]) -> tuple[str, ...]:
        """Wakes the queries that a commit concerns.

        Args:
            version: the commit.
            changed: for every table it changed, the kinds of change: INSERT, DELETE, UPDATE.

        Returns:
            The queries that are to run because of it.
        """
        kinds = {table.casefold(): frozenset(found) for table, found in changed.items()}
        with self._changed:
            woken = tuple(name for name, one in self._schedules.items() if concerns(one, kinds))
            for name in woken:
                self._mark(name)
        _log.debug("commit %d wakes %s", version, woken)
        return woken

    def wake(self, name: str) -> None:
        """Makes a known query pending whatever its WHEN says; nothing where it is not known."""
        with self._changed:
            if name in self._schedules:
                self._mark(name)

    def tick(self, now: datetime | None = None) -> tuple[str, ...]:
        """Runs, in this thread, every query that is pending or due by the clock; returns when all have ended.

        Args:
            now: the moment that counts; the clock's by default.

        Returns:
            The queries that were due by the clock.

        Raises:
            CQError: called inside a run, which would wait for itself.
        """
        self._refuse_inside_a_run("tick")
        moment = self._clock.now() if now is None else now
        with self._changed:
            due = tuple(
                name for name, one in self._schedules.items() if one.due is not None and one.due <= moment
            )
            for name in due:
                self._advance(self._schedules[name], moment)
                self._mark(name)
            for name, one in self._schedules.items():
                if one.waiting is not None and one.waiting.next <= moment:
                    self._queue(name)
        self._run_pending(deadline=None)
        return due

    # ------------------------------------------------------------ failures

    def retry(self, name: str, error: str) -> Waiting | None:
        """Has a query that failed run again after a pause; what this is, None where the query is not known."""
        with self._changed:
            schedule = self._schedules.get(name)
            if schedule is None:
                return None
            failures = 1 if schedule.waiting is None else schedule.waiting.failures + 1
            now = self._clock.now()
            pause = timedelta(seconds=self._retry.pause(failures))
            schedule.waiting = Waiting(error, failures, now, now + pause)
            self._pending.pop(name, None)  # the next run processes that, too
            self._alarm.set(name, schedule)
            self._changed.notify_all()
            return schedule.waiting

    def waiting(self, name: str) -> Waiting | None:
        """The failure after which a query is tried again; None where its last run did not fail."""
        with self._changed:
            schedule = self._schedules.get(name)
            return None if schedule is None else schedule.waiting

    def end_pause(self, name: str) -> None:
        """Ends a query's pause: it was run by others, and what came meanwhile makes it pending now."""
        with self._changed:
            if self._forget_failure(name) and name not in self._running:
                self._mark(name)

    def _forget_failure(self, name: str) -> bool:
        schedule = self._schedules.get(name)
        if schedule is None or schedule.waiting is None:
            return False
        schedule.waiting = None
        self._alarm.set(name, schedule)
        return True

    # ------------------------------------------------------------ waiting

    def idle(self) -> bool:
        """Whether nothing is pending or running."""
        with self._changed:
            return not self._pending and not self._running

    def busy(self) -> tuple[str, ...]:
        """The queries that run or are to run now."""
        with self._changed:
            return tuple(dict.fromkeys([*self._running, *self._pending]))

    def drain(self, timeout: float | None = None) -> bool:
        """Waits until nothing is pending or running; without started threads, runs what is pending in this one.

        Args:
            timeout: the longest time to wait, in seconds; a run in this thread is not interrupted.

        Returns:
            Whether the scheduler is idle now.

        Raises:
            CQError: called inside a run, which would wait for itself.
        """
        self._refuse_inside_a_run("drain")
        deadline = None if timeout is None else time.monotonic() + timeout
        if self._pool is None:
            self._run_pending(deadline)
        with self._changed:
            while not self.idle():
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return False
                self._changed.wait(left)
        return True

    # ------------------------------------------------------------ runs

    def _mark(self, name: str) -> None:
        """Puts a query at the end of the line, unless it pauses: the run after the pause processes what came meanwhile."""
        waiting = self._schedules[name].waiting
        if waiting is None or waiting.next <= self._clock.now():
            self._queue(name)

    def _queue(self, name: str) -> None:
        """Puts a query at the end of the line, where it does not stand in it, and sees to it that a thread looks."""
        if name not in self._pending:
            self._pending[name] = None
            if name not in self._running:
                self._submit()

    def _submit(self) -> None:
        """Has a thread run whoever is first when it gets to it; there is one call for each query that may run."""
        if self._pool is not None:
            self._pool.submit(self._work, in_pool=True)

    def _fire(self, name: str) -> None:
        """The alarm: a periodic query is due."""
        with self._changed:
            schedule = self._schedules.get(name)
            if schedule is None:
                return
            self._advance(schedule, self._clock.now())
            self._mark(name)

    def _fire_again(self, name: str) -> None:
        """The alarm: a pause is over."""
        with self._changed:
            if self.waiting(name) is not None:
                self._queue(name)

    def _work(self, *, in_pool: bool) -> bool:
        """Runs, once and in this thread, the query that has waited longest; False where there is none.

        The scheduler's own threads (`in_pool`) stop after a shutdown; what is pending then stays so.
        """
        with self._changed:
            name = next((one for one in self._pending if one not in self._running), None)
            if name is None or (in_pool and self._pool is None):
                return False
            del self._pending[name]
            self._running[name] = threading.get_ident()
        try:
            self._run_once(name)
        finally:
            with self._changed:
                del self._running[name]
                self._changed.notify_all()
                if name in self._pending:  # it has become due again, and waits for its turn
                    self._submit()
        return True

    def _run_once(self, name: str) -> None:
        before = self.waiting(name)
        try:
            self._run(name)
        except BaseException as error:
            if not isinstance(error, Exception) and threading.current_thread() is threading.main_thread():
                raise
            self._report(name, error)  # a query that fails must not stop the others
        with self._changed:
            if self.waiting(name) is before:  # it has not failed, or not in a way that passes
                self._forget_failure(name)

    def _report(self, name: str, error: BaseException) -> None:
        if self._on_error is None:
            _log.error("continuous query %s: %s", name, error)
            return
        try:
            self._on_error(name, error)
        except Exception:  # noqa: BLE001 - neither must an on_error that fails
            _log.exception("on_error of continuous query %s failed", name)

    def _run_pending(self, deadline: float | None) -> None:
        """Runs in this thread what is pending and not running elsewhere, and waits for the rest."""
        while deadline is None or time.monotonic() < deadline:
            if self._work(in_pool=False):
                continue
            with self._changed:
                if self.idle():
                    return
                if all(name in self._running for name in self._pending):
                    self._changed.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))

    def _advance(self, schedule: Schedule, now: datetime) -> None:
        if schedule.trigger is not None:
            schedule.due = schedule.trigger.get_next_fire_time(now, now)

    def _refuse_inside_a_run(self, what: str) -> None:
        with self._changed:
            inside = threading.get_ident() in self._running.values()
        if inside:
            raise CQError(
                f"{what} inside the refresh of a continuous query would wait for itself",
                hint="call it from another thread, or after the refresh",
            )
