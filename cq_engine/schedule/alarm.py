"""What wakes periodic queries by the system's clock: APScheduler, in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timezone
from typing import TYPE_CHECKING, Any

from cq_engine.schedule.entries import Schedule

if TYPE_CHECKING:
    from apscheduler.schedulers.background import BackgroundScheduler

__all__ = ["Alarm"]


class Alarm:
    """Calls `due(name)` when a query's schedule says so and `again(name)` when its pause is over; nothing until `start`."""

    def __init__(self, due: Callable[[str], None], again: Callable[[str], None]) -> None:
        self._due = due
        self._again = again
        self._started = False
        self._jobs: BackgroundScheduler | None = None

    def start(self) -> None:
        """From now on it calls."""
        self._started = True

    def shutdown(self, *, wait: bool) -> None:
        """Calls nothing any more; with `wait`, returns when the call under way has ended."""
        if self._jobs is not None:
            self._jobs.shutdown(wait=wait)

    def set(self, name: str, schedule: Schedule) -> None:
        """Has a query woken as its schedule is now, and no longer as it was."""
        self.clear(name)
        if not self._started or (schedule.due is None and schedule.waiting is None):
            return
        jobs = self._jobs = self._jobs or _thread()
        always: dict[str, Any] = {"args": [name], "coalesce": True, "misfire_grace_time": None}
        if schedule.due is not None:
            jobs.add_job(self._due, schedule.trigger, id=name, next_run_time=schedule.due, **always)
        if schedule.waiting is not None:
            jobs.add_job(self._again, "date", run_date=schedule.waiting.next, id=_pause_of(name), **always)

    def clear(self, name: str) -> None:
        """Does not wake the query any more."""
        for job in (name, _pause_of(name)):
            if self._jobs is not None and self._jobs.get_job(job) is not None:
                self._jobs.remove_job(job)


def _thread() -> BackgroundScheduler:
    """Starts the thread. It only makes queries pending, so one is enough, and it never misses a moment."""
    from apscheduler.executors.pool import ThreadPoolExecutor as FiringThreads
    from apscheduler.schedulers.background import BackgroundScheduler

    jobs = BackgroundScheduler(executors={"default": FiringThreads(1)}, timezone=timezone.utc)
    jobs.start()
    return jobs


def _pause_of(name: str) -> str:
    """The job that ends a pause, under a name that no query has."""
    return f"{name}\0again"
