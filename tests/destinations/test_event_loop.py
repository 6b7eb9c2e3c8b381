"""The event loop of callbacks that are `async`: one for all, its end, and who may wait for it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from cq_engine.catalog.model import QueryStatus
from cq_engine.core.errors import DestinationError
from cq_engine.delivery.delivery import Delivery
from cq_engine.destinations import Callbacks
from cq_engine.destinations.contract import World
from cq_engine.grammar.clauses import DestinationRef
from tests.destinations.calls import LONG, destination, filled
from tests.limits import limit


def test_all_calls_have_one_loop(world: World) -> None:
    """So that a client that belongs to a loop can be kept."""
    filled(world, [[1], [2]])
    loops = []

    async def call(_: Any) -> None:
        loops.append(asyncio.get_running_loop())

    callbacks = Callbacks()
    for upto in (1, 2):
        destination(world, call, callbacks=callbacks).deliver(upto)
    assert loops[0] is loops[1]
    callbacks.loop.close()
    assert loops[0].is_closed()


def test_a_task_that_ends_the_loop_ends_it_for_nobody(world: World) -> None:
    filled(world, [[1], [2]])

    async def leave() -> None:
        raise SystemExit

    async def call(_: Any) -> None:
        await asyncio.gather(asyncio.create_task(leave()), return_exceptions=True)

    made = destination(world, call)
    made.deliver(2)
    assert made.cursor.version == 2
    made.callbacks.loop.close()


@pytest.mark.parametrize("concurrency", [1, 3])
def test_the_end_cancels_what_does_not_end(world: World, concurrency: int) -> None:
    """It is no failure, and comes again; what ends soon is waited for."""
    filled(world, [[1], [2], [3]])
    limit(world, callback_seconds=0.3)
    stopped = threading.Event()
    told: list[int] = []

    async def call(batch: Any) -> None:
        stopped.set()
        try:
            await asyncio.sleep(0.05 if batch.commit_version == 1 else LONG)
        except asyncio.CancelledError:
            told.append(batch.commit_version)
            raise

    made = destination(world, call, concurrency=concurrency, stopped=stopped.is_set)
    begun = time.monotonic()
    done = made.deliver(3)
    made.callbacks.loop.close()
    assert time.monotonic() - begun < LONG / 2
    assert done is not None
    assert (made.cursor.version, made.cursor.failures, done.deltas) == (1, 0, 1)
    assert set(told) <= {2, 3}
    accepted: list[int] = []
    again = destination(world, lambda batch: accepted.append(batch.commit_version), concurrency=concurrency)
    again.deliver(3)
    assert sorted(accepted) == [2, 3]


def test_an_interrupt_cancels(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the main thread, which waits."""
    filled(world, [[1]])
    cancelled = threading.Event()

    async def call(_: Any) -> None:
        try:
            await asyncio.sleep(LONG)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    made = destination(world, call)
    real, looks = made._ending, [0]

    def ending() -> Callable[[], bool]:
        def look() -> bool:
            looks[0] += 1
            if looks[0] > 1:
                raise KeyboardInterrupt
            return real()()

        return look

    monkeypatch.setattr(made, "_ending", ending)
    with pytest.raises(KeyboardInterrupt):
        made.deliver(1)
    assert cancelled.wait(LONG)
    assert made.cursor.failures == 0
    made.callbacks.loop.close()


# ---------------------------------------------------------------- who waits


def delivery(world: World, function: Any, **options: str) -> Delivery:
    callbacks = Callbacks()
    callbacks.register("a", function, options)
    world.query = replace(world.query, destinations=(DestinationRef("a", "CALLBACK"),))
    newest = world.catalog.newest_version
    world.define(query=world.query)
    with world.catalog.write() as unit:
        unit.set_status(world.query.name, QueryStatus(newest))
    return Delivery(world.services, callbacks, lambda *_: None)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_callback_that_delivers_to_itself(world: World, is_async: bool) -> None:
    """In the thread of another call: who waits for it is not waited for."""
    filled(world, [[1], [2]])
    seen: list[int] = []
    served: list[Delivery] = []

    def call(batch: Any) -> None:
        served[0].deliver(world.query)
        seen.append(batch.commit_version)

    async def call_async(batch: Any) -> None:
        await asyncio.to_thread(call, batch)

    served.append(delivery(world, call_async if is_async else call, concurrency="2"))
    ended = threading.Thread(target=served[0].deliver, args=(world.query,), daemon=True)
    ended.start()
    ended.join(LONG)
    assert not ended.is_alive()
    assert sorted(seen) == [1, 2]
    served[0].stop()


def test_waiting_on_the_loop_for_the_loop_is_refused(world: World) -> None:
    filled(world, [[1]])
    callbacks = Callbacks()
    inner = destination(world, lambda _: asyncio.sleep(0), callbacks=callbacks)
    said: list[str] = []

    async def call(_: Any) -> None:
        try:
            inner._call(next(inner._calls(inner.cursor, 1)).batch)
        except DestinationError as error:
            said.append(error.message)

    destination(world, call, callbacks=callbacks).deliver(1)
    assert "cannot be waited for on the event loop itself" in said[0]
    callbacks.loop.close()
