"""Hypothesis strategies: schemas, data, transactions and queries, for the oracle tests.

A history is SQL text that Spark and DuckDB read alike. Value domains are small, so that joins hit and groups empty.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from hypothesis import strategies as st

from tests.oracle.expressions import BIGINT, DATE, DECIMAL, DOMAINS, INT, STRING, TYPES, Maker, Ref
from tests.oracle.queries import QueryMaker

__all__ = ["History", "TableSpec", "core_histories", "nested_histories"]


@dataclass(frozen=True)
class TableSpec:
    """A table: columns (name, type) and its primary key, () for none."""

    name: str
    columns: tuple[tuple[str, str], ...]
    key: tuple[str, ...]
    kind: ClassVar[str] = "base"
    """What the engine stores it as."""

    def ddl(self, with_key: bool) -> str:
        shown = [f"{name} {kind}" for name, kind in self.columns]
        if with_key and self.key:
            shown.append(f"PRIMARY KEY ({', '.join(self.key)})")
        return f"CREATE TABLE {self.name} ({', '.join(shown)})"

    @property
    def refs(self) -> list[Ref]:
        return [Ref(name, kind) for name, kind in self.columns]


@dataclass(frozen=True)
class History:
    """What is replayed: DDL, the initial rows as one transaction, transactions of statements, and queries over them."""

    tables: tuple[TableSpec, ...]
    initial: tuple[str, ...]
    transactions: tuple[tuple[str, ...], ...]
    queries: tuple[str, ...]
    seed: int
    """Decides what is not SQL: when compressed queries are refreshed, and which path is forced."""

    def script(self, query: str | None = None) -> str:
        """The history as text, to be pasted."""
        lines = [f"{t.ddl(True)};" for t in self.tables]
        steps = (self.initial, *self.transactions)
        lines += ["BEGIN; " + " ".join(f"{s};" for s in step) + " COMMIT;" for step in steps]
        lines += [f"-- query: {q};" for q in (self.queries if query is None else (query,))]
        return "\n".join(lines)


KEY_TYPES = (INT, STRING, BIGINT, DATE)


SHAPES = {
    "mixed": ("insert", "insert", "update", "update", "delete", "again", "noop", "shift", "null"),
    "insert": ("insert",),
    "delete": ("delete", "delete", "delete", "empty", "insert"),
    "keys": ("shift", "shift", "again", "swap"),
    "nulls": ("null", "null", "insert", "update"),
    "moves": ("swap", "update", "update"),
}
"""The operations of a history by its theme; every other one is mixed."""


class _HistoryMaker(Maker):
    """Draws tables, rows and statements."""

    def __init__(self, draw: Callable[[Any], Any]) -> None:
        super().__init__(draw)
        self.theme = self.one(tuple(SHAPES))

    def tables(self) -> tuple[TableSpec, ...]:
        found = []
        for t in range(self.number(2, 3)):
            key_width = self.one((1, 1, 2, 0))
            kinds = [self.one(KEY_TYPES) for _ in range(key_width)]
            kinds = [INT if t < 2 and i == 0 else kind for i, kind in enumerate(kinds)]
            kinds += [INT, STRING, self.one((DECIMAL, *TYPES)), self.one(TYPES)][: self.number(2, 4)]
            columns = tuple((f"{'kabcdefg'[i]}", kind) for i, kind in enumerate(kinds))
            found.append(TableSpec(f"t{t + 1}", columns, tuple(name for name, _ in columns[:key_width])))
        return tuple(found)

    def value(self, kind: str, is_key: bool) -> str:
        if is_key and kind == INT:
            return str(self.number(1, 9))
        return "NULL" if not is_key and self.chance(20) else self.one(DOMAINS[kind])

    def row(self, table: TableSpec) -> str:
        return "(" + ", ".join(self.value(kind, name in table.key) for name, kind in table.columns) + ")"

    def insert(self, table: TableSpec, most: int) -> str:
        """Statements go in one by one where there is a key, so that one clash does not lose all rows."""
        rows = ", ".join(self.row(table) for _ in range(self.number(1, most)))
        return f"INSERT INTO {table.name} VALUES {rows}"

    def statements(self, table: TableSpec) -> list[str]:
        """One operation: a statement, or two that belong together."""
        shape = self.one(SHAPES[self.one(("mixed", self.theme))])
        key = [Ref(n, k) for n, k in table.columns if n in table.key]
        free = [Ref(n, k) for n, k in table.columns if n not in table.key]
        where = self.predicate(key if key and self.chance(50) else table.refs)
        if shape == "insert":
            return [self.insert(table, 1) for _ in range(self.one((1, 2)))]
        if shape == "delete":
            return [f"DELETE FROM {table.name} WHERE {where}"]
        if shape == "empty":
            return [f"DELETE FROM {table.name}"]
        if shape == "noop":
            name = self.one(table.columns)[0]
            return [f"UPDATE {table.name} SET {name} = {name} WHERE {where}"]
        if shape == "again" and key:
            row = self.row(table)
            values = row[1:-1].split(", ")[: len(key)]
            same = " AND ".join(f"{r.sql} = {v}" for r, v in zip(key, values))
            return [f"DELETE FROM {table.name} WHERE {same}", f"INSERT INTO {table.name} VALUES {row}"]
        if shape == "shift" and key and key[0].type == INT:
            by = self.one(("1", "2", "-1"))
            return [f"UPDATE {table.name} SET {key[0].sql} = {key[0].sql} + {by} WHERE {where}"]
        if shape == "null" and free:
            name = self.one(free)
            other = self.one(
                (
                    f"{name.sql} = NULL WHERE {where}",
                    f"{name.sql} = {self.literal(name.type)} WHERE {name.sql} IS NULL",
                )
            )
            return [f"UPDATE {table.name} SET {other}"]
        if shape == "swap" and free:
            name = self.one(free)
            one, two = (self.literal(name.type) for _ in range(2))
            text = f"CASE WHEN {name.sql} = {one} THEN {two} WHEN {name.sql} = {two} THEN {one} ELSE {name.sql} END"
            return [f"UPDATE {table.name} SET {name.sql} = {text}"]
        return [self.update(table, where)]

    def update(self, table: TableSpec, where: str) -> str:
        free = [(n, k) for n, k in table.columns if n not in table.key]
        changes = ", ".join(
            f"{name} = {self.expression(table.refs, kind, 1) if self.chance(60) else self.value(kind, False)}"
            for name, kind in self.some(free, 1, 2)
        )
        return f"UPDATE {table.name} SET {changes} WHERE {where}"

    def transaction(self, tables: tuple[TableSpec, ...]) -> tuple[str, ...]:
        return tuple(s for _ in range(self.number(1, 3)) for s in self.statements(self.one(tables)))

    def transactions(self, tables: tuple[TableSpec, ...], number: int) -> tuple[tuple[str, ...], ...]:
        """Some of them are taken back by the next one, so that the net effect of both is nothing."""
        found: list[tuple[str, ...]] = []
        while len(found) < number:
            if len(found) + 1 < number and self.chance(12):
                found += self.there_and_back(self.one(tables))
            else:
                found.append(self.transaction(tables))
        return tuple(found)

    def there_and_back(self, table: TableSpec) -> list[tuple[str, ...]]:
        numbers = [n for n, kind in table.columns if kind == INT and n not in table.key]
        if numbers and self.chance(50):
            where = self.predicate(table.refs)
            name, where = self.one(numbers), where if self.one(numbers) not in where else "TRUE"
            return [(f"UPDATE {table.name} SET {name} = {name} {sign} 1 WHERE {where}",) for sign in "+-"]
        row = self.row(table)
        same = " AND ".join(
            f"{n} IS NOT DISTINCT FROM {v}" for (n, _), v in zip(table.columns, row[1:-1].split(", "))
        )
        return [(f"INSERT INTO {table.name} VALUES {row}",), (f"DELETE FROM {table.name} WHERE {same}",)]


@st.composite
def _histories(
    draw: Callable[[Any], Any], nested: bool, queries: int, transactions: tuple[int, int]
) -> History:
    maker = _HistoryMaker(draw)
    tables = maker.tables()
    initial = tuple(maker.insert(t, 1) for t in tables for _ in range(maker.number(0, 6)))
    steps = maker.transactions(tables, maker.number(*transactions))
    texts = []
    for _ in range(queries):
        sources = [(t.name, tuple(t.refs)) for t in tables]
        texts.append(QueryMaker(draw, sources, nested).query())
    return History(tables, initial, steps, tuple(texts), maker.number(0, 1 << 16))


def core_histories(queries: int, transactions: tuple[int, int] = (3, 6)) -> st.SearchStrategy[History]:
    """Joins, filters, projections, UNION ALL, derived tables, CTEs and one GROUP BY."""
    return _histories(False, queries, transactions)


def nested_histories(queries: int, transactions: tuple[int, int] = (3, 6)) -> st.SearchStrategy[History]:
    """All shapes, nested three levels deep and more."""
    return _histories(True, queries, transactions)
