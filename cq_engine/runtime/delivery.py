"""Serving the destinations of queries from their delta logs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from datetime import datetime, timedelta

from cq_engine.catalog.model import CatalogState, ContinuousQuery, Cursor
from cq_engine.catalog.unit import UnitOfWork
from cq_engine.destinations import Callbacks, Destination, cursor_name, kind_of, resolve
from cq_engine.errors import CQError, DestinationError, LeaseError
from cq_engine.grammar import DestinationRef
from cq_engine.runtime.services import Services

__all__ = ["Delivery"]

_log = logging.getLogger(__name__)
Commits = list[tuple[int, Mapping[str, frozenset[str]]]]


class Delivery:
    """Delivers to every destination of a query, each on its own: a failing one delays only itself."""

    def __init__(self, services: Services, callbacks: Callbacks) -> None:
        self.services = services
        self.callbacks = callbacks
        self._locks: dict[tuple[int, str], threading.Lock] = {}
        self._guard = threading.Lock()
        self._not_before: dict[tuple[int, str], datetime] = {}

    def kind_of(self, ref: DestinationRef, state: CatalogState) -> str:
        """TABLE or CALLBACK for a reference of a DESTINATION clause; a table of that name counts before a callback
        only where no callback is registered. Raises DestinationError for kinds that are not available."""
        return kind_of(ref, self.callbacks).kind or "TABLE"

    def deliver(self, query: ContinuousQuery) -> Commits:
        """Brings every destination up to the query's position; the commits that this made.

        A destination's failure is recorded with its cursor and logged, and does not raise.
        """
        upto = self.services.catalog.status(query.name).position
        made: Commits = []
        for ref in query.destinations:
            try:
                destination = resolve(self.services, query, ref, self.callbacks)
                self._one(destination, upto, made)
            except LeaseError:
                raise
            except CQError as error:
                _log.warning("%s", error.message)
        return made

    def _one(self, destination: Destination, upto: int, made: Commits) -> None:
        key = (destination.query.id, cursor_name(destination.kind, destination.name))
        with self._guard:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            if not self._due(key):
                return
            try:
                delivered = destination.deliver(upto)
            except DestinationError:
                failures = min(destination.cursor.failures, 6)
                self._not_before[key] = self.services.clock.now() + timedelta(seconds=2**failures / 4)
                raise
            self._not_before.pop(key, None)
        if delivered is not None and delivered.version is not None:
            made.append((delivered.version, delivered.changed))

    def _due(self, key: tuple[int, str]) -> bool:
        waits = self._not_before.get(key)
        return waits is None or self.services.clock.now() >= waits

    def waiting(self, query: ContinuousQuery) -> list[tuple[DestinationRef, Cursor | None]]:
        """The destinations that have not received everything up to the query's position."""
        upto = self.services.catalog.status(query.name).position
        found = []
        for ref in query.destinations:
            cursor = self.services.catalog.cursor(query.name, cursor_name(ref.kind or "TABLE", ref.name))
            if cursor is None or cursor.version < upto:
                found.append((ref, cursor))
        return found

    def start_new(self, unit: UnitOfWork, before: ContinuousQuery, after: ContinuousQuery) -> None:
        """Destinations that ALTER added start at the query's position."""
        position = self.services.catalog.status(after.name).position
        old = {cursor_name(d.kind or "TABLE", d.name) for d in before.destinations}
        for ref in after.destinations:
            name = cursor_name(ref.kind or "TABLE", ref.name)
            if name not in old:
                unit.set_cursor(Cursor(after.name, name, position))
