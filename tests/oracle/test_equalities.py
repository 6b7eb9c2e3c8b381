"""Comparisons between types: deltas, added up, are Spark's own SELECT, whatever `=` takes for equal.

Pairs of types that Spark compares × shapes of queries × special values. A few of them, the same in every run; a large
run is `CQ_ORACLE_SEED=1 CQ_EQUALITIES=500 pytest tests/oracle/test_equalities.py -s`.
"""

from __future__ import annotations

import math
import os
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from pyspark.sql import SparkSession

import cq_engine

COUNT = int(os.environ.get("CQ_EQUALITIES", "3"))
SEED = int(os.environ.get("CQ_ORACLE_SEED", "0"))
COMMITS = 4


@dataclass(frozen=True)
class Pair:
    """Two types with values, and how the right side is written in a comparison. `ansi`: in which modes it works."""

    left: str
    ours: tuple[str, ...]
    right: str
    theirs: tuple[str, ...]
    shown: str = "{}"
    ansi: tuple[bool, ...] = (True,)
    fold: bool = False


_NUMBERS = ("'1'", "' 1'", "'01'", "'1 '", "'0'", "'-0'", "'2'")
_TEXTS = ("'a'", "'A'", "'b'", "'B '", "''")
BOTH = (True, False)
PAIRS = (
    Pair("INT", ("1", "0", "2", "-7"), "STRING", _NUMBERS, ansi=BOTH),
    Pair("INT", ("1", "0"), "STRING", (*_NUMBERS, "'x'", "'1.5'"), ansi=(False,)),
    Pair("BIGINT", ("9007199254740992", "9007199254740993", "1"), "STRING",
         ("'9007199254740993'", "' 9007199254740993'", "'1'")),
    Pair("BIGINT", ("9007199254740992", "9007199254740993", "9007199254740994", "0"), "DOUBLE",
         ("9007199254740992D", "0D", "-0D", "double('NaN')"), ansi=BOTH),
    Pair("BIGINT", ("16777216", "16777217", "1"), "FLOAT", ("16777216F", "1F", "float('NaN')"), ansi=BOTH),
    Pair("INT", ("1", "16777217"), "BIGINT", ("1L", "16777217L", "4294967297L")),
    Pair("SMALLINT", ("1", "2"), "DECIMAL(5,2)", ("1.00", "1.50", "2.00"), ansi=BOTH),
    Pair("DECIMAL(38,0)", ("12345678901234567890", "12345678901234567891", "1"), "DOUBLE",
         ("1.2345678901234567E19D", "1D"), ansi=BOTH),
    Pair("DECIMAL(5,2)", ("1.00", "1.25"), "DECIMAL(20,10)", ("1.0000000000", "1.2500000000", "1.2500000001")),
    Pair("DECIMAL(5,2)", ("1.50", "2.00"), "STRING", ("'1.5'", "'1.50'", "' 15e-1'", "'2'"), ansi=BOTH),
    Pair("FLOAT", ("0.1F", "0F", "-0F", "float('NaN')"), "DOUBLE", ("0.1D", "double(0.1F)", "-0D", "double('NaN')")),
    Pair("DOUBLE", ("0D", "-0D", "1D", "double('NaN')"), "STRING", ("'0'", "'-0.0'", "'1e0'", "'NaN'", "'1'")),
    Pair("DOUBLE", ("0D", "-0D", "double('NaN')"), "DOUBLE", ("0D", "-0D", "double('NaN')", "1D")),
    Pair("DATE", ("DATE '2020-01-01'", "DATE '2011-12-30'"), "TIMESTAMP",
         ("TIMESTAMP '2020-01-01'", "TIMESTAMP '2020-01-01 00:00:01'", "TIMESTAMP '2011-12-31'"), ansi=BOTH),
    Pair("DATE", ("DATE '2020-01-01'", "DATE '2020-01-02'"), "STRING",
         ("'2020-01-01'", "'2020-1-1'", "' 2020-01-01'", "'2020-01-02'"), ansi=BOTH),
    Pair("TIMESTAMP", ("TIMESTAMP '2020-01-01'", "TIMESTAMP '2020-01-01 10:00:00'"), "STRING",
         ("'2020-01-01'", "'2020-01-01 00:00:00'", "'2020-01-01T10:00:00'", "'2020-01-01 10:00'")),
    Pair("TIMESTAMP", ("TIMESTAMP '2020-01-01'", "TIMESTAMP '2021-11-07 01:30:00'"), "TIMESTAMP_NTZ",
         ("TIMESTAMP_NTZ '2020-01-01'", "TIMESTAMP_NTZ '2021-11-07 01:30:00'")),
    Pair("DATE", ("DATE '2020-01-01'",), "TIMESTAMP_NTZ",
         ("TIMESTAMP_NTZ '2020-01-01'", "TIMESTAMP_NTZ '2020-01-01 01:00:00'")),
    Pair("BOOLEAN", ("true", "false"), "STRING", ("'true'", "'t'", "'1'", "'FALSE'", "' yes '")),
    Pair("INT", ("1", "0", "2"), "BOOLEAN", ("true", "false"), ansi=(False,)),
    Pair("BINARY", ("X'61'", "X'41'"), "STRING", _TEXTS),
    Pair("ARRAY<INT>", ("array(1, NULL)", "array()"), "ARRAY<BIGINT>", ("array(1L, NULL)", "array(4294967297L)")),
    Pair("INTERVAL DAY TO SECOND", ("INTERVAL '1 00:00:00' DAY TO SECOND", "INTERVAL '0 01:00:00' DAY TO SECOND"),
         "INTERVAL HOUR", ("INTERVAL '24' HOUR", "INTERVAL '1' HOUR")),
    Pair("STRING COLLATE UTF8_LCASE", _TEXTS, "STRING COLLATE UTF8_LCASE", _TEXTS, fold=True),
    Pair("STRING", _TEXTS, "STRING", _TEXTS, "{} COLLATE UTF8_LCASE", fold=True),
    Pair("STRING COLLATE UTF8_LCASE", _TEXTS, "STRING", _TEXTS, "{} COLLATE UTF8_LCASE", fold=True),
    Pair("STRING COLLATE UTF8_LCASE", _TEXTS, "STRING", _TEXTS, "{} COLLATE UTF8_BINARY_RTRIM", fold=True),
    Pair("CHAR(3)", ("'a'", "'b'"), "CHAR(5)", ("'a'", "'a  '", "'b '")),
    Pair("CHAR(3)", ("'a'", "'b'"), "STRING", _TEXTS),
)  # fmt: skip

SHAPES = {
    "inner": "SELECT a.id, b.id AS j, b.y FROM {a} a JOIN {b} b ON a.k = {bk}",
    "grouped": "SELECT a.id, count(*) AS n, sum(b.y) AS s FROM {a} a JOIN {b} b ON a.k = {bk} GROUP BY a.id",
    "chain": "SELECT a.id, b.id AS j, c.id AS l FROM {a} a JOIN {b} b ON a.k = {bk} JOIN {a} c ON c.k = {bk}",
    "left": "SELECT a.id, b.id AS j, a.x, b.y FROM {a} a LEFT JOIN {b} b ON a.k = {bk}",
    "left_rows": "SELECT a.x, b.y FROM {a} a LEFT JOIN {b} b ON a.k = {bk} AND b.y > 1",
    "left_safe": "SELECT a.id, b.id AS j FROM {a} a LEFT JOIN {b} b ON a.k <=> {bk}",
    "right": "SELECT b.id, a.id AS j FROM {a} a RIGHT JOIN {b} b ON a.k = {bk}",
    "full": "SELECT a.id, b.id AS j, a.x, b.y FROM {a} a FULL JOIN {b} b ON a.k = {bk}",
    "of_groups": "SELECT a.id, b.n FROM {a} a LEFT JOIN (SELECT k, count(*) AS n FROM {b} GROUP BY k) b ON a.k = {bk}",
    "semi": "SELECT a.id, a.x FROM {a} a LEFT SEMI JOIN {b} b ON a.k = {bk}",
    "anti": "SELECT a.id, a.x FROM {a} a LEFT ANTI JOIN {b} b ON a.k = {bk}",
    "in": "SELECT a.id, a.x FROM {a} a WHERE a.k IN (SELECT {bk} FROM {b} b WHERE b.y > 0)",
    "not_in": "SELECT a.id, a.x FROM {a} a WHERE a.k NOT IN (SELECT {bk} FROM {b} b WHERE b.y > 2)",
    "not_in_present": "SELECT a.id FROM {a} a WHERE a.k NOT IN (SELECT {bk} FROM {b} b WHERE b.k IS NOT NULL)",
    "in_value": "SELECT a.id, a.k IN (SELECT {bk} FROM {b} b) OR a.x > 4 AS t FROM {a} a",
    "in_groups": "SELECT a.id FROM {a} a WHERE a.k IN (SELECT {bk} FROM {b} b GROUP BY b.k HAVING count(*) > 1)",
    "exists": "SELECT a.id, EXISTS (SELECT 1 FROM {b} b WHERE {bk} = a.k AND b.y > 1) AS e FROM {a} a",
    "exists_having": "SELECT a.id FROM {a} a WHERE EXISTS"
                     " (SELECT b.y FROM {b} b WHERE {bk} = a.k GROUP BY b.y HAVING count(*) > 1)",
    "exists_all": "SELECT a.id FROM {a} a WHERE EXISTS (SELECT 1 FROM {b} b WHERE {bk} = a.k HAVING count(*) > 1)",
    "not_exists": "SELECT a.id FROM {a} a WHERE NOT EXISTS (SELECT 1 FROM {b} b WHERE a.k = {bk} AND b.y <> a.x)",
    "count": "SELECT a.id, (SELECT count(*) FROM {b} b WHERE {bk} = a.k) AS n FROM {a} a",
    "sum": "SELECT a.id, (SELECT sum(b.y) FROM {b} b WHERE a.k = {bk} AND b.y > 0) AS n FROM {a} a",
    "sum_of": "SELECT sum(n) AS s, count(n) AS c FROM (SELECT (SELECT sum(y) FROM {b} b WHERE {bk} = a.k) AS n FROM {a} a)",
    "lateral": "SELECT a.id, t.n FROM {a} a, LATERAL (SELECT count(*) AS n FROM {b} b WHERE {bk} = a.k) t",
    "more_than": "SELECT a.id, (SELECT max(b.y) FROM {b} b WHERE {bk} = a.k AND b.y > a.x) AS m FROM {a} a",
    "union": "SELECT k, count(*) AS n FROM (SELECT k FROM {a} UNION ALL SELECT {bk} FROM {b} b) GROUP BY k",
    "distinct": "SELECT a.k FROM {a} a UNION SELECT {bk} FROM {b} b",
    "except": "SELECT a.k FROM {a} a EXCEPT SELECT {bk} FROM {b} b",
    "intersect": "SELECT a.k FROM {a} a INTERSECT SELECT {bk} FROM {b} b",
    "except_all": "SELECT a.k FROM {a} a EXCEPT ALL SELECT {bk} FROM {b} b",
    "using": "SELECT x, y FROM {a} a JOIN (SELECT {bk} AS k, y FROM {b} b) b USING (k)",
    "using_full": "SELECT a.x, b.y FROM {a} a FULL JOIN (SELECT {bk} AS k, y FROM {b} b) b USING (k)",
    "natural": "SELECT x, y FROM {a} a NATURAL LEFT JOIN (SELECT {bk} AS k, y FROM {b} b) b",
}  # fmt: skip


def canonical(value: Any, fold: bool) -> Any:
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    if isinstance(value, str) and fold:
        return value.lower().rstrip()
    if isinstance(value, (list, tuple, bytearray)):
        return tuple(canonical(item, fold) for item in value)
    return value


@dataclass
class Watched:
    """A continuous query, and what its deltas amount to."""

    engine: cq_engine.Engine
    name: str
    text: str
    fold: bool
    rows: Counter[Any] = field(default_factory=Counter)
    position: int = 0

    def check(self, results: dict[int, Counter[Any]]) -> None:
        """After the deltas of each version that has any, the rows are those of Spark's SELECT then."""
        self.engine.refresh(self.name)
        for delta in self.engine.deltas(self.name, self.position):
            if delta.commit_version != self.position and self.position in results:
                assert self.rows == results[self.position], (self.name, self.position)
            self.position = delta.commit_version
            old, new = canonical(delta.old, self.fold), canonical(delta.new, self.fold)
            self.rows += Counter([] if new is None else [new])
            assert old is None or self.rows[old] > 0, (self.name, delta)
            self.rows -= Counter([] if old is None else [old])
        last = max(results)
        assert self.rows == results[last], (self.name, self.rows - results[last], results[last] - self.rows)


@pytest.fixture(scope="module", params=BOTH, ids=["ansi", "legacy"])
def engine(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[cq_engine.Engine]:
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "Pacific/Apia")  # which never had 2011-12-30
    session.conf.set("spark.sql.ansi.enabled", str(request.param).lower())
    path = tmp_path_factory.mktemp("equal") / "w"
    with cq_engine.connect(path, spark=session, scheduler=False) as opened:
        opened.ansi = request.param  # type: ignore[attr-defined]
        yield opened


def test_equalities(engine: cq_engine.Engine) -> None:
    ansi = engine.ansi  # type: ignore[attr-defined]
    chosen = random.Random(SEED)
    pairs = [p for p in PAIRS if ansi in p.ansi]
    number = max((COUNT if ansi else COUNT // 3) // 3, 1)
    by_pair = [
        (chosen.choice(pairs), chosen.sample(sorted(SHAPES), 2 if number == 1 else 3)) for _ in range(number)
    ]
    failed = []
    for number, (pair, shapes) in enumerate(by_pair):
        failed += _problems(engine, number, pair, shapes, chosen)
    assert not failed, "\n".join(failed)


def _problems(
    engine: cq_engine.Engine, number: int, pair: Pair, shapes: list[str], chosen: random.Random
) -> list[str]:
    """What is wrong with the deltas of the shapes over one pair."""
    names = {"a": f"a{number}", "b": f"b{number}", "bk": pair.shown.format("b.k")}
    engine.execute(f"CREATE TABLE a{number} (id INT PRIMARY KEY, k {pair.left}, x INT)")
    engine.execute(f"CREATE TABLE b{number} (id INT PRIMARY KEY, k {pair.right}, y INT)")
    for _ in range(3):
        _change(engine, number, pair, chosen)
    watched: list[list[Watched]] = []
    failed = []
    for shape in shapes:
        text = SHAPES[shape].format(**names)
        label = f"{shape} of {pair.left} and {pair.right} {pair.shown}"
        try:
            before = _rows(engine, text, pair.fold)
        except cq_engine.CQError as error:
            print(f"{label}: not in Spark: {str(error).splitlines()[0][:150]}")
            continue
        try:
            both = []
            for mode in ("TRANSACTIONAL", "COMPRESSED"):
                name = f"{shape}_{number}_{mode}"
                engine.execute(f"CREATE CONTINUOUS QUERY {name} COMPUTE {mode} DELTA ON DEMAND AS {text}")
                both.append(
                    Watched(engine, name, text, pair.fold, before.copy(), engine.catalog.newest_version)
                )
        except cq_engine.CQError as error:
            failed.append(f"{label}: {error}")
            continue
        watched.append(both)
    results: dict[str, dict[int, Counter[Any]]] = {both[0].text: {} for both in watched}
    for step in range(COMMITS):
        version = _change(engine, number, pair, chosen)
        for both in watched:
            results[both[0].text][version] = _rows(engine, both[0].text, pair.fold)
        if step % 2 == 0:
            continue
        for both in list(watched):
            known = results[both[0].text]
            try:
                both[0].check(known)
                both[1].check({version: known[version]})
            except (AssertionError, cq_engine.CQError) as error:
                failed.append(f"{both[0].name} of {pair.left} and {pair.right}: {error}\n  {both[0].text}")
                watched.remove(both)
    return failed


def _rows(engine: cq_engine.Engine, text: str, fold: bool) -> Counter[Any]:
    return Counter(canonical(tuple(row), fold) for row in engine.execute(text).fetchall())


def _change(engine: cq_engine.Engine, number: int, pair: Pair, chosen: random.Random) -> int:
    """A transaction that writes some rows of both tables, or of one; its version."""
    sides = [("a", pair.ours), ("b", pair.theirs)]
    with engine.transaction() as tx:
        for table, values in chosen.choice([sides, sides, sides[:1], sides[1:]]):
            ids = chosen.sample(range(1, 9), 4)
            tx.execute(f"DELETE FROM {table}{number} WHERE id IN ({', '.join(map(str, ids))})")
            rows = [(i, chosen.choice((*values, "NULL")), chosen.randint(0, 5)) for i in ids[:3]]
            shown = ", ".join(f"({i}, {v}, {n})" for i, v, n in rows)
            tx.execute(f"INSERT INTO {table}{number} VALUES {shown}")
    return engine.catalog.newest_version
