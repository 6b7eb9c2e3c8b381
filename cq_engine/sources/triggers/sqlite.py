"""Triggers in SQLite. REPLACE removes rows without firing triggers for them: one before each write logs the rows that it may
remove, which are looked at again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cq_engine.core.errors import AnalysisError
from cq_engine.sources.sql.database import Session
from cq_engine.sources.sql.installed import Named, digest
from cq_engine.sources.sql.model import Relation
from cq_engine.sources.sql.selection import Selection
from cq_engine.sources.triggers.keys import KeyLog

__all__ = ["SQLiteLog", "unique_indexes"]

_MOMENT = "strftime('%Y-%m-%d %H:%M:%f', 'now')"
_TRIGGERS = ("insert", "update", "delete", "before_insert", "before_update")


class SQLiteLog(KeyLog):
    """The time of a change is that of its statement, to the millisecond. Transactions are not known."""

    rights = "the file must be one that this process may write"

    def check(self, session: Session, relation: Relation) -> list[str]:
        place = self.server.quoted(self.schema or "main")
        kind = session.one(
            self.plain(f"SELECT type FROM {place}.sqlite_master WHERE name = ?", relation.name)
        )
        if kind != ("table",):
            raise AnalysisError(
                f"{relation.shown} is no table", detail="triggers see what is written to tables alone",
                hint="capture it USING COPY or CHECKSUM",
            )  # fmt: skip
        return []

    def create(self, session: Session, selection: Selection) -> list[str]:
        keys = ", ".join(self.key(selection))
        made = [
            f"CREATE TABLE {self.table()} (cq_number INTEGER PRIMARY KEY AUTOINCREMENT, cq_moment TEXT, {keys})"
        ]
        new, old = (self.of(image, selection) for image in ("NEW", "OLD"))
        moved = " OR ".join(f"CAST({a} AS BLOB) IS NOT CAST({b} AS BLOB)" for a, b in zip(old, new))
        made.append(self._trigger(selection, "AFTER INSERT", "insert", [self._entry(new)]))
        entries = [self._entry(new), f"{self._entry(old)} WHERE {moved}"]
        made.append(self._trigger(selection, "AFTER UPDATE", "update", entries))
        made.append(self._trigger(selection, "AFTER DELETE", "delete", [self._entry(old)]))
        others = list(self._unique(session, selection))
        for event, ending in (("INSERT", "before_insert"), ("UPDATE", "before_update")) if others else ():
            removed = self._removed(selection, others, event)
            made.append(self._trigger(selection, f"BEFORE {event}", ending, [removed]))
        into = f"INSERT INTO {self.server.quoted(self.name)} ({self.columns(selection)})"
        return [statement.replace("\0", into) for statement in made]

    def drop(self) -> list[str]:
        triggers = [f"DROP TRIGGER IF EXISTS {self.qualified(f'{self.name}_{end}')}" for end in _TRIGGERS]
        return [*triggers, f"DROP TABLE IF EXISTS {self.table()}"]

    def parts(self, session: Session, relation: Relation) -> dict[str, str]:
        del relation
        names = [self.name, *(f"{self.name}_{ending}" for ending in _TRIGGERS)]
        marks = ", ".join("?" * len(names))
        found = session.rows(
            self.plain(
                f"SELECT type, name, tbl_name, sql FROM {self.server.quoted(self.schema or 'main')}.sqlite_master"
                f" WHERE name IN ({marks})",
                *names,
            )
        )
        return {f"{kind} {name}": digest([of, sql]) for kind, name, of, sql in sorted(found)}

    def _trigger(self, selection: Selection, event: str, ending: str, body: list[str]) -> str:
        on = self.server.quoted(selection.relation.name)
        statements = " ".join(f"{statement};" for statement in body)
        name = self.qualified(f"{self.name}_{ending}")
        return f"CREATE TRIGGER {name} {event} ON {on} BEGIN {statements} END"

    def _entry(self, key: list[str]) -> str:
        return f"\0 SELECT {_MOMENT}, {', '.join(key)}"

    def _removed(self, selection: Selection, others: list[list[tuple[str, str]]], event: str) -> str:
        """The keys of the rows that have what the new row has in columns that are unique."""
        quoted, cases = self.server.quoted, []
        for columns in others:
            same = [f"{quoted(c)} COLLATE {quoted(collation)} = NEW.{quoted(c)}" for c, collation in columns]
            if event == "UPDATE":
                other = " OR ".join(f"NEW.{quoted(c)} IS NOT OLD.{quoted(c)}" for c, _ in columns)
                same.append(f"({other})")
            cases.append(f"({' AND '.join(same)})")
        keys = ", ".join(map(quoted, selection.key))
        table = quoted(selection.relation.name)
        return f"\0 SELECT {_MOMENT}, {keys} FROM {table} WHERE {' OR '.join(cases)}"

    def _unique(self, session: Session, selection: Selection) -> Iterator[list[tuple[str, str]]]:
        """Columns that are unique together, with their collations, other than the key."""
        key = set(selection.key)
        for unique in unique_indexes(self, session, selection.relation):
            columns = [(name, collation) for name, collation in unique.columns if name is not None]
            if columns and {name for name, _ in columns} != key:
                yield columns


@dataclass(frozen=True)
class Unique:
    """What is unique in a table."""

    columns: tuple[tuple[str | None, str], ...]
    """With the collations by which they are; None for an expression."""
    partial: bool = False
    """Only of some rows."""


def unique_indexes(log: Named, session: Session, relation: Relation) -> Iterator[Unique]:
    """The primary key, and what else is unique in a table, maybe the key once more."""
    if relation.key:
        yield Unique(tuple((name, "BINARY") for name in relation.key))
    place = log.server.quoted(log.schema or "main")
    found = session.rows(log.plain(f"PRAGMA {place}.index_list({log.server.quoted(relation.name)})"))
    for _, index, unique, _, partial in found:
        if unique:
            rows = session.rows(log.plain(f"PRAGMA {place}.index_xinfo({log.server.quoted(index)})"))
            columns = tuple((name, collation) for _, _, name, _, collation, in_key in rows if in_key)
            yield Unique(columns, bool(partial))
