"""Query groups beside what goes on at the same time: commits, creations, compaction, retention."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import cq_engine
from cq_engine import Engine, StorageError
from cq_engine.catalog.attempts import root_of
from cq_engine.core.clock import ManualClock
from cq_engine.groups import attach, detach
from cq_engine.lifecycle import create as creation
from tests.groups.test_members import SUMS, accumulated, create, create_tables, result

LONG = 120
"""Seconds that nothing here should take."""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime(2026, 1, 1, tzinfo=timezone.utc))


@pytest.fixture
def engine(spark: SparkSession, warehouse: Path, clock: ManualClock) -> Iterator[Engine]:
    with cq_engine.connect(warehouse, spark=spark, scheduler=False, clock=clock) as engine:
        create_tables(engine)
        yield engine


def in_thread(call: Callable[[], Any]) -> None:
    """In another thread, so that a lock that is held makes the test fail and not stand still."""
    done = threading.Event()
    threading.Thread(target=lambda: (call(), done.set()), daemon=True).start()
    assert done.wait(LONG), "it waits for the definition of the query"


def first(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, call: Callable[[], object]) -> None:
    """Before the function `name` of the module runs, `call` does, in another thread; once."""
    original = getattr(module, name)

    def replaced(*args: Any, **named: Any) -> Any:
        monkeypatch.setattr(module, name, original)
        in_thread(call)
        return original(*args, **named)

    monkeypatch.setattr(module, name, replaced)


def group_log(engine: Engine) -> int:
    (group,) = engine.catalog.state.groups.values()
    return group.query.result.id


def test_commits_go_on_while_a_member_joins(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    create(engine, 3, "START FROM SNAPSHOT")
    text = f"CREATE CONTINUOUS QUERY late START FROM SNAPSHOT AS {SUMS.format(3)}"
    first(monkeypatch, attach, "result_at", lambda: engine.execute("UPDATE orders SET amt = amt + 1"))
    engine.execute(text)
    assert engine.describe("late").position < engine.catalog.newest_version
    engine.drain()
    assert [d.marker for d in engine.deltas("late")] == ["I", "U"]
    assert accumulated(engine, "late") == result(engine, 3)


def test_commits_go_on_while_a_member_leaves(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    create(engine, 3, "START FROM SNAPSHOT")
    engine.execute("UPDATE orders SET amt = amt * 2")
    engine.drain()
    first(monkeypatch, detach, "prepare_start", lambda: engine.execute("UPDATE orders SET amt = amt + 1"))
    engine.execute("ALTER CONTINUOUS QUERY q2 SET ON DEMAND")
    engine.refresh("q2")
    engine.drain()
    for number in range(3):
        assert accumulated(engine, f"q{number}") == result(engine, number)


def test_new_members_are_noted_while_another_query_is_created(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refresh that computes the states of new members changes the query group beside a definition under way."""
    create(engine, 3, "START FROM SNAPSHOT")
    engine.execute("UPDATE orders SET amt = amt * 2")
    first(monkeypatch, creation, "prepare_start", lambda: engine.refresh("q1"))
    engine.execute("CREATE CONTINUOUS QUERY other AS SELECT item, count(*) AS n FROM orders GROUP BY item")
    (group,) = engine.catalog.state.groups.values()
    assert group.ready == engine.queries.find("q2").id
    engine.execute("UPDATE orders SET amt = amt + 1")
    engine.drain()
    for number in (1, 2):
        assert accumulated(engine, f"q{number}") == result(engine, number)


def test_explain_shows_what_a_group_would_do_and_did(engine: Engine) -> None:
    create(engine, 3)
    engine.execute("UPDATE orders SET amt = amt + 1")
    plan = [row[0] for row in engine.execute("EXPLAIN CONTINUOUS QUERY q2").fetchall()]
    assert "├─ pending" in plan
    assert any("one of 2 queries" in line for line in plan)
    done = [row[0] for row in engine.execute("EXPLAIN ANALYZE CONTINUOUS QUERY q2").fetchall()]
    assert done[0].startswith("continuous query q2: refreshed over versions")
    assert done[0].endswith("0 I, 0 D, 1 U") or done[0].endswith("1 I, 0 D, 0 U")
    assert any("─ delta: " in line for line in done)
    assert any("─ constants" in line for line in done)


# ---------------------------------------------------------------- retention


def pass_days(engine: Engine, clock: ManualClock, count: int) -> None:
    for _ in range(count):
        clock.set(clock.now() + timedelta(days=1))
        engine.execute("UPDATE orders SET amt = amt + 1")
        engine.drain()


def test_what_a_member_has_not_delivered_stays(engine: Engine, clock: ManualClock) -> None:
    create(engine, 3)
    engine.execute(f"CREATE CONTINUOUS QUERY waits DESTINATION CALLBACK alert AS {SUMS.format(3)}")
    engine.execute(f"CREATE CONTINUOUS QUERY none DESTINATION CALLBACK alert AS {SUMS.format(99)}")
    clock.set(clock.now() + timedelta(days=1))
    engine.execute("UPDATE orders SET amt = amt + 1")
    engine.refresh("q2")  # nobody has registered the callback
    begun = engine.catalog.newest_version
    for _ in range(10):  # the log is kept for seven days
        clock.set(clock.now() + timedelta(days=1))
        engine.execute("UPDATE orders SET amt = amt + 1 WHERE cust = 2")
        engine.refresh("q2")
    engine.vacuum()
    assert engine.catalog.floor(group_log(engine)) == begun - 1
    received: list[Any] = []
    engine.callback("alert")(lambda batch: received.extend((batch.query, d.new) for d in batch))
    engine.drain()
    assert received == [("waits", (3, 6))]
    engine.vacuum()  # the cursor of the query that waits for nothing does not hold the log
    floor = engine.catalog.floor(group_log(engine))
    assert begun < floor < engine.catalog.newest_version
    engine.execute("VACUUM q1")
    assert engine.catalog.floor(group_log(engine)) == floor
    with pytest.raises(StorageError):
        list(engine.deltas("q2", 0))
    assert result(engine, 2) == [(2, next(reversed(list(engine.deltas("q2")))).new[1])]


def test_vacuum_of_a_member_reaches_the_published_log(engine: Engine, clock: ManualClock) -> None:
    """Of the group, which keeps its own retention."""
    create(engine, 3)
    engine.catalog.limits = replace(engine.catalog.limits, published_files=2)
    engine.execute("SET retention = '2 hours'")
    for _ in range(3):
        pass_days(engine, clock, 1)
        engine.publish()
    log = Path(engine.catalog.warehouse, root_of(engine.catalog.view.storage[group_log(engine)], "log"))
    small = set(log.rglob("part-*.parquet"))
    engine.execute("VACUUM q1 RETAIN 0 HOURS")
    assert DeltaTable(log).metadata().configuration["delta.logRetentionDuration"] == "interval 2 hours"
    assert small == set(log.rglob("part-*.parquet"))
    engine.execute("SET retention = '0 hours'")
    engine.execute("VACUUM q1 RETAIN 0 HOURS")
    left = set(log.rglob("part-*.parquet"))
    assert left < small
    assert {Path(path) for path in DeltaTable(log).file_uris()} <= left


def test_members_come_and_go_after_the_log_has_been_shortened(engine: Engine, clock: ManualClock) -> None:
    create(engine, 3, "START FROM SNAPSHOT")
    pass_days(engine, clock, 3)
    clock.set(clock.now() + timedelta(days=30))
    engine.vacuum()
    floor = engine.catalog.floor(group_log(engine))
    assert floor == engine.catalog.newest_version - 1
    engine.execute(f"CREATE CONTINUOUS QUERY late START FROM SNAPSHOT AS {SUMS.format(3)}")
    engine.execute("ALTER CONTINUOUS QUERY q2 SET ON DEMAND")
    kept = [delta.commit_version for delta in engine.deltas("q2")]
    assert kept == [floor + 1]
    with pytest.raises(StorageError):
        list(engine.deltas("q2", floor - 1))
    engine.execute("UPDATE orders SET amt = amt + 1")
    engine.drain()
    engine.refresh("q2")
    assert accumulated(engine, "late") == result(engine, 3)
    assert [delta.new for delta in engine.deltas("q2", floor + 1)] == result(engine, 2)
