"""Who may write: with real second processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from cq_engine.catalog import garbage, lease, schema
from cq_engine.catalog.attempts import Attempt
from cq_engine.catalog.database import Database
from cq_engine.catalog.delta_lake import Publisher
from cq_engine.catalog.flush import flush
from cq_engine.catalog.lease import Holder
from cq_engine.catalog.model import DataFile, Table
from cq_engine.catalog.storage.base import Store
from cq_engine.catalog.store import Catalog
from cq_engine.catalog.tables import write_parquet
from cq_engine.core.errors import ConflictError, LeaseError, StorageError
from cq_engine.core.limits import Limits

Open = Callable[..., Catalog]
Run = Callable[..., "subprocess.Popen[str]"]

HOLD = "print('open', flush=True)\nsys.stdin.readline()\n"


def started(process: subprocess.Popen[str]) -> subprocess.Popen[str]:
    """Waits until the process has said one line."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise AssertionError(process.communicate()[1])
    return process


def test_a_second_process_is_told_who_holds_it(open_catalog: Open, run_python: Run) -> None:
    holder = started(run_python(HOLD))
    with pytest.raises(LeaseError) as caught:
        open_catalog()
    text = str(caught.value)
    assert f"process {holder.pid} on {os.uname().nodename}, since 2" in text
    assert "duties=False" in text
    assert open_catalog(read_only=True).newest_version == 0


def test_the_same_process_cannot_open_it_twice(open_catalog: Open) -> None:
    open_catalog(holder="the shell")
    with pytest.raises(LeaseError, match=r"in use by process \d+ \(the shell\)"):
        open_catalog()


def test_close_gives_it_back(open_catalog: Open, run_python: Run) -> None:
    holder = started(
        run_python(HOLD + "catalog.close()\nprint('closed', flush=True)\nsys.stdin.readline()\n")
    )
    assert holder.stdin is not None
    holder.stdin.write("\n")
    holder.stdin.flush()
    started(holder)
    assert open_catalog().newest_version == 0


def test_a_killed_holder_is_followed_at_once(
    open_catalog: Open, run_python: Run, sample: Any, warehouse: Path
) -> None:
    first = open_catalog()
    with first.write() as unit:
        unit.set_state(sample.state)
    first.close()
    holder = started(
        run_python(
            "from cq_engine.catalog.model import VersionedTable\n"
            "table = catalog.state.tables['orders'].storage\n"
            "directory = catalog.attempt('copy').directory(table, 'snapshot')\n"
            "with catalog.store.writing(directory + '/part-0.parquet'):\n"
            "    pass\n" + HOLD
        )
    )
    assert list(warehouse.rglob("*.parquet"))
    holder.kill()
    holder.wait()
    again = open_catalog()
    assert list(warehouse.rglob("*.parquet")) == []
    sample.commit(again, [1])


def test_a_pid_that_is_another_process_now_is_dead(open_catalog: Open) -> None:
    catalog = open_catalog()
    mine = Holder.this_process(None)
    assert not mine.is_dead()
    assert replace(mine, start="long ago").is_dead()
    assert not replace(mine, start="long ago", machine="elsewhere").is_dead()
    recycled = json.dumps(asdict(replace(mine, start="long ago")))
    with catalog._database.writing() as connection:
        connection.execute(schema.processes.update().values(holder=recycled))
    assert open_catalog().newest_version == 0


def test_a_silent_holder_loses_it_and_cannot_write(
    open_catalog: Open, run_python: Run, sample: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = open_catalog()
    with first.write() as unit:
        unit.set_state(sample.state)
    first.close()
    program = (
        "from datetime import datetime, timezone\n"
        "from cq_engine.core.errors import LeaseError\n" + HOLD + "try:\n"
        "    with catalog.write() as unit:\n"
        "        unit.add_commit(1, datetime(2020, 1, 1, tzinfo=timezone.utc))\n"
        "except LeaseError as error:\n"
        "    print('refused:', error.message, flush=True)\n"
    )
    holder = started(run_python(program))
    os.kill(holder.pid, signal.SIGSTOP)
    try:
        with pytest.raises(LeaseError):
            open_catalog()
        catalog = open_catalog(limits=Limits(lease_seconds=0))
    finally:
        os.kill(holder.pid, signal.SIGCONT)
    out, _ = holder.communicate("\n", timeout=60)
    assert "refused: this process no longer holds the warehouse" in out
    assert catalog.newest_version == 0
    sample.commit(catalog, [1])


def test_a_quiet_holder_keeps_giving_signs_of_life(open_catalog: Open) -> None:
    catalog = open_catalog(limits=Limits(heartbeat_seconds=0.05))

    def heartbeat() -> int:
        with catalog._database.reading() as connection:
            return int(connection.execute(schema.processes.select()).one().heartbeat)

    before = heartbeat()
    for _ in range(100):
        if heartbeat() > before:
            return
        time.sleep(0.05)
    pytest.fail("no heartbeat within 5 s")


class TestFenced:
    """A process that has lost the warehouse, without knowing it, touches nothing that its successor has."""

    @pytest.fixture
    def both(
        self, catalog: Catalog, open_catalog: Open, sample: Any, monkeypatch: pytest.MonkeyPatch
    ) -> tuple[Catalog, Catalog]:
        """The fenced catalog, and its successor. Each has seen the table `other`, dropped, with a file in it."""
        sample.commit(catalog, [1])
        other = replace(sample.orders, id=9, name="other")
        with catalog.write() as unit:
            table = Table("other", other, ("k",))
            unit.set_state(replace(catalog.state, tables={**catalog.state.tables, "other": table}))
        attempt = catalog.attempt("copy")
        path = f"{attempt.directory(other, 'snapshot')}/part-0.parquet"
        file = write_parquet(sample.plain([2]), path, catalog.store, ["k"])
        with catalog.write(attempt) as unit:
            unit.add_commit(2, sample.when(2))
            unit.add_change_files(other, 2, 2, [file], frozenset({"INSERT"}), insert_only=True)
        with catalog.write() as unit:
            unit.set_state(sample.state)
        monkeypatch.setattr(Catalog, "recover", lambda _: None)
        return catalog, open_catalog(limits=IMPATIENT)

    @pytest.mark.parametrize("upkeep", ["sweep", "recover", "forget", "attempt", "publish", "flush"])
    def test_upkeep(self, both: tuple[Catalog, Catalog], warehouse: Path, upkeep: str) -> None:
        fenced, _ = both
        before = self._files(warehouse)
        actions: dict[str, Callable[[], object]] = {
            "sweep": fenced.sweep,
            "recover": lambda: RECOVER(fenced),
            "forget": lambda: fenced.forget(lambda: dict.fromkeys(fenced.view.layouts, 2)),
            "attempt": lambda: fenced.attempt("copy"),
            "publish": Publisher(fenced).publish,
            "flush": lambda: flush(fenced),
        }
        with pytest.raises(LeaseError, match="no longer holds"):
            actions[upkeep]()
        assert self._files(warehouse) == before

    def test_what_was_decided_before_harms_nobody(
        self, both: tuple[Catalog, Catalog], sample: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It stops after the decision, its successor makes a table of the same name, and it goes on."""
        first, _ = both
        first.close()
        fenced = Catalog.open(first.warehouse, url=_url(first), clock=first.clock, limits=IMPATIENT)
        stopped: list[bool] = []
        theirs: list[Path] = []

        def meanwhile(store: Store, paths: list[str]) -> tuple[list[str], list[str]]:
            if not stopped:
                stopped.append(True)
                successor = Catalog.open(store.location, url=_url(first), clock=first.clock, limits=IMPATIENT)
                RECOVER(successor)
                other = replace(sample.orders, id=10, name="other")
                with successor.write() as unit:
                    table = Table("other", other, ("k",))
                    unit.set_state(replace(sample.state, tables={**sample.state.tables, "other": table}))
                attempt = successor.attempt("copy")
                path = f"{attempt.directory(other, 'snapshot')}/part-0.parquet"
                theirs.append(Path(successor.warehouse, path))
                write_parquet(sample.plain([3]), path, successor.store, ["k"])
                successor.close()
            return REMOVE(store, paths)

        monkeypatch.setattr(garbage, "remove", meanwhile)
        fenced.sweep()
        assert theirs[0].exists()
        fenced.close()

    def _files(self, warehouse: Path) -> list[tuple[Path, int]]:
        return sorted((p, p.stat().st_mtime_ns) for p in warehouse.rglob("*") if "catalog.db" not in p.name)


class TestAttempts:
    """What a process is writing is given up when it is dead, not when it is slow."""

    @pytest.fixture
    def other(self, catalog: Catalog, open_catalog: Open, sample: Any) -> Catalog:
        """Another process, which has the duties and takes who is silent for dead; the first one is, from now on."""
        sample.commit(catalog, [1])
        return open_catalog(limits=IMPATIENT)

    def begin(self, catalog: Catalog, sample: Any) -> tuple[Attempt, Path]:
        attempt = catalog.attempt("copy", by_any=True)
        path = f"{attempt.directory(sample.orders, 'snapshot')}/part-0.parquet"
        write_parquet(sample.plain([2]), path, catalog.store, ["k"])
        return attempt, Path(catalog.warehouse, path)

    def clean(self, catalog: Catalog) -> None:
        catalog.beat()
        catalog.recover()
        catalog.sweep()

    def move_away(self, catalog: Catalog) -> None:
        """Nobody on this machine knows any more whether the process is alive."""
        elsewhere = json.dumps(asdict(replace(Holder.this_process(None), machine="elsewhere")))
        mine = schema.processes.update().where(schema.processes.c.id == catalog.number)
        with catalog._database.writing() as connection:
            connection.execute(mine.values(holder=elsewhere))

    def test_of_a_process_that_is_suspended(self, catalog: Catalog, other: Catalog, sample: Any) -> None:
        attempt, path = self.begin(catalog, sample)
        self.clean(other)
        assert path.exists()
        file = DataFile(f"{path.relative_to(catalog.warehouse)}", 1, path.stat().st_size)
        with catalog.write(attempt, by_any=True) as unit:
            unit.add_commit(2, sample.when(2))
            unit.add_change_files(sample.orders, 2, 2, [file], frozenset({"INSERT"}), insert_only=True)
        self.clean(other)
        assert path.exists()
        assert other.newest_version == 2

    def test_of_a_process_elsewhere_that_is_silent(
        self, catalog: Catalog, other: Catalog, sample: Any
    ) -> None:
        attempt, path = self.begin(catalog, sample)
        self.move_away(catalog)
        other.beat()
        assert not path.exists()
        with pytest.raises(ConflictError, match="attempt"), catalog.write(attempt, by_any=True) as unit:
            unit.add_commit(2, sample.when(2))

    def test_of_a_process_that_goes_on_after_it_was_taken_for_dead(
        self, catalog: Catalog, other: Catalog, sample: Any
    ) -> None:
        number = catalog.number
        self.move_away(catalog)
        other.beat()
        _, path = self.begin(catalog, sample)
        assert catalog.number > number
        self.clean(other)
        assert path.exists()

    def test_nobody_is_buried_by_who_was_late(
        self, catalog: Catalog, open_catalog: Open, sample: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The machine of all of them was asleep."""
        holder = open_catalog(duties=None, limits=Limits(lease_seconds=5.0))
        catalog.give_duties()
        assert holder.take_duties() is None
        _, path = self.begin(catalog, sample)
        self.move_away(catalog)
        now = Database.now
        monkeypatch.setattr(Database, "now", lambda *arguments: now(*arguments) + 3_600_000_000)
        holder.beat()
        assert path.exists()
        holder.beat()
        assert not path.exists(), "it has not given a sign of life since"


def test_dropped_tables_stay_as_long_as_another_process_may_read_them(
    catalog: Catalog, open_catalog: Open, sample: Any
) -> None:
    sample.commit(catalog, [1])
    flush(catalog)
    reader = open_catalog(duties=False)
    begun = time.monotonic()
    reader.reads = lambda: (reader.known_version, 0, time.monotonic() - begun)
    reader.beat()
    files = set(Path(catalog.warehouse).rglob("*.parquet"))
    with catalog.write() as unit:
        unit.set_state(replace(catalog.state, tables={}, queries={}))
    catalog.sweep()
    assert files == set(Path(catalog.warehouse).rglob("*.parquet"))
    begun = time.monotonic()
    reader.beat()
    catalog.sweep()
    assert not set(Path(catalog.warehouse).rglob("*.parquet"))


def test_a_long_write_transaction_goes_on_as_long_as_its_process_is_alive(
    catalog: Catalog, open_catalog: Open, sample: Any
) -> None:
    """PostgreSQL ends one whose process is silent; nobody takes the duties meanwhile."""
    limits = Limits(lease_seconds=1.0, heartbeat_seconds=0.2)
    other = open_catalog(duties=None, limits=limits)
    catalog.give_duties()
    assert other.take_duties() is None
    waiting = open_catalog(duties=None, limits=limits)
    with other.exclusive():
        time.sleep(4.5)
        with other.write() as unit:
            unit.add_commit(1, sample.when(1))
    time.sleep(0.5)
    assert [other.has_duties, waiting.has_duties] == [True, False]
    assert other.newest_version == 1


def test_what_was_begun_before_the_duties_were_away_is_not_written(
    catalog: Catalog, open_catalog: Open, sample: Any
) -> None:
    """The holder is suspended while it merges, another one does the same, and the first one has the duties again."""
    sample.commit(catalog, [1])
    attempts = [catalog.attempt("compact"), catalog.attempt("transaction", by_any=True)]
    files = []
    for attempt in attempts:
        path = f"{attempt.directory(sample.orders, 'snapshot')}/part-0.parquet"
        files.append(write_parquet(sample.plain([1]), path, catalog.store, ["k"]))
    other = open_catalog(limits=IMPATIENT)
    other.give_duties()
    assert catalog.take_duties() is None
    assert catalog.has_duties
    with pytest.raises(LeaseError, match="no longer holds"), catalog.write(attempts[0]) as unit:
        unit.advance_snapshot(sample.orders, 1, [files[0]], ())
    assert not Path(catalog.warehouse, files[0].path).exists()
    with catalog.write(attempts[1], by_any=True) as unit:
        unit.add_commit(2, sample.when(2))
        unit.add_change_files(sample.orders, 2, 2, [files[1]], frozenset({"INSERT"}), insert_only=True)


def test_duties_that_could_not_be_given_back_are_taken_again(
    open_catalog: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise StorageError("the database is away")

    catalog = open_catalog(duties=None)
    before = catalog.epoch
    with monkeypatch.context() as patch:
        patch.setattr(lease, "release", fail)
        with pytest.raises(StorageError):
            catalog.give_duties()
    catalog.beat()
    assert catalog.epoch > before


@pytest.mark.parametrize("had", [False, True])
@pytest.mark.parametrize("name", ["beat", "check_lease"])
def test_duties_that_are_taken_while_another_thread_looks_are_kept(
    open_catalog: Open, monkeypatch: pytest.MonkeyPatch, name: str, had: bool
) -> None:
    """It has seen that they are another's, and before it notes that, they are taken."""
    catalog = open_catalog(duties=had, limits=IMPATIENT)
    other = open_catalog(limits=IMPATIENT)
    writing, look = catalog._database.writing, lease.look

    def take() -> None:
        monkeypatch.undo()
        other.give_duties()
        assert catalog.take_duties() is None

    @contextmanager
    def written() -> Iterator[Any]:
        with writing() as connection:
            yield connection
        take()

    def looked(connection: Any) -> lease.Held:
        held = look(connection)
        take()
        return held

    if name == "beat":
        monkeypatch.setattr(catalog._database, "writing", written)
    else:
        monkeypatch.setattr(lease, "look", looked)
    with suppress(LeaseError):
        getattr(catalog, name)()
    assert catalog.has_duties
    catalog.recover()


def test_row_ids_of_a_transaction_that_fails_are_not_kept(
    catalog: Catalog, open_catalog: Open, sample: Any
) -> None:
    other = open_catalog(duties=False)

    def fail() -> None:
        with catalog.exclusive():
            catalog.reserve_row_ids(sample.orders.id, 3)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    theirs = range(other.reserve_row_ids(sample.orders.id, 3), other._row_ids[sample.orders.id][1])
    assert catalog.reserve_row_ids(sample.orders.id, 3) not in theirs


def _url(catalog: Catalog) -> str:
    return catalog._database.engine.url.render_as_string(hide_password=False)


IMPATIENT = Limits(lease_seconds=0.0)
RECOVER, REMOVE = Catalog.recover, garbage.remove
