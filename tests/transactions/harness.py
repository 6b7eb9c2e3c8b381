"""An engine in small: catalog, reader and transactions, without the façade."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from cq_engine.catalog import apply
from cq_engine.catalog.change_rows import COMMIT_VERSION
from cq_engine.catalog.model import Table
from cq_engine.catalog.store import Catalog
from cq_engine.context.services import Services
from cq_engine.core.clock import ManualClock
from cq_engine.grammar import parse
from cq_engine.grammar.statements import CreateTable
from cq_engine.query.query import run_query
from cq_engine.query.result import Result
from cq_engine.transactions.transaction import Transaction


@dataclass
class Small:
    """What a test drives."""

    services: Services
    clock: ManualClock

    @property
    def catalog(self) -> Catalog:
        return self.services.catalog

    def create(self, text: str) -> Table:
        statement = parse(text)
        assert isinstance(statement, CreateTable)
        with self.catalog.lock:
            state = apply.create_table(self.catalog.state, statement, self.catalog.newest_version)
            with self.catalog.write() as unit:
                unit.set_state(state)
        return self.table(statement.name)

    def table(self, name: str) -> Table:
        return self.catalog.state.tables[name.lower()]

    def begin(self) -> Transaction:
        return Transaction(self.services)

    def run(self, *texts: str) -> Result:
        """Statements as one transaction; the last result, with the commit version."""
        transaction = self.begin()
        for text in texts:
            result = execute(transaction, text)
        result.commit_version = transaction.commit()
        return result

    def rows(self, text: str, transaction: Transaction | None = None) -> list[tuple[object, ...]]:
        return sorted(run_query(self.services, text, transaction=transaction).fetchall(), key=repr)

    def image(self, name: str, version: int) -> list[tuple[object, ...]]:
        frame = self.services.reader.image(self.table(name).storage, version)
        return tuples(frame.toArrow().select([c.name for c in self.table(name).columns]))

    def log(self, name: str) -> pa.Table:
        storage = self.table(name).storage
        rows = self.services.reader.changes(storage, 0, self.catalog.newest_version).toArrow()
        return rows.sort_by(COMMIT_VERSION)


def execute(transaction: Transaction, text: str) -> Result:
    return transaction.execute(parse(text), text)


def tuples(table: pa.Table) -> list[tuple[object, ...]]:
    """Sorted rows."""
    return sorted((tuple(row.values()) for row in table.to_pylist()), key=repr)
