"""Look-ups by keys of several columns: the rows with a wanted key, though many more have a wanted value in every column."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine.core.limits import Limits
from cq_engine.storage.reader import Reader

ROWS = 900
ROOM = 40
"""Rows that a look-up may give; those with a wanted value in every column are up to all."""


@pytest.mark.parametrize("candidates", [ROWS, ROOM], ids=["by the driver", "by Spark"])
def test_rows_with_wanted_keys(
    spark: SparkSession, warehouse: Path, candidates: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From files, from copies of their columns, and with changes since, which have keys that the files do not have."""
    asked: list[int] = []
    semi_join = Reader._semi_join

    def asking(self: Reader, *args: Any) -> pa.Table:
        asked.append(1)
        return semi_join(self, *args)

    monkeypatch.setattr(Reader, "_semi_join", asking)
    limits = Limits(small_rows=-1, look_up_rows=ROOM, look_up_candidates=candidates)
    rng = random.Random(3)
    with cq_engine.connect(
        warehouse, spark=spark, scheduler=False, conf={"maintenance": "manual"}, limits=limits
    ) as engine:
        engine.execute("CREATE TABLE t (a INT, b STRING, v INT, PRIMARY KEY (a, b))")
        engine.execute(
            f"INSERT INTO t SELECT CAST(id DIV 30 AS INT), concat('b', id % 30), CAST(id AS INT) FROM range({ROWS})"
        )
        engine.compact("t")
        engine.execute("DELETE FROM t WHERE a = 3 AND b < 'b2'")
        engine.execute("UPDATE t SET v = -v WHERE a = 4")
        engine.execute("INSERT INTO t VALUES (99, 'b1', 1), (3, 'b1', 2)")
        rows = {(a, b): v for a, b, v in engine.execute("SELECT a, b, v FROM t").fetchall()}
        table, version = engine.catalog.state.tables["t"].storage, engine.catalog.newest_version
        for step in range(6):
            if step == 3:
                engine.maintain()
            keys = [*rng.sample(sorted(rows), ROOM // 2), (3, "b1"), (3, "b2"), (98, "b1"), (99, "b7")]
            wanted = pa.table({"a": pa.array([a for a, _ in keys], pa.int32()), "b": [b for _, b in keys]})
            found = engine.reader.lookup(table, version, wanted).to_pylist()
            assert sorted((row["a"], row["b"], row["v"]) for row in found) == sorted(
                {(*key, rows[key]) for key in keys if key in rows}
            )
        copied = any(file.copies for file in engine.reader.look_ups.indexed._files.values())
    assert copied
    assert bool(asked) == (candidates == ROOM)


@pytest.mark.parametrize("candidates", [ROWS, ROOM], ids=["by the driver", "by Spark"])
def test_foreign_keys_of_several_columns(
    spark: SparkSession, warehouse: Path, candidates: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What commits refuse is the same, and the driver says so wherever it may choose from enough rows."""
    given_up: list[bool] = []
    restricted_image = Reader.restricted_image

    def asking(self: Reader, *args: Any, **named: Any) -> pa.Table | None:
        rows = restricted_image(self, *args, **named)
        given_up.append(rows is None)
        return rows

    monkeypatch.setattr(Reader, "restricted_image", asking)
    limits = Limits(small_rows=-1, look_up_rows=ROOM, look_up_candidates=candidates)
    with cq_engine.connect(
        warehouse, spark=spark, scheduler=False, conf={"maintenance": "manual"}, limits=limits
    ) as engine:
        engine.execute("CREATE TABLE t (a INT, b STRING, PRIMARY KEY (a, b))")
        engine.execute(
            "CREATE TABLE c (id INT PRIMARY KEY, a INT, b STRING, FOREIGN KEY (a, b) REFERENCES t (a, b) ENFORCED)"
        )
        engine.execute(
            f"INSERT INTO t SELECT CAST(id DIV 30 AS INT), concat('b', id % 30) FROM range({ROWS})"
        )
        engine.compact("t")
        children = [(n, n, f"b{n % 30}") for n in range(ROOM // 2)]
        columns = list(zip(*children))
        batch = {
            "op": ["I"] * len(children),
            "id": pa.array(columns[0], pa.int32()),
            "a": pa.array(columns[1], pa.int32()),
            "b": columns[2],
        }
        given_up.clear()
        with engine.transaction() as tx:
            tx.insert("c", children)
        with pytest.raises(cq_engine.ConstraintError, match="has no row in t"), engine.transaction() as tx:
            tx.insert("c", [(100, 3, "b3"), (101, 4, "b30"), (102, 7, "b4"), (103, 9, "b9")])
        with pytest.raises(cq_engine.ConstraintError, match="has no row in t"):
            engine.apply_changes(
                {"c": pa.table({**batch, "id": pa.array([200 + n for n in columns[0]]), "b": ["b31"] * 20})}
            )
        engine.apply_changes({"c": pa.table({**batch, "id": pa.array([300 + n for n in columns[0]])})})
        assert any(given_up) == (candidates == ROOM)
        with pytest.raises(cq_engine.ConstraintError, match="still refer"):
            engine.execute("DELETE FROM t WHERE a = 5 AND b = 'b5'")
        engine.execute("DELETE FROM t WHERE a = 5 AND b = 'b6'")
        assert engine.execute("SELECT count(*) FROM c").fetchall() == [(2 * len(children),)]
