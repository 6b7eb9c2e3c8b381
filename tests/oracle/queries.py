"""Random queries over given tables; see `expressions` for what keeps Spark and DuckDB in agreement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.oracle.expressions import (
    BIGINT,
    BOOLEAN,
    COMPARABLE,
    DECIMAL,
    DOUBLE,
    INT,
    STRING,
    TYPES,
    Maker,
    Ref,
)

__all__ = ["QueryMaker", "Relation"]

Sources = Sequence[tuple[str, tuple[Ref, ...]]]


@dataclass(frozen=True)
class Relation:
    """A SELECT and its columns."""

    sql: str
    columns: tuple[Ref, ...]


@dataclass(frozen=True)
class _From:
    text: str
    refs: tuple[Ref, ...]
    conditions: tuple[str, ...] = ()


class QueryMaker(Maker):
    """Draws one query. With `nested`, all shapes; else those of joins under at most one GROUP BY."""

    def __init__(self, draw: Callable[[Any], Any], tables: Sources, nested: bool) -> None:
        super().__init__(draw)
        self.tables = list(tables)
        self.nested = nested
        self.aliases = 0
        self.ctes: list[tuple[str, Relation]] = []

    def query(self) -> str:
        """The text of a whole query."""
        if self.chance(20):
            body = self.relation(1 if self.nested else 0)
            self.ctes.append(("w1", body))
        main = self.relation(self.number(1, 2) if self.nested else 1)
        if not self.ctes:
            return main.sql
        return f"WITH w1 AS ({self.ctes[0][1].sql}) {main.sql}"

    def alias(self) -> str:
        self.aliases += 1
        return f"s{self.aliases}"

    # ------------------------------------------------------------ relations

    def relation(self, level: int) -> Relation:
        """A SELECT; `level` is how deep it may nest."""
        shapes: list[Callable[[int], Relation]] = [self.select, self.select, self.union]
        if level > 0 or self.nested:
            shapes += [self.aggregate] * 4
        if self.nested:
            shapes += [
                self.distinct,
                self.set_operation,
                self.window,
                self.top,
                self.outer,
                self.outer,
                self.subquery,
            ]
        return self.one(shapes)(level)

    def select(self, level: int) -> Relation:
        return self._projected(self.from_clause(level), self.types())

    def types(self) -> list[str]:
        return [self.one((INT, INT, STRING, STRING, *TYPES)) for _ in range(self.number(1, 4))]

    def _projected(self, source: _From, kinds: Sequence[str], rough: bool = True) -> Relation:
        """Expressions of the given types over `source`, most of them plain columns; rough columns are shown, too."""
        items = [(self.expression(source.refs, kind, self.one((0, 0, 1, 2))), kind) for kind in kinds]
        columns = [Ref(f"c{i + 1}", kind) for i, (_, kind) in enumerate(items)]
        shown = [f"{text} AS c{i + 1}" for i, (text, _) in enumerate(items)]
        if rough:
            for ref in [r for r in source.refs if r.rough][:2]:
                columns.append(Ref(f"c{len(columns) + 1}", ref.type, True))
                shown.append(f"{ref.sql} AS c{len(columns)}")
        return Relation(f"SELECT {', '.join(shown)} FROM {source.text}{self.where(source)}", tuple(columns))

    def where(self, source: _From) -> str:
        conditions = [*source.conditions]
        if self.chance(50):
            conditions.append(self.predicate(source.refs))
        return f" WHERE {' AND '.join(conditions)}" if conditions else ""

    def union(self, level: int) -> Relation:
        kinds = self.types()
        left, right = (self._projected(self.from_clause(level), kinds, False) for _ in range(2))
        return Relation(f"{left.sql} UNION ALL {right.sql}", left.columns)

    # ------------------------------------------------------------ FROM

    def source(self, level: int) -> _From:
        alias = self.alias()
        inner: Relation | None = None
        if self.ctes and self.chance(60):
            name, relation = self.ctes[0]
            return _From(f"{name} {alias}", _qualified(alias, relation.columns))
        if level > 0 and self.chance(60 if self.nested else 20):
            inner = self.relation(level - 1)
            return _From(f"({inner.sql}) {alias}", _qualified(alias, inner.columns))
        name, columns = self.one(self.tables)
        return _From(f"{name} {alias}", _qualified(alias, columns))

    def from_clause(self, level: int) -> _From:
        result = self.source(level)
        for _ in range(self.one((0, 0, 1, 1, 2)) if level > 0 or not self.nested else self.one((0, 0, 1))):
            result = self.joined(result, self.source(max(0, level - 1)))
        return result

    def joined(self, left: _From, right: _From) -> _From:
        refs, conditions = left.refs + right.refs, left.conditions + right.conditions
        equality = self.equality(left, right)
        shape = self.one(("on", "on", "on", "comma", "theta"))
        if equality is None or shape == "theta":
            condition = (
                f"{equality or 'TRUE'} AND {self.predicate(refs)}" if equality else self.predicate(refs)
            )
            return _From(f"{left.text} JOIN {right.text} ON {condition}", refs, conditions)
        if shape == "comma" and " JOIN " not in right.text and " JOIN " not in left.text:
            return _From(f"{left.text}, {right.text}", refs, (*conditions, equality))
        return _From(f"{left.text} JOIN {right.text} ON {equality}", refs, conditions)

    def equality(self, left: _From, right: _From) -> str | None:
        pairs = [
            f"{a.sql} = {b.sql}"
            for a in left.refs
            for b in right.refs
            if not a.rough
            and not b.rough
            and b.type in COMPARABLE.get(a.type, (a.type,))
            and a.type != BOOLEAN
        ]
        return self.one(pairs) if pairs else None

    # ------------------------------------------------------------ aggregates

    def aggregate(self, level: int) -> Relation:
        source = self.from_clause(level)
        usable = [r for r in source.refs if not r.rough]
        grouped = self.some(usable, 0, 2) if usable and self.chance(85) else []
        keys = [(ref.sql, ref.type) for ref in grouped]
        ints = [r for r in usable if r.type == INT]
        if ints and keys and self.chance(15):
            keys.append((f"({self.one(ints).sql} + 1)", INT))
        shown = [k for k in keys if not self.chance(8)]
        items = [(text, kind, False) for text, kind in shown]
        items += [self.call(source.refs) for _ in range(self.number(1, 3))]
        columns = tuple(Ref(f"c{i + 1}", kind, rough) for i, (_, kind, rough) in enumerate(items))
        text = (
            f"SELECT {', '.join(f'{e} AS c{i + 1}' for i, (e, _, _) in enumerate(items))} FROM {source.text}"
        )
        text += self.where(source)
        if keys:
            text += " GROUP BY " + ", ".join(k for k, _ in keys)
        if self.chance(35):
            text += f" HAVING {self.having(source.refs)}"
        return Relation(text, columns)

    def call(self, refs: Sequence[Ref]) -> tuple[str, str, bool]:
        """(aggregate call or an expression over calls, type, rough)."""
        name, argument, kind, rough = self._plain_call(refs)
        text = f"{name}({argument})"
        if self.chance(15):
            text += f" FILTER (WHERE {self.predicate(refs)})"
        if name == "count_if":  # DuckDB's gives NULL for no rows
            text = f"COALESCE({text}, 0)"
        if kind == BIGINT and self.chance(15):
            return f"COALESCE({text}, 0) + count(*)", BIGINT, False
        if self.chance(6) and kind == BIGINT:
            return f"CASE WHEN {text} > 1 THEN 'many' ELSE 'few' END", STRING, False
        return text, kind, rough

    def _plain_call(self, refs: Sequence[Ref]) -> tuple[str, str, str, bool]:
        shape = self.one(
            ("*", "count", "sum", "sum", "avg", "min", "max", "spread", "if", "bool", "distinct")
        )
        usable = [r for r in refs if not r.rough]
        if shape == "*" or not usable:
            return "count", "*", BIGINT, False
        if shape in ("count", "distinct"):
            ref = self.one(usable)
            return "count", ("DISTINCT " if shape == "distinct" else "") + ref.sql, BIGINT, False
        if shape in ("min", "max"):
            ref = self.one(usable)
            return shape, ref.sql, ref.type, False
        if shape == "if":
            return "count_if", self.predicate(refs), BIGINT, False
        if shape == "bool":
            return self.one(("bool_and", "bool_or")), self.predicate(refs), BOOLEAN, False
        kind = self.one((INT, INT, DOUBLE, DECIMAL, BIGINT) if shape == "sum" else (INT, INT, DOUBLE))
        argument = self.expression(refs, kind, 1)
        if shape == "sum":
            return "sum", argument, BIGINT if kind == INT else kind, kind != INT
        if shape == "avg":
            return "avg", argument, DOUBLE, True
        return (
            self.one(("stddev_samp", "stddev_pop", "var_samp", "var_pop", "stddev", "variance")),
            argument,
            DOUBLE,
            True,
        )

    def having(self, refs: Sequence[Ref]) -> str:
        shapes = ["count(*) > 1", "count(*) < 3", "count(*) % 2 = 1"]
        for ref in refs:
            if ref.type == INT and not ref.rough:
                shapes += [f"sum({ref.sql}) > 2", f"max({ref.sql}) <= 3", f"count({ref.sql}) > 0"]
        return self.one(shapes)

    # ------------------------------------------------------------ further shapes

    def exact(self, level: int) -> _From:
        """A derived table without rough columns."""
        inner = self._projected(self.from_clause(level), self.types(), False)
        alias = self.alias()
        return _From(f"({inner.sql}) {alias}", _qualified(alias, inner.columns))

    def distinct(self, level: int) -> Relation:
        inner = self._projected(self.from_clause(level), self.types(), False)
        return Relation("SELECT DISTINCT" + inner.sql.removeprefix("SELECT"), inner.columns)

    def set_operation(self, level: int) -> Relation:
        kinds = self.types()[:2]
        left, right = (self._projected(self.from_clause(max(0, level - 1)), kinds, False) for _ in range(2))
        word = self.one(("EXCEPT", "INTERSECT", "EXCEPT ALL", "INTERSECT ALL", "UNION"))
        return Relation(f"{left.sql} {word} {right.sql}", left.columns)

    def total(self, refs: Sequence[Ref]) -> str:
        """An ORDER BY of all columns, so that ties are equal rows."""
        first = self.one(refs)
        ordered = [first, *(r for r in refs if r is not first)]
        ends = (" ASC NULLS FIRST", " DESC NULLS LAST", " ASC NULLS LAST", " DESC NULLS FIRST")
        return ", ".join(r.sql + self.one(ends) for r in ordered)

    def window(self, level: int) -> Relation:
        source = self.exact(level)
        usable = list(source.refs)
        partition = f"PARTITION BY {self.one(usable).sql} " if self.chance(75) else ""
        order = self.total(usable)
        items = [(r.sql, r.type) for r in usable]
        ints = [r.sql for r in usable if r.type == INT]
        number = self.one(ints) if ints else "1"
        rows = self.one(
            ("ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW", "ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING")
        )
        functions = [
            (f"row_number() OVER ({partition}ORDER BY {order})", INT),
            (f"rank() OVER ({partition}ORDER BY {order})", INT),
            (f"dense_rank() OVER ({partition}ORDER BY {order})", INT),
            (f"lag({number}) OVER ({partition}ORDER BY {order})", INT),
            (f"lead({number}) OVER ({partition}ORDER BY {order})", INT),
            (f"sum({number}) OVER ({partition}ORDER BY {order} {rows})", BIGINT),
            (f"max({number}) OVER ({partition.strip()})", INT),
            (f"count(*) OVER ({partition.strip()})", BIGINT),
        ]
        items += self.some(functions, 1, 2)
        shown = ", ".join(f"{text} AS c{i + 1}" for i, (text, _) in enumerate(items))
        columns = tuple(Ref(f"c{i + 1}", kind) for i, (_, kind) in enumerate(items))
        return Relation(f"SELECT {shown} FROM {source.text}", columns)

    def top(self, level: int) -> Relation:
        source = self.exact(level)
        shown = ", ".join(f"{r.sql} AS c{i + 1}" for i, r in enumerate(source.refs))
        columns = tuple(Ref(f"c{i + 1}", r.type) for i, r in enumerate(source.refs))
        offset = f" OFFSET {self.number(1, 2)}" if self.chance(25) else ""
        text = f"SELECT {shown} FROM {source.text} ORDER BY {self.total(source.refs)} LIMIT {self.number(1, 4)}{offset}"
        return Relation(f"SELECT * FROM ({text}) {self.alias()}", columns)

    def outer(self, level: int) -> Relation:
        left, right = self.source(level), self.source(max(0, level - 1))
        kind = self.one(("LEFT", "LEFT", "RIGHT", "FULL"))
        condition = self.equality(left, right)
        if condition is None:
            return self.select(level)
        if kind != "FULL" and self.chance(30):
            condition += f" AND {self.predicate(left.refs + right.refs)}"
        source = _From(f"{left.text} {kind} JOIN {right.text} ON {condition}", left.refs + right.refs)
        return self._projected(source, self.types())

    def subquery(self, level: int) -> Relation:
        """A select with a subquery in WHERE."""
        source = self.source(level)
        inner = self.source(0)
        equality = self.equality(source, inner)
        refs = [r for r in source.refs if not r.rough]
        pairs = [
            (a, b) for a in refs for b in inner.refs if not b.rough and a.type == b.type and a.type != BOOLEAN
        ]
        conditions = []
        if equality is not None:
            where = f"{equality} AND {self.predicate(inner.refs)}"
            conditions += [
                f"{word}EXISTS (SELECT 1 FROM {inner.text} WHERE {where})" for word in ("", "NOT ")
            ]
        if pairs:
            a, b = self.one(pairs)
            conditions += [f"{a.sql} {word} (SELECT {b.sql} FROM {inner.text})" for word in ("IN", "NOT IN")]
            conditions.append(f"{a.sql} >= (SELECT min({b.sql}) FROM {inner.text})")
        if not conditions:
            return self.select(level)
        return self._projected(_From(source.text, source.refs, (self.one(conditions),)), self.types())


def _qualified(alias: str, columns: Sequence[Ref]) -> tuple[Ref, ...]:
    return tuple(Ref(f"{alias}.{c.sql}", c.type, c.rough) for c in columns)
