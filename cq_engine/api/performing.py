"""The façade's part that belongs to the duties, whichever process asks for it and whichever does it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from cq_engine.api import statements
from cq_engine.api.duties import Duties
from cq_engine.api.entry import entry
from cq_engine.catalog.model import Table
from cq_engine.context.rights import asked_for
from cq_engine.context.services import RemoteRows, Services, Wanted
from cq_engine.core.errors import LeaseError
from cq_engine.grammar import Statement, parse
from cq_engine.lifecycle.draining import drain, drain_callbacks
from cq_engine.query.result import Result
from cq_engine.transactions.retries import retried
from cq_engine.transactions.transaction import Transaction

if TYPE_CHECKING:
    from cq_engine.maintenance.retention import Vacuumed
    from cq_engine.refresh.refresh import Refresh
    from cq_engine.sources.capturing import Captured

__all__ = ["Performing"]


class Performing(Duties):
    """What an engine does itself or has done by the process with the duties; a base of `Engine`, which has the parts."""

    services: Services
    session: Transaction | None
    """The transaction between BEGIN and COMMIT."""
    check_writable: Callable[[], None]
    _execute: Callable[[Statement, str], Result]
    _catch_up: Callable[[], None]
    _plain: Callable[[str], AbstractContextManager[None]]
    _vacuum: Callable[[str | None, str | None], Vacuumed]

    def _read_remote(self, table: Table, wanted: Wanted, once: bool) -> RemoteRows:
        """What the name of a table stands for that stays at its source."""
        from cq_engine.sources.remote.read import read  # who has no such table does without what it imports

        return read(self.services, table, wanted, once=once)

    def _run(self, statement: Statement, sql: str) -> Result:
        """Here, or by the holder of the duties where that is another process."""
        of_the_duties = isinstance(statement, statements.OF_THE_DUTIES)
        if self._on_duty or not of_the_duties or self.session is not None or self.catalog.read_only:
            try:
                return self._execute(statement, sql)
            except LeaseError:
                if self.catalog.has_duties or not of_the_duties:
                    raise
        done = Result(**self.ask("execute", sql=sql, restricted=self.services.rights.restricted))
        self.catalog.follow()
        self._serve_own()
        return done

    def _serve_own(self) -> None:
        """Callbacks that are registered here get what a refresh elsewhere has brought."""
        for query in self.catalog.state.queries.values():
            if any(self.delivery.waiting(query)):
                self.delivery.deliver(query)

    def perform(self, kind: str, argument: dict[str, Any]) -> dict[str, Any]:
        """Does what belongs to the duties: for this process, or for another one that asks for it."""
        self.catalog.follow()  # what was asked for concerns all that was committed before
        if kind == "execute":
            sql = str(argument["sql"])
            with asked_for(argument["restricted"]), self._plain("run the statement"):
                tries = self.services.limits.statement_tries
                done = retried(lambda: self._execute(parse(sql), sql), tries)
            return {"message": done.message, "rowcount": done.rowcount, "commit_version": done.commit_version}
        if kind == "refresh":
            self._ask_sources(self.queries.find(argument["query"]))
            return asdict(self.queries.refreshes.bring_up_to_date(argument["query"]))
        if kind == "drain":
            drain(self.queries, self.scheduler, argument["timeout"])
        elif kind == "vacuum":
            return asdict(self._vacuum(argument["name"], argument["retain"]))
        elif kind == "maintain":
            return {"tables": self.maintenance.run()}
        elif kind == "capture":
            return asdict(self.capturing.refresh(argument["capture"]))
        return {}

    @entry
    def refresh(self, query: str) -> Refresh:
        """Processes everything committed, in the queries that it reads first; its table destinations are up to date
        on return. Where one of those queries is paused or has failed, it gets as far as they are.

        Raises CatalogError for an unknown query, RefreshError where the refresh fails (the query is then FAILED).
        """
        from cq_engine.refresh.refresh import Refresh

        self.check_writable()
        with self._plain(f"refresh {query}"):
            done = Refresh(**self.ask("refresh", query=query))
            if not self._on_duty:
                self.catalog.follow()
                self._serve_own()
        return done

    @entry
    def refresh_capture(self, capture: str) -> Captured:
        """One tick of a capture now: reads its source, and commits what has changed there.

        Returns the change rows that it wrote (an update has two), the versions of its commits, and the seconds it took.
        Raises CatalogError for a capture that is unknown or has failed, SourceError where the source cannot be read.
        """
        from cq_engine.sources.capturing import Captured

        self.check_writable()
        with self._plain(f"refresh capture {capture}"):
            done = self.ask("capture", capture=capture)
            if not self._on_duty:
                self.catalog.follow()
        return Captured(done["rows"], tuple(done["commit_versions"]), done["seconds"], done["rows_read"])

    def _note_refresh(self, result: Refresh) -> None:
        self.scheduler.end_pause(result.query)
        if result.to_version > result.from_version:
            self.cascade(result.query)
        self.maintenance.note_refresh()

    @entry
    def drain(self, timeout: float | None = None) -> None:
        """Returns when every ON COMMIT query has processed, and every destination has received, the newest commit.

        Paused queries are left out. Raises RefreshError where a query has failed or `timeout` (seconds) has passed,
        DestinationError where a destination refuses; both name what does not come to rest, and why.
        """
        with self._plain("drain"):
            deadline = None if timeout is None else time.monotonic() + timeout
            self.ask("drain", timeout=timeout)
            self.catalog.follow()
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            drain_callbacks(self.queries, left, here=not self._on_duty)
