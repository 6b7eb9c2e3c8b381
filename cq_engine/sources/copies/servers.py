"""The copies of SQLite, PostgreSQL and MariaDB: their types, and how values are compared there."""

from __future__ import annotations

import re

from cq_engine.sources.copies.table import CopyTable
from cq_engine.sources.sql.database import Session
from cq_engine.sources.sql.installed import digest
from cq_engine.sources.sql.model import SourceColumn, is_number

__all__ = ["COPIES"]


class SQLiteCopy(CopyTable):
    """A column that is no part of the key has no type, which would change values. One of the key is converted as that of the
    table is, so that its index serves."""

    rights = "the file must be one that this process may write"
    locks = ""

    def declared(self, column: SourceColumn, *, is_key: bool) -> str:
        return _affinity(column.declared) if is_key else ""

    def same(self, column: SourceColumn, base: str, copy: str) -> str:
        del column
        return (
            f"{base} = {copy} AND {base} COLLATE BINARY = {copy} COLLATE BINARY"  # one for the index of each
        )

    def differs(self, column: SourceColumn, base: str, copy: str) -> str:
        del column
        return f"typeof({base}) <> typeof({copy}) OR {base} COLLATE BINARY IS NOT {copy} COLLATE BINARY"

    def made(self, session: Session, name: str) -> str | None:
        place = self.server.quoted(self.schema or "main")
        sql = f"SELECT sql FROM {place}.sqlite_master WHERE type = 'table' AND name = ?"
        found = session.one(self.plain(sql, name))
        return None if found is None else digest(found)


class PostgreSQLCopy(CopyTable):
    """Texts of values are compared byte by byte, as not every type has a comparison, and not every collation tells texts apart."""

    rights = "grant the account SELECT on the table, and CREATE on its schema"

    def declared(self, column: SourceColumn, *, is_key: bool) -> str:
        text = column.declared + (' COLLATE "C"' if column.collation else "")
        return text + (" NOT NULL" if is_key else "")

    def same(self, column: SourceColumn, base: str, copy: str) -> str:
        if is_number(column.type) or column.type.startswith(("boolean", "date", "time", "binary")):
            return f"{base} = {copy}"
        return f"{self._text(base)} = {self._text(copy)}"

    def differs(self, column: SourceColumn, base: str, copy: str) -> str:
        del column
        return f"{self._text(base)} IS DISTINCT FROM {self._text(copy)}"

    def made(self, session: Session, name: str) -> str | None:
        found = session.one(self.plain("SELECT CAST(to_regclass(?) AS oid)", self.qualified(name)))
        return str(found[0]) if found is not None and found[0] is not None else None

    def drop(self) -> list[str]:
        return ["SET LOCAL lock_timeout = '10s'", *super().drop()]

    def _text(self, sql: str) -> str:
        return f'CAST({sql} AS text) COLLATE "C"'


class MariaDBCopy(CopyTable):
    """A column has the collation of the table's, so that either index of a key serves; bytes decide."""

    rights = "grant the account SELECT on the table, and CREATE, DROP, SELECT, INSERT, UPDATE and DELETE on its database"
    transactional = False
    ending = " ENGINE = InnoDB"

    def declared(self, column: SourceColumn, *, is_key: bool) -> str:
        text = column.declared + (f" COLLATE {column.collation}" if column.collation else "")
        return text + (" NOT NULL" if is_key else " NULL")

    def same(self, column: SourceColumn, base: str, copy: str) -> str:
        equal = f"{base} = {copy}"
        return f"{equal} AND BINARY {base} = BINARY {copy}" if column.collation else equal

    def differs(self, column: SourceColumn, base: str, copy: str) -> str:
        one, other = (f"CAST({self.server.read(column, sql)} AS BINARY)" for sql in (base, copy))
        return f"NOT ({one} <=> {other})"

    def made(self, session: Session, name: str) -> str | None:
        sql = "SELECT 1 FROM information_schema.tables WHERE table_schema = ? AND table_name = ?"
        return None if session.one(self.plain(sql, self.schema, name)) is None else ""

    def drop(self) -> list[str]:
        return ["SET SESSION lock_wait_timeout = 10", *super().drop()]

    def relax(self, session: Session) -> None:
        """Values that the server would not take any more are in the table nevertheless, and go into the copy."""
        mode = "@@SESSION.sql_mode"
        for name in ("STRICT_TRANS_TABLES", "STRICT_ALL_TABLES", "NO_ZERO_IN_DATE", "NO_ZERO_DATE"):
            mode = f"REPLACE({mode}, '{name}', '')"
        self.run(session, [f"SET SESSION sql_mode = {mode}"])


def _affinity(declared: str) -> str:
    """How SQLite converts the values of a column, by a name that makes no column the row's number.

    >>> [_affinity(text) for text in ("INTEGER", "varchar(9)", "", "REAL", "DECIMAL(10, 2)", "ANY")]
    ['INT', 'TEXT', '', 'REAL', 'NUMERIC', '']
    """
    text = declared.upper()
    if text in ("", "ANY"):
        return ""
    for words, name in (("INT", "INT"), ("CHAR|CLOB|TEXT", "TEXT"), ("BLOB", ""), ("REAL|FLOA|DOUB", "REAL")):
        if re.search(words, text):
            return name
    return "NUMERIC"


COPIES: dict[str, type[CopyTable]] = {
    "sqlite": SQLiteCopy,
    "postgresql": PostgreSQLCopy,
    "mariadb": MariaDBCopy,
    "mysql": MariaDBCopy,
}
"""By the name of the server."""
