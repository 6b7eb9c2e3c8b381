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
import shutil
import signal
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from cq_engine.api.engine import Engine
from cq_engine.catalog import schema
from cq_engine.catalog.attempts import root_of
from cq_engine.catalog.store import Catalog
from cq_engine.core import faults
from cq_engine.core.clock import SystemClock
from cq_engine.core.errors import CQError
from cq_engine.core.limits import Limits
from tests.catalog.test_interrupts import check_memory
from tests.faults.kinds import KINDS, Armed, armed, data_files, note_durable, power_cut, why_not
from tests.faults.warehouse import (
    LIMITS,
    Change,
    Delta,
    Row,
    Rows,
    Step,
    all_rows,
    beside,
    change_rows,
    difference,
    do,
    history,
    image,
    make_older,
    open_engine,
    replay,
    totals,
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


@dataclass
class Model:
    """What is committed, kept outside of the warehouse."""

    commits: dict[int, dict[str, list[tuple[str, Row]]]] = field(default_factory=dict)
    """Version → base table → change rows."""
    rows: dict[str, Rows] = field(default_factory=lambda: {"account": {}, "entry": {}})
    deltas: list[Delta] = field(default_factory=list)
    """Of every version, whether it was refreshed or not."""
    served: set[int] = field(default_factory=set)
    """Versions that are the commits of the table destination."""
    next: int = 1

    def add(self, version: int, changes: dict[str, list[tuple[str, Row]]]) -> None:
        before = totals(self.rows["entry"])
        for table, each in changes.items():
            replay(self.rows[table], each)
        self.commits[version] = changes
        self.deltas += difference(version, before, totals(self.rows["entry"]))

    @property
    def newest(self) -> int:
        return max([0, *self.commits, *self.served])


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


class World:
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
        self._left: set[str] = set()
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
            make_older(catalog, self.chance.choice([1, 3]))
            catalog._lease.release()  # type: ignore[union-attr]
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
        met = process.is_alive()
        try:
            self.engine = self._open(Limits(**{**vars(LIMITS), "lease_seconds": 0.0}) if met else LIMITS)
            self._resolve([*first, step], must=first if met else [*first, step])
            if met:
                for name in ("insert", self.chance.choice(["refresh", "publish", "vacuum", "merge"])):
                    self._quietly(self._step(name))
        finally:
            lines = self.calls.read_text().splitlines(keepends=True)
            if met:
                os.kill(process.pid, signal.SIGCONT)
        process.join(120)
        assert process.exitcode in (0, 3), f"the child ended with {process.exitcode}"
        self._check_late(lines, fault)
        self._resolve([], must=[])
        self.engine.close()
        self.engine = self._open()
        if met:  # what it wrote when its attempt had been given up: it must not remove anything
            own = self.engine.catalog._lease.epoch - 2  # type: ignore[union-attr]
            self._left |= {p for p in self._spare() if f"-{own}-" in p}
        return met

    def _check_late(self, before: list[str], fault: Armed) -> None:
        """Who has lost the warehouse gives nothing to the callback, but for the batch that it was about to give."""
        late = self.calls.read_text().splitlines(keepends=True)[len(before) :]
        assert len(late) <= (fault.point == "deliver.begin"), "a callback was called by a fenced process"
        if late and late[0] in before:  # the successor was faster
            self.calls.write_text("".join(before))

    # ------------------------------------------------------------ steps

    def _step(self, name: str) -> Step:
        chance, entries = self.chance, self.model.rows["entry"]
        self.model.next += 100
        first = self.model.next
        if name == "insert":
            rows = [
                (first + n, chance.randrange(4), chance.randrange(9), "n")
                for n in range(chance.choice([1, 3]))
            ]
            return "insert", {
                "account": [(first, f"o{first}")],
                **({"entry": rows} if chance.random() < 0.7 else {}),
            }
        if name == "bulk":
            rows = [(first + n, chance.randrange(4), chance.randrange(5), "n" * 40) for n in range(40)]
            return "insert", {"entry": rows, "account": [(first, "bulk")]}
        if name in ("stream", "bulk stream"):
            return "stream", self._stream(first, 30 if name == "bulk stream" else 2, sorted(entries))
        if name == "define":
            return "define", f"t{first}"
        if name == "drop":
            others = sorted(set(self.engine.catalog.state.tables) - {"account", "entry", "totals_log"})
            return ("drop", others[0]) if others else ("define", f"t{first}")
        if name == "merge":
            return "merge", chance.choice(["entry", "entry", "account"])
        return name, str(self.archive) if name == "archive" else None

    def _stream(self, first: int, size: int, keys: list[int]) -> list[list[Change]]:
        """Two or three transactions; none touches a row twice."""
        chance, found = self.chance, []
        for number in range(chance.choice([2, 3])):
            changes: list[Change] = []
            for n in range(size):
                row = (chance.randrange(4), chance.randrange(12), "s" * chance.choice([1, 60]))
                if keys and chance.random() < 0.5:
                    key = keys.pop(chance.randrange(len(keys)))
                    old = self.model.rows["entry"][key]
                    changes.append(("D", old) if chance.random() < 0.5 else ("U", (key, *row)))
                else:
                    changes.append(("I", (first + 30 * number + n, *row)))
            found.append(changes)
        return found

    def _commits(self, step: Step) -> list[dict[str, list[tuple[str, Row]]]]:
        """What a step commits, commit by commit."""
        if step[0] == "insert":
            return [{table: [("insert", row) for row in rows] for table, rows in step[1].items()}]
        if step[0] != "stream":
            return []
        found = []
        for changes in step[1]:
            rows: list[tuple[str, Row]] = []
            for op, row in changes:
                old = self.model.rows["entry"].get(row[0])
                if op == "I":
                    rows.append(("insert", row))
                elif old is not None and op == "D":
                    rows.append(("delete", old))
                elif old is not None and old != row:
                    rows += [("update_preimage", old), ("update_postimage", row)]
            if rows:
                found.append({"entry": rows})
        return found

    def _resolve(self, pending: list[Step], must: list[Step]) -> list[Step]:
        """Which of the steps are there: each whole, or nothing of it. Everything new is one of them."""
        catalog, model = self.engine.catalog, self.model
        known = model.newest
        found: dict[int, dict[str, list[tuple[str, Row]]]] = defaultdict(dict)
        for name in ("account", "entry", "totals_log"):
            for version, changes in history(catalog, catalog.state.tables[name].storage, known).items():
                found[version][name] = changes
        left = {n: self._commits(step) for n, step in enumerate(pending)}
        floor = max(
            catalog.floor(catalog.state.tables[name].storage.id)
            for name in ("account", "entry", "totals_log")
        )
        if floor > known:  # what was committed is forgotten already: it came in this order
            plain = [commit for n, step in enumerate(pending) for commit in left[n] if step in must]
            after = [{"totals_log": []} for _ in range(catalog.newest_version - known - len(plain))]
            found = defaultdict(dict, enumerate([*plain, *after], known + 1))
        assert sorted(found) == list(range(known + 1, catalog.newest_version + 1))
        there = [step for n, step in enumerate(pending) if not left[n]]
        for version in sorted(found):
            if set(found[version]) == {"totals_log"}:
                model.served.add(version)
                continue
            fits = [n for n, commits in left.items() if commits and _same(commits[0], found[version])]
            assert fits, f"nobody has committed {found[version]}"
            model.add(version, left[fits[0]].pop(0))
            if not left[fits[0]]:
                there.append(pending[fits[0]])
        for n, step in enumerate(pending):
            assert (
                not left[n] or left[n] == self._commits(step) or len(left[n]) == len(self._commits(step))
            ), "a part of a step is there"
            assert step not in must or step in there, "what was done is not there"
        return there

    # ------------------------------------------------------------ checks

    def check(self) -> None:
        """The warehouse, opened again, is what the model says."""
        catalog, model = self.engine.catalog, self.model
        tables = catalog.state.tables
        assert catalog.newest_version == model.newest
        for name in ("account", "entry"):
            assert image(catalog, tables[name].storage, catalog.newest_version) == model.rows[name], name
            floor = catalog.floor(tables[name].storage.id)
            kept = {v: Counter(rows) for v, rows in history(catalog, tables[name].storage, floor).items()}
            wanted = {v: Counter(c[name]) for v, c in model.commits.items() if name in c and v > floor}
            assert kept == wanted, f"the history of {name}"
        self._check_log(catalog)
        self._check_table(catalog)
        self._check_calls(catalog)
        self._check_files(catalog)
        check_memory(catalog)

    def _check_log(self, catalog: Catalog) -> None:
        query = catalog.state.queries["totals"]
        position, floor = catalog.status("totals").position, catalog.floor(query.result.id)
        assert catalog.status("totals").state == "ACTIVE"
        rows = Counter(
            (r["_commit_version"], r["_sequence"], r["_change_type"], r["account"], r["total"])
            for r in change_rows(catalog, query.result, floor)
        )
        wanted: Counter[Row] = Counter()
        for version, mark, sequence, new, old in self.model.deltas:
            if floor < version <= position:
                if old is not None:
                    wanted[(version, sequence, "delete" if mark == "D" else "update_preimage", *old)] += 1
                if new is not None:
                    wanted[(version, sequence, "insert" if mark == "I" else "update_postimage", *new)] += 1
        assert rows == wanted, "the delta log"
        records = catalog.refreshes("totals", 1 << 30)[::-1]
        ends = [0, *(record.to_version for record in records)]
        assert [record.from_version for record in records] == ends[:-1]
        assert ends[-1] == position

    def _check_table(self, catalog: Catalog) -> None:
        """Exactly once, in order."""
        cursor = catalog.cursor("totals", "table:totals_log")
        assert cursor is not None
        served = [d for d in self.model.deltas if d[0] <= cursor.version]
        wanted = [
            (*(new or old or ()), mark, old and old[1], version) for version, mark, _, new, old in served
        ]
        got = all_rows(catalog, catalog.state.tables["totals_log"].storage)
        assert len({row[0] for row in got}) == len(got), "a row id was given twice"
        assert Counter(row[1:] for row in got) == Counter(wanted), "the table destination"
        assert all(a[5] <= b[5] for a, b in pairwise(got)), "the table destination is not in order"

    def _check_calls(self, catalog: Catalog) -> None:
        """At least once, in order; only the batch whose cursor was not durable comes again."""
        cursor = catalog.cursor("totals", "callback:calls")
        assert cursor is not None
        lines = [json.loads(line)["deltas"] for line in self.calls.read_text().splitlines()]
        places = [(batch[0][0], batch[0][2]) for batch in lines]
        assert places == sorted(places), "a batch came before one that is ahead of it"
        once = [batch for n, batch in enumerate(lines) if n == 0 or batch != lines[n - 1]]
        assert len(set(places)) == len(once), "a batch came again with other content"
        got = [delta for batch in once for delta in batch]
        all_of_them = json.loads(json.dumps(self.model.deltas))
        assert got == all_of_them[: len(got)], "what the callback has got"
        end = (cursor.version, cursor.sequence)
        taken = [
            d for d in all_of_them if d[0] < end[0] or (d[0] == end[0] and (not end[1] or d[2] <= end[1]))
        ]
        assert len(taken) <= len(got), "the cursor stands behind what nobody has got"
        assert len(got) - len(taken) <= LIMITS.batch_deltas, "more than one batch would come again"

    def _has_attempts(self) -> bool:
        with self.engine.catalog._reading() as connection:
            return bool(connection.execute(schema.attempts.select()).all())

    def _check_files(self, catalog: Catalog) -> None:
        assert self._spare() == set(), f"files that nobody refers to: {self._spare()}"
        with catalog._reading() as connection:
            assert connection.execute(schema.attempts.select()).all() == []
            assert connection.execute(schema.doomed.select()).all() == []

    def _spare(self) -> set[str]:
        """Data files that neither the catalog nor a Delta table names, but for those that may be left."""
        view = self.engine.catalog.view
        named = {path for layout in view.layouts.values() for path in layout.files}
        named |= {f.path for layout in view.layouts.values() for c in layout.changes for f in c.files}
        there = {p.relative_to(self.warehouse).as_posix() for p in self.warehouse.rglob("*.parquet*")}
        there = {p for p in there if "_delta_log" not in p and "/inserts-" not in p}
        assert named - there == set(), f"files are missing: {named - there}"
        return there - named - self._published() - self._left

    def _published(self) -> set[str]:
        """What a Delta table has been told of, relative to the warehouse: its history stays when the engine's goes."""
        for log in self.warehouse.glob("*/*/_delta_log/*.json"):
            if log not in self._logs:
                try:
                    actions = [json.loads(line) for line in log.read_text().splitlines()]
                except ValueError:  # torn: it goes with the next publication
                    continue
                root = log.parent.parent.relative_to(self.warehouse)
                self._logs[log] = {f"{root}/{a['add']['path']}" for a in actions if "add" in a}
        return set().union(*self._logs.values())

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


def _same(mine: dict[str, list[tuple[str, Row]]], theirs: dict[str, list[tuple[str, Row]]]) -> bool:
    return {t: Counter(rows) for t, rows in mine.items()} == {t: Counter(rows) for t, rows in theirs.items()}


# ---------------------------------------------------------------- many trials


@contextmanager
def quick_place() -> Iterator[Path]:
    """A directory in memory, where the system has one: thousands of commits wait for the disk otherwise."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(
        prefix="cq-faults-", dir=memory if os.access(memory, os.W_OK) else None
    ) as made:
        yield Path(made)


CELLS = [(point, kind) for point in faults.POINTS for kind in KINDS if not why_not(point, kind)]


def campaign(
    place: Path,
    seed: int,
    most: int,
    *,
    seconds: float = float("inf"),
    cells: Sequence[tuple[str, str]] = CELLS,
    first: Sequence[tuple[str, str]] = (),
    postgres: Callable[[], tuple[str, Callable[[], None]]] | None = None,
) -> Counter[tuple[str, str]]:
    """How often each fault was met, in `most` trials or as many as fit into the time. The cells come in a random order,
    again and again, after those that are to be `first`; `lost` has warehouses over PostgreSQL of its own."""
    chance = random.Random(seed)
    met: Counter[tuple[str, str]] = Counter()
    wanted = [c for c in cells if postgres is not None or c[1] != "lost"]
    queue = [c for c in first if c in wanted]
    number, end = 0, time.monotonic() + seconds
    while sum(met.values()) < most and time.monotonic() < end:
        if not queue:
            queue += chance.sample(wanted, len(wanted))
        lost = queue[0][1] == "lost"
        span = [c for c in queue if (c[1] == "lost") == lost][:SPAN]
        for cell in span:
            queue.remove(cell)
        number += 1
        directory = place / f"{number}"
        directory.mkdir(parents=True)
        url, cut = postgres() if lost and postgres is not None else (None, None)
        inner = chance.randrange(1 << 30)
        world = World(directory, random.Random(inner), url, cut)
        try:
            for cell in span:
                met[cell] += any(world.trial(*cell, later=number == 0) for number in range(3))
            world.last = "the end"
            world.finish()
        except BaseException as error:
            if hasattr(error, "add_note"):  # from Python 3.11 on
                error.add_note(f"seed {seed}, warehouse {number}: {world.last}")
            raise
        shutil.rmtree(directory)
    return +met
