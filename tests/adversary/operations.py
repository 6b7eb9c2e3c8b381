"""What is done to random tables: values, conditions, statements and operations, each with what it does to the model."""

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

__all__ = ["Condition", "Operations", "Step"]

Step = str | tuple[str, pa.Table]
"""A statement, or rows to insert into a table."""


@dataclass(frozen=True)
class Condition:
    """A WHERE, as text and for the model."""

    sql: str
    holds: Callable[[Row], bool]


class Operations(Seeded, Maker):
    """Collects `steps`; `model` is what the tables hold after them."""

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

    def row(self, table: Table, beside: Sequence[Row] = ()) -> Row:
        """A new row; it may refer to one `beside` it, which comes with it."""
        values = {name: self.value(table, name) for name, _ in table.columns}
        for reference in table.references:
            parents = self.model.rows[reference.table]
            if reference.table == table.name:
                self._attach(table, reference, values, [*parents, *beside])
            elif parents and self.chance(92):
                parent = self._table(reference.table)
                chosen = self.one(parents)
                values |= {c: chosen[parent.place(p)] for c, p in zip(reference.columns, reference.there)}
            elif not set(reference.columns) & set(table.key) and self.chance(60):
                values |= dict.fromkeys(reference.columns)
        return tuple(values[name] for name, _ in table.columns)

    def _attach(
        self, table: Table, reference: Reference, values: dict[str, Any], parents: Sequence[Row]
    ) -> None:
        """Lets a row refer to another one of its table, to itself, to nothing, or now and then to what is not there."""
        if parents and self.chance(65):
            chosen = self.one(parents)
            values |= {c: chosen[table.place(p)] for c, p in zip(reference.columns, reference.there)}
        elif self.chance(25):
            values |= {c: values[p] for c, p in zip(reference.columns, reference.there)}
        elif not self.chance(4):
            values |= dict.fromkeys(table.links)

    def free_rows(self, table: Table, most: int) -> list[Row]:
        """New rows, of which (nearly always) none has a key that is taken."""
        taken = {table.values(row, table.key) for row in self.model.rows[table.name]}
        made = []
        wanted = self.number(1, most)
        for _ in range(2 * wanted):
            row = self.row(table, made)
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
        return ", ".join(map(literal, table.kinds, row))

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
        names = ""
        if table.added and self.chance(30):
            table_before = tuple(c for c in table.columns if c[0] not in table.added)
            names = f" ({', '.join(n for n, _ in table_before)})"
            rows = [(*row[: len(table_before)], *(None for _ in table.added)) for row in rows]
        width = -len(table.added) if names else None
        shown = ", ".join(f"({', '.join(map(literal, table.kinds[:width], row[:width]))})" for row in rows)
        self.run(
            table, f"INSERT INTO {table.name}{names} VALUES {shown}", self.model.rows[table.name] + list(rows)
        )

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
        there = {table.values(r, reference.there) for r in self.model.rows[table.name]}
        places = [table.place(c) for c in reference.there]
        gone = {table.values(r, reference.there): tuple(r[p] for p in places) for r in before}
        refers = {child.values(r, reference.columns) for r in self.model.rows[child.name]}
        for key, values in gone.items():
            if key in there or key not in refers:
                continue
            former = list(self.model.rows[child.name])
            where = self.exactly(child, reference.columns, values)
            optional = [c for c in reference.columns if c not in child.key]
            if (optional == [*reference.columns] or child is table) and self.chance(30):
                nulls = [(c, "NULL", lambda _: None) for c in optional]
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
        if table.to_itself is not None and self.chance(90):
            link = dict(zip(table.to_itself.there, table.to_itself.columns))[column]
            change = (link, literal(dict(table.columns)[link], new), lambda _: new)
            self.update(table, [change], self.exactly(table, [link], [old]))
        return None

    def op_shift(self, table: Table) -> None:
        """All keys move by one, which meets no constraint at the commit."""
        numbers = [n for n, k in table.columns if n in table.key and k == INT]
        referred = {c for t in self.tables for r in t.references if r is not table.to_itself for c in r.there}
        free = [n for n in numbers if n not in referred]
        if not free:
            return self.op_rekey(table)
        by = self.one((1, -1))
        moved = [free[0]]
        if table.to_itself is not None:
            link = dict(zip(table.to_itself.columns, table.to_itself.there))
            moved += [c for c in table.links if link[c] == free[0]]

        def change(name: str) -> tuple[str, str, Any]:
            place = table.place(name)
            return name, f"{name} + ({by})", lambda row: None if row[place] is None else row[place] + by

        return self.update(table, [change(n) for n in moved], Condition("TRUE", lambda _: True))

    def op_nothing(self, table: Table) -> None:
        column = self.one(table.columns)[0]
        place = table.place(column)
        self.update(table, [(column, column, lambda row: row[place])], self.condition(table))

    def op_overwrite(self, table: Table) -> None:
        """All rows go, and most come back."""
        users = [t for t in self.tables for r in t.references if r.table == table.name]
        if not table.key or any(t is not table for t in users):
            return self.op_insert(table)
        kept = [row for row in self.model.rows[table.name] if self.chance(80)]
        if users and self.chance(80):
            kept = self._rooted(table, kept)
        if self.chance(50) and kept:
            shown = ", ".join(f"({self.shown(table, row)})" for row in kept)
            return self.run(table, f"INSERT OVERWRITE {table.name} VALUES {shown}", kept)
        self.run(table, f"TRUNCATE TABLE {table.name}", [])
        return self.insert(table, kept)

    def _rooted(self, table: Table, rows: Sequence[Row]) -> list[Row]:
        """The rows without those that refer to none of them, through whatever chain."""
        assert table.to_itself is not None
        mine, theirs = table.to_itself.columns, table.to_itself.there
        kept = list(rows)
        while True:
            there = {table.values(row, theirs) for row in kept}
            rest = [r for r in kept if None in table.values(r, mine) or table.values(r, mine) in there]
            if len(rest) == len(kept):
                return rest
            kept = rest

    def op_attach(self, table: Table) -> None:
        """A row refers to another one, itself or nothing; or all rows do to one."""
        rows = self.model.rows[table.name]
        if not rows or not table.links:
            return self.op_update(table)
        row, fresh = self.one(rows), self.row(table)
        changes = []
        for name in table.links:
            value = fresh[table.place(name)]
            changes.append((name, literal(dict(table.columns)[name], value), lambda _, value=value: value))
        key = [row[table.place(k)] for k in table.key]
        where = Condition("TRUE", lambda _: True) if self.chance(8) else self.exactly(table, table.key, key)
        return self.update(table, changes, where)

    def op_fill(self, table: Table) -> None:
        """A column that came later gets values."""
        names = [n for n in table.added if n not in table.links]
        if not names:
            return self.op_attach(table)
        where = Condition("TRUE", lambda _: True) if self.chance(40) else self.condition(table)
        return self.update(table, [self.assignment(table, self.one(names))], where)

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
            + ("attach",) * 4 * bool(table.links) + ("rekey", "shift", "delete") * bool(table.links)
            + ("fill",) * 4 * bool(table.added)
        )  # fmt: skip
        getattr(self, f"op_{name}")(table)
