"""The façade's part about when queries run: schedules, what wakes them, what runs then."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from cq_engine.catalog.graph import ancestors, readers
from cq_engine.catalog.model import ContinuousQuery, QueryStatus
from cq_engine.catalog.overview import Overview
from cq_engine.catalog.sources import parts_of
from cq_engine.catalog.store import Catalog
from cq_engine.context.services import Services
from cq_engine.core.clock import Clock
from cq_engine.core.errors import CQError, said
from cq_engine.delivery.delivery import Changed, Delivery
from cq_engine.grammar.clauses import OnCommit
from cq_engine.lifecycle.draining import has_news
from cq_engine.refresh.transient import is_transient
from cq_engine.schedule.scheduler import Scheduler

if TYPE_CHECKING:
    from cq_engine.lifecycle.queries import Queries
    from cq_engine.sources.capturing import Capturing

__all__ = ["Scheduling"]

_log = logging.getLogger(__name__)


class Scheduling:
    """What an engine does with its scheduler; a base of `Engine`, which has the parts."""

    catalog: Catalog
    delivery: Delivery
    scheduler: Scheduler
    clock: Clock
    forget_gone: Callable[[], None]
    note_commit: Callable[[int, Changed], None]
    services: Services
    _capturing: Capturing | None = None
    _queries: Queries | None = None
    _making: threading.RLock
    _on_duty: bool
    """Whether the duties are not only this process's, but also under way."""
    _scheduled: bool

    @property
    def queries(self) -> Queries:
        """What works on continuous queries; made when it is first asked for."""
        raise NotImplementedError

    @property
    def capturing(self) -> Capturing:
        """What runs captures; made when it is first asked for, since whoever has none does without what it imports."""
        with self._making:
            if self._capturing is None:
                from cq_engine.sources.capturing import Capturing

                self._capturing = Capturing(self.services, self.clock, self.note_commit)
                if self._on_duty and self._scheduled:
                    self._capturing.start()
            return self._capturing

    def _schedule_captures(self) -> None:
        """Captures run as the catalog says."""
        if self._capturing is not None or self.catalog.state.captures:
            self.capturing.schedule_all()

    def _stop_capturing(self, *, wait: bool = True) -> None:
        if self._capturing is not None:
            self._capturing.stop(wait=wait)

    def _schedule_known(self, name: str) -> None:
        """One query whose schedule does not fit must not keep the warehouse from opening."""
        try:
            self.schedule(name)
        except CQError as error:
            self._report(name, error)

    def schedule(self, name: str, *, new: bool = False) -> None:
        """Puts a query's WHEN into effect; that of a new one counts from now on."""
        query = self.queries.find(name)
        if query.group is not None:
            self._schedule_group(query.group, new=new)
            return
        last = None if new else self.catalog.status(query.name).last_refresh
        sources = [
            self.catalog.state.tables[s].name if s in self.catalog.state.tables else s for s in query.sources
        ]
        self.scheduler.add(query.name, query.when, last, sources=sources)

    def _schedule_group(self, name: str, *, new: bool) -> None:
        """A query group is scheduled once, whatever its members are."""
        if not self.scheduler.knows(name):
            query = self.catalog.state.groups[name].query
            sources = [self.catalog.state.tables[source].name for source in query.sources]
            last = None if new else self.catalog.status(name).last_refresh
            self.scheduler.add(name, query.when, last, sources=sources)

    def _schedule_detached(self, name: str, group: str) -> None:
        """A query goes on by itself: what its query group has not processed it still has to."""
        if group not in self.catalog.state.groups:
            self.scheduler.remove(group)
            self.forget_gone()
        self.schedule(name)
        if self.catalog.status(name).state == "ACTIVE" and has_news(self.catalog, self.queries.find(name)):
            self.scheduler.wake(name)

    def cascade(self, query: str) -> None:
        """Wakes the queries that read `query` and have something to process now."""
        found = self.catalog.state.queries.get(query.lower())
        if found is None or found.relation is None:
            return  # nobody reads it
        for reader in readers(self.catalog.state, query):
            if has_news(self.catalog, reader):
                self.scheduler.wake(reader.name)

    def _run_query(self, name: str) -> None:
        state = self.catalog.status(name).state
        if state == "ACTIVE":
            query = self.catalog.state.queries.get(name.lower())
            if query is not None and not isinstance(query.when, OnCommit):
                self._ask_sources(query)
            self.queries.refreshes.refresh(name)
        elif name in self.catalog.state.groups:
            self.queries.groups.deliver(self.catalog.state.groups[name])
        else:
            self.delivery.deliver(self.queries.find(name))

    def _ask_sources(self, query: ContinuousQuery) -> None:
        """Brings the parts up to date that the query, and those that it reads, have over tables that stay at their sources."""
        state = self.catalog.state
        for each in (*ancestors(state, query.sources), query):
            if each.remote and self.catalog.status(each.name).state == "ACTIVE":
                for part in parts_of(state, each.name):
                    self.capturing.refresh(part.name)

    def _report(self, name: str, error: BaseException) -> None:
        waiting = self.scheduler.retry(name, said(error)) if is_transient(error) else None
        _log.warning("continuous query %s: %s", name, waiting or said(error))

    def status(self, query: ContinuousQuery) -> QueryStatus:
        """Where a query stands; the error of an active one is that after which it is tried again, and says when."""
        status = self.catalog.status(query.name)
        waiting = self.scheduler.waiting(query.group or query.name)
        shown = waiting is not None and status.state == "ACTIVE"
        return replace(status, error=str(waiting)) if shown else status

    def overview(self) -> Overview:
        """The catalog at one moment, as `\\d` shows it."""
        overview = Overview.of(self.catalog)
        return replace(
            overview,
            status={q.name: self.status(q) for q in overview.state.queries.values()},
            cursors=tuple(map(self.delivery.told, overview.cursors)),
        )

    def _wake_behind(self) -> None:
        """After a restart: queries that commits should have moved, and destinations that have not had everything."""
        state = self.catalog.state
        for group in state.groups.values():
            if has_news(self.catalog, group.query):
                self.scheduler.wake(group.name)
        for query in state.queries.values():
            if query.group is None and has_news(self.catalog, query):
                self.scheduler.wake(query.name)
            if query.destinations:
                self.delivery.wake(query)
