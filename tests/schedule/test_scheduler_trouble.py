"""Runs that fail, are interrupted or end, and what the scheduler makes of them."""

from __future__ import annotations

import time
from datetime import datetime, timedelta

import pytest

from cq_engine.core.clock import ManualClock, SystemClock
from cq_engine.core.errors import CQError
from cq_engine.destinations import Retry
from cq_engine.grammar.clauses import EveryInterval, OnCommit
from cq_engine.schedule.scheduler import Scheduler
from tests.schedule.runs import LONG, START, Gate, Runs, insert

# ---------------------------------------------------------------- trying again


class Flaky:
    """A run that fails while `broken`, and is tried again."""

    def __init__(self, clock: ManualClock | SystemClock, retry: Retry) -> None:
        self.broken = True
        self.ran: list[datetime] = []
        self.clock = clock
        self.scheduler = Scheduler(clock, self.run, on_error=self.on_error, retry=retry)
        self.scheduler.add("q", OnCommit(), sources={"t"})

    def run(self, _: str) -> None:
        self.ran.append(self.clock.now())
        if self.broken:
            raise OSError(28, "No space left on device")

    def on_error(self, name: str, error: BaseException) -> None:
        self.scheduler.retry(name, str(error))

    def seconds(self) -> list[float]:
        return [(moment - START).total_seconds() for moment in self.ran]


def test_a_failed_run_is_tried_again_after_growing_pauses(clock: ManualClock) -> None:
    flaky = Flaky(clock, Retry(base=1, cap=5))
    flaky.scheduler.note_commit(1, insert("t"))
    for second in range(20):
        clock.set(START + timedelta(seconds=second))
        if second == 15:
            flaky.broken = False
        flaky.scheduler.tick()
    assert flaky.seconds() == [0, 1, 3, 7, 12, 17]
    assert flaky.scheduler.waiting("q") is None
    flaky.broken = True
    flaky.scheduler.note_commit(2, insert("t"))
    flaky.scheduler.tick()
    waiting = flaky.scheduler.waiting("q")
    assert waiting is not None
    assert (waiting.failures, waiting.failed, waiting.next - waiting.failed) == (
        1, clock.now(), timedelta(seconds=1)
    )  # fmt: skip
    assert "No space left" in str(waiting)
    assert "next try at 2024-01-01 00:00:20Z" in str(waiting)


def test_commits_and_periods_do_not_shorten_a_pause(clock: ManualClock) -> None:
    flaky = Flaky(clock, Retry(base=10, cap=10))
    flaky.scheduler.add("q", EveryInterval(2, "SECOND"), sources={"t"})
    flaky.scheduler.wake("q")
    for second in range(22):
        clock.set(START + timedelta(seconds=second))
        flaky.scheduler.note_commit(second, insert("t"))
        flaky.scheduler.wake("q")
        flaky.scheduler.add("q", EveryInterval(2, "SECOND"), sources={"t"})
        flaky.scheduler.tick()
    assert flaky.seconds() == [0, 10, 20]


def test_what_came_during_a_pause_is_not_lost_when_others_end_it(clock: ManualClock) -> None:
    flaky = Flaky(clock, Retry(base=10, cap=10))
    flaky.scheduler.note_commit(1, insert("t"))
    flaky.scheduler.tick()
    flaky.scheduler.note_commit(2, insert("t"))
    assert flaky.scheduler.idle()
    flaky.broken = False
    flaky.scheduler.end_pause("q")
    assert flaky.scheduler.busy() == ("q",)
    flaky.scheduler.end_pause("unknown")
    assert flaky.scheduler.retry("unknown", "") is None


@pytest.mark.parametrize("passing", [True, False])
def test_an_error_that_is_not_tried_again_ends_the_pauses(clock: ManualClock, passing: bool) -> None:
    flaky = Flaky(clock, Retry(base=1, cap=1))
    flaky.scheduler.note_commit(1, insert("t"))
    flaky.scheduler.tick()
    if not passing:
        flaky.on_error = lambda *_: None  # type: ignore[method-assign]
        flaky.scheduler._on_error = flaky.on_error
    clock.set(START + timedelta(seconds=1))
    flaky.scheduler.tick()
    clock.set(START + timedelta(seconds=30))
    flaky.scheduler.tick()
    assert len(flaky.ran) == (3 if passing else 2)
    assert (flaky.scheduler.waiting("q") is not None) is passing


def test_with_the_systems_clock_the_threads_try_again() -> None:
    flaky = Flaky(SystemClock(), Retry(base=0.01, cap=0.05))
    flaky.scheduler.start()
    flaky.scheduler.note_commit(1, insert("t"))
    deadline = time.monotonic() + LONG
    while len(flaky.ran) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    flaky.broken = False
    while flaky.scheduler.waiting("q") is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    count = len(flaky.ran)
    time.sleep(0.1)
    flaky.scheduler.shutdown()
    assert 4 <= count == len(flaky.ran)


# ---------------------------------------------------------------- errors, removal, life


def test_an_error_is_reported_and_stops_nothing(scheduler: Scheduler, runs: Runs) -> None:
    def fail() -> None:
        raise ValueError("broken")

    runs.during["bad"] = fail
    for name in ("bad", "good"):
        scheduler.add(name, OnCommit(), sources={"t"})
    scheduler.start()
    for version in (1, 2):
        scheduler.note_commit(version, insert("t"))
        assert scheduler.drain(LONG)
    assert sorted(runs.names) == ["bad", "bad", "good", "good"]
    assert runs.errors == [("bad", "broken"), ("bad", "broken")]


def test_an_on_error_that_fails_stops_nothing_either(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("broken")

    scheduler = Scheduler(clock, fail, on_error=fail)
    scheduler.add("q", OnCommit(), sources={"t"})
    scheduler.note_commit(1, insert("t"))
    assert scheduler.drain()
    assert "on_error of continuous query q failed" in caplog.text


def test_without_on_error_an_error_is_logged(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: str) -> None:
        raise ValueError("broken")

    scheduler = Scheduler(clock, fail)
    scheduler.add("q", OnCommit(), sources={"t"})
    scheduler.note_commit(1, insert("t"))
    scheduler.drain()
    assert "continuous query q: broken" in caplog.text


def test_an_interrupt_in_the_callers_thread_leaves_the_query_free(scheduler: Scheduler, runs: Runs) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    runs.during["q"] = interrupt
    scheduler.add("q", OnCommit(), sources={"t"})
    scheduler.note_commit(1, insert("t"))
    with pytest.raises(KeyboardInterrupt):
        scheduler.drain()
    assert scheduler.idle()


def test_a_removed_query_does_not_run(scheduler: Scheduler, clock: ManualClock, runs: Runs) -> None:
    scheduler.add("q", OnCommit(), sources={"t"})
    scheduler.add("p", EveryInterval(1, "DAY"))
    scheduler.note_commit(1, insert("t"))
    for name in ("q", "p", "unknown"):
        scheduler.remove(name)
    clock.set(START + timedelta(days=2))
    assert scheduler.tick() == ()
    assert scheduler.note_commit(2, insert("t")) == ()
    assert scheduler.drain()
    assert runs.names == []


def test_what_was_pending_before_the_start_runs_after_it(scheduler: Scheduler, runs: Runs) -> None:
    scheduler.add("q", OnCommit(), sources={"t"})
    scheduler.note_commit(1, insert("t"))
    scheduler.start()
    scheduler.start()
    assert scheduler.drain(LONG)
    assert runs.names == ["q"]


def test_shutdown_waits_for_the_run_under_way_and_starts_no_other(scheduler: Scheduler, runs: Runs) -> None:
    gate = runs.during["q"] = Gate()
    scheduler.add("q", OnCommit(), sources={"t"})
    scheduler.start()
    scheduler.note_commit(1, insert("t"))
    assert gate.entered.acquire(timeout=LONG)
    scheduler.note_commit(2, insert("t"))
    scheduler.shutdown(wait=False)
    gate.open.release()
    scheduler.start()
    gate.open.release()
    assert scheduler.drain(LONG)
    assert runs.names == ["q", "q"]
    scheduler.shutdown()
    scheduler.note_commit(3, insert("t"))
    assert not scheduler.idle()
    assert runs.names == ["q", "q"]
    gate.open.release()
    assert scheduler.drain(LONG)  # no threads: in this one
    assert len(runs.names) == 3


def test_waiting_inside_a_run_is_refused(scheduler: Scheduler, runs: Runs) -> None:
    scheduler.add("q", OnCommit(), sources={"t"})
    for started in (False, True):
        if started:
            scheduler.start()
        for wait in (scheduler.drain, scheduler.tick, scheduler.shutdown):
            runs.during["q"] = wait
            scheduler.note_commit(1, insert("t"))
            assert scheduler.drain(LONG)
    assert len(runs.errors) == 6
    assert all("would wait for itself" in message for _, message in runs.errors)
    with pytest.raises(CQError, match="drain inside"):
        raise_inside(scheduler, runs)


def raise_inside(scheduler: Scheduler, runs: Runs) -> None:
    caught: list[CQError] = []

    def wait() -> None:
        try:
            scheduler.drain()
        except CQError as error:
            caught.append(error)

    runs.during["q"] = wait
    scheduler.note_commit(9, insert("t"))
    assert scheduler.drain(LONG)
    raise caught[0]
