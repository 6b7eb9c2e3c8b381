"""The scheduler's promises: no overlap, one more run for whatever arrives, errors stop nothing."""

from __future__ import annotations

import queue
import threading
from collections import deque
from datetime import datetime, timedelta, timezone

import pytest

from cq_engine.core.clock import ManualClock, SystemClock
from cq_engine.core.errors import AnalysisError
from cq_engine.grammar.clauses import Cron, EveryInterval, OnCommit, OnDemand, OnDml, StartWithPeriod
from cq_engine.schedule.scheduler import Scheduler
from tests.schedule.runs import LONG, START, Gate, Runs, insert

# ---------------------------------------------------------------- the clock


def test_a_periodic_query_runs_when_its_time_has_come(
    scheduler: Scheduler, clock: ManualClock, runs: Runs
) -> None:
    scheduler.add("q", EveryInterval(10, "MINUTE"))
    assert scheduler.tick() == ()
    clock.set(START + timedelta(minutes=10))
    assert scheduler.tick() == ("q",)
    assert scheduler.tick() == ()
    clock.set(START + timedelta(minutes=20))
    scheduler.tick()
    assert runs.names == ["q", "q"]


def test_many_missed_periods_are_caught_up_by_one_run(
    scheduler: Scheduler, clock: ManualClock, runs: Runs
) -> None:
    scheduler.add("q", EveryInterval(10, "MINUTE"))
    clock.set(START + timedelta(minutes=95))
    scheduler.tick()
    clock.set(START + timedelta(minutes=99))
    scheduler.tick()
    assert runs.names == ["q"]
    clock.set(START + timedelta(minutes=100))
    scheduler.tick()
    assert runs.names == ["q", "q"]


def test_after_a_restart_a_missed_period_is_due_at_once(
    scheduler: Scheduler, clock: ManualClock, runs: Runs
) -> None:
    scheduler.add("late", EveryInterval(1, "HOUR"), last_run=START - timedelta(hours=7, minutes=5))
    scheduler.add("fresh", EveryInterval(1, "HOUR"), last_run=START - timedelta(minutes=5))
    assert scheduler.tick() == ("late",)
    clock.set(START + timedelta(minutes=55))
    assert scheduler.tick() == ("late", "fresh")


def test_the_four_kinds_of_periods_side_by_side(scheduler: Scheduler, clock: ManualClock) -> None:
    scheduler.add("every", EveryInterval(1, "MONTH"))
    scheduler.add("start", StartWithPeriod("2024-01-01 06:00:00", 1, "WEEK"))
    scheduler.add("cron", Cron("0 12 * * mon"))
    scheduler.add("never", OnDemand())
    due = {}
    for hours in range(0, 24 * 32, 6):
        clock.set(START + timedelta(hours=hours))
        for name in scheduler.tick():
            due.setdefault(name, []).append(clock.now().strftime("%d %H"))
    assert due == {
        "start": ["01 06", "08 06", "15 06", "22 06", "29 06"],
        "cron": ["01 12", "08 12", "15 12", "22 12", "29 12"],
        "every": ["01 00"],  # February's first
    }


def test_tick_takes_a_moment_of_its_own(scheduler: Scheduler, runs: Runs) -> None:
    scheduler.add("q", EveryInterval(1, "DAY"))
    assert scheduler.tick(START + timedelta(days=1)) == ("q",)


def test_a_new_schedule_replaces_the_old_one(scheduler: Scheduler, clock: ManualClock) -> None:
    scheduler.add("q", EveryInterval(1, "MINUTE"))
    scheduler.add("q", EveryInterval(1, "DAY"))
    clock.set(START + timedelta(hours=1))
    assert scheduler.tick() == ()


def test_a_schedule_that_is_not_valid_changes_nothing(scheduler: Scheduler, clock: ManualClock) -> None:
    scheduler.add("q", EveryInterval(1, "MINUTE"))
    with pytest.raises(AnalysisError):
        scheduler.add("q", Cron("never"))
    clock.set(START + timedelta(minutes=1))
    assert scheduler.tick() == ("q",)


# ---------------------------------------------------------------- commits


def test_a_commit_wakes_the_queries_over_its_tables(scheduler: Scheduler, runs: Runs) -> None:
    scheduler.add("joined", OnCommit(), sources={"orders", "Customers"})
    scheduler.add("other", OnCommit(), sources={"stock"})
    scheduler.add("periodic", EveryInterval(1, "DAY"), sources={"orders"})
    assert scheduler.note_commit(1, insert("ORDERS", "customers")) == ("joined",)
    assert not scheduler.idle()
    assert scheduler.drain()
    assert runs.names == ["joined"]


@pytest.mark.parametrize(
    ("kinds", "woken"),
    [({"INSERT"}, True), ({"UPDATE", "DELETE"}, True), ({"DELETE"}, False), (set(), False)],
)
def test_on_dml_looks_at_the_kind_of_change(scheduler: Scheduler, kinds: set[str], woken: bool) -> None:
    scheduler.add("q", OnDml(("INSERT", "UPDATE"), ("orders", "lines")), sources={"stock"})
    assert scheduler.note_commit(1, {"orders": frozenset(kinds)}) == (("q",) if woken else ())
    assert scheduler.note_commit(2, insert("stock")) == ()


def test_commits_before_a_run_are_one_run(scheduler: Scheduler, runs: Runs) -> None:
    scheduler.add("q", OnCommit(), sources={"t"})
    for version in range(5):
        scheduler.note_commit(version, insert("t"))
    scheduler.drain()
    assert runs.names == ["q"]


@pytest.mark.parametrize("started", [True, False])
def test_a_run_that_commits_wakes_the_queries_above_it(
    scheduler: Scheduler, runs: Runs, started: bool
) -> None:
    scheduler.add("lower", OnCommit(), sources={"t"})
    scheduler.add("upper", OnCommit(), sources={"lower"})
    runs.during["lower"] = lambda: scheduler.note_commit(2, insert("lower"))
    if started:
        scheduler.start()
    scheduler.note_commit(1, insert("t"))
    assert scheduler.drain(LONG)
    assert runs.names == ["lower", "upper"]


def test_commits_during_a_run_are_exactly_one_more_run(scheduler: Scheduler, runs: Runs) -> None:
    gate = runs.during["q"] = Gate()
    scheduler.add("q", OnCommit(), sources={"t"})
    scheduler.start()
    scheduler.note_commit(1, insert("t"))
    assert gate.entered.acquire(timeout=LONG)
    for version in range(2, 7):
        scheduler.note_commit(version, insert("t"))
    assert scheduler.drain(0.01) is False
    gate.open.release(2)
    assert scheduler.drain(LONG)
    assert runs.names == ["q", "q"]


def test_runs_of_one_query_never_overlap_and_none_is_lost(clock: ManualClock) -> None:
    committed, seen, active = [0], [0], threading.Lock()

    def run(name: str) -> None:
        assert active.acquire(blocking=False), "two runs at once"
        seen[0] = committed[0]
        active.release()

    errors: list[Exception] = []
    scheduler = Scheduler(clock, run, on_error=lambda _, error: errors.append(error), workers=8)
    scheduler.add("q", OnCommit(), sources={"t"})
    scheduler.start()

    def commit_many() -> None:
        for _ in range(100):
            committed[0] += 1
            scheduler.note_commit(committed[0], insert("t"))

    threads = [threading.Thread(target=commit_many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert scheduler.drain(LONG)
    scheduler.shutdown()
    assert errors == []
    assert seen == committed


def test_different_queries_run_at_the_same_time(scheduler: Scheduler, runs: Runs) -> None:
    meet = threading.Barrier(2, timeout=LONG)
    for name in ("p", "q"):
        scheduler.add(name, OnCommit(), sources={"t"})
        runs.during[name] = meet.wait
    scheduler.start()
    scheduler.note_commit(1, insert("t"))
    assert scheduler.drain(LONG)
    assert runs.errors == []


# ---------------------------------------------------------------- fairness

NAMES = tuple(f"q{number}" for number in range(6))


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_commits_faster_than_runs_leave_no_query_behind(clock: ManualClock, workers: int) -> None:
    """A commit comes before every end of a run: each query is always due again."""
    entered: queue.Queue[tuple[str, threading.Event]] = queue.Queue()

    def run(name: str) -> None:
        done = threading.Event()
        entered.put((name, done))
        assert done.wait(LONG)

    scheduler = Scheduler(clock, run, workers=workers)
    for name in NAMES:
        scheduler.add(name, OnCommit(), sources={"t"})
    scheduler.start()
    scheduler.note_commit(0, insert("t"))
    under_way = deque(entered.get(timeout=LONG) for _ in range(workers))
    ran = [name for name, _ in under_way]
    for version in range(1, 60):
        scheduler.note_commit(version, insert("t"))
        under_way.popleft()[1].set()
        under_way.append(entered.get(timeout=LONG))
        ran.append(under_way[-1][0])
    scheduler.shutdown(wait=False)
    for _, done in under_way:
        done.set()
    scheduler.shutdown()
    round_ = len(NAMES) + workers - 1
    for start in range(len(ran) - round_):
        assert set(ran[start : start + round_]) == set(NAMES), f"a query waits from run {start} on"


def test_the_callers_thread_is_fair_too(clock: ManualClock) -> None:
    ran: list[str] = []

    def run(name: str) -> None:
        ran.append(name)
        if len(ran) < 10 * len(NAMES):
            scheduler.note_commit(len(ran), insert("t"))

    scheduler = Scheduler(clock, run)
    for name in NAMES:
        scheduler.add(name, OnCommit(), sources={"t"})
    scheduler.note_commit(0, insert("t"))
    assert scheduler.drain(LONG)
    assert ran[: 10 * len(NAMES)] == [*NAMES] * 10


def test_queries_that_are_always_due_take_turns_with_those_of_commits(
    scheduler: Scheduler, clock: ManualClock, runs: Runs
) -> None:
    scheduler.add("periodic", EveryInterval(1, "SECOND"))
    for name in NAMES:
        scheduler.add(name, OnCommit(), sources={"t"})
    for moment in range(1, 11):
        scheduler.note_commit(moment, insert("t"))
        clock.set(START + timedelta(seconds=moment))
        scheduler.tick()
    assert runs.names == [*NAMES, "periodic"] * 10


# ---------------------------------------------------------------- the system's clock


def test_with_the_systems_clock_the_threads_wake_periodic_queries(runs: Runs) -> None:
    twice = threading.Semaphore(0)
    runs.during["q"] = twice.release
    scheduler = Scheduler(SystemClock(), runs.run)
    scheduler.start()
    scheduler.add("q", EveryInterval(1, "SECOND"), last_run=datetime.now(timezone.utc) - timedelta(days=30))
    scheduler.add("later", EveryInterval(1, "DAY"))
    for _ in range(2):
        assert twice.acquire(timeout=LONG)
    scheduler.remove("q")
    scheduler.shutdown()
    assert set(runs.names) == {"q"}
    assert len(runs.names) <= 3


def test_a_periodic_query_known_before_the_start_is_woken_too(runs: Runs) -> None:
    ran = threading.Event()
    runs.during["q"] = ran.set
    scheduler = Scheduler(SystemClock(), runs.run)
    scheduler.add("q", Cron("0 0 1 1 *"), last_run=datetime(2020, 6, 1, tzinfo=timezone.utc))
    scheduler.start()
    assert ran.wait(LONG)
    scheduler.shutdown()
    assert runs.names == ["q"]
