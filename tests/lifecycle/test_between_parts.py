"""A refresh that is cut delivers each part before the next, and a callback may change the query then: what is left is refreshed as it says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine import Engine
from cq_engine.core.limits import Limits
from cq_engine.refresh.mesh import QueryMesh
from tests.accumulated import accumulated, rows

QUERY = "SELECT r.note, count(*) AS n, sum(s.x) AS total FROM s JOIN r ON s.k = r.k GROUP BY r.note"
OTHER = QUERY.replace("GROUP", "WHERE s.x % 2 = 0 GROUP")
COMMITS = 6
ALTER = "ALTER CONTINUOUS QUERY q"


@pytest.fixture(params=["look_up", "mesh"])
def engine(
    warehouse: Path, spark: SparkSession, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Engine]:
    """With a query that has commits to process, of which each is a part of a refresh."""
    monkeypatch.setattr(QueryMesh, "changes", 40)
    limits = Limits(small_rows=-1, slice_changes=40, least_slice_changes=30)
    with cq_engine.connect(
        warehouse, spark=spark, scheduler=False, conf={"maintenance": "manual"}, limits=limits
    ) as opened:
        opened.execute("CREATE TABLE s (id INT PRIMARY KEY, k BIGINT, x INT)")
        opened.execute("CREATE TABLE r (k BIGINT PRIMARY KEY, note STRING)")
        opened.execute("INSERT INTO r SELECT id, concat('n', id % 7) FROM range(300)")
        opened.execute("INSERT INTO s SELECT id, id * 7 % 400, id FROM range(150)")
        opened.execute("CREATE DESTINATION met TYPE table")
        opened.execute("CREATE DESTINATION now TYPE table WITH (mode = 'merge')")
        opened.execute(
            "CREATE CONTINUOUS QUERY q PRIMARY KEY (note) COMPUTE TRANSACTIONAL DELTA ON DEMAND START FROM SNAPSHOT"
            f" DESTINATION CALLBACK again, met WITH (join = '{request.param}', memory = '64 KB') AS {QUERY}"
        )
        opened.callback("again")(lambda batch: None)
        opened.refresh("q")
        for n in range(COMMITS):
            opened.execute(
                f"INSERT INTO s SELECT id, id * 11 % 400, id FROM range({1_000 + 40 * n}, {1_040 + 40 * n})"
            )
        yield opened


def refreshed(engine: Engine, *statements: str) -> list[Any]:
    """Refreshes, while the callback says these statements when it is called first; the batches that it got."""
    got: list[Any] = []

    def again(batch: Any) -> None:
        got.append(batch)
        if len(got) == 1:
            for statement in statements:
                engine.execute(statement)

    engine.callback("again")(again)
    engine.refresh("q")
    return got


def refreshes(engine: Engine) -> int:
    return sum(1 for each in engine.catalog.refreshes("q") if each.from_version)


def check(engine: Engine, query: str = QUERY) -> None:
    """The query is where the tables are, and has its deltas once each."""
    assert engine.describe("q").state == "ACTIVE"
    assert accumulated(engine, "q") == rows(engine, query)


def test_nothing_is_changed(engine: Engine) -> None:
    before = refreshes(engine)
    got = refreshed(engine)
    assert refreshes(engine) - before == COMMITS
    assert len(got) > 1
    check(engine)


def test_the_result_becomes_a_table(engine: Engine) -> None:
    refreshed(engine, f"{ALTER} SET DESTINATION CALLBACK again, now")
    check(engine)
    assert rows(engine, "SELECT * FROM now") == rows(engine, QUERY)
    engine.execute("UPDATE r SET note = 'n1' WHERE k < 20")
    engine.refresh("q")
    assert rows(engine, "SELECT * FROM now") == rows(engine, QUERY)


def test_a_table_is_no_destination_any_more(engine: Engine) -> None:
    """It keeps what it has, once."""
    before = rows(engine, "SELECT * FROM met")
    refreshed(engine, f"{ALTER} SET DESTINATION CALLBACK again")
    check(engine)
    assert rows(engine, "SELECT * FROM met") == before, "the callback comes before it"


def test_a_table_becomes_a_destination(engine: Engine) -> None:
    """It has what comes after, and nothing twice."""
    refreshed(
        engine, f"{ALTER} SET DESTINATION CALLBACK again", f"{ALTER} SET DESTINATION CALLBACK again, met"
    )
    check(engine)
    assert max(Counter(rows(engine, "SELECT * FROM met")).values()) == 1


def test_a_reader_comes_and_goes(engine: Engine) -> None:
    engine.execute("CREATE CONTINUOUS QUERY reader AS SELECT note, n FROM q WHERE n > 3")
    refreshed(engine, "DROP CONTINUOUS QUERY reader")
    check(engine)
    before = refreshes(engine)
    engine.execute("INSERT INTO s SELECT id, id * 11 % 400, id FROM range(5000, 5080)")
    engine.execute("INSERT INTO s SELECT id, id * 11 % 400, id FROM range(5080, 5160)")
    refreshed(engine, "CREATE CONTINUOUS QUERY reader AS SELECT note, n FROM q WHERE n > 3")
    assert refreshes(engine) - before == 2
    check(engine)
    engine.refresh("reader")
    assert rows(engine, "SELECT * FROM reader") == rows(engine, f"SELECT note, n FROM ({QUERY}) WHERE n > 3")


def test_another_budget(engine: Engine) -> None:
    refreshed(engine, f"{ALTER} SET WITH (join = 'mesh', memory = '128 KB')")
    check(engine)


def test_states_are_built_anew(engine: Engine) -> None:
    """What was gathered for the next parts was gathered for states that are gone."""
    got = refreshed(engine, f"{ALTER} PAUSE")
    assert len(got) == 1
    skipped = engine.describe("q").position + 1
    engine.execute(f"{ALTER} RESUME FROM VERSION {skipped}")
    refreshed(engine)
    at = QUERY.replace(
        "FROM s JOIN r", f"FROM s VERSION AS OF {skipped} AS s JOIN r VERSION AS OF {skipped} AS r"
    )
    result = Counter(rows(engine, at))
    for delta in engine.deltas("q", skipped):
        if delta.old is not None:
            assert result[tuple(delta.old)] > 0
            result[tuple(delta.old)] -= 1
        if delta.new is not None:
            result[tuple(delta.new)] += 1
    assert sorted(result.elements(), key=repr) == rows(engine, QUERY)


def test_another_defining_query(engine: Engine) -> None:
    refreshed(engine, f"{ALTER} AS {OTHER}")
    check(engine, OTHER)
