"""Files that the delta log of a query and its result share: executors write them once, and they go with the last that reads them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine.catalog.model import VersionedTable
from cq_engine.core.limits import Limits
from tests.limits import EXECUTORS

PLAIN = "SELECT k, g FROM t t"
UNPUBLISHED = "SELECT k, g, g * INTERVAL '1' DAY AS span FROM t t"
"""Its log has a column that no Delta table has, so that its files never belong to one."""


@pytest.fixture(params=[PLAIN, UNPUBLISHED], ids=["published", "unpublished"])
def query(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def engine(spark: SparkSession, warehouse: Path, query: str) -> Iterator[cq_engine.Engine]:
    with cq_engine.connect(
        warehouse, spark=spark, scheduler=False, conf={"maintenance": "manual"}, limits=Limits(**EXECUTORS)
    ) as opened:
        opened.execute("CREATE TABLE t (k INT PRIMARY KEY, g INT)")
        opened.execute("INSERT INTO t SELECT id, id % 3 FROM range(20)")
        opened.execute(
            f"CREATE CONTINUOUS QUERY q PRIMARY KEY (k) ON DEMAND DESTINATION CALLBACK late START FROM SNAPSHOT AS {query}"
        )
        opened.execute("CREATE CONTINUOUS QUERY above ON DEMAND AS SELECT g, count(*) AS n FROM q GROUP BY g")
        yield opened


def paths(engine: cq_engine.Engine, table: VersionedTable) -> set[str]:
    layout = engine.catalog.layout(table.id, engine.catalog.newest_version)
    return {file.path for changes in layout.changes for file in changes.files}


def tables(engine: cq_engine.Engine) -> tuple[VersionedTable, VersionedTable]:
    query = engine.catalog.state.queries["q"]
    assert query.relation is not None
    return query.result, query.relation.storage


def change(engine: cq_engine.Engine) -> set[str]:
    """Refreshes over a change; the files that log and result share."""
    engine.execute("UPDATE t SET g = g + 1 WHERE k < 10")
    engine.refresh("q")
    log, result = tables(engine)
    shared = paths(engine, log) & paths(engine, result)
    assert shared
    return shared


def rows(engine: cq_engine.Engine, query: str) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, engine.execute(query).fetchall()))


def deliver(engine: cq_engine.Engine) -> list[int]:
    got: list[int] = []

    @engine.callback("late")
    def take(batch: cq_engine.DeltaBatch) -> None:
        got.extend(delta.key[0] for delta in batch)

    engine.drain()
    return got


def test_the_result_keeps_files_that_the_log_forgets(
    engine: cq_engine.Engine, warehouse: Path, query: str
) -> None:
    deliver(engine)
    shared = change(engine)
    engine.drain()
    engine.execute("VACUUM q RETAIN 0 HOURS")
    log, result = tables(engine)
    assert not shared & paths(engine, log), "nobody has to read the log any more"
    assert shared <= paths(engine, result)
    assert all((warehouse / path).exists() for path in shared)
    assert rows(engine, "SELECT * FROM q") == rows(engine, query)
    engine.refresh("above")
    assert rows(engine, "SELECT * FROM above") == rows(
        engine, f"SELECT g, count(*) FROM ({query}) x GROUP BY g"
    )
    engine.compactor.compact(tables(engine)[1])
    engine.execute("VACUUM RETAIN 0 HOURS")
    assert not shared & paths(engine, tables(engine)[1])
    there = [(warehouse / path).exists() for path in shared]
    assert all(there) if query == PLAIN else not any(there), "the last that read them has gone"
    assert rows(engine, "SELECT * FROM q") == rows(engine, query)


def test_the_log_keeps_files_that_the_result_forgets(
    engine: cq_engine.Engine, warehouse: Path, query: str
) -> None:
    """While a destination has to read them, and where they are the published log's."""
    shared = change(engine)
    engine.publish()
    engine.refresh("above")
    engine.compactor.compact(tables(engine)[1])
    engine.execute("VACUUM RETAIN 0 HOURS")
    log, result = tables(engine)
    assert not shared & paths(engine, result)
    assert shared <= paths(engine, log)
    assert all((warehouse / path).exists() for path in shared)
    assert set(deliver(engine)[-10:]) == set(range(10))
    engine.execute("VACUUM RETAIN 0 HOURS")
    assert not shared & paths(engine, tables(engine)[0])
    assert all((warehouse / path).exists() for path in shared) == (query == PLAIN)
