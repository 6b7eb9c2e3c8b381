"""Captures at work: each when it is due, one tick of it at a time."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cq_engine.catalog.model import Capture
from cq_engine.catalog.sources import find_capture, find_source
from cq_engine.context.services import Services
from cq_engine.core.clock import Clock
from cq_engine.core.errors import CatalogError, ConflictError, CQError, LeaseError, said
from cq_engine.core.retry import Retry
from cq_engine.grammar.clauses import OnDemand
from cq_engine.refresh.transient import is_transient
from cq_engine.schedule.scheduler import Scheduler
from cq_engine.sources.kinds import method_of
from cq_engine.sources.tick import Tick

__all__ = ["Captured", "Capturing"]

_log = logging.getLogger(__name__)

Committed = Callable[[int, Mapping[str, frozenset[str]]], None]


@dataclass(frozen=True)
class Captured:
    """What a tick of a capture did: the change rows that it wrote (an update has two), its commits in order, how long it
    took in seconds, and how many rows came from the source, keys and checksums alone among them."""

    rows: int
    commit_versions: tuple[int, ...]
    seconds: float
    rows_read: int = 0


class Capturing:
    """Runs the ticks of captures. `committed` is told of every commit that they make."""

    def __init__(self, services: Services, clock: Clock, committed: Committed) -> None:
        self.services = services
        self._committed = committed
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._guard = threading.Lock()
        self._under_way: dict[str, Tick] = {}
        limits = services.limits
        retry = Retry(base=limits.retry_seconds, cap=limits.retry_most_seconds)
        self.scheduler = Scheduler(
            clock, self._run, on_error=self._failed, workers=limits.captures, retry=retry
        )

    # ------------------------------------------------------------ life

    def start(self) -> None:
        """From now on captures run when they are due."""
        self.scheduler.start()

    def stop(self, *, wait: bool = True) -> None:
        """Begins no more ticks; with `wait`, those under way have ended."""
        self.scheduler.shutdown(wait=wait)

    def schedule_all(self) -> None:
        """The scheduler knows the captures of the catalog, and no others."""
        captures = self.services.catalog.state.captures
        for name in self.scheduler.names():
            if name not in captures:
                self.scheduler.remove(name)
        for capture in captures.values():
            try:
                self.schedule(capture)
            except CQError as error:
                _log.warning("capture %s: %s", capture.name, error)

    def schedule(self, capture: Capture, *, now: bool = False) -> None:
        """Puts a capture's schedule into effect; one that the clock moves begins at once where it is new, or with `now`."""
        name, last = capture.name.lower(), self.services.catalog.capture_status(capture.name).last
        begins = now or (last is None and not self.scheduler.knows(name))
        self.scheduler.add(name, capture.when, last)
        if begins and not isinstance(capture.when, OnDemand):
            self.scheduler.wake(name)

    # ------------------------------------------------------------ ticks

    def refresh(self, name: str) -> Captured:
        """One tick now.

        Raises CatalogError for a capture that is unknown or has failed, SourceError where the source cannot be read, and
        what a commit raises.
        """
        capture = find_capture(self.services.catalog.state, name)
        started = time.monotonic()
        with self._lock(capture.name):
            status = self.services.catalog.capture_status(capture.name)
            if status.state == "FAILED":
                raise CatalogError(
                    f"capture {capture.name} has failed",
                    detail=status.error,
                    hint=f"ALTER CAPTURE {capture.name} RESUME tries again",
                )
            tick = self._tick(capture)
        self.scheduler.end_pause(capture.name.lower())
        return Captured(tick.rows, tuple(tick.versions), time.monotonic() - started, tick.read)

    def reading(self, name: str) -> str:
        """What a tick under way has read from the source, for a person; empty where none is, or it has read nothing."""
        tick = self._under_way.get(name.lower())
        if tick is None or not (tick.read_so_far or tick.expected):
            return ""
        of = f" of about {max(tick.expected, tick.read_so_far)}" if tick.expected is not None else ""
        return f"{tick.read_so_far}{of} rows"

    def _lock(self, name: str) -> threading.Lock:
        with self._guard:
            return self._locks[name.lower()]

    def _run(self, name: str) -> None:
        capture = self.services.catalog.state.captures.get(name)
        if capture is None:
            return
        with self._lock(name):
            if not self._is_ending(name) and self.services.catalog.capture_status(name).state == "ACTIVE":
                self._tick(capture)

    def _tick(self, capture: Capture) -> Tick:
        tick = Tick(self.services, capture)
        self._under_way[capture.name.lower()] = tick
        try:
            state = self.services.catalog.state
            declared = find_source(state, capture.source)
            method_of(declared, capture, state).run(tick, declared)
        except (ConflictError, LeaseError):
            raise  # nothing is wrong with the source
        except Exception as error:
            self._note(tick, error)
            raise
        finally:
            del self._under_way[capture.name.lower()]
            if tick.versions:
                self._committed(tick.versions[-1], tick.changed)
        return tick

    def _note(self, tick: Tick, error: Exception) -> None:
        """Writes beside the position why the tick failed; what will not pass by itself stops the capture. Nothing where the capture is
        being dropped, and what it has installed may be gone already."""
        if self._is_ending(tick.capture.name):
            return
        state = tick.status.state if is_transient(error) else "FAILED"
        try:
            tick.stop(said(error), state)
        except CQError as trouble:
            _log.warning("capture %s: %s", tick.capture.name, trouble.message)

    def _is_ending(self, name: str) -> bool:
        """Is the capture gone, or about to go?"""
        services = self.services
        return name.lower() in services.ending or name.lower() not in services.catalog.state.captures

    def _failed(self, name: str, error: BaseException) -> None:
        if self._is_ending(name):
            _log.info("capture %s, which was dropped meanwhile: %s", name, said(error))
            return
        passes = isinstance(error, ConflictError) or is_transient(error)
        waiting = self.scheduler.retry(name, said(error)) if passes else None
        _log.warning("capture %s: %s", name, waiting or said(error))
