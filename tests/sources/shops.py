"""Databases that tests write to by themselves, so that they know what a source has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date, datetime
from decimal import Decimal
from itertools import count
from typing import Any

from cq_engine.catalog.model import Capture, DeclaredSource
from cq_engine.core.columns import Column
from cq_engine.grammar.clauses import CapturedColumn, CaptureMethod, EveryInterval
from cq_engine.sources.sql.database import Database, Session
from cq_engine.sources.sql.model import Relation, Statement
from cq_engine.sources.sql.relation import describe

TYPES = {
    "sqlite": {"key": "VARCHAR(20) COLLATE NOCASE", "moment": "DATETIME", "binary": "BLOB", "double": "DOUBLE"},
    "postgresql": {"key": "varchar(20) COLLATE ci", "moment": "timestamp", "binary": "bytea", "double": "double precision"},
    "mariadb": {
        "key": "VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
        "moment": "DATETIME(6)", "binary": "LONGBLOB", "double": "DOUBLE",
    },
}  # fmt: skip
TEXT = {"sqlite": "TEXT", "postgresql": "text", "mariadb": "LONGTEXT CHARACTER SET utf8mb4"}


def declared(kind: str, url: str, **options: str) -> DeclaredSource:
    return DeclaredSource("shop", kind, (("url", url), *options.items()))


def capture(*columns: str | tuple[str, str], where: str | None = None) -> Capture:
    """A capture of these columns, of which some get another name."""
    named = tuple(CapturedColumn(*(c if isinstance(c, tuple) else (c, c))) for c in columns)
    return Capture(
        "orders_in",
        "shop",
        "orders",
        CaptureMethod("COPY"),
        EveryInterval(1, "MINUTE"),
        "orders",
        named,
        where,
    )


def naive(*parts: int) -> datetime:
    """A time without a zone, as databases have them."""
    return datetime(*parts)  # type: ignore[arg-type] # noqa: DTZ001 - it has none


class Shop:
    """A database of its own, which a test may write to."""

    _numbers = count()

    def __init__(self, kind: str, url: str) -> None:
        self.kind = kind
        self.url = url
        self.tables: dict[str, str] = {}
        self.database = Database.open(declared(kind, url))
        if kind == "mariadb":
            self.run(f"ALTER DATABASE {url.rpartition('/')[2]} CHARACTER SET utf8mb4")
        if kind == "postgresql":
            self.run(
                "CREATE COLLATION ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
            )

    def quoted(self, name: str) -> str:
        return self.database.server.quoted(name)

    def run(self, sql: str, *rows: Sequence[Any]) -> None:
        """Runs a statement, once or for each of the rows; `?` is a parameter."""
        text = sql.replace("%", self.database.server.percent).replace("?", self.database.server.mark)
        with self.database.write() as session:
            plain = [tuple(map(self._plain, row)) for row in rows]
            session.connection.exec_driver_sql(text, plain or ())

    def insert(self, table: str, rows: Iterable[Sequence[Any]]) -> None:
        """Adds rows to a table, whose name is quoted."""
        known = list(rows)
        if known:
            self.run(f"INSERT INTO {table} VALUES ({', '.join('?' * len(known[0]))})", *known)

    def _plain(self, value: Any) -> Any:
        if self.kind != "sqlite":
            return value
        if isinstance(value, datetime):
            return value.isoformat(" ", "microseconds")
        return str(value) if isinstance(value, date | Decimal) else value

    def relation(self, name: str) -> Relation:
        return describe(self.database, name)

    def rows(self, statement: Statement) -> list[tuple[Any, ...]]:
        with self.database.connect() as session:
            return session.rows(statement)

    def values(self, statement: Statement, columns: Sequence[Column]) -> list[tuple[Any, ...]]:
        """The rows in the warehouse's types."""
        with self.database.connect() as session:
            return values(session, statement, columns)

    def fresh(self, what: str = "T") -> str:
        """A quoted name that no table has yet."""
        return self.quoted(f'{what} "%{next(self._numbers)}`')


def values(session: Session, statement: Statement, columns: Sequence[Column]) -> list[tuple[Any, ...]]:
    return [
        tuple(row.values())
        for batch in session.batches(statement, columns, size=7)
        for row in batch.to_pylist()
    ]
