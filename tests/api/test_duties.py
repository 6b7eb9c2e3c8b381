"""What belongs to the duties, with several processes: refreshes, delivery to tables and callbacks, waiting for them.

The query is a copy of its table, whose delta is made here, so that none of this needs Spark.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import cq_engine
from cq_engine.api.engine import Engine
from cq_engine.core.limits import Limits
from cq_engine.grammar import DestinationRef
from tests.api.rows import ids
from tests.api.test_processes import QUICK, Connect, connect
from tests.catalog.copies import NoSpark, define, put_in_place
from tests.waiting import until

__all__ = ["connect"]


@pytest.fixture
def world(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Engine]:
    """Opens engines; the first one defines t, out, and q, whose destinations are the table out and the callback alerts."""
    put_in_place(monkeypatch.setattr)
    first: list[Engine] = []

    def opened(**options: Any) -> Engine:
        engine = connect(**{"spark": NoSpark(), "scheduler": True, **options})
        if not first:
            first.append(engine)
            for name, key in (("t", " PRIMARY KEY"), ("out", "")):
                engine.execute(f"CREATE TABLE {name} (id INT{key}, v INT)")
            define(engine, "t", DestinationRef("out", "TABLE"), DestinationRef("alerts", "CALLBACK"))
        return engine

    return opened


def insert(engine: Engine, *numbers: int) -> int:
    with engine.transaction() as tx:
        tx.insert("t", [(n, n) for n in numbers])
    assert tx.commit_version is not None
    return tx.commit_version


def test_the_holder_refreshes_and_delivers_what_others_commit(world: Callable[..., Engine]) -> None:
    first, second = world(), world()
    assert [first.catalog.has_duties, second.catalog.has_duties] == [True, False]
    insert(second, 1, 2)
    until(lambda: ids(second, "out") == [1, 2])
    insert(second, 3)
    until(lambda: ids(first, "out") == [1, 2, 3])
    assert [delta.new for delta in second.deltas("q")] == [(1, 1), (2, 2), (3, 3)]


def test_refresh_and_drain_are_asked_for(world: Callable[..., Engine]) -> None:
    first, second = world(scheduler=False), world(scheduler=False)
    got: list[int] = []
    second.callback("alerts")(lambda batch: got.extend(delta.new[0] for delta in batch))
    version = insert(second, 1)
    assert second.describe("q").position == 0
    done = second.refresh("q")
    assert (done.query, done.to_version, done.inserted) == ("q", version, 1)
    assert ids(second, "out") == [1]
    assert got == [1]
    insert(first, 2)
    second.drain(timeout=30)
    assert ids(second, "out") == [1, 2]
    assert got == [1, 2]
    second.execute("REFRESH CONTINUOUS QUERY q")
    with pytest.raises(cq_engine.CatalogError, match="nothing"):
        second.refresh("nothing")
    second.execute("ALTER CONTINUOUS QUERY q PAUSE")
    with pytest.raises(cq_engine.RefreshError, match="paused"):
        second.refresh("q")
    second.execute("DROP CONTINUOUS QUERY q")
    until(lambda: not first.catalog.state.queries)


def test_where_nobody_has_the_duties_who_asks_does_it(world: Callable[..., Engine]) -> None:
    first = world(scheduler=False)
    lone = world(scheduler=False, duties=False)
    insert(lone, 1)
    first.catalog.waits = False
    first.close()
    lone.callback("alerts")(print)
    assert lone.refresh("q").inserted == 1
    assert ids(lone, "out") == [1]
    assert not lone.catalog.has_duties


def test_a_callback_gets_everything_where_it_is(world: Callable[..., Engine]) -> None:
    first, second = world(), world()
    got: list[int] = []
    second.callback("alerts")(lambda batch: got.extend(delta.new[0] for delta in batch))
    for number in range(5):
        insert(first, number)
    first.drain(timeout=30)
    assert got == [0, 1, 2, 3, 4]
    second.close()
    insert(first, 5)
    until(lambda: ids(first, "out") == [0, 1, 2, 3, 4, 5])
    assert got == [0, 1, 2, 3, 4]
    first.callback("alerts")(lambda batch: got.extend(delta.new[0] for delta in batch))
    until(lambda: got == [0, 1, 2, 3, 4, 5])


def test_the_duties_move_in_the_middle_and_nothing_comes_twice(world: Callable[..., Engine]) -> None:
    """The holder keeps silent again and again; each process goes on committing."""
    mute = Limits(lease_seconds=0.5, heartbeat_seconds=0.05)
    engines = [world(limits=mute), world(limits=mute), world(limits=mute)]
    stop = threading.Event()
    count = [0]

    def commits(engine: Engine, start: int) -> None:
        number = start
        while not stop.is_set():
            insert(engine, number)
            number += 1
            count[0] += 1
            stop.wait(0.02)

    threads = [
        threading.Thread(target=commits, args=(engine, 100_000 * n)) for n, engine in enumerate(engines)
    ]
    for thread in threads:
        thread.start()
    seen = set()
    try:
        for _ in range(4):
            holder = next((e for e in engines if e.catalog.has_duties), None)
            if holder is None:
                until(lambda: any(e.catalog.has_duties for e in engines))
                continue
            seen.add(holder)
            epoch = holder.catalog.epoch
            holder.catalog.waits = False
            holder.catalog.give_duties()
            until(lambda epoch=epoch: any(e.catalog.epoch > epoch for e in engines))  # type: ignore[misc]
            holder.catalog.waits = True
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert len(seen) > 1
    engines[0].callback("alerts")(lambda _batch: None)
    until(lambda: ids(engines[1], "out") == ids(engines[1], "t"), seconds=60)
    assert len(ids(engines[0], "t")) == count[0]
    deltas = [delta.new[0] for delta in engines[2].deltas("q") if delta.new is not None]
    assert sorted(deltas) == ids(engines[2], "t")
    versions = [delta.commit_version for delta in engines[2].deltas("q")]
    assert versions == sorted(versions)


def test_a_holder_that_lost_them_in_the_middle_of_a_refresh_writes_nothing(
    world: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = Limits(lease_seconds=0.5, heartbeat_seconds=1e6)
    first = world(scheduler=False, limits=silent)
    heirs: list[Engine] = []
    changes = first.reader.changes_arrow

    def meanwhile(*arguments: Any) -> Any:
        if not heirs:
            threading.Event().wait(1.2)
            heirs.append(world(scheduler=False, duties=True, limits=QUICK))
            heirs[0].callback("alerts")(print)
            assert heirs[0].refresh("q").inserted == 1
        return changes(*arguments)

    insert(first, 1)
    monkeypatch.setattr(first.reader, "changes_arrow", meanwhile)
    first.refresh("q")  # asks the heir in the end, who has nothing left to do
    assert ids(first, "out") == [1]
    assert len(list(first.deltas("q"))) == 1
