"""The first thing that an engine does may need Spark, which it has not started until then: no expression comes before that."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

import cq_engine
from cq_engine import Engine
from cq_engine.core.limits import Limits
from cq_engine.launch.lazy_session import LazySession

BY_SPARK = Limits(
    inline_bytes=0, table_inline_bytes=0, change_rows=0, change_files=0, small_rows=-1, driver_rows=0, log_block_rows=2,
)  # fmt: skip
ROWS = [(n, n % 3, f"v{n}") for n in range(40, 50)]


def _transaction(work: Callable[[Any], object]) -> Callable[[Engine], object]:
    def run(engine: Engine) -> object:
        with engine.transaction() as tx:
            return work(tx)

    return run


def _sql(text: str) -> Callable[[Engine], object]:
    return lambda engine: engine.execute(text).to_arrow()


FIRST: dict[str, Callable[[Engine], object]] = {
    "rows": _transaction(lambda tx: tx.insert("t", ROWS)),
    "arrow": _transaction(lambda tx: tx.insert("t", pa.table({"k": [61, 62], "g": [1, 2], "v": ["a", "b"]}))),
    "changes": lambda engine: engine.apply_changes(
        {"t": pa.table({"k": [1, 70], "g": [2, 2], "v": ["u", "n"], "op": ["U", "I"]})}
    ),
    "values": _sql("INSERT INTO t VALUES (71, 0, 'x'), (72, 1, 'y')"),
    "update": _sql("UPDATE t SET v = 'z' WHERE g = 1"),
    "delete": _sql("DELETE FROM t WHERE g = 2"),
    "merge": _sql("MERGE INTO t USING (SELECT 5 AS k) s ON t.k = s.k WHEN MATCHED THEN DELETE"),
    "references": _sql("DELETE FROM g WHERE id = 9"),
    "select": _sql("SELECT count(*) AS n FROM t"),
    "history": _sql("SELECT count(*) AS n FROM t VERSION AS OF 2"),
    "query": _sql("SELECT * FROM q"),
    "query then": _sql("SELECT * FROM q VERSION AS OF 2"),
    "deltas": lambda engine: list(engine.deltas("q")),
    "follow": lambda engine: next(iter(engine.follow("q", from_version=0))),
    "refresh": lambda engine: engine.refresh("q"),
    "drain": lambda engine: engine.drain(),
    "compact": _sql("COMPACT TABLE t"),
    "maintain": lambda engine: engine.maintain(),
    "publish": lambda engine: engine.publish(),
    "vacuum": lambda engine: engine.vacuum(),
    "check": _sql("CHECK CONSTRAINTS ON t"),
    "column": _sql("ALTER TABLE t ADD COLUMN w INT"),
    "definition": _sql("CREATE CONTINUOUS QUERY r AS SELECT k FROM t WHERE g = 0"),
    "explain": _sql("EXPLAIN CONTINUOUS QUERY q"),
    "destination": _sql("ALTER CONTINUOUS QUERY q SET DESTINATION sink"),
}


@pytest.fixture
def hidden(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """A session that PySpark does not know of until an engine asks for it."""
    context = SparkContext._active_spark_context
    start = LazySession.get

    def get(session: LazySession) -> SparkSession:
        SparkContext._active_spark_context = context
        return start(session)

    monkeypatch.setattr(LazySession, "get", get)
    return spark


def test_nothing_is_said_to_spark_before_it_is_there(hidden: SparkSession, warehouse: Path) -> None:
    known = SparkContext._active_spark_context
    options: dict[str, Any] = {"spark": hidden, "scheduler": False, "limits": BY_SPARK}
    with cq_engine.connect(warehouse, **options) as engine:
        engine.execute("CREATE TABLE g (id INT PRIMARY KEY)")
        engine.execute("INSERT INTO g VALUES (0), (1), (2), (9)")
        engine.execute(
            "CREATE TABLE t (k INT PRIMARY KEY, g INT NOT NULL, v STRING, FOREIGN KEY (g) REFERENCES g (id) ENFORCED)"
        )
        engine.execute("CREATE TABLE sink (g INT, n BIGINT)")
        engine.execute("CREATE CONTINUOUS QUERY q AS SELECT g, count(*) AS n FROM t GROUP BY g")
        with engine.transaction() as tx:
            tx.insert("t", [(n, n % 3, f"v{n}") for n in range(20)])
        engine.refresh("q")
    failed = {}
    try:
        for name, first in FIRST.items():
            with cq_engine.connect(warehouse, **options) as engine:
                SparkContext._active_spark_context = None
                try:
                    first(engine)
                except Exception as error:  # noqa: BLE001 - all that fail are shown
                    failed[name] = "".join(traceback.format_exception(error)[-8:])
                finally:
                    SparkContext._active_spark_context = known
    finally:
        SparkContext._active_spark_context = known
    assert failed == {}, "\n".join(f"{name}: {error}" for name, error in failed.items())
