"""What the scheduler knows of a query: what makes it due, and the failure after which it pauses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from cq_engine.grammar.clauses import OnCommit, OnDml, When

if TYPE_CHECKING:
    from cq_engine.schedule.periods import Trigger

__all__ = ["Schedule", "Waiting", "concerns"]


@dataclass(frozen=True)
class Waiting:
    """A query whose last run failed and is tried again: why, how often in a row, when, and when next."""

    error: str
    failures: int
    failed: datetime
    next: datetime

    def __str__(self) -> str:
        return f"{self.error}; failure {self.failures} in a row, next try at {self.next:%Y-%m-%d %H:%M:%S}Z"


@dataclass
class Schedule:
    """What moves one query."""

    when: When
    sources: frozenset[str]
    trigger: Trigger | None
    due: datetime | None
    """The next moment that the clock makes it due; None where no clock does."""
    waiting: Waiting | None = None


def concerns(schedule: Schedule, changed: Mapping[str, frozenset[str]]) -> bool:
    """Whether a commit that did this to these tables makes the query due."""
    when = schedule.when
    if isinstance(when, OnCommit):
        return not schedule.sources.isdisjoint(changed)
    if isinstance(when, OnDml):
        events = frozenset(when.events)
        return any(events & changed.get(table.casefold(), frozenset()) for table in when.tables)
    return False
