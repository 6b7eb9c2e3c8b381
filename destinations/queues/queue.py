"""Queues: destinations from which consumers take messages, which are the deltas in the logs of the queue's queries.

Nothing is delivered to a queue and nothing is copied. Each group of consumers has a place in each log, and rows for what it
has been given and has not finished (`catalog/queues.py`); `Consumer` gives messages away.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar

from cq_engine.catalog.destinations import deliverers, find_destination, reference
from cq_engine.catalog.model import CatalogState, ContinuousQuery, Cursor
from cq_engine.context.services import Services
from cq_engine.core.errors import AnalysisError, CatalogError, StorageError, did_you_mean
from cq_engine.core.options import parse_retention
from cq_engine.destinations.base import Delivered, Destination, cursor_name
from cq_engine.destinations.dead_letters import with_dead_letters
from cq_engine.destinations.kind_parts import Kind, Wanted
from cq_engine.destinations.log import needed_from
from cq_engine.destinations.options import COMMON, Option, seconds

__all__ = ["OPTIONS", "Queue", "QueueDestination", "needed_by", "queue_named"]

_PREFIX = cursor_name("QUEUE", "")


def _retention(value: str) -> timedelta | None:
    try:
        return parse_retention(value)
    except AnalysisError:
        raise ValueError from None


def _visibility(value: str) -> float:
    if not 0 < seconds(value) <= 10**9:
        raise ValueError
    return seconds(value)


OPTIONS: Mapping[str, Option] = {
    "retention": Option(
        "7 days", _retention, "write a number of minutes, hours, days or weeks, as in '7 days', or 'forever'"
    ),
    "visibility": Option("30 seconds", _visibility, "write a length of time, as in visibility = '2 minutes'"),
    "max_attempts": COMMON["max_attempts"],
}


class QueueDestination(Destination):
    """A queue as a destination of one query. Its cursor in the catalog is where a group begins that is new."""

    kind: ClassVar[str] = "QUEUE"
    exactly_once: ClassVar[bool] = False
    pulled: ClassVar[bool] = True

    @classmethod
    def admit(
        cls,
        services: Services,  # noqa: ARG003 - as of a destination
        query: ContinuousQuery,
        state: CatalogState,
        name: str,
    ) -> CatalogState:
        """It has a table for its dead letters."""
        return with_dead_letters(state, name, query.created_version)

    def check(self) -> None:
        with_dead_letters(self.services.catalog.state, self.name, 0)

    def _deliver(self, cursor: Cursor, upto: int) -> Delivered:  # noqa: ARG002 - as of a destination
        raise AssertionError("consumers take messages from a queue; nothing is delivered to it")


def _make(wanted: Wanted) -> QueueDestination:
    return QueueDestination(wanted.services, wanted.query, wanted.reference.name)


@dataclass(frozen=True)
class Queue:
    """What is declared for a queue, or the defaults."""

    name: str
    retention: timedelta | None
    visibility: float
    """Seconds."""
    max_attempts: int
    paused: bool
    queries: tuple[ContinuousQuery, ...]
    """Whose deltas its messages are."""

    @property
    def cursor(self) -> str:
        return cursor_name("QUEUE", self.name)


def queue_named(state: CatalogState, name: str) -> Queue:
    """The queue `name`. Raises CatalogError where there is none."""
    users = deliverers(state, name)
    if name.lower() not in state.destinations and not users:
        names = [each.name for each in state.destinations.values() if each.type == "QUEUE"]
        names += [ref.name for q in state.queries.values() for ref in q.destinations if ref.kind == "QUEUE"]
        raise CatalogError(
            f"there is no queue {name}",
            hint=did_you_mean(name, dict.fromkeys(names))
            or f"CREATE DESTINATION {name} TYPE queue, and let a continuous query deliver to it",
        )
    found = find_destination(state, name)
    if found.type != "QUEUE":
        raise CatalogError(
            f"destination {found.name} is no queue",
            detail=f"it is a {found.type.lower()}",
            hint="SHOW DESTINATIONS lists the queues, too",
        )
    given = {**{key: option.default or "" for key, option in OPTIONS.items()}, **dict(found.options)}
    queries = [query for query in users if (ref := reference(query, name)) and ref.kind == "QUEUE"]
    return Queue(
        found.name, _retention(given["retention"]), _visibility(given["visibility"]), int(given["max_attempts"]),
        found.paused, tuple(queries),
    )  # fmt: skip


def needed_by(services: Services, cursor: Cursor) -> int:
    """The version after which a destination may still read: what retention must keep for it. Of a queue that is what its own
    retention says, whatever its consumers have done."""
    if not cursor.destination.startswith(_PREFIX):
        return needed_from(cursor)
    queue = queue_named(services.catalog.state, cursor.destination.removeprefix(_PREFIX))
    if queue.retention is None:
        return needed_from(cursor)
    try:
        return max(needed_from(cursor), services.catalog.version_at(services.now() - queue.retention))
    except (StorageError, OverflowError):  # before the first commit
        return needed_from(cursor)


KIND = Kind(QueueDestination, OPTIONS, _make)
