"""What executors computed and is few goes to the driver, but where Spark says that it is too much."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import cq_engine
from cq_engine.core.limits import Limits
from cq_engine.refresh import cluster, executors
from cq_engine.refresh.binding import IntervalBinder
from cq_engine.refresh.cluster import Cluster
from tests.limits import forced

QUERY = "SELECT n, count(*) AS m FROM (SELECT k, count(*) AS n FROM t GROUP BY k) x GROUP BY n"


@pytest.mark.parametrize("wide", [False, True])
def test_rows_that_are_too_wide_stay_with_executors(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, wide: bool
) -> None:
    bound = []

    def to_arrow(frame: Any) -> pa.Table:
        if wide and "_change_type" not in frame.columns:
            raise PySparkException(
                "Total size of serialized results is bigger than spark.driver.maxResultSize"
            )
        return right(frame)

    right, rows, frame = executors.to_arrow, IntervalBinder.bind_rows, IntervalBinder.bind_frame
    monkeypatch.setattr(executors, "to_arrow", to_arrow)
    monkeypatch.setattr(IntervalBinder, "bind_rows", lambda *given: (bound.append("rows"), rows(*given))[1])
    monkeypatch.setattr(
        IntervalBinder, "bind_frame", lambda *given: (bound.append("frame"), frame(*given))[1]
    )
    limits = Limits(**{**forced(bulk=True, large=True), "log_rows": 1000})
    with cq_engine.connect(tmp_path / "w", spark=spark, scheduler=False, limits=limits) as engine:
        engine.execute("CREATE TABLE t (id INT PRIMARY KEY, k INT)")
        engine.execute("INSERT INTO t SELECT id, id % 7 FROM range(50)")
        engine.execute(f"CREATE CONTINUOUS QUERY q PRIMARY KEY (n) ON DEMAND START FROM SNAPSHOT AS {QUERY}")
        bound.clear()
        engine.execute("INSERT INTO t SELECT id, id % 11 FROM range(50, 90)")
        engine.execute("DELETE FROM t WHERE k = 3")
        engine.refresh("q")
        assert bound[0] == ("frame" if wide else "rows")
        result = engine.execute("SELECT * FROM q").fetchall()
        assert sorted(map(tuple, result)) == sorted(map(tuple, engine.execute(QUERY).fetchall()))


def test_a_statement_has_not_the_plans_of_those_before_it(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans, written = [], []
    run, write = Cluster.run, cluster.write_files

    def planned(executor: Cluster, statement: Any) -> Any:
        rows = run(executor, statement)
        plans.append(rows._jdf.queryExecution().analyzed().toString().count("Aggregate"))
        return rows

    def noted(*given: Any, **named: Any) -> Any:
        files = write(*given, **named)
        written.extend(file for file in files if "block_" in file.path)
        return files

    monkeypatch.setattr(Cluster, "run", planned)
    monkeypatch.setattr(cluster, "write_files", noted)
    query = "SELECT t.id AS k, count(*) AS n FROM t GROUP BY t.id"
    for level in range(4):
        query = f"SELECT n % {9 - level} AS k, sum(n) AS n FROM ({query}) x{level} GROUP BY n % {9 - level}"
    limits = Limits(**forced(bulk=True, large=True))
    with cq_engine.connect(tmp_path / "w", spark=spark, scheduler=False, limits=limits) as engine:
        engine.execute("CREATE TABLE t (id INT PRIMARY KEY, k INT)")
        engine.execute("INSERT INTO t SELECT id, id % 7 FROM range(50)")
        engine.execute(f"CREATE CONTINUOUS QUERY q ON DEMAND START FROM SNAPSHOT AS {query}")
        plans.clear()
        engine.execute("INSERT INTO t SELECT id, id % 11 FROM range(50, 90)")
        engine.refresh("q")
        assert plans == [1] * 6, "five stages and the delta, each with its own aggregate"
        result = engine.execute("SELECT * FROM q").fetchall()
        assert sorted(map(tuple, result)) == sorted(map(tuple, engine.execute(query).fetchall()))
        assert written
        assert not any((tmp_path / "w" / file.path).exists() for file in written)


def test_a_first_result_that_is_few_and_too_wide_is_written_by_executors(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def to_arrow(frame: Any) -> pa.Table:
        raise PySparkException("Total size of serialized results is bigger than spark.driver.maxResultSize")

    limits = Limits(**{**forced(bulk=True, large=True), "start_rows": 1000})
    with cq_engine.connect(tmp_path / "w", spark=spark, scheduler=False, limits=limits) as engine:
        engine.execute("CREATE TABLE t (id INT PRIMARY KEY, k INT)")
        engine.execute("INSERT INTO t SELECT id, id % 7 FROM range(2000)")
        monkeypatch.setattr(executors, "to_arrow", to_arrow)
        engine.execute(
            "CREATE CONTINUOUS QUERY q ON DEMAND START FROM SNAPSHOT AS SELECT id, k FROM t WHERE id < 50"
        )
        monkeypatch.undo()
        assert sorted(map(tuple, engine.execute("SELECT * FROM q").fetchall())) == [
            (n, n % 7) for n in range(50)
        ]
        assert sorted(delta.key for delta in engine.deltas("q")) == [(n,) for n in range(50)]
