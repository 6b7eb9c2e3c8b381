"""Following a query: from Python, from SQL, across threads, event loops and processes."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine import AnalysisError, CatalogError, CQError, Delta, Engine, Follow, Progress, TransactionError
from cq_engine.core.limits import Limits
from tests.oracle.law import Account, Change, row_of

SUMS = "SELECT grp, sum(amt) AS s, count(*) AS n FROM t GROUP BY grp"
PATIENT = Limits(follow_seconds=60.0)
"""Who is not told waits for a minute."""


def create(engine: Engine, query: str = SUMS, when: str = "ON DEMAND", options: str = "") -> None:
    engine.execute("CREATE TABLE IF NOT EXISTS t (id INT, grp STRING, amt INT, PRIMARY KEY (id))")
    engine.execute("INSERT INTO t VALUES (1, 'a', 5), (2, 'b', 7)")
    engine.execute(f"CREATE CONTINUOUS QUERY q {when} {options} AS {query}")


@pytest.fixture
def engine(warehouse: Path, spark: SparkSession) -> Iterator[Engine]:
    with cq_engine.connect(warehouse, spark=spark, scheduler=False, limits=PATIENT) as opened:
        create(opened)
        yield opened


def some_history(engine: Engine, seed: int, commits: int = 8) -> None:
    """Commits with refreshes after some of them."""
    chance = random.Random(seed)
    for number in range(commits):
        engine.execute(
            chance.choice(
                (
                    f"INSERT INTO t SELECT {100 + number} + id, 'c', {number} FROM t",
                    f"UPDATE t SET amt = amt + {number + 1} WHERE id % 2 = {number % 2}",
                    f"UPDATE t SET grp = 'z' WHERE id < {number}",
                    f"DELETE FROM t WHERE id > {60 + number}",
                )
            )
        )
        if chance.random() < 0.5:
            engine.refresh("q")
    engine.refresh("q")


def taken(follow: Follow, upto: int) -> list[Delta | Progress]:
    """What comes, up to the progress to version `upto`."""
    found: list[Delta | Progress] = []
    for event in follow:
        found.append(event)
        if isinstance(event, Progress) and event.version >= upto:
            return found
    raise AssertionError(f"it ended after {found}")


def deltas(events: list[Delta | Progress]) -> list[Delta]:
    return [each for each in events if isinstance(each, Delta)]


def changes(some: list[Delta]) -> list[Change]:
    def converted(row: tuple[object, ...] | None) -> tuple[Any, ...] | None:
        return None if row is None else row_of(row)

    return [
        Change(d.commit_version, d.sequence, d.marker, converted(d.key), converted(d.new), converted(d.old))
        for d in some
    ]


def result(engine: Engine, version: int) -> list[tuple[object, ...]]:
    return [row_of(row) for row in engine.execute(f"SELECT * FROM q VERSION AS OF {version}").fetchall()]


@pytest.mark.parametrize(
    ("mode", "keyed", "limits"),
    [
        ("TRANSACTIONAL", True, {}),
        ("COMPRESSED", True, {}),
        ("TRANSACTIONAL", False, {}),
        ("TRANSACTIONAL", True, {"log_block_rows": 3, "driver_changes": -1}),
    ],
)
def test_at_every_border_there_is_the_result(
    warehouse: Path, spark: SparkSession, mode: str, keyed: bool, limits: dict[str, int]
) -> None:
    """Whatever way the log is read; and who goes on from a border gets just what the first one got after it."""
    query = SUMS if keyed else "SELECT grp, amt FROM t WHERE amt > 2"
    bounds = Limits(follow_seconds=60.0, **limits)
    with cq_engine.connect(warehouse, spark=spark, scheduler=False, limits=bounds) as engine:
        create(engine, query, f"COMPUTE {mode} DELTA ON DEMAND")
        start = engine.describe("q").position
        some_history(engine, len(limits))
        end = engine.describe("q").position
        account = Account(result(engine, start), keyed)
        if keyed:
            account.start([0])
        events = taken(engine.follow("q", from_version=start), end)
        assert deltas(events) == list(engine.deltas("q", start))
        borders = check_borders(engine, account, events, start)
        again = random.Random(mode).choice(borders)
        rest = events[events.index(Progress(again)) + 1 :]
        assert (taken(engine.follow("q", from_version=again), end) if rest else []) == rest
        assert rows_of_follow(engine, start, end) == rows_of_changes(engine, start + 1, end)


def check_borders(engine: Engine, account: Account, events: list[Delta | Progress], start: int) -> list[int]:
    """At each Progress the deltas add up to the result at that version; no version goes across one."""
    waiting: list[Delta] = []
    borders = [start]
    for event in events:
        if isinstance(event, Delta):
            waiting.append(event)
            continue
        assert event.version > borders[-1]
        assert all(borders[-1] < d.commit_version <= event.version for d in waiting)
        assert len({d.commit_version for d in waiting}) <= 1
        account.apply(changes(waiting))
        account.check(result(engine, event.version), f"at the border {event.version}")
        borders.append(event.version)
        waiting = []
    assert not waiting
    return borders[1:]


def rows_of_follow(engine: Engine, start: int, end: int) -> list[tuple[object, ...]]:
    followed = engine.execute(f"FOLLOW q FROM VERSION {start}")
    found = []
    for row in followed:
        if row[-3] != "progress":
            found.append(row)
        elif row[-2] == end:
            break
    return sorted(found, key=repr)


def rows_of_changes(engine: Engine, low: int, high: int) -> list[tuple[object, ...]]:
    text = f"SELECT * FROM q CHANGES FROM VERSION {low} TO VERSION {high}"
    return sorted(engine.execute(text).fetchall(), key=repr)


def test_the_result_first(engine: Engine) -> None:
    follow = engine.follow("q", snapshot=True)
    start = engine.describe("q").position
    first = taken(follow, start)
    assert sorted(d.new or () for d in deltas(first)) == sorted(engine.execute("SELECT * FROM q").fetchall())
    assert {(d.marker, d.commit_version, d.old) for d in deltas(first)} == {("I", start, None)}
    assert [d.key for d in deltas(first)] == [(d.new or ())[:1] for d in deltas(first)]
    engine.execute("UPDATE t SET amt = 9 WHERE id = 1")
    engine.refresh("q")
    (delta, border) = taken(follow, start + 1)
    assert isinstance(delta, Delta)
    assert (delta.marker, delta.new, delta.old, border) == (
        "U",
        ("a", 9, 1),
        ("a", 5, 1),
        Progress(start + 1),
    )
    rows = list(islice(engine.execute("FOLLOW q SNAPSHOT"), 3))
    assert [row[-3] for row in rows] == ["insert", "insert", "progress"]


def test_the_sql_result(engine: Engine) -> None:
    followed = engine.execute("FOLLOW q")
    assert followed.columns == ["grp", "s", "n", "_change_type", "_commit_version", "_commit_timestamp"]
    for refused in (followed.fetchall, followed.to_df, lambda: followed.head(1)):
        with pytest.raises(CQError, match="has no last row"):
            refused()
    version = engine.execute("UPDATE t SET amt = 6 WHERE id = 1").commit_version
    engine.refresh("q")
    rows = list(islice(followed, 3))
    time_of = engine.catalog.timestamp(version or 0)
    assert rows == [
        ("a", 5, 1, "update_preimage", version, time_of),
        ("a", 6, 1, "update_postimage", version, time_of),
        (None, None, None, "progress", version, time_of),
    ]
    engine.execute("BEGIN")
    with pytest.raises(TransactionError, match="FOLLOW cannot run inside a transaction"):
        engine.execute("FOLLOW q")
    engine.execute("ROLLBACK")


def test_what_cannot_be_followed(engine: Engine) -> None:
    for bad, kind, problem in (
        ("FOLLOW t", CatalogError, "t is a table, not a continuous query"),
        ("FOLLOW x", CatalogError, "no continuous query x"),
        ("FOLLOW q FROM VERSION 99", AnalysisError, "there is no version 99 yet"),
    ):
        with pytest.raises(kind, match=problem):
            engine.execute(bad)
    dropped, replaced = engine.follow("q"), engine.follow("q")
    engine.execute("CREATE OR REPLACE CONTINUOUS QUERY q ON DEMAND START FROM NOW AS SELECT id FROM t")
    engine.execute("DROP CONTINUOUS QUERY q")
    with pytest.raises(CatalogError, match="q was dropped"):
        next(dropped)
    engine.execute("CREATE CONTINUOUS QUERY q ON DEMAND AS SELECT id FROM t")
    with pytest.raises(CatalogError, match="q was replaced by another one"):
        next(replaced)


def test_only_chosen_markers_come(warehouse: Path, spark: SparkSession) -> None:
    with cq_engine.connect(warehouse, spark=spark, scheduler=False, limits=PATIENT) as engine:
        create(engine, when="COMPUTE DELETE DELTA ON DEMAND")
        engine.execute("UPDATE t SET amt = 6 WHERE id = 1")
        engine.execute("DELETE FROM t WHERE id = 2")
        engine.refresh("q")
        events = taken(engine.follow("q", from_version=0), engine.catalog.newest_version)
        assert [d.marker for d in deltas(events)] == ["D"]


def test_members_of_query_groups(warehouse: Path, spark: SparkSession) -> None:
    """A follower stays with its query when that gets a log of its own."""
    with cq_engine.connect(warehouse, spark=spark, scheduler=False, limits=PATIENT) as engine:
        create(engine, "SELECT id, amt FROM t WHERE amt > 5", options="WITH (query_group = 'on')")
        engine.execute(
            "CREATE CONTINUOUS QUERY r ON DEMAND WITH (query_group = 'on') AS SELECT id, amt FROM t WHERE amt > 6"
        )
        follow = engine.follow("q")
        for number, step in enumerate(
            ("", "ALTER CONTINUOUS QUERY q PAUSE", "ALTER CONTINUOUS QUERY q RESUME")
        ):
            if step:
                engine.execute(step)
            version = engine.execute(
                f"INSERT INTO t VALUES ({number + 10}, 'n', {number + 10})"
            ).commit_version
            if "PAUSE" not in step:
                engine.refresh("q")
                new = [d.new for d in deltas(taken(follow, version or 0))]
                assert new[-1] == (number + 10, number + 10)
                assert len(new) == (1 if not step else 2)


def test_followers_are_told_and_end_with_the_engine(warehouse: Path, spark: SparkSession) -> None:
    """In threads, beside the scheduler; all of them see the same, and none is found by looking (`PATIENT`)."""
    seen: dict[int, list[Delta | Progress]] = defaultdict(list)
    with cq_engine.connect(warehouse, spark=spark, limits=PATIENT) as engine:
        create(engine, when="ON COMMIT")

        def watch(number: int, follow: Follow) -> None:
            seen[number].extend(follow)

        threads = [threading.Thread(target=watch, args=(n, engine.follow("q"))) for n in range(3)]
        for thread in threads:
            thread.start()
        for number in range(4):
            engine.execute(f"INSERT INTO t VALUES ({number + 10}, 'n', 1)")
        engine.drain()
        newest = engine.catalog.newest_version
        waited = time.monotonic()
        while not all(seen[n] and seen[n][-1] == Progress(newest) for n in range(3)):
            assert time.monotonic() - waited < 30, dict(seen)
            time.sleep(0.01)
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert [d.new for d in deltas(seen[0])] == [("n", k, k) for k in (1, 2, 3, 4)]
    assert deltas(seen[0]) == deltas(seen[1]) == deltas(seen[2])


def test_async(engine: Engine) -> None:
    follow = engine.follow("q")

    async def watch() -> list[Delta | Progress]:
        found: list[Delta | Progress] = []
        async for event in follow:
            found.append(event)
            if event == Progress(3):
                break
        return found

    async def both() -> list[Delta | Progress]:
        watching = asyncio.create_task(watch())
        for number in (3, 4):
            await asyncio.sleep(0.05)
            await asyncio.to_thread(engine.execute, f"INSERT INTO t VALUES ({number}, 'n', 1)")
            await asyncio.to_thread(engine.refresh, "q")
        found = await asyncio.wait_for(watching, 30)
        follow.close()
        assert [event async for event in follow] == []
        return found

    found = asyncio.run(both())
    assert [d.new for d in deltas(found)] == [("n", 1, 1), ("n", 2, 2)]
    assert [each for each in found if isinstance(each, Progress)] == [Progress(2), Progress(3)]
    assert follow.position == 3


def test_in_a_process_that_only_reads(warehouse: Path, spark: SparkSession, engine: Engine) -> None:
    with cq_engine.connect(warehouse, spark=spark, read_only=True) as reader:
        follow = reader.follow("q")
        version = engine.execute("INSERT INTO t VALUES (3, 'n', 1)").commit_version or 0
        engine.refresh("q")
        assert [d.new for d in deltas(taken(follow, version))] == [("n", 1, 1)]
        one = threading.Timer(0.3, follow.close)
        one.start()
        assert list(follow) == []


@pytest.fixture
def other(warehouse: Path, spark: SparkSession, engine: Engine) -> Iterator[Engine]:
    """Another process on the warehouse; `engine` has the duties. Its followers do not find anything by looking."""
    limits = Limits(follow_seconds=60.0, heartbeat_seconds=0.05)
    with cq_engine.connect(warehouse, spark=spark, scheduler=False, limits=limits) as opened:
        assert engine.catalog.has_duties
        assert not opened.catalog.has_duties
        yield opened


def test_in_a_process_that_leaves_the_refreshes_to_another(engine: Engine, other: Engine) -> None:
    """It is told of them, whoever has committed; reading the result by its name shows the same."""
    seen: list[Delta | Progress] = []
    follow = other.follow("q")
    watching = threading.Thread(target=lambda: seen.extend(follow))
    watching.start()
    for number, writer in enumerate((other, engine, other)):
        version = writer.execute(f"INSERT INTO t VALUES ({number + 10}, 'n', 1)").commit_version or 0
        engine.refresh("q")
        assert row_of(other.execute("SELECT n FROM q WHERE grp = 'n'").fetchall()[0]) == (number + 1,)
        waited = time.monotonic()
        while Progress(version) not in seen:
            assert time.monotonic() - waited < 30, seen
            time.sleep(0.01)
    assert [d.new for d in deltas(seen)] == [("n", k, k) for k in (1, 2, 3)]
    assert deltas(taken(other.follow("q", version - 1), version)) == deltas(seen)[-1:]
    other.close()
    watching.join(10)
    assert not watching.is_alive()


def test_asynchronously_in_a_process_that_leaves_the_refreshes_to_another(
    engine: Engine, other: Engine
) -> None:
    async def first(follow: Follow) -> Delta | Progress:
        return await anext(follow)

    async def both() -> Delta | Progress:
        watching = asyncio.create_task(first(other.follow("q")))
        await asyncio.sleep(0.1)
        await asyncio.to_thread(engine.execute, "INSERT INTO t VALUES (3, 'n', 1)")
        await asyncio.to_thread(engine.refresh, "q")
        return await asyncio.wait_for(watching, 30)

    found = asyncio.run(both())
    assert isinstance(found, Delta)
    assert found.new == ("n", 1, 1)


def test_what_another_process_defines_is_followed_and_read_at_once(engine: Engine, other: Engine) -> None:
    follow = other.follow("q")
    before = other.execute("SELECT s FROM q WHERE grp = 'a'").fetchall()
    engine.execute(
        "ALTER CONTINUOUS QUERY q AS SELECT grp, sum(amt) + 1 AS s, count(*) AS n FROM t GROUP BY grp"
    )
    assert before == [(5,)]
    assert other.execute("SELECT s FROM q WHERE grp = 'a'").fetchall() == [(6,)]
    events = taken(follow, engine.catalog.newest_version)
    assert sorted(d.new or () for d in deltas(events)) == [("a", 6, 1), ("b", 8, 1)]
    engine.execute("DROP CONTINUOUS QUERY q")
    with pytest.raises(CatalogError, match="q was dropped"):
        next(follow)
    engine.execute("CREATE CONTINUOUS QUERY r ON DEMAND AS SELECT id FROM t")
    assert other.follow("r").position is None


def test_members_of_a_query_group_that_another_process_refreshes(engine: Engine, other: Engine) -> None:
    """The rows of a new member come at a version of which this process has the states in memory."""

    def make(name: str, least: int) -> None:
        engine.execute(
            f"CREATE CONTINUOUS QUERY {name} ON DEMAND WITH (query_group = 'on') AS "
            f"SELECT grp, sum(amt) AS s FROM t WHERE amt > {least} GROUP BY grp"
        )

    make("m1", 1)
    engine.execute("INSERT INTO t VALUES (3, 'c', 2)")
    engine.refresh("m1")
    assert sorted(other.execute("SELECT grp, s FROM m1").fetchall()) == [("a", 5), ("b", 7), ("c", 2)]
    make("m2", 5)
    engine.execute("INSERT INTO t VALUES (4, 'd', 9)")
    engine.refresh("m1")
    assert sorted(other.execute("SELECT grp, s FROM m2").fetchall()) == [("b", 7), ("d", 9)]
    assert "from the groups that are stored" in str(other.execute("EXPLAIN SELECT * FROM m2").fetchall())


def test_a_follower_that_is_forgotten_is_told_no_more(engine: Engine) -> None:
    follow = engine.follow("q")
    watchers = engine.catalog.watchers
    assert len([m for m in watchers._methods if m() is not None]) == 1
    del follow
    assert not [m for m in watchers._methods if m() is not None]
