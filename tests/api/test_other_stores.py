"""A warehouse on Google Cloud Storage and on Azure: what one in a bucket of S3 does."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import cq_engine
from cq_engine.core.limits import Limits
from tests import limits
from tests.accumulated import accumulated, rows
from tests.oracle.drawn import longest
from tests.oracle.generate import core_histories
from tests.oracle.warehouse import Tally, check_history

QUERY = "SELECT v, count(*) AS n, sum(d) AS s FROM t GROUP BY v"
EXECUTORS = Limits(**{**limits.EXECUTORS, "scan_least_bytes": 1, "scan_most_bytes": 3000})

Place = tuple[str, dict[str, str]]


def options(access: dict[str, str]) -> dict[str, str]:
    return {f"storage.{name}": value for name, value in access.items()}


def test_the_delta_law(other_store: Place, tmp_path: Path, spark: SparkSession) -> None:
    url, access = other_store
    history = longest(core_histories(queries=1, transactions=(2, 2)), "CQ_BUCKET_HISTORIES", 5)
    check_history(
        history, spark, url, Tally(), catalog=f"sqlite:///{tmp_path}/catalog.db", conf=options(access)
    )


@pytest.mark.parametrize("bounds", [Limits(), EXECUTORS], ids=["driver", "executors"])
def test_a_life(other_store: Place, tmp_path: Path, spark: SparkSession, bounds: Limits) -> None:
    """Loaded, refreshed, compacted, published and vacuumed; then read by who opens it after that, by Delta Lake and by Spark."""
    url, access = other_store
    where = {"warehouse": url, "catalog": f"sqlite:///{tmp_path}/catalog.db"}
    given = {**where, "spark": spark, "conf": options(access), "scheduler": False}
    with cq_engine.connect(**given, limits=bounds) as engine:
        engine.execute("CREATE TABLE t (id INT PRIMARY KEY, v STRING, d DECIMAL(10, 2))")
        engine.execute(f"CREATE CONTINUOUS QUERY q COMPUTE TRANSACTIONAL DELTA ON DEMAND AS {QUERY}")
        values = "CAST(id AS INT), concat('v', id % 3), CAST(id AS DECIMAL(10, 2))"
        engine.execute(f"INSERT INTO t SELECT {values} FROM range(60)")
        engine.refresh("q")
        engine.execute("UPDATE t SET d = d + 1 WHERE id < 20")
        changes = pa.table({"id": [1, 70], "v": ["v0", "v9"], "d": [1, 2], "op": ["D", "I"]})
        engine.apply_changes({"t": changes}, op="op")
        engine.refresh("q")
        engine.execute("COMPACT TABLE t")
        engine.execute("VACUUM")
        engine.publish()
        wanted, found = rows(engine, QUERY), rows(engine, "SELECT id, v FROM t")
        assert accumulated(engine, "q") == wanted
        store = engine.catalog.store
        shown = DeltaTable(store.uri("tables/t"), storage_options=store.delta_options).to_pyarrow_table()
        assert sorted(zip(shown["id"].to_pylist(), shown["v"].to_pylist()), key=repr) == found
    read = spark.read.format("cq").options(**where, query="q", startingVersion=1, **options(access)).load()
    assert {row._change_type for row in read.collect()} >= {"insert", "update_postimage"}
    with cq_engine.connect(**given) as engine:
        assert rows(engine, QUERY) == wanted
        engine.execute("DELETE FROM t WHERE id > 40")
        engine.refresh("q")
        assert accumulated(engine, "q") == rows(engine, QUERY) != wanted
