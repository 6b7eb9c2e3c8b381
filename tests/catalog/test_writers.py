"""Several processes write to one warehouse, are killed and suspended at random, and what they leave is one history.

`CQ_WRITERS_SECONDS=600` runs it for so long, `CQ_WRITERS=8` with so many processes, `CQ_WRITERS_SEED` otherwise.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import cq_engine
from cq_engine.api.engine import Engine
from tests.catalog.conftest import ROOT
from tests.catalog.copies import put_in_place
from tests.catalog.work import check_memory
from tests.catalog.writers import ACCOUNTS, EACH, IMPATIENT, connect, last, set_up

SECONDS = float(os.environ.get("CQ_WRITERS_SECONDS", "5"))
PROCESSES = int(os.environ.get("CQ_WRITERS", "3"))
SEED = os.environ.get("CQ_WRITERS_SEED", "1")


class Crowd:
    """The processes: started again when they have been killed."""

    def __init__(self, warehouse: Path, url: str | None) -> None:
        self.warehouse, self.url = warehouse, url
        self.running: dict[int, subprocess.Popen[str]] = {}

    def start(self, number: int) -> None:
        """Begins a process; it does not wait until this is open."""
        arguments = ["-m", "tests.catalog.writers", str(self.warehouse), self.url or "", str(number)]
        with (self.warehouse / f"errors-{number}").open("a") as errors:
            self.running[number] = subprocess.Popen(
                [sys.executable, *arguments],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"},
            )

    def wait(self, number: int) -> None:
        """Until the process has opened the warehouse."""
        out = self.running[number].stdout
        assert out is not None
        assert out.readline() == "open\n", self.errors()

    def kill(self, number: int) -> None:
        """As by kill -9."""
        process = self.running.pop(number)
        process.kill()
        process.communicate()

    def errors(self) -> str:
        """What went wrong in any of them."""
        return "".join(path.read_text() for path in sorted(self.warehouse.glob("errors-*")))

    def close(self) -> None:
        for number in list(self.running):
            with contextlib.suppress(ProcessLookupError):
                self.running[number].send_signal(signal.SIGCONT)
            self.kill(number)


def history(engine: Engine, name: str) -> list[dict[str, Any]]:
    """All change rows of a table."""
    table = engine.catalog.state.tables[name].storage
    rows = engine.reader.changes_arrow(table, 0, engine.catalog.newest_version)
    assert rows is not None
    return rows.to_pylist()  # type: ignore[no-any-return]


def check_history(engine: Engine, warehouse: Path) -> int:
    """The transactions can have come one after the other, in the order of their versions; their number."""
    versions = [row["_commit_version"] for row in history(engine, "op")]
    assert len(set(versions)) == len(versions), "two transactions have one version"
    check_copies(engine)
    done = Counter(row["name"] for row in history(engine, "op"))
    assert set(done.values()) == {1}, "a transaction was done twice"
    for path in warehouse.glob("acknowledged-*"):
        lost = set(path.read_text().split()) - set(done)
        assert not lost, f"acknowledged and lost: {lost}"
    by_version: dict[int, list[dict[str, Any]]] = {}
    for row in history(engine, "entry"):
        by_version.setdefault(row["_commit_version"], []).append(row)
    balances: dict[int, int] = {}
    entries: dict[int, int] = {}
    for version in sorted(by_version):
        for row in by_version[version]:
            assert row["n"] == entries.get(row["account"], -1) + 1, "a transfer has read an old balance"
            entries[row["account"]] = row["n"]
            balances[row["account"]] = row["balance"]
        assert sum(balances.values()) == ACCOUNTS * EACH, f"the total is another one at version {version}"
    lengths: dict[int, int] = {}
    for row in sorted(history(engine, "item"), key=lambda row: int(row["_commit_version"])):
        assert row["n"] == lengths.get(row["list"], -1) + 1, "an append was lost or came twice"
        lengths[row["list"]] = row["n"]
        assert done[row["op"]] == 1
    return len(done)


def check_copies(engine: Engine) -> None:
    """The continuous query's deltas are the commits, each once and in order, and so are the rows of its table."""
    made = [(row["_commit_version"], row["name"]) for row in history(engine, "op")]
    deltas = [(d.commit_version, d.new[0]) for d in engine.deltas("q") if d.new is not None]
    assert deltas == sorted(made), "the deltas"
    assert Counter(row["name"] for row in history(engine, "copied")) == Counter(name for _, name in made)
    position, from_version = engine.describe("q").position, 0
    for record in engine.catalog.refreshes("q", 1 << 30)[::-1]:
        assert record.from_version >= from_version, "two refreshes of one interval"
        from_version = record.to_version
    assert position == from_version


def watch(engine: Engine) -> None:
    """A reader sees a total that is right whenever it looks."""
    table = engine.catalog.state.tables["entry"].storage
    rows = engine.reader.small_image(table, engine.catalog.newest_version)
    assert rows is not None
    total = sum(row["balance"] for row in last(rows.to_pylist(), "account").values())
    assert total == ACCOUNTS * EACH


def test_killed_and_suspended(
    warehouse: Path, database_url: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_in_place(monkeypatch.setattr)
    with connect(warehouse, database_url) as engine:
        set_up(engine)
    chance = random.Random(SEED)
    crowd = Crowd(warehouse, database_url)
    reader = cq_engine.connect(warehouse, catalog=database_url, read_only=True)
    try:
        for number in range(PROCESSES):
            crowd.start(number)
        for number in range(PROCESSES):
            crowd.wait(number)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            time.sleep(chance.uniform(0.2, 1.0))
            watch(reader)
            number = chance.randrange(PROCESSES)
            if chance.random() < 0.4:
                crowd.kill(number)
                crowd.start(number)
            else:
                crowd.running[number].send_signal(signal.SIGSTOP)
                time.sleep(chance.choice([0.2, 0.5, 1.2 * IMPATIENT.lease_seconds]))
                crowd.running[number].send_signal(signal.SIGCONT)
        time.sleep(1)
    finally:
        crowd.close()
        reader.close()
    long = replace(
        IMPATIENT, change_files=1_000_000, change_rows=100_000_000
    )  # there is no Spark for long histories
    with connect(warehouse, database_url, long) as engine:
        engine.drain(timeout=60)
        assert check_history(engine, warehouse) > 20
        check_memory(engine.catalog)
        holder = engine.catalog.duties_holder()
        assert holder is not None
        assert holder.pid == os.getpid(), "the dead have no duties"
        engine.publish()
        check_history(engine, warehouse)
    assert "Error" not in crowd.errors(), crowd.errors()
