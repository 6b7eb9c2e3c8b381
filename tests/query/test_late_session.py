"""Statements that are the first to need Spark in their process: whatever they make of it, they ask for the session first."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

import cq_engine

FIRST = (
    "SELECT * FROM q CHANGES FROM VERSION 1",
    "SELECT count(*) FROM t CHANGES FROM VERSION 1 TO VERSION 2",
    "SELECT * FROM t VERSION AS OF 1 WHERE id < 3",
    "SELECT t.id, q.s FROM t JOIN q ON t.g = q.g",
    "EXPLAIN SELECT * FROM q CHANGES FROM VERSION 1",
    "UPDATE t SET v = v + 1 WHERE id = 3",
    "DELETE FROM t WHERE id = 4",
    "INSERT INTO t SELECT id + 100, g, v FROM t WHERE id = 5",
    "MERGE INTO t USING (SELECT 6 AS id, 9 AS v) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET v = s.v",
    "CREATE CONTINUOUS QUERY late ON DEMAND START FROM SNAPSHOT AS SELECT g, max(v) AS m FROM t GROUP BY g",
    "REFRESH CONTINUOUS QUERY q",
    "COMPACT TABLE t",
)


def test_the_session_comes_first(
    warehouse: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PySpark's functions of columns need a context that runs: with none until the engine has asked for its session."""
    active = SparkContext._active_spark_context
    right = cq_engine.Engine.spark.fget
    with cq_engine.connect(warehouse, spark=spark, scheduler=False) as engine:
        engine.execute("CREATE TABLE t (id INT PRIMARY KEY, g INT, v INT)")
        engine.execute("INSERT INTO t SELECT id, id % 3, id FROM range(20)")
        engine.execute("CREATE CONTINUOUS QUERY q ON DEMAND AS SELECT g, sum(v) AS s FROM t GROUP BY g")
        for number, statement in enumerate(FIRST):
            engine.execute(f"INSERT INTO t VALUES ({1000 + number}, 1, 1)")
            engine.refresh("q")
            with monkeypatch.context() as patched:

                def session(mine: cq_engine.Engine) -> SparkSession:
                    SparkContext._active_spark_context = active
                    return right(mine)

                patched.setattr(SparkContext, "_active_spark_context", None)
                patched.setattr(cq_engine.Engine, "spark", property(session))
                engine.execute(statement).fetchall()
            assert SparkContext._active_spark_context is active
