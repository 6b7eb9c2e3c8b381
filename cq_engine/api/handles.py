"""What the engine hands out: transactions to work in, and descriptions of queries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from cq_engine.catalog.model import ContinuousQuery, Cursor, QueryStatus
from cq_engine.core.calls import one_call
from cq_engine.core.columns import Column
from cq_engine.grammar import When
from cq_engine.query.result import Result
from cq_engine.transactions.transaction import Rows, Transaction

__all__ = ["QueryDescription", "TransactionHandle"]


@dataclass(frozen=True)
class QueryDescription:
    """What `describe` says of a query. `verdict` is INCREMENTAL, AFFECTED KEYS or FULL; `state` ACTIVE, PAUSED or FAILED."""

    name: str
    state: str
    error: str
    verdict: str
    reasons: tuple[str, ...]
    key: tuple[str, ...] | None
    columns: tuple[str, ...]
    schema: tuple[Column, ...]
    position: int
    schedule: When
    destinations: tuple[Cursor, ...]
    statement: str

    @classmethod
    def of(cls, query: ContinuousQuery, status: QueryStatus, cursors: Iterable[Cursor]) -> QueryDescription:
        """From the catalog's records."""
        shown = query.result.columns[: query.width]
        return cls(
            query.name, status.state, status.error, query.verdict, query.reasons, query.key,
            tuple(c.name for c in shown), shown, status.position, query.when, tuple(cursors), query.statement,
        )  # fmt: skip


class TransactionHandle:
    """A transaction of `engine.transaction()`. After it has ended `commit_version` is its version, None if nothing changed."""

    def __init__(self, execute: Callable[[Transaction, str], Result], transaction: Transaction) -> None:
        self._execute = execute
        self.transaction = transaction

    @property
    def commit_version(self) -> int | None:
        return self.transaction.commit_version

    def execute(self, sql: str) -> Result:
        """Runs one statement: DML, COPY INTO or a query."""
        return self._execute(self.transaction, sql)

    @one_call
    def insert(self, table: str, rows: Rows) -> Result:
        """Inserts Arrow rows, a DataFrame, mappings or sequences."""
        return self.transaction.insert(table, rows)

    @one_call
    def update(self, table: str, changes: Mapping[str, str], where: str | None = None) -> Result:
        """Sets columns to SQL expressions where `where` holds."""
        return self.transaction.update(table, changes, where)

    @one_call
    def delete(self, table: str, where: str | None = None) -> Result:
        """Deletes where `where` holds."""
        return self.transaction.delete(table, where)
