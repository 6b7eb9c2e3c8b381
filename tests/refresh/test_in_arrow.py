"""Which statements of refreshes the driver evaluates itself, and what becomes of those that it cannot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine.core.errors import RefreshError
from cq_engine.core.limits import DEFAULT_LIMITS, Limits


@pytest.fixture
def limits() -> Limits:
    return DEFAULT_LIMITS


@pytest.fixture
def engine(once: SparkSession, warehouse: Path, limits: Limits) -> Iterator[cq_engine.Engine]:
    with cq_engine.connect(warehouse, spark=once, scheduler=False, limits=limits) as opened:
        opened.execute("CREATE TABLE t (k INT PRIMARY KEY, g INT, n BIGINT, p DECIMAL(20, 2), s STRING)")
        yield opened


def _in_arrow(engine: cq_engine.Engine, query: str) -> list[str]:
    engine.refresh(query)
    return engine.queries.refresher.reports[query].in_arrow


def test_statements_are_evaluated_and_named(engine: cq_engine.Engine) -> None:
    engine.execute(
        "CREATE CONTINUOUS QUERY q ON DEMAND AS SELECT g, sum(n) AS n, avg(n) AS a FROM t GROUP BY g"
    )
    engine.execute("INSERT INTO t VALUES (1, 1, 4, 1.50, 'a'), (2, 1, 6, NULL, 'b')")
    assert _in_arrow(engine, "q") == ["stage block_1", "log"]
    assert [(d.marker, d.new) for d in engine.deltas("q")] == [("I", (1, 10, 5.0))]
    engine.execute("DELETE FROM t WHERE k = 2")
    shown = "\n".join(str(row[0]) for row in engine.execute("EXPLAIN ANALYZE CONTINUOUS QUERY q").fetchall())
    assert "evaluated in Arrow" in shown
    assert [(d.marker, d.new) for d in engine.deltas("q", after_version=1)] == [("U", (1, 4, 4.0))]


def test_what_only_spark_evaluates_is_not_tried_again(engine: cq_engine.Engine) -> None:
    engine.execute("CREATE CONTINUOUS QUERY q ON DEMAND AS SELECT k, reverse(s) AS s FROM t")
    for number in range(2):
        engine.execute(f"INSERT INTO t VALUES ({number}, 1, 4, 1.50, 'ab')")
        assert _in_arrow(engine, "q") == []
    assert [d.new for d in engine.deltas("q")] == [(0, "ba"), (1, "ba")]
    plans = engine.queries.refresher.plans._plans.values()
    assert any(plan.only_spark == {"log"} for plan in plans)


def test_a_value_that_is_too_large_goes_to_spark(engine: cq_engine.Engine) -> None:
    engine.execute("CREATE CONTINUOUS QUERY q ON DEMAND AS SELECT g, sum(p) AS p FROM t GROUP BY g")
    most = DEFAULT_LIMITS.plan_misses
    for number in range(most):
        engine.execute(f"INSERT INTO t VALUES ({number}, {number}, 4, 999999999999999999.99, 'a')")
        assert _in_arrow(engine, "q") == [], "a hundred times as much has more than 64 bits"
    engine.execute(f"INSERT INTO t VALUES ({most}, {most}, 4, 1.00, 'a')")
    assert _in_arrow(engine, "q") == [], "three times in a row were enough"
    assert sum(d.marker == "I" for d in engine.deltas("q")) == most + 1


def test_an_overflow_is_the_error_of_spark(engine: cq_engine.Engine) -> None:
    engine.execute("CREATE CONTINUOUS QUERY q ON DEMAND AS SELECT k, n + 1 AS n FROM t")
    engine.execute(f"INSERT INTO t VALUES (1, 1, {2**63 - 1}, 1, 'a')")
    with pytest.raises(RefreshError, match=r"(?i)overflow"):
        engine.refresh("q")


@pytest.mark.parametrize("limits", [Limits(arrow_rows=2)])
def test_more_rows_go_to_spark(engine: cq_engine.Engine) -> None:
    engine.execute("CREATE CONTINUOUS QUERY q ON DEMAND AS SELECT k, n + 1 AS n FROM t WHERE g > 0")
    engine.execute("INSERT INTO t VALUES (1, 1, 4, 1, 'a'), (2, 1, 4, 1, 'a')")
    assert _in_arrow(engine, "q") == ["log"]
    engine.execute("INSERT INTO t VALUES (3, 1, 4, 1, 'a'), (4, 1, 4, 1, 'a'), (5, 1, 4, 1, 'a')")
    assert _in_arrow(engine, "q") == []
    assert [d.new for d in engine.deltas("q")] == [(k, 5) for k in range(1, 6)]
