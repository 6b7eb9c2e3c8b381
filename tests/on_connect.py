"""What `tests/api/test_connect.py` runs in a process of its own, whose Spark is a client of Spark Connect.

    python -m tests.on_connect URL DIRECTORY [whole]

It writes a JSON line. What it does not do but with `whole` is the statements through executors, too, and more than one random history.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine.core.limits import Limits
from cq_engine.launch.session import spark_session
from tests.limits import EXECUTORS
from tests.on_cluster import histories, note
from tests.oracle.warehouse import Tally, check_history

QUERY = "SELECT name, count(*) AS n, max(s) AS m FROM t JOIN names ON t.g = names.g GROUP BY name"


def in_spark(spark: SparkSession, place: Path, count: int) -> list[int]:
    """The rows of q's deltas that a batch and a stream of the format `cq` have, of which there are `count`."""
    options = {"warehouse": str(place / "w"), "query": "q"}
    batch = spark.read.format("cq").options(**options).load()
    sink = spark.readStream.format("cq").options(**options).load().writeStream.format("parquet")
    sink = sink.option("checkpointLocation", str(place / "checkpoint")).trigger(availableNow=True)
    sink.start(str(place / "copy")).awaitTermination()
    copied = spark.read.parquet(str(place / "copy"))
    assert batch.exceptAll(copied).count() == 0
    return [batch.count() - count, copied.count() - count]


def story(spark: SparkSession, place: Path, limits: Limits) -> dict[str, Any]:
    """Statements of every kind; the results are compared with those of plain queries."""
    found: dict[str, Any] = {}
    conf = {"maintenance": "manual"}
    with cq_engine.connect(place / "w", spark=spark, scheduler=False, conf=conf, limits=limits) as engine:
        engine.execute("CREATE TABLE t (id INT PRIMARY KEY, g INT, s STRING)")
        engine.execute("CREATE TABLE names (g INT PRIMARY KEY, name STRING)")
        engine.execute("CREATE TABLE plain (a INT, d DATE, v VARIANT)")
        engine.execute("INSERT INTO names SELECT CAST(id AS INT), concat('g', id) FROM range(7)")
        engine.execute(
            "INSERT INTO plain SELECT CAST(id AS INT), DATE '2024-01-01', parse_json('[1]') FROM range(5)"
        )
        options = {"q": "", "again": "WITH (refresh = 'full')", "packed": ""}
        for name, more in options.items():
            mode = "COMPUTE COMPRESSED DELTA" if name == "packed" else ""
            engine.execute(f"CREATE CONTINUOUS QUERY {name} {mode} ON DEMAND {more} AS {QUERY}")
        rows = pa.table({"id": pa.array(range(400), pa.int32()), "g": pa.array([n % 7 for n in range(400)], pa.int32()),
                         "s": [f"text {n}" for n in range(400)]})  # fmt: skip
        pq.write_table(rows, place / "t.parquet")
        engine.execute(f"COPY INTO t FROM '{place}/t.parquet'")
        engine.refresh("q")
        engine.execute("UPDATE t SET g = (g + 1) % 7 WHERE id % 3 = 0")
        engine.execute("DELETE FROM t WHERE id % 5 = 0")
        engine.execute("MERGE INTO t USING (SELECT 5 AS id, 2 AS g, 'merged' AS s) n ON t.id = n.id "
                       "WHEN NOT MATCHED THEN INSERT *")  # fmt: skip
        engine.apply_changes({"t": pa.table({
            "op": ["S"] * 9, "id": pa.array(range(9), pa.int32()), "g": pa.array([3] * 9, pa.int32()), "s": ["up"] * 9,
            "n": [n // 3 for n in range(9)]})}, transaction="n")  # fmt: skip
        for name in options:
            engine.refresh(name)
            kept = engine.execute(f"SELECT * FROM {name} ORDER BY name").fetchall()
            assert kept == engine.execute(f"{QUERY} ORDER BY name").fetchall(), name
        engine.execute("COMPACT TABLE t")
        found["rows"] = engine.execute("SELECT count(*) FROM t").fetchall()[0][0]
        assert engine.execute("SELECT count(*) FROM t VERSION AS OF 3").fetchall() == [(400,)]
        assert len(engine.execute("SELECT * FROM plain").fetchall()) == 5
        assert len(list(engine.deltas("q"))) > 7
        for text in (
            """SELECT '{"a": {"b": 1}}' RLIKE 'b":{0,1}'""",
            "SELECT count(*) = 2 FROM names WHERE name RLIKE '^g[12]{1}$'",
        ):
            assert engine.execute(text).fetchall() == [(True,)], text
        assert engine.execute(f"EXPLAIN {QUERY}").fetchall()
        assert engine.execute("EXPLAIN ANALYZE CONTINUOUS QUERY q").fetchall()
        late = "CREATE CONTINUOUS QUERY late ON DEMAND START FROM SNAPSHOT AS SELECT g, name FROM names WHERE g > 1"
        engine.execute(late)
        assert len(list(engine.deltas("late"))) == 5
        found["read"] = in_spark(
            spark, place, sum((d.old is not None) + (d.new is not None) for d in engine.deltas("q"))
        )
        with pytest.raises(cq_engine.CQError, match="Division by zero"):
            engine.execute("SELECT 1 / (id - 5) FROM t").fetchall()
        with pytest.raises(cq_engine.AnalysisError, match="nonsense"):
            engine.execute("SELECT nonsense FROM t")
        found["publish"] = engine.publish()
    return found


def interrupted(spark: SparkSession, place: Path) -> float:
    """Seconds until a statement that would take long has been stopped; the next one runs."""
    with cq_engine.connect(place / "i", spark=spark, scheduler=False) as engine:
        failed: list[BaseException] = []
        done: list[Any] = []

        def run(text: str) -> None:
            try:
                done.append(engine.execute(text).fetchall())
            except cq_engine.CQError as error:
                failed.append(error)

        slow = "SELECT count(*) FROM range({}) a CROSS JOIN range(100000) b WHERE hash(a.id, b.id) = 7"
        long = threading.Thread(target=run, args=(slow.format(10_000_000),))
        long.start()
        time.sleep(3)
        begun = time.monotonic()
        engine.interrupt()
        long.join(60)
        seconds = time.monotonic() - begun
        assert not long.is_alive()
        assert len(failed) == 1
        assert engine.execute("SELECT 1").fetchall() == [(1,)]
        return seconds


def main(url: str, directory: str, whole: str = "") -> None:
    place = Path(directory)
    spark = spark_session({"spark.remote": url})
    ways: dict[str, dict[str, Any]] = {"driver": {"arrow_rows": -1}}
    if whole:
        ways["executors"] = {**EXECUTORS, "pending_rows": 0, "apply_rows": 8}
    found: dict[str, Any] = {}
    for name, limits in ways.items():
        note(name)
        (place / name).mkdir()
        found[name] = story(spark, place / name, Limits(**limits))
    tally = Tally()
    for number, history in enumerate(histories(4 if whole else 1)):
        note(f"history {number}")
        check_history(history, spark, place / f"history{number}", tally, paths=EXECUTORS)
    found["refreshes"] = tally.refreshes
    note("interrupt")
    found["interrupted"] = interrupted(spark, place)
    note("done")
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
