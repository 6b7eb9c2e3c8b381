"""The channel of a source: one log of all tables of it that a view joins, which comes and goes with the view.

Every change is there with the rows before and after it. What is read of a log, and the rows that a source answers, are of one
state of the source: both are read in one transaction (`Database.connect`), which locks nobody out.

Where a reader stands is a token, of which it is only known that it can be stored as JSON.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from cq_engine.core.errors import AnalysisError, SourceError
from cq_engine.sources.sql.database import Database, Session
from cq_engine.sources.sql.installed import LAYOUT, Named, digest
from cq_engine.sources.sql.model import Statement
from cq_engine.sources.sql.selection import Selection
from cq_engine.sources.sql.servers.server import Found, Server
from cq_engine.sources.triggers.log import Log as OneTableLog

__all__ = ["ChannelLog", "GapError", "Logged", "Token", "Transaction", "TriggeredLog"]

Token = Mapping[str, Any]
Values = tuple[Any, ...]


class GapError(Exception):
    """The log does not tell what has happened, or more than can be taken: all rows have to be read once more."""


@dataclass(frozen=True)
class Logged:
    """A change of a row: values of the logged columns before and after, as the driver has them; None where there is no row."""

    table: int
    """The place of the table among those of the log."""
    before: Values | None
    after: Values | None


@dataclass(frozen=True)
class Transaction:
    """Changes that were committed together, as far as the source tells; `token` stands behind it and all before it."""

    changes: tuple[Logged, ...]
    committed: datetime
    token: Token


class ChannelLog(Named):
    """The log of one view at one source. `selections` are the tables, each with the columns that the view uses."""

    def __init__(
        self, server: Server, schema: str | None, name: str, selections: Sequence[Selection]
    ) -> None:
        super().__init__(server, schema, name)
        self.selections = tuple(selections)

    # ------------------------------------------------------------ at the source

    @abstractmethod
    def check(self, session: Session) -> list[str]:
        """Notes for a person. Raises AnalysisError where the log would not tell all that happens to a table."""

    @abstractmethod
    def install(self, database: Database) -> dict[str, str]:
        """Removes what is there of it, and installs it; its state. Raises SourceError, and leaves nothing."""

    @abstractmethod
    def remove(self, database: Database) -> None:
        """Removes what is there of it. Raises SourceError."""

    @abstractmethod
    def parts(self, session: Session) -> dict[str, str]:
        """The objects that are there, each with a text that is another one when it was changed or made anew."""

    def hold(self, session: Session) -> None:
        """Keeps the tables from being altered while the session lasts, as reading them does, where nothing else does."""

    @abstractmethod
    def end(self, session: Session) -> Token:
        """Where the log is now: behind all that the session sees."""

    @abstractmethod
    def read(self, session: Session, token: Token, most: int) -> tuple[list[Transaction], Token]:
        """What is logged behind a token, and the token behind it. Raises GapError where that is more than `most` changes, or
        not all that there was."""

    @abstractmethod
    def clean(self, database: Database, token: Token) -> None:
        """Deletes what is logged before a token, piece by piece."""

    def state(self, session: Session) -> dict[str, str]:
        """What is there, and how the logged columns are declared; what all columns of the tables are is in the layout."""
        parts, every = self.parts(session), []
        every.append(parts.pop(LAYOUT, ""))
        for each in self.selections:
            known = each.relation
            relation = self.server.describe(session.connection, Found(known.schema, known.name))
            logged = {column.name for column in each.columns}
            for column in relation.columns:
                every += [column.name, column.declared]
                if column.name in logged:
                    parts[f"column {known.name}.{column.name}"] = (
                        f"{column.declared} {column.collation or ''}".strip()
                    )
        parts[LAYOUT] = digest(every)
        return parts

    # ------------------------------------------------------------ SQL

    def table_of(self, selection: Selection) -> str:
        """A captured table's name in SQL."""
        relation = selection.relation
        name = self.server.quoted(relation.name)
        return f"{self.server.quoted(relation.schema)}.{name}" if relation.schema else name

    def in_order(self, session: Session, sql: str) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        return session.rows(Statement(sql.replace("%", self.server.percent)))


class TriggeredLog(ChannelLog):
    """A log that triggers write, at the source."""

    rights: ClassVar[str]
    """What an account needs in order to install it."""
    transactional: ClassVar[bool] = True
    """Whether what is half installed goes away by itself."""

    @abstractmethod
    def single(self, schema: str | None) -> OneTableLog:
        """What captures one table of this server by triggers: what it refuses is refused here, too."""

    @abstractmethod
    def create(self, session: Session) -> list[str]:
        """The statements that install log and triggers."""

    @abstractmethod
    def drop(self, session: Session) -> list[str]:
        """The statements that remove what is there of them."""

    def check(self, session: Session) -> list[str]:
        """Notes for a person. Raises AnalysisError where triggers would not see all that happens to a table."""
        if self.server.find(session.connection, self.schema, self.name):
            raise AnalysisError(
                f"there is a table {self.name} at the source already",
                detail="it is the log of a query of this name, maybe of another warehouse",
                hint="choose another name for the query, or drop the table and what writes to it",
            )
        notes: list[str] = []
        for each in self.selections:
            try:
                notes += self.single(each.relation.schema).check(session, each.relation)
            except AnalysisError as error:
                raise AnalysisError(
                    error.message,
                    detail=error.detail,
                    hint="CREATE CAPTURE keeps a copy of it, by another method than LOG; join that",
                ) from None
        return notes

    def install(self, database: Database) -> dict[str, str]:
        """Removes what is there of it, and installs it; its state. Raises SourceError, and leaves nothing."""
        try:
            with database.write() as session:
                self._run(session, self.drop)
                self._run(session, self.create)
                return self.state(session)
        except SourceError as error:
            if not self.transactional:
                self.remove(database)
            raise SourceError(
                f"the log {self.name} cannot be installed at source {database.name}",
                detail=error.message,
                hint=f"{self.rights}, or keep copies with CREATE CAPTURE",
            ) from error

    def remove(self, database: Database) -> None:
        """Removes what is there of it. Raises SourceError."""
        with database.write() as session:
            self._run(session, self.drop)

    def _run(self, session: Session, statements: Callable[[Session], list[str]]) -> None:
        for sql in statements(session):
            session.change(self.plain(sql))
