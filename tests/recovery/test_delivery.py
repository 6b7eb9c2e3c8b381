"""Destinations of a running engine: each on its own, in order, tried again, and never forgotten."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import cq_engine
from cq_engine.api.engine import Engine
from cq_engine.core.limits import Limits
from cq_engine.destinations import CallbackDestination, DeltaBatch, Retry
from tests.recovery.conftest import LONG

Connect = Callable[..., Engine]


class Receiver:
    """A callback: keeps what it gets, refuses while `failures` is above 0, and can be held up."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.keys: list[tuple[str, int, int]] = []
        self.ids: list[int] = []
        self.tried = 0
        self.came = threading.Semaphore(0)
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, batch: DeltaBatch) -> None:
        self.tried += 1
        if self.failures:
            self.failures -= 1
            raise ValueError("not now")
        assert self.gate.wait(LONG)
        self.keys.append(batch.idempotency_key)
        self.ids += [d.new[0] for d in batch if d.new is not None]
        self.came.release()

    def wait(self) -> None:
        assert self.came.acquire(timeout=LONG)


def prepare(engine: Engine, destinations: str, **receivers: Receiver) -> None:
    engine.execute("CREATE TABLE t (id INT PRIMARY KEY)")
    for name, receiver in receivers.items():
        engine.callback(name)(receiver)
    engine.execute(f"CREATE CONTINUOUS QUERY q DESTINATION {destinations} AS SELECT id FROM t")


def insert(engine: Engine, *ids: int) -> None:
    with engine.transaction() as tx:
        tx.insert("t", [{"id": i} for i in ids])


def cursors(engine: Engine) -> dict[str, Any]:
    return {c.destination: c for c in engine.catalog.cursors("q")}


def test_a_failing_callback_delays_only_itself(connect: Connect) -> None:
    engine = connect(scheduler=False)
    broken, fine = Receiver(failures=2), Receiver()
    prepare(engine, "CALLBACK broken, CALLBACK fine, TABLE sink", broken=broken, fine=fine)
    insert(engine, 1)
    engine.refresh("q")
    assert (broken.tried, fine.ids) == (1, [1])
    assert engine.execute("SELECT id FROM sink").fetchall() == [(1,)]
    found = cursors(engine)
    assert (found["callback:broken"].version, found["callback:broken"].failures) == (0, 1)
    assert "not now" in found["callback:broken"].error
    assert found["callback:fine"].version == found["table:sink"].version == 1
    insert(engine, 2)
    engine.refresh("q")
    assert (broken.tried, fine.ids) == (2, [1, 2])
    engine.refresh("q")
    assert broken.ids == [1, 2]
    assert broken.keys == fine.keys
    assert cursors(engine)["callback:broken"].failures == 0


def test_a_slow_callback_delays_only_itself(connect: Connect) -> None:
    engine = connect(scheduler=True)
    slow, fine = Receiver(), Receiver()
    slow.gate.clear()
    prepare(engine, "CALLBACK slow, CALLBACK fine", slow=slow, fine=fine)
    try:
        for number in (1, 2):
            insert(engine, number)
            fine.wait()
        assert fine.ids == [1, 2]
        assert slow.ids == []
        with pytest.raises(cq_engine.RefreshError, match=r"not drained within 0\.1 seconds") as waited:
            engine.drain(timeout=0.1)
        assert waited.value.detail == "destination slow of q is being served: version 0 of 2"
    finally:
        slow.gate.set()
    engine.drain(timeout=LONG)
    assert slow.ids == [1, 2]


@pytest.mark.parametrize(("scheduler", "timeout"), [(False, None), (True, None), (True, 0.4)])
def test_drain_names_the_callbacks_that_raise(
    connect: Connect, scheduler: bool, timeout: float | None
) -> None:
    engine = connect(scheduler=scheduler)
    prepare(engine, "CALLBACK fine, CALLBACK broken", broken=Receiver(10**6), fine=Receiver())
    insert(engine, 1)
    engine.refresh("q")
    with pytest.raises(cq_engine.DestinationError, match="destination broken of q") as refused:
        engine.drain(timeout=timeout)
    assert "not now" in refused.value.detail


def test_drain_names_a_destination_that_fails_unexpectedly(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = connect(scheduler=True)
    prepare(engine, "CALLBACK fine", fine=Receiver())

    def deliver(*_: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(CallbackDestination, "deliver", deliver)
    insert(engine, 1)
    with pytest.raises(cq_engine.DestinationError, match="destination fine of q") as refused:
        engine.drain(timeout=LONG)
    assert "no room" in refused.value.detail


def test_it_is_tried_again_after_growing_pauses(connect: Connect) -> None:
    engine = connect(scheduler=True)
    asked: list[int] = []

    class Quick(Retry):
        def pause(self, failures: int) -> float:
            asked.append(failures)
            return 0.001

    engine.delivery.retry = Quick()
    broken = Receiver(failures=3)
    prepare(engine, "CALLBACK broken", broken=broken)
    insert(engine, 1)
    broken.wait()  # without a commit or a refresh that would cause another try
    assert broken.tried == 4
    assert asked == [1, 2, 3]
    engine.drain(timeout=LONG)
    assert (broken.ids, cursors(engine)["callback:broken"].failures) == ([1], 0)


def test_the_time_between_tries_grows_up_to_a_limit(connect: Connect) -> None:
    retry = connect(scheduler=False).delivery.retry
    pauses = [retry.pause(n) for n in range(1, 20)]
    assert pauses == sorted(pauses)
    assert 0 < pauses[0] < 1
    assert pauses[1] == 2 * pauses[0]
    assert pauses[-1] == pauses[-2] <= 300


@pytest.mark.parametrize("scheduler", [False, True])
def test_drain_names_the_destination_that_refuses(connect: Connect, scheduler: bool) -> None:
    engine = connect(scheduler=scheduler)
    engine.delivery.retry = Retry(attempts=2, base=0.001)
    broken, fine = Receiver(failures=10**6), Receiver()
    prepare(engine, "CALLBACK broken, CALLBACK fine", broken=broken, fine=fine)
    insert(engine, 1)
    with pytest.raises(
        cq_engine.DestinationError, match="destination broken of q could not be served"
    ) as raised:
        engine.drain(timeout=LONG)
    assert "not now" in raised.value.detail
    assert fine.ids == [1]
    broken.failures = 0
    engine.drain(timeout=LONG)
    assert broken.ids == [1]


@pytest.mark.parametrize("scheduler", [False, True])
def test_a_cursor_within_a_commit_still_waits(connect: Connect, scheduler: bool) -> None:
    limits = Limits(batch_deltas=2)
    engine = connect(scheduler=False, limits=limits)
    first = Receiver()
    prepare(engine, "CALLBACK parts", parts=first)
    insert(engine, *range(5))

    def dies(batch: DeltaBatch) -> None:
        first(batch)
        if len(first.keys) == 2:
            raise KeyboardInterrupt

    engine.callback("parts")(dies)
    with pytest.raises(KeyboardInterrupt):
        engine.refresh("q")
    cursor = cursors(engine)["callback:parts"]
    assert (cursor.version, cursor.sequence > 0) == (1, True)
    engine.close()
    again = connect(scheduler=scheduler, limits=limits)
    assert again.describe("q").position == 1
    second = Receiver()
    again.callback("parts")(second)
    if scheduler:
        second.wait()
        second.wait()
    again.drain(timeout=LONG)
    assert second.keys[0] == first.keys[1]
    assert sorted(first.ids[:2] + second.ids) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("scheduler", [False, True])
def test_a_callback_that_is_registered_later_gets_everything(connect: Connect, scheduler: bool) -> None:
    engine = connect(scheduler=False)
    prepare(engine, "CALLBACK late")
    engine.drain()  # there is nothing to give away yet
    for number in (1, 2):
        insert(engine, number)
        engine.refresh("q")
    assert "callback late of continuous query q is not registered" in cursors(engine)["callback:late"].error
    with pytest.raises(
        cq_engine.DestinationError, match="destination late of q could not be served"
    ) as raised:
        engine.drain()
    assert "register the callback" in raised.value.hint
    engine.close()
    again = connect(scheduler=scheduler)
    late = Receiver()
    again.callback("late")(late)
    if scheduler:
        late.wait()
        late.wait()
    again.drain(timeout=LONG)
    assert late.ids == [1, 2]
    assert cursors(again)["callback:late"].error == ""


@pytest.mark.parametrize("scheduler", [False, True])
def test_a_callback_may_refresh_its_own_query(connect: Connect, scheduler: bool) -> None:
    engine = connect(scheduler=scheduler)
    seen: list[tuple[int, ...]] = []
    second = threading.Event()
    engine.execute("CREATE TABLE t (id INT PRIMARY KEY)")

    @engine.callback("own")
    def _own(batch: DeltaBatch) -> None:
        seen.append(tuple(d.new[0] for d in batch if d.new is not None))
        if seen == [(1,)]:
            insert(engine, 2)
            engine.refresh("q")
            assert seen == [(1,)], "a batch came inside the one ahead of it"
        else:
            second.set()

    engine.execute("CREATE CONTINUOUS QUERY q DESTINATION CALLBACK own AS SELECT id FROM t")
    insert(engine, 1)
    done = threading.Thread(target=partial(engine.drain, timeout=LONG), daemon=True)
    done.start()
    assert second.wait(LONG)
    done.join(LONG)
    assert seen == [(1,), (2,)]


def test_a_table_that_refuses_is_named_and_served_later(connect: Connect) -> None:
    engine = connect(scheduler=False)
    engine.delivery.retry = Retry(attempts=2, base=0.001)
    engine.execute("CREATE TABLE sink (id INT PRIMARY KEY)")
    with engine.transaction() as tx:
        tx.insert("sink", [{"id": 7}])
    prepare(engine, "TABLE sink")
    insert(engine, 6, 7)
    with pytest.raises(
        cq_engine.DestinationError, match="destination sink of q could not be served"
    ) as raised:
        engine.drain()
    assert "id" in raised.value.detail
    with engine.transaction() as tx:
        tx.delete("sink", "id = 7")
    engine.drain()
    assert sorted(engine.execute("SELECT id FROM sink").fetchall()) == [(6,), (7,)]


def test_destinations_that_alter_adds_and_takes_away(connect: Connect) -> None:
    engine = connect(scheduler=False)
    old, new = Receiver(failures=10**6), Receiver()
    prepare(engine, "CALLBACK old", old=old, new=new)
    insert(engine, 1)
    engine.refresh("q")
    engine.execute("ALTER CONTINUOUS QUERY q SET DESTINATION new")
    insert(engine, 2)
    engine.drain(timeout=LONG)
    assert new.ids == [2]
    assert set(cursors(engine)) == {"callback:new"}, "a forgotten destination would hold up retention"


def test_close_leaves_the_rest_to_the_next_engine(connect: Connect) -> None:
    engine = connect(scheduler=True)
    engine.delivery.retry = Retry(base=1000.0, cap=1000.0)
    broken = Receiver(failures=1)
    prepare(engine, "CALLBACK broken", broken=broken)
    insert(engine, 1)
    assert engine.scheduler.drain(LONG)
    engine.close()
    assert broken.ids == []
    again = connect(scheduler=True)
    again.callback("broken")(broken)
    broken.wait()
    assert broken.ids == [1]
