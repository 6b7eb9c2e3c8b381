"""Two processes and the continuous queries of their warehouse; both are engines of this process."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import cq_engine
from cq_engine.api.engine import Engine
from cq_engine.core.limits import Limits
from tests.waiting import until

Connect = Callable[..., Engine]
QUICK = Limits(lease_seconds=20.0, heartbeat_seconds=0.2)


@pytest.fixture
def two(connect: Connect) -> tuple[Engine, Engine]:
    """The one with the duties, and another one; tables t and out, and a query between them."""
    first, second = connect(limits=QUICK), connect(limits=QUICK, scheduler=False)
    second.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    second.execute("CREATE TABLE out (id INT, v INT)")
    said = second.execute(
        "CREATE CONTINUOUS QUERY q DESTINATION TABLE out AS SELECT id, v FROM t WHERE v > 0"
    )
    assert "continuous query q created" in said.message
    return first, second


def rows(engine: Engine, table: str) -> list[tuple[object, ...]]:
    return sorted(engine.execute(f"SELECT id, v FROM {table}").fetchall())


def test_the_holder_refreshes_for_the_commits_of_others(two: tuple[Engine, Engine]) -> None:
    first, second = two
    second.execute("INSERT INTO t VALUES (1, 1), (2, -1)")
    until(lambda: rows(second, "out") == [(1, 1)])
    done = second.execute("INSERT INTO t VALUES (3, 3)")
    assert done.commit_version is not None
    refreshed = second.refresh("q")
    assert refreshed.to_version >= done.commit_version
    assert rows(second, "out") == [(1, 1), (3, 3)]
    second.execute("REFRESH CONTINUOUS QUERY q")
    second.drain(timeout=60)
    assert [delta.new for delta in second.deltas("q")] == [(1, 1), (3, 3)]
    assert [delta.new for delta in first.deltas("q")] == [(1, 1), (3, 3)]
    second.execute("COMPACT TABLE t")
    assert second.maintain() == []


def test_definitions_of_queries_from_elsewhere(two: tuple[Engine, Engine]) -> None:
    first, second = two
    second.execute("INSERT INTO t VALUES (1, 1), (2, -1)")
    second.drain(timeout=60)
    second.execute("ALTER CONTINUOUS QUERY q AS SELECT id, v FROM t WHERE v < 0")
    second.drain(timeout=60)
    assert [(delta.marker, delta.key) for delta in second.deltas("q")] == [
        ("I", (1,)),
        ("D", (1,)),
        ("I", (2,)),
    ]
    second.execute("ALTER CONTINUOUS QUERY q PAUSE")
    assert second.describe("q").state == "PAUSED"
    with pytest.raises(cq_engine.RefreshError, match="paused"):
        second.refresh("q")
    second.execute("DROP CONTINUOUS QUERY q")
    with pytest.raises(cq_engine.CatalogError):
        first.describe("q")


def test_callbacks_run_where_they_are_registered(two: tuple[Engine, Engine]) -> None:
    first, second = two
    got: list[tuple[object, ...]] = []

    @second.callback("alerts")
    def alerts(batch: cq_engine.DeltaBatch) -> None:
        got.extend(delta.new for delta in batch if delta.new is not None)

    second.execute("CREATE CONTINUOUS QUERY r DESTINATION alerts AS SELECT id, v FROM t WHERE v > 5")
    first.execute("INSERT INTO t VALUES (7, 7)")
    first.refresh("r")
    assert not got
    second.drain(timeout=60)
    assert got == [(7, 7)]
    with pytest.raises(cq_engine.DestinationError, match="is registered by process"):
        first.callback("alerts")(print)


def test_callbacks_of_queries_that_are_refreshed_as_one_by_another_process(
    two: tuple[Engine, Engine],
) -> None:
    first, second = two
    got: list[tuple[object, ...]] = []
    second.callback("alerts")(lambda batch: got.extend(delta.new for delta in batch if delta.new is not None))
    first.execute("INSERT INTO t VALUES (1, 6)")
    for name, least, start in (("m", 5, ""), ("n", 7, "START FROM SNAPSHOT")):
        first.execute("INSERT INTO t VALUES (8, 8)" if start else "INSERT INTO t VALUES (2, 7)")
        second.execute(
            f"CREATE CONTINUOUS QUERY {name} DESTINATION alerts {start} WITH (query_group = 'on') "
            f"AS SELECT id, v FROM t WHERE v > {least}"
        )
        second.drain(timeout=60)
    assert got == [(8, 8), (8, 8)]
    for number in (11, 12):
        first.execute(f"INSERT INTO t VALUES ({number}, {number})")
        first.refresh("m")
        second.drain(timeout=60)
        assert got[-2:] == [(number, number)] * 2
    assert len(got) == 6


def test_callbacks_in_the_background_of_another_process(two: tuple[Engine, Engine], connect: Connect) -> None:
    first, _ = two
    third = connect(limits=QUICK)
    got: list[tuple[object, ...]] = []
    third.callback("alerts")(lambda batch: got.extend(delta.new for delta in batch if delta.new is not None))
    third.execute("CREATE CONTINUOUS QUERY r DESTINATION CALLBACK alerts AS SELECT id, v FROM t WHERE v > 5")
    first.execute("INSERT INTO t VALUES (7, 7)")
    first.drain(timeout=60)
    assert got == [(7, 7)]


def test_the_queries_go_on_where_the_duties_go(two: tuple[Engine, Engine], connect: Connect) -> None:
    first, second = two
    heir = connect(limits=QUICK)
    second.execute("INSERT INTO t VALUES (1, 1)")
    second.drain(timeout=60)
    second.close()
    first.close()
    until(lambda: heir.catalog.has_duties)
    heir.execute("INSERT INTO t VALUES (2, 2)")
    until(lambda: rows(heir, "out") == [(1, 1), (2, 2)])
    assert [delta.new for delta in heir.deltas("q")] == [(1, 1), (2, 2)]


def test_a_transaction_is_not_retried_where_the_program_may_have_used_what_it_saw(
    two: tuple[Engine, Engine],
) -> None:
    first, second = two
    first.execute("INSERT INTO t VALUES (1, 1)")

    def meet(more: int) -> None:
        with second.transaction(retries=3) as tx:
            assert tx.delete("t", "v > 0").rowcount == 1
            first.execute(f"INSERT INTO t VALUES (2, {more})")

    with pytest.raises(cq_engine.ConflictError, match="another number of rows"):
        meet(1)
    first.execute("DELETE FROM t WHERE id = 2")
    meet(-1)
    assert rows(first, "t") == [(2, -1)]
