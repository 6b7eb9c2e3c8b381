"""What an engine does that opens a warehouse again, and what RESUME does with a query that has failed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime, timedelta, timezone

import pytest

import cq_engine
from cq_engine.api.engine import Engine
from tests.recovery.conftest import LONG

Connect = Callable[..., Engine]

START = datetime(2024, 1, 1, tzinfo=timezone.utc)


def at(minutes: float) -> datetime:
    return START + timedelta(minutes=minutes)


def prepare(engine: Engine, when: str = "") -> None:
    engine.execute("CREATE TABLE t (id INT PRIMARY KEY)")
    engine.execute(f"CREATE CONTINUOUS QUERY q {when} AS SELECT id FROM t")


def insert(engine: Engine, *ids: int) -> None:
    with engine.transaction() as tx:
        tx.insert("t", [{"id": i} for i in ids])


def delivered(engine: Engine) -> list[tuple[str, int]]:
    return [(d.marker, (d.new or d.old or ())[0]) for d in engine.deltas("q")]


# ---------------------------------------------------------------- schedules

PERIODS = {
    "COMPUTE EVERY INTERVAL '10' MINUTE": 10,
    "COMPUTE START '2024-01-01 00:05:00' WITH PERIOD 10 MINUTE": 5,
    "COMPUTE CRON '5-59/10 * * * *'": 5,
}
"""WHEN clause: in which minute a query that is created at START is due first; every ten minutes then."""


@pytest.mark.parametrize(("when", "first"), PERIODS.items())
def test_a_period_goes_on_after_a_restart(connect: Connect, when: str, first: int) -> None:
    clock = cq_engine.ManualClock(START)
    engine = connect(clock=clock, scheduler=False)
    prepare(engine, when)
    insert(engine, 1)
    clock.set(at(first - 1))
    assert engine.scheduler.tick() == ()
    engine.close()
    again = connect(clock=clock, scheduler=False)
    assert again.scheduler.tick() == ()
    clock.set(at(first))
    assert again.scheduler.tick() == ("q",)
    assert delivered(again) == [("I", 1)]


@pytest.mark.parametrize("when", PERIODS)
def test_missed_periods_are_caught_up_by_one_refresh(connect: Connect, when: str) -> None:
    clock = cq_engine.ManualClock(START)
    engine = connect(clock=clock, scheduler=False)
    prepare(engine, when)
    insert(engine, 1)
    insert(engine, 2)
    engine.close()
    clock.set(at(47))
    again = connect(clock=clock, scheduler=False)
    assert again.scheduler.tick() == ("q",)
    assert again.scheduler.tick() == ()
    assert delivered(again) == [("I", 1), ("I", 2)]
    (record,) = again.catalog.refreshes("q")
    assert (record.from_version, record.to_version) == (0, 2)
    insert(again, 3)
    clock.set(at(47.5))
    assert again.scheduler.tick() == ()
    clock.set(at(57))
    assert again.scheduler.tick() == ("q",)
    assert delivered(again)[-1] == ("I", 3)


def test_the_moment_of_its_creation_counts(connect: Connect) -> None:
    clock = cq_engine.ManualClock(START)
    engine = connect(clock=clock, scheduler=False)
    prepare(engine, "COMPUTE START '2024-01-01 00:00:00' WITH PERIOD 1 DAY")
    insert(engine, 1)
    assert engine.scheduler.tick() == ("q",)
    assert delivered(engine) == [("I", 1)]


def test_on_demand_waits_for_the_demand(connect: Connect) -> None:
    engine = connect(scheduler=True)
    prepare(engine, "COMPUTE ON DEMAND")
    insert(engine, 1)
    engine.drain(timeout=LONG)
    assert engine.describe("q").position == 0
    engine.refresh("q")
    assert delivered(engine) == [("I", 1)]


# ---------------------------------------------------------------- commits


def test_on_commit_is_asynchronous(connect: Connect) -> None:
    engine = connect(scheduler=True)
    prepare(engine)
    with engine.queries.registry.hold(["q"]):  # no refresh gets further than this
        insert(engine, 1)
        assert engine.describe("q").position == 0
        insert(engine, 2)
    engine.drain(timeout=LONG)
    assert engine.describe("q").position == 2
    assert delivered(engine) == [("I", 1), ("I", 2)]


def test_drain_waits_no_longer_than_it_is_told(connect: Connect) -> None:
    engine = connect(scheduler=True)
    prepare(engine)
    with engine.queries.registry.hold(["q"]):
        insert(engine, 1)
        with pytest.raises(cq_engine.RefreshError, match=r"not drained within 0\.05 seconds") as waited:
            engine.drain(timeout=0.05)
        assert waited.value.detail.startswith("q is being refreshed: version 0 of 1")
    engine.drain(timeout=LONG)
    assert delivered(engine) == [("I", 1)]


def test_drain_follows_a_chain_of_queries(connect: Connect) -> None:
    engine = connect(scheduler=False)
    engine.execute("CREATE TABLE t (id INT PRIMARY KEY)")
    engine.execute("CREATE CONTINUOUS QUERY p DESTINATION TABLE middle AS SELECT id FROM t")
    engine.execute("CREATE CONTINUOUS QUERY q AS SELECT count(*) AS n FROM middle")
    insert(engine, 1, 2)
    engine.drain()
    assert [d.new for d in engine.deltas("q")] == [(2,)]


@pytest.mark.parametrize("when", ["", "COMPUTE ON DELETE TO t"])
def test_a_commit_that_nobody_has_processed_moves_the_query_after_a_restart(
    connect: Connect, when: str
) -> None:
    engine = connect(scheduler=False)
    prepare(engine, when)
    insert(engine, 1, 2)
    with engine.transaction() as tx:
        tx.delete("t", "id = 1")
    engine.close()
    again = connect(scheduler=True)
    assert again.scheduler.drain(LONG)
    assert again.describe("q").position == 2
    assert delivered(again) == [("I", 1), ("I", 2), ("D", 1)]


def test_on_dml_is_only_the_trigger(connect: Connect) -> None:
    engine = connect(scheduler=True)
    prepare(engine, "COMPUTE ON DELETE OR UPDATE TO t")
    insert(engine, 1, 2)
    assert engine.scheduler.drain(LONG)
    assert engine.describe("q").position == 0
    engine.close()
    again = connect(scheduler=True)
    assert again.scheduler.drain(LONG)
    assert again.describe("q").position == 0
    with again.transaction() as tx:
        tx.delete("t", "id = 1")
    again.drain(timeout=LONG)
    assert delivered(again) == [("I", 1), ("I", 2), ("D", 1)]


def test_a_periodic_query_that_owes_a_delivery_is_not_refreshed(connect: Connect) -> None:
    engine = connect(scheduler=False)
    engine.execute("CREATE TABLE t (id INT PRIMARY KEY)")
    engine.execute(
        "CREATE CONTINUOUS QUERY q COMPUTE EVERY 1 DAY DESTINATION CALLBACK late AS SELECT id FROM t"
    )
    insert(engine, 1)
    engine.refresh("q")
    insert(engine, 2)
    engine.close()
    again = connect(scheduler=True)
    came = threading.Event()
    again.callback("late")(lambda _: came.set())
    assert came.wait(LONG)
    again.drain(timeout=LONG)
    assert again.describe("q").position == 1


# ---------------------------------------------------------------- failure and RESUME


@pytest.fixture
def failed(connect: Connect, request: pytest.FixtureRequest) -> Engine:
    """An engine whose query q has the key `a`; one commit, since taken back, has two rows of a = 1."""
    engine = connect(scheduler=False)
    engine.execute("CREATE TABLE t (id INT PRIMARY KEY, a INT)")
    engine.execute("CREATE TABLE seen (a INT, id INT)")
    engine.execute(
        f"CREATE CONTINUOUS QUERY q PRIMARY KEY (a) COMPUTE {request.param} DESTINATION TABLE seen"
        " AS SELECT a, id FROM t"
    )
    write(engine, (1, 1))
    engine.refresh("q")
    write(engine, (2, 1), (3, 3))
    with pytest.raises(
        cq_engine.ResultKeyError, match=r"two rows of q have the result key \(a = 1\)"
    ) as raised:
        engine.refresh("q")
    assert "(1, 1)" in raised.value.detail or "(1, 2)" in raised.value.detail
    assert state(engine) == ("FAILED", position := engine.catalog.status("q").position)
    assert [d.new for d in engine.deltas("q")] == [(1, 1)]
    engine.close()
    again = connect(scheduler=False)
    assert state(again) == ("FAILED", position)
    with pytest.raises(cq_engine.RefreshError, match="q has failed and waits"):
        again.refresh("q")
    with pytest.raises(cq_engine.RefreshError, match="q has failed"):
        again.drain()
    again.execute("DELETE FROM t WHERE id = 2")
    return again


def write(engine: Engine, *rows: tuple[int, int]) -> None:
    with engine.transaction() as tx:
        tx.insert("t", [{"id": i, "a": a} for i, a in rows])


def state(engine: Engine) -> tuple[str, int]:
    found = engine.describe("q")
    return found.state, found.position


def seen(engine: Engine) -> list[tuple[int, int]]:
    return sorted(engine.execute("SELECT a, id FROM seen").fetchall())


@pytest.mark.parametrize("failed", ["COMPRESSED"], indirect=True)
def test_resume_tries_the_interval_again(failed: Engine) -> None:
    failed.execute("ALTER CONTINUOUS QUERY q RESUME")
    failed.drain()
    assert state(failed)[0] == "ACTIVE"
    assert [(d.marker, d.new) for d in failed.deltas("q")] == [("I", (1, 1)), ("I", (3, 3))]
    assert seen(failed) == [(1, 1), (3, 3)]


@pytest.mark.parametrize("failed", ["TRANSACTIONAL"], indirect=True)
def test_an_error_in_past_commits_stays(failed: Engine) -> None:
    failed.execute("ALTER CONTINUOUS QUERY q RESUME")
    with pytest.raises(cq_engine.ResultKeyError, match="a = 1"):
        failed.refresh("q")
    assert state(failed)[0] == "FAILED"
    assert seen(failed) == [(1, 1)]


@pytest.mark.parametrize("failed", ["TRANSACTIONAL", "COMPRESSED"], indirect=True)
def test_resume_from_now_goes_on_behind_it(failed: Engine) -> None:
    newest = failed.catalog.newest_version
    before = failed.catalog.status("q").position
    failed.execute("ALTER CONTINUOUS QUERY q RESUME FROM NOW")
    skipped = failed.catalog.refreshes("q")[0]
    assert (skipped.plan, skipped.from_version, skipped.to_version) == ("SKIPPED", before, newest)
    assert state(failed) == ("ACTIVE", newest)
    failed.execute("UPDATE t SET id = 30 WHERE id = 3")
    write(failed, (5, 5))
    failed.drain()
    found = [(d.marker, d.old, d.new) for d in failed.deltas("q")][1:]
    assert found == [("U", (3, 3), (3, 30)), ("I", None, (5, 5))]
    write(failed, (6, 5))
    with pytest.raises(cq_engine.ResultKeyError, match="a = 5"):
        failed.refresh("q")


@pytest.mark.parametrize("failed", ["TRANSACTIONAL", "COMPRESSED"], indirect=True)
def test_resume_from_snapshot_gives_the_result_again(failed: Engine) -> None:
    failed.execute("ALTER CONTINUOUS QUERY q RESUME FROM SNAPSHOT")
    failed.drain()
    assert [(d.marker, d.new) for d in failed.deltas("q")][1:] == [("I", (1, 1)), ("I", (3, 3))]
    assert seen(failed) == [(1, 1), (1, 1), (3, 3)]


def test_resume_from_snapshot_without_a_commit_since(connect: Connect) -> None:
    """Its rows must not lie where the destinations have been already."""
    engine = connect(scheduler=False)
    engine.execute("CREATE TABLE t (id INT PRIMARY KEY, a INT)")
    engine.execute("CREATE CONTINUOUS QUERY q DESTINATION CALLBACK got AS SELECT id, a FROM t")
    got: list[tuple[int, int]] = []
    engine.callback("got")(lambda batch: got.extend((d.commit_version, d.new[0]) for d in batch if d.new))
    write(engine, (1, 1))
    engine.drain()
    for action in ("PAUSE", "RESUME FROM SNAPSHOT"):
        engine.execute(f"ALTER CONTINUOUS QUERY q {action}")
    engine.drain()
    assert [number for _, number in got] == [1, 1]
    places = [(d.commit_version, d.sequence) for d in engine.deltas("q")]
    assert len(set(places)) == 2
    write(engine, (2, 2))
    engine.drain()
    assert [number for _, number in got] == [1, 1, 2]
