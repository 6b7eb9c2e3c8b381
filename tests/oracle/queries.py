"""Random queries of all shapes over given tables; see `expressions` for what keeps Spark and DuckDB in agreement.

A result is a function of its tables: every order is total but for rows that are equal in all columns, and of several
windows all but one give equal rows equal values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.oracle.expressions import BIGINT, BOOLEAN, DATE, DOMAINS, DOUBLE, INT, STRING, Ref
from tests.oracle.relations import CoreMaker, From, Relation, Sources, exact, qualified

__all__ = ["QueryMaker", "Relation"]

_ENDS = (" ASC NULLS FIRST", " DESC NULLS LAST", " ASC NULLS LAST", " DESC NULLS FIRST")
_ROWS = (
    "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW",
    "ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING",
    "ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING",
    "ROWS BETWEEN 2 PRECEDING AND 1 PRECEDING",
)
_RANGES = (
    "RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW",
    "RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING",
)


class QueryMaker(CoreMaker):
    """Draws one query. With `nested`, all shapes; else those of joins under at most one GROUP BY."""

    def __init__(self, draw: Callable[[Any], Any], tables: Sources, nested: bool) -> None:
        super().__init__(draw, tables)
        self.nested = nested
        self.columns: tuple[Ref, ...] = ()
        """Of the last query that was drawn."""

    def query(self) -> str:
        """The text of a whole query."""
        for name in ("w1", "w2")[: self.one((0, 0, 0, 1, 2)) if self.nested else int(self.chance(20))]:
            self.ctes.append((name, self.relation(1 if self.nested else 0)))
        main = self.relation(self.one((1, 2, 2, 3, 3)) if self.nested else 1)
        self.columns = main.columns
        shown = ", ".join(f"{name} AS ({relation.sql})" for name, relation in self.ctes)
        return f"WITH {shown} {main.sql}" if shown else main.sql

    def relation(self, level: int) -> Relation:
        if not self.nested:
            return super().relation(level)
        shapes = [
            self.select, self.union, self.aggregate, self.aggregate, self.aggregate, self.grouping_sets, self.distinct,
            self.set_operation, self.window, self.window, self.top, self.top_per_key, self.outer, self.outer,
            self.outer, self.semi, self.subquery, self.subquery, self.lateral, self.answers, self.answers,
        ]  # fmt: skip
        return self.one(shapes)(level)

    def source(self, level: int) -> From:
        return self.values() if self.nested and self.chance(2) else super().source(level)

    def values(self) -> From:
        """VALUES as a table."""
        alias = self.alias()
        kinds = [INT, *self.some((STRING, DATE, DOUBLE), 0, 2)]

        def value(kind: str) -> str:
            return f"CAST(NULL AS {kind})" if self.chance(15) else self.one(DOMAINS[kind])

        rows = ", ".join(f"({', '.join(map(value, kinds))})" for _ in range(self.number(1, 4)))
        names = [f"v{i + 1}" for i in range(len(kinds))]
        columns = [Ref(n, k) for n, k in zip(names, kinds)]
        return From(f"(VALUES {rows}) {alias}({', '.join(names)})", qualified(alias, columns))

    # ------------------------------------------------------------ joins

    def outer(self, level: int) -> Relation:
        """One to three joins, of which the first is an outer one."""
        result = self.outer_joined(self.source(level), self.source(max(0, level - 2)))
        for _ in range(self.one((0, 0, 1, 2))):
            join = self.outer_joined if self.chance(75) else self.joined
            result = join(result, self.source(0))
        return self.projected(result, self.types())

    def outer_joined(self, left: From, right: From) -> From:
        kind = self.one(("LEFT", "LEFT", "LEFT", "RIGHT", "FULL", "FULL"))
        refs = left.refs + right.refs
        text = f"{left.text} {kind} JOIN {right.text} ON {self.on(left, right)}"
        return From(text, refs, left.conditions + right.conditions)

    def on(self, left: From, right: From) -> str:
        """Any join condition."""
        pairs = self.pairs(left, right)
        refs = left.refs + right.refs
        if not pairs or self.chance(8):
            return self.predicate(refs)
        conditions = [self.match(*self.one(pairs)) for _ in range(self.one((1, 1, 1, 2)))]
        if self.chance(30):
            conditions.append(self.predicate(self.one((refs, left.refs, right.refs))))
        return " AND ".join(conditions)

    def match(self, a: Ref, b: Ref) -> str:
        """A comparison of a column of one side with a column of the other."""
        shapes = [f"{a.sql} = {b.sql}"] * 4
        shapes += [f"{a.sql} IS NOT DISTINCT FROM {b.sql}", f"{a.sql} {self.one(('<', '>='))} {b.sql}"]
        if a.type == INT:
            shapes.append(f"{a.sql} + 1 = {b.sql}")
        if a.type == STRING:
            shapes.append(f"upper({a.sql}) = upper({b.sql})")
        return self.one(shapes)

    def semi(self, level: int) -> Relation:
        """SEMI JOIN and ANTI JOIN in so many words."""
        left, right = self.source(level), self.source(max(0, level - 1))
        text = f"{left.text} {self.one(('SEMI', 'ANTI'))} JOIN {right.text} ON {self.on(left, right)}"
        return self.projected(From(text, left.refs), self.types())

    def lateral(self, level: int) -> Relation:
        """A derived table that reads columns of the one before it."""
        left, inner = self.source(level), self.source(max(0, level - 2))
        pairs = self.pairs(left, inner)
        if not pairs:
            return self.outer(level)
        correlated = From(inner.text, inner.refs, (*inner.conditions, self.match(*self.one(pairs))))
        shape = self.one(("rows", "rows", "aggregate", "top"))
        if shape == "rows":
            made = self.projected(correlated, self.types()[:2], False)
        elif shape == "aggregate":
            made = self.grouped(correlated, [self.call(inner.refs), ("count(*)", BIGINT, False)], "", None)
        else:
            made = self.ordered(correlated)
        alias = self.alias()
        join = self.one((", LATERAL ({0}) {1}", " LEFT JOIN LATERAL ({0}) {1} ON TRUE"))
        text = left.text + join.format(made.sql, alias)
        refs = left.refs + qualified(alias, made.columns)
        return self.projected(From(text, refs, left.conditions), self.types())

    # ------------------------------------------------------------ subqueries

    def condition(self, refs: Sequence[Ref]) -> str:
        if self.nested and self.chance(12):
            return self.with_subquery(refs, 0)
        return self.predicate(refs)

    def subquery(self, level: int) -> Relation:
        """A select with subqueries in WHERE."""
        source = self.source(level)
        condition = self.with_subquery(source.refs, max(0, level - 1))
        return self.projected(From(source.text, source.refs, (*source.conditions, condition)), self.types())

    def with_subquery(self, refs: Sequence[Ref], level: int) -> str:
        first = self.test(refs, level)
        shape = self.one(("plain", "plain", "plain", "or", "not", "and", "either", "case"))
        if shape == "plain":
            return first
        if shape == "not":
            return f"NOT ({first})"
        if shape == "or":
            return f"({self.predicate(refs)} OR {first})"
        if shape == "case":
            return f"CASE WHEN {first} THEN {self.predicate(refs)} ELSE {self.predicate(refs)} END"
        return f"({first} {'AND' if shape == 'and' else 'OR'} {self.test(refs, 0)})"

    def test(self, refs: Sequence[Ref], level: int) -> str:
        """A condition that is one subquery; it can be NULL."""
        inner = self.source(level)
        pairs = self.pairs(From("", tuple(refs)), inner)
        conditions = [self.match(*self.one(pairs))] if pairs and self.chance(75) else []
        where = self.inner_where(inner, conditions)
        word = self.one(("", "NOT "))
        comparable = [(a, b) for a, b in pairs if a.type == b.type]
        shape = self.one(("exists", "exists", "in", "in", "compare", "count"))
        if shape == "in" and comparable:
            a, b = self.one(comparable)
            alone = self.inner_where(inner, []) if self.chance(70) else where
            value = f"({a.sql} + 1)" if a.type == INT and self.chance(20) else a.sql
            return f"{value} {word}IN (SELECT {b.sql} FROM {inner.text}{alone})"
        if shape == "compare" and comparable:
            a, b = self.one(comparable)
            return f"{a.sql} {self.one(('=', '<', '>=', '<>'))} ({self.scalar(inner, b, conditions)})"
        if shape == "count":
            return f"(SELECT count(*) FROM {inner.text}{where}) {self.one(('> 1', '= 0', '< 2'))}"
        return f"{word}EXISTS (SELECT 1 FROM {inner.text}{where})"

    def inner_where(self, inner: From, more: Sequence[str]) -> str:
        conditions = [*inner.conditions, *more]
        if self.chance(35):
            conditions.append(self.predicate(inner.refs))
        return f" WHERE {' AND '.join(conditions)}" if conditions else ""

    def scalar(self, inner: From, value: Ref, conditions: Sequence[str]) -> str:
        """A subquery of one row."""
        return f"SELECT {self.one(('min', 'max'))}({value.sql}) FROM {inner.text}{self.inner_where(inner, conditions)}"

    def answers(self, level: int) -> Relation:
        """Subqueries in the SELECT list."""
        source = self.source(level)
        usable = exact(source.refs)
        items = [(r.sql, r.type) for r in self.some(usable, 1, 3)]
        items += [self.answer(source, max(0, level - 2)) for _ in range(self.one((1, 1, 2)))]
        shown = ", ".join(f"{text} AS c{i + 1}" for i, (text, _) in enumerate(items))
        columns = tuple(Ref(f"c{i + 1}", kind) for i, (_, kind) in enumerate(items))
        return Relation(f"SELECT {shown} FROM {source.text}{self.where(source)}", columns)

    def answer(self, source: From, level: int) -> tuple[str, str]:
        """An expression with a subquery, and its type."""
        shape = self.one(("test", "case", "value", "count"))
        if shape == "test":
            return f"({self.test(source.refs, level)})", BOOLEAN
        if shape == "case":
            then, other = (self.expression(source.refs, STRING, 1) for _ in range(2))
            return f"CASE WHEN {self.test(source.refs, level)} THEN {then} ELSE {other} END", STRING
        inner = self.source(level)
        pairs = self.pairs(source, inner)
        conditions = [self.match(*self.one(pairs))] if pairs and self.chance(80) else []
        values = exact(inner.refs)
        if shape == "count" or not values:
            return f"(SELECT count(*) FROM {inner.text}{self.inner_where(inner, conditions)})", BIGINT
        value = self.one(values)
        return f"({self.scalar(inner, value, conditions)})", value.type

    def having(self, refs: Sequence[Ref], grouped: Sequence[Ref]) -> str:
        if not self.nested or not self.chance(20):
            return super().having(refs, grouped)
        if grouped and self.chance(60):
            return self.test(grouped, 0)
        inner = self.source(0)
        return f"count(*) {self.one(('<', '>='))} (SELECT count(*) FROM {inner.text}{self.inner_where(inner, [])})"

    # ------------------------------------------------------------ groups and sets

    def grouping_sets(self, level: int) -> Relation:
        """ROLLUP, CUBE and GROUPING SETS. Over no rows Spark gives none, the standard the row of the empty set."""
        source = self.from_clause(level)
        keys = self.some(exact(source.refs), 1, 2)
        if not keys:
            return self.aggregate(level)
        names = [k.sql for k in keys]
        listed = ", ".join(names)
        sets = [f"ROLLUP ({listed})", f"CUBE ({listed})", f"GROUPING SETS (({listed}), ({names[-1]}), ())"]
        items = [(k.sql, k.type, False) for k in keys]
        items += [self.call(source.refs) for _ in range(self.number(1, 2))]
        if self.chance(40):
            items.append((f"CAST(grouping({names[0]}) AS INT)", INT, False))
        having = "count(*) > 0" + (f" AND {super().having(source.refs, keys)}" if self.chance(25) else "")
        return self.grouped(source, items, self.one(sets), having)

    def exactly(self, level: int) -> From:
        """A derived table without rough columns."""
        return self.derived(self.projected(self.from_clause(level), self.types(), False))

    def distinct(self, level: int) -> Relation:
        inner = self.projected(self.from_clause(level), self.types(), False)
        return Relation("SELECT DISTINCT" + inner.sql.removeprefix("SELECT"), inner.columns)

    def set_operation(self, level: int) -> Relation:
        """Two operands, or three that are taken from left to right."""
        kinds = self.types()[:2]

        def operand(at: int) -> Relation:
            return self.projected(self.from_clause(max(0, at)), kinds, False)

        left = operand(level)
        word = self.one(("EXCEPT", "INTERSECT", "EXCEPT ALL", "INTERSECT ALL", "UNION"))
        text = f"{left.sql} {word} {operand(level - 1).sql}"
        if self.chance(20):
            text += f" {self.one(('EXCEPT', 'UNION', 'UNION ALL', 'EXCEPT ALL'))} {operand(0).sql}"
        return Relation(text, left.columns)

    # ------------------------------------------------------------ orders

    def total(self, refs: Sequence[Ref]) -> str:
        """An ORDER BY of all columns, so that ties are equal rows."""
        first = self.one(refs)
        ordered = [first, *(r for r in refs if r is not first)]
        return ", ".join(r.sql + self.one(_ENDS) for r in ordered)

    def window(self, level: int) -> Relation:
        source = self.exactly(level)
        refs = source.refs
        items = [(r.sql, r.type, False) for r in refs]
        first = self.over(refs)
        items += self.some(self.by_position(refs, first) + self.by_value(refs, first), 1, 2)
        if self.chance(40):
            items += self.some(self.by_value(refs, self.over(refs)), 1, 2)
        shown = ", ".join(f"{text} AS c{i + 1}" for i, (text, _, _) in enumerate(items))
        columns = tuple(Ref(f"c{i + 1}", kind, rough) for i, (_, kind, rough) in enumerate(items))
        return Relation(f"SELECT {shown} FROM {source.text}", columns)

    def over(self, refs: Sequence[Ref]) -> tuple[str, str]:
        """PARTITION BY (often) and ORDER BY."""
        one = self.one(refs)
        key = f"{one.sql} + 1" if one.type == INT and self.chance(15) else one.sql
        return f"PARTITION BY {key} " if self.chance(75) else "", f"ORDER BY {self.total(refs)}"

    def by_position(self, refs: Sequence[Ref], over: tuple[str, str]) -> list[tuple[str, str, bool]]:
        """Functions that can give equal rows different values."""
        partition, order = over
        value = self.one(refs)
        ints = [r.sql for r in refs if r.type == INT]
        number = self.one(ints) if ints else "1"
        ordered, rows = f"OVER ({partition}{order})", f"OVER ({partition}{order} {self.one(_ROWS)})"
        return [
            (f"row_number() {ordered}", INT, False),
            (f"lag({value.sql}) {ordered}", value.type, False),
            (f"lead({number}, 2, 0) {ordered}", INT, False),
            (f"ntile(2) {ordered}", INT, False),
            (f"sum({number}) {rows}", BIGINT, False),
            (f"min({value.sql}) {rows}", value.type, False),
            (f"first_value({value.sql}) {rows}", value.type, False),
            (f"count({value.sql}) {rows}", BIGINT, False),
        ]

    def by_value(self, refs: Sequence[Ref], over: tuple[str, str]) -> list[tuple[str, str, bool]]:
        """Functions that give equal rows equal values."""
        partition, order = over
        value = self.one(refs)
        ints = [r.sql for r in refs if r.type == INT]
        number = self.one(ints) if ints else "1"
        ordered, whole = f"OVER ({partition}{order})", f"OVER ({partition.strip()})"
        ranged = f"OVER ({partition}{order} {self.one(_RANGES)})"
        return [
            (f"rank() {ordered}", INT, False),
            (f"dense_rank() {ordered}", INT, False),
            (f"percent_rank() {ordered}", DOUBLE, True),
            (f"cume_dist() {ordered}", DOUBLE, True),
            (f"sum({number}) {ranged}", BIGINT, False),
            (f"last_value({value.sql}) {ranged}", value.type, False),
            (f"max({value.sql}) {whole}", value.type, False),
            (f"count(*) {whole}", BIGINT, False),
            (f"avg({number}) {whole}", DOUBLE, True),
        ]

    def ordered(self, source: From) -> Relation:
        """ORDER BY, LIMIT and OFFSET over exact columns."""
        inner = self.derived(self.projected(source, self.types(), False))
        shown, columns = _all(inner)
        offset = f" OFFSET {self.number(1, 2)}" if self.chance(25) else ""
        limit = f"LIMIT {self.number(1, 4)}{offset}"
        return Relation(
            f"SELECT {shown} FROM {inner.text} ORDER BY {self.total(inner.refs)} {limit}", columns
        )

    def top(self, level: int) -> Relation:
        limited = self.ordered(self.from_clause(level))
        return Relation(f"SELECT * FROM ({limited.sql}) {self.alias()}", limited.columns)

    def top_per_key(self, level: int) -> Relation:
        """The first rows of each key, by QUALIFY or by a condition on a number."""
        source = self.exactly(level)
        partition, order = self.over(source.refs)
        number = f"{self.one(('row_number', 'rank'))}() OVER ({partition}{order})"
        test = self.one(("<= 1", "<= 2", "= 2", "> 1"))
        shown, columns = _all(source)
        if self.chance(50):
            return Relation(f"SELECT {shown} FROM {source.text} QUALIFY {number} {test}", columns)
        names = ", ".join(c.sql for c in columns)
        inner = f"SELECT {shown}, {number} AS n FROM {source.text}"
        return Relation(f"SELECT {names} FROM ({inner}) {self.alias()} WHERE n {test}", columns)


def _all(source: From) -> tuple[str, tuple[Ref, ...]]:
    """All columns of a FROM clause as c1, c2, ..."""
    shown = ", ".join(f"{r.sql} AS c{i + 1}" for i, r in enumerate(source.refs))
    return shown, tuple(Ref(f"c{i + 1}", r.type) for i, r in enumerate(source.refs))
