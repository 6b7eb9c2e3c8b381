"""The façade's part about the other processes of a warehouse: the duties come and go, others' writes are noticed, and what
belongs to the duties is asked for where another process has them."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from cq_engine.api.scheduling import Scheduling
from cq_engine.catalog import requests
from cq_engine.catalog.view import WriteSet
from cq_engine.catalog.watch import News
from cq_engine.core import errors
from cq_engine.core.errors import CatalogError, CQError, LeaseError, Location
from cq_engine.lifecycle.drop import tidy, tidy_parts
from cq_engine.maintenance.maintenance import Maintenance
from cq_engine.storage.reader import Reader

__all__ = ["Duties"]

_log = logging.getLogger(__name__)

_thread = threading.local()


class Duties(Scheduling):
    """What an engine does because of other processes; a base of `Engine`, which has the parts."""

    maintenance: Maintenance
    reader: Reader
    notify: Callable[[str], None] | None = None
    """Told, in words for a person, when this process takes the duties over or loses them."""
    _scheduled: bool
    _events: queue.SimpleQueue[News | None]
    _noticing: threading.Thread | None = None
    _answering: ThreadPoolExecutor | None = None
    _on_duty = False
    note_commit: Callable[[int, Any], None]
    perform: Callable[[str, dict[str, Any]], dict[str, Any]]
    """Does what another process, or this one, asks of the holder of the duties."""
    _recent_queries: Callable[[], list[str]]

    # ------------------------------------------------------------ coming and going

    def _begin_noticing(self) -> None:
        """From now on the duties are what the catalog says, and others' writes have their effects here."""
        self._turn = threading.RLock()
        self._events = queue.SimpleQueue()
        if self.catalog.watch is not None:
            self.catalog.watch.listener = self._events.put
            self._noticing = threading.Thread(target=self._notice_all, name="cq-notice", daemon=True)
        if self.catalog.has_duties:
            self._take_up()
        if self._noticing is not None:
            self._noticing.start()

    def _end_noticing(self) -> None:
        if self.catalog.watch is not None:
            self.catalog.watch.listener = None
        if self._noticing is not None:
            self._events.put(None)
            self._noticing.join()
            self._noticing = None
        if self._answering is not None:
            self._answering.shutdown(wait=True, cancel_futures=True)
            self._answering = None

    def _notice_all(self) -> None:
        while True:
            news = self._events.get()
            if news is None:
                return
            try:
                self._notice(news)
            except CQError as error:
                _log.warning("%s", error)
            except Exception:  # noqa: BLE001 - the next news may be better
                _log.exception("noticing what other processes have done failed")

    def _notice(self, news: News) -> None:
        with self._turn:
            if self._on_duty != self.catalog.has_duties:
                self._change_hands()
            elif self._on_duty:
                for writes in news:
                    self._follow_as_holder(writes)
                self._answer()
        for writes in news:
            self._follow_definitions(writes)
        if self._scheduled:
            self._serve_callbacks(news)

    def _change_hands(self) -> None:
        if self.catalog.has_duties:
            self.catalog.recover()
            self._take_up()
            self._say("this process has the duties of the warehouse now: refreshes, delivery, upkeep")
        else:
            self._lay_down()
            self._say("another process has the duties of the warehouse now")

    def tell_of_duties(self, tell: Callable[[str], None]) -> None:
        """Has `tell` told, in words for a person, where the duties are: now where that is elsewhere, and when it changes."""
        self.notify = tell
        if not self.catalog.has_duties and not self.catalog.read_only:
            holder = self.catalog.duties_holder()
            where = f"{holder} has the duties" if holder is not None else "no process has the duties"
            self._say(f"{where} of the warehouse: refreshes, delivery, upkeep")

    def _say(self, text: str) -> None:
        _log.info("%s", text)
        if self.notify is not None:
            with suppress(Exception):
                self.notify(text)

    def _take_up(self) -> None:
        """Begins with the duties: nothing of what memory had before them counts."""
        self.reader.forget_all()
        if self._queries is not None:
            self._queries.registry.forget_all()
            self._queries.groups.progress.forget_all()
        self._on_duty = True
        if self.catalog.state.queries or self.catalog.state.groups:
            tidy(self.queries.registry)
        if any(table.part_of is not None for table in self.catalog.state.tables.values()):
            tidy_parts(self.queries.registry)
        self._schedule_all()
        if self._scheduled:
            self.scheduler.start()
            if self._capturing is not None:
                self._capturing.start()
            self.maintenance.note_query(*self._recent_queries())
            self.maintenance.start()
            self._wake_behind()
        self._answer()

    def _lay_down(self) -> None:
        self._on_duty = False
        self.scheduler.shutdown(wait=False)
        self._stop_capturing(wait=False)
        self.maintenance.rest()

    def _schedule_all(self) -> None:
        """The scheduler knows the queries of the catalog, and no others."""
        state = self.catalog.state
        known = {query.name for query in state.queries.values()} | set(state.groups)
        for name in self.scheduler.names():
            if name not in known:
                self.scheduler.remove(name)
        for query in state.queries.values():
            self._schedule_known(query.name)
        self._schedule_captures()

    # ------------------------------------------------------------ what others have written

    def _follow_as_holder(self, writes: WriteSet | None) -> None:
        """Queries run because of what others have committed and defined."""
        if writes is None or writes.state is not None:
            self._schedule_all()
            self._wake_behind()
        elif writes.commits:
            tables = self.catalog.view.tables()
            changed: dict[str, frozenset[str]] = {}
            for staged in writes.staged:
                table = tables.get(staged.changes.table_id)
                if table is not None and table.kind == "base":
                    changed[table.name] = changed.get(table.name, frozenset()) | staged.changes.kinds
            self.note_commit(writes.commits[-1][0], changed)

    def _follow_definitions(self, writes: WriteSet | None) -> None:
        """What was compiled of definitions that are others now is compiled again."""
        if self._queries is None:
            return
        registry = self._queries.registry
        if writes is None:
            registry.forget_all()
        elif writes.diff is not None:
            registry.forget([*writes.diff.put_queries, *(group.query for group in writes.diff.put_groups)])
        if writes is None or writes.diff is not None:
            self.forget_gone()

    def _serve_callbacks(self, news: News) -> None:
        """Deltas of others' refreshes go to the callbacks that are registered here."""
        if self._on_duty or not self.delivery.callbacks.names():
            return
        if any(writes is None or writes.statuses or writes.state is not None for writes in news):
            for query in self.catalog.state.queries.values():
                if query.destinations:
                    self.delivery.wake(query)

    # ------------------------------------------------------------ asking and answering

    def ask(self, kind: str, **argument: Any) -> dict[str, Any]:
        """Has the holder of the duties do something, and waits; done here where nobody has them. Raises its errors."""
        if self._on_duty and self.catalog.has_duties:
            try:
                return self.perform(kind, argument)
            except LeaseError:
                if self.catalog.has_duties:
                    raise
        number = requests.ask(self.catalog, kind, argument)
        try:
            return _read(self._await(number))
        finally:
            requests.withdraw(self.catalog, number)

    def _await(self, number: int) -> dict[str, Any]:
        looked = time.monotonic()
        while True:
            said = requests.answered(self.catalog, number)
            if said is not None:
                return said
            now = time.monotonic()
            if now - looked > 10 * requests.LOOK_SECONDS:
                looked = now
                if self.catalog.duties_holder() is None:
                    self._stand_in()
            time.sleep(requests.LOOK_SECONDS)

    def _stand_in(self) -> None:
        """Has the duties for as long as it takes to do what was asked for, or for longer. Another process may take them
        meanwhile, which then does it."""
        if self.catalog.take_duties() is not None:
            return
        keeps = self.catalog.keeps_duties
        with self._turn:
            scheduled, self._scheduled = self._scheduled, self._scheduled and keeps
            try:
                if not self._on_duty:
                    self._change_hands()
                self._answer()
                if not keeps:
                    self._drain_answers()
            except LeaseError:
                if self.catalog.has_duties:
                    raise
            finally:
                self._scheduled = scheduled
                if not keeps:
                    self._lay_down()
                    self.catalog.give_duties()

    def _answer(self) -> None:
        """Begins with what others ask for, each request in a thread."""
        for request in requests.waiting(self.catalog):
            if request.taken == self.catalog.epoch:
                continue
            if request.taken and request.kind == "execute":
                requests.answer(self.catalog, request.number, _said(_lost(request.argument["sql"])))
                continue
            requests.take(self.catalog, request.number)
            if self._answering is None:
                self._answering = ThreadPoolExecutor(4, thread_name_prefix="cq-answer")
            self._answering.submit(self._do, request)

    def _drain_answers(self) -> None:
        if self._answering is not None:
            self._answering.shutdown(wait=True)
            self._answering = None

    def _asked_for(self) -> bool:
        """Whether this thread does what another process has asked for."""
        return getattr(_thread, "asked", False)

    def _do(self, request: requests.Request) -> None:
        _thread.asked = True
        try:
            said = {"done": self.perform(request.kind, request.argument)}
        except Exception as error:  # noqa: BLE001 - who asked is told
            lost = isinstance(error, LeaseError) and not self.catalog.has_duties
            if lost and request.kind != "execute":
                return  # who has them now begins with it
            said = _said(error)
        with suppress(CQError):
            requests.answer(self.catalog, request.number, said)


def _said(error: BaseException) -> dict[str, Any]:
    known = error if isinstance(error, CQError) else CQError(f"{type(error).__name__}: {error}")
    place = None if known.location is None else asdict(known.location)
    return {"error": [type(known).__name__, known.message, known.detail, known.hint, place]}


def _lost(sql: str) -> CQError:
    return CatalogError(
        "the process that had the duties ended while it ran the statement",
        detail=" ".join(sql.split())[:200],
        hint="see whether it was done, and run it again if not",
    )


def _read(said: dict[str, Any]) -> dict[str, Any]:
    """What the answer says. Raises the error that it tells of."""
    if "error" not in said:
        return dict(said["done"])
    name, message, detail, hint, place = said["error"]
    kind = getattr(errors, name, CQError)
    raise kind(message, detail=detail, hint=hint, location=None if place is None else Location(**place))
