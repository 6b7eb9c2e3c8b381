"""The parts of the program that kills and stalls what a cluster consists of, without a cluster."""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

import cq_engine
from tests import kills_on_cluster, postgres
from tests.cluster import ROOT
from tests.kills_on_cluster import QUERY, Trials, checked, model, stall, statements, tried

NUMBERS = 5
ENDLESS = "import time; print('committed 3', flush=True); print('refreshed 3', flush=True); time.sleep(3600)"
"""A driver that does one transaction."""
FAILING = "print('failed nothing is there', flush=True)"
"""One that says so and ends."""
PARENT = "import subprocess, sys, time; subprocess.Popen(['sleep', '3600']); print('refreshed 0', flush=True); time.sleep(3600)"
"""One that has a process of its own, with the same standard output."""


ORDERLY = """
import signal, time
from tests.cluster import end_in_order
signal.signal(signal.SIGINT, signal.SIG_IGN)
end_in_order()
try:
    print("ready", flush=True)
    time.sleep(3600)
finally:
    print("servers have ended", flush=True)
"""
"""A program of the tests that has servers."""


class Programs(Trials):
    """Trials whose driver and looking process are small programs."""

    def __init__(self, drive: str, look: str = "") -> None:
        nothing: Any = None
        super().__init__(argparse.Namespace(seconds=3600.0, trials=1), nothing, nothing, nothing)
        self.programs = {"drive": drive, "look": look}

    def command(self, what: str) -> list[str]:
        return [sys.executable, "-c", self.programs[what]]


class Short(random.Random):
    """Chance under which nothing lasts."""

    def uniform(self, a: float, b: float) -> float:
        return 0.1


class Clock:
    """In the place of the module `time`: each sleep takes ten seconds, and does what is given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, then: Callable[[], None]) -> None:
        self.now, self.then = 0.0, then
        monkeypatch.setattr(kills_on_cluster, "time", self)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, _: float) -> None:
        self.now += 10
        self.then()


# ---------------------------------------------------------------- what is there in the end


@pytest.fixture
def engine(warehouse: Path, spark: SparkSession) -> Iterator[cq_engine.Engine]:
    """What a driver leaves after some transactions, the last of which are not refreshed."""
    with cq_engine.connect(warehouse, spark=spark, scheduler=False) as made:
        made.execute("CREATE TABLE t (id INT PRIMARY KEY, g INT, v BIGINT)")
        made.execute("CREATE TABLE done (number INT PRIMARY KEY)")
        made.execute(f"CREATE CONTINUOUS QUERY q ON DEMAND AS {QUERY}")
        for number in range(NUMBERS):
            commit(made, number)
            if number == 2:
                made.refresh("q")
        yield made


def commit(engine: cq_engine.Engine, number: int) -> None:
    with engine.transaction() as transaction:
        for text in statements(number):
            transaction.execute(text)


def test_the_model_is_what_the_statements_lead_to(engine: cq_engine.Engine) -> None:
    found = {g: (n, s) for g, n, s in engine.execute(QUERY).fetchall()}
    assert found == model(NUMBERS)
    assert model(NUMBERS - 1) != found != model(NUMBERS + 1)
    assert model(0) == {}


def test_what_drivers_have_left_is_counted(engine: cq_engine.Engine) -> None:
    assert checked(engine) == {"transactions": NUMBERS}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("DELETE FROM done WHERE number = 2", "missing or twice"),
        ("UPDATE t SET v = v + 1 WHERE id = 17", "result is another"),
    ],
)
def test_what_is_lost_or_doubled_is_found(engine: cq_engine.Engine, text: str, message: str) -> None:
    engine.execute(text)
    with pytest.raises(AssertionError, match=message):
        checked(engine)


def test_deltas_that_lead_elsewhere_are_found(
    engine: cq_engine.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    deltas = engine.deltas
    monkeypatch.setattr(engine, "deltas", lambda name: list(deltas(name))[:-1])
    with pytest.raises(AssertionError, match="lead elsewhere"):
        checked(engine)


# ---------------------------------------------------------------- the driver


def test_what_a_driver_tells_is_waited_for() -> None:
    with Programs(ENDLESS) as trials:
        trials.until(1)
        assert (trials.acknowledged, trials.refreshed, trials.starts) == (3, 1, 1)


def test_a_driver_that_has_ended_is_started_again() -> None:
    with Programs("print('refreshed 0', flush=True)") as trials:
        trials.until(3)
        assert trials.starts >= 3


def test_a_driver_that_does_not_come_back_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with Programs(FAILING) as trials:
        Clock(monkeypatch, lambda: join(trials))
        with pytest.raises(TimeoutError, match=r"'refreshed': 0.*nothing is there"):
            trials.until(1, 100)
        assert trials.starts > 1


def join(trials: Trials) -> None:
    """Until the driver has ended."""
    trials.driver.wait()
    trials.readers[-1].join()


def test_each_refresh_has_the_time_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    with Programs(ENDLESS) as trials:
        trials.until(1)

        def then() -> None:
            trials.refreshed += clock.now % 90 == 0

        clock = Clock(monkeypatch, then)
        trials.until(4, 100)
        assert clock.now == 270
        with pytest.raises(TimeoutError):
            trials.until(5, 70)


def test_a_driver_has_time_to_start_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What starts and ends again and again does not get more."""
    with Programs(ENDLESS) as trials:
        trials.until(1)

        def then() -> None:
            trials.opened += clock.now % 40 == 0

        clock = Clock(monkeypatch, then)
        with pytest.raises(TimeoutError, match="after 'refreshed 3'"):
            trials.until(2, 100)
        assert clock.now == 160, (
            "100 after the first start, and ten each for the look at the clock and for the stacks"
        )


# ---------------------------------------------------------------- how it ends


def test_no_process_is_left_when_the_trials_fail() -> None:
    """The pipe has an end only when nobody has it any more, not the driver's own process either."""

    def fail() -> None:
        with trials:
            trials.until(1)
            raise ValueError("a trial")

    trials = Programs(PARENT)
    with pytest.raises(ValueError, match="a trial"):
        fail()
    assert trials.driver.returncode == -signal.SIGKILL
    assert not any(reader.is_alive() for reader in trials.readers)
    assert trials.processes == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_program_of_servers_ends_in_order(number: signal.Signals) -> None:
    """Also one that was started in the background, where SIGINT is ignored."""
    words = [sys.executable, "-c", ORDERLY]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        program.send_signal(number)
        assert program.stdout.read() == "servers have ended\n"
    assert program.returncode == 128 + number


def test_a_driver_that_is_stopped_ends_too() -> None:
    with Programs(ENDLESS) as trials:
        trials.until(1)
        trials.driver.send_signal(signal.SIGSTOP)
    assert trials.driver.returncode == -signal.SIGKILL


def test_a_transaction_that_was_acknowledged_and_is_gone_is_found() -> None:
    """The driver has told of number 3: four have to be there."""
    with Programs(ENDLESS, "print('{\"transactions\": 4}')") as trials:
        trials.until(1)
        assert trials.look() == {"transactions": 4}
    with Programs(ENDLESS, "print('{\"transactions\": 3}')") as trials:
        trials.until(1)
        with pytest.raises(AssertionError, match="acknowledged transaction is lost"):
            trials.look()


def test_what_looks_and_fails_is_no_result() -> None:
    with (
        Programs(ENDLESS, "raise SystemExit(1)") as trials,
        pytest.raises(AssertionError, match="see above"),
    ):
        trials.look()


# ---------------------------------------------------------------- what is done to the parts


def test_what_was_stalled_goes_on_though_the_trial_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, int]] = []

    def interrupted() -> None:
        raise KeyboardInterrupt

    Clock(monkeypatch, interrupted)
    with pytest.raises(KeyboardInterrupt):
        stall([7, 8], 3, lambda pid, number: sent.append((pid, number)))
    stopped, going = [(pid, signal.SIGSTOP) for pid in (7, 8)], [(pid, signal.SIGCONT) for pid in (7, 8)]
    assert sent == stopped + going


def test_the_store_is_well_again_after_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch, lambda: None)
    trials = Programs(ENDLESS)
    faults: list[Any] = []
    trials.store = SimpleNamespace(fault=faults.append)  # type: ignore[assignment]
    for kind in ("store stalled", "store failing", "store killed"):
        trials.do(kind, random.Random(1))
    assert [bool(each.delay or each.fail or each.cut) for each in faults] == [True, False] * 3


@pytest.mark.skipif(bool(postgres.missing()), reason=postgres.missing())
def test_a_database_that_was_killed_has_what_was_committed() -> None:
    trials = Programs(ENDLESS)
    with postgres.running() as server:
        trials.server = server
        with postgres.connected(f"{postgres.url(server)}/postgres") as session:
            session.execute("CREATE TABLE t AS SELECT 1 AS a")
        began = trials.ask("SELECT pg_postmaster_start_time()")
        trials.do("PostgreSQL killed", Short(1))
        assert trials.ask("SELECT * FROM t") == [(1,)]
        assert trials.ask("SELECT pg_postmaster_start_time()") > began


def test_each_trial_waits_for_what_comes_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    trials = Programs(ENDLESS)
    monkeypatch.setattr(trials, "do", lambda kind, _: calls.append(kind))
    monkeypatch.setattr(trials, "until", calls.append)
    Clock(monkeypatch, lambda: None)
    monkeypatch.setattr(kills_on_cluster.time, "strftime", lambda _: "", raising=False)
    trials.words.trials = 2
    met = tried(trials, trials.words, random.Random(1))
    assert calls[0] == 2
    assert calls[2::2] == [kills_on_cluster.AFTER] * 2
    assert calls[1::2] == list(met)
    trials.words.seconds = -1.0
    assert not tried(trials, trials.words, random.Random(1)), "no trial begins after its time"


def test_a_process_that_is_gone_already_is_no_error() -> None:
    with Programs("pass") as trials:
        join(trials)
    assert trials.driver.returncode == 0
