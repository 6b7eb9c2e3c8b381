"""Random histories: transactions of statements, and batches of changes, each with what the tables must hold afterwards."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tests.adversary.kinds import KINDS, canonical, literal
from tests.adversary.seeded import Seeded
from tests.adversary.tables import Model, Reference, Row, Table
from tests.oracle.expressions import INT, Maker

__all__ = ["Batch", "HistoryMaker", "Transaction"]

Step = str | tuple[str, pa.Table]
"""A statement, or rows to insert into a table."""


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
class Condition:
    """A WHERE, as text and for the model."""

    sql: str
    holds: Callable[[Row], bool]


class HistoryMaker(Seeded, Maker):
    """Makes transactions for the tables; `model` is what they hold by now."""

    def __init__(self, seed: str, tables: Sequence[Table]) -> None:
        self.random = random.Random(seed)
        self.tables = tuple(tables)
        self.model = Model(self.tables)
        self.steps: list[Step] = []

    # ------------------------------------------------------------ values

    def value(self, table: Table, column: str) -> Any:
        kind = table.columns[table.place(column)][1]
        if column in table.key:
            return self.number(-2, 12) if kind == INT else self.one(KINDS[kind].values)
        return None if self.chance(18) else self.likely(KINDS[kind].values)

    def row(self, table: Table) -> Row:
        values = {name: self.value(table, name) for name, _ in table.columns}
        for reference in table.references:
            parents = self.model.rows[reference.table]
            if parents and self.chance(92):
                parent = self._table(reference.table)
                chosen = self.one(parents)
                values |= {c: chosen[parent.place(c)] for c in reference.columns}
            elif not set(reference.columns) & set(table.key) and self.chance(60):
                values |= dict.fromkeys(reference.columns)
        return tuple(values[name] for name, _ in table.columns)

    def free_rows(self, table: Table, most: int) -> list[Row]:
        """New rows, of which (nearly always) none has a key that is taken."""
        taken = {table.values(row, table.key) for row in self.model.rows[table.name]}
        made = []
        wanted = self.number(1, most)
        for _ in range(2 * wanted):
            row = self.row(table)
            key = table.values(row, table.key)
            if len(made) < wanted and (not table.key or key not in taken or self.chance(1)):
                made.append(row)
                taken.add(key)
        return made

    def _table(self, name: str) -> Table:
        return next(t for t in self.tables if t.name == name)

    def some_table(self) -> Table:
        return self.one(self.tables)

    def shown(self, table: Table, row: Row) -> str:
        return ", ".join(literal(kind, value) for kind, value in zip(table.kinds, row))

    # ------------------------------------------------------------ conditions

    def condition(self, table: Table) -> Condition:
        rows = self.model.rows[table.name]
        column, kind = self.one(table.columns)
        if table.key and self.chance(50):
            column, kind = next(c for c in table.columns if c[0] in table.key)
        place = table.place(column)
        known = [row[place] for row in rows]
        value = self.one(known) if known and self.chance(85) else self.value(table, column)
        shape = self.one(("=",) * 6 + ("<=>", "<=>", "in", "in", "not", "null", "all"))
        if shape == "all" and self.chance(15):
            return Condition("TRUE", lambda _: True)
        if shape == "all":
            shape = "="
        if shape == "null" or value is None:
            return Condition(f"{column} IS NULL", lambda row: row[place] is None)
        shown, wanted = literal(kind, value), {canonical(value)}
        if shape == "in":
            other = self.one([v for v in (*known, value) if v is not None])
            wanted.add(canonical(other))
            text = f"{column} IN ({shown}, {literal(kind, other)})"
            return Condition(text, lambda row: canonical(row[place]) in wanted)
        if shape == "not":
            text = f"NOT ({column} = {shown})"
            return Condition(text, lambda row: row[place] is not None and canonical(row[place]) not in wanted)
        sign = shape if shape == "<=>" else "="
        return Condition(f"{column} {sign} {shown}", lambda row: canonical(row[place]) in wanted)

    def exactly(self, table: Table, columns: Sequence[str], key: Sequence[Any]) -> Condition:
        """The rows with these values in these columns."""
        kinds = dict(table.columns)
        text = " AND ".join(f"{c} <=> {literal(kinds[c], v)}" for c, v in zip(columns, key))
        wanted = tuple(map(canonical, key))
        return Condition(text, lambda row: table.values(row, columns) == wanted)

    # ------------------------------------------------------------ statements

    def run(self, table: Table, text: str, rows: list[Row]) -> None:
        self.steps.append(text)
        self.model.rows[table.name] = rows

    def insert(self, table: Table, rows: Sequence[Row]) -> None:
        if not rows:
            return
        if self.chance(40):
            self.steps.append((table.name, table.to_arrow(rows)))
            self.model.rows[table.name] = self.model.rows[table.name] + list(rows)
            return
        shown = ", ".join(f"({self.shown(table, row)})" for row in rows)
        self.run(table, f"INSERT INTO {table.name} VALUES {shown}", self.model.rows[table.name] + list(rows))

    def delete(self, table: Table, where: Condition) -> None:
        kept = [row for row in self.model.rows[table.name] if not where.holds(row)]
        self.run(table, f"DELETE FROM {table.name} WHERE {where.sql}", kept)

    def update(self, table: Table, changes: Sequence[tuple[str, str, Any]], where: Condition) -> None:
        """`changes`: column, its new value as SQL, and that as a function of the row."""
        text = ", ".join(f"{column} = {sql}" for column, sql, _ in changes)

        def changed(row: Row) -> Row:
            new = {table.place(column): value(row) for column, _, value in changes}
            return tuple(new.get(i, old) for i, old in enumerate(row))

        rows = [changed(r) if where.holds(r) else r for r in self.model.rows[table.name]]
        self.run(table, f"UPDATE {table.name} SET {text} WHERE {where.sql}", rows)

    def assignment(self, table: Table, column: str) -> tuple[str, str, Any]:
        kind = table.columns[table.place(column)][1]
        place = table.place(column)
        if kind == INT and self.chance(25):
            by = self.one((1, -1, 2))
            return column, f"{column} + ({by})", lambda row: None if row[place] is None else row[place] + by
        others = [n for n, k in table.columns if k == kind and n != column]
        if others and column not in table.key and self.chance(20):
            other = self.one(others)
            at = table.place(other)
            return column, other, lambda row: row[at]
        value = self.value(table, column)
        return column, literal(kind, value), lambda _: value

    # ------------------------------------------------------------ operations

    def op_insert(self, table: Table) -> None:
        self.insert(table, self.free_rows(table, 4))

    def op_update(self, table: Table) -> None:
        inherited = {c for r in table.references for c in r.columns}
        free = [n for n, _ in table.columns if n not in table.key and n not in inherited]
        chosen = self.some(free, 1, 2)
        self.update(table, [self.assignment(table, c) for c in chosen], self.condition(table))

    def op_delete(self, table: Table) -> None:
        before = list(self.model.rows[table.name])
        where = self.condition(table)
        if 2 * sum(map(where.holds, before)) > len(before) and self.chance(85):
            return self.op_insert(table)
        self.delete(table, where)
        if self.chance(80):
            self.cascade(table, before)
        return None

    def cascade(self, table: Table, before: Sequence[Row]) -> None:
        """Rows that refer to what has gone from a table go, too."""
        for child in self.tables:
            for reference in child.references:
                if reference.table == table.name:
                    self._orphans(child, reference, table, before)

    def _orphans(self, child: Table, reference: Reference, table: Table, before: Sequence[Row]) -> None:
        there = {table.values(r, reference.columns) for r in self.model.rows[table.name]}
        places = [table.place(c) for c in reference.columns]
        gone = {table.values(r, reference.columns): tuple(r[p] for p in places) for r in before}
        refers = {child.values(r, reference.columns) for r in self.model.rows[child.name]}
        for key, values in gone.items():
            if key in there or key not in refers:
                continue
            former = list(self.model.rows[child.name])
            where = self.exactly(child, reference.columns, values)
            optional = not set(reference.columns) & set(child.key)
            if optional and self.chance(30):
                nulls = [(c, "NULL", lambda _: None) for c in reference.columns]
                self.update(child, nulls, where)
            else:
                self.delete(child, where)
                self.cascade(child, former)

    def op_again(self, table: Table) -> None:
        """A row goes and comes back in one transaction, as it was or changed; what refers to it stays."""
        rows = self.model.rows[table.name]
        if not rows or not table.key:
            return self.op_insert(table)
        row = self.one(rows)
        key = [row[table.place(k)] for k in table.key]
        back = row
        if self.chance(60):
            fresh = self.row(table)
            fixed = {*table.key, *(c for r in table.references for c in r.columns)}
            back = tuple(o if n in fixed else f for (n, _), o, f in zip(table.columns, row, fresh))
        self.delete(table, self.exactly(table, table.key, key))
        if self.chance(30):
            self.operation(self.some_table())
        return self.insert(table, [back])

    def op_rekey(self, table: Table) -> None:
        """A key becomes another one, in the tables that refer to it, too."""
        rows = self.model.rows[table.name]
        own = [k for k in table.key if k not in {c for r in table.references for c in r.columns}]
        if not rows or not own:
            return self.op_update(table)
        row, column = self.one(rows), self.one(own)
        old, new = row[table.place(column)], self.value(table, column)
        for each in self.tables:
            refers = any(r.table == table.name and column in r.columns for r in each.references)
            if each is table or (refers and self.chance(90)):
                kind = dict(table.columns)[column]
                change = (column, literal(kind, new), lambda _: new)
                self.update(each, [change], self.exactly(each, [column], [old]))
        return None

    def op_shift(self, table: Table) -> None:
        """All keys move by one, which meets no constraint at the commit."""
        numbers = [n for n, k in table.columns if n in table.key and k == INT]
        referred = {c for t in self.tables for r in t.references for c in r.columns}
        free = [n for n in numbers if n not in referred]
        if not free:
            return self.op_rekey(table)
        place, by = table.place(free[0]), self.one((1, -1))
        change = (free[0], f"{free[0]} + ({by})", lambda row: row[place] + by)
        return self.update(table, [change], Condition("TRUE", lambda _: True))

    def op_nothing(self, table: Table) -> None:
        column = self.one(table.columns)[0]
        place = table.place(column)
        self.update(table, [(column, column, lambda row: row[place])], self.condition(table))

    def op_overwrite(self, table: Table) -> None:
        """All rows go, and most come back."""
        if not table.key or any(r.table == table.name for t in self.tables for r in t.references):
            return self.op_insert(table)
        kept = [row for row in self.model.rows[table.name] if self.chance(80)]
        if self.chance(50) and kept:
            shown = ", ".join(f"({self.shown(table, row)})" for row in kept)
            return self.run(table, f"INSERT OVERWRITE {table.name} VALUES {shown}", kept)
        self.run(table, f"TRUNCATE TABLE {table.name}", [])
        return self.insert(table, kept)

    def op_merge(self, table: Table) -> None:
        """Rows by key: those that are there are changed or go, others come."""
        if not table.key:
            return self.op_insert(table)
        by_key = {}
        for row in [*self.some(self.model.rows[table.name], 0, 2), *(self.row(table) for _ in range(2))]:
            by_key[table.values(row, table.key)] = row
        places = [i for i, (n, _) in enumerate(table.columns) if n not in table.key]
        fixed = {c for r in table.references for c in r.columns}
        changed = self.some([p for p in places if table.columns[p][0] not in fixed], 1, 2)
        source = []
        for row in by_key.values():
            fresh = self.row(table)
            source.append(tuple(fresh[i] if i in changed else v for i, v in enumerate(row)))
        names = [n for n, _ in table.columns]
        selects = " UNION ALL ".join(
            "SELECT " + ", ".join(f"CAST({literal(k, v)} AS {k}) AS {n}" for n, k, v in zip(names, table.kinds, row))
            for row in source
        )  # fmt: skip
        match = " AND ".join(f"t.{k} = s.{k}" for k in table.key)
        deletes = self.chance(25)
        action = (
            "DELETE" if deletes else "UPDATE SET " + ", ".join(f"{names[p]} = s.{names[p]}" for p in changed)
        )
        text = (
            f"MERGE INTO {table.name} AS t USING ({selects}) AS s ON {match} WHEN MATCHED THEN {action}"
            f" WHEN NOT MATCHED THEN INSERT ({', '.join(names)}) VALUES ({', '.join('s.' + n for n in names)})"
        )
        incoming = {table.values(row, table.key): row for row in source}
        rows = []
        for row in self.model.rows[table.name]:
            new = incoming.pop(table.values(row, table.key), None)
            if new is None:
                rows.append(row)
            elif not deletes:
                rows.append(tuple(new[i] if i in changed else v for i, v in enumerate(row)))
        return self.run(table, text, rows + list(incoming.values()))

    def operation(self, table: Table) -> None:
        name = self.one(
            ("insert",) * 7 + ("update",) * 6 + ("delete",) * 3 + ("again",) * 3
            + ("rekey", "rekey", "shift", "nothing", "overwrite", "merge")
        )  # fmt: skip
        getattr(self, f"op_{name}")(table)

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
        new = {n: (o if n in fixed else f) for n, o, f in zip(names, old, fresh_row)}
        if shape == "key":
            column = self.one(table.key)
            new[column] = self.value(table, column)
        row = tuple(new[n] for n in names)
        if table.values(row, table.key) in {table.values(r, table.key) for r in rest}:
            return None
        self.model.rows[table.name] = [*rest, row]
        return {**new, "op": "U", **self._old(table, old)}

    def _old(self, table: Table, row: Row) -> dict[str, Any]:
        return {f"old_{k}": row[table.place(k)] for k in table.key}

    def _changes(self, table: Table, log: Sequence[dict[str, Any]]) -> pa.Table:
        kinds = [(n, KINDS[k].arrow) for n, k in table.columns]
        kinds += [(f"old_{n}", KINDS[k].arrow) for n, k in table.columns if n in table.key]
        kinds += [("op", pa.string()), ("txn", pa.int32()), ("seq", pa.int32())]
        return pa.table({name: pa.array([row[name] for row in log], kind) for name, kind in kinds})
