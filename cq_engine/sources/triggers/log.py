"""A log at the source beside the captured table, and the triggers that write it: what all servers have of it."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, ClassVar

import pyarrow as pa

from cq_engine.catalog.model import Capture
from cq_engine.core.errors import SourceError
from cq_engine.sources.methods.relational import Asked
from cq_engine.sources.sql.conversions import parsed
from cq_engine.sources.sql.database import Database, Session
from cq_engine.sources.sql.model import Relation, Statement
from cq_engine.sources.sql.selection import Selection
from cq_engine.sources.sql.servers.server import Found, Server
from cq_engine.sources.tick import COMMITTED, OPERATION, TRANSACTION, Tick

__all__ = ["LAYOUT", "PIECE", "Log", "Logged", "as_changes", "differences", "digest", "instant", "log_name"]

PIECE = 1000
"""So many rows of a log are deleted at once, so that nobody waits long for their locks."""
LAYOUT = "layout"
"""Of what a log's state says: that of all columns of the table. Where it alone is another, all rows are compared."""

_LONGEST = 48
"""So many bytes of a name leave room for the endings that the names of triggers have, on every server."""


def log_name(capture: Capture) -> str:
    """The name of the log of a capture: `cq_log_<capture>`, cut off where a server would not take it."""
    name = f"cq_log_{capture.name.lower()}"
    if len(name.encode()) <= _LONGEST:
        return name
    start = name.encode()[: _LONGEST - 9].decode(errors="ignore")
    return f"{start}_{digest([name])}"


def digest(parts: Iterable[object]) -> str:
    """Eight characters that are others where a part is another."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:8]


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


class Log(ABC):
    """The log of one capture. Its columns are called `cq_...`; the triggers are called like the log, with an ending."""

    rights: ClassVar[str]
    """What an account needs in order to install it."""
    transactional: ClassVar[bool] = True
    """Whether what is half installed goes away by itself."""

    def __init__(self, server: Server, schema: str | None, name: str) -> None:
        self.server = server
        self.schema = schema
        self.name = name

    # ------------------------------------------------------------ at the source

    @abstractmethod
    def check(self, session: Session, relation: Relation) -> list[str]:
        """Notes for a person. Raises AnalysisError where triggers would not see all that happens to the table."""

    @abstractmethod
    def create(self, session: Session, selection: Selection) -> list[str]:
        """The statements that install log and triggers."""

    @abstractmethod
    def drop(self) -> list[str]:
        """The statements that remove what is there of them; they do not need the captured table."""

    @abstractmethod
    def parts(self, session: Session, relation: Relation) -> dict[str, str]:
        """The log and its triggers that are there, each with a text that is another one when it was changed or made anew."""

    def hold(self, session: Session, relation: Relation) -> None:
        """Keeps the table from being altered as long as the session lasts, where that is not so anyway."""
        del session, relation

    def state(self, session: Session, selection: Selection) -> dict[str, str]:
        """What is there of the log, and how the captured columns are declared; all others are in the layout."""
        known = selection.relation
        relation = self.server.describe(session.connection, Found(known.schema, known.name))
        parts = self.parts(session, relation)
        declared = {column.name: column.declared for column in relation.columns}
        for column in selection.columns:
            if column.name in declared:
                parts[f"column {column.name}"] = declared[column.name]
        every = [text for pair in declared.items() for text in pair]
        parts[LAYOUT] = digest([parts.get(LAYOUT, ""), *every])
        return parts

    # ------------------------------------------------------------ reading

    @abstractmethod
    def read(self, tick: Tick, asked: Asked, session: Session, read: Any, *, whole: bool) -> Logged:
        """What the log has that a position with `read` does not: with `whole`, only what of it will be done with."""

    @abstractmethod
    def clean(self, database: Database, rows: Any) -> None:
        """Deletes rows of the log, piece by piece."""

    # ------------------------------------------------------------ SQL

    def table(self) -> str:
        """The log's name in SQL."""
        return self.qualified(self.name)

    def qualified(self, name: str) -> str:
        """A name of the log's schema in SQL."""
        quoted = self.server.quoted(name)
        return f"{self.server.quoted(self.schema)}.{quoted}" if self.schema else quoted

    def plain(self, sql: str, *values: Any) -> Statement:
        """A statement whose parameters are `?`."""
        text = sql.replace("%", self.server.percent)
        return Statement(text.replace("?", self.server.mark) if values else text, values)

    def run(self, session: Session, statements: Iterable[str]) -> None:
        """Runs statements that have no parameters."""
        for sql in statements:
            session.change(self.plain(sql))

    def install(self, database: Database, selection: Selection) -> dict[str, str]:
        """Removes what is there of log and triggers, and installs them; their state. Raises SourceError, and leaves nothing."""
        try:
            with database.write() as session:
                self.run(session, self.drop())
                self.run(session, self.create(session, selection))
                return self.state(session, selection)
        except SourceError:
            if not self.transactional:
                self.remove(database)
            raise

    def remove(self, database: Database) -> None:
        """Removes log and triggers. Raises SourceError."""
        with database.write() as session:
            self.run(session, self.drop())


def differences(was: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What is not as it was, in words."""
    found = [f"{name} is gone" for name in was if name not in now]
    for name, text in was.items():
        if name != LAYOUT and now.get(name, text) != text:
            is_column = name.startswith("column ")
            found.append(f"{name} was {text} and is {now[name]}" if is_column else f"{name} was changed")
    return found
