"""Workers, driver, database and store of a cluster, killed and stalled while refreshes run: nothing is lost or doubled.

    python -m tests.kills_on_cluster --trials 50 --seed 1

A driver commits numbered transactions and has executors refresh a query after each. A trial does one thing to one part at a random moment,
and waits until three more transactions are through. At the end another process looks at everything: each number that was
acknowledged is there, none is there twice, the rows are those of a model, and the deltas lead to the result step by step.

moto's server has its objects in memory, so that a store that is killed is one whose connections are all cut for some seconds, some of them
after the request had its effect. PostgreSQL's processes are killed and started again on what they have left; its sessions are killed; all of
its processes but the one that accepts connections are stalled. Files that nobody refers to are not looked for here.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg

import cq_engine
from cq_engine.core.limits import Limits
from cq_engine.launch.session import spark_session
from tests import object_store, postgres
from tests.brokers import Server
from tests.cluster import DRIVER, ROOT, Cluster, cluster, end_in_order
from tests.limits import EXECUTORS
from tests.object_store import Faults, ObjectStoreServer

QUERY = "SELECT g, count(*) AS n, sum(v) AS s FROM t GROUP BY g"
AFTER = 3
"""Transactions that come through after what was done, before the next trial."""
PATIENCE = 240.0
"""Seconds that each of them may take, before nothing is said to come through any more."""


def statements(number: int) -> list[str]:
    """What transaction `number` does; with its number, which can be there once."""
    low = 10 * number
    return [
        f"INSERT INTO done VALUES ({number})",
        f"INSERT INTO t SELECT CAST(id AS INT), CAST(id % 5 AS INT), CAST(id AS BIGINT) FROM range({low}, {low + 10})",
        f"UPDATE t SET v = v + 1 WHERE id BETWEEN {low - 12} AND {low - 8}",
        f"DELETE FROM t WHERE id = {low - 25}",
    ]


def model(numbers: int) -> dict[int, tuple[int, int]]:
    """The query's result after so many transactions."""
    rows: dict[int, int] = {}
    for number in range(numbers):
        low = 10 * number
        rows.update({key: key for key in range(low, low + 10)})
        for key in range(low - 12, low - 7):
            if key in rows:
                rows[key] += 1
        rows.pop(low - 25, None)
    found: dict[int, tuple[int, int]] = {}
    for key, value in rows.items():
        count, total = found.get(key % 5, (0, 0))
        found[key % 5] = (count + 1, total + value)
    return found


# ---------------------------------------------------------------- the driver


def opened(words: argparse.Namespace, **more: Any) -> cq_engine.Engine:
    store = ObjectStoreServer(words.port)
    spark = spark_session({"spark.master": words.master, **DRIVER, "spark.network.timeout": "60s",
                           "spark.executor.heartbeatInterval": "3s"})  # fmt: skip
    limits = Limits(**{**EXECUTORS, "lease_seconds": 6.0, "heartbeat_seconds": 1.0})
    return cq_engine.connect(
        words.url, words.database, spark, conf=store.options, limits=limits, scheduler=False, **more
    )


def drive(words: argparse.Namespace) -> None:
    """Transactions for ever; what has been acknowledged goes to standard output. SIGUSR1 asks where each thread is."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    engine = opened(words)
    print("opened", flush=True)
    with suppress(cq_engine.CQError):
        engine.execute("CREATE TABLE t (id INT PRIMARY KEY, g INT, v BIGINT)")
        engine.execute("CREATE TABLE done (number INT PRIMARY KEY)")
        engine.execute(f"CREATE CONTINUOUS QUERY q ON DEMAND AS {QUERY}")
    while True:
        try:
            row = engine.execute("SELECT max(number) FROM done").fetchall()[0][0]
            number = -1 if row is None else int(row)
            with engine.transaction() as transaction:
                for text in statements(number + 1):
                    transaction.execute(text)
            print("committed", number + 1, flush=True)
            engine.refresh("q")
            print("refreshed", number + 1, flush=True)
        except cq_engine.LeaseError:
            raise
        except cq_engine.CQError as error:
            print("failed", error.message[:200].replace("\n", " "), flush=True)
            time.sleep(0.5)


def look(words: argparse.Namespace) -> dict[str, Any]:
    """What is there in the end."""
    with opened(words) as engine:
        return checked(engine)


def checked(engine: cq_engine.Engine) -> dict[str, Any]:
    """How many transactions are there; raises AssertionError where one is missing or has taken place twice, and where result or
    deltas are others than those of the model."""
    engine.refresh("q")
    numbers = sorted(row[0] for row in engine.execute("SELECT number FROM done").fetchall())
    result = {row[0]: (row[1], row[2]) for row in engine.execute("SELECT * FROM q").fetchall()}
    state: dict[Any, Any] = {}
    for delta in engine.deltas("q"):
        before = state.get(delta.key)
        assert (before is None) == (delta.marker == "I"), f"{delta} follows {before}"
        assert before is None or delta.old is None or before == delta.old
        if delta.marker == "D":
            del state[delta.key]
        else:
            state[delta.key] = delta.new
    assert numbers == list(range(len(numbers))), "a transaction is missing or twice there"
    assert result == model(len(numbers)), "the result is another one"
    assert {row[0]: tuple(row[1:]) for row in state.values()} == result, "the deltas lead elsewhere"
    return {"transactions": len(numbers)}


# ---------------------------------------------------------------- the trials


class Trials:
    """The driver, which is started again whenever it has ended, and what it has told; no process outlives the block."""

    def __init__(
        self, words: argparse.Namespace, made: Cluster, store: ObjectStoreServer, server: Server
    ) -> None:
        self.words, self.made, self.store, self.server = words, made, store, server
        self.acknowledged = -1
        self.refreshed = 0
        self.starts = 0
        self.opened = 0
        self.last = ""
        self.failed: Counter[str] = Counter()
        self.processes: list[subprocess.Popen[str]] = []
        self.readers: list[threading.Thread] = []

    def __enter__(self) -> Trials:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def start(self) -> None:
        """Starts the driver, also anew."""
        self.starts += 1
        self.driver = self.process("drive")
        self.readers.append(threading.Thread(target=self.read, args=(self.driver,), daemon=True))
        self.readers[-1].start()

    def end(self) -> None:
        """Ends the driver and whatever else was started, and reads what they have told before."""
        for process in list(self.processes):
            self.kill(process)
        for reader in self.readers:
            reader.join()

    def kill(self, process: subprocess.Popen[str]) -> None:
        """Ends a process and those that it has started, which have no time to say goodbye."""
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self.processes.remove(process)

    def command(self, what: str) -> list[str]:
        own = [f"--{name}={getattr(self.words, name)}" for name in ("master", "port", "url", "database")]
        return [sys.executable, "-m", "tests.kills_on_cluster", f"--inside={what}", *own]

    def process(self, what: str) -> subprocess.Popen[str]:
        made = subprocess.Popen(
            self.command(what), cwd=ROOT, text=True, start_new_session=True, stdout=subprocess.PIPE,
            env={**os.environ, "AWS_EC2_METADATA_DISABLED": "true"},
        )  # fmt: skip
        self.processes.append(made)
        return made

    def read(self, driver: subprocess.Popen[str]) -> None:
        assert driver.stdout is not None
        with driver.stdout as lines:
            for line in lines:
                self.last = line.strip()
                what, _, rest = self.last.partition(" ")
                self.opened += what == "opened"
                if what == "committed":
                    self.acknowledged = max(self.acknowledged, int(rest))
                elif what == "refreshed":
                    self.refreshed += 1
                elif what == "failed":
                    self.failed[rest[:80]] += 1

    def until(self, refreshes: int, seconds: float = PATIENCE) -> None:
        """Waits until so many refreshes were told of, for each of them at most so long, and once as long for a driver to start."""
        known, late, end = self.refreshed, self.opened, time.monotonic() + seconds
        while self.refreshed < refreshes:
            if self.refreshed > known:
                known, late, end = self.refreshed, self.opened, time.monotonic() + seconds
            elif late is not None and self.opened > late:
                late, end = None, time.monotonic() + seconds
            if time.monotonic() > end:
                self.driver.send_signal(signal.SIGUSR1)
                time.sleep(1)
                raise TimeoutError(f"nothing comes through any more after {self.last!r}: {self.said()}")
            if self.driver.poll() is not None:
                self.kill(self.driver)
                self.start()
            time.sleep(0.05)

    def said(self) -> dict[str, Any]:
        """What the drivers have told."""
        return {
            "acknowledged": self.acknowledged, "refreshed": self.refreshed, "starts": self.starts, "failed": dict(self.failed),
        }  # fmt: skip

    def look(self) -> dict[str, Any]:
        """What another process finds when the drivers have ended."""
        self.end()
        looking = self.process("look")
        seen = looking.communicate(timeout=2 * PATIENCE)[0]
        assert looking.returncode == 0, f"see above: {seen}"
        found: dict[str, Any] = json.loads(seen.splitlines()[-1])
        assert found["transactions"] > self.acknowledged, "an acknowledged transaction is lost"
        return found

    def do(self, kind: str, rng: random.Random) -> None:
        """One thing to one part; what is stalled or made to fail is well again afterwards."""
        part, _, what = kind.rpartition(" ")
        seconds = rng.uniform(1, 8)
        if part == "worker":
            number = rng.choice([n for n, worker in enumerate(self.made.workers) if worker.poll() is None])
            if what == "killed":
                self.made.kill_worker(number)
                self.made.add_worker()
            else:
                self.made.stall_worker(number, seconds)
        elif part == "driver":
            if what == "killed":
                self.kill(self.driver)
                self.start()
            else:
                stall([self.driver.pid], seconds, os.killpg)
        elif part == "store":
            if what == "stalled":
                self.spoil(Faults(delay=seconds / 4), seconds)
            elif what == "killed":
                self.spoil(Faults(cut=1.0, seed=rng.randrange(10**6)), seconds)
            else:
                self.spoil(Faults(fail=0.5, throttle=0.3, seed=rng.randrange(10**6)), seconds)
        elif kind == "PostgreSQL killed":
            self.server.kill()
            try:
                time.sleep(seconds)
            finally:
                self.server.start()
        elif what == "killed":
            self.ask(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )
        else:
            rows = self.ask("SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
            stall([pid for (pid,) in rows], seconds, os.kill)

    def spoil(self, faults: Faults, seconds: float) -> None:
        self.store.fault(faults)
        try:
            time.sleep(seconds)
        finally:
            self.store.fault(Faults())

    def ask(self, text: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(postgres.url(self.server), dbname="postgres", autocommit=True) as session:
            return session.execute(text.encode()).fetchall()


def stall(pids: Sequence[int], seconds: float, send: Callable[[int, int], None]) -> None:
    """Stops processes, or their groups, for a while."""

    def tell(number: int) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                send(pid, number)

    tell(signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        tell(signal.SIGCONT)


KINDS = (
    "worker killed", "worker stalled", "driver killed", "driver stalled", "sessions of PostgreSQL killed", "PostgreSQL killed",
    "PostgreSQL stalled", "store killed", "store stalled", "store failing",
)  # fmt: skip


def tried(trials: Trials, words: argparse.Namespace, rng: random.Random) -> Counter[str]:
    """How often each kind was done; the others have had no time."""
    met = Counter[str]()
    trials.until(2)
    end = time.monotonic() + words.seconds
    kinds = [KINDS[n % len(KINDS)] for n in range(words.trials)]
    rng.shuffle(kinds)
    for kind in kinds:
        if time.monotonic() > end:
            break
        time.sleep(rng.uniform(0, 2))
        trials.do(kind, rng)
        met[kind] += 1
        trials.until(trials.refreshed + AFTER)
        print(time.strftime("%T"), kind, trials.acknowledged, flush=True)
    return met


def main() -> int:
    words = _arguments()
    if words.inside == "drive":
        drive(words)
    if words.inside == "look":
        print(json.dumps(look(words)))
        return 0
    end_in_order()
    rng = random.Random(words.seed)
    with (
        tempfile.TemporaryDirectory(prefix="cq-kills-", ignore_cleanup_errors=True) as directory,
        postgres.running() as server, object_store.server() as store, cluster(Path(directory)) as made,
    ):  # fmt: skip
        words.master, words.port, words.database = made.url, store.port, postgres.fresh(postgres.url(server))
        words.url = f"s3://lake/kills-{words.seed}"
        with Trials(words, made, store, server) as trials:
            met = tried(trials, words, rng)
            print(json.dumps({"trials": dict(met), **trials.look(), **trials.said()}))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=3600, help="no trial begins after so many")
    parser.add_argument("--seed", type=int, default=1)
    for name, kind in (("inside", str), ("master", str), ("port", int), ("url", str), ("database", str)):
        parser.add_argument(f"--{name}", type=kind, default=None, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
