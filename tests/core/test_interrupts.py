"""Ctrl-C at every call and return of what takes locks and ends blocks: none is left taken, no block half ended."""

from __future__ import annotations

import itertools
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any

import pytest

from cq_engine.context.foreground import Foreground
from cq_engine.core.calls import IMPATIENT, Interrupted, call
from cq_engine.core.interrupts import deferred, taken
from cq_engine.spark.settings import meaning, small_settings


class At:
    """Ctrl-C at one of the moments at which Python looks for signals: a function begins, or one of C's has returned."""

    def __init__(self, moment: int, presses: int) -> None:
        self.moment, self.presses = moment, presses
        self.seen = 0
        self.raised = False

    def run(self, block: Callable[[], object]) -> None:
        with suppress(Interrupted), call() as own:
            own._presses, own._pressed = self.presses, time.monotonic()

            def look(frame: FrameType, event: str, _argument: object) -> None:
                if event not in ("call", "c_return") or self.raised:
                    return
                if signal.getsignal(signal.SIGINT) != own._on_signal:  # it is held back
                    return
                self.seen += 1
                if self.seen >= self.moment and own._may_raise(frame):
                    self.raised = True
                    raise Interrupted

            sys.setprofile(look)
            try:
                block()
            finally:
                sys.setprofile(None)


class Conf:
    """The settings of a session."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {"a": "1"}

    def get(self, name: str, default: str | None) -> str | None:
        return self.values.get(name, default)

    def set(self, name: str, value: str) -> None:
        self.values[name] = value

    def unset(self, name: str) -> None:
        self.values.pop(name, None)


class World:
    """What the blocks take."""

    def __init__(self) -> None:
        self.lock, self.owned, self.condition = threading.Lock(), threading.RLock(), threading.Condition()
        self.semaphore, self.event, self.queue = threading.Semaphore(), threading.Event(), queue.Queue[int]()
        self.conf, self.foreground = Conf(), Foreground()
        self.open: list[str] = []

    @property
    def spark(self) -> Any:
        """A session, of which only the settings are used."""
        return self

    @contextmanager
    def block(self, name: str) -> Iterator[None]:
        try:
            self.open.append(name)
            yield
        finally:
            self._end(name)

    def _end(self, name: str) -> None:
        with self.condition:
            self.open.remove(name)

    def check(self) -> None:
        """Another thread can have all of it."""
        found: list[bool] = []

        def take() -> None:
            ours = (self.lock, self.owned, self.condition, self.semaphore, self.event._cond, self.queue.mutex)
            found.extend(each.acquire(timeout=1) for each in ours)
            with meaning(self.spark, {"a": "2"}):
                found.append(self.conf.values["a"] == "2")

        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        thread.join(10)
        assert found == [True] * 7
        assert self.conf.values == {"a": "1"}
        assert not self.open
        assert not self.foreground._under_way
        assert not self.condition._waiters  # type: ignore[attr-defined]
        for each in threading.enumerate():
            if each.name.startswith("pool"):
                each.join(10)
                assert not each.is_alive()


def locks(world: World) -> None:
    with world.condition, world.semaphore, world.lock, world.owned, world.condition:
        world.condition.notify_all()
    with taken(world.lock) as first, taken(world.lock) as second:
        assert (first, second) == (True, False)


def handovers(world: World) -> None:
    world.event.set()
    world.event.wait()
    world.queue.put(1)
    world.queue.get()


def waiting(world: World) -> None:
    with world.condition:
        world.condition.wait(0.0001)
    world.event.wait(0.0001)
    with ThreadPoolExecutor(1, "pool") as pool:
        pool.submit(int).result()


def blocks(world: World) -> None:
    with world.block("a"), ExitStack() as inside:
        inside.enter_context(world.block("b"))
        inside.enter_context(world.owned)
        inside.enter_context(world.condition)
        with deferred():
            world.open.append("c")
            world.open.remove("c")


def settings(world: World) -> None:
    with meaning(world.spark, {"a": "1"}), small_settings(world.spark):
        assert world.conf.values["a"] == "1"
    with world.foreground.busy(), meaning(world.spark, {"a": "3"}):
        assert world.conf.values["a"] == "3"


@pytest.mark.parametrize(
    ("block", "presses"),
    [
        *((block, 1) for block in (locks, handovers, waiting, blocks, settings)),
        *((block, IMPATIENT) for block in (locks, handovers, waiting, settings)),
    ],
)
def test_every_moment(block: Callable[[World], None], presses: int) -> None:
    raised = 0
    for moment in itertools.count(1):
        world, at = World(), At(moment, presses)
        at.run(partial(block, world))
        world.check()
        raised += at.raised
        if at.seen < moment:
            break
    assert raised
