"""Merges that executors write: every image stays what it was, and so are the files that need no change."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine.core.limits import Limits
from cq_engine.maintenance import compaction


@pytest.mark.parametrize(
    ("seed", "cluster"),
    [
        (1, " CLUSTER BY (g)"),
        *(
            pytest.param(seed, by, marks=pytest.mark.long)
            for seed, by in [(0, ""), (1, ""), (0, " CLUSTER BY (g)")]
        ),
    ],
)
def test_random_changes(
    warehouse: Path, spark: SparkSession, seed: int, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("the driver has written it")

    monkeypatch.setattr(compaction, "write_merge", never)
    rng = random.Random(seed)
    limits = Limits(small_rows=0, merge_driver_rows=-1, snapshot_file_rows=20, inline_bytes=0, pending_rows=0)
    conf = {"maintenance": "manual"}
    kept = 0
    with cq_engine.connect(warehouse, spark=spark, scheduler=False, conf=conf, limits=limits) as engine:
        engine.execute(f"CREATE TABLE t (a INT, b STRING, g INT, PRIMARY KEY (a, b)){cluster}")
        table = engine.catalog.state.tables["t"].storage
        images: dict[int, list[tuple[object, ...]]] = {}
        for step in range(4):
            first = 100 * step
            engine.execute(f"INSERT INTO t SELECT CAST(id AS INT), concat('b', id % 3), CAST(id % 50 AS INT) "
                           f"FROM range({first}, {first + 60})")  # fmt: skip
            if step:
                low = rng.randrange(first)
                engine.execute(f"UPDATE t SET g = g + 100 WHERE a BETWEEN {low} AND {low + 9}")
                engine.execute(f"DELETE FROM t WHERE a BETWEEN {low + 5} AND {low + 12}")
            version = engine.catalog.newest_version
            images[version] = engine.execute("SELECT * FROM t ORDER BY a, b").fetchall()
            before = {file.path for file in engine.catalog.layout(table.id, version).snapshot}
            if rng.random() >= 0.7:
                continue
            engine.compactor.merge(table, rng.choice([version, max(version - 1, 1)]))
            after = {file.path for file in engine.catalog.layout(table.id, version).snapshot}
            kept += len(before & after)
            for at, image in list(images.items())[-3:]:
                found = engine.execute(f"SELECT * FROM t VERSION AS OF {at} ORDER BY a, b").fetchall()
                assert found == image
        engine.compactor.merge(table)
        for at, image in images.items():
            assert engine.execute(f"SELECT * FROM t VERSION AS OF {at} ORDER BY a, b").fetchall() == image
    assert kept > 0


def test_more_files_of_changes_than_the_driver_reads(
    warehouse: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "write_merge", lambda *_: pytest.fail("the driver has written it"))
    limits = Limits(small_rows=0, inline_bytes=-1, kept_change_bytes=0, merge_files=2)
    with cq_engine.connect(
        warehouse, spark=spark, scheduler=False, conf={"maintenance": "manual"}, limits=limits
    ) as engine:
        engine.execute("CREATE TABLE t (a INT PRIMARY KEY, g INT)")
        engine.execute("INSERT INTO t SELECT CAST(id AS INT), 0 FROM range(40)")
        engine.execute("COMPACT TABLE t")
        for number in range(3):
            engine.execute(f"UPDATE t SET g = g + 1 WHERE a % 3 = {number}")
        expected = engine.execute("SELECT * FROM t ORDER BY a").fetchall()
        engine.compactor.merge(engine.catalog.state.tables["t"].storage)
        layout = engine.catalog.layout(
            engine.catalog.state.tables["t"].storage.id, engine.catalog.newest_version
        )
        assert not layout.changes
        assert (
            engine.execute("SELECT * FROM t ORDER BY a").fetchall() == expected == [(n, 1) for n in range(40)]
        )
