"""Upkeep that nobody asks for: publishes, merges the changes of tables whose uncompacted logs have grown, and forgets what
is past its retention, in a thread of its own.

An engine with a scheduler has the thread from its start; without one it comes with the first query or refresh, or with the
64th commit of a process that only commits. Neither a refresh nor a commit waits for it.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial

from cq_engine.catalog.model import VersionedTable
from cq_engine.context.services import Services
from cq_engine.core.errors import CatalogError, LeaseError
from cq_engine.core.keeping import keep
from cq_engine.core.options import is_manual, look_up_cache
from cq_engine.core.priority import yielding
from cq_engine.maintenance.compaction import Compactor
from cq_engine.spark.failures import plain_errors

__all__ = ["Maintenance"]

_log = logging.getLogger(__name__)

_PREPARING_SECONDS = 20.0
"""To prepare the plans of one query takes some seconds at most; where Spark hangs, nobody is to wait for it."""


class Maintenance:
    """Keeps the uncompacted logs of all versioned tables short. Where there are such, `publish` is called after refreshes,
    and `vacuum` once an hour. `prepare` is called with the name of a query that may be refreshed soon; it gives False
    where it is too early for that."""

    def __init__(
        self,
        services: Services,
        compactor: Compactor,
        conf: Mapping[str, str],
        prepare: Callable[[str, bool], bool],
        publish: Callable[[], object] | None,
        vacuum: Callable[[], object] | None,
    ) -> None:
        self.services = services
        self.compactor = compactor
        self._conf = conf
        self._prepare = prepare
        self._publish = publish
        self._vacuum = vacuum
        limits = services.limits
        self._refreshed = False
        self._published = time.monotonic()
        self._vacuumed = time.monotonic() - limits.vacuum_seconds + limits.first_vacuum_seconds
        self._thread: threading.Thread | None = None
        self._woken = threading.Event()
        self._stopping = False
        self._stopped = threading.Event()
        self._unprepared: dict[tuple[str, bool], float] = {}
        """Queries, for few rows and for many, and when their plans are due."""
        self._looked = 0.0
        self._preparing = False
        self._patience = 0.0
        self._commits = 0
        self._starting = threading.Lock()

    # ------------------------------------------------------------ the thread

    def start(self) -> None:
        """Has the thread look at once what is due; starts it where it does not run."""
        if self._manual or not self.services.catalog.has_duties:
            return
        with self._starting:
            if self._thread is None and not self._stopping:
                self._thread = threading.Thread(target=self._work, name="cq-maintenance", daemon=True)
                self._thread.start()
        self._woken.set()

    def stop(self) -> None:
        """Ends the thread after what it is doing: a process that ends while plans are prepared would end with a fatal error
        of the interpreter. For those it waits a while, and not for ever."""
        with self._starting:
            self._stopping = True
        self._stopped.set()
        self._woken.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_PREPARING_SECONDS if self._preparing else None)

    def rest(self) -> None:
        """Ends the thread after what it is doing; `start` starts it again."""
        self.stop()
        with self._starting:
            self._thread = None
            self._stopping = False
            self._stopped.clear()

    @property
    def _manual(self) -> bool:
        return is_manual(self._conf)

    def _work(self) -> None:
        limits = self.services.limits
        while True:
            self._woken.wait(self._until_due())
            self._woken.clear()
            self._looked = time.monotonic()
            if self._stopping:
                return
            if self._manual:
                continue
            try:
                self._publish_if_due()
                self._prepare_waiting()
                if self._stopped.is_set():
                    return
                due = time.monotonic() - self._vacuumed >= limits.vacuum_seconds
                if self._vacuum is None or not due:
                    self.run()
                    continue
                from cq_engine.maintenance.retention import outlived

                self._vacuumed = time.monotonic()
                self.run(outlived(self.services, self._conf))
                self._vacuum()
            except LeaseError as error:  # the process that has the duties now does it
                _log.info("%s", error.message)
            except Exception:  # noqa: BLE001 - the catalog could not be read; the next commit wakes this again
                _log.exception("maintenance failed")

    # ------------------------------------------------------------ what wakes it

    def note_commit(self) -> None:
        """After a commit."""
        self._commits += 1
        if self._thread is not None or self._commits >= self.services.limits.maintenance_commits:
            self.start()

    def note_query(self, *names: str) -> None:
        """Before the first refreshes of queries and query groups by this process."""
        now, limits = time.monotonic(), self.services.limits
        for many, seconds in ((False, limits.prepare_seconds), (True, limits.prepare_many_seconds)):
            self._unprepared.update({(name, many): now + seconds for name in names})
        self.start()

    def note_refresh(self) -> None:
        """After a refresh."""
        self._refreshed = True
        if self._manual:
            self._publish_if_due()
        self.start()

    def forget_gone(self) -> None:
        """Prepares no plans of queries that are gone."""
        state = self.services.catalog.state
        there = {query.name for query in state.queries.values()} | {g.name for g in state.groups.values()}
        keep(self._unprepared, {(name, many) for name in there for many in (False, True)})

    def _publish_if_due(self) -> None:
        """Where there were refreshes since the last time, and that was a while ago."""
        now = time.monotonic()
        if (
            self._publish is not None
            and self._refreshed
            and now - self._published > self.services.limits.publish_seconds
        ):
            self._refreshed, self._published = False, now
            self._publish()

    def _until_due(self) -> float:
        """Seconds until plans become due that were not yet the last time, or a vacuum may be."""
        due = [due for due in list(self._unprepared.values()) if due > self._looked]
        seconds = min(due, default=math.inf) - time.monotonic()
        return min(self.services.limits.first_vacuum_seconds, max(0.0, seconds))

    def _prepare_waiting(self) -> None:
        """Prepares the plans that are due."""
        self._preparing = True
        for name, many in [each for each, due in list(self._unprepared.items()) if due <= self._looked]:
            try:
                if self._stopping or not self._prepare(name, many):
                    break
            except Exception as error:  # noqa: BLE001 - a refresh will say it, or the query is gone
                _log.info("the plans of %s could not be prepared: %r", name, error)
            self._unprepared.pop((name, many), None)
        self._preparing = False

    # ------------------------------------------------------------ work

    def run(self, also: Collection[int] = ()) -> list[str]:
        """Merges what is due, and the tables with the ids `also`, and copies what look-ups read, in this thread; the names
        of the tables that were merged.

        What fails is logged, and tried again when the uncompacted log has doubled.
        """
        done, own = [], self._is_own()
        reader = self.services.reader
        self._patience = self.services.limits.merge_wait_seconds
        for table, at in list(self._tables()):
            if self._stopping:
                break
            try:
                with plain_errors(f"merge the changes of {table.name}", self.services.catalog.warehouse):
                    due = table.id in also or self.compactor.is_due(table, at)
                    if due and self._step_aside() and self.compactor.merge(table, at, in_background=own):
                        done.append(table.name)
                reader.look_ups.indexed.follow(table.id, partial(self._files, table, at))
            except CatalogError:  # dropped meanwhile
                continue
            except LeaseError:
                raise
            except Exception as error:  # noqa: BLE001 - nobody waits for this
                _log.warning("the changes of %s could not be merged: %r", table.name, error)
                self.compactor.postpone(table, at)
        if not self._stopping:
            fill = partial(reader.look_ups.indexed.fill, look_up_cache(self._conf))
            _ = yielding(fill) if own else fill()
        return done

    def _step_aside(self) -> bool:
        """Lets refreshes go first, unless somebody waits for this, as long as the tables of one round together may wait;
        False where the engine closes meanwhile."""
        if self._is_own():
            begun, quiet = time.monotonic(), self.services.limits.merge_quiet_seconds
            self.services.foreground.step_aside(quiet, self._patience, self._stopped)
            self._patience -= time.monotonic() - begun
        return not self._stopping

    def _is_own(self) -> bool:
        """Is this thread the one of maintenance? Nobody waits for it."""
        return threading.current_thread() is self._thread

    def _files(self, table: VersionedTable, at: int) -> dict[str, int]:
        files = self.services.catalog.layout(table.id, at).snapshot
        return {path: file.rows for path, file in zip(self.services.reader.paths(files), files)}

    def _tables(self) -> Iterator[tuple[VersionedTable, int]]:
        """What has images, and the version that the next reader will most probably ask for."""
        catalog = self.services.catalog
        state = catalog.state
        for table in state.tables.values():
            if table.has_snapshot:
                yield table.storage, catalog.newest_version
        for query in (*(each.query for each in state.groups.values()), *state.queries.values()):
            if query.group is not None:
                continue  # its query group has the states
            stored = [each for _, each in query.states]
            if query.relation is not None:
                stored.append(query.relation.storage)
            try:
                position = catalog.status(query.name).position
            except CatalogError:  # dropped meanwhile
                continue
            except LeaseError:
                raise
            for each in stored:
                yield (
                    each,
                    position - (query.name in state.groups),
                )  # new members' rows are added at the position
