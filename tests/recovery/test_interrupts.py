"""Ctrl-C at any moment of a whole engine: it ends one statement, loses nothing, and everything goes on.

`CQ_ENGINE_INTERRUPTS=250` interrupts as often, at other moments with another `CQ_INTERRUPTS_SEED`.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from cq_engine.api.engine import Engine
from cq_engine.core import faults
from cq_engine.core.calls import Interrupted, current
from cq_engine.storage import rows as storage_rows
from tests.core.pressing import press
from tests.limits import limit
from tests.recovery.checks import (
    apply,
    check_garbage,
    check_nothing_is_kept,
    image,
    published,
    rows_of,
)
from tests.recovery.conftest import LONG, ROOT, Connect, environment

COUNT = int(os.environ.get("CQ_ENGINE_INTERRUPTS", "20"))
SEED = int(os.environ.get("CQ_INTERRUPTS_SEED", "1"))
ENDLESS = "SELECT count(*) FROM range(3000000) a CROSS JOIN range(3000000) b WHERE a.id * b.id % 7 = 3"

Rows = dict[int, tuple[object, ...]]
State = dict[str, Rows]
"""Table → key → row."""

SCHEMAS = {
    "sale": pa.schema([("id", pa.int32()), ("shop", pa.int32()), ("amount", pa.int32())]),
    "shop": pa.schema([("id", pa.int32()), ("name", pa.string())]),
}
QUERIES = {
    "totals": "SELECT shop, sum(amount) AS total, count(*) AS n FROM sale GROUP BY shop",
    "named": "SELECT s.id, s.amount, h.name FROM sale s JOIN shop h ON s.shop = h.id",
    "big": "SELECT id, amount FROM sale WHERE amount > 50",
}


@contextmanager
def pressed(after: float) -> Iterator[None]:
    """Ctrl-C in the middle of the block, unless it is over by then."""
    timer = threading.Timer(after, press)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


@pytest.fixture(autouse=True)
def only_calls() -> Iterator[None]:
    """Ctrl-C is for calls of the engine; one that comes too late ends no test."""

    def handler(_number: int, _frame: object) -> None:
        if current() is not None:
            raise Interrupted

    before = signal.signal(signal.SIGINT, handler)
    yield
    signal.signal(signal.SIGINT, before)


def stop(*_: object) -> None:
    raise KeyboardInterrupt


def interrupted(after: float, run: Callable[[], object]) -> str:
    """What Ctrl-C says that ends `run`."""
    try:
        with pressed(after):
            run()
    except KeyboardInterrupt as error:
        return str(error)
    raise AssertionError("it was not interrupted")


# ---------------------------------------------------------------- one statement


def define(engine: Engine) -> None:
    engine.execute("CREATE TABLE sale (id INT PRIMARY KEY, shop INT, amount INT)")
    engine.execute("CREATE TABLE shop (id INT PRIMARY KEY, name STRING)")
    for name, text in QUERIES.items():
        when = "COMPUTE TRANSACTIONAL DELTA ON DEMAND" if name == "big" else ""
        engine.execute(f"CREATE CONTINUOUS QUERY {name} {when} AS {text}")


def test_the_tasks_of_the_statement_are_stopped_and_a_refresh_goes_on(
    connect: Connect, spark: SparkSession
) -> None:
    engine = connect()
    engine.execute("CREATE TABLE t (id INT PRIMARY KEY)")

    @engine.function("slowly", returns="INT")
    def _slowly(number: int) -> int:
        time.sleep(0.4)
        return number

    engine.execute("CREATE CONTINUOUS QUERY q AS SELECT id, slowly(id) AS s FROM t")
    tracker = spark.sparkContext.statusTracker()
    others = set(tracker.getActiveJobsIds())
    endless: set[int] = set()

    def look() -> None:
        while not endless:
            endless.update(set(tracker.getActiveJobsIds()) - others)
        engine.execute("INSERT INTO t VALUES (1), (2), (3), (4), (5)")

    thread = threading.Thread(target=look)
    thread.start()
    assert interrupted(4, engine.execute(ENDLESS).fetchall) == "cancelled"
    thread.join()
    end = time.monotonic() + 5
    while endless & set(tracker.getActiveJobsIds()):
        assert time.monotonic() < end
    assert engine.execute("SELECT 1").fetchall() == [(1,)]
    engine.drain(LONG)
    assert sorted(d.new for d in engine.deltas("q") if d.new) == [(n, n) for n in range(1, 6)]
    (record,) = (r for r in engine.catalog.refreshes("q") if r.to_version == 1)
    assert (record.from_version, record.inserted) == (0, 5)


def test_other_threads_can_be_cancelled(connect: Connect) -> None:
    engine = connect(scheduler=False)
    found: list[str] = []

    def run() -> None:
        try:
            engine.execute(ENDLESS).fetchall()
        except Exception as error:  # noqa: BLE001 - looked at below
            found.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    while thread.is_alive():
        time.sleep(0.5)
        engine.interrupt()
    assert found == ["error: cancelled"]
    assert engine.execute("SELECT 1").fetchall() == [(1,)]


def test_a_statement_after_one_that_was_interrupted_while_it_collected(connect: Connect) -> None:
    engine = connect(scheduler=False)
    for after in (0.5, 1.0):
        rows = engine.execute("SELECT id, uuid() AS u FROM range(30000000)")
        assert interrupted(after, rows.to_arrow) == "cancelled"
        assert engine.execute("SELECT 1").fetchall() == [(1,)]


COMMITS: dict[str, Callable[[Engine], object]] = {
    "insert": lambda engine: engine.execute("INSERT INTO sale VALUES (1, 1, 60)"),
    "changes": lambda engine: engine.apply_changes({"sale": changes("I", [(1, 1, 60)])}),
}


@pytest.mark.parametrize("how", COMMITS)
def test_a_durable_commit_is_said_and_wakes_queries(
    connect: Connect, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = connect()
    define(engine)
    monkeypatch.setattr(faults, "point", lambda name, *_: press() if name == "commit.after_catalog" else None)
    assert interrupted(60, lambda: COMMITS[how](engine)) == "interrupted, but committed as version 1"
    end = time.monotonic() + LONG
    while engine.catalog.status("totals").position < 1:
        assert time.monotonic() < end, "nobody was told of the commit"
        time.sleep(0.05)


def test_an_image_in_memory_that_was_interrupted_is_read_again(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = connect(scheduler=False)
    define(engine)
    sale = engine.catalog.state.tables["sale"].storage
    for number in (1, 2):
        engine.execute(f"INSERT INTO sale VALUES ({number}, 1, 60)")
        with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
            if number == 2:
                patch.setattr(storage_rows, "identity_keys", stop)
            engine.reader.small_image(sale, number)
    found = engine.reader.small_image(sale, 2)
    assert found is not None
    assert found["id"].to_pylist() == [1, 2]


def test_a_transaction_that_was_interrupted_goes_on(connect: Connect) -> None:
    engine = connect(scheduler=False)
    define(engine)
    engine.execute("BEGIN")
    engine.execute("INSERT INTO sale VALUES (1, 1, 60)")
    endless = (
        f"INSERT INTO sale SELECT id, 1, 1 FROM ({ENDLESS.replace('count(*)', 'CAST(a.id AS INT) AS id')})"
    )
    assert interrupted(2, lambda: engine.execute(endless)) == "cancelled"
    engine.execute("INSERT INTO sale VALUES (2, 1, 70)")
    assert engine.execute("COMMIT").commit_version == 1
    assert sorted(engine.execute("SELECT id FROM sale").fetchall()) == [(1,), (2,)]


OWN_SPARK = """
import os, signal, sys, threading, time
import cq_engine

def press(after):
    threading.Timer(after, os.kill, (os.getpid(), signal.SIGINT)).start()

def run(engine, sql):
    try:
        return engine.execute(sql).fetchall()
    except KeyboardInterrupt as error:
        return str(error)

conf = {"spark.master": "local[2]", "spark.driver.memory": "1g"}
with cq_engine.connect(sys.argv[1], conf=conf) as engine:
    press(0.3)
    print("start", run(engine, "SELECT 1"), flush=True)
    print("then", run(engine, "SELECT 1"), flush=True)
    press(2)
    print("endless", run(engine, sys.argv[2]), flush=True)
    engine.execute("CREATE TABLE t (k INT PRIMARY KEY)")
    engine.execute("CREATE FUNCTION twice(a INT) RETURN 2 * a")
    engine.execute("CREATE CONTINUOUS QUERY q AS SELECT k, twice(k) AS d FROM t")
    engine.execute("INSERT INTO t VALUES (1)")
    engine.drain()
    engine.execute("SET spark.sql.session.timeZone = Asia/Tokyo")
    os.kill(engine.spark.sparkContext._gateway.proc.pid, signal.SIGKILL)
    time.sleep(0.5)
    engine.execute("INSERT INTO t VALUES (2)")
    engine.drain()
    print("again", run(engine, "SELECT k, twice(k) FROM t ORDER BY k"), flush=True)
    print("deltas", [d.new for d in engine.deltas("q")], flush=True)
    print("zone", run(engine, "SELECT current_timezone()"), flush=True)
print("closed", flush=True)
"""


def test_a_start_of_spark_is_interrupted_and_a_jvm_that_dies_is_replaced(warehouse: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", OWN_SPARK, str(warehouse), ENDLESS],
        env=environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=3 * LONG,
        check=False,
    )
    assert ran.stdout.splitlines() == [
        "start cancelled",
        "then [(1,)]",
        "endless cancelled",
        "again [(1, 2), (2, 4)]",
        "deltas [(1, 2), (2, 4)]",
        "zone [('Asia/Tokyo',)]",
        "closed",
    ], ran.stderr
    assert "Traceback" not in ran.stderr


# ---------------------------------------------------------------- at random


def changes(operation: str, rows: list[tuple[int, int, int]]) -> pa.Table:
    table = pa.Table.from_pylist([dict(zip(SCHEMAS["sale"].names, row)) for row in rows], SCHEMAS["sale"])
    return table.append_column("op", pa.array([operation] * len(rows), pa.string()))


class Work:
    """Random statements, and a model of what they leave at every version."""

    def __init__(self, engine: Engine, chance: random.Random) -> None:
        self.engine, self.chance = engine, chance
        self.states: list[State] = [{"sale": {}, "shop": {}}]
        """By version."""
        self.next = 0
        self.interrupted = 0
        self.durable = 0
        """How many were interrupted when a commit was durable."""
        self.steps: list[Callable[[], list[State]]] = [
            self.insert, self.insert, self.insert, self.bulk, self.update, self.update, self.delete, self.rename,
            self.transaction, self.stream, self.upkeep, self.upkeep, self.read,
        ]  # fmt: skip
        self.wanted: list[State] = []
        """The versions that the step under way makes."""

    def step(self) -> None:
        """One of the steps, interrupted or not; it has happened as a whole or not at all, as the interrupt says."""
        engine, before, said = self.engine, self.engine.catalog.newest_version, ""
        run = self.chance.choice(self.steps)
        after = self.chance.uniform(0, self.chance.choice([0.02, 0.2, 0.6, 2.0]))
        self.wanted = []
        try:
            with pressed(after):
                run()
        except KeyboardInterrupt as error:
            self.interrupted += 1
            said = str(error)
        count = engine.catalog.newest_version - before
        if count or not said:
            assert count == len(self.wanted), run
            self.states += self.wanted
        if said:
            self.durable += count > 0
            assert ("committed as version" in said) == (count > 0), (run, said)

    def expect(self, table: str, rows: Rows) -> None:
        """The next version has these rows, where they are others."""
        last = (self.wanted or self.states)[-1]
        if rows != last[table]:
            self.wanted.append({**last, table: rows})

    def rows(self, table: str) -> Rows:
        return dict((self.wanted or self.states)[-1][table])

    def fresh(self) -> tuple[int, int, int]:
        self.next += 1
        return (self.next, self.chance.randrange(5), self.chance.randrange(100))

    def insert(self) -> None:
        row = self.fresh()
        self.expect("sale", {**self.rows("sale"), row[0]: row})
        self.engine.execute(f"INSERT INTO sale VALUES {row}")

    def bulk(self) -> None:
        first, self.next = self.next + 1, self.next + 150
        rows = {n: (n, n % 5, n % 60) for n in range(first, first + 150)}
        self.expect("sale", {**self.rows("sale"), **rows})
        self.engine.execute(
            f"INSERT INTO sale SELECT CAST(id AS INT), CAST(id % 5 AS INT), CAST(id % 60 AS INT) "
            f"FROM range({first}, {first + 150})"
        )

    def update(self) -> None:
        shop = self.chance.randrange(5)
        rows = self.rows("sale")
        self.expect("sale", {k: (i, s, a + 7 * (s == shop)) for k, (i, s, a) in rows.items()})  # type: ignore[operator, misc]
        self.engine.execute(f"UPDATE sale SET amount = amount + 7 WHERE shop = {shop}")

    def delete(self) -> None:
        rest = self.chance.randrange(20)
        self.expect("sale", {k: row for k, row in self.rows("sale").items() if k % 20 != rest})
        self.engine.execute(f"DELETE FROM sale WHERE id % 20 = {rest}")

    def rename(self) -> None:
        shop, name = self.chance.randrange(5), f"n{self.chance.randrange(50)}"
        there = shop in self.rows("shop")
        self.expect("shop", {**self.rows("shop"), shop: (shop, name)})
        update = f"UPDATE shop SET name = '{name}' WHERE id = {shop}"
        self.engine.execute(update if there else f"INSERT INTO shop VALUES ({shop}, '{name}')")

    def transaction(self) -> None:
        row, shop = self.fresh(), self.chance.randrange(5)
        rows = {k: v for k, v in self.rows("sale").items() if v[1] != shop or k % 3}
        self.expect("sale", {**rows, row[0]: row})
        with self.engine.transaction() as tx:
            tx.execute(f"DELETE FROM sale WHERE shop = {shop} AND id % 3 = 0")
            tx.insert("sale", [row])

    def stream(self) -> None:
        rows = [self.fresh(), self.fresh()]
        for row in rows:
            self.expect("sale", {**self.rows("sale"), row[0]: row})
        self.engine.apply_changes({"sale": changes("I", rows)}, transaction="id", order="id")

    def upkeep(self) -> None:
        engine = self.engine
        self.chance.choice(
            [
                engine.publish, lambda: engine.compact("sale"), engine.vacuum, engine.maintain,
                lambda: engine.refresh("big"), lambda: engine.refresh("totals"), lambda: engine.drain(LONG),
            ]
        )()  # fmt: skip

    def read(self) -> None:
        got = self.engine.execute("SELECT * FROM sale").fetchall()
        assert Counter(got) == Counter(self.states[-1]["sale"].values())

    # ------------------------------------------------------------ checks

    def check(self, engine: Engine, warehouse: Path) -> None:
        """Logs, deltas and histories are what the model says."""
        newest = engine.catalog.newest_version
        assert newest == len(self.states) - 1
        for name in QUERIES:
            engine.refresh(name)
        engine.drain(LONG)
        engine.maintain()  # what is due: a merge in the background would have a newer table than what is published
        engine.publish()
        for name, schema in SCHEMAS.items():
            log = published(engine, warehouse, name)
            for version, state in list(enumerate(self.states))[-10:]:
                found = rows_of(image(log, version), schema.names)
                assert found == Counter(state[name].values()), f"{name} at version {version}"
        for name in QUERIES:
            published(engine, warehouse, name)
            self.check_law(engine, name)
            records = [
                r for r in engine.catalog.refreshes(name, 1 << 30)[::-1] if not getattr(r, "error", "")
            ]
            assert all(a.to_version == b.from_version for a, b in pairwise(records))
            assert records[-1].to_version == newest == engine.catalog.status(name).position

    def check_law(self, engine: Engine, name: str) -> None:
        deltas = list(engine.deltas(name))
        found: dict[tuple[object, ...], tuple[object, ...]] = {}
        with duckdb.connect() as oracle:
            for version, state in enumerate(self.states):
                apply(found, (d for d in deltas if d.commit_version == version))
                for table, rows in state.items():
                    values = [list(column) for column in zip(*rows.values())] or [[] for _ in SCHEMAS[table]]
                    oracle.register(table, pa.table(values, schema=SCHEMAS[table]))
                assert Counter(found.values()) == Counter(oracle.sql(QUERIES[name]).fetchall()), version


# A file that was opened when Ctrl-C came, before its block began, is closed as it is forgotten.
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_interrupts_at_random(connect: Connect, warehouse: Path) -> None:
    engine = connect()
    limit(engine, pending_rows=100, published_files=4)
    define(engine)
    work = Work(engine, random.Random(SEED))
    steps = 0
    while work.interrupted < COUNT:
        steps += 1
        work.step()
    work.check(engine, warehouse)
    engine.close()
    again = connect()
    work.check(again, warehouse)
    check_garbage(again, warehouse, broken_off=True)
    check_nothing_is_kept(again, warehouse)
    print(
        f"seed {SEED}: {work.interrupted} interrupts of {steps} statements, {work.durable} of a durable commit"
    )
