"""The tables of the catalog database, and the database itself: SQLite in the warehouse, or PostgreSQL by URL.

Times are UTC microseconds since 1970 in BIGINT columns: the same exact values in every database. Definitions are
JSON documents (catalog/documents.py); change rows are Arrow IPC streams (catalog/inline.py).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from cq_engine.catalog.urls import Address
from cq_engine.core.disk import disk_error
from cq_engine.core.errors import CatalogError, ConflictError, StorageError

__all__ = ["Database", "local_path", "metadata", "stale"]

_PREFIX = "cq_"
metadata = sa.MetaData()
_Big = sa.BigInteger


def _table(name: str, *columns: Any) -> sa.Table:
    return sa.Table(_PREFIX + name, metadata, *columns)


meta = _table(
    "meta", sa.Column("key", sa.Text, primary_key=True), sa.Column("value", sa.Text, nullable=False)
)

lease = _table(
    "lease",
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("epoch", _Big, nullable=False),
    sa.Column("holder", sa.Text, nullable=False),  # JSON; empty when nobody holds it
    sa.Column("heartbeat", _Big, nullable=False),
    sa.Column(
        "generation", _Big, nullable=False
    ),  # one more with every write: how a reader sees that it is stale
)

commits = _table(
    "commits",
    sa.Column("version", _Big, primary_key=True, autoincrement=False),
    sa.Column("committed", _Big, nullable=False),
)

GROUP = "template"
"""What a query group is called in `definitions`."""

definitions = _table(
    "definitions",
    sa.Column("kind", sa.Text, primary_key=True),  # table, query, function, destination or GROUP
    sa.Column("name", sa.Text, primary_key=True),  # lower case
    sa.Column("document", sa.Text, nullable=False),
)

statuses = _table(
    "statuses",
    sa.Column("query", sa.Text, primary_key=True),
    sa.Column("position", _Big, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("error", sa.Text, nullable=False),
    sa.Column("last_refresh", _Big),
)

cursors = _table(
    "cursors",
    sa.Column("query", sa.Text, primary_key=True),
    sa.Column("destination", sa.Text, primary_key=True),
    sa.Column("version", _Big, nullable=False),
    sa.Column("sequence", _Big, nullable=False),
    sa.Column("failures", _Big, nullable=False),
    sa.Column("error", sa.Text, nullable=False),
    sa.Column("rows", _Big, nullable=False, server_default="0"),
    sa.Column("dead", _Big, nullable=False, server_default="0"),
)

refreshes = _table(
    "refreshes",
    sa.Column("id", _Big().with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=True),
    sa.Column("query", sa.Text, nullable=False, index=True),
    sa.Column("from_version", _Big, nullable=False),
    sa.Column("to_version", _Big, nullable=False),
    sa.Column("inserted", _Big, nullable=False),
    sa.Column("deleted", _Big, nullable=False),
    sa.Column("updated", _Big, nullable=False),
    sa.Column("plan", sa.Text, nullable=False),
    sa.Column("seconds", sa.Float, nullable=False),
    sa.Column("finished", _Big, nullable=False),
)

storage = _table(
    "storage",
    sa.Column("table_id", _Big, primary_key=True, autoincrement=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("directory", sa.Text, nullable=False),
    sa.Column("floor", _Big, nullable=False),
    sa.Column("next_row_id", _Big, nullable=False),
    sa.Column("published_table", _Big, nullable=False),
    sa.Column("published_log", _Big, nullable=False),
    sa.Column("dropped", sa.Boolean, nullable=False),
)

snapshots = _table(
    "snapshots",
    sa.Column("table_id", _Big, primary_key=True, autoincrement=False),
    sa.Column("version", _Big, primary_key=True, autoincrement=False),
)

files = _table(
    "files",
    sa.Column("path", sa.Text, primary_key=True),
    sa.Column("table_id", _Big, nullable=False, index=True),
    sa.Column("document", sa.Text, nullable=False),
    sa.Column("added_version", _Big, nullable=False),
    sa.Column("removed_version", _Big),
)

change_sets = _table(
    "change_sets",
    sa.Column("id", _Big, primary_key=True, autoincrement=False),
    sa.Column("table_id", _Big, nullable=False, index=True),
    sa.Column("low", _Big, nullable=False),
    sa.Column("high", _Big, nullable=False),
    sa.Column("rows", _Big, nullable=False),
    sa.Column("kinds", sa.Text, nullable=False),
    sa.Column("insert_only", sa.Boolean, nullable=False),
    sa.Column("inline", sa.Boolean, nullable=False),
    sa.Column("files", sa.Text, nullable=False),
)

journal = _table(
    "journal",  # what each write changed of what processes keep in memory (catalog/journal.py)
    sa.Column("generation", _Big, primary_key=True, autoincrement=False),
    sa.Column("document", sa.Text, nullable=False),
)

inline = _table(
    "inline",
    sa.Column(
        "id",
        _Big,
        sa.ForeignKey(change_sets.c.id, ondelete="CASCADE"),
        primary_key=True,
        autoincrement=False,
    ),
    sa.Column("data", sa.LargeBinary, nullable=False),
)

attempts = _table(
    "attempts",
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("started", _Big, nullable=False),
)


doomed = _table(
    "doomed",  # files, and directories (with a / at the end), that nothing refers to or will refer to any more
    sa.Column("path", sa.Text, primary_key=True),
    sa.Column("since", _Big, nullable=False),
)


directories = _table(
    "directories",  # names without an id that tables have had: none of them is given a second time
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),  # lower case
)


class Database:
    """An engine, and how transactions begin on it."""

    def __init__(self, address: Address, read_only: bool) -> None:
        self._address = address
        self.is_sqlite = address.url.get_backend_name() == "sqlite"
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
            _set_up_sqlite(self.engine, read_only)
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
            chosen = connection.execution_options(cq_begin="BEGIN IMMEDIATE")
            with chosen.begin():
                yield chosen

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
            try:
                if self._peek is None:
                    self._peek = self.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
                cursor = (
                    self._peek.connection.cursor()
                )  # past SQLAlchemy: this is asked for before every statement
                try:
                    cursor.execute(f"SELECT generation FROM {lease.name}")
                    ((number,),) = cursor.fetchall()
                    return int(number)
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
            with suppress(Exception):
                peek.invalidate()
                peek.close()

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


def _set_up_sqlite(engine: Engine, read_only: bool) -> None:
    @event.listens_for(engine, "connect")
    def connect(dbapi_connection: Any, _record: Any) -> None:
        dbapi_connection.isolation_level = None  # we begin transactions ourselves, see `begin`
        cursor = dbapi_connection.cursor()
        # FULL: a commit that was acknowledged survives power loss, for one fsync of the log per transaction.
        for pragma in ("busy_timeout=15000", "journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
            cursor.execute(f"PRAGMA {pragma}")
        if read_only:
            cursor.execute("PRAGMA query_only=ON")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql(str(connection.get_execution_options().get("cq_begin", "BEGIN")))


def stale(what: str) -> ConflictError:
    """A write that was computed from what the database does not hold any more."""
    return ConflictError(
        f"{what} is not what this process knew",
        detail="another write came in between; nothing of this one was stored",
        hint="repeat it",
    )


def local_path(warehouse: str) -> Path:
    """The absolute directory that `warehouse` names; StorageError for an object store."""
    if warehouse.startswith("file://"):
        warehouse = warehouse.removeprefix("file://")
    if "://" in warehouse:
        raise StorageError(
            f"{warehouse} is not a directory",
            detail="warehouses on object stores are not supported yet",
            hint="give a path that all of Spark's processes see",
        )
    return Path(warehouse).expanduser().resolve()
