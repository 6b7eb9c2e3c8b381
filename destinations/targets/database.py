"""A table of a database outside of the warehouse: rows and mark are one transaction of it.

The mark is a row of the table `cq_cursors` beside it. Rows are merged in three statements out of a temporary table, which
PostgreSQL fills by COPY and MariaDB by INSERT of many rows.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import lru_cache
from typing import Any, ClassVar

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.sql import quoted_name

from cq_engine.catalog.model import DeclaredDestination
from cq_engine.catalog.urls import Address, parse
from cq_engine.core.errors import CatalogError, DestinationError, Location
from cq_engine.destinations.base import Unreachable
from cq_engine.destinations.kind_parts import Kind
from cq_engine.destinations.options import COMMON, Option, one_of
from cq_engine.destinations.targets import database_rows
from cq_engine.destinations.targets.database_types import check_table, declared_type
from cq_engine.destinations.targets.dialects import DIALECTS, Dialect, said_by
from cq_engine.destinations.targets.net_changes import GONE
from cq_engine.destinations.targets.target import (
    Mark,
    Target,
    TargetDestination,
    check_mode,
    foreign_rows,
)
from cq_engine.destinations.variables import expand

__all__ = ["KIND", "DatabaseDestination"]

_WHAT = "a destination"
_STAGE = "cq_stage"
_NULL = "_cq_null"
_CONNECT_SECONDS = 5
_TABLE: dict[str, Any] = {"mariadb_engine": "InnoDB", "mariadb_charset": "utf8mb4"}


def _text(value: str) -> None:
    if not value.strip():
        raise ValueError


def _table_name(value: str) -> None:
    if not 1 <= len(value.split(".")) <= 2 or not all(value.split(".")):
        raise ValueError


URL = Option(
    None, _text, "write the database's URL, as in url = '${DATABASE_URL}' or 'sqlite:////data/shop.db'"
)
TABLE = Option(
    None, _table_name, "write the name of the database's table, as in table = 'orders' or 'shop.orders'"
)


def _check(destination: DeclaredDestination, place: Callable[[str], Location | None]) -> None:
    """What is to be checked of a declaration without asking the database: it must not have a password in it."""
    check_mode(destination, place)
    url = dict(destination.options)["url"]
    if "${" in url and "://" not in url:
        return
    said = _parse(database_rows.without_variables(url))
    if any(said.secrets.values()):
        raise DestinationError(
            "the url has a password in it",
            detail="a declaration is stored, and shown to whoever asks",
            hint="write url = '${NAME}', or ${NAME} in the password's place, and set the environment variable NAME",
            location=place("url"),
        )


def reach_database(destination: DeclaredDestination, _: object) -> None:
    """Raises DestinationError where the database answers, and does not let us in."""
    address = _address(dict(destination.options)["url"])
    try:
        with _connected(destination.name, address) as connection:
            connection.execute(sa.text("SELECT 1"))
    except Unreachable:
        return


def _address(url: str) -> Address:
    return _parse(expand(url))


def _parse(url: str) -> Address:
    try:
        return parse(url, _WHAT, mariadb=True)
    except CatalogError as error:
        raise DestinationError(error.message, detail=error.detail, hint=error.hint) from None


def _dialect(address: Address) -> Dialect:
    return DIALECTS[address.url.get_backend_name()]


def _engine(address: Address) -> Engine:
    return _engine_of(address.url, tuple(address.secrets.items()))


@lru_cache(maxsize=64)
def _engine_of(url: sa.URL, secret: tuple[tuple[str, str], ...]) -> Engine:
    """One for all deliveries, which asks the server for its version and settings but once; it keeps no connection."""
    address = Address(url, dict(secret))
    dialect = _dialect(address)
    ask = dialect.is_server and "connect_timeout" not in address.url.query
    more = {"connect_timeout": _CONNECT_SECONDS} if ask else {}
    try:
        engine = sa.create_engine(
            address.url, connect_args={**address.secrets, **more}, poolclass=sa.pool.NullPool
        )
    except ModuleNotFoundError as error:
        raise DestinationError(
            f"{error.name}, the driver for {address.shown}, is not installed",
            hint=f"pip install 'cq-engine[{dialect.extra}]'",
        ) from error

    @event.listens_for(engine, "connect", insert=True)  # before SQLAlchemy asks for the settings
    def connect(connection: Any, _record: Any) -> None:
        if not dialect.is_server:
            connection.isolation_level = None  # the driver would end transactions by itself
        for statement in dialect.settings:
            with closing(connection.cursor()) as cursor:
                cursor.execute(statement)

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        for statement in dialect.begin:
            connection.exec_driver_sql(statement)

    return engine


@contextmanager
def _failing(name: str, address: Address) -> Iterator[None]:
    """What the database fails with in the block is a DestinationError without secrets."""
    try:
        yield
    except SQLAlchemyError as error:
        said = said_by(error)
        clean = address.clean(said)
        kind = Unreachable if _dialect(address).is_away(error) else DestinationError
        raise kind(
            f"database {name} ({address.shown}): {clean}",
            hint="nothing is lost; what is not delivered waits in the delta log",
        ) from (error if clean == said else None)


@contextmanager
def _connected(name: str, address: Address) -> Iterator[Connection]:
    """A connection; what it fails with in the block is a DestinationError, too."""
    with _failing(name, address):
        try:
            connection = _engine(address).connect()
        except (
            AttributeError,
            OSError,
            RuntimeError,
            TypeError,
            ValueError,
        ) as error:  # how a driver in Python says it
            raise DestinationError(
                f"database {name} ({address.shown}): {address.clean(str(error))}",
                hint="write only parameters in the URL that the driver has",
            ) from None
        with connection:
            yield connection


class DatabaseDestination(TargetDestination):
    """Appends the deltas to a table of a database, or merges them into it."""

    kind: ClassVar[str] = "DATABASE"

    @contextmanager
    def open(self) -> Iterator[Target]:
        address = _address(self.options["url"])
        with _connected(self.name, address) as connection:
            yield _DatabaseTarget(self, connection)


class _DatabaseTarget(Target):
    def __init__(self, destination: DatabaseDestination, connection: Connection) -> None:
        self._destination = destination
        self._connection = connection
        schema, _, name = destination.options["table"].rpartition(".")
        self._dialect = DIALECTS[connection.dialect.name]
        columns = [
            sa.Column(quoted_name(c.name, True), declared_type(c.type, connection.dialect.name))
            for c in destination.columns
        ]
        key = [columns[n] for n in destination.key] if destination.merges else []
        index = [self._dialect.index(f"cq_{name[:40]}_{secrets.token_hex(4)}", key)] if key else []
        self._table = sa.Table(
            quoted_name(name, True), sa.MetaData(), *columns, *index, schema=schema or None, **_TABLE
        )
        self._cursors = sa.Table(
            "cq_cursors",
            sa.MetaData(),
            sa.Column("destination", sa.String(64), primary_key=True),
            sa.Column("query_id", sa.BigInteger, primary_key=True, autoincrement=False),
            sa.Column("query", sa.Text, nullable=False),
            sa.Column("version", sa.BigInteger, nullable=False),
            sa.Column("placed", sa.BigInteger, nullable=False),
            schema=schema or None,
            **_TABLE,
        )
        self._known: Mark | None = None
        with connection.begin():
            inspected = sa.inspect(connection)
            self._exists = inspected.has_table(name, schema=schema or None)
            self._has_cursors = inspected.has_table("cq_cursors", schema=schema or None)
            self._there = inspected.get_columns(name, schema=schema or None) if self._exists else []
            self._known = self._read_mark()
        names = {found["name"].lower(): found["name"] for found in self._there}
        quote = (
            connection.dialect.identifier_preparer.quote_identifier
        )  # also what is no word of this version's SQL
        self._names = [quote(names.get(c.name.lower(), c.name)) for c in destination.columns]
        self._shown = connection.dialect.identifier_preparer.format_table(self._table)

    def check(self) -> None:
        if self._exists:
            with self._connection.begin():
                check_table(self._destination, self._connection, self._there)
                self._check_own()

    def _check_own(self) -> None:
        if not self._exists or not self._destination.merges:
            return
        cursors = self._cursors
        own = sa.select(cursors.c.version).where(cursors.c.destination == self._destination.token).limit(1)
        if self._has_cursors and self._connection.execute(own).first() is not None:
            return
        if self._connection.exec_driver_sql(f"SELECT 1 FROM {self._shown} LIMIT 1").first() is not None:
            raise foreign_rows(self._destination, f"table {self._table.fullname}")

    # ------------------------------------------------------------ transactions

    def mark(self) -> Mark | None:
        return self._known if self._exists else None

    def append(self, rows: Iterator[pa.Table], mark: Mark) -> None:
        with self._transaction(mark):
            for block in rows:
                database_rows.load(self._connection, self._shown, self._names, block)

    def replace(self, rows: Iterator[pa.Table], mark: Mark) -> None:
        with self._transaction(mark):
            self._check_own()
            self._connection.exec_driver_sql(f"DELETE FROM {self._shown}")
            for block in rows:
                database_rows.load(self._connection, self._shown, self._names, block, self._destination.key)

    def merge(self, changes: Iterator[pa.Table], mark: Mark) -> bool:
        with self._transaction(mark):
            staged = False
            for block in changes:
                if staged:
                    self._connection.exec_driver_sql(f"DELETE FROM {_STAGE}")
                else:
                    self._make_stage()
                    staged = True
                self._merge(block)
            if staged:
                self._connection.exec_driver_sql(f"{self._dialect.drop} {_STAGE}")
        return True

    @contextmanager
    def _transaction(self, mark: Mark) -> Iterator[None]:
        """A transaction that begins where the last one ended, and ends with the mark."""
        if self._dialect.ddl_commits and not (self._exists and self._has_cursors):
            with self._connection.begin():  # no mark for a table that is empty after a crash
                self._check_alone()
                if self._known is not None:
                    self._connection.execute(sa.delete(self._cursors).where(*self._own()))
            self._known = None
            with self._connection.begin():
                self._make_tables()
        with self._connection.begin():
            self._make_tables()
            self._check_alone()
            yield
            self._write_mark(mark)
        self._exists = self._has_cursors = True
        self._known = mark

    def _make_tables(self) -> None:
        for table, exists in ((self._cursors, self._has_cursors), (self._table, self._exists)):
            if not exists:
                table.create(self._connection, checkfirst=True)
        if self._dialect.ddl_commits:
            self._exists = self._has_cursors = True

    def _check_alone(self) -> None:
        if self._has_cursors and self._read_mark(locked=True) != self._known:
            raise DestinationError(
                f"database {self._destination.name} was served by another delivery meanwhile",
                hint="nothing is lost; what is left comes with the next delivery",
            )

    def _read_mark(self, *, locked: bool = False) -> Mark | None:
        if not self._has_cursors:
            return None
        cursors = self._cursors
        wanted = sa.select(cursors.c.version, cursors.c.placed).where(*self._own())
        found = self._connection.execute(wanted.with_for_update() if locked else wanted).first()
        return None if found is None else Mark(int(found[0]), int(found[1]))

    def _own(self) -> Sequence[sa.ColumnElement[bool]]:
        cursors, destination = self._cursors, self._destination
        return (cursors.c.destination == destination.token, cursors.c.query_id == destination.query.id)

    def _write_mark(self, mark: Mark) -> None:
        values = {"query": self._destination.query.name, "version": mark.version, "placed": mark.order}
        if self._known is not None:
            self._connection.execute(sa.update(self._cursors).where(*self._own()).values(values))
            return
        key = {"destination": self._destination.token, "query_id": self._destination.query.id}
        self._connection.execute(sa.insert(self._cursors).values({**key, **values}))

    # ------------------------------------------------------------ merging

    def _make_stage(self) -> None:
        columns = ", ".join(self._names)
        self._connection.exec_driver_sql(
            f"CREATE TEMPORARY TABLE {_STAGE} {self._dialect.of_stage}AS "
            f"SELECT {columns}, (1 = 0) AS {GONE}, (1 = 0) AS {_NULL} FROM {self._shown} WHERE 1 = 0"
        )

    def _merge(self, block: pa.Table) -> None:
        """Deletes, changes and adds rows: by `=`, which an index serves, and those with NULL in their key once more."""
        destination = self._destination
        null = database_rows.any_null(block, destination.key)
        block = block.append_column(_NULL, null)
        database_rows.load(self._connection, _STAGE, [*self._names, GONE, _NULL], block, destination.key)
        keys = [self._names[n] for n in destination.key]
        equal = " AND ".join(f"t.{k} = s.{k}" for k in keys) or "1 = 1"
        self._merge_by(equal, f"NOT s.{_NULL}")
        if any(null.to_pylist()):
            self._merge_by(" AND ".join(f"t.{k} {self._dialect.same} s.{k}" for k in keys), f"s.{_NULL}")

    def _merge_by(self, match: str, chosen: str) -> None:
        run, table, which = self._connection.exec_driver_sql, self._shown, f"{match} AND {chosen}"
        others = [name for n, name in enumerate(self._names) if n not in self._destination.key]
        run(self._dialect.delete(table, _STAGE, f"{which} AND s.{GONE}"))
        if others:
            run(self._dialect.update(table, _STAGE, others, f"{which} AND NOT s.{GONE}"))
        run(
            f"INSERT INTO {table} ({', '.join(self._names)}) SELECT {', '.join(f's.{n}' for n in self._names)} "
            f"FROM {_STAGE} AS s WHERE {chosen} AND NOT s.{GONE} "
            f"AND NOT EXISTS (SELECT 1 FROM {table} AS t WHERE {match})"
        )


KIND = Kind(
    DatabaseDestination,
    {"url": URL, "table": TABLE, "mode": one_of("history", "merge"), **COMMON},
    lambda wanted: DatabaseDestination(wanted.services, wanted.query, wanted.declared, wanted.stopped),
    _check,
    reach_database,
)
