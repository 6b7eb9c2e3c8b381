"""A call: what Ctrl-C ends and stops, when it is raised, and what is said of it."""

from __future__ import annotations

import gc
import os
import queue
import signal
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, suppress
from types import FrameType

import pytest

from cq_engine.core import calls, frames, interrupts
from cq_engine.core.calls import Call, Interrupted, call, carried, current, one_call
from cq_engine.core.errors import CQError
from tests.core.pressing import interrupted, press, press_later

Code = Callable[..., None]


def in_module(name: str) -> Code:
    """A function of a module of this name that runs another one, in a loop of its own code."""
    namespace: dict[str, Code] = {}
    exec(f"__name__ = {name!r}\ndef run(function, *arguments): function(*arguments)", namespace)
    return namespace["run"]


class Work:
    """Something elsewhere that goes on until it is stopped."""

    def __init__(self) -> None:
        self.marks: list[str] = []
        self.stopped = threading.Event()

    def attach(self, under_way: Call) -> None:
        under_way.attach(
            self, lambda: self.marks.append("enter"), self.stopped.set, lambda: self.marks.append("leave")
        )

    def wait(self) -> None:
        assert self.stopped.wait(20)


def test_ctrl_c_ends_a_call_and_gives_the_handler_back() -> None:
    before = signal.getsignal(signal.SIGINT)

    def run(_call: Call) -> None:
        press_later()
        time.sleep(20)

    assert str(interrupted(run)) == "cancelled"
    assert signal.getsignal(signal.SIGINT) is before
    assert current() is None


def test_work_elsewhere_is_stopped_and_nothing_raised_before_it_answers() -> None:
    work, answered = Work(), []

    def converse() -> None:
        work.wait()
        answered.append(True)

    def run(under_way: Call) -> None:
        work.attach(under_way)
        work.attach(under_way)
        press_later()
        in_module("py4j.clientserver")(converse)
        time.sleep(20)

    interrupted(run)
    assert answered == [True]
    assert work.marks == ["enter", "leave"]


def test_a_second_press_raises_nothing_through_the_handler_of_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Which came between the steps that take a lock."""
    namespace: dict[str, Code] = {}
    source = (
        "__name__ = 'threading'\ndef take(kill, pid, number, taken):\n kill(pid, number)\n taken.append(True)"
    )
    exec(source, namespace)
    splits, looked, taken = frames.splits, [0], list[bool]()

    def slow(frame: FrameType | None) -> bool:
        looked[0] += 1
        if looked[0] == 1:
            press()
        return splits(frame)

    monkeypatch.setattr(frames, "splits", slow)

    def run(_call: Call) -> None:
        namespace["take"](os.kill, os.getpid(), signal.SIGINT, taken)
        time.sleep(20)

    begin = time.monotonic()
    interrupted(run)
    assert taken == [True]
    assert looked[0] > 1
    assert time.monotonic() - begin < 10


def test_a_handler_of_the_program_that_waits_is_left_with_the_third_ctrl_c() -> None:
    seen: list[int] = []

    def waits(number: int, _frame: FrameType | None) -> None:
        seen.append(number)
        if len(seen) < 3:
            time.sleep(30)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, waits)
    begin = time.monotonic()
    for n in range(3):
        press_later(0.3 * (n + 1))
    try:
        with pytest.raises(KeyboardInterrupt), call():
            time.sleep(20)
    finally:
        signal.signal(signal.SIGINT, before)
    assert time.monotonic() - begin < 15


def test_an_error_of_what_was_stopped_is_the_interrupt() -> None:
    work = Work()

    def fails() -> None:
        work.wait()
        raise ValueError("the job was cancelled")

    def run(under_way: Call) -> None:
        work.attach(under_way)
        press_later()
        in_module("pyspark.sql")(fails)

    assert isinstance(interrupted(run).__context__, ValueError)


def test_what_does_not_answer_is_left_with_the_third_ctrl_c() -> None:
    def deaf() -> None:
        for n in range(100):
            if n < 3:
                press()
            time.sleep(0.2)

    begin = time.monotonic()
    interrupted(lambda _: in_module("py4j")(deaf))
    assert time.monotonic() - begin < 15


def test_it_is_told_what_is_durable() -> None:
    def run(under_way: Call) -> None:
        under_way.durable.commit(7)
        under_way.durable.definition("table", "t", None, 1)
        under_way.durable.definition("table", "gone", None, 1)
        under_way.durable.definition("table", "gone", 1, None)
        under_way.durable.position("q", 6)
        press()
        time.sleep(20)

    said = "interrupted, but committed as version 7, table t is created, q is refreshed to version 6"
    assert str(interrupted(run)) == said


def test_ctrl_c_at_the_very_end_is_not_lost() -> None:
    def run(under_way: Call) -> None:
        with interrupts.deferred():
            press()
            under_way.durable.commit(3)

    assert str(interrupted(run)) == "interrupted, but committed as version 3"


def test_inner_calls_are_part_of_the_outer_one() -> None:
    @one_call
    def inner() -> Call | None:
        return current()

    with call() as outer:
        assert inner() is outer
    assert inner() is not outer


def test_a_handler_of_the_program_that_goes_on_is_not_in_the_way() -> None:
    seen: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        seen.append(number)

    before = signal.signal(signal.SIGINT, note)
    try:
        with call() as under_way:
            press()
            time.sleep(0.1)
            assert not under_way.cancelled
        assert signal.getsignal(signal.SIGINT) is note
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [signal.SIGINT]


def test_pysparks_handler_is_passed_over() -> None:
    """It would cancel the jobs of everybody, in the middle of a conversation with the JVM."""

    def cancel_all_jobs(_number: int, _frame: FrameType | None) -> None:
        raise AssertionError("called")

    cancel_all_jobs.__module__ = "pyspark.core.context"
    before = signal.signal(signal.SIGINT, cancel_all_jobs)
    try:
        interrupted(lambda _: (press_later(), time.sleep(20)))
        assert signal.getsignal(signal.SIGINT) is cancel_all_jobs
    finally:
        signal.signal(signal.SIGINT, before)


def test_threads_of_a_call_are_part_of_it_and_others_are_not() -> None:
    work, other = Work(), Work()
    errors: list[BaseException] = []

    def helped() -> None:
        try:
            under_way = current()
            assert under_way is not None
            work.attach(under_way)
            work.wait()
            under_way.check()
        except BaseException as error:  # noqa: BLE001 - looked at below
            errors.append(error)

    def beside() -> None:
        with call() as own:
            other.attach(own)
            assert not other.stopped.wait(1)

    threads = [threading.Thread(target=beside)]
    threads[0].start()

    def run(_call: Call) -> None:
        threads.append(threading.Thread(target=carried(helped)))
        threads[1].start()
        press_later(0.3)
        threads[1].join()
        time.sleep(20)

    interrupted(run)
    for thread in threads:
        thread.join()
    assert [str(error) for error in errors] == ["error: cancelled"]
    assert work.marks == ["enter", "leave"]
    assert not other.stopped.is_set()


def test_calls_of_other_threads_can_be_cancelled() -> None:
    work, attached = Work(), threading.Event()
    found: list[BaseException] = []

    def run() -> None:
        try:
            with call() as under_way:
                work.attach(under_way)
                attached.set()
                work.wait()
                under_way.check()
        except CQError as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    attached.wait()
    with call() as mine:
        work.attach(mine)
        calls.stop_all(work)
        thread.join()
        assert not mine.cancelled
    assert [str(error) for error in found] == ["error: cancelled"]


def test_what_is_to_be_done_after_an_interrupt() -> None:
    done: list[str] = []
    with call() as under_way:
        under_way.if_cancelled["a"] = lambda: done.append("well")

    def run(under_way: Call) -> None:
        under_way.if_cancelled["a"] = lambda: done.append("interrupted")
        press()
        time.sleep(20)

    interrupted(run)
    assert done == ["interrupted"]


def test_a_call_that_is_over_keeps_nothing_of_what_it_was_doing() -> None:
    """Not even where the thread that stops its work has not ended yet."""
    found: list[weakref.ref[Work]] = []
    answer = threading.Event()

    def run(under_way: Call) -> None:
        work = Work()
        found.append(weakref.ref(work))
        under_way.attach(run, lambda: None, answer.wait, lambda: None)
        press()
        time.sleep(20)

    interrupted(run)
    gc.collect()
    try:
        assert found[0]() is None
    finally:
        answer.set()


def test_the_impatient_do_not_leave_a_call_half_ended() -> None:
    """The third Ctrl-C is raised wherever the call is, but for the steps that end it."""

    class Over(threading.Event):
        def set(self) -> None:
            for _ in range(calls.IMPATIENT):
                press()
            super().set()

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Interrupted), call() as own:
        own._over = Over()
    assert current() is None
    assert not calls._running
    assert signal.getsignal(signal.SIGINT) is before


def test_the_impatient_break_off_what_the_end_of_a_call_waits_for() -> None:
    """Also where one Ctrl-C is lost, as in a finalizer."""

    def wait() -> None:
        with suppress(Interrupted):
            for _ in range(calls.IMPATIENT):
                press()
        press()
        raise AssertionError("it waits")

    def attach(own: Call) -> None:
        own.attach("here", lambda: None, lambda: None, wait)
        own.attach("there", lambda: None, lambda: None, wait)

    interrupted(attach)
    assert current() is None
    assert not calls._running
    assert not calls._state.leaves


def in_an_exit(wait: Callable[[], object]) -> None:
    with ExitStack() as ending:
        ending.callback(wait)


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("how", ["thread", "event", "pool", "queue", "sleep", "lock", "entered", "condition"])
def test_waits_are_broken_off_also_where_a_block_ends(how: str, wrapped: bool) -> None:
    over, held = threading.Event(), threading.Event()
    condition, lock = threading.Condition(), threading.RLock()

    def other() -> None:
        with condition, lock:
            held.set()
            over.wait(20)

    def enter(block: AbstractContextManager[object], stacked: bool = False) -> None:
        with ExitStack() as stack:
            if stacked:
                stack.enter_context(block)
            with block:
                raise AssertionError("another thread has it")

    pool = ThreadPoolExecutor(1)
    waits: dict[str, Callable[[], object]] = {
        "thread": lambda: thread.join(20),
        "event": lambda: over.wait(20),
        "pool": lambda: pool.submit(over.wait, 20).result(),
        "queue": lambda: queue.SimpleQueue[int]().get(timeout=20),
        "sleep": lambda: time.sleep(20),
        "lock": lambda: enter(lock),
        "entered": lambda: enter(lock, stacked=True),
        "condition": lambda: enter(condition),
    }
    thread = threading.Thread(target=other)
    thread.start()
    held.wait()
    begin = time.monotonic()
    try:
        interrupted(lambda _: (press_later(), in_an_exit(waits[how]) if wrapped else waits[how]()))
        assert time.monotonic() - begin < 5
    finally:
        over.set()
        thread.join()
        pool.shutdown()


def test_short_deferrals_one_after_the_other_do_not_hide_ctrl_c() -> None:
    def run(_call: Call) -> None:
        press_later()
        for _ in range(250):
            with interrupts.deferred():
                time.sleep(0.02)

    begin = time.monotonic()
    interrupted(run)
    assert time.monotonic() - begin < 3


@pytest.mark.parametrize("seed", range(3))
def test_interrupts_at_any_moment_leave_nothing_behind(seed: int) -> None:
    """Short calls one after the other under a rain of Ctrl-Cs: each ends whole, or with Interrupted."""
    over = threading.Event()
    converse, ended = in_module("py4j"), 0

    def rain() -> None:
        while not over.wait(0.001 + seed * 0.0007):
            press()

    def pressed(_number: int, _frame: FrameType | None) -> None:
        if current() is not None:
            raise Interrupted

    thread = threading.Thread(target=rain)
    before = signal.signal(signal.SIGINT, pressed)
    thread.start()
    try:
        for _ in range(200):
            try:
                with call():
                    converse(time.sleep, 0.001)
            except Interrupted:
                ended += 1
            assert current() is None
            assert signal.getsignal(signal.SIGINT) is pressed
            assert not calls._running
    finally:
        over.set()
        thread.join()
        signal.signal(signal.SIGINT, before)
    assert ended > 10
