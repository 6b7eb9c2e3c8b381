"""A refresh reads what its delta needs, whatever the size of the tables, and nothing of it twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine.core.limits import Limits
from cq_engine.refresh.key_values import contents

LIMITS = Limits(small_rows=0)
QUERIES = {
    "outer_join": "SELECT t.id, t.grp, u.id AS other FROM t LEFT JOIN u ON t.grp = u.grp",
    "anti_join": "SELECT id, grp FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.grp = t.grp)",
    "windowed": "SELECT id, sum(amt) OVER (PARTITION BY grp ORDER BY id) AS s FROM t",
    "top_n": "SELECT id, grp FROM t QUALIFY row_number() OVER (PARTITION BY grp ORDER BY amt, id) <= 2",
    "mark_join": "SELECT id FROM t WHERE amt > 50 OR EXISTS (SELECT 1 FROM u WHERE u.grp = t.grp)",
    "distinct_rows": "SELECT DISTINCT t.grp, u.amt FROM t JOIN u ON t.grp = u.grp",
    "difference": "SELECT grp, amt FROM t EXCEPT SELECT grp, amt FROM u",
    "greatest": "SELECT grp, max(amt) AS m FROM t GROUP BY grp",
}


def _reads(
    directory: Path, spark: SparkSession, groups: int, monkeypatch: pytest.MonkeyPatch
) -> dict[str, list[tuple[object, int]]]:
    """By query what was read from tables of `groups` groups with five rows each: table with restriction, and rows."""
    found: dict[str, list[tuple[object, int]]] = {}
    with cq_engine.connect(
        str(directory / "warehouse"), spark=spark, scheduler=False, limits=LIMITS
    ) as engine:
        for name in ("t", "u"):
            engine.execute(f"CREATE TABLE {name} (id INT PRIMARY KEY, grp INT, amt INT)")
            engine.execute(f"INSERT INTO {name} SELECT id, id DIV 5, id % 100 FROM range({5 * groups})")
            engine.compact(name)
        for name, text in QUERIES.items():
            engine.execute(f"CREATE CONTINUOUS QUERY {name} ON DEMAND AS {text}")
        engine.execute("UPDATE t SET amt = 7 WHERE id IN (11, 23)")
        engine.execute("DELETE FROM u WHERE grp = 3")
        base_arrow: Callable[..., Any] = engine.reader.base_arrow
        seen: list[tuple[object, int]] = []

        def noted(
            table: Any, layout: Any, restrict: dict[str, pa.Array], *more: Any, **named: Any
        ) -> pa.Table | None:
            rows = base_arrow(table, layout, restrict, *more, **named)
            seen.append(((table.name, contents(restrict)), -1 if rows is None else rows.num_rows))
            return rows

        monkeypatch.setattr(engine.reader, "base_arrow", noted)
        monkeypatch.setattr(engine.reader, "files", lambda *_: pytest.fail("a table is scanned"))
        for name in QUERIES:
            engine.refresh(name)
            found[name] = [*seen]
            seen.clear()
    return found


def test_a_refresh_reads_what_its_keys_need(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = _reads(tmp_path / "small", spark, 40, monkeypatch)
    large = _reads(tmp_path / "large", spark, 400, monkeypatch)
    assert large == small
    for name, reads in large.items():
        assert reads, name
        assert all(0 <= rows <= 20 for _, rows in reads), (name, reads)
        places = [place for place, _ in reads]
        assert len(places) == len(set(places)), f"{name} reads the same twice"


def test_columns_that_the_query_does_not_have_are_not_read(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cq_engine.connect(
        str(tmp_path / "warehouse"), spark=spark, scheduler=False, limits=LIMITS
    ) as engine:
        engine.execute("CREATE TABLE t (id INT PRIMARY KEY, grp INT, amt INT, note STRING)")
        engine.execute("CREATE TABLE u (id INT PRIMARY KEY, note STRING, grp INT, name STRING)")
        engine.execute("INSERT INTO u SELECT id, 'long', id, concat('u', id) FROM range(100)")
        engine.compact("u")
        engine.execute(
            "CREATE CONTINUOUS QUERY q ON DEMAND AS SELECT t.id, u.name FROM t JOIN u ON t.grp = u.grp"
        )
        engine.execute("INSERT INTO t VALUES (1, 5, 10, 'x')")
        base_arrow: Callable[..., Any] = engine.reader.base_arrow
        seen: list[pa.Table] = []
        monkeypatch.setattr(
            engine.reader, "base_arrow", lambda *a, **named: seen.append(base_arrow(*a, **named)) or seen[-1]
        )
        engine.refresh("q")
        (rows,) = seen
        assert rows.to_pylist() == [{"id": 5, "note": None, "grp": 5, "name": "u5"}]
        assert [(d.marker, d.new) for d in engine.deltas("q")] == [("I", (1, "u5"))]


def test_rows_that_a_condition_leaves_out_are_not_looked_up(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cq_engine.connect(
        str(tmp_path / "warehouse"), spark=spark, scheduler=False, limits=LIMITS
    ) as engine:
        engine.execute("CREATE TABLE customer (c INT PRIMARY KEY, region STRING)")
        engine.execute("CREATE TABLE orders (o INT PRIMARY KEY, c INT)")
        engine.execute("CREATE TABLE line (l INT PRIMARY KEY, o INT, item STRING)")
        engine.execute("INSERT INTO customer SELECT id, IF(id % 10 = 0, 'north', 'south') FROM range(100)")
        engine.execute("INSERT INTO orders SELECT id, id FROM range(100)")
        for table in ("customer", "orders"):
            engine.compact(table)
        engine.execute(
            "CREATE CONTINUOUS QUERY q ON DEMAND AS SELECT l, region FROM line JOIN orders ON line.o = orders.o "
            "JOIN customer ON orders.c = customer.c WHERE item IN ('shoes', 'hat') AND region = 'north'"
        )
        engine.execute(
            "INSERT INTO line SELECT id, id, IF(id < 50, 'shoes', 'tie') FROM range(100) WHERE id % 5 = 0"
        )
        base_arrow: Callable[..., Any] = engine.reader.base_arrow
        keys: dict[str, int] = {}

        def noted(table: Any, layout: Any, restrict: dict[str, pa.Array], *more: Any, **named: Any) -> Any:
            keys.update({f"{table.name}.{name}": len(values) for name, values in restrict.items()})
            return base_arrow(table, layout, restrict, *more, **named)

        monkeypatch.setattr(engine.reader, "base_arrow", noted)
        engine.refresh("q")
        assert keys == {"orders.o": 10, "customer.c": 10}
        assert sorted(d.new for d in engine.deltas("q")) == [(n, "north") for n in range(0, 50, 10)]
