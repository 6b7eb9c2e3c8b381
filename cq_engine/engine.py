"""The façade: one warehouse, opened."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from cq_engine.catalog import apply
from cq_engine.catalog.delta_lake import Publisher
from cq_engine.catalog.model import ContinuousQuery
from cq_engine.catalog.overview import Overview
from cq_engine.catalog.store import Catalog
from cq_engine.clock import Clock, SystemClock
from cq_engine.destinations import Callback, Callbacks, Delta, read_deltas
from cq_engine.errors import CatalogError, CQError, RefreshError, TransactionError
from cq_engine.grammar import OnCommit, OnDml, ScriptItem, parse, split
from cq_engine.handles import QueryDescription, TransactionHandle
from cq_engine.result import Result
from cq_engine.runtime import statements
from cq_engine.runtime.apply_changes import apply_changes
from cq_engine.runtime.compaction import Compactor
from cq_engine.runtime.delivery import Changed, Delivery
from cq_engine.runtime.errors import located
from cq_engine.runtime.queries import Queries
from cq_engine.runtime.reader import Reader
from cq_engine.runtime.refresh import Refresh
from cq_engine.runtime.scheduler import Scheduler
from cq_engine.runtime.services import Services
from cq_engine.runtime.transaction import Transaction
from cq_engine.session import spark_session

__all__ = ["Engine", "QueryDescription", "TransactionHandle", "connect"]

_log = logging.getLogger(__name__)


class Engine:
    """Tables, transactions and continuous queries of one warehouse. Use `connect` to get one.

    Threads may share an engine; BEGIN ... COMMIT through `execute` is one session for all of them, so threads that
    write use `transaction()`.
    """

    def __init__(
        self,
        catalog: Catalog,
        spark: SparkSession | None,
        clock: Clock,
        conf: Mapping[str, str],
        scheduler: bool,
    ) -> None:
        self.catalog = catalog
        self.clock = clock
        self.conf = dict(conf)
        self._spark = spark
        self._starting = threading.Lock()
        self.reader = Reader(catalog, lambda: self.spark)
        self.services = Services(catalog, self.reader, lambda: self.spark, clock)
        self.callbacks = Callbacks()
        self.delivery = Delivery(self.services, self.callbacks, self.committed)
        self.queries = Queries(self.services, self.delivery)
        self.compactor = Compactor(self.services)
        self.publisher = None if catalog.read_only else Publisher(catalog)
        self.session: Transaction | None = None
        self._handles: set[str] = set()
        self._scheduled = scheduler and not catalog.read_only
        self.scheduler = Scheduler(clock, self._run_query, on_error=self._report)
        self._closed = False
        self._published = time.monotonic()
        if not catalog.read_only:
            for query in catalog.state.queries.values():
                self._schedule_known(query.name)
        if self._scheduled:
            self.scheduler.start()
            self.delivery.start()
            self._wake_behind()

    # ------------------------------------------------------------ parts

    @property
    def spark(self) -> SparkSession:
        """The Spark session; started at the first use where the caller gave none."""
        if self._spark is None:
            with self._starting:
                if self._spark is None:
                    settings = {k: v for k, v in self.conf.items() if k.startswith("spark.")}
                    self._spark = spark_session(settings)
        return self._spark

    @property
    def now(self) -> datetime:
        """The engine's clock."""
        return self.clock.now()

    @property
    def in_transaction(self) -> bool:
        """True between BEGIN and COMMIT or ROLLBACK."""
        return self.session is not None

    # ------------------------------------------------------------ statements

    def execute(self, sql: str, *, source: str = "<input>", line: int = 1, column: int = 1) -> Result:
        """Runs one statement of the language (see docs/language.md); what it gives.

        `source`, `line` and `column` say where the text stands, for errors. Raises CQError's subclasses.
        """
        self._check_open()
        statement = parse(sql, source, line, column)
        with located(sql, statement, source, line, column):
            return statements.execute(statement, self, sql)

    def execute_in(self, transaction: Transaction, sql: str) -> Result:
        """Runs one statement inside `transaction`."""
        statement = parse(sql)
        with located(sql, statement, "<input>", 1, 1):
            return transaction.execute(statement, sql)

    def run_script(self, path_or_text: str | Path) -> list[Result]:
        """Runs the statements of a script file, or of a text, in order; stops at the first error."""
        items = self._script(path_or_text)
        return [self.execute(i.text, source=i.source, line=i.line, column=i.column) for i in items]

    @staticmethod
    def _script(path_or_text: str | Path) -> list[ScriptItem]:
        path = Path(path_or_text) if isinstance(path_or_text, Path) or "\n" not in path_or_text else None
        if path is not None and (
            isinstance(path_or_text, Path) or path.suffix in (".cql", ".sql") or path.is_file()
        ):
            try:
                return split(path.read_text(encoding="utf-8"), source=str(path_or_text))
            except OSError as error:
                raise CatalogError(f"script {path_or_text} cannot be read: {error.strerror}") from error
        return split(str(path_or_text))

    # ------------------------------------------------------------ transactions

    @contextmanager
    def transaction(self, commit_time: datetime | None = None) -> Iterator[TransactionHandle]:
        """A transaction that commits when the block ends and rolls back when it raises."""
        self._check_writable()
        transaction = Transaction(self.services)
        try:
            yield TransactionHandle(self, transaction)
        except BaseException:
            if transaction.is_open:
                transaction.rollback()
            raise
        self.commit(transaction, commit_time)

    def commit(self, transaction: Transaction, commit_time: datetime | None = None) -> int | None:
        """Commits and wakes the queries that the commit concerns."""
        version = transaction.commit(commit_time)
        if version is not None:
            self.committed(version, transaction.changed)
        return version

    def apply_changes(
        self,
        tables: Mapping[str, pa.Table | DataFrame | str],
        *,
        op: str = "op",
        operations: Mapping[str, str] | None = None,
        transaction: str | None = None,
        order: str | None = None,
        commit_time: str | datetime | None = None,
    ) -> list[int]:
        """Applies a stream of changes over one or several tables: see `cq_engine.runtime.apply_changes`."""
        self._check_writable()
        before = self.catalog.newest_version
        versions = apply_changes(
            self.services, tables, op=op, operations=operations, transaction=transaction, order=order,
            commit_time=commit_time,
        )  # fmt: skip
        if versions:
            changed: dict[str, frozenset[str]] = {}
            for name in tables:
                table = apply.find_table(self.catalog.state, name)
                sets = self.catalog.layout(table.storage.id, before).changes
                kinds = (
                    frozenset().union(*(s.kinds for s in sets if s.high > before)) if sets else frozenset()
                )
                if kinds:
                    changed[table.name] = kinds
            self.committed(versions[-1], changed)
        return versions

    def committed(self, version: int, changed: Changed) -> None:
        """Tells the scheduler of a commit, and lets maintenance follow."""
        self.scheduler.committed(version, changed)

    # ------------------------------------------------------------ continuous queries

    def _schedule_known(self, name: str) -> None:
        """One query whose schedule does not fit must not keep the warehouse from opening."""
        try:
            self.schedule(name)
        except CQError as error:
            self._report(name, error)

    def schedule(self, name: str, *, new: bool = False) -> None:
        """Puts a query's WHEN into effect; that of a new one counts from now on."""
        query = self.queries.find(name)
        last = None if new else self.catalog.status(query.name).last_refresh
        sources = [
            self.catalog.state.tables[s].name if s in self.catalog.state.tables else s for s in query.sources
        ]
        self.scheduler.add(query.name, query.when, last, sources=sources)

    def refresh(self, query: str) -> Refresh:
        """Processes everything committed; the query's table destinations are up to date on return.

        Raises CatalogError for an unknown query, RefreshError where the refresh fails (the query is then FAILED).
        """
        self._check_writable()
        return self._after(self.queries.refresh(query))

    def _after(self, result: Refresh) -> Refresh:
        self.compactor.after_refresh(self.queries.find(result.query))
        if self._scheduled and time.monotonic() - self._published > 5.0:
            self.publish()
        return result

    def _run_query(self, name: str) -> None:
        state = self.catalog.status(name).state
        if state == "ACTIVE":
            self._after(self.queries.refresh(name))
        else:
            self.queries.deliver(self.queries.find(name))

    def _report(self, name: str, error: Exception) -> None:
        text = error.message if isinstance(error, CQError) else repr(error)
        _log.warning("continuous query %s: %s", name, text)

    def _wake_behind(self) -> None:
        """After a restart: queries that commits should have moved, and destinations that have not had everything."""
        for query in self.catalog.state.queries.values():
            if self._has_news(query):
                self.scheduler.wake(query.name)
            self.delivery.wake(query)

    def drain(self, timeout: float | None = None) -> None:
        """Returns when every ON COMMIT query has processed, and every destination has received, the newest commit.

        Paused queries are left out. Raises RefreshError where a query has failed or `timeout` (seconds) has passed,
        DestinationError where a destination cannot be served.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not self.scheduler.drain(left):
                raise RefreshError(f"not drained within {timeout} seconds")
            active, late = self._to_drain()
            if not late and not any(map(self.delivery.waiting, active)):
                return
            if deadline is not None and time.monotonic() >= deadline:
                names = ", ".join(q.name for q in late or active if late or self.delivery.waiting(q))
                raise RefreshError(f"not drained within {timeout} seconds", detail=f"behind: {names}")
            for query in late:
                self._after(self.queries.refresh(query.name))
            if not late and not self.delivery.drain(active, deadline):
                raise RefreshError(
                    f"not drained within {timeout} seconds", detail="a destination is still being served"
                )

    def _to_drain(self) -> tuple[list[ContinuousQuery], list[ContinuousQuery]]:
        """The queries that are not paused, and those of them that have commits to process."""
        active, late = [], []
        for query in self.catalog.state.queries.values():
            status = self.catalog.status(query.name)
            if status.state == "FAILED" and isinstance(query.when, OnCommit):
                raise RefreshError(f"{query.name} has failed", detail=status.error)
            if status.state != "PAUSED":
                active.append(query)
            if status.state == "ACTIVE" and isinstance(query.when, OnCommit) and self._has_news(query):
                late.append(query)
        return active, late

    def _has_news(self, query: ContinuousQuery) -> bool:
        """Whether a commit after the query's position is one that its WHEN waits for."""
        when, tables = query.when, self.catalog.state.tables
        if not isinstance(when, OnCommit | OnDml):
            return False
        events = (
            frozenset(when.events) if isinstance(when, OnDml) else frozenset({"INSERT", "DELETE", "UPDATE"})
        )
        watched = [name.lower() for name in when.tables] if isinstance(when, OnDml) else query.sources
        low, high = self.catalog.status(query.name).position + 1, self.catalog.newest_version
        stored = [tables[name].storage.id for name in watched if name in tables]
        return any(c.kinds & events for number in stored for c in self.catalog.changes(number, low, high))

    def deltas(self, query: str, after_version: int = 0, to_version: int | None = None) -> Iterator[Delta]:
        """The delta log of a query in commit order, of the versions (after_version, to_version]."""
        found = self.queries.find(query)
        upto = self.catalog.status(found.name).position if to_version is None else to_version
        return read_deltas(self.services, found, after_version, upto)

    def describe(self, query: str) -> QueryDescription:
        """What is known of a continuous query."""
        found = self.queries.find(query)
        status = self.catalog.status(found.name)
        shown = found.result.columns[: found.width]
        return QueryDescription(
            found.name, status.state, status.error, found.verdict, found.reasons, found.key,
            tuple(c.name for c in shown), shown, status.position, found.when,
            tuple(self.catalog.cursors(found.name)), found.statement,
        )  # fmt: skip

    def callback(self, name: str) -> Callable[[Callback], Callback]:
        """Registers the decorated function as callback `name`: it gets a DeltaBatch per commit."""

        def register(function: Callback) -> Callback:
            self.callbacks.register(name, function)
            for query in self.catalog.state.queries.values():
                if any(d.name.lower() == name.lower() for d in query.destinations):
                    self.delivery.wake(query)
            return function

        return register

    # ------------------------------------------------------------ the warehouse

    def publish(self) -> None:
        """Publishes everything committed as Delta tables: `tables/`, `changes/` and `deltas/` of the warehouse."""
        if self.publisher is not None:
            self._published = time.monotonic()
            self.publisher.publish()

    def compact(self, table: str) -> None:
        """Merges a table's changes into its snapshot files (COMPACT TABLE)."""
        self._check_writable()
        self.compactor.compact(apply.find_table(self.catalog.state, table).storage)
        self.publish()

    def overview(self) -> Overview:
        """The catalog at one moment, as `\\d` shows it."""
        return Overview.of(self.catalog)

    def interrupt(self) -> None:
        """Cancels the Spark work that other threads of this engine wait for."""
        spark = self._spark
        if spark is None:
            return
        if hasattr(spark, "sparkContext"):
            spark.sparkContext.cancelAllJobs()
        else:
            spark.interruptAll()

    def close(self) -> None:
        """Rolls back an open transaction, publishes, stops the scheduler and gives the warehouse back."""
        if self._closed:
            return
        self._closed = True
        self.scheduler.shutdown(wait=True)
        self.delivery.stop()
        if self.session is not None:
            self.session.rollback()
            self.session = None
        try:
            self.publish()
            if self.publisher is not None:
                self.publisher.close()
        finally:
            self.catalog.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise CatalogError("the engine is closed", hint="connect again")

    def _check_writable(self) -> None:
        self._check_open()
        if self.catalog.read_only:
            raise TransactionError("the warehouse is open for reading only", hint="connect without read_only")


def connect(
    warehouse: str | Path,
    catalog: str | None = None,
    spark: SparkSession | None = None,
    clock: Clock | None = None,
    conf: Mapping[str, str] | None = None,
    read_only: bool = False,
    scheduler: bool = True,
) -> Engine:
    """Opens the warehouse at a path; creates it if it is absent.

    Args:
        warehouse: a directory.
        catalog: SQLAlchemy URL of the catalog database; default a SQLite file inside the warehouse.
        spark: the session to use, never stopped by the engine; default `spark_session()`, started when first needed.
        clock: default the system's, in UTC.
        conf: engine options; `spark.*` go to the session that the engine starts.
        read_only: queries only, without the lease.
        scheduler: False: only `refresh` and `drain` move queries.

    Raises:
        LeaseError: another process holds the warehouse; the error names it.
        CatalogError: there is no warehouse and `read_only` forbids to make one, or it is of another version.
    """
    chosen = clock or SystemClock()
    opened = Catalog.open(str(warehouse), url=catalog, read_only=read_only, clock=chosen)
    try:
        return Engine(opened, spark, chosen, conf or {}, scheduler)
    except BaseException:
        opened.close()
        raise
