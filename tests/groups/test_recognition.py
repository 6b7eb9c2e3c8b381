"""Which queries are alike, and which of their literals are constants."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine import AnalysisError, Engine


@pytest.fixture(scope="module")
def engine(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path: Path = tmp_path_factory.mktemp("recognition")
    with cq_engine.connect(path / "warehouse", spark=spark, scheduler=False) as engine:
        engine.execute(
            "CREATE TABLE t (id INT PRIMARY KEY, grp STRING, n INT, d DATE, amt DECIMAL(10,2), wide DECIMAL(38,30))"
        )
        engine.execute("CREATE TABLE g (grp STRING PRIMARY KEY, boss INT)")
        engine.execute("INSERT INTO t VALUES (1, 'a', 1, DATE'2024-01-01', 1.5, 0.5)")
        yield engine


_numbers = iter(range(1000))


def constants_of(engine: Engine, first: str, second: str) -> tuple[str, ...] | None:
    """The constants of the second query, where it shares a group."""
    names = [f"q{next(_numbers)}" for _ in range(2)]
    for name, text in zip(names, (first, second)):
        engine.execute(f"CREATE CONTINUOUS QUERY {name} {text}")
    found = engine.queries.find(names[1])
    for name in names:
        engine.execute(f"DROP CONTINUOUS QUERY {name}")
    return found.constants if found.group is not None else None


@pytest.mark.parametrize(
    ("first", "second", "constants"),
    [
        ("AS SELECT id FROM t WHERE n = 1", "AS SELECT id  FROM t WHERE n = 2", ("2",)),
        ("AS SELECT id FROM t WHERE n = -1", "AS SELECT id FROM t WHERE n = -2", ("2",)),
        ("AS SELECT id FROM t WHERE grp = 'a'", "AS SELECT id FROM t WHERE grp = 'it''s'", ("it's",)),
        (
            "AS SELECT id FROM t WHERE d > DATE'2024-01-01'",
            "AS SELECT id FROM t WHERE d > DATE'2025-01-01'",
            ("2025-01-01",),
        ),
        (
            "AS SELECT count(*) AS c FROM t WHERE n = 1 AND amt > 1.25",
            "AS SELECT count(*) AS c FROM t WHERE n = 5 AND amt > 9.75",
            ("5", "9.75"),
        ),
        (
            "AS SELECT grp, count(*) AS c FROM t GROUP BY grp HAVING count(*) > 1",
            "AS SELECT grp, count(*) AS c FROM t GROUP BY grp HAVING count(*) > 3",
            ("3",),
        ),
        # only the last of the literals is compared with a column
        (
            "AS SELECT id + 1 AS i FROM t WHERE n % 2 = 1",
            "AS SELECT id + 1 AS i FROM t WHERE n % 2 = 0",
            ("0",),
        ),
    ],
)
def test_compared_literals_are_constants(
    engine: Engine, first: str, second: str, constants: tuple[str, ...]
) -> None:
    assert constants_of(engine, first, second) == constants


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("AS SELECT id FROM t WHERE n = 1", "AS SELECT id FROM t WHERE n > 2"),
        ("AS SELECT id FROM t WHERE n = 3", "AS SELECT id FROM t WHERE n = 3000000000"),
        ("AS SELECT id + 1 AS i FROM t WHERE n = 1", "AS SELECT id + 2 AS i FROM t WHERE n = 1"),
        ("AS SELECT id FROM t WHERE wide > 1", "AS SELECT id FROM t WHERE wide > 2"),
        ("AS SELECT id FROM t WHERE n = 1 ORDER BY id LIMIT 2", "AS SELECT id FROM t WHERE n = 2 ORDER BY id LIMIT 2"),
        ("ON DEMAND AS SELECT id FROM t WHERE n = 1", "ON DEMAND AS SELECT id FROM t WHERE n = 2"),
        (
            "AS SELECT id FROM t WHERE n = 1 AND EXISTS (SELECT 1 FROM g WHERE g.grp = t.grp AND boss = 1)",
            "AS SELECT id FROM t WHERE n = 1 AND EXISTS (SELECT 1 FROM g WHERE g.grp = t.grp AND boss = 2)",
        ),
        ("COMPUTE COMPRESSED DELTA AS SELECT id FROM t WHERE n = 1", "AS SELECT id FROM t WHERE n = 2"),
        ("AS SELECT id FROM t WHERE n = 1", "WITH (query_group = 'off') AS SELECT id FROM t WHERE n = 2"),
        ("WITH (refresh = 'full') AS SELECT id FROM t WHERE n = 1", "WITH (refresh = 'full') AS SELECT id FROM t WHERE n = 2"),
    ],
)  # fmt: skip
def test_these_are_refreshed_by_themselves(engine: Engine, first: str, second: str) -> None:
    assert constants_of(engine, first, second) is None


def test_the_first_of_a_signature_can_ask_for_a_group(engine: Engine) -> None:
    engine.execute(
        "CREATE CONTINUOUS QUERY asked ON DEMAND WITH (query_group = 'on') AS SELECT id FROM t WHERE n = 1"
    )
    assert engine.queries.find("asked").constants == ("1",)
    described = dict(engine.execute("DESCRIBE CONTINUOUS QUERY asked").fetchall())
    assert described["query group"].endswith("of 1 queries; constants 1")
    plan = [row[0] for row in engine.execute("EXPLAIN CONTINUOUS QUERY asked").fetchall()]
    assert any("one of 1 queries of query group" in line for line in plan)
    engine.execute("DROP CONTINUOUS QUERY asked")
    assert not engine.catalog.state.groups


def test_it_is_told_why_there_can_be_none(engine: Engine) -> None:
    with pytest.raises(AnalysisError, match="cannot be in a query group") as refused:
        engine.execute("CREATE CONTINUOUS QUERY alone WITH (query_group = 'on') AS SELECT id FROM t")
    assert refused.value.detail == "nothing is compared with a constant"
    with pytest.raises(AnalysisError, match="cannot be in a query group") as refused:
        engine.execute(
            "CREATE CONTINUOUS QUERY alone WITH (query_group = 'on', retention = '3 days') AS SELECT id FROM t WHERE n = 1"
        )
    assert "other options" in refused.value.detail
    with pytest.raises(AnalysisError, match="query_group = maybe is unknown"):
        engine.execute("CREATE CONTINUOUS QUERY alone WITH (query_group = 'maybe') AS SELECT id FROM t")


def test_the_option_is_understood_by_its_earlier_name(engine: Engine) -> None:
    engine.execute(
        "CREATE CONTINUOUS QUERY early ON DEMAND WITH (template = 'on') AS SELECT id FROM t WHERE n = 7"
    )
    query = engine.queries.find("early")
    assert query.group in engine.catalog.state.groups
    assert query.options == (("query_group", "on"),)
    assert "query_group" in query.statement
    engine.execute("ALTER CONTINUOUS QUERY early SET WITH (template = 'off')")
    assert engine.queries.find("early").group is None
    assert engine.queries.find("early").options == (("query_group", "off"),)
    engine.execute("DROP CONTINUOUS QUERY early")
