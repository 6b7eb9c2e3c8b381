"""Who may write: with real second processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from cq_engine.catalog import garbage, schema
from cq_engine.catalog.delta_lake import Publisher
from cq_engine.catalog.flush import flush
from cq_engine.catalog.lease import Holder
from cq_engine.catalog.model import Table
from cq_engine.catalog.store import Catalog
from cq_engine.catalog.tables import write_parquet
from cq_engine.core.errors import LeaseError
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
    assert "read_only=True" in text
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
            "os.makedirs(directory)\n"
            "open(directory + '/part-0.parquet', 'w').close()\n" + HOLD
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
        connection.execute(schema.lease.update().values(holder=recycled))
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
            return int(connection.execute(schema.lease.select()).one().heartbeat)

    before = heartbeat()
    for _ in range(100):
        if heartbeat() > before:
            return
        catalog._lease._stop.wait(0.05)  # type: ignore[union-attr]
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
        file = write_parquet(sample.plain([2]), path, catalog.warehouse, ["k"])
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

    def test_an_attempt_that_is_given_up(
        self, catalog: Catalog, open_catalog: Open, sample: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        attempt = catalog.attempt("copy")
        path = f"{attempt.directory(sample.orders, 'snapshot')}/part-0.parquet"
        write_parquet(sample.plain([2]), path, catalog.warehouse, ["k"])
        with monkeypatch.context() as patch:
            patch.setattr(Catalog, "recover", lambda _: None)
            successor = open_catalog(limits=IMPATIENT)
        with pytest.raises(LeaseError):
            attempt.abandon()
        assert Path(path).exists()
        successor.recover()
        assert not Path(path).exists()

    def test_what_was_decided_before_harms_nobody(
        self, both: tuple[Catalog, Catalog], sample: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It stops after the decision, its successor makes a table of the same name, and it goes on."""
        first, _ = both
        first.close()
        fenced = Catalog.open(first.warehouse, url=_url(first), clock=first.clock, limits=IMPATIENT)
        stopped: list[bool] = []
        theirs: list[Path] = []

        def meanwhile(warehouse: str, paths: list[str]) -> tuple[list[str], list[str]]:
            if not stopped:
                stopped.append(True)
                successor = Catalog.open(warehouse, url=_url(first), clock=first.clock, limits=IMPATIENT)
                RECOVER(successor)
                other = replace(sample.orders, id=10, name="other")
                with successor.write() as unit:
                    table = Table("other", other, ("k",))
                    unit.set_state(replace(sample.state, tables={**sample.state.tables, "other": table}))
                attempt = successor.attempt("copy")
                theirs.append(Path(attempt.directory(other, "snapshot"), "part-0.parquet"))
                write_parquet(sample.plain([3]), str(theirs[0]), warehouse, ["k"])
                successor.close()
            return REMOVE(warehouse, paths)

        monkeypatch.setattr(garbage, "remove", meanwhile)
        with pytest.raises(LeaseError):
            fenced.sweep()
        assert theirs[0].exists()
        fenced.close()

    def _files(self, warehouse: Path) -> list[tuple[Path, int]]:
        return sorted((p, p.stat().st_mtime_ns) for p in warehouse.rglob("*") if "catalog.db" not in p.name)


def _url(catalog: Catalog) -> str:
    return catalog._database.engine.url.render_as_string(hide_password=False)


IMPATIENT = Limits(lease_seconds=0.0)
RECOVER, REMOVE = Catalog.recover, garbage.remove
