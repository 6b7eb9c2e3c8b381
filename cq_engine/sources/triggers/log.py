"""A log at the source beside the captured table, and the triggers that write it: what all servers have of it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa

from cq_engine.catalog.model import Capture
from cq_engine.sources.methods.relational import Asked
from cq_engine.sources.sql.conversions import parsed
from cq_engine.sources.sql.database import Database, Session
from cq_engine.sources.sql.installed import Installed, name_for
from cq_engine.sources.sql.model import Relation
from cq_engine.sources.tick import COMMITTED, OPERATION, TRANSACTION, Tick

__all__ = ["PIECE", "Log", "Logged", "as_changes", "instant", "log_name"]

PIECE = 1000
"""So many rows of a log are deleted at once, so that nobody waits long for their locks."""


def log_name(capture: Capture) -> str:
    """The name of the log of a capture: `cq_log_<capture>`, cut off where a server would not take it."""
    return name_for(capture.name, "log")


def instant(value: Any) -> datetime:
    """A moment of the log, which is in UTC."""
    moment = parsed(value) if isinstance(value, str) else value
    assert isinstance(moment, datetime)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)


def as_changes(
    rows: pa.Table, operations: Sequence[str], transactions: Sequence[int], times: Sequence[datetime]
) -> pa.Table:
    """Rows of a table as changes of the source's transactions."""
    rows = rows.append_column(OPERATION, pa.array(operations, pa.string()))
    rows = rows.append_column(TRANSACTION, pa.array(transactions, pa.int64()))
    return rows.append_column(COMMITTED, pa.array(times, pa.timestamp("us", tz="UTC")))


@dataclass(frozen=True)
class Logged:
    """What a tick finds in a log."""

    changes: pa.Table | None
    """None where all rows are to be compared."""
    read: Any
    """What a position remembers, so that nothing is read twice where that would matter."""
    rows: Any
    """Which rows of the log can be deleted once this is durable; false where there are none."""


class Log(Installed):
    """The log of one capture. Its columns are called `cq_...`; the triggers are called like the log, with an ending."""

    @abstractmethod
    def check(self, session: Session, relation: Relation) -> list[str]:
        """Notes for a person. Raises AnalysisError where triggers would not see all that happens to the table."""

    def hold(self, session: Session, relation: Relation) -> None:
        """Keeps the table from being altered as long as the session lasts, where that is not so anyway."""
        del session, relation

    @abstractmethod
    def read(self, tick: Tick, asked: Asked, session: Session, read: Any, *, whole: bool) -> Logged:
        """What the log has that a position with `read` does not: with `whole`, only what of it will be done with."""

    @abstractmethod
    def clean(self, database: Database, rows: Any) -> None:
        """Deletes rows of the log, piece by piece."""
