"""Tables and queries of the tests of mesh joins; every table is huge."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine import Engine
from cq_engine.core.limits import Limits

SMALL_PAGES = Limits(small_rows=-1, row_group_rows=20, snapshot_file_rows=100)
JOIN = "SELECT s.id, s.k, r.note FROM s JOIN r ON s.k = r.k"
SHAPES = {
    "inner": JOIN,
    "left": "SELECT s.id, s.k, r.note FROM s LEFT JOIN r ON s.k = r.k",
    "grouped": "SELECT r.note, count(*) AS n, sum(s.x) AS total FROM s JOIN r ON s.k = r.k GROUP BY r.note",
    "chain": "SELECT s.id, r.note, t.name FROM s JOIN r ON s.k = r.k JOIN t ON r.note = t.note",
    "between": "SELECT s.id, r.k, r.note FROM s JOIN r ON r.k BETWEEN s.x - 1 AND s.x + 2 WHERE s.id % 3 = 0",
    "below": "SELECT s.id, r.note FROM s LEFT JOIN r ON r.k < s.x - 120 AND r.k >= s.x - 125",
    "sum": "SELECT s.id, r.k FROM s JOIN r ON s.k + r.k > 640",
    "counted": "SELECT r.note, count(*) AS n FROM s JOIN r ON s.x > r.k + 140 AND s.x < 160 GROUP BY r.note",
    "absent": "SELECT s.id FROM s WHERE NOT EXISTS (SELECT 1 FROM r WHERE r.k = s.k)",
}


@pytest.fixture
def engine(warehouse: Path, spark: SparkSession) -> Iterator[Engine]:
    with cq_engine.connect(
        warehouse, spark=spark, scheduler=False, conf={"maintenance": "manual"}, limits=SMALL_PAGES
    ) as opened:
        opened.execute("CREATE TABLE s (id INT PRIMARY KEY, k BIGINT, x INT)")
        opened.execute("CREATE TABLE r (k BIGINT PRIMARY KEY, note STRING)")
        opened.execute("CREATE TABLE t (note STRING PRIMARY KEY, name STRING)")
        opened.execute("INSERT INTO r SELECT id, concat('n', id % 7) FROM range(300)")
        opened.execute("INSERT INTO t SELECT concat('n', id), concat('name ', id) FROM range(5)")
        opened.execute("INSERT INTO s SELECT id, id * 7 % 400, id FROM range(150)")
        for table in ("r", "t", "s"):
            opened.compact(table)
        yield opened


def create(
    engine: Engine, name: str, query: str, options: str = "join = 'mesh'", mode: str = "TRANSACTIONAL"
) -> None:
    engine.execute(
        f"CREATE CONTINUOUS QUERY {name} COMPUTE {mode} DELTA ON DEMAND START FROM SNAPSHOT WITH ({options}) AS {query}"
    )


def told(engine: Engine, statement: str) -> str:
    return "\n".join(row[0] for row in engine.execute(statement).fetchall())


def hows(engine: Engine) -> set[str]:
    """How the last refresh read its tables."""
    return {read.how for read in engine.queries.refresher.reports["q"].reads}


def change(engine: Engine, n: int) -> None:
    """One round of commits that change all tables."""
    engine.execute(
        f"INSERT INTO s SELECT id, id * 11 % 400, id FROM range({1_000 + 20 * n}, {1_015 + 20 * n})"
    )
    engine.execute(f"UPDATE r SET note = 'n{n % 5}' WHERE k % 50 = {n}")
    with engine.transaction() as tx:
        tx.execute(f"DELETE FROM r WHERE k = {7 * n}")
        tx.execute(f"DELETE FROM s WHERE id = {3 * n}")
        tx.execute(f"INSERT INTO r VALUES ({300 + n}, 'n1')")
    engine.execute(f"UPDATE t SET name = 'other {n}' WHERE note = 'n{n % 5}'")
