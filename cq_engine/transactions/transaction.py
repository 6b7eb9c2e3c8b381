"""A transaction: its statements, one after the other, and its commit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

from pyspark.sql import DataFrame

from cq_engine.catalog.model import Table
from cq_engine.catalog.names import check_snapshot
from cq_engine.context.services import Services
from cq_engine.core.errors import AnalysisError, TransactionError
from cq_engine.grammar.statements import CopyInto, Dml, Query, Statement
from cq_engine.query.query import Resolver, run_query, unknown_table
from cq_engine.query.result import Result
from cq_engine.spark.sql import quote
from cq_engine.transactions import commit, dml
from cq_engine.transactions.clauses import Clauses
from cq_engine.transactions.commit import Also, Committed, nothing
from cq_engine.transactions.copy_into import copy_frame
from cq_engine.transactions.input_rows import Rows, arrow_rows, by_name
from cq_engine.transactions.merge import merge
from cq_engine.transactions.workspace import Workspace

__all__ = ["Rows", "Transaction", "effect_of"]


_STATEMENTS: dict[str, Callable[[Clauses, Resolver], dml.Effect]] = {
    "INSERT": dml.insert,
    "UPDATE": dml.update,
    "DELETE": dml.delete,
    "TRUNCATE": dml.truncate,
    "MERGE": merge,
}
_DONE = {
    "INSERT": "inserted",
    "UPDATE": "updated",
    "DELETE": "deleted",
    "MERGE": "merged",
    "TRUNCATE": "deleted",
}


def effect_of(statement: Dml, resolver: Resolver) -> dml.Effect:
    """What DML would do, analysed and not yet evaluated. Raises CQSyntaxError, AnalysisError."""
    run = _STATEMENTS.get(statement.kind.upper())
    if run is None:
        raise AnalysisError(f"{statement.kind} is not a statement that changes rows")
    return run(Clauses(statement.text), resolver)


class Transaction(Workspace):
    """Sees the newest commit at its beginning and its own changes. Not for several threads at once.

    A statement that fails leaves nothing behind; the transaction goes on. After `commit`, `commit_version` is the
    version or None, and `changed` says which kinds of change each table had. `given` are relations that statements find
    by these names; `trusted` statements were accepted when they were stored.
    """

    def __init__(self, services: Services, *, trusted: bool = False) -> None:
        with services.catalog.lock:
            services.catalog.follow()
            super().__init__(services, services.catalog.newest_version, services.limits.pending_rows)
            services.read_holds.hold(self, self.snapshot)
        self.given: Mapping[str, Callable[[], DataFrame]] = {}
        self._trusted = trusted
        self.commit_version: int | None = None
        self.commit_timestamp: datetime | None = None
        self.changed: dict[str, frozenset[str]] = {}
        self.is_open = True

    # ------------------------------------------------------------ statements

    def execute(self, statement: Statement, text: str = "") -> Result:  # noqa: ARG002 - statements hold their text
        """Runs DML, COPY INTO or a query.

        Raises CQSyntaxError, AnalysisError, ConstraintError, CQError (evaluation), TransactionError (it has ended).
        """
        self._check_open()
        if isinstance(statement, Query):
            return run_query(self.services, statement.text, transaction=self)
        if isinstance(statement, CopyInto):
            return self._copy(statement)
        if not isinstance(statement, Dml):
            raise TransactionError(
                f"{type(statement).__name__} cannot run in a transaction", hint="COMMIT or ROLLBACK first"
            )
        resolver = Resolver(self.services, transaction=self)
        resolver.given, resolver.trusted = self.given, self._trusted
        effect = effect_of(statement, resolver)
        self._check_own(effect.table)
        count = self._absorb(effect)
        self.read |= resolver.read
        return _result(count, _DONE[statement.kind.upper()])

    def insert(self, table: str, rows: Rows) -> Result:
        """Inserts Arrow rows, a DataFrame, mappings (by name) or sequences (by position).

        Arrow and DataFrame columns go by name; columns that are left out become NULL. Raises AnalysisError.
        """
        self._check_open()
        found = self.table(table)
        if isinstance(rows, DataFrame):
            return _result(self._insert_frame(found, by_name(found, rows), overwrite=False), "inserted")
        return _result(self._insert_arrow(found, arrow_rows(found, rows), overwrite=False), "inserted")

    def update(self, table: str, changes: Mapping[str, str], where: str | None = None) -> Result:
        """Sets columns to SQL expressions in the rows for which `where` holds (default: all)."""
        sets = ", ".join(f"{quote(name)} = {expression}" for name, expression in changes.items())
        text = f"UPDATE {quote(table)} SET {sets}" + (f" WHERE {where}" if where else "")
        return self.execute(Dml("UPDATE", text), text)

    def delete(self, table: str, where: str | None = None) -> Result:
        """Deletes the rows for which `where` holds (default: all)."""
        text = f"DELETE FROM {quote(table)}" + (f" WHERE {where}" if where else "")
        return self.execute(Dml("DELETE", text), text)

    def load(self, table: str, frame: DataFrame, *, in_ranges: bool = False) -> int:
        """Inserts a DataFrame (by name) with executors writing; the number of rows. For initial loads. With `in_ranges` each of
        its partitions has a range of the clustering columns already."""
        self._check_open()
        found = self.table(table)
        return self._stage_insert(found, by_name(found, frame), None, in_ranges=in_ranges)

    def commit(self, commit_time: datetime | None = None, also: Also = nothing) -> int | None:
        """Makes the net changes durable as one commit; its version, or None where there is no net change. `also` says what
        else is written with it.

        The transaction has ended whatever happens. Raises ConflictError (retry it), ConstraintError,
        TransactionError (a commit time before the newest commit's), StorageError, LeaseError.
        """
        self._check_open()
        try:
            with self._wide():
                commit.commit(self, commit_time, self._note_commit, also)
        finally:
            self._end()
        return self.commit_version

    def _note_commit(self, done: Committed) -> None:
        self.commit_version, self.commit_timestamp, self.changed = done.version, done.timestamp, done.changed

    def rollback(self) -> None:
        """Forgets everything."""
        self._check_open()
        self._end()

    def table(self, name: str, doing: str = "a transaction") -> Table:
        """A table by its name. Raises AnalysisError."""
        found = self.state.tables.get(name.lower())
        if found is None:
            raise unknown_table(self.state, name)
        check_snapshot(found, doing)
        return found

    def _copy(self, statement: CopyInto) -> Result:
        table = self.table(statement.table, "COPY INTO")
        self._check_own(table)
        frame, size = copy_frame(self.services, table, statement)
        if size is not None and size.rows <= self._driver_rows:
            return _result(self._insert_frame(table, frame, overwrite=False), "copied")
        return _result(self._stage_insert(table, frame, size), "copied")

    def _check_own(self, table: Table) -> None:
        """Raises AnalysisError for a table that only the sweeps of a query write."""
        if table.part_of is not None and not self._trusted:
            raise AnalysisError(
                f"{table.name} is a part of continuous query {table.part_of}",
                detail="it has what is joined at the sources, and would not have it any more",
                hint="write at the sources",
            )

    def _check_open(self) -> None:
        if not self.is_open:
            raise TransactionError("the transaction has ended", hint="begin another one")

    def _end(self) -> None:
        self.is_open = False
        self.services.read_holds.release(self)
        self._forget()


def _result(count: int, done: str) -> Result:
    rows = "row" if count == 1 else "rows"
    return Result(message=f"{count} {rows} {done}" if count >= 0 else f"rows {done}", rowcount=count)
