"""The catalog database: SQLite in the warehouse, or PostgreSQL by URL, and how transactions begin and end on it."""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine, ExceptionContext
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from cq_engine.catalog.schema import journal
from cq_engine.catalog.urls import Address
from cq_engine.core.disk import disk_error
from cq_engine.core.errors import CatalogError
from cq_engine.core.limits import DEFAULT_LIMITS, Limits

__all__ = ["Database", "Notifications"]

_CHANNEL = "cq_journal"


class Database:
    """An engine, and how transactions begin on it."""

    def __init__(self, address: Address, read_only: bool, limits: Limits = DEFAULT_LIMITS) -> None:
        self._address = address
        self.is_sqlite = address.url.get_backend_name() == "sqlite"
        self.notifies = address.url.get_driver_name() == "psycopg"
        """Whether it tells processes of others' writes (`Notifications`)."""
        self.shown = address.shown
        try:
            # Readers and writers of one process are few; a lost server connection is found before it is used.
            self.engine = sa.create_engine(
                address.url, connect_args=dict(address.secrets), pool_pre_ping=not self.is_sqlite
            )
        except ModuleNotFoundError as error:
            raise CatalogError(
                f"{error.name}, the driver for {self.shown}, is not installed",
                hint="pip install 'cq-engine[postgres]'",
            ) from error
        if self.is_sqlite:
            _set_up_sqlite(self.engine, read_only, limits.lock_seconds)
        else:
            _set_up_server(self.engine, limits)
        self._peeking = threading.Lock()
        self._peek: Connection | None = None
        """A connection that is kept to look at the counter of writes."""

    @contextmanager
    def failing_as(self, doing: str) -> Iterator[None]:
        """What the database fails with in the block, which is for `doing`, is a StorageError without secrets."""
        try:
            yield
        except SQLAlchemyError as error:
            said = " ".join(str(getattr(error, "orig", None) or error).split())
            clean = self._address.clean(said)
            failure = disk_error(doing, OSError(clean))
            raise failure from (error if clean == said else None)

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """One write transaction; on SQLite it takes the write lock at once, so that it cannot fail half-way."""
        with self.engine.connect() as connection:
            chosen = connection.execution_options(cq_begin=_WRITE)
            with chosen.begin():
                yield chosen

    def to_write(self) -> Connection:
        """A connection whose transaction, once begun, is a write transaction; `end_writing` ends it."""
        return self.engine.connect().execution_options(cq_begin=_WRITE)

    def notify(self, connection: Connection) -> None:
        """Has other processes told that there is something new when the transaction is durable."""
        if self.notifies:
            connection.exec_driver_sql(f"NOTIFY {_CHANNEL}")

    def keep_open(self, connection: Connection) -> None:
        """Has the server see that who has the write transaction open is not suspended. From another thread than its own."""
        if not self.is_sqlite:
            with suppress(Exception):  # its own thread will see what is wrong
                cursor = connection.connection.cursor()
                cursor.execute("SELECT 1")
                cursor.close()

    def end_writing(self, connection: Connection, *, commit: bool) -> None:
        """Ends the transaction of a connection of `to_write`, and lets it go."""
        try:
            if commit:
                connection.commit()
        finally:
            connection.close()  # which takes back what is not committed

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A read transaction that sees one state of the database however many statements it runs."""
        with self.engine.connect() as connection:
            if self.is_sqlite:
                chosen = connection.execution_options(cq_begin="BEGIN")
            else:
                chosen = connection.execution_options(isolation_level="REPEATABLE READ")
            with chosen.begin():
                yield chosen

    def generation(self) -> int:
        """How many writes there have been."""
        with self._peeking, self.failing_as("read the catalog"):
            if self._peek is not None:
                with suppress(SQLAlchemyError):  # the server may have ended the connection since
                    return self._count()
            return self._count()

    def _count(self) -> int:
        try:
            if self._peek is None:
                self._peek = self.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            # Past SQLAlchemy: this is asked for before every statement.
            cursor = self._peek.connection.cursor()
            try:
                cursor.execute(f"SELECT max(generation) FROM {journal.name}")
                ((number,),) = cursor.fetchall()
                return int(number or 0)
            finally:
                cursor.close()
        except Exception as error:
            self._forget_peek()
            if isinstance(error, SQLAlchemyError):
                raise
            raise OperationalError("read the counter of writes", None, error) from error

    def _forget_peek(self) -> None:
        peek, self._peek = self._peek, None
        if peek is not None:
            _let_go(peek)

    def now(self, connection: Connection) -> int:
        """Microseconds since 1970 by the clock that all processes on this database share."""
        if self.is_sqlite:
            return time.time_ns() // 1000
        seconds = connection.execute(
            sa.text("SELECT extract(epoch FROM clock_timestamp()) * 1000000")
        ).scalar_one()
        return int(seconds)

    def close(self) -> None:
        with self._peeking:
            self._forget_peek()
        self.engine.dispose()


class Notifications:
    """A connection to PostgreSQL that is told of writes as soon as they are durable; for one thread."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: Connection | None = None

    def wait(self, seconds: float) -> bool:
        """Waits for a write, for so long at most. Whether there may have been one."""
        try:
            if self._connection is None:
                self._connection = self._database.engine.connect()
                self._connection = self._connection.execution_options(isolation_level="AUTOCOMMIT")
                self._connection.exec_driver_sql(f"LISTEN {_CHANNEL}")
                return True
            driver: Any = self._connection.connection.driver_connection
            return bool(list(driver.notifies(timeout=seconds, stop_after=1)))
        except Exception:  # noqa: BLE001 - the server is away; who writes or reads says so
            self.close()
            time.sleep(seconds)
            return True

    def close(self) -> None:
        """Ends the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            _let_go(connection)


def _let_go(connection: Connection) -> None:
    """Ends a connection that may be in any state."""
    with suppress(Exception):
        connection.invalidate()
        connection.close()


_WRITE = "BEGIN IMMEDIATE"
_READERS_WAIT = 15_000
"""Milliseconds that a reader waits for a SQLite database, which it seldom does at all."""


def _set_up_server(engine: Engine, limits: Limits) -> None:
    @event.listens_for(engine, "connect")
    def connect(dbapi_connection: Any, _record: Any) -> None:
        cursor = dbapi_connection.cursor()
        cursor.execute(f"SET lock_timeout = {int(limits.lock_seconds * 1000)}")
        # A process that is suspended inside a transaction must not keep the others from writing.
        idle = max(3000, int(limits.lease_seconds * 1000))
        cursor.execute(f"SET idle_in_transaction_session_timeout = {idle}")
        cursor.close()
        dbapi_connection.commit()


def _set_up_sqlite(engine: Engine, read_only: bool, seconds: float) -> None:
    @event.listens_for(engine, "connect")
    def connect(dbapi_connection: Any, _record: Any) -> None:
        dbapi_connection.isolation_level = None  # we begin transactions ourselves, see `begin`
        cursor = dbapi_connection.cursor()
        # FULL: a commit that was acknowledged survives power loss, for one fsync of the log per transaction.
        for pragma in (
            f"busy_timeout={_READERS_WAIT}",
            "journal_mode=WAL",
            "synchronous=FULL",
            "foreign_keys=ON",
        ):
            cursor.execute(f"PRAGMA {pragma}")
        if read_only:
            cursor.execute("PRAGMA query_only=ON")
        cursor.close()

    @event.listens_for(engine, "handle_error")
    def keep(context: ExceptionContext) -> None:
        """SQLAlchemy closes a connection on which a statement was interrupted. SQLite's is none the worse for it; closed while a
        cursor is still known, it would keep its transaction, and the write lock, until that is forgotten."""
        if not isinstance(context.original_exception, Exception):
            context.is_disconnect = False

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        if connection.get_execution_options().get("cq_begin") == _WRITE:
            _begin_immediate(connection, seconds)
        else:
            connection.exec_driver_sql("BEGIN")


def _begin_immediate(connection: Connection, seconds: float) -> None:
    """Waits for the write lock in shorter steps than SQLite does, which sleeps for up to 100 ms at a time."""
    cursor = connection.connection.cursor()
    try:
        cursor.execute("PRAGMA busy_timeout=0")
        end = time.monotonic() + seconds
        while True:
            try:
                cursor.execute(_WRITE)
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > end:
                    raise OperationalError(_WRITE, None, error) from error
            time.sleep(random.uniform(0.0003, 0.003))  # noqa: S311 - only so that processes do not go in step
    finally:
        cursor.execute(f"PRAGMA busy_timeout={_READERS_WAIT}")
        cursor.close()
