"""What statements need of an engine."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from pyspark.sql import SparkSession

from cq_engine.catalog.overview import Overview
from cq_engine.catalog.store import Catalog
from cq_engine.context.services import Services
from cq_engine.core.errors import TransactionError
from cq_engine.grammar import Ack, Dequeue, Reject
from cq_engine.query.result import Result
from cq_engine.schedule.scheduler import Scheduler
from cq_engine.transactions.transaction import Transaction

if TYPE_CHECKING:
    from cq_engine.lifecycle.queries import Queries
    from cq_engine.maintenance.retention import Vacuumed
    from cq_engine.refresh.refresh import Refresh
    from cq_engine.sources.capturing import Captured, Capturing

__all__ = ["Warehouse", "no_transaction"]


class Warehouse(Protocol):
    """An open warehouse: its parts, and what goes beyond one of them. `Engine` documents the methods."""

    catalog: Catalog
    conf: dict[str, str]
    scheduler: Scheduler
    services: Services
    session: Transaction | None
    """The transaction between BEGIN and COMMIT."""

    @property
    def queries(self) -> Queries: ...

    @property
    def capturing(self) -> Capturing: ...

    @property
    def spark(self) -> SparkSession: ...

    @property
    def now(self) -> datetime: ...

    def check_writable(self) -> None: ...

    def commit(self, transaction: Transaction) -> int | None: ...

    def refresh(self, query: str) -> Refresh: ...

    def refresh_capture(self, capture: str) -> Captured: ...

    def schedule(self, name: str, *, new: bool = False) -> None: ...

    def forget_gone(self) -> None: ...

    def cascade(self, query: str) -> None: ...

    def prepare(self, *queries: str) -> None: ...

    def compact(self, table: str) -> None: ...

    def vacuum(self, name: str | None = None, retain: str | None = None) -> Vacuumed: ...

    def follow_rows(self, query: str, from_version: int | None, snapshot: bool) -> Result: ...

    def dequeue(self, statement: Dequeue, sql: str) -> Result: ...

    def settle(self, statement: Ack | Reject, sql: str) -> Result: ...

    def overview(self) -> Overview: ...


def no_transaction(engine: Warehouse, what: str) -> None:
    """Raises where a statement cannot run because a transaction is open, or nothing may be written."""
    engine.check_writable()
    if engine.session is not None:
        raise TransactionError(f"{what} cannot run inside a transaction", hint="COMMIT or ROLLBACK first")
