"""The core of the query generator: SELECTs over joins, UNION ALL and GROUP BY."""

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
    FLOAT,
    INT,
    STRING,
    TYPES,
    Maker,
    Ref,
)

__all__ = ["CoreMaker", "From", "Relation", "Sources", "exact", "qualified"]

Sources = Sequence[tuple[str, tuple[Ref, ...]]]


@dataclass(frozen=True)
class Relation:
    """A SELECT and its columns."""

    sql: str
    columns: tuple[Ref, ...]


@dataclass(frozen=True)
class From:
    """A FROM clause, the columns that it gives, and conditions for WHERE that belong to it."""

    text: str
    refs: tuple[Ref, ...]
    conditions: tuple[str, ...] = ()


class CoreMaker(Maker):
    """Draws joins, filters, projections, UNION ALL, derived tables, CTEs and GROUP BY."""

    nested = False

    def __init__(self, draw: Callable[[Any], Any], tables: Sources) -> None:
        super().__init__(draw)
        self.tables = list(tables)
        self.aliases = 0
        self.ctes: list[tuple[str, Relation]] = []

    def alias(self) -> str:
        self.aliases += 1
        return f"s{self.aliases}"

    # ------------------------------------------------------------ relations

    def relation(self, level: int) -> Relation:
        """A SELECT; `level` is how deep it may nest."""
        shapes = [self.select, self.select, self.union, *([self.aggregate] * 4 if level > 0 else [])]
        return self.one(shapes)(level)

    def select(self, level: int) -> Relation:
        return self.projected(self.from_clause(level), self.types())

    def types(self) -> list[str]:
        return [self.one((INT, INT, STRING, STRING, *TYPES)) for _ in range(self.number(1, 4))]

    def projected(self, source: From, kinds: Sequence[str], rough: bool = True) -> Relation:
        """Expressions of the given types over `source`, most of them plain columns; rough columns are shown, too."""
        items = [(self.expression(source.refs, kind, self.one((0, 0, 1, 2))), kind) for kind in kinds]
        columns = [Ref(f"c{i + 1}", kind) for i, (_, kind) in enumerate(items)]
        shown = [f"{text} AS c{i + 1}" for i, (text, _) in enumerate(items)]
        if rough:
            for ref in [r for r in source.refs if r.rough][:2]:
                columns.append(Ref(f"c{len(columns) + 1}", ref.type, True))
                shown.append(f"{ref.sql} AS c{len(columns)}")
        return Relation(f"SELECT {', '.join(shown)} FROM {source.text}{self.where(source)}", tuple(columns))

    def where(self, source: From) -> str:
        conditions = [*source.conditions]
        if self.chance(50):
            conditions.append(self.condition(source.refs))
        return f" WHERE {' AND '.join(conditions)}" if conditions else ""

    def condition(self, refs: Sequence[Ref]) -> str:
        """A condition for WHERE."""
        return self.predicate(refs)

    def union(self, level: int) -> Relation:
        kinds = self.types()
        left, right = (self.projected(self.from_clause(level), kinds, False) for _ in range(2))
        return Relation(f"{left.sql} UNION ALL {right.sql}", left.columns)

    # ------------------------------------------------------------ FROM

    def source(self, level: int) -> From:
        """One item of FROM: a table, a CTE or a derived table."""
        alias = self.alias()
        if self.ctes and self.chance(60):
            name, relation = self.one(self.ctes)
            return From(f"{name} {alias}", qualified(alias, relation.columns))
        if level > 0 and self.chance(85 if self.nested else 20):
            return self.derived(self.relation(level - 1))
        name, columns = self.one(self.tables)
        return From(f"{name} {alias}", qualified(alias, columns))

    def derived(self, inner: Relation) -> From:
        alias = self.alias()
        return From(f"({inner.sql}) {alias}", qualified(alias, inner.columns))

    def from_clause(self, level: int) -> From:
        result = self.source(level)
        for _ in range(self.one((0, 0, 1, 1, 2)) if level > 0 or not self.nested else self.one((0, 0, 1))):
            result = self.joined(result, self.source(max(0, level - (2 if self.nested else 1))))
        return result

    def joined(self, left: From, right: From) -> From:
        """An inner join."""
        refs, conditions = left.refs + right.refs, left.conditions + right.conditions
        equality = self.equality(left, right)
        shape = self.one(("on", "on", "on", "comma", "theta"))
        if equality is None or shape == "theta":
            condition = f"{equality} AND {self.predicate(refs)}" if equality else self.predicate(refs)
            return From(f"{left.text} JOIN {right.text} ON {condition}", refs, conditions)
        if shape == "comma" and " JOIN " not in right.text and " JOIN " not in left.text:
            return From(f"{left.text}, {right.text}", refs, (*conditions, equality))
        return From(f"{left.text} JOIN {right.text} ON {equality}", refs, conditions)

    def pairs(self, left: From, right: From) -> list[tuple[Ref, Ref]]:
        """Columns of both sides that can be compared."""
        return [
            (a, b)
            for a in exact(left.refs)
            for b in exact(right.refs)
            if b.type in COMPARABLE.get(a.type, (a.type,)) and a.type != BOOLEAN
        ]

    def equality(self, left: From, right: From) -> str | None:
        pairs = self.pairs(left, right)
        if not pairs:
            return None
        a, b = self.one(pairs)
        return f"{a.sql} = {b.sql}"

    # ------------------------------------------------------------ aggregates

    def aggregate(self, level: int) -> Relation:
        source = self.from_clause(level)
        usable = exact(source.refs)
        grouped = self.some(usable, 0, 2) if usable and self.chance(85) else []
        keys = [(ref.sql, ref.type) for ref in grouped]
        ints = [r for r in usable if r.type == INT]
        if ints and keys and self.chance(15):
            keys.append((f"({self.one(ints).sql} + 1)", INT))
        shown = [k for k in keys if not self.chance(8)]
        items = [(text, kind, False) for text, kind in shown]
        items += [self.call(source.refs) for _ in range(self.number(1, 3))]
        having = self.having(source.refs, grouped) if self.chance(35) else None
        group = ", ".join(k for k, _ in keys)
        return self.grouped(source, items, group, having)

    def grouped(
        self, source: From, items: Sequence[tuple[str, str, bool]], group: str, having: str | None
    ) -> Relation:
        """The SELECT of `items` (text, type, rough) grouped by `group`."""
        columns = tuple(Ref(f"c{i + 1}", kind, rough) for i, (_, kind, rough) in enumerate(items))
        shown = ", ".join(f"{e} AS c{i + 1}" for i, (e, _, _) in enumerate(items))
        text = f"SELECT {shown} FROM {source.text}{self.where(source)}"
        text += f" GROUP BY {group}" if group else ""
        return Relation(f"{text} HAVING {having}" if having else text, columns)

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
            ("*", "count", "sum", "sum", "avg", "min", "max", "spread", "if", "bool", "distinct", "distinct")
        )
        usable = exact(refs)
        if shape == "*" or not usable:
            return "count", "*", BIGINT, False
        if shape == "distinct":
            return self._distinct_call(usable)
        if shape == "count":
            return "count", self.one(usable).sql, BIGINT, False
        if shape in ("min", "max"):
            ref = self.one(usable)
            return shape, ref.sql, ref.type, False
        if shape == "if":
            return "count_if", self.predicate(refs), BIGINT, False
        if shape == "bool":
            return self.one(("bool_and", "bool_or")), self.predicate(refs), BOOLEAN, False
        kind = self.one(
            (INT, INT, DOUBLE, FLOAT, DECIMAL, BIGINT) if shape == "sum" else (INT, INT, DOUBLE, FLOAT)
        )
        argument = self.expression(refs, kind, 1)
        if shape == "sum":
            return "sum", argument, {INT: BIGINT, FLOAT: DOUBLE}.get(kind, kind), kind != INT
        if shape == "avg":
            return "avg", argument, DOUBLE, True
        spread = self.one(("stddev_samp", "stddev_pop", "var_samp", "var_pop", "stddev", "variance"))
        return spread, argument, DOUBLE, True

    def _distinct_call(self, usable: Sequence[Ref]) -> tuple[str, str, str, bool]:
        numbers = [r for r in usable if r.type in (INT, DOUBLE, DECIMAL)]
        name = self.one(("count", "count", "max", *(("sum", "avg") if numbers else ())))
        if name in ("count", "max"):
            ref = self.one(usable)
            return name, f"DISTINCT {ref.sql}", BIGINT if name == "count" else ref.type, False
        ref = self.one(numbers)
        kind = DOUBLE if name == "avg" else {INT: BIGINT}.get(ref.type, ref.type)
        return name, f"DISTINCT {ref.sql}", kind, name == "avg" or ref.type != INT

    def having(self, refs: Sequence[Ref], grouped: Sequence[Ref]) -> str:
        """A condition over the groups of the columns `grouped`."""
        shapes = ["count(*) > 1", "count(*) < 3", "count(*) % 2 = 1"]
        for ref in exact(refs):
            if ref.type == INT:
                shapes += [f"sum({ref.sql}) > 2", f"max({ref.sql}) <= 3", f"count({ref.sql}) > 0"]
        return self.one(shapes)


def exact(refs: Sequence[Ref]) -> list[Ref]:
    """The columns that may be computed with."""
    return [r for r in refs if not r.rough]


def qualified(alias: str, columns: Sequence[Ref]) -> tuple[Ref, ...]:
    return tuple(Ref(f"{alias}.{c.sql}", c.type, c.rough) for c in columns)
