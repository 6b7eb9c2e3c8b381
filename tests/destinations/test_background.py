"""Deliveries in the background, without Spark: stopping, callbacks that leave, a catalog that cannot be written."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from cq_engine.catalog.model import Cursor, QueryStatus
from cq_engine.catalog.store import Catalog
from cq_engine.core.errors import DestinationError
from cq_engine.delivery.delivery import Delivery
from cq_engine.destinations import Callbacks, Retry
from cq_engine.grammar.clauses import DestinationRef

LONG = 20.0
COMMITS = 50


class Receiver:
    """A callback: what it was given, and what it does meanwhile."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.during: Callable[[], object] = lambda: None
        self.tried = threading.Semaphore(0)

    def __call__(self, batch: Any) -> None:
        self.tried.release()
        self.during()
        self.ids += [d.new[0] for d in batch]


@pytest.fixture
def receiver(world: Any, make: Any) -> Receiver:
    """The callback `a` of a query with pending commits."""
    world.define(query=replace(make["query"], destinations=(DestinationRef("a", "CALLBACK"),)))
    for number in range(COMMITS):
        upto = world.refresh(("I", make["row"](number)))
    with world.catalog.write() as unit:
        unit.set_status(world.query.name, QueryStatus(upto))
    return Receiver()


@pytest.fixture
def delivery(world: Any, receiver: Receiver) -> Iterator[Delivery]:
    callbacks = Callbacks()
    callbacks.register("a", receiver)
    made = Delivery(world.services, callbacks, lambda *_: None, retry=Retry(base=0.001, cap=0.01))
    made.start()
    yield made
    made.stop()


def test_one_that_asks_to_be_left_alone_is(world: Any, delivery: Delivery, receiver: Receiver) -> None:
    times: list[float] = []

    def refuse_once() -> None:
        times.append(time.monotonic())
        if len(times) == 1:
            error = DestinationError("busy")
            error.wait_seconds = 0.5
            raise error

    receiver.during = refuse_once
    delivery.deliver(world.query)
    for _ in range(2):
        assert receiver.tried.acquire(timeout=LONG)
    assert times[1] - times[0] >= 0.5


def test_stopping_waits_for_the_batch_under_way_only(
    world: Any, delivery: Delivery, receiver: Receiver
) -> None:
    gate = threading.Event()
    receiver.during = lambda: gate.wait(LONG)
    delivery.wake(world.query)
    assert receiver.tried.acquire(timeout=LONG)
    stopping = threading.Thread(target=delivery.stop)
    stopping.start()
    stopping.join(0.1)
    assert stopping.is_alive(), "the batch under way was not waited for"
    gate.set()
    stopping.join(LONG)
    assert not stopping.is_alive()
    assert receiver.ids == [0]
    cursor = world.catalog.cursor(world.query.name, "callback:a")
    assert (cursor.version, cursor.failures) == (1, 0)
    delivery.start()
    delivery.wake(world.query)
    assert delivery.drain([world.query], time.monotonic() + LONG)
    assert receiver.ids == list(range(COMMITS))


@pytest.mark.parametrize("leaving", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_a_callback_that_leaves_has_failed_and_is_called_again(
    world: Any, delivery: Delivery, receiver: Receiver, leaving: type[BaseException]
) -> None:
    def leave() -> None:
        receiver.during = wait
        raise leaving("bye")

    gate = threading.Event()

    def wait() -> None:
        assert gate.wait(LONG)

    receiver.during = leave
    delivery.wake(world.query)
    for _ in range(2):
        assert receiver.tried.acquire(timeout=LONG)
    cursor = world.catalog.cursor(world.query.name, "callback:a")
    assert (cursor.version, cursor.failures) == (0, 1)
    assert f"{leaving.__name__}: bye" in cursor.error
    gate.set()
    assert delivery.drain([world.query], time.monotonic() + LONG)
    assert receiver.ids == list(range(COMMITS))


def test_a_delivery_waits_out_a_catalog_that_cannot_be_written(
    world: Any, delivery: Delivery, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the cursor nor the failure can be written; still it is tried again, without a new commit."""
    write = Catalog.write
    tries = threading.Semaphore(0)

    def full(*_: object, **__: object) -> Any:
        tries.release()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Catalog, "write", full)
    delivery.wake(world.query)
    for _ in range(6):
        assert tries.acquire(timeout=LONG)
    shown = delivery.told(Cursor(world.query.name, "callback:a", 0))
    assert shown.failures > 0
    assert "No space left" in shown.error
    monkeypatch.setattr(Catalog, "write", write)
    deadline = time.monotonic() + LONG
    while delivery.waiting(world.query) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not delivery.waiting(world.query)
    assert sorted(set(receiver.ids)) == list(range(COMMITS))
