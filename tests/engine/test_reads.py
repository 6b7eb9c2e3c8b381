"""A refresh reads what its delta needs, whatever the size of the tables, and nothing of it twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine.runtime.key_values import contents

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
    monkeypatch.setattr("cq_engine.runtime.reader.SMALL_ROWS", 0)
    found: dict[str, list[tuple[object, int]]] = {}
    with cq_engine.connect(str(directory / "warehouse"), spark=spark, scheduler=False) as engine:
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

        def noted(table: Any, layout: Any, restrict: dict[str, pa.Array]) -> pa.Table | None:
            rows = base_arrow(table, layout, restrict)
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
