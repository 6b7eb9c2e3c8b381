"""Random histories: transactions of statements, and batches of changes, each with what the tables must hold afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tests.adversary.kinds import KINDS
from tests.adversary.operations import Operations, Step
from tests.adversary.tables import Model, Row, Table

__all__ = ["Addition", "Batch", "HistoryMaker", "Transaction"]


@dataclass(frozen=True)
class Transaction:
    """Statements; `outcome` is 'commit', 'refused' (a constraint does not hold) or 'rollback'."""

    steps: tuple[Step, ...]
    after: Model
    outcome: str


@dataclass(frozen=True)
class Batch:
    """The arguments of `apply_changes`, and what the tables hold after each source transaction."""

    changes: dict[str, pa.Table]
    after: tuple[Model, ...]


@dataclass(frozen=True)
class Addition:
    """Columns that a table gets; with it the statements that say so."""

    table: Table
    statements: tuple[str, ...]


class HistoryMaker(Operations):
    """Makes transactions for the tables; `model` is what they hold by now."""

    # ------------------------------------------------------------ transactions

    def first(self) -> Transaction:
        """Some rows in each table."""
        self.steps = []
        for table in self.tables:
            self.insert(table, self.free_rows(table, 9))
        kept = self._tried(Model(self.tables))
        return kept if kept.outcome == "commit" else self.first()

    def transaction(self) -> Transaction:
        before = self.model.copy()
        self.steps = []
        for _ in range(self.one((1, 1, 2, 3))):
            self.operation(self.some_table())
        return self._tried(before, self.chance(4))

    def _tried(self, before: Model, given_up: bool = False) -> Transaction:
        """The steps so far; where they cannot be committed, the model is as it was `before`."""
        violated = set(self.model.violations())
        outcome = "rollback" if given_up or violated else "commit"
        if "ENFORCED" in violated and not given_up:
            outcome = "refused"
        if outcome != "commit":
            self.model = before
        return Transaction(tuple(self.steps), self.model.copy(), outcome)

    def add(self, addition: Addition) -> None:
        """From now on the table has more columns."""
        self.model.widen(addition.table)
        self.tables = self.model.tables

    # ------------------------------------------------------------ batches

    def batch(self, transactions: int) -> Batch:
        """Many source transactions at once, row by row; those that break a promise are left out."""
        logs: dict[str, list[dict[str, Any]]] = {t.name: [] for t in self.tables}
        after = []
        sequence = 0
        for number in range(transactions):
            before, made = self.model.copy(), []
            for _ in range(self.one((1, 1, 2, 4))):
                table = self.some_table()
                if table.links and self.chance(15):
                    made += [(table.name, change) for change in self._subtree(table)]
                else:
                    made.append((table.name, self._change(table)))
            if set(self.model.violations()) - {""}:
                self.model = before
                continue
            for name, change in made:
                if change is not None:
                    sequence += 1
                    logs[name].append({**change, "txn": number, "seq": sequence})
            if any(change is not None for _, change in made):
                after.append(self.model.copy())
        tables = {t.name: self._changes(t, logs[t.name]) for t in self.tables if logs[t.name]}
        return Batch(tables, tuple(after))

    def _change(self, table: Table) -> dict[str, Any] | None:
        """One row's change, applied to the model."""
        rows = self.model.rows[table.name]
        names = [n for n, _ in table.columns]
        shape = self.one(("I", "I", "U", "U", "D", "key")) if rows and table.key else "I"
        if shape == "I":
            fresh = self.free_rows(table, 1)
            taken = {table.values(r, table.key) for r in rows}
            if not fresh or (table.key and table.values(fresh[0], table.key) in taken):
                return None
            self.model.rows[table.name] = [*rows, fresh[0]]
            return {**dict(zip(names, fresh[0])), "op": "I", **self._old(table, fresh[0])}
        old = self.one(rows)
        rest = [r for r in rows if r is not old]
        if shape == "D":
            self.model.rows[table.name] = rest
            return {**dict(zip(names, old)), "op": "D", **self._old(table, old)}
        fresh_row = self.row(table)
        fixed = {*table.key, *(c for r in table.references for c in r.columns)}
        if table.links and self.chance(40):
            fixed -= {*table.links}
        new = {n: (o if n in fixed else f) for n, o, f in zip(names, old, fresh_row)}
        if shape == "key":
            column = self.one(table.key)
            new[column] = self.value(table, column)
        row = tuple(new[n] for n in names)
        if table.values(row, table.key) in {table.values(r, table.key) for r in rest}:
            return None
        self.model.rows[table.name] = [*rest, row]
        return {**new, "op": "U", **self._old(table, old)}

    def _subtree(self, table: Table) -> list[dict[str, Any]]:
        """A row goes, with all that refer to it, in whatever order."""
        rows, itself = self.model.rows[table.name], table.to_itself
        assert itself is not None
        gone = self.some(rows, 1, 1)
        keys: set[Row] = set()
        while len(keys) < len(gone):
            keys = {table.values(row, itself.there) for row in gone}
            gone = [row for row in rows if row in gone or table.values(row, itself.columns) in keys]
        self.random.shuffle(gone)
        self.model.rows[table.name] = [row for row in rows if row not in gone]
        names = [n for n, _ in table.columns]
        return [{**dict(zip(names, row)), "op": "D", **self._old(table, row)} for row in gone]

    def _old(self, table: Table, row: Row) -> dict[str, Any]:
        return {f"old_{k}": row[table.place(k)] for k in table.key}

    def _changes(self, table: Table, log: Sequence[dict[str, Any]]) -> pa.Table:
        kinds = [(n, KINDS[k].arrow) for n, k in table.columns]
        kinds += [(f"old_{n}", KINDS[k].arrow) for n, k in table.columns if n in table.key]
        kinds += [("op", pa.string()), ("txn", pa.int32()), ("seq", pa.int32())]
        return pa.table({name: pa.array([row[name] for row in log], kind) for name, kind in kinds})
