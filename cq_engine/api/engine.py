"""The façade: one warehouse, opened."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar, overload
from weakref import WeakSet

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from cq_engine.api import statements
from cq_engine.api.entry import entry
from cq_engine.api.following import Following
from cq_engine.api.handles import QueryDescription, TransactionHandle
from cq_engine.api.locating import locate_errors
from cq_engine.api.scheduling import Scheduling
from cq_engine.api.scripts import read_script
from cq_engine.api.upkeep import Upkeep
from cq_engine.catalog.delta_lake import Publisher
from cq_engine.catalog.store import Catalog
from cq_engine.context.functions import PythonFunction
from cq_engine.context.rights import Rights
from cq_engine.context.services import Services
from cq_engine.core.clock import Clock, SystemClock
from cq_engine.core.errors import CatalogError, CQError, TransactionError
from cq_engine.core.limits import DEFAULT_LIMITS, Limits
from cq_engine.core.options import check_conf
from cq_engine.delivery.delivery import Changed, Delivery
from cq_engine.destinations import Callback, Callbacks, Delta, Retry, read_deltas
from cq_engine.grammar import parse
from cq_engine.groups.constants import Constants
from cq_engine.groups.progress import Progress
from cq_engine.launch.lazy_session import LazySession
from cq_engine.lifecycle.draining import drain, has_news
from cq_engine.lifecycle.drop import tidy
from cq_engine.lifecycle.queries import Queries
from cq_engine.maintenance.compaction import Compactor
from cq_engine.maintenance.maintenance import Maintenance
from cq_engine.query.result import Result, place_errors
from cq_engine.refresh.refresh import Refresh
from cq_engine.schedule.scheduler import Scheduler
from cq_engine.spark.failures import plain_errors
from cq_engine.storage.reader import Reader
from cq_engine.transactions.apply_changes import apply_all
from cq_engine.transactions.transaction import Transaction

__all__ = ["Engine", "QueryDescription", "TransactionHandle", "connect"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Engine(Upkeep, Scheduling, Following):
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
        self._spark_session = LazySession(spark, self.conf)
        constants = Constants(catalog)
        self.reader = Reader(catalog, lambda: self.spark, constants.rows)
        self.services = Services(
            catalog, self.reader, lambda: self.spark, clock, rights=Rights.of(self.conf),
            results=lambda *what: self.queries.results.read(*what),  # noqa: PLW0108 - it is made later
        )  # fmt: skip
        self.callbacks = Callbacks()
        progress = Progress(self.services)
        self.delivery = Delivery(self.services, self.callbacks, self.note_commit, progress.newest)
        self.queries = Queries(
            self.services,
            self.delivery,
            constants,
            progress,
            refreshed=self._note_refresh,
            detached=self._schedule_detached,
        )
        self.compactor = Compactor(self.services)
        self._scheduled = scheduler and not catalog.read_only
        background = (self.publish, self.vacuum) if self._scheduled else (None, None)
        self.maintenance = Maintenance(self.services, self.compactor, self.conf, self._prepare, *background)
        self.publisher = None if catalog.read_only else Publisher(catalog)
        self.session: Transaction | None = None
        limits = catalog.limits
        retry = Retry(base=limits.retry_seconds, cap=limits.retry_most_seconds)
        self.scheduler = Scheduler(clock, self._run_query, on_error=self._refresh_failed, retry=retry)
        self._followers = WeakSet()
        self._closed = False
        if not catalog.read_only:
            tidy(self.queries.registry)
            for query in catalog.state.queries.values():
                self._schedule_known(query.name)
        if self._scheduled:
            self.scheduler.start()
            self.delivery.start()
            self.maintenance.note_query(*self._recent_queries())
            self.maintenance.start()
            self._wake_behind()

    # ------------------------------------------------------------ parts

    @property
    def spark(self) -> SparkSession:
        """The Spark session; started at the first use where the caller gave none, and again where it has ended."""
        session = self._spark_session.get()
        self.services.rights.prepare(session)
        self.services.functions.install(session, self.catalog.state)
        return session

    @property
    def now(self) -> datetime:
        """The engine's clock."""
        return self.clock.now()

    @property
    def in_transaction(self) -> bool:
        """True between BEGIN and COMMIT or ROLLBACK."""
        return self.session is not None

    # ------------------------------------------------------------ statements

    @entry
    def execute(self, sql: str, *, source: str = "<input>", line: int = 1, column: int = 1) -> Result:
        """Runs one statement of the language (see docs/language.md); what it gives.

        `source`, `line` and `column` say where the text stands, for errors. Raises CQError's subclasses.
        """
        self._check_open()
        statement = parse(sql, source, line, column)
        with locate_errors(sql, statement, source, line, column) as place, self._plain("run the statement"):
            return place_errors(statements.execute(statement, self, sql), place)

    @entry
    def execute_in(self, transaction: Transaction, sql: str) -> Result:
        """Runs one statement inside `transaction`."""
        statement = parse(sql)
        with locate_errors(sql, statement, "<input>", 1, 1) as place, self._plain("run the statement"):
            return place_errors(transaction.execute(statement, sql), place)

    def run_script(self, path_or_text: str | Path) -> list[Result]:
        """Runs the statements of a script file, or of a text, in order; stops at the first error."""
        items = read_script(path_or_text)
        return [self.execute(i.text, source=i.source, line=i.line, column=i.column) for i in items]

    # ------------------------------------------------------------ transactions

    @contextmanager
    def transaction(self, commit_time: datetime | None = None) -> Iterator[TransactionHandle]:
        """A transaction that commits when the block ends and rolls back when it raises."""
        self.check_writable()
        transaction = Transaction(self.services)
        try:
            yield TransactionHandle(self.execute_in, transaction)
        except BaseException:
            if transaction.is_open:
                transaction.rollback()
            raise
        self.commit(transaction, commit_time)

    @entry
    def commit(self, transaction: Transaction, commit_time: datetime | None = None) -> int | None:
        """Commits and wakes the queries that the commit concerns."""
        try:
            with self._plain("commit"):
                return transaction.commit(commit_time)
        finally:  # also where what comes after it failed
            if transaction.commit_version is not None:
                self.note_commit(transaction.commit_version, transaction.changed)

    @entry
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
        """Applies a stream of changes over one or several tables: see `cq_engine.transactions.apply_changes`."""
        self.check_writable()
        with self._plain("apply the changes"):
            applied = apply_all(
                self.services, tables, op=op, operations=operations, transaction=transaction, order=order,
                commit_time=commit_time,
            )  # fmt: skip
        if applied.versions:
            self.note_commit(applied.versions[-1], applied.tables)
        return applied.versions

    def _catch_up(self) -> None:
        """Wakes whatever has not processed what is durable; an interrupt may have kept a commit from doing so."""
        if not self._closed:
            self._wake_behind()

    def note_commit(self, version: int, changed: Changed) -> None:
        """Tells the scheduler of a commit, and lets maintenance follow."""
        self.scheduler.note_commit(version, changed)
        self.maintenance.note_commit()

    # ------------------------------------------------------------ continuous queries

    @entry
    def refresh(self, query: str) -> Refresh:
        """Processes everything committed, in the queries that it reads first; its table destinations are up to date
        on return. Where one of those queries is paused or has failed, it gets as far as they are.

        Raises CatalogError for an unknown query, RefreshError where the refresh fails (the query is then FAILED).
        """
        self.check_writable()
        with self._plain(f"refresh {query}"):
            return self.queries.refreshes.bring_up_to_date(query)

    def _note_refresh(self, result: Refresh) -> None:
        self.scheduler.end_pause(result.query)
        if result.to_version > result.from_version:
            self.cascade(result.query)
        self.maintenance.note_refresh()

    @entry
    def drain(self, timeout: float | None = None) -> None:
        """Returns when every ON COMMIT query has processed, and every destination has received, the newest commit.

        Paused queries are left out. Raises RefreshError where a query has failed or `timeout` (seconds) has passed,
        DestinationError where a destination refuses; both name what does not come to rest, and why.
        """
        with self._plain("drain"):
            drain(self.queries, self.scheduler, timeout)

    def deltas(
        self, query: str, after_version: int | None = None, to_version: int | None = None
    ) -> Iterator[Delta]:
        """The delta log of a query in commit order, of the versions (after_version, to_version]; by default all that is
        kept. Raises StorageError where `after_version` lies below that."""
        found = self.queries.find(query)
        after = self.catalog.floor(found.result.id) if after_version is None else after_version
        upto = self.catalog.status(found.name).position if to_version is None else to_version
        return self._steps(read_deltas(self.services, found, after, upto))

    def _steps(self, deltas: Iterator[Delta]) -> Iterator[Delta]:
        while (delta := self._step(deltas)) is not None:
            yield delta

    @entry
    def _step(self, deltas: Iterator[Delta]) -> Delta | None:
        return next(deltas, None)

    def describe(self, query: str) -> QueryDescription:
        """What is known of a continuous query."""
        found = self.queries.find(query)
        return QueryDescription.of(found, self.status(found), self.catalog.cursors(found.name))

    def callback(self, name: str) -> Callable[[Callback], Callback]:
        """Registers the decorated function as callback `name`: it gets a DeltaBatch per commit."""

        def register(function: Callback) -> Callback:
            self.callbacks.register(name, function)
            for query in self.catalog.state.queries.values():
                if any(d.name.lower() == name.lower() for d in query.destinations):
                    self.delivery.wake(query)
            return function

        return register

    @overload
    def function(
        self, name: str, function: _Function, *, returns: str, deterministic: bool = ..., arrow: bool = ...
    ) -> _Function: ...

    @overload
    def function(
        self, name: str, *, returns: str, deterministic: bool = ..., arrow: bool = ...
    ) -> Callable[[_Function], _Function]: ...

    def function(
        self,
        name: str,
        function: _Function | None = None,
        *,
        returns: str,
        deterministic: bool = True,
        arrow: bool = False,
    ) -> _Function | Callable[[_Function], _Function]:
        """Registers a Python function for SQL under `name`: `function`, or the one that this decorates.

        It gets one row's arguments and gives one value. Queries that wait for it go on.

        Args:
            name: the name in SQL; it takes the place of an earlier Python function of that name.
            function: the function. Executors get a copy of it.
            returns: its type in Spark SQL, such as `DECIMAL(10,2)` or `ARRAY<STRING>`.
            deterministic: False where equal arguments can give different values; no continuous query may call it then.
            arrow: hand values over in Arrow batches.

        Raises:
            CatalogError: the name is that of a SQL function, or of one that Spark has.
            AnalysisError: `returns` is no type.
        """

        def register(each: _Function) -> _Function:
            self._check_open()
            made = PythonFunction(name, each, returns, deterministic, arrow)
            self.services.functions.register(made, self.catalog.state)
            if self._spark_session.started is not None:
                self.services.functions.install(self._spark_session.started, self.catalog.state)
            for query in self.catalog.state.queries.values():
                if name.lower() in query.functions and has_news(self.catalog, query):
                    self.scheduler.wake(query.group or query.name)
            return each

        return register if function is None else register(function)

    # ------------------------------------------------------------ the warehouse

    def interrupt(self) -> None:
        """Cancels the calls of other threads that use Spark; refreshes in the background go on."""
        self._spark_session.stop_calls()

    @entry
    def close(self) -> None:
        """Stops the scheduler, rolls back an open transaction, publishes and gives the warehouse back.

        What cannot be done is raised at the end, and does not keep the rest from being done.
        """
        if self._closed:
            return
        self._closed = True
        self._end_following()
        with ExitStack() as steps:  # the last one first, and each of them whatever the others raise
            steps.callback(self.catalog.close)
            if self._spark_session.started is not None:
                steps.callback(self.services.functions.release, self._spark_session.started)
            if self.publisher is not None:
                steps.callback(self.publisher.close)
            steps.callback(self.publish)
            steps.callback(self._end_session)
            steps.callback(self.queries.refresher.plans.clear)
            if not self.catalog.read_only:
                steps.callback(self.queries.groups.settle)
            steps.callback(self.reader.look_ups.indexed.close)
            steps.callback(self.maintenance.stop)
            steps.callback(self.delivery.stop)
            steps.callback(self._stop_scheduler)

    def _stop_scheduler(self) -> None:
        """Waits for the refreshes that are under way; Ctrl-C stops those where Spark is the engine's own."""
        try:
            self.scheduler.shutdown(wait=True)
        except KeyboardInterrupt:
            self._spark_session.stop_everything()
            raise

    def _refresh_failed(self, name: str, error: BaseException) -> None:
        with suppress(CQError):  # a session that was given
            self._spark_session.forget_ended()
        self._report(name, error)

    def _end_session(self) -> None:
        if self.session is not None:
            self.session.rollback()
            self.session = None

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()

    def _plain(self, doing: str) -> AbstractContextManager[None]:
        return plain_errors(doing, self.catalog.warehouse)

    def _check_open(self) -> None:
        if self._closed:
            raise CatalogError("the engine is closed", hint="connect again")

    def check_writable(self) -> None:
        """Raises where the engine is closed or reads only."""
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
    limits: Limits | None = None,
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
        limits: other numeric bounds of the parts, for tests and experiments; default `Limits()`.

    Raises:
        LeaseError: another process holds the warehouse; the error names it.
        CatalogError: there is no warehouse and `read_only` forbids to make one, or it is of another version.
        AnalysisError: `conf` has a name that is no option, or a value that an option does not have.
    """
    checked = check_conf(conf or {})
    chosen = clock or SystemClock()
    opened = Catalog.open(
        str(warehouse), url=catalog, read_only=read_only, clock=chosen, limits=limits or DEFAULT_LIMITS
    )
    try:
        return Engine(opened, spark, chosen, checked, scheduler)
    except BaseException:
        opened.close()
        raise
