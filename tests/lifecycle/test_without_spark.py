"""A process that opens a warehouse refreshes what the driver evaluates itself without starting Spark, and everything else
under the settings of CREATE."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import cq_engine
from cq_engine.catalog.model import ContinuousQuery
from cq_engine.definition.answers import Answers

_PROCESS = """
import json, sys
import cq_engine
from pyspark import SparkContext

with cq_engine.connect(sys.argv[1], scheduler=False, conf={"spark.master": "local[1]", "spark.driver.memory": "1g"}) as engine:
    with engine.transaction() as tx:
        tx.insert("t", [(5, 2, -7), (6, 3, -1)])
    found = {}
    for query in sys.argv[2:]:
        after = engine.describe(query).position
        engine.refresh(query)
        found[query] = [[d.marker, d.new and list(map(str, d.new))] for d in engine.deltas(query, after_version=after)]
        found[query].append(SparkContext._active_spark_context is not None)
    print(json.dumps(found))
"""


def _in_a_process(warehouse: Path, *queries: str) -> dict[str, list[object]]:
    done = subprocess.run(
        [sys.executable, "-c", _PROCESS, str(warehouse), *queries],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[object]] = json.loads(done.stdout)
    return found


def test_a_refresh_does_without_spark_where_it_can(spark: SparkSession, warehouse: Path) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    with cq_engine.connect(warehouse, spark=session, scheduler=False) as engine:
        engine.execute("CREATE TABLE t (k INT PRIMARY KEY, g INT, n BIGINT)")
        engine.execute("INSERT INTO t VALUES (1, 1, 4), (2, 1, -5), (3, 2, 6)")
        engine.execute(
            "CREATE CONTINUOUS QUERY sums ON DEMAND AS SELECT g, sum(n) AS s FROM t GROUP BY g HAVING sum(n) < 0"
        )
        engine.execute(
            "CREATE CONTINUOUS QUERY days ON DEMAND AS"
            " SELECT k, CAST(timestamp_seconds(n * 3600) AS STRING) AS day FROM t"
        )
        query = engine.catalog.state.queries["sums"]
        assert query.analysed, "what Spark said is kept with the definition"
    found = _in_a_process(warehouse, "sums", "days")
    assert found["sums"] == [["I", ["2", "-1"]], ["I", ["3", "-1"]], False]
    assert found["days"] == [
        ["I", ["5", "1970-01-01 02:00:00"]],
        ["I", ["6", "1970-01-01 08:00:00"]],
        True,
    ], "Spark has started, and has the time zone of CREATE"


def test_an_answer_is_of_its_question() -> None:
    asked: list[str] = []

    def ask() -> str:
        asked.append("")
        return "int"

    answers = Answers()
    assert [answers.type(q, ask) for q in ("a = b", "a = b", "a = c")] == ["int"] * 3
    assert len(asked) == 2
    again = Answers(answers.given)
    assert again.type("a = c", ask) == "int"
    assert len(asked) == 2, "another process knows it"
    assert again.type("a = d", ask) == "int"
    assert len(asked) == 3
    assert ContinuousQuery.__dataclass_fields__["analysed"].default == ()
