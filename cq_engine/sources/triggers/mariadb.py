"""Triggers in MariaDB, which has no DDL in transactions and fires no triggers for cascades of foreign keys nor TRUNCATE."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cq_engine.core.errors import AnalysisError, SourceError
from cq_engine.sources.sql.database import Session
from cq_engine.sources.sql.installed import LAYOUT, digest
from cq_engine.sources.sql.model import Relation, SourceColumn, Statement
from cq_engine.sources.sql.selection import Selection
from cq_engine.sources.triggers.keys import KeyLog

__all__ = ["MariaDBLog", "declared_column"]

_TRIGGERS = ("insert", "update", "delete")
_CASCADES = """
SELECT constraint_name FROM information_schema.referential_constraints
WHERE constraint_schema = ? AND table_name = ?
  AND (delete_rule IN ('CASCADE', 'SET NULL', 'SET DEFAULT') OR update_rule IN ('CASCADE', 'SET NULL', 'SET DEFAULT'))
"""


class MariaDBLog(KeyLog):
    """The time of a change is that of its statement. Transactions are not known.

    A trigger names the key columns. Where one of them is dropped or renamed, MariaDB refuses writes to the table until the
    triggers are removed.
    """

    rights = "grant the account CREATE, DROP, INSERT, SELECT and DELETE on the log, and TRIGGER on the table"
    transactional = False

    def check(self, session: Session, relation: Relation) -> list[str]:
        kind = session.one(
            self.plain(
                "SELECT table_type, engine FROM information_schema.tables WHERE table_schema = ? AND table_name = ?",
                relation.schema,
                relation.name,
            )
        )
        if kind != ("BASE TABLE", "InnoDB"):
            raise AnalysisError(
                f"{relation.shown} is no table of InnoDB", detail="what triggers log of it would not be of one state with it",
                hint="capture it USING COPY or CHECKSUM",
            )  # fmt: skip
        cascade = session.one(self.plain(_CASCADES, relation.schema, relation.name))
        if cascade is not None:
            raise AnalysisError(
                f"foreign key {cascade[0]} of {relation.shown} changes its rows when others change",
                detail="MariaDB fires no triggers for that",
                hint="capture it USING COPY or CHECKSUM",
            )
        if self.number(session, relation):
            return []
        return ["TRUNCATE at the source is not seen unless the account has the right PROCESS"]

    def create(self, session: Session, selection: Selection) -> list[str]:
        del session
        keys = [
            f"{name} {declared_column(column)} NULL"
            for name, column in zip(self.key(selection), selection.key_columns)
        ]
        new, old = (self.of(image, selection) for image in ("NEW", "OLD"))
        same = " AND ".join(f"BINARY {a} <=> BINARY {b}" for a, b in zip(old, new))
        moved = f"IF NOT ({same}) THEN {self._entry(selection, old)}; END IF;"
        bodies = {
            "insert": self._entry(selection, new),
            "update": f"BEGIN {self._entry(selection, new)}; {moved} END",
            "delete": self._entry(selection, old),
        }
        table = f"{self.server.quoted(selection.relation.schema or '')}.{self.server.quoted(selection.relation.name)}"
        columns = [
            "cq_number BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY", "cq_moment DATETIME(6) NOT NULL", *keys,
        ]  # fmt: skip
        relaxed = "SET SESSION sql_mode = ''"  # who writes to the table is not to fail because of the log
        made = [relaxed, f"CREATE TABLE {self.table()} ({', '.join(columns)}) ENGINE = InnoDB"]
        for ending, body in bodies.items():
            name = self.qualified(f"{self.name}_{ending}")
            made.append(f"CREATE TRIGGER {name} AFTER {ending.upper()} ON {table} FOR EACH ROW {body}")
        return made

    def drop(self) -> list[str]:
        triggers = [f"DROP TRIGGER IF EXISTS {self.qualified(f'{self.name}_{end}')}" for end in _TRIGGERS]
        return ["SET SESSION lock_wait_timeout = 10", *triggers, f"DROP TABLE IF EXISTS {self.table()}"]

    def parts(self, session: Session, relation: Relation) -> dict[str, str]:
        found = session.rows(
            self.plain(
                "SELECT trigger_name, created, event_manipulation, event_object_table, action_statement"
                " FROM information_schema.triggers"
                f" WHERE trigger_schema = ? AND trigger_name IN ({', '.join('?' * len(_TRIGGERS))})",
                self.schema,
                *(f"{self.name}_{ending}" for ending in _TRIGGERS),
            )
        )
        parts = {f"trigger {name}": digest(rest) for name, *rest in sorted(found)}
        log = session.one(
            self.plain(
                "SELECT create_time FROM information_schema.tables WHERE table_schema = ? AND table_name = ?",
                self.schema,
                self.name,
            )
        )
        if log is not None:
            parts[f"table {self.name}"] = ""
        parts[LAYOUT] = self.number(session, relation)
        return parts

    def number(self, session: Session, relation: Relation) -> str:
        """What is another one after TRUNCATE; empty where the account cannot see it."""
        names = [relation.schema or "", relation.name]
        if not all(re.fullmatch(r"[A-Za-z0-9_]+", name) for name in names):
            return ""  # it would be written in a way of its own
        sql = "SELECT table_id FROM information_schema.innodb_sys_tables WHERE name = ?"
        try:
            found = session.one(self.plain(sql, "/".join(names)))
        except SourceError:
            return ""
        return "" if found is None else str(found[0])

    def _entry(self, selection: Selection, key: Sequence[str]) -> str:
        values = ", ".join(["UTC_TIMESTAMP(6)", *key])
        return f"INSERT INTO {self.table()} ({self.columns(selection)}) VALUES ({values})"

    def deletion(self, numbers: Sequence[int]) -> Statement:
        """One by one by the primary key, in this order of the join: a scan, which the server takes for a list of numbers in a
        small log whatever index is forced, would wait for rows that others have not committed."""
        first, *others = numbers
        given = " UNION ALL ".join([f"SELECT {first} AS cq_number", *(f"SELECT {n}" for n in others)])
        return self.plain(
            f"DELETE l FROM ({given}) AS g STRAIGHT_JOIN {self.table()} AS l ON l.cq_number = g.cq_number"
        )


def declared_column(column: SourceColumn) -> str:
    """A column of a log that takes the values of a table's."""
    return column.declared + (f" COLLATE {column.collation}" if column.collation else "")
