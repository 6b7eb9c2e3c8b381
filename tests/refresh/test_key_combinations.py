"""Keys of several columns: a refresh reads the rows whose values together are a key of its delta, and no delta changes by that."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine.core.columns import Column
from cq_engine.core.limits import Limits
from cq_engine.refresh import key_combinations
from cq_engine.refresh.key_combinations import KeyCombinations
from tests.limits import many_rows

LIMITS = Limits(
    small_rows=0, relevant_rows=0, key_combinations=0, compact_rows=0, compact_long_rows=0, compact_share=1000
)
"""No image in memory; each `maintain` merges what has changed."""
COLUMNS = {"t": ("id", "a", "b", "v"), "u": ("id", "a", "b", "v"), "p": ("a", "b", "v")}
QUERIES = {
    "grouped": "SELECT a, b, sum(v) AS s, count(*) AS n FROM t GROUP BY a, b",
    "greatest": "SELECT b, a, max(v) AS m FROM t GROUP BY b, a",
    "distinct_keys": "SELECT DISTINCT a, b FROM t",
    "joined": "SELECT t.id, u.v FROM t JOIN u ON t.a = u.a AND t.b = u.b",
    "by_key": "SELECT t.id, p.v FROM t JOIN p ON t.a = p.a AND t.b = p.b",
    "null_safe": "SELECT t.id, u.v FROM t JOIN u ON t.a IS NOT DISTINCT FROM u.a AND t.b IS NOT DISTINCT FROM u.b",
    "outer_join": "SELECT t.id, u.v FROM t LEFT JOIN u ON t.a = u.a AND t.b = u.b",
    "full_join": "SELECT t.id, u.id AS other FROM t FULL JOIN u ON t.a = u.a AND t.b = u.b",
    "anti": "SELECT id FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.a = t.a AND u.b = t.b)",
    "ranked": "SELECT id, row_number() OVER (PARTITION BY a, b ORDER BY v, id) AS r FROM t",
    "crossed": "SELECT x.id, y.id AS other FROM t x JOIN t y ON x.a = y.b AND x.b = y.a",
    "of_two": "SELECT x.id, y.v FROM t x JOIN u w ON x.a = w.a JOIN u y ON y.a = x.b AND y.b = w.b",
    "chain": "SELECT t.id, p.v FROM t JOIN u ON t.v = u.v JOIN p ON p.a = u.a AND p.b = u.b",
    "of_union": "SELECT p, q, count(*) AS n FROM (SELECT a AS p, b AS q FROM t UNION ALL SELECT b, a FROM u) GROUP BY p, q",
    "of_join": "SELECT t.a, u.b, count(*) AS n FROM t JOIN u ON t.v = u.v GROUP BY t.a, u.b",
    "by_joined_keys": "SELECT u.a, u.b, count(*) AS n FROM t JOIN u ON t.a = u.a AND t.b = u.b GROUP BY u.a, u.b",
    "padded": "SELECT u.a, u.b, count(*) AS n FROM t LEFT JOIN u ON t.v = u.v GROUP BY u.a, u.b",
}
Rows = dict[Any, tuple[Any, ...]]


@pytest.fixture(autouse=True)
def beside() -> Iterator[None]:
    """Whatever can be done beside other work is."""
    with many_rows(0):
        yield


class History:
    """Three tables, as they are here, and what their commits change."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.rows: dict[str, Rows] = {name: {} for name in COLUMNS}

    def change(self, count: int) -> dict[str, pa.Table]:
        """Some rows of each table, given or taken; at once done here."""
        found = {}
        for name, rows in self.rows.items():
            taken = self.chance.sample(sorted(rows), min(len(rows), count // 3))
            given = {self._key(name): self.chance.randint(0, 5) for _ in range(count)}
            deleted = [rows.pop(key) for key in taken if key not in given]
            new = [self._row(name, key, v) for key, v in given.items()]
            rows.update(zip(given, new))
            both = [("D", *row) for row in deleted] + [("S", *row) for row in new]
            columns = [pa.array(c, pa.string() if n == 0 else pa.int32()) for n, c in enumerate(zip(*both))]
            found[name] = pa.table(columns, ["op", *COLUMNS[name]])
        return found

    def _value(self) -> int:
        return self.chance.randrange(6)

    def _key(self, name: str) -> Any:
        return (self._value(), self._value()) if name == "p" else self.chance.randrange(90)

    def _row(self, name: str, key: Any, v: int) -> tuple[Any, ...]:
        if name == "p":
            return (*key, v)
        a, b = (None if self.chance.random() < 0.1 else self._value() for _ in range(2))
        return key, a, b, v

    def result(self, text: str) -> Counter[Any]:
        """The query's rows by DuckDB."""
        with duckdb.connect() as db:
            for name, rows in self.rows.items():
                columns = [pa.array(c, pa.int32()) for c in zip(*rows.values())]
                db.register(name, pa.table(columns, list(COLUMNS[name])))
            return Counter(db.execute(text).fetchall())


def _run(warehouse: Path, spark: SparkSession, mode: str, seed: int) -> None:
    """Checks the law after every few commits; the tables lie in files, with a log behind them."""
    history = History(seed)
    with cq_engine.connect(
        warehouse, spark=spark, scheduler=False, conf={"maintenance": "manual"}, limits=LIMITS
    ) as engine:
        for name in ("t", "u"):
            engine.execute(f"CREATE TABLE {name} (id INT PRIMARY KEY, a INT, b INT, v INT)")
        engine.execute("CREATE TABLE p (a INT, b INT, v INT, PRIMARY KEY (a, b))")
        engine.apply_changes(history.change(60), op="op")
        for name, text in QUERIES.items():
            spelled = text.replace("IS NOT DISTINCT FROM", "<=>")
            engine.execute(f"CREATE CONTINUOUS QUERY {name} COMPUTE {mode} DELTA ON DEMAND AS {spelled}")
        engine.maintain()
        held = {name: history.result(text) for name, text in QUERIES.items()}
        seen = dict.fromkeys(QUERIES, engine.catalog.newest_version)
        for step in range(4):
            if step % 2:
                engine.maintain()
            for _ in range(step % 2 + 1):
                engine.apply_changes(history.change(5), op="op")
            for name, text in QUERIES.items():
                engine.refresh(name)
                for delta in engine.deltas(name, seen[name]):
                    for row, sign in ((delta.new, 1), (delta.old, -1)):
                        held[name][row] += 0 if row is None else sign
                    seen[name] = delta.commit_version
                found = Counter({row: count for row, count in held[name].items() if count})
                assert found == history.result(text), (name, step)


@pytest.mark.parametrize("mode", ["TRANSACTIONAL", "COMPRESSED"])
def test_deltas_are_those_of_all_rows(spark: SparkSession, warehouse: Path, mode: str) -> None:
    _run(warehouse, spark, mode, seed=1)


def test_rows_that_are_chosen_wrongly_are_noticed(
    spark: SparkSession, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns that come from different inputs are taken for columns of one row."""
    row_lineages = key_combinations.row_lineages

    def wrong(node: Any, names: Any) -> Any:
        ways = row_lineages(node, names)
        return [[(below, tuple(reversed(columns))) for below, columns in way] for way in ways]

    monkeypatch.setattr(key_combinations, "row_lineages", wrong)
    with pytest.raises(AssertionError):
        _run(warehouse, spark, "TRANSACTIONAL", seed=1)


def test_a_refresh_reads_rows_with_its_keys(
    spark: SparkSession, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 1 600 keys, 40 change, whose single values are those of all rows."""
    names = ("grouped", "joined", "by_key", "outer_join", "anti", "chain")
    with cq_engine.connect(
        warehouse, spark=spark, scheduler=False, conf={"maintenance": "manual"}, limits=LIMITS
    ) as engine:
        engine.execute("CREATE TABLE p (a INT, b INT, v INT, PRIMARY KEY (a, b))")
        engine.execute("INSERT INTO p SELECT id DIV 40, id % 40, id FROM range(1600)")
        for table in ("t", "u"):
            engine.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, a INT, b INT, v INT)")
            engine.execute(f"INSERT INTO {table} SELECT id, id DIV 40, id % 40, id FROM range(1600)")
        for name in names:
            engine.execute(f"CREATE CONTINUOUS QUERY {name} ON DEMAND AS {QUERIES[name]}")
        engine.maintain()
        engine.execute("UPDATE t SET v = v + 2000 WHERE a = b")
        base_arrow, read = engine.reader.base_arrow, []

        def counting(*given: Any, **named: Any) -> pa.Table | None:
            rows = base_arrow(*given, **named)
            read.append(-1 if rows is None else rows.num_rows)
            return rows

        monkeypatch.setattr(engine.reader, "base_arrow", counting)
        for name in names:
            engine.refresh(name)
            assert read, name
            assert set(read) == {40}, name
            read.clear()


def test_one_column_is_not_several() -> None:
    found = KeyCombinations((), lambda: pa.table({"a": [1]}), [Column("a", "int")])
    assert found.choose is None
