"""A call of the engine, such as a statement: what Ctrl-C stops, and what the call had made durable by then.

In the main thread Ctrl-C ends a call with `Interrupted`. What the call waits for elsewhere, such as its Spark jobs, is
stopped; calls of other threads and background work go on. In the middle of a conversation with the JVM nothing is
raised, since the connection would be of no use after it: the answer comes soon, as the jobs are stopped, and then it is.
"""

from __future__ import annotations

import _thread
import functools
import signal
import sys
import threading
import time
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext, suppress
from types import FrameType, TracebackType
from typing import ParamSpec, TypeVar
from uuid import uuid4

from cq_engine.core import frames, interrupts
from cq_engine.core.errors import CQError

__all__ = ["Call", "Interrupted", "call", "carried", "current", "one_call", "stop_all"]

P = ParamSpec("P")
R = TypeVar("R")

IMPATIENT = 3
"""That many Ctrl-Cs are raised wherever the call is, at the price of its connection to the JVM."""
_PAUSE_SECONDS = 0.05
_SHORT_SECONDS = 0.5
_NAMED = 3
_UNUSABLE = ("py4j", "pyspark", "importlib", "logging")
"""Modules in the middle of which nothing is raised: connections to the JVM, and what every thread waits for."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C; its text is `cancelled`, or says what the call had made durable before (`durable`)."""

    durable: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.durable:
            return "cancelled"
        more = len(self.durable) - _NAMED
        shown = [*self.durable[:_NAMED], *([f"{more} more"] if more > 0 else [])]
        return f"interrupted, but {', '.join(shown)}"


class Durable:
    """What a call has made durable: commits, positions of queries, definitions."""

    def __init__(self) -> None:
        self._commits: list[int] = []
        self._positions: dict[str, int] = {}
        self._before: dict[tuple[str, str], object] = {}
        self._after: dict[tuple[str, str], object] = {}

    def commit(self, version: int) -> None:
        self._commits.append(version)

    def position(self, query: str, version: int) -> None:
        self._positions[query] = version

    def definition(self, kind: str, name: str, before: object, after: object) -> None:
        """An object of the catalog; None: it is not there."""
        self._before.setdefault((kind, name), before)
        self._after[(kind, name)] = after

    def words(self) -> tuple[str, ...]:
        """All of it for a person; what was made and taken back is left out."""
        said = []
        if self._commits:
            low, high = min(self._commits), max(self._commits)
            said.append(
                f"committed as version {low}" if low == high else f"committed as versions {low} to {high}"
            )
        for (kind, name), after in self._after.items():
            before = self._before[kind, name]
            if before != after:
                verb = "created" if before is None else "dropped" if after is None else "changed"
                said.append(f"{kind} {name} is {verb}")
        said += [f"{name} is refreshed to version {version}" for name, version in self._positions.items()]
        return tuple(said)


class Call:
    """One call, in the thread that enters it and in those that run what it has `carried`."""

    def __init__(self) -> None:
        self.tag = f"cq-{uuid4().hex}"
        """The name of its work, which no other call ever has."""
        self.durable = Durable()
        self.cancelled = False
        self.if_cancelled: dict[Hashable, Callable[[], None]] = {}
        """What is done at the end of a call that was cancelled, by who asks for it."""
        self._stops: dict[Hashable, Callable[[], object]] = {}
        self._guard = threading.Lock()
        self._over = threading.Event()
        self._handles = False
        self._before: signal._HANDLER = None
        self._presses = 0
        self._pressed = 0.0
        self._raised: BaseException | None = None
        """What Ctrl-C raises, as soon as it may."""
        self._delivered = False
        self._nudged = False
        self._within: FrameType | None = None
        """The main thread's frame that the call is a block of."""

    # ------------------------------------------------------------ work elsewhere

    def attach(
        self, what: Hashable, enter: Callable[[], None], stop: Callable[[], object], leave: Callable[[], None]
    ) -> None:
        """Before this thread uses `what`, from which `stop`, called in any thread, takes the call's work.

        Args:
            enter: marks the work that this thread begins from now on as the call's.
            leave: ends that, when the thread has done with the call.

        Raises:
            Interrupted, CQError: the call has been cancelled.
        """
        self.check()
        if what not in _state.leaves:
            self._stops.setdefault(what, stop)
            enter()
            _state.leaves[what] = leave

    def check(self) -> None:
        """Raises where the call has been cancelled; Interrupted only once, so that what cleans up can work."""
        if not self.cancelled:
            return
        if self._raised is None or threading.current_thread() is not threading.main_thread():
            raise CQError("cancelled")
        if not self._delivered:
            self._delivered = True
            raise self._raised

    def cancel(self) -> None:
        """Stops its work, also such as it begins later. May be called in a signal handler, so it takes no lock."""
        if not self.cancelled:
            self.cancelled = True
            _thread.start_new_thread(self._keep_stopping, ())

    def _keep_stopping(self) -> None:
        while True:
            for stop in list(self._stops.values()):
                with suppress(Exception):  # a JVM that does not answer has no jobs to stop
                    stop()
            self._nudge()
            if self._over.wait(_PAUSE_SECONDS):
                return

    def _nudge(self) -> None:
        """Has the main thread look whether it may raise now."""
        with self._guard:
            if self._over.is_set() or self._raised is None or self._delivered or interrupts.is_deferring():
                return
            self._nudged = True
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    # ------------------------------------------------------------ Ctrl-C

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._nudged:
            self._nudged = False
        else:
            self._presses, self._pressed = self._presses + 1, time.monotonic()
            self._raised = self._what_to_raise(number, frame) or self._raised
            if self._raised is None:
                return  # the program has a handler that goes on
            self._delivered = False
            self.cancel()
        if self._raised is None or self._delivered or self._over.is_set():
            return
        if self._may_raise(sys._getframe(1)):  # noqa: SLF001 - where it is, not where it was
            self._delivered = True
            raise self._raised

    def _may_raise(self, frame: FrameType | None) -> bool:
        """Whether Ctrl-C is raised in `frame`.

        Nobody splits the steps that take a lock, nor the handler, which may have come in the middle of them;
        the program's own handler may wait for ever. Only the impatient break off a conversation with the JVM. One with a database, and what an
        `__exit__` cleans up, have a moment, unless they wait. The beginning and end of the call itself is whole, but for what the end waits for.
        """
        if frames.splits(frame):
            return False
        impatient, ends, asks, usable = self._presses >= IMPATIENT, False, False, True
        soon_over = not frames.waits(frame) and time.monotonic() - self._pressed < _SHORT_SECONDS
        frame = interrupts.arrived(frame)
        while frame is not None and frame is not self._within:
            code, module = frame.f_code, str(frame.f_globals.get("__name__", "")).partition(".")[0]
            if code is Call._on_signal.__code__:
                return impatient and asks and not frames.splits(frame.f_back)
            asks = asks or code is Call._what_to_raise.__code__
            if code in _BETWEEN:
                return impatient and ends
            ends = ends or code is Call._wait_for_others.__code__
            usable = usable and not (soon_over and (code.co_name == "__exit__" or module == "sqlalchemy"))
            usable = usable and module not in _UNUSABLE
            frame = frame.f_back
        return impatient or usable

    def _what_to_raise(self, number: int, frame: FrameType | None) -> BaseException | None:
        """What the handler that was there raises. PySpark's would cancel the jobs of everybody, and is passed over."""
        before = self._before
        if (
            before is signal.default_int_handler
            or getattr(before, "__module__", "") == "pyspark.core.context"
        ):
            return Interrupted()
        try:
            if callable(before):
                before(number, frame)
        except BaseException as raised:  # noqa: BLE001 - raised later
            return raised
        return None

    # ------------------------------------------------------------ beginning and end

    def __enter__(self) -> Call:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.getsignal(signal.SIGINT)
            if callable(self._before):  # else it is ignored, fatal, or not Python's
                self._handles, self._within = True, sys._getframe(1)  # noqa: SLF001 - no other way
                signal.signal(signal.SIGINT, self._on_signal)
        _state.call = self
        _running.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._wait_for_others()
        except BaseException as late:  # noqa: BLE001 - Ctrl-C for the third time
            self._raised = late
            _state.leaves.clear()
        with self._guard:
            self._over.set()
        _state.call = self._within = None
        _running.discard(self)
        if self._handles and signal.getsignal(signal.SIGINT) == self._on_signal:
            signal.signal(signal.SIGINT, self._before)
        words = self.durable.words()
        # The error knows the frames that it came through; the thread that stops work must not keep what they hold.
        raised, self._raised = self._raised, None
        try:
            if isinstance(raised, Interrupted):
                raised.durable = words
            if raised is not None and raised is not error:
                raise raised
            if raised is None and self.cancelled and isinstance(error, Exception):
                raise CQError("cancelled", detail="; ".join(words)) from error
        finally:
            del raised

    def _wait_for_others(self) -> None:
        """What of the end may take time: the one part of it that the impatient break off."""
        _leave()
        for each in self.if_cancelled.values() if self.cancelled else ():
            with suppress(Exception):
                each()


class _State(threading.local):
    """The call of a thread, and what ends the thread's part in it."""

    def __init__(self) -> None:
        self.call: Call | None = None
        self.leaves: dict[Hashable, Callable[[], None]] = {}


_state = _State()
_running: set[Call] = set()
_BETWEEN = frozenset({Call.__enter__.__code__, Call.__exit__.__code__})


def _leave() -> None:
    while _state.leaves:
        _, leave = _state.leaves.popitem()
        with suppress(Exception):  # what has gone has no marks
            leave()


def current() -> Call | None:
    """The call under way in this thread."""
    return _state.call


def call() -> AbstractContextManager[Call]:
    """A block that is one call; inside of another one it is part of that.

    >>> with call() as outer, call() as inner:
    ...     assert inner is outer
    """
    return Call() if _state.call is None else nullcontext(_state.call)


def one_call(function: Callable[P, R]) -> Callable[P, R]:
    """The function, of which every run is one call."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with call():
            return function(*args, **kwargs)

    return run


def carried(function: Callable[P, R]) -> Callable[P, R]:
    """The function, which in another thread is part of the call of this one."""
    carrier = _state.call

    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if _state.call is carrier:
            return function(*args, **kwargs)
        before, _state.call = _state.call, carrier
        try:
            return function(*args, **kwargs)
        finally:
            _leave()
            _state.call = before

    return run


def stop_all(what: Hashable) -> None:
    """Cancels the calls of other threads that use `what`."""
    for each in list(_running):
        if each is not _state.call and what in each._stops:  # noqa: SLF001 - of this module
            each.cancel()
