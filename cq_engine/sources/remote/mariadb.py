"""The log of a view in MariaDB, which has no DDL in transactions and fires no triggers for cascades of foreign keys nor TRUNCATE."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from cq_engine.sources.remote.numbered import Entry, NumberedLog
from cq_engine.sources.sql.database import Session
from cq_engine.sources.sql.installed import LAYOUT, digest
from cq_engine.sources.sql.model import Statement
from cq_engine.sources.sql.selection import Selection
from cq_engine.sources.triggers.mariadb import MariaDBLog, declared_column

__all__ = ["MariaDBChannel"]

_MOMENT = "UTC_TIMESTAMP(6)"
_ENDINGS = ("insert", "update", "delete")


class MariaDBChannel(NumberedLog):
    """The time of a change is that of its statement.

    Triggers name the logged columns and the key's. Where one of them is dropped or renamed, MariaDB refuses writes to the table
    until the triggers are removed. They are fired by UPDATE IGNORE for rows that it leaves as they are, too: what is logged of
    an update are rows that have become what they were to be.
    """

    rights = "grant the account CREATE, DROP, INSERT, SELECT and DELETE on the log, and TRIGGER on the tables"
    transactional = False

    def single(self, schema: str | None) -> MariaDBLog:
        return MariaDBLog(self.server, schema, self.name)

    def create(self, session: Session) -> list[str]:
        del session
        columns = [
            "cq_number BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY", "cq_moment DATETIME(6) NOT NULL",
            "cq_table INT NOT NULL", "cq_operation CHAR(1) NOT NULL",
        ]  # fmt: skip
        for place, each in enumerate(self.selections):
            for which in ("old", "new"):
                for column, name in zip(each.columns, self.image(place, which)):
                    columns.append(f"{name} {declared_column(each.relation.column(column.name))} NULL")
        relaxed = "SET SESSION sql_mode = ''"  # who writes to the table is not to fail because of the log
        made = [relaxed, f"CREATE TABLE {self.table()} ({', '.join(columns)}) ENGINE = InnoDB"]
        for place, each in enumerate(self.selections):
            bodies = {
                "insert": self.entry(place, "I", _MOMENT, None, "NEW"),
                "update": f"{self.entry(place, 'U', _MOMENT, 'OLD', 'NEW')} FROM {self._updated(each)}",
                "delete": self.entry(place, "D", _MOMENT, "OLD", None),
            }
            for ending, body in bodies.items():
                on = f"AFTER {ending.upper()} ON {self.table_of(each)}"
                made.append(f"CREATE TRIGGER {self._trigger(place, ending)} {on} FOR EACH ROW {body}")
        return made

    def _updated(self, each: Selection) -> str:
        """The row that has been updated, as a table with its condition; without a row where the update was ignored."""
        key = [self.server.quoted(name) for name in each.relation.key or each.key]
        logged = [self.server.quoted(column.name) for column in each.columns]

        def is_there(alias: str, image: str, columns: list[str]) -> str:
            found = [f"{alias}.{name} = {image}.{name}" for name in key]
            same = [f"BINARY {alias}.{name} <=> BINARY {image}.{name}" for name in columns]
            return " AND ".join(dict.fromkeys([*found, *same]))

        table = self.table_of(each)
        stayed = " AND ".join(f"BINARY OLD.{name} <=> BINARY NEW.{name}" for name in key)
        left = f"NOT EXISTS (SELECT 1 FROM {table} AS o WHERE {is_there('o', 'OLD', key)})"
        return f"{table} AS n WHERE {is_there('n', 'NEW', [*key, *logged])} AND ({stayed} OR {left})"

    def drop(self, session: Session) -> list[str]:
        del session
        triggers = [
            f"DROP TRIGGER IF EXISTS {self._trigger(place, ending)}"
            for place in range(len(self.selections))
            for ending in _ENDINGS
        ]
        return ["SET SESSION lock_wait_timeout = 10", *triggers, f"DROP TABLE IF EXISTS {self.table()}"]

    def _trigger(self, place: int, ending: str) -> str:
        """A trigger is in the database of its table."""
        schema = self.selections[place].relation.schema
        name = self.server.quoted(f"{self.name}_{place}_{ending}")
        return f"{self.server.quoted(schema)}.{name}" if schema else name

    def parts(self, session: Session) -> dict[str, str]:
        parts, numbers = {}, []
        for place, each in enumerate(self.selections):
            names = [f"{self.name}_{place}_{ending}" for ending in _ENDINGS]
            found = session.rows(
                self.plain(
                    "SELECT trigger_name, created, event_manipulation, event_object_table, action_statement"
                    " FROM information_schema.triggers WHERE trigger_schema = ? AND trigger_name IN (?, ?, ?)",
                    each.relation.schema, *names,
                )
            )  # fmt: skip
            parts.update({f"trigger {name}": digest(rest) for name, *rest in sorted(found)})
            numbers.append(self._number(session, each))
        log = session.one(
            self.plain(
                "SELECT 1 FROM information_schema.tables WHERE table_schema = ? AND table_name = ?",
                self.schema,
                self.name,
            )
        )
        if log is not None:
            parts[f"table {self.name}"] = ""
        parts[LAYOUT] = digest(numbers)
        return parts

    def _number(self, session: Session, each: Selection) -> str:
        """What is another one after TRUNCATE; empty where the account cannot see it."""
        return self.single(each.relation.schema).number(session, each.relation)

    # ------------------------------------------------------------ reading

    def resolved(self, place: int, entries: Iterable[Entry]) -> Iterator[Entry]:
        del place
        yield from entries

    def deletion(self, numbers: Sequence[int]) -> Statement:
        return self.single(self.schema).deletion(numbers)
