"""Random trials: a step of random work with a fault in it, then the warehouse is opened again and compared with a model.

A trial chooses a fault point and a kind of fault, lets the warehouse do what leads there, arms the fault, and does one
step more: in a child process where the fault ends or stops it, else in this one. The child is forked from a server that
has everything imported, and needs no Spark (tests/faults/warehouse.py).
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import random
import signal
import sqlite3
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from cq_engine.api.engine import Engine
from cq_engine.catalog.attempts import root_of
from cq_engine.catalog.store import Catalog
from cq_engine.core.clock import SystemClock
from cq_engine.core.errors import CQError
from cq_engine.core.limits import Limits
from tests.catalog.work import check_memory
from tests.faults.checks import Checks
from tests.faults.kinds import Armed, armed, data_files, note_durable, power_cut
from tests.faults.model import Model, Steps
from tests.faults.warehouse import (
    LIMITS,
    Step,
    beside,
    change_rows,
    do,
    make_older,
    open_engine,
)
from tests.recovery.checks import check_history, delta_rows, rows_of

SPAN = 20
"""Trials in one warehouse."""
_IN_CHILD = ("SIGKILL", "torn", "pause")
_AIMS: dict[str, tuple[str, ...]] = {
    "open": ("open",),
    "file": ("bulk", "bulk stream", "refresh", "publish", "merge"),
    "catalog": ("insert", "bulk", "stream", "refresh", "publish", "merge", "vacuum", "define", "drop"),
    "commit": ("insert", "bulk", "stream", "bulk stream"),
    "refresh": ("refresh",),
    "deliver": ("refresh",),
    "publish": ("publish", "vacuum"),
    "compact": ("merge",),
    "vacuum": ("vacuum",),
    "cache": ("copies",),
    "archive": ("archive",),
}
"""By the first word of a point: the steps that lead there."""
_FIRST: dict[str, tuple[str, ...]] = {
    "refresh": ("stream",),
    "publish": ("stream", "bulk"),
    "merge": ("stream", "bulk"),
    "vacuum": ("stream", "refresh", "merge"),
    "copies": ("bulk", "merge"),
    "drop": ("define",),
}
"""What is done before a step, so that it has something to do."""
_RARE = ("publish", "merge", "refresh", "vacuum", "define", "drop", "insert", "bulk", "stream", "bulk stream")
_OFTEN = ("file.", "catalog.", "deliver.", "publish.file", "publish.commit", "vacuum.remove", "cache.")
"""Points that one step comes to several times."""
_NOT_YET = ("commit.begin", "commit.staged", "commit.before_catalog")


def child(warehouse: str, calls: str, first: list[Step], step: Step, fault: Armed, note: str) -> None:
    """The process that dies, or stops: it opens the warehouse and does the step. Exit code 3: it was refused."""
    if fault.kind == "torn":
        note_durable(Path(note))
    code = 0
    try:
        if step[0] == "open":
            with armed(fault):
                open_engine(Path(warehouse), Path(calls), None)
        else:
            engine = open_engine(Path(warehouse), Path(calls), None)
            for each in first:
                do(engine, each)
            with armed(fault):
                do(engine, step)
    except CQError:
        code = 3
    except BaseException:  # noqa: BLE001 - the exit code says it
        traceback.print_exc()
        code = 4
    os._exit(code)


def forks() -> Any:
    """A context whose processes are forked from a server that has imported everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.faults.trials"])
    return context


def fill(ballast: Path, room: int) -> None:
    """Takes all of the disk but `room` bytes."""
    with ballast.open("wb") as file:
        left = os.statvfs(ballast.parent)
        file.write(b"x" * max(0, left.f_bavail * left.f_frsize - room))


class World(Checks, Steps):
    """One warehouse and its model, through a number of trials."""

    def __init__(
        self,
        place: Path,
        chance: random.Random,
        url: str | None = None,
        cut: Callable[[], None] | None = None,
        warehouse: Path | None = None,
    ) -> None:
        self.warehouse, self.calls, self.url = warehouse or place / "warehouse", place / "calls", url
        self.archive = place / "cache" / "spark-0-java-0.jsa"
        self.place, self.chance, self.cut = place, chance, cut
        self.model, self.last = Model(), "the beginning"
        self._logs: dict[Path, set[str]] = {}
        self.calls.touch()
        self.engine = self._open()

    def _open(self, limits: Limits = LIMITS) -> Engine:
        return open_engine(self.warehouse, self.calls, self.url, limits)

    # ------------------------------------------------------------ one trial

    def trial(self, point: str, kind: str, *, later: bool = True) -> bool:
        """Whether the fault was met, also at the second or third time with `later`. Raises AssertionError where the
        warehouse is not as it should be."""
        chance = self.chance
        name = chance.choice(_AIMS[point.partition(".")[0]])
        for each in chance.sample(_RARE, chance.choice([0, 1])):
            self._quietly(self._step(each))
        fault = Armed(point, kind, chance.choice([1, 1, 2, 3]) if later and point.startswith(_OFTEN) else 1)
        self.last = f"{kind} at {point}, time {fault.hit}, in {name}"
        first = [self._step(each) for each in _FIRST.get(name, ())]
        if kind in _IN_CHILD:
            met = self._apart(first, self._step(name), fault)
        else:
            for step in first:
                self._quietly(step)
            met = self._here(self._step(name), fault)
        self.check()
        return met

    def _quietly(self, step: Step) -> None:
        do(self.engine, step)
        self._resolve([step], must=[step])

    def on_full_disk(self, name: str, room: int, ballast: Path) -> BaseException | None:
        """A step on a disk, that of the warehouse, which has so many bytes left; what it failed with."""
        for each in _FIRST.get(name, ()):
            self._quietly(self._step(each))
        step = self._step(name)
        self.last = f"{name} with {room} bytes"
        failure: BaseException | None = None
        fill(ballast, room)
        try:
            do(self.engine, step)
        except CQError as error:
            failure = error
        finally:
            ballast.unlink()
        there = self._resolve([step], must=[] if failure else [step])
        self._check_word(step, failure, step in there)
        self._check_garbage()
        check_memory(self.engine.catalog)
        self.engine.close()
        self.engine = self._open()
        self.check()
        return failure

    def _here(self, step: Step, fault: Armed) -> bool:
        """In this process, which goes on, closes the warehouse, and opens it again."""
        pending, ends = [step], self._act(step, fault)
        if step[0] == "open":
            self._closing(fault)
        failure: BaseException | None = None
        try:
            with armed(fault):
                if step[0] == "open":
                    self.engine = self._open()
                else:
                    do(self.engine, step)
        except (CQError, KeyboardInterrupt) as error:
            failure = error
        for other, end in ends:
            end()
            pending.append(other)
        if step[0] != "open":
            there = self._resolve(pending, must=pending if failure is None else pending[1:])
            self._check_word(step, failure, step in there)
            failure = None
            self._check_garbage()
            check_memory(self.engine.catalog)
            self.engine.close()
            self.engine = self._open()
        elif failure is not None:
            self.engine = self._open()
        return fault.met

    def _act(self, step: Step, fault: Armed) -> list[tuple[Step, Callable[[], None]]]:
        """Says what the fault does; gives what will have been done beside, and how to wait for its end."""
        ends: list[tuple[Step, Callable[[], None]]] = []
        if fault.kind == "lost":
            fault.act = self.cut
        elif step[0] == "open":
            fault.act = self._look
        elif fault.kind == "delay":
            other = self._step(self.chance.choice(["insert", "publish", "merge"]))
            fault.act = lambda: ends.append((other, beside(self.engine, other)))
        return ends

    def _check_garbage(self) -> None:
        """Nothing of what failed stays until the process ends."""
        gc.collect(0)
        self.engine.catalog.sweep()
        if self._spare() or self._has_attempts():  # the traceback of what failed may hold an attempt
            gc.collect()
            self.engine.catalog.sweep()
        self._check_files(self.engine.catalog)

    def _look(self) -> None:
        """What others may do while a warehouse is opened: read it, where it is of this version already."""
        with suppress(CQError):
            Catalog.open(str(self.warehouse), url=self.url, read_only=True, clock=SystemClock()).close()

    def _check_word(self, step: Step, failure: BaseException | None, there: bool) -> None:
        """What a statement says of itself is so: what fails is not there, and who is interrupted knows."""
        if isinstance(failure, CQError) and self._commits(step):
            assert not there, f"{failure!r}, and it is there"
        if isinstance(failure, KeyboardInterrupt) and step[0] == "insert":
            assert (getattr(failure, "known", None) is not None) == there, (
                "who was interrupted was told wrong"
            )

    def _closing(self, fault: Armed) -> None:
        """Closes the warehouse so that opening has something to do."""
        catalog = self.engine.catalog
        if fault.point == "open.migrating" or self.chance.random() < 0.3:
            self.engine.publish()
            self.engine.close()
            make_older(catalog, self.chance.choice([1, 3]))
            catalog._database.close()
            return
        catalog.attempt("left")  # as a process that has died
        self.engine.close()

    def _apart(self, first: list[Step], step: Step, fault: Armed) -> bool:
        """In a child, which does all of it."""
        if step[0] == "open":
            self._closing(fault)
        else:
            self.engine.close()
        before = data_files(self.warehouse)
        note = self.place / "durable"
        note.unlink(missing_ok=True)
        process = forks().Process(
            target=child, args=(str(self.warehouse), str(self.calls), first, step, fault, str(note))
        )
        process.start()
        if fault.kind == "pause":
            return self._pause(process, first, step, fault)
        process.join(120)
        assert process.exitcode in (0, -signal.SIGKILL), f"the child ended with {process.exitcode}"
        met = process.exitcode != 0
        if met and fault.kind == "torn":
            power_cut(self.warehouse, before, note, self.chance)
        self.engine = self._open()
        there = self._resolve([*first, step], must=first if met else [*first, step])
        if met and fault.point.startswith("commit."):
            assert (step in there) == (fault.point not in _NOT_YET)
        return met

    def _pause(self, process: Any, first: list[Step], step: Step, fault: Armed) -> bool:
        """The child is stopped; this process takes the warehouse over and works, then the child goes on."""
        deadline = time.monotonic() + 120
        stat = Path(f"/proc/{process.pid}/stat")
        while process.is_alive() and time.monotonic() < deadline:
            with suppress(OSError):
                if stat.read_text().rpartition(")")[2].split()[0] == "T":
                    break
            time.sleep(0.005)
        met = process.is_alive() and not self._is_locked()
        if (
            not met
        ):  # it is over, or nobody can take the warehouse over while the child is in a write transaction
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGCONT)
            process.join(120)
            self.engine = self._open()
            self._resolve([*first, step], must=[*first, step])
            return False
        try:
            limits = Limits(**{**vars(LIMITS), "lease_seconds": 0.0})
            self.engine = open_engine(self.warehouse, self.calls, self.url, limits, duties=True)
            there = self._resolve([*first, step], must=first)
            for name in ("insert", self.chance.choice(["refresh", "publish", "vacuum", "merge"])):
                self._quietly(self._step(name))
        finally:
            before = len(self.calls.read_text().splitlines())
            os.kill(process.pid, signal.SIGCONT)
        process.join(120)
        assert process.exitcode in (0, 3), f"the child ended with {process.exitcode}"
        self._check_late(before, process.pid, fault)
        self._resolve(
            [] if step in there else [step], must=[]
        )  # it goes on with a commit, and with nothing else
        self.engine.close()
        self.engine = self._open()
        return True

    def _is_locked(self) -> bool:
        """Whether a process is in a write transaction of the catalog."""
        connection = sqlite3.connect(self.warehouse / "catalog.db", timeout=0, isolation_level=None)
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
        except sqlite3.OperationalError:
            return True
        finally:
            connection.close()
        return False

    def _check_late(self, before: int, pid: int, fault: Armed) -> None:
        """Who has lost the duties gives nothing to the callback, but for the batch that it was about to give."""
        lines = self.calls.read_text().splitlines(keepends=True)
        said = [json.loads(line) for line in lines]
        late = [n for n in range(before, len(said)) if said[n]["by"] == pid]
        assert len(late) <= (fault.point == "deliver.begin"), "a callback was called by a fenced process"
        for n in late:
            if said[n]["deltas"] in [each["deltas"] for each in said[:n]]:  # the successor was faster
                self.calls.write_text("".join(lines[:n] + lines[n + 1 :]))

    def finish(self) -> None:
        """Everything is brought up to date; the table, the callback and Delta Lake have all of it, once."""
        for name in ("bulk", "stream", "refresh"):
            self._quietly(self._step(name))
        self.engine.publish()
        self.check()
        catalog = self.engine.catalog
        newest = max(self.model.commits)
        assert catalog.status("totals").position >= newest
        for destination in ("table:totals_log", "callback:calls"):
            cursor = catalog.cursor("totals", destination)
            assert cursor is not None
            assert cursor.version >= newest
        state = catalog.state
        for table in (
            *(state.tables[n].storage for n in ("account", "entry")),
            state.queries["totals"].result,
        ):
            root = root_of(catalog.storage_of(table), "log")
            check_history(self.warehouse / root)
            shown = delta_rows(self.warehouse, root)
            floor = catalog.floor(table.id)
            own = change_rows(catalog, table, floor)
            names = [*(c.name for c in table.columns), "_change_type", "_commit_version"]
            got = Counter(r for r in rows_of(shown, names).elements() if r[-1] > floor)
            assert got == Counter(tuple(row[n] for n in names) for row in own), (
                f"published log of {table.name}"
            )
        self.engine.close()
