"""A database outside of the warehouse, opened by its declaration."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError

from cq_engine.catalog.model import DeclaredSource
from cq_engine.catalog.urls import Address
from cq_engine.core.columns import Column
from cq_engine.core.errors import SourceError, SourceUnavailableError
from cq_engine.sources.sql.address import Options, address_of, options_of
from cq_engine.sources.sql.model import Statement
from cq_engine.sources.sql.servers.kinds import server_of
from cq_engine.sources.sql.servers.server import Server
from cq_engine.sources.sql.values import Place, to_batch

__all__ = ["BLOCK", "Database", "Session"]

BLOCK = 10_000
"""So many rows of a result are in memory at a time."""


class Database:
    """A database by its declaration; it connects whenever it is asked. With `keeps`, it has one connection at hand until it
    is closed, for who asks often.

    It is pickled as its declaration: another process resolves the secrets by itself.
    """

    def __init__(
        self, declared: DeclaredSource, *, keeps: bool = False, address: Address | None = None
    ) -> None:
        self.declared = declared
        self._pool = (
            {"poolclass": sa.pool.QueuePool, "pool_size": 1} if keeps else {"poolclass": sa.pool.NullPool}
        )
        self.options: Options = options_of(declared)
        self.address: Address = address or address_of(declared)
        self.server: Server = server_of(self.address.url.get_backend_name())
        self._engines: dict[tuple[bool, bool], Engine] = {}

    @classmethod
    def open(
        cls, declared: DeclaredSource, *, keeps: bool = False, address: Address | None = None
    ) -> Database:
        """The database that a declaration names, without connecting; with an `address`, which another process has resolved, no
        secret is looked up here. Raises SourceError for a declaration that names none."""
        return cls(declared, keeps=keeps, address=address)

    def __reduce__(self) -> tuple[Callable[[DeclaredSource], Database], tuple[DeclaredSource]]:
        return Database.open, (self.declared,)

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def name(self) -> str:
        """The source's name."""
        return self.declared.name

    @property
    def kind(self) -> str:
        """What it is: sqlite, postgresql, mariadb, or SQLAlchemy's name of another dialect."""
        return self.server.name

    @property
    def dialect(self) -> str:
        """SQLGlot's name of its SQL: sqlite, postgres, mysql, ..."""
        return self.server.dialect

    @property
    def time_zone(self) -> Any:
        """The zone of its timestamps without one."""
        return self.options.time_zone

    def close(self) -> None:
        """Forgets what it knows of the server; it can be asked again."""
        for engine in self._engines.values():
            engine.dispose()
        self._engines = {}

    def check(self) -> None:
        """Connects, and asks for nothing much. Raises SourceError with the reason where that fails."""
        with self.connect() as session:
            session.one(Statement(self.server.probe))

    @contextmanager
    def connect(self) -> Iterator[Session]:
        """A transaction that reads one state of the database: REPEATABLE READ and READ ONLY on a server, a deferred
        transaction of SQLite, which keeps writers of a file without WAL from committing until it ends."""
        with self._transaction(writes=False) as session:
            yield session

    @contextmanager
    def write(self, *, compares: bool = False) -> Iterator[Session]:
        """A transaction that may change the database; it is committed at the end of the block. With `compares`, a statement
        that writes what it has read reads one state of the database, and keeps nobody from writing to what it reads (but in
        SQLite, which has one writer at a time)."""
        with self._transaction(writes=True, compares=compares) as session:
            yield session

    @contextmanager
    def failing(self) -> Iterator[None]:
        """What the database fails with in the block is a SourceError without secrets."""
        try:
            yield
        except SQLAlchemyError as error:
            said = _said_by(error)
            clean = self.address.clean(said)
            failure = SourceUnavailableError if _passes(error) else SourceError
            raise failure(
                f"source {self.name} ({self.address.shown}): {clean}", hint=self._hint(error)
            ) from (error if clean == said else None)

    def _hint(self, error: SQLAlchemyError) -> str:
        if isinstance(error, DBAPIError) and error.connection_invalidated:
            return "the connection has ended; it is tried again with the next tick"
        return f"ALTER SOURCE {self.name} SET WITH (...) changes how it is reached"

    @contextmanager
    def _transaction(self, *, writes: bool, compares: bool = False) -> Iterator[Session]:
        with self.failing():
            try:
                connection = self._engine(writes, compares).connect()
            except (
                AttributeError,
                OSError,
                RuntimeError,
                TypeError,
                ValueError,
            ) as error:  # of a driver in Python
                raise SourceError(
                    f"source {self.name} ({self.address.shown}): {self.address.clean(str(error))}",
                    hint="write only parameters in the URL that the driver has",
                ) from None
            with connection, connection.begin():
                yield Session(self, connection)

    @cached_property
    def _is_server(self) -> bool:
        return self.kind != "sqlite"

    def _engine(self, writes: bool, compares: bool) -> Engine:
        if not self._is_server:
            self._check_file()
        if (writes, compares) not in self._engines:
            self._engines[writes, compares] = self._make_engine(writes, compares)
        return self._engines[writes, compares]

    def _check_file(self) -> None:
        file = self.address.url.database or ""
        if not file.startswith("file:") and not Path(file).is_file():
            raise SourceUnavailableError(
                f"source {self.name}: there is no file {file}",
                hint="a source is there before it is read; four slashes begin a full path, as in sqlite:////data/shop.db",
            )

    def _make_engine(self, writes: bool, compares: bool) -> Engine:
        server, options = self.server, self.options
        more: dict[str, Any] = {}
        if server.connect_timeout and "connect_timeout" not in self.address.url.query:
            more["connect_timeout"] = max(1, round(options.connect_timeout))
        elif not self._is_server and "timeout" not in self.address.url.query:
            more["timeout"] = options.connect_timeout
        try:
            engine = sa.create_engine(
                self.address.url, connect_args={**self.address.secrets, **more}, **self._pool
            )
        except ModuleNotFoundError as error:
            extra = (
                f"pip install 'cq-engine[{server.extra}]'" if server.extra else f"pip install {error.name}"
            )
            raise SourceError(
                f"{error.name}, the driver for {self.address.shown}, is not installed", hint=extra
            ) from error
        except SQLAlchemyError as error:
            raise SourceError(
                f"source {self.name} ({self.address.shown}): {self.address.clean(str(error))}",
                hint="install the package that has its dialect",
            ) from None

        @event.listens_for(engine, "connect", insert=True)  # before SQLAlchemy asks for the settings
        def connect(connection: Any, _record: Any) -> None:
            server.prepare(connection, options)
            for statement in server.settings(options):
                with closing(connection.cursor()) as cursor:
                    cursor.execute(statement)
            connection.commit()  # SQLAlchemy ends the first transaction by ROLLBACK, with what was set in it

        @event.listens_for(engine, "begin")
        def begin(connection: Connection) -> None:
            for statement in server.begin(writes=writes, compares=compares):
                connection.exec_driver_sql(statement)

        return engine


class Session:
    """A transaction of a database. A result is read to its end, or closed, before the next statement."""

    def __init__(self, database: Database, connection: Connection) -> None:
        self.database = database
        self.connection = connection

    def blocks(self, statement: Statement, size: int = BLOCK) -> Iterator[list[tuple[Any, ...]]]:
        """The rows as the driver has them, in lists of at most `size`; no more of them is in memory."""
        with self.database.failing():
            self._limit()
            streamed = {
                "stream_results": True,
                "max_row_buffer": size,
            }  # this statement, none that comes later
            run = self.connection.exec_driver_sql
            with run(statement.sql, statement.parameters, execution_options=streamed) as result:
                for block in result.partitions(size):
                    yield [tuple(row) for row in block]

    def rows(self, statement: Statement) -> list[tuple[Any, ...]]:
        """All rows, as the driver has them."""
        return [row for block in self.blocks(statement) for row in block]

    def one(self, statement: Statement) -> tuple[Any, ...] | None:
        """The first row; None where there is none."""
        return next(iter(self.rows(statement)), None)

    def batches(
        self, statement: Statement, columns: Sequence[Column], size: int = BLOCK
    ) -> Iterator[pa.RecordBatch]:
        """The rows in Arrow, in the types that `columns`, of the warehouse's table, have for the statement's names.

        Raises SourceError for a value that its column cannot have.
        """
        for block in self.blocks(statement, size):
            yield self.to_batch(statement, columns, block)

    def to_batch(
        self, statement: Statement, columns: Sequence[Column], rows: Sequence[Sequence[Any]]
    ) -> pa.RecordBatch:
        """Rows of the statement's result in Arrow."""
        place = Place(
            f"{statement.relation} at source {self.database.name}",
            statement.key,
            self.database.options.time_zone,
        )
        return to_batch(rows, statement.names, columns, place)

    def change(self, statement: Statement) -> int:
        """Runs a statement that changes rows; how many it has changed."""
        with self.database.failing():
            self._limit()
            return self.connection.exec_driver_sql(statement.sql, statement.parameters).rowcount

    def _limit(self) -> None:
        driver = self.connection.connection.driver_connection
        self.database.server.limit(driver, self.database.options.timeout)


def _passes(error: SQLAlchemyError) -> bool:
    """Whether the server does not answer, rather than refuse what it was asked."""
    gone = isinstance(error, DBAPIError) and error.connection_invalidated
    return gone or isinstance(error, InterfaceError | OperationalError)


def _said_by(error: SQLAlchemyError) -> str:
    """What the driver says, in one line: some give the number of the error and the text as two things."""
    said = getattr(error, "orig", None) or error
    parts: tuple[Any, ...] = getattr(said, "args", ())
    is_numbered = len(parts) == 2 and isinstance(parts[0], int)
    return " ".join(str(parts[1] if is_numbered else said).split())
