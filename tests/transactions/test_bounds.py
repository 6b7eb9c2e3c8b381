"""Large statements and skewed keys: the driver takes no more rows than its limits say, and what is refused stays the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine.refresh.driver import Driver
from tests.limits import limit

FEW = {
    "pending_rows": 3,
    "small_rows": -1,
    "look_up_files": 0,
    "look_up_rows": 0,
    "change_rows": 0,
    "inline_bytes": 0,
}
"""Statements are written by executors, and tables are not looked into by the driver."""


@pytest.fixture
def engine(spark: SparkSession, warehouse: Path) -> Iterator[cq_engine.Engine]:
    with cq_engine.connect(warehouse, spark=spark, scheduler=False) as opened:
        opened.execute("CREATE TABLE p (k INT PRIMARY KEY, s STRING)")
        opened.execute(
            "CREATE TABLE c (id INT PRIMARY KEY, k INT, FOREIGN KEY (k) REFERENCES p (k) ENFORCED)"
        )
        opened.execute("INSERT INTO p SELECT id, 'a' FROM range(8)")
        opened.execute("INSERT INTO c SELECT id, id DIV 2 FROM range(8)")
        yield opened


@pytest.mark.parametrize("bounds", [{}, FEW], ids=["driver", "executors"])
def test_foreign_keys(engine: cq_engine.Engine, bounds: dict[str, Any]) -> None:
    limit(engine, **bounds)
    refused = {
        "INSERT INTO c SELECT 100 + id, id FROM range(9)": r"has no row in p for \(k = 8\)",
        "DELETE FROM p WHERE k < 6": "rows of c still refer to the row",
        "UPDATE p SET k = k + 100 WHERE k IN (3, 4, 5, 6, 7)": r"still refer to the row \(k = 3\)",
        "UPDATE c SET k = k + 10 WHERE id < 4": "has no row in p",
        "INSERT OVERWRITE p SELECT id + 1, 'b' FROM range(5)": r"still refer to the row \(k = 0\)",
    }
    for text, message in refused.items():
        with pytest.raises(cq_engine.ConstraintError, match=message):
            engine.execute(text)
    engine.execute("INSERT INTO c SELECT 100 + id, IF(id = 3, NULL, id) FROM range(8)")
    engine.execute("DELETE FROM c WHERE id >= 4")
    engine.execute("DELETE FROM p WHERE k >= 2")
    with engine.transaction() as transaction:
        transaction.execute("INSERT INTO c SELECT 200 + id, 20 + id FROM range(5)")
        transaction.execute("INSERT INTO p SELECT 20 + id, 'b' FROM range(5)")
    with engine.transaction() as transaction:
        transaction.execute("DELETE FROM p WHERE k >= 20")
        transaction.execute("DELETE FROM c WHERE k >= 20")
    assert engine.execute("SELECT k FROM c ORDER BY id").fetchall() == [(0,), (0,), (1,), (1,)]
    assert engine.execute("SELECT k FROM p ORDER BY k").fetchall() == [(0,), (1,)]


@pytest.mark.parametrize("bounds", [{}, FEW], ids=["driver", "executors"])
def test_a_batch_against_a_skewed_key(engine: cq_engine.Engine, bounds: dict[str, Any]) -> None:
    """A parent goes away and comes back within a batch: one of its rows that the batch leaves alone is enough."""
    engine.execute("INSERT INTO c SELECT 1000 + id, 7 FROM range(50)")
    limit(engine, **bounds)
    away = [("D", 7, None, 1), ("I", 7, "b", 2)]
    moved = [("U", 1000 + n, 6, 0) for n in range(49)]
    with pytest.raises(cq_engine.ConstraintError, match=r"does not hold at every commit.*|for a while"):
        _apply(engine, {"p": away, "c": moved})
    with pytest.raises(cq_engine.ConstraintError, match=r"does not hold at every commit.*|for a while"):
        _apply(engine, {"c": [("I", 1, 9, 0), ("D", 1, None, 1)]}, first=3000)
    before = engine.catalog.newest_version
    _apply(engine, {"p": away, "c": [*moved, ("U", 1049, 6, 0)]})
    _apply(engine, {"c": [("I", 1, 7, 0), ("D", 1, None, 1)]}, first=3000)
    assert engine.catalog.newest_version == before + 5
    assert engine.execute("SELECT count(*) FROM c WHERE k = 6").fetchall() == [(50,)]


def _apply(engine: cq_engine.Engine, rows: dict[str, list[tuple[Any, ...]]], *, first: int = 0) -> None:
    second = {"p": ("s", pa.string()), "c": ("k", pa.int32())}
    tables = {
        name: pa.table(
            {
                "op": pa.array([row[0] for row in each]),
                ("k" if name == "p" else "id"): pa.array([first + row[1] for row in each], pa.int32()),
                second[name][0]: pa.array([row[2] for row in each], second[name][1]),
                "txn": pa.array([row[3] for row in each], pa.int32()),
            }
        )
        for name, each in rows.items()
    }
    engine.apply_changes(tables, op="op", transaction="txn")


def test_more_changes_than_apply_changes_takes(engine: cq_engine.Engine) -> None:
    limit(engine, apply_rows=3)
    changes = pa.table({"op": ["I"] * 4, "k": pa.array(range(10, 14), pa.int32()), "s": ["a"] * 4})
    given = (changes, engine.spark.createDataFrame(changes))
    for each in given:
        with pytest.raises(cq_engine.AnalysisError, match="more than 3 changes of p") as caught:
            engine.apply_changes({"p": each})
        assert "in parts" in caught.value.hint
    assert engine.execute("SELECT count(*) FROM p").fetchall() == [(8,)]
    engine.apply_changes({"p": changes.slice(1)})


@pytest.mark.parametrize("options", ["", "WITH (refresh = 'full')"], ids=["delta", "full"])
def test_a_join_that_explodes(
    engine: cq_engine.Engine, monkeypatch: pytest.MonkeyPatch, options: str
) -> None:
    """One key on both sides: 40 000 rows of a delta of 200 rows never come to the driver."""
    taken: list[int] = []
    check = Driver._check_size

    def counted(self: Driver, rows: pa.Table) -> pa.Table:
        taken.append(rows.num_rows)
        return check(self, rows)

    monkeypatch.setattr(Driver, "_check_size", counted)
    for name in ("l", "r"):
        engine.execute(f"CREATE TABLE {name} (id INT PRIMARY KEY, k INT)")
        engine.execute(f"INSERT INTO {name} SELECT id, 1 FROM range(200)")
    text = "SELECT l.id AS a, r.id AS b FROM l JOIN r ON l.k = r.k WHERE l.id >= 200"
    engine.execute(f"CREATE CONTINUOUS QUERY q ON DEMAND {options} AS {text}")
    engine.execute("INSERT INTO l SELECT 200 + id, 1 FROM range(200)")
    limit(engine, refresh_rows=500)
    assert engine.refresh("q").inserted == 40_000
    assert 0 < max(taken) <= 501
    assert engine.execute("SELECT count(*) FROM q CHANGES FROM VERSION 1").fetchall() == [(40_000,)]
