"""Objects that a capture has at its source beside the captured table: they come and go with it."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from cq_engine.core.errors import SourceError
from cq_engine.sources.sql.database import Database, Session
from cq_engine.sources.sql.model import Relation, SourceColumn, Statement
from cq_engine.sources.sql.selection import Selection
from cq_engine.sources.sql.servers.server import Found, Server

__all__ = ["LAYOUT", "Installed", "Named", "differences", "digest", "name_for"]

LAYOUT = "layout"
"""Of what a state says: that of all columns of the table. Where it alone is another, all rows are compared."""

_LONGEST = 48
"""So many bytes of a name leave room for the endings that further objects have, on every server."""


def name_for(capture: str, what: str) -> str:
    """The name of what a capture has at its source, `cq_<what>_<capture>`, cut off where a server would not take it."""
    name = f"cq_{what}_{capture.lower()}"
    if len(name.encode()) <= _LONGEST:
        return name
    start = name.encode()[: _LONGEST - 9].decode(errors="ignore")
    return f"{start}_{digest([name])}"


def digest(parts: Iterable[object]) -> str:
    """Eight characters that are others where a part is another."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:8]


class Named:
    """A table `name` that is installed at a source, and others that are called like it, with an ending."""

    def __init__(self, server: Server, schema: str | None, name: str) -> None:
        self.server = server
        self.schema = schema
        self.name = name

    def table(self) -> str:
        """The table's name in SQL."""
        return self.qualified(self.name)

    def qualified(self, name: str) -> str:
        """A name of the table's schema in SQL."""
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


class Installed(Named, ABC):
    """What one capture has at its source beside the one table that it captures."""

    rights: ClassVar[str]
    """What an account needs in order to install it."""
    transactional: ClassVar[bool] = True
    """Whether what is half installed goes away by itself."""

    # ------------------------------------------------------------ at the source

    @abstractmethod
    def create(self, session: Session, selection: Selection) -> list[str]:
        """The statements that install it."""

    @abstractmethod
    def drop(self) -> list[str]:
        """The statements that remove what is there of it; they do not need the captured table."""

    @abstractmethod
    def parts(self, session: Session, relation: Relation) -> dict[str, str]:
        """The objects that are there, each with a text that is another one when it was changed or made anew."""

    def state(self, session: Session, selection: Selection) -> dict[str, str]:
        """What is there, and how the captured columns are declared; all others are in the layout."""
        known = selection.relation
        relation = self.server.describe(session.connection, Found(known.schema, known.name))
        parts = self.parts(session, relation)
        captured = {column.name for column in selection.columns}
        for column in relation.columns:
            if column.name in captured:
                parts[f"column {column.name}"] = self.said_of(column, selection)
        every = [text for column in relation.columns for text in (column.name, column.declared)]
        parts[LAYOUT] = digest([parts.get(LAYOUT, ""), *every])
        return parts

    def said_of(self, column: SourceColumn, selection: Selection) -> str:
        """How a captured column is declared, as far as it matters."""
        del selection
        return column.declared

    def install(self, database: Database, selection: Selection) -> dict[str, str]:
        """Removes what is there of it, and installs it; its state. Raises SourceError, and leaves nothing."""
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
        """Removes what is there of it. Raises SourceError."""
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
