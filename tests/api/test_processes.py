"""Several processes on one warehouse: here several engines of one process, which are each a process to the catalog.

None of this needs Spark.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import cq_engine
from cq_engine.api.engine import Engine
from cq_engine.catalog import processes
from cq_engine.core.limits import Limits
from tests.api.rows import ids
from tests.waiting import until

QUICK = Limits(lease_seconds=1.0, heartbeat_seconds=0.1)
Connect = Callable[..., Engine]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def connect(warehouse: Path, database_url: str | None) -> Iterator[Connect]:
    """Opens the test's warehouse; the test need not close it."""
    with ExitStack() as stack:

        def opened(**options: Any) -> Engine:
            options = {"catalog": database_url, "scheduler": False, "limits": QUICK, **options}
            engine = cq_engine.connect(warehouse, **options)
            stack.callback(engine.close)
            return engine

        yield opened


@pytest.fixture
def two(connect: Connect) -> tuple[Engine, Engine]:
    """The one with the duties, and another one; a table t (id, v)."""
    first, second = connect(duties=True), connect()
    first.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    return first, second


class TestCommits:
    def test_are_seen_by_the_others_soon(self, two: tuple[Engine, Engine]) -> None:
        first, second = two
        for n in range(5):
            with second.transaction() as tx:
                tx.insert("t", [(n, n)])
            assert until(lambda n=n: n in ids(first, "t")) < 2  # type: ignore[misc]
        with first.transaction() as tx:
            assert tx.transaction.snapshot == 5

    def test_that_meet_are_a_conflict(self, two: tuple[Engine, Engine]) -> None:
        first, second = two

        def meet() -> None:
            with first.transaction() as tx:
                tx.insert("t", [(1, 1)])
                with second.transaction() as other:
                    other.insert("t", [(1, 2)])

        with pytest.raises(cq_engine.ConflictError, match="changed by another transaction"):
            meet()
        assert ids(first, "t") == [1]

    def test_are_checked_against_what_others_have_committed(self, two: tuple[Engine, Engine]) -> None:
        first, second = two
        first.execute("INSERT INTO t VALUES (1, 1)")
        with pytest.raises(cq_engine.ConstraintError):
            second.execute("INSERT INTO t VALUES (1, 2)")

    def test_keep_foreign_keys_that_others_would_break(self, two: tuple[Engine, Engine]) -> None:
        first, second = two
        first.execute("INSERT INTO t VALUES (1, 1), (2, 2)")
        first.execute(
            "CREATE TABLE c (id INT PRIMARY KEY, t INT, FOREIGN KEY (t) REFERENCES t (id) ENFORCED)"
        )
        gone = pa.table({"id": pa.array([1], pa.int32()), "v": pa.array([1], pa.int32()), "op": ["D"]})

        def meet() -> None:
            with second.transaction() as tx:
                tx.insert("c", [(1, 1)])
                first.apply_changes({"t": gone})

        with pytest.raises((cq_engine.ConstraintError, cq_engine.ConflictError)):
            meet()
        second.execute("INSERT INTO c VALUES (2, 2)")
        with pytest.raises(cq_engine.ConstraintError):
            first.apply_changes({"t": gone.set_column(0, "id", pa.array([2], pa.int32()))})

    def test_are_retried_where_that_is_asked_for(self, two: tuple[Engine, Engine]) -> None:
        first, second = two
        met = []
        with first.transaction(retries=3) as tx:
            first.execute("INSERT INTO t VALUES (7, 7)")
            tx.insert("t", iter([(1, 1)]))
            with second.transaction() as other:
                other.insert("t", [(2, 2)])
            tx.transaction.read.add("t")
            met.append(tx.transaction)
        assert tx.transaction is not met[0]
        assert tx.commit_version == 3
        assert ids(second, "t") == [1, 2, 7]

    def test_from_all_at_once(self, two: tuple[Engine, Engine]) -> None:
        def work(engine: Engine, start: int) -> None:
            for n in range(start, start + 40):
                engine.execute(f"INSERT INTO t VALUES ({n}, 0)")

        threads = [
            threading.Thread(target=work, args=(engine, 1000 * n)) for n, engine in enumerate((*two, *two))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for engine in two:
            engine.catalog.follow()
            assert engine.catalog.newest_version == 160
            assert len(ids(engine, "t")) == 160

    def test_of_many_rows(self, connect: Connect, two: tuple[Engine, Engine]) -> None:
        first, _ = two
        second = connect(limits=Limits(inline_bytes=100))
        with second.transaction() as tx:
            tx.insert("t", [(n, n) for n in range(500)])
        assert len(ids(first, "t")) == 500
        assert list(Path(first.catalog.warehouse).rglob("*.parquet"))

    def test_row_ids_are_given_once(self, two: tuple[Engine, Engine]) -> None:
        first, second = two
        second.execute("CREATE TABLE bag (v INT)")
        for _ in range(3):
            for engine in two:
                with engine.transaction() as tx:
                    tx.insert("bag", [(1,), (1,)])
        table = first.catalog.state.tables["bag"].storage
        first.catalog.follow()
        rows = first.reader.changes_arrow(table, 0, first.catalog.newest_version)
        assert rows is not None
        assert len(set(rows.column("_row_id").to_pylist())) == 12


class TestDefinitions:
    def test_are_everybodys(self, two: tuple[Engine, Engine]) -> None:
        first, second = two
        second.execute("CREATE TABLE u (id INT)")
        first.execute("CREATE TABLE w (id INT)")
        second.execute("ALTER TABLE t ADD COLUMN more STRING")
        for engine in two:
            engine.catalog.follow()
            assert set(engine.catalog.state.tables) == {"t", "u", "w"}
            assert len(engine.catalog.state.tables["t"].columns) == 3

    def test_a_transaction_over_them_is_a_conflict(self, two: tuple[Engine, Engine]) -> None:
        first, second = two

        def meet() -> None:
            with first.transaction() as tx:
                tx.insert("t", [(1, 1)])
                second.execute("ALTER TABLE t ADD COLUMN more STRING")

        with pytest.raises(cq_engine.ConflictError, match="altered or dropped"):
            meet()

    def test_dropping_is_done_by_the_holder(self, two: tuple[Engine, Engine]) -> None:
        first, second = two
        assert second.execute("DROP TABLE t").message == "table t dropped"
        assert not second.catalog.state.tables
        with pytest.raises(cq_engine.CatalogError, match="t"):
            second.execute("DROP TABLE t")
        first.execute("BEGIN")
        second.execute("DROP TABLE IF EXISTS t")
        first.execute("ROLLBACK")


class TestDuties:
    def test_one_process_has_them(self, two: tuple[Engine, Engine]) -> None:
        assert [engine.catalog.has_duties for engine in two] == [True, False]

    def test_true_takes_them_or_fails_with_the_name_of_the_holder(
        self, connect: Connect, two: tuple[Engine, Engine]
    ) -> None:
        with pytest.raises(cq_engine.LeaseError, match=r"in use by process \d+ on ") as refused:
            connect(duties=True)
        assert "--no-duties" in refused.value.hint
        assert len(two[0].execute("SHOW PROCESSES").fetchall()) == 2

    def test_they_move_when_the_holder_ends(self, connect: Connect) -> None:
        first, second = connect(scheduler=True), connect(scheduler=True)
        said: list[str] = []
        second.tell_of_duties(said.append)
        assert "has the duties" in said[0]
        first.close()
        assert until(lambda: len(said) > 1) < 5
        assert "this process has the duties" in said[1]
        assert second.catalog.has_duties

    def test_without_a_scheduler_they_are_left_to_one_with_a_scheduler(
        self, connect: Connect, two: tuple[Engine, Engine]
    ) -> None:
        first, second = two
        first.close()
        time.sleep(0.3)
        assert not second.catalog.has_duties, "inherited by a process that does nothing by itself"
        assert second.maintain() == []
        assert second.catalog.has_duties, "nobody else does what is asked for"
        third = connect()
        assert not third.catalog.has_duties
        works = connect(scheduler=True)
        assert works.catalog.has_duties
        assert until(lambda: not second._on_duty) < 5
        assert second.maintain() == []
        second.compact("t")
        assert [works.catalog.has_duties, second.catalog.has_duties] == [True, False]
        with pytest.raises(cq_engine.LeaseError):
            connect(duties=True)

    def test_who_waits_takes_them_from_one_without_a_scheduler(self, connect: Connect) -> None:
        first, second = connect(scheduler=True), connect(scheduler=True)
        lone = connect()
        second.catalog.waits = False
        first.catalog.waits = False
        first.catalog.give_duties()
        assert lone.maintain() == []
        assert lone.catalog.has_duties
        second.catalog.waits = True
        assert until(lambda: second.catalog.has_duties) < 5

    @pytest.mark.parametrize("taken", ["when it begins", "when it answers"])
    def test_who_loses_them_meanwhile_has_it_done_by_the_next(
        self, connect: Connect, monkeypatch: pytest.MonkeyPatch, taken: str
    ) -> None:
        works, lone = connect(scheduler=True), connect()
        works.catalog.waits = False
        works.catalog.give_duties()
        recover, perform = lone.catalog.recover, lone.perform

        def lose() -> None:
            monkeypatch.undo()
            works.catalog.waits = True
            assert until(lambda: works.catalog.has_duties) < 5

        def begin() -> None:
            lose()
            recover()

        def answer(kind: str, argument: dict[str, Any]) -> dict[str, Any]:
            lose()
            lone.catalog.check_lease()
            return perform(kind, argument)

        if taken == "when it begins":
            monkeypatch.setattr(lone.catalog, "recover", begin)
        else:
            monkeypatch.setattr(lone, "perform", answer)
        assert lone.maintain() == []
        assert [works.catalog.has_duties, lone.catalog.has_duties] == [True, False]

    def test_false_never_takes_them(self, connect: Connect) -> None:
        engine = connect(duties=False)
        engine.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
        engine.execute("INSERT INTO t VALUES (1, 1)")
        time.sleep(0.3)
        assert not engine.catalog.has_duties

    def test_where_nobody_has_them_it_is_done_at_once(self, connect: Connect) -> None:
        engine = connect(duties=False)
        engine.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
        engine.execute("INSERT INTO t VALUES (1, 1)")
        engine.vacuum()
        engine.drain(timeout=5)
        engine.execute("DROP TABLE t")
        assert not engine.catalog.has_duties
        assert connect(duties=True).catalog.has_duties

    def test_who_has_lost_them_writes_on_and_does_no_upkeep(self, connect: Connect, warehouse: Path) -> None:
        never = Limits(lease_seconds=1.0, heartbeat_seconds=1e6)
        lost = connect(limits=never)
        lost.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
        lost.execute("INSERT INTO t VALUES (1, 1)")
        time.sleep(1.1)
        heir = connect(duties=True)
        with pytest.raises(cq_engine.LeaseError, match="no longer holds"):
            lost.publisher.publish()  # type: ignore[union-attr]
        lost.execute("INSERT INTO t VALUES (2, 2)")
        heir.catalog.follow()
        assert ids(heir, "t") == [1, 2]

    def test_a_killed_holder_is_followed(
        self, warehouse: Path, database_url: str | None, connect: Connect
    ) -> None:
        program = (
            "import sys, cq_engine\n"
            "engine = cq_engine.connect(sys.argv[1], sys.argv[2] or None, scheduler=False, duties=True)\n"
            "engine.execute('CREATE TABLE t (id INT PRIMARY KEY, v INT)')\n"
            "print('open', flush=True)\n"
            "sys.stdin.readline()\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", program, str(warehouse), database_url or ""],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        ) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "open\n"
            engine = connect(scheduler=True, limits=Limits(heartbeat_seconds=0.2))
            assert not engine.catalog.has_duties
            engine.execute("INSERT INTO t VALUES (1, 1)")
            holder.kill()
            assert until(lambda: engine.catalog.has_duties) < 5
        assert until(lambda: len(engine.execute("SHOW PROCESSES").fetchall()) == 1) < 5


class TestCallbacks:
    def test_have_one_place(self, two: tuple[Engine, Engine]) -> None:
        first, second = two
        second.callback("alerts")(print)
        with pytest.raises(cq_engine.DestinationError, match=r"callback Alerts is registered by process \d+"):
            first.callback("Alerts")(print)
        second.close()
        first.callback("alerts")(print)

    def test_stand_in_show_processes(self, two: tuple[Engine, Engine]) -> None:
        first, second = two
        second.callback("alerts")(print)
        with second.transaction() as tx:
            tx.insert("t", [(1, 1)])
            second.catalog.beat()
            shown = first.execute("SHOW PROCESSES").to_arrow().to_pylist()
        assert [row["duties"] for row in shown] == [True, False]
        assert [row["this"] for row in shown] == [True, False]
        assert [row["callbacks"] for row in shown] == ["", "alerts"]
        assert [row["transactions"] for row in shown] == [0, 1]


class TestReading:
    def test_vacuum_leaves_what_another_process_reads(self, two: tuple[Engine, Engine]) -> None:
        first, second = two
        for n in range(4):
            first.execute(f"INSERT INTO t VALUES ({n}, 0)")
        second.catalog.follow()
        table = first.catalog.state.tables["t"].storage
        with second.transaction() as tx:
            assert tx.transaction.snapshot == 4
            for n in range(4, 9):
                first.execute(f"INSERT INTO t VALUES ({n}, 0)")
            second.catalog.beat()
            first.catalog.forget(lambda: {table.id: 9}, logs=True)
            second.catalog.follow()
            assert first.catalog.floor(table.id) <= 4
            second.reader.forget_all()
            seen = tx.transaction.small_view(second.catalog.state.tables["t"])
            assert seen is not None
            assert sorted(seen.column("id").to_pylist()) == [0, 1, 2, 3]

    def test_a_process_that_was_taken_for_dead_goes_on_under_another_number(
        self, two: tuple[Engine, Engine]
    ) -> None:
        first, second = two
        before = second.catalog.number
        with first.catalog._database.writing() as connection:
            processes.remove(connection, [before])
        second.catalog.beat()
        assert second.catalog.number > before
        second.execute("INSERT INTO t VALUES (1, 1)")
        first.catalog.follow()
        assert ids(first, "t") == [1]


STORES = "cq_engine.catalog.storage"
STORE_MODULES = {STORES, *(f"{STORES}.{name}" for name in ("base", "local", "location"))}
"""What a commit to a warehouse in a directory knows of stores."""
HEAVY = (
    "apscheduler",
    "deltalake",
    "pandas",
    "pyarrow.dataset",
    "rich",
    "cq_engine.algebra",
    "cq_engine.definition",
    "cq_engine.delta",
    "cq_engine.destinations.callback",
    "cq_engine.destinations.contract",
    "cq_engine.destinations.follow",
    "cq_engine.destinations.queues.consumer",
    "cq_engine.destinations.sink",
    "cq_engine.destinations.table",
    "cq_engine.launch.session",
    "cq_engine.lifecycle.queries",
    "cq_engine.maintenance.retention",
    "cq_engine.refresh.refresh",
    "cq_engine.transactions.apply_changes",
)
"""What a small commit does without: together they take as long as all the rest."""


def test_a_process_commits_soon_after_its_start_and_without_spark(
    warehouse: Path, database_url: str | None, connect: Connect
) -> None:
    connect().execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    connect().execute("CREATE TABLE u (s STRING, d DECIMAL(10, 2), t TIMESTAMP_NTZ)")
    program = (
        "import sys, time\n"
        "import cq_engine\n"
        "engine = cq_engine.connect(sys.argv[1], sys.argv[2] or None, duties=False)\n"
        "engine.execute('INSERT INTO t VALUES (1, 1)')\n"
        "with engine.transaction() as tx:\n"
        "    tx.insert('t', [(2, None)])\n"
        "engine.execute(\"INSERT INTO u VALUES ('a', 1.5, TIMESTAMP_NTZ '2026-01-01 00:00:00')\")\n"
        f"heavy = set({HEAVY}) & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        f"assert {{m for m in sys.modules if m.startswith({STORES!r})}} == {STORE_MODULES}\n"
        "from cq_engine.grammar.parser import parser\n"
        "assert not parser.cache_info().currsize, 'the parser was built'\n"
        "print(time.process_time(), engine._spark_session.started is None, flush=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(warehouse), database_url or ""],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        timeout=60,
    )
    seconds, without = done.stdout.split()
    assert without == "True"
    assert float(seconds) < 4, "of the processor: what the wall clock says depends on the machine"
