"""The façade: one warehouse, opened."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from cq_engine.api import statements
from cq_engine.api.consuming import Consuming
from cq_engine.api.entry import entry
from cq_engine.api.following import PATIENCE, Following
from cq_engine.api.handles import QueryDescription, TransactionHandle, can_run_again, run_again
from cq_engine.api.locating import locate_errors
from cq_engine.api.registering import Registering
from cq_engine.api.scripts import read_script
from cq_engine.catalog.store import Catalog
from cq_engine.context.rights import Rights
from cq_engine.context.services import Services
from cq_engine.core.clock import Clock
from cq_engine.core.errors import CatalogError, CQError, TransactionError
from cq_engine.core.retry import Retry
from cq_engine.delivery.delivery import Changed, Delivery
from cq_engine.destinations import Callbacks
from cq_engine.grammar import Statement, parse
from cq_engine.groups.constants import Constants
from cq_engine.groups.progress import Progress
from cq_engine.launch.lazy_session import LazySession
from cq_engine.maintenance.compaction import Compactor
from cq_engine.maintenance.maintenance import Maintenance
from cq_engine.query.result import Result, place_errors
from cq_engine.schedule.scheduler import Scheduler
from cq_engine.spark.failures import plain_errors
from cq_engine.spark.settings import note_use
from cq_engine.storage.reader import Reader
from cq_engine.transactions.retries import retried
from cq_engine.transactions.transaction import Transaction

if TYPE_CHECKING:
    from cq_engine.destinations import Delta
    from cq_engine.lifecycle.queries import Queries

__all__ = ["Engine", "QueryDescription", "TransactionHandle"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Engine(Registering, Following, Consuming):
    """Tables, transactions and continuous queries of one warehouse. `cq_engine.connect` gives one.

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
        self._making = threading.RLock()
        self._constants = Constants(catalog)
        self.reader = Reader(catalog, lambda: self.spark, self._constants.rows)
        self.services = Services(
            catalog, self.reader, lambda: self.spark, clock, rights=Rights.of(self.conf),
            spark_runs=lambda: self._spark_session.started is not None,
            results=lambda *what: self.queries.results.read(*what),  # noqa: PLW0108 - it is made later
            remote=self._read_remote,
        )  # fmt: skip
        self.callbacks = Callbacks()
        self._progress = Progress(self.services)
        self.delivery = Delivery(self.services, self.callbacks, self.note_commit, self._progress.newest)
        self.compactor = Compactor(self.services)
        self._scheduled = scheduler and not catalog.read_only
        background = (self.publish, partial(self._vacuum, None, None)) if self._scheduled else (None, None)
        self.maintenance = Maintenance(self.services, self.compactor, self.conf, self._prepare, *background)
        catalog.reads = self._reads
        self._session: Transaction | None = None
        limits = catalog.limits
        retry = Retry(base=limits.retry_seconds, cap=limits.retry_most_seconds)
        self.scheduler = Scheduler(clock, self._run_query, on_error=self._refresh_failed, retry=retry)
        self._followers = WeakSet()
        self._begin_consuming()
        self._closed = False
        if self._scheduled:
            self.delivery.start()
        if not catalog.read_only:
            self._begin_noticing()

    # ------------------------------------------------------------ parts

    @property
    def queries(self) -> Queries:
        """What works on continuous queries; made when it is first asked for, since commits do without what it imports."""
        with self._making:
            if self._queries is None:
                from cq_engine.lifecycle.queries import Queries

                self._queries = Queries(
                    self.services, self.delivery, self._constants, self._progress,
                    refreshed=self._note_refresh, detached=self._schedule_detached,
                )  # fmt: skip
            return self._queries

    @property
    def spark(self) -> SparkSession:
        """The Spark session; started at the first use where the caller gave none, and again where it has ended."""
        session = self._spark_session.get()
        self.services.rights.prepare(session)
        self.services.functions.install(session, self.catalog.state)
        note_use(session)
        return session

    @property
    def now(self) -> datetime:
        """The engine's clock."""
        return self.clock.now()

    @property
    def session(self) -> Transaction | None:
        """The transaction between BEGIN and COMMIT; what another process asks for is not in it."""
        return None if self._asked_for() else self._session

    @session.setter
    def session(self, transaction: Transaction | None) -> None:
        self._session = transaction

    @property
    def in_transaction(self) -> bool:
        """True between BEGIN and COMMIT or ROLLBACK."""
        return self.session is not None

    def _reads(self) -> tuple[int, int, float]:
        """What this process reads: its lowest version, its open transactions, and for how long a statement has run."""
        holds = self.services.read_holds
        newest = (
            self.catalog.known_version
        )  # before the holds: who begins to read meanwhile reads no earlier one
        return holds.lowest(newest), len(holds), holds.oldest()

    # ------------------------------------------------------------ statements

    @entry
    def execute(self, sql: str, *, source: str = "<input>", line: int = 1, column: int = 1) -> Result:
        """Runs one statement of the language (see docs/language.md); what it gives.

        `source`, `line` and `column` say where the text stands, for errors. Raises CQError's subclasses.
        """
        self._check_open()
        statement = parse(sql, source, line, column)
        with (
            locate_errors(sql, statement, source, line, column) as place,
            self._plain("run the statement"),
            self.services.read_holds.reading(),
        ):
            self.catalog.follow(wait=PATIENCE)
            alone = self.session is None
            tries = self.services.limits.statement_tries if alone else 1
            return place_errors(retried(lambda: self._run(statement, sql), tries), place)

    def _execute(self, statement: Statement, sql: str) -> Result:
        return statements.execute(statement, self, sql)

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
    def transaction(
        self, commit_time: datetime | None = None, *, retries: int = 0
    ) -> Iterator[TransactionHandle]:
        """A transaction that commits when the block ends and rolls back when it raises.

        Where others have changed what it changes or read, its statements are run again at the newest version, up to
        `retries` times. That is a ConflictError in the end, and at once where the block may have used what it saw: a query
        was among them, or a statement concerns another number of rows now.
        """
        self.check_writable()
        handle = TransactionHandle(self.execute_in, Transaction(self.services), again=retries > 0)
        try:
            yield handle
        except BaseException:
            if handle.transaction.is_open:
                handle.transaction.rollback()
            raise

        def commit() -> int | None:
            if not handle.transaction.is_open:
                run_again(handle, Transaction(self.services))
            return self.commit(handle.transaction, commit_time)

        retried(commit, 1 + (retries if can_run_again(handle) else 0))

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
        from cq_engine.transactions.apply_changes import apply_all

        self.check_writable()
        with self._plain("apply the changes"), self.services.read_holds.reading():
            applied = apply_all(
                self.services, tables, op=op, operations=operations, transaction=transaction, order=order,
                commit_time=commit_time,
            )  # fmt: skip
        if applied.versions:
            self.note_commit(applied.versions[-1], applied.tables)
        return applied.versions

    def _catch_up(self) -> None:
        """Wakes whatever has not processed what is durable; an interrupt may have kept a commit from doing so."""
        if not self._closed and self._on_duty:
            self._wake_behind()

    def note_commit(self, version: int, changed: Changed) -> None:
        """Tells the scheduler of a commit, and lets maintenance follow."""
        if self._on_duty:  # else the process that has the duties sees it
            self.scheduler.note_commit(version, changed)
            self.maintenance.note_commit()

    # ------------------------------------------------------------ continuous queries

    def deltas(
        self, query: str, after_version: int | None = None, to_version: int | None = None
    ) -> Iterator[Delta]:
        """The delta log of a query in commit order, of the versions (after_version, to_version]; by default all that is
        kept. Raises StorageError where `after_version` lies below that."""
        self.catalog.follow(wait=PATIENCE)
        found = self.queries.find(query)
        after = self.catalog.floor(found.result.id) if after_version is None else after_version
        upto = self.catalog.status(found.name).position if to_version is None else to_version
        from cq_engine.destinations import read_deltas

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
        self._end_consuming()
        with ExitStack() as steps:  # the last one first, and each of them whatever the others raise
            steps.callback(self.catalog.close)
            if self._spark_session.started is not None:
                steps.callback(self.services.functions.release, self._spark_session.started)
            if self._publisher is not None:
                steps.callback(self._publisher.close)
            steps.callback(self._publish_last)
            steps.callback(self._end_session)
            if self._queries is not None:
                steps.callback(self._queries.refresher.plans.clear)
                steps.callback(self._queries.refresher.meshes.close)
            steps.callback(self._settle_last)
            steps.callback(self.reader.look_ups.indexed.close)
            steps.callback(self.maintenance.stop)
            steps.callback(self.delivery.stop)
            steps.callback(self._stop_scheduler)
            steps.callback(self._stop_capturing)
            steps.callback(self._end_noticing)

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
