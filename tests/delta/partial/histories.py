"""Random transactions on tables, and how much of what they do is told."""

from __future__ import annotations

import random

from tests.delta.partial.world import Change, Row
from tests.oracle.generate import TableSpec

TABLES = (
    TableSpec("s", (("sk", "INT"), ("a", "INT"), ("c", "INT"), ("x", "INT"), ("y", "INT")), ("sk",)),
    TableSpec("t", (("tk", "INT"), ("b", "INT"), ("z", "INT")), ("tk",)),
    TableSpec("u", (("uk", "INT"), ("ul", "INT"), ("w", "INT")), ("uk", "ul")),
)
QUERIES = (
    "SELECT sk, x FROM s",
    "SELECT x + 1 AS x1, sk, y FROM s WHERE x > 1",
    "SELECT sk, x FROM (SELECT sk, x, y FROM s WHERE y <> 2) q WHERE x IS NOT NULL AND x < 3",
    "SELECT s.sk, s.x, t.z FROM s JOIN t ON s.a = t.tk",
    "SELECT s.sk, t.z FROM s JOIN t ON s.a = t.tk WHERE t.z > 0 AND s.x <> t.z",
    "SELECT s.sk, p.z AS pz, q.z AS qz FROM s JOIN t p ON s.a = p.tk JOIN t q ON q.tk = s.c",
    "SELECT s.sk, s.a, u.w FROM s JOIN t ON s.a = t.tk JOIN u ON u.uk = t.b AND u.ul = s.c",
    """SELECT s.sk, coalesce(d.w, 0) + d.z AS v
       FROM s JOIN (SELECT t.tk, t.z, u.w FROM t JOIN u ON t.b = u.uk AND t.z = u.ul WHERE u.w <> 1) d ON d.tk = s.a
       WHERE s.x + d.z > 1""",
    "SELECT l.sk, r.x FROM s l JOIN s r ON l.a = r.sk",
    "SELECT t.tk, t.z, s.x FROM s, t WHERE s.sk = t.tk AND s.a IS NOT NULL",
)
ALIVE = {
    "insert": ("insert", "upsert"),
    "update": ("update", "partial_update", "upsert"),
    "delete": ("delete", "partial_delete"),
}


class Writer:
    """Random transactions, and what is left of what they say."""

    def __init__(self, seed: int, partial: frozenset[str]) -> None:
        self.random = random.Random(seed)
        self.partial = partial
        self.rows: dict[str, dict[Row, Row]] = {spec.name: {} for spec in TABLES}

    def value(self) -> int | None:
        return self.random.choice((None, 0, 1, 1, 2, 2, 3))

    def transaction(self) -> dict[str, list[Change]]:
        return {spec.name: self.changes(spec) for spec in TABLES if self.random.random() < 0.7}

    def changes(self, spec: TableSpec) -> list[Change]:
        keys = {tuple(self.random.randrange(4) for _ in spec.key) for _ in range(self.random.randrange(4))}
        found = [self.change(spec, key) for key in sorted(keys)]
        return [each for each in found if each is not None]

    def change(self, spec: TableSpec, key: Row) -> Change | None:
        rows = self.rows[spec.name]
        old, partial = rows.get(key), spec.name in self.partial
        new = (*key, *(self.value() for _ in spec.columns[len(key) :]))
        roll = self.random.random()
        if old is not None and roll < 0.3:
            del rows[key]
            return Change(self.kind("delete", partial), key, old)
        if old is None and roll < 0.2:
            return Change("partial_delete", key) if partial else None
        if old is not None and roll < 0.4:
            return Change("upsert" if roll < 0.35 else "partial_update", key, old, old) if partial else None
        if old == new:
            return None
        rows[key] = new
        return Change(self.kind("insert" if old is None else "update", partial), key, old, new)

    def kind(self, what: str, partial: bool) -> str:
        return self.random.choice(ALIVE[what]) if partial else what
