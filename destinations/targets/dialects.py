"""What PostgreSQL, MariaDB and SQLite do each in a way of their own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError
from sqlalchemy.types import LargeBinary, String

__all__ = ["DIALECTS", "Dialect", "said_by"]

_LOCK_SECONDS = 30
_INDEX_BYTES = 3072
"""What a key of InnoDB may have, in its default row format."""
_INDEX_COLUMNS = 32
_PREFIX = 255
_FIXED = 24
"""Bytes in an index of what is neither text nor binary, at most."""


class Dialect(ABC):
    """Statements have the table as `t` and the stage, in which changes wait to be merged, as `s`."""

    extra: ClassVar[str] = ""
    """What has the driver: `cq-engine[extra]`."""
    is_server: ClassVar[bool] = True
    settings: ClassVar[tuple[str, ...]] = ()
    """Said on each new connection."""
    begin: ClassVar[tuple[str, ...]] = ()
    """Said at the beginning of each transaction."""
    same: ClassVar[str] = "IS NOT DISTINCT FROM"
    """`=` where two NULLs are equal."""
    ddl_commits: ClassVar[bool] = False
    """A new table ends the transaction."""
    of_stage: ClassVar[str] = ""
    """Said of it when it is made."""
    drop: ClassVar[str] = "DROP TABLE"
    """What ends it."""

    @abstractmethod
    def delete(self, table: str, stage: str, which: str) -> str:
        """Removes the rows of the table for which `which` holds."""

    @abstractmethod
    def update(self, table: str, stage: str, names: Sequence[str], which: str) -> str:
        """Gives these columns the values that the stage has."""

    @abstractmethod
    def is_away(self, error: SQLAlchemyError) -> bool:
        """Whether nothing answers, or what answers has no time now."""

    def index(self, name: str, key: Sequence[sa.Column[Any]]) -> sa.Index:
        """By which rows of the key are found."""
        return sa.Index(name, *key, unique=True)


class _PostgreSQL(Dialect):
    extra = "postgres"
    begin = (
        f"SET LOCAL lock_timeout = '{_LOCK_SECONDS}s'",
        "SET LOCAL idle_in_transaction_session_timeout = 0",
    )
    of_stage = "ON COMMIT DROP "

    _AWAY = ("starting up", "shutting down", "too many", "connection slots", "recovery mode")

    def delete(self, table: str, stage: str, which: str) -> str:
        return f"DELETE FROM {table} AS t USING {stage} AS s WHERE {which}"

    def update(self, table: str, stage: str, names: Sequence[str], which: str) -> str:
        return f"UPDATE {table} AS t SET {_values(names)} FROM {stage} AS s WHERE {which}"

    def is_away(self, error: SQLAlchemyError) -> bool:
        if not isinstance(error, OperationalError):
            return False
        said = said_by(error)
        return "FATAL:" not in said or any(word in said for word in self._AWAY)


class _MariaDB(Dialect):
    """Waits for a lock, and keeps an idle transaction, as long as on PostgreSQL; refuses what it would else cut off."""

    extra = "mariadb"
    same = "<=>"
    ddl_commits = True
    drop = "DROP TEMPORARY TABLE"

    settings = (
        "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,NO_AUTO_VALUE_ON_ZERO'",
        f"SET SESSION innodb_lock_wait_timeout = {_LOCK_SECONDS}, wait_timeout = 28800, max_statement_time = 0",
        "SET SESSION idle_transaction_timeout = 0, idle_write_transaction_timeout = 0",
    )
    begin = ("START TRANSACTION",)  # whatever a parameter of the URL says of autocommit

    _FROM_CLIENT = frozenset(range(2000, 3000)) - {2026, 2059, 2061}
    """No server has said what has these numbers; but for those of TLS and of ways to log in, which the client has not."""
    _BUSY = (1040, 1053, 1152, 1158, 1159, 1160, 1161, 1203, 1205, 1213, 1226, 1927)
    """Too many connections, a shutdown, a broken line, a lock that somebody else has."""

    def delete(self, table: str, stage: str, which: str) -> str:
        return f"DELETE t FROM {stage} AS s STRAIGHT_JOIN {table} AS t WHERE {which}"

    def update(self, table: str, stage: str, names: Sequence[str], which: str) -> str:
        return f"UPDATE {stage} AS s STRAIGHT_JOIN {table} AS t SET {_values(names, 't.')} WHERE {which}"

    def is_away(self, error: SQLAlchemyError) -> bool:
        number = next(iter(getattr(getattr(error, "orig", None), "args", ())), None)
        return isinstance(error, DBAPIError) and (
            number == 0 or number in self._BUSY or number in self._FROM_CLIENT
        )

    def index(self, name: str, key: Sequence[sa.Column[Any]]) -> sa.Index:
        """Of text the beginning, which then is not unique: the whole of it has no index that finds rows."""
        key = key[:_INDEX_COLUMNS]
        texts = [column for column in key if isinstance(column.type, (String, LargeBinary, sa.JSON))]
        if not texts:
            return sa.Index(name, *key, unique=True)
        room = (_INDEX_BYTES - _FIXED * (len(key) - len(texts))) // len(texts)
        lengths = {
            column.name: min(_PREFIX, room // (1 if isinstance(column.type, LargeBinary) else 4))
            for column in texts
        }
        return sa.Index(name, *key, mariadb_length=lengths)


class _SQLite(Dialect):
    is_server = False
    begin = ("BEGIN IMMEDIATE",)
    same = "IS"

    def delete(self, table: str, stage: str, which: str) -> str:
        found = f"SELECT t.rowid FROM {stage} AS s CROSS JOIN {table} AS t WHERE {which}"
        return f"DELETE FROM {table} WHERE rowid IN ({found})"

    def update(self, table: str, stage: str, names: Sequence[str], which: str) -> str:
        return f"UPDATE {table} AS t SET {_values(names)} FROM {stage} AS s WHERE {which}"

    def is_away(self, error: SQLAlchemyError) -> bool:
        return isinstance(error, OperationalError) and "unable to open database" not in said_by(error)


DIALECTS: dict[str, Dialect] = {
    "postgresql": _PostgreSQL(),
    "mariadb": _MariaDB(),
    "sqlite": _SQLite(),
}


def said_by(error: SQLAlchemyError) -> str:
    """What the driver says, in one line: some give the number of the error and the text as two things."""
    said = getattr(error, "orig", None) or error
    parts: tuple[Any, ...] = getattr(said, "args", ())
    is_numbered = len(parts) == 2 and isinstance(parts[0], int)
    return " ".join(str(parts[1] if is_numbered else said).split())


def _values(names: Sequence[str], prefix: str = "") -> str:
    return ", ".join(f"{prefix}{name} = s.{name}" for name in names)
