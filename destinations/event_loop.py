"""The event loop that `async` callbacks run on, beside the threads that deliver."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import TimeoutError as NotYet
from contextlib import suppress
from contextvars import ContextVar

from cq_engine.core.errors import DestinationError

__all__ = ["CALLER", "Cancelled", "EventLoop", "caller"]

_LOOK = 0.2
"""Seconds between two looks whether a call on the event loop is to be cancelled."""
CALLER: ContextVar[int | None] = ContextVar("cq_caller", default=None)


class Cancelled(Exception):
    """The engine is being closed, and has ended a call on the event loop."""


def caller() -> int:
    """The thread that delivers: this one, or that for which a callback runs in this one. It waits for the callback, so the
    callback must not wait for it."""
    return CALLER.get() or threading.get_ident()


class EventLoop:
    """An event loop in a thread of its own, for all callbacks of an engine; there from its first use to `close`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, awaitable: Awaitable[object], ended: Callable[[], bool]) -> None:
        """Waits for `awaitable` on the loop and raises what it raises. Where `ended` becomes true, it is cancelled, and
        Cancelled is raised."""
        if threading.current_thread() is self._thread:
            if inspect.iscoroutine(awaitable):
                awaitable.close()
            raise DestinationError(
                "an async callback cannot be waited for on the event loop itself",
                hint="call what waits, such as engine.refresh, in a thread: await asyncio.to_thread(engine.refresh, query)",
            )
        token = CALLER.set(caller())  # what is started below gets it
        try:
            future = asyncio.run_coroutine_threadsafe(_outcome(awaitable), self._started())
        finally:
            CALLER.reset(token)
        try:
            while not ended():
                with suppress(NotYet):
                    error = future.result(_LOOK)
                    if error is not None:
                        raise error
                    return
        finally:
            future.cancel()
        raise Cancelled

    def close(self) -> None:
        """Ends the loop and what runs on it; another use starts another one."""
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None:
            return
        with suppress(Exception):
            asyncio.run_coroutine_threadsafe(_cancel_all(), loop).result(_LOOK * 5)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_run, args=(self._loop,), name="cq-callbacks", daemon=True
                )
                self._thread.start()
            return self._loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    stopped = False
    while not stopped:
        with suppress(BaseException):  # SystemExit in a task of the user's would end the loop for all
            loop.run_forever()
            stopped = True


async def _outcome(awaitable: Awaitable[object]) -> BaseException | None:
    """What `awaitable` raises: SystemExit, raised in a task, would end the loop."""
    try:
        await awaitable
    except BaseException as error:  # noqa: BLE001 - handed to whoever waits
        return error
    return None


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
