"""The grammar of random queries: that of `tests.oracle`, over more types, and with shapes that only Spark needs to have."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from tests.adversary.kinds import KINDS, LONG, text_of
from tests.adversary.seeded import Seeded
from tests.adversary.tables import Table
from tests.oracle.expressions import BIGINT, BOOLEAN, DATE, DECIMAL, DOUBLE, FLOAT, INT, STRING, Ref
from tests.oracle.queries import QueryMaker
from tests.oracle.relations import From, Relation, Sources, exact, qualified

__all__ = ["Grammar", "other_constants"]

_WHOLE = (INT, BIGINT, LONG, "SMALLINT", "TINYINT")
_NUMBERS = (*_WHOLE, DECIMAL, "DECIMAL(38,0)")
_FLOATS = (FLOAT, DOUBLE)
_MOMENTS = (DATE, "TIMESTAMP", "TIMESTAMP_NTZ")
_FAMILIES = (_NUMBERS, _FLOATS, _MOMENTS)
_CONSTANT = re.compile(r"\b(s\d+\.\w+ (?:=|<>|<|>=) )(-?\d+)\b(?! AS)")


class Grammar(Seeded, QueryMaker):
    """Draws one query over the tables, and over `results`: other queries, by name, with their columns."""

    def __init__(self, seed: str, tables: Sequence[Table], results: Sources = ()) -> None:
        sources = [(t.name, tuple(t.refs)) for t in tables]
        self.random = random.Random(seed)
        super().__init__(self.draw, [*sources, *results, *results], self.random.random() < 0.75)
        self.trees = [t for t in tables if t.to_itself is not None]
        self.linked = [
            {mine, there} for t in self.trees if t.to_itself for mine, there in zip(t.to_itself.columns, t.to_itself.there)
        ]  # fmt: skip

    def literal(self, kind: str) -> str:
        return text_of(kind, self.likely(KINDS[kind].values)) if kind in KINDS else super().literal(kind)

    # ------------------------------------------------------------ joins

    def pairs(self, left: From, right: From) -> list[tuple[Ref, Ref]]:
        """Columns that can be compared; where there are any, most often a key and what refers to it."""
        found = super().pairs(left, right)
        keys = [(a, b) for a, b in found if _base(a) == _base(b) and _base(a)[0] in "km"]
        keys += [(a, b) for a, b in found if {_base(a), _base(b)} in self.linked]
        if keys and self.chance(55):
            return keys
        if self.chance(12):
            found += [
                (a, b) for a in exact(left.refs) for b in exact(right.refs) if a.type != b.type and _family(a, b)
            ]  # fmt: skip
        return found

    def on(self, left: From, right: From) -> str:
        return "TRUE" if self.chance(2) else super().on(left, right)

    def from_clause(self, level: int) -> From:
        if self.trees and self.chance(40):
            return self.tree(self.one(self.trees))
        return super().from_clause(level)

    def tree(self, table: Table) -> From:
        """Rows with those that they refer to, one or two steps away."""
        assert table.to_itself is not None
        links = list(zip(table.to_itself.columns, table.to_itself.there))
        names = [self.alias()]
        text = f"{table.name} {names[0]}"
        for _ in range(self.one((1, 1, 2))):
            names.append(self.alias())
            child, parent = names[-2:] if self.chance(50) else names[:-3:-1]
            on = [f"{child}.{mine} = {parent}.{there}" for mine, there in links]
            kind = self.one(("JOIN", "JOIN", "LEFT JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"))
            text += f" {kind} {table.name} {names[-1]} ON {' AND '.join(on)}"
        refs = tuple(ref for name in names for ref in qualified(name, table.refs))
        return From(text, refs)

    def star(self, tables: Sequence[Table]) -> str:
        """A query that shows all columns that a table has when it is created."""
        table = self.one(tables)
        alias, shape = self.alias(), self.one(("plain", "plain", "joined", "derived"))
        source = From(f"{table.name} {alias}", qualified(alias, table.refs))
        shown = f"{alias}.*"
        self.columns = tuple(table.refs)
        if shape == "joined":
            other = self.source(0)
            value = self.one(other.refs)
            shown += f", {value.sql} AS c1"
            self.columns += (Ref("c1", value.type, value.rough),)
            source = From(
                f"{source.text} LEFT JOIN {other.text} ON {self.on(source, other)}", source.refs + other.refs
            )
        text = f"SELECT {shown} FROM {source.text}{self.where(source)}"
        return f"SELECT * FROM ({text}) {self.alias()}" if shape == "derived" else text

    # ------------------------------------------------------------ shapes

    def relation(self, level: int) -> Relation:
        if self.nested and self.chance(20):
            shapes = [
                self.exploded,
                self.pivoted,
                self.unpivoted,
                self.twice,
                self.regrouped,
                self.keyed,
                self.any_of,
            ]
            return self.one(shapes)(level)
        return super().relation(level)

    def exploded(self, level: int) -> Relation:
        """LATERAL VIEW over an array of columns."""
        source = self.source(level)
        kinds = sorted({r.type for r in exact(source.refs)})
        if not kinds:
            return self.select(level)
        kind = self.one(kinds)
        values = [r.sql for r in exact(source.refs) if r.type == kind][:2]
        alias = self.alias()
        text = f"{source.text} LATERAL VIEW explode(array({', '.join([*values, self.literal(kind)])})) {alias} AS x"
        refs = (*source.refs, Ref(f"{alias}.x", kind))
        return self.projected(From(text, refs, source.conditions), [kind, *self.types()], False)

    def pivoted(self, level: int) -> Relation:
        source = self.projected(self.from_clause(level), [STRING, INT, INT], False)
        inner = f"SELECT c1, c2, c3 FROM ({source.sql}) {self.alias()}"
        name, kind = self.one((("sum", BIGINT), ("max", INT), ("count", BIGINT)))
        text = f"SELECT c1, one, two FROM ({inner}) PIVOT ({name}(c3) FOR c2 IN (1 AS one, 2 AS two))"
        return Relation(
            f"SELECT c1, one AS c2, two AS c3 FROM ({text}) {self.alias()}",
            (Ref("c1", STRING), Ref("c2", kind), Ref("c3", kind)),
        )

    def unpivoted(self, level: int) -> Relation:
        source = self.projected(self.from_clause(level), [STRING, INT, INT], False)
        inner = f"SELECT c1, c2, c3 FROM ({source.sql}) {self.alias()}"
        text = f"SELECT c1, n AS c2, v AS c3 FROM ({inner}) UNPIVOT (v FOR n IN (c2, c3))"
        return Relation(text, (Ref("c1", STRING), Ref("c2", STRING), Ref("c3", INT)))

    def twice(self, level: int) -> Relation:
        """A relation joined with itself."""
        inner = self.relation(max(0, level - 1))
        name = f"w{len(self.ctes) + 5}"
        if any(n == name for n, _ in self.ctes):
            return inner
        self.ctes.append((name, inner))
        sides = []
        for _ in range(2):
            alias = self.alias()
            sides.append(From(f"{name} {alias}", qualified(alias, inner.columns)))
        join = self.one((self.joined, self.outer_joined))
        return self.projected(join(*sides), self.types())

    def regrouped(self, level: int) -> Relation:
        """Groups of groups."""
        inner = self.aggregate(level)
        refs = exact(inner.columns)
        if not refs:
            return inner
        source = self.derived(inner)
        keys = self.some(exact(source.refs), 0, 1)
        items = [(k.sql, k.type, False) for k in keys] + [self.call(source.refs), ("count(*)", BIGINT, False)]
        return self.grouped(source, items, ", ".join(k.sql for k in keys), None)

    def keyed(self, level: int) -> Relation:
        """Rows with more about their group: a window function or a scalar subquery over the same key."""
        del level
        name, columns = self.one(self.tables)
        key = self.one(columns)
        own, other = self.alias(), self.alias()
        shown = [f"{own}.{c.sql} AS c{i + 1}" for i, c in enumerate(columns)]
        value = self.one([c for c in columns if c.type != BOOLEAN])
        function = self.one(("min", "max", "count"))
        if self.chance(50):
            more = f"{function}({own}.{value.sql}) OVER (PARTITION BY {own}.{key.sql})"
        else:
            inner = f"SELECT {function}({other}.{value.sql}) FROM {name} {other}"
            more = f"({inner} WHERE {other}.{key.sql} {self.one(('=', '<=>'))} {own}.{key.sql})"
        kind = BIGINT if function == "count" else value.type
        refs = tuple(Ref(f"c{i + 1}", k) for i, k in enumerate([*(c.type for c in columns), kind]))
        return Relation(f"SELECT {', '.join(shown)}, {more} AS c{len(refs)} FROM {name} {own}", refs)

    def any_of(self, level: int) -> Relation:
        """Which of several kinds of rows there are: a subquery in each branch of a UNION."""
        source = self.source(level)
        refs = exact(source.refs)
        if not refs:
            return self.select(level)
        key = self.one(refs)
        parts = [
            f"SELECT {key.sql} AS c1, CAST({n} AS INT) AS c2 FROM {source.text}"
            f" WHERE {' AND '.join([*source.conditions, self.test(source.refs, 0)])}"
            for n in range(2)
        ]
        word = self.one(("UNION ALL", "UNION", "EXCEPT ALL", "INTERSECT"))
        return Relation(f" {word} ".join(parts), (Ref("c1", key.type), Ref("c2", INT)))


def _base(ref: Ref) -> str:
    return ref.sql.rsplit(".", 1)[-1]


def _family(a: Ref, b: Ref) -> bool:
    return any(a.type in family and b.type in family for family in _FAMILIES)


def other_constants(text: str, chosen: random.Random) -> str:
    """The query with another constant in its comparisons: one that may share its group."""
    return _CONSTANT.sub(lambda found: f"{found[1]}{chosen.choice((-1, 0, 1, 2, 3, 4))}", text)
