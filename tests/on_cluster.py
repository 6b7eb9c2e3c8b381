"""What `tests/api/test_cluster.py` runs on a standalone cluster, in a process of its own: driver, bucket and database are
all that it shares with the workers.

    python -m tests.on_cluster MASTER PORT-OF-THE-STORE POSTGRESQL-URL FILES [HISTORIES]
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from hypothesis import given
from pyspark.sql import SparkSession

import cq_engine
from cq_engine.core.limits import Limits
from cq_engine.launch.session import spark_session
from tests import postgres
from tests.cluster import DRIVER
from tests.limits import EXECUTORS
from tests.maintenance.oracle import check_law
from tests.object_store import ObjectStoreServer
from tests.oracle.budget import budget
from tests.oracle.generate import History, core_histories
from tests.oracle.recorded import Recorded, record
from tests.oracle.warehouse import Tally, check_history


def histories(count: int) -> list[Recorded]:
    """Random histories, the longest ones of some; by `CQ_ORACLE_SEED` others."""
    found: list[Recorded] = []

    @budget("CQ_CLUSTER_HISTORIES", 4 * count)
    @given(history=core_histories(queries=1, transactions=(2, 2)))
    def draw(history: History) -> None:
        found.append(record(history))

    draw()
    return sorted(found, key=lambda each: -sum(map(len, each.transactions)))[:count]


def note(text: str) -> None:
    """How far it is, for whoever reads why it failed."""
    sys.stderr.write(f"{time.strftime('%T')} {text}\n")


def executors(spark: SparkSession) -> int:
    """In how many Python processes' directories tasks run: each executor has its own."""

    def where(_: object) -> object:
        import os

        import pyarrow as pa

        time.sleep(0.3)
        yield pa.record_batch([pa.array([os.environ.get("TMPDIR", "")])], names=["place"])

    found = spark.range(0, 8, 1, 8).mapInArrow(where, "place STRING").toArrow()
    return len(set(found.column("place").to_pylist()))


def copied(engine: cq_engine.Engine, files: str) -> None:
    """COPY, and a catch-up with what was changed since, by executors: the delta law at every commit."""
    engine.execute("CREATE TABLE t (id INT PRIMARY KEY, g INT, s STRING)")
    engine.execute(
        "CREATE CONTINUOUS QUERY q ON DEMAND AS SELECT g, count(*) AS n, max(s) AS m FROM t GROUP BY g"
    )
    engine.execute(f"COPY INTO t FROM '{files}'")
    engine.execute("UPDATE t SET g = (g + 1) % 7 WHERE id % 3 = 0")
    engine.refresh("q")
    text = "SELECT g, count(*), max(s) FROM t GROUP BY g ORDER BY g"
    assert engine.execute("SELECT * FROM q ORDER BY g").fetchall() == engine.execute(text).fetchall()
    assert engine.execute("SELECT count(*) FROM t").fetchall() == [(400,)]
    assert check_law(engine, "q", "SELECT g, count(*) AS n, max(s) AS m FROM t t GROUP BY g", since=1) > 3


def main(master: str, port: str, database: str, files: str, count: str = "1") -> None:
    store = ObjectStoreServer(int(port))
    spark = spark_session({"spark.master": master, **DRIVER})
    conf = {"maintenance": "manual", **store.options}
    found = {"executors": executors(spark)}
    note(f"{found['executors']} executors")
    place = f"s3://lake/cluster-{Path(files).parent.name}"
    limits = Limits(**{**EXECUTORS, "pending_rows": 0})
    with cq_engine.connect(
        f"{place}/copied", postgres.fresh(database), spark, scheduler=False, conf=conf, limits=limits
    ) as engine:
        copied(engine, files)
    note("copied")
    tally = Tally()
    for number, recorded in enumerate(histories(int(count)) if int(count) else ()):
        catalog = postgres.fresh(database)
        check_history(
            recorded, spark, f"{place}/{number}", tally, catalog=catalog, conf=store.options, paths=EXECUTORS
        )
        note(f"history {number}, {len(recorded.transactions)} transactions")
    found["refreshes"] = tally.refreshes
    spark.stop()
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
