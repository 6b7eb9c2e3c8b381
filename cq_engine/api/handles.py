"""What the engine hands out: transactions to work in, and descriptions of queries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from cq_engine.catalog.model import ContinuousQuery, Cursor, QueryStatus
from cq_engine.core.calls import one_call
from cq_engine.core.columns import Column
from cq_engine.core.errors import ConflictError
from cq_engine.grammar import Query, When, parse
from cq_engine.query.result import Result
from cq_engine.transactions.transaction import Rows, Transaction

__all__ = ["QueryDescription", "TransactionHandle", "can_run_again", "run_again"]


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

    def __init__(
        self, execute: Callable[[Transaction, str], Result], transaction: Transaction, *, again: bool = False
    ) -> None:
        self._execute = execute
        self.transaction = transaction
        self._steps: list[tuple[Callable[[], Result], int | None]] | None = [] if again else None
        """What was done, and to how many rows; None where it will not be done again."""

    @property
    def commit_version(self) -> int | None:
        return self.transaction.commit_version

    def execute(self, sql: str) -> Result:
        """Runs one statement: DML, COPY INTO or a query."""
        if self._steps is not None and isinstance(parse(sql), Query):
            self._steps = None  # the program may use the rows
        return self._do(lambda: self._execute(self.transaction, sql))

    @one_call
    def insert(self, table: str, rows: Rows) -> Result:
        """Inserts Arrow rows, a DataFrame, mappings or sequences."""
        kept = rows if self._steps is None or hasattr(rows, "schema") else list(rows)
        return self._do(lambda: self.transaction.insert(table, kept))

    @one_call
    def update(self, table: str, changes: Mapping[str, str], where: str | None = None) -> Result:
        """Sets columns to SQL expressions where `where` holds."""
        return self._do(lambda: self.transaction.update(table, changes, where))

    @one_call
    def delete(self, table: str, where: str | None = None) -> Result:
        """Deletes where `where` holds."""
        return self._do(lambda: self.transaction.delete(table, where))

    def _do(self, step: Callable[[], Result]) -> Result:
        done = step()
        if self._steps is not None:
            self._steps.append((step, done.rowcount))
        return done


def can_run_again(handle: TransactionHandle) -> bool:
    """Whether `run_again` can do what was done: no query was among it."""
    return handle._steps is not None  # noqa: SLF001 - of this module


def run_again(handle: TransactionHandle, transaction: Transaction) -> None:
    """Does what was done in another transaction. ConflictError where a statement concerns another number of rows now, which
    the program may have used."""
    handle.transaction = transaction
    try:
        changed = any(step().rowcount != count for step, count in handle._steps or ())  # noqa: SLF001 - of this module
    except BaseException:
        transaction.rollback()
        raise
    if changed:
        transaction.rollback()
        raise ConflictError(
            "a statement of the transaction concerns another number of rows now",
            detail="another transaction has changed what this one changes or has read",
            hint="retry the transaction",
        )
