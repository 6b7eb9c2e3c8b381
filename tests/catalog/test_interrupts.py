"""Ctrl-C anywhere: nothing twice, nothing lost, and the process goes on with a memory that is the database's.

`CQ_INTERRUPTS=20000` tries as many interrupts, at other places with another `CQ_INTERRUPTS_SEED`.
"""

from __future__ import annotations

import linecache
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow.parquet as pq
import pytest

from cq_engine.catalog import persist
from cq_engine.catalog.flush import flush
from cq_engine.catalog.model import (
    Capture,
    CaptureStatus,
    CatalogState,
    Cursor,
    DeclaredDestination,
    DeclaredSource,
    QueryStatus,
    RefreshRecord,
    Table,
    VersionedTable,
)
from cq_engine.catalog.sources import captures_into, drop_capture, drop_source, put_capture, put_source
from cq_engine.catalog.store import Catalog
from cq_engine.catalog.tables import write_parquet
from cq_engine.catalog.view import View
from cq_engine.core import faults, interrupts
from cq_engine.core.errors import ConflictError, StorageError
from cq_engine.grammar.clauses import CaptureMethod, OnDemand

Open = Callable[..., Catalog]
MOST = int(os.environ.get("CQ_INTERRUPTS", "300"))
SEED = int(os.environ.get("CQ_INTERRUPTS_SEED", "1"))
POINTS = ("catalog.before_commit", "catalog.after_commit")


class Interrupter:
    """Interrupts the main thread at the n-th line of the catalog's code that it runs.

    With `held`, by a signal, as Ctrl-C does; else by an exception at that very line, where nothing holds it back. Lines
    with `with` or `try` are left out: an exception there could skip what they end, which none of Python's own does.
    """

    def __init__(self, held: bool) -> None:
        self.held = held
        self.lines = 0
        self._left = -1

    @contextmanager
    def at(self, number: int) -> Iterator[None]:
        self.lines, self._left = 0, number
        sys.settrace(self._call)
        try:
            yield
        finally:
            sys.settrace(None)

    def _call(self, frame: FrameType, event: str, _: Any) -> Any:
        return self._line if event == "call" and "/cq_engine/catalog/" in frame.f_code.co_filename else None

    def _line(self, frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code.co_filename
        if event != "line":
            return self._line
        if linecache.getline(code, frame.f_lineno).lstrip().startswith(("with ", "try:")):
            return self._line
        self.lines += 1
        if self.lines == self._left:
            if not self.held:
                raise KeyboardInterrupt
            signal.raise_signal(signal.SIGINT)
        return self._line


def known(view: View) -> dict[str, object]:
    """All that a view holds, to be compared."""
    layouts = {
        number: (each.floor, sorted(each.snapshots), each.files, each.changes)
        for number, each in ((number, view.layout(number)) for number in view.storage)
    }
    commits = view.commits.timestamps(0, 1 << 60)
    rest = {name: value for name, value in vars(view).items() if name in _PLAIN}
    names = {query: found for query, found in view.cursor_names.items() if found}
    return {**rest, "layouts": layouts, "commits": commits, "names": names}


_PLAIN = ("generation", "definitions", "state", "storage", "statuses", "cursors", "directories", "captures")


def check_memory(catalog: Catalog) -> None:
    """Memory is what a fresh process would read, but for what its tables are called in the order of their ids."""
    with catalog._reading() as connection:
        there = known(persist.load(connection))
    here = known(catalog.view)
    for name, value in there.items():
        assert here[name] == value, name


class Work:
    """Random writes beside a model of what they leave. Every step is whole or not there, which `look` finds out."""

    def __init__(self, catalog: Catalog, sample: Any, chance: random.Random) -> None:
        self.catalog, self.sample, self.chance = catalog, sample, chance
        self.keys: dict[int, int] = {}
        """Key → the version that inserted it."""
        self.ids: list[tuple[int, int]] = []
        self.next = 1
        self.steps: list[Callable[[], None]] = [
            self.commit, self.commit, self.bulk, self.refresh, self.refresh, self.deliver, self.flush, self.compact,
            self.vacuum, self.define, self.reserve, self.give_up, self.define_capture, self.capture, self.capture,
        ]  # fmt: skip

    def step(self) -> None:
        self.next += 1
        self.chance.choice(self.steps)()

    def look(self) -> None:
        """What the last step did, if it was interrupted: the newest commit is its own, or it left none."""
        newest = self.catalog.newest_version
        if newest > len(self.keys):
            self.keys[self.next] = newest

    # ------------------------------------------------------------ steps

    def commit(self) -> None:
        self.sample.commit(self.catalog, [self.next])

    def bulk(self) -> None:
        catalog, orders = self.catalog, self.sample.orders
        attempt = catalog.attempt("copy")
        path = f"{attempt.directory(orders, 'snapshot')}/part-0.parquet"
        file = write_parquet(self.sample.plain([self.next]), path, catalog.store, ["k"])
        with catalog.lock, catalog.write(attempt) as unit:
            version = catalog.newest_version + 1
            unit.add_commit(version, self.sample.when(version))
            unit.add_change_files(orders, version, version, [file], frozenset({"INSERT"}), insert_only=True)

    def refresh(self) -> None:
        catalog = self.catalog
        a, b = catalog.status("big").position, catalog.newest_version
        with catalog.write() as unit:
            for key, version in self.keys.items():
                if a < version <= b:
                    unit.add_changes(self.sample.log, version, version, self.sample.deltas(version, [key]))
            unit.set_status("big", QueryStatus(b))
            unit.add_refresh(RefreshRecord("big", a, b, b - a, 0, 0, "", 0.0, self.sample.when(b)))

    def deliver(self) -> None:
        catalog = self.catalog
        cursor = catalog.cursor("big", "sink") or Cursor("big", "sink", 0)
        with catalog.write() as unit:
            position = catalog.status("big").position
            counted = replace(cursor, version=position, rows=cursor.rows + 1, dead=cursor.dead + 2)
            unit.set_cursor(counted, after=cursor)

    def flush(self) -> None:
        flush(self.catalog)

    def compact(self) -> None:
        catalog, orders = self.catalog, self.sample.orders
        layout = catalog.layout(orders.id, catalog.newest_version)
        if not layout.changes:
            return
        attempt = catalog.attempt("compact")
        path = f"{attempt.directory(orders, 'snapshot')}/part-0.parquet"
        file = write_parquet(self.sample.plain(sorted(self.keys)), path, catalog.store, ["k"])
        with catalog.write(attempt) as unit:
            unit.advance_snapshot(orders, catalog.newest_version, [file], [f.path for f in layout.snapshot])

    def vacuum(self) -> None:
        pin = self.catalog.status("big").position
        self.catalog.forget(lambda: dict.fromkeys(self.catalog.view.layouts, pin))
        self.catalog.sweep()

    def define(self) -> None:
        state = self.catalog.state
        others = {name: table for name, table in state.tables.items() if name != "orders"}
        if len(others) > 3:
            tables = {name: table for name, table in state.tables.items() if name != min(others)}
            state = replace(state, tables=tables)
        else:
            number = state.next_id
            storage = VersionedTable(number, "base", f"t{self.chance.randrange(3)}", (), ("k",))
            attempt = self.catalog.attempt("create")
            Path(self.catalog.warehouse, attempt.directory(storage, "snapshot")).mkdir(parents=True)
            tables = {**state.tables, f"{storage.name}_{number}": Table(f"{storage.name}_{number}", storage)}
            sink = DeclaredDestination(f"d{number % 3}", "TABLE", (("number", str(number)),), number % 2 == 0)
            state = CatalogState(
                tables,
                state.queries,
                max(number + 1, self.catalog.state.next_id),
                destinations={sink.name: sink},
                sources=state.sources,
                captures=state.captures,
            )
            with self.catalog.write(attempt) as unit:
                unit.set_state(state)
            return
        with self.catalog.write() as unit:
            unit.set_state(state)

    def define_capture(self) -> None:
        state, name = self.catalog.state, self.chance.choice(["c0", "c1"])
        if name in state.captures:
            state = drop_capture(state, name) if self.next % 2 else drop_source(state, "S", cascade=True)
        else:
            state = put_source(state, DeclaredSource("S", "sqlite", (("number", str(self.next)),)))
            method = CaptureMethod("LOG", options=(("number", str(self.next)),))
            table = "orders" if name == "c0" else next((n for n in state.tables if n != "orders"), "orders")
            if captures_into(state, table):
                return
            state = put_capture(state, Capture(name, "s", table, method, OnDemand(), "r"))
        with self.catalog.write() as unit:
            unit.set_state(state)

    def capture(self) -> None:
        """A tick: a commit and the status in one transaction."""
        for name in self.catalog.state.captures:
            status = self.catalog.capture_status(name)
            with self.catalog.write() as unit:
                version = self.catalog.newest_version + 1
                unit.add_commit(version, self.sample.when(version))
                unit.add_changes(self.sample.orders, version, version, self.sample.rows(version, [self.next]))
                moved = replace(status, position=str(self.next), rows=status.rows + 1, version=version)
                unit.set_capture(name, replace(moved, last=self.sample.when(version)), after=status)
            return

    def reserve(self) -> None:
        count = self.chance.choice([1, 7_000])
        first = self.catalog.reserve_row_ids(self.sample.orders.id, count)
        self.ids.append((first, first + count))

    def give_up(self) -> None:
        attempt = self.catalog.attempt("copy")
        path = f"{attempt.directory(self.sample.orders, 'snapshot')}/part-0.parquet"
        write_parquet(self.sample.plain([self.next]), path, self.catalog.store, ["k"])
        attempt.abandon()

    # ------------------------------------------------------------ checks

    def check(self, catalog: Catalog) -> None:
        """The tables are what the model says, in `catalog`, too."""
        assert catalog.newest_version == len(self.keys)
        assert sorted(self.keys.values()) == list(range(1, len(self.keys) + 1))
        orders = catalog.layout(self.sample.orders.id, catalog.newest_version)
        rows = [row["k"] for file in orders.snapshot for row in self._rows(file.path)]
        for changes in orders.changes:
            rows += [
                row["k"]
                for row in self._changes(catalog, changes)
                if self._version(changes, row) > orders.base
            ]
        assert Counter(rows) == Counter(list(self.keys))
        position = catalog.status("big").position
        deltas = Counter(
            (row["k"], row["_commit_version"])
            for changes in catalog.changes(self.sample.log.id, 0, 1 << 60)
            for row in self._changes(catalog, changes)
        )
        assert deltas == Counter((k, v) for k, v in self.keys.items() if v <= position)
        refreshes = catalog.refreshes("big", 1 << 30)[::-1]
        ends = [0, *(record.to_version for record in refreshes)]
        assert [record.from_version for record in refreshes] == ends[:-1]
        assert ends[-1] == position
        assert set(catalog.view.captures) == set(catalog.state.captures)
        for name, status in catalog.view.captures.items():
            assert status.ticks == status.rows, name
            assert self.keys.get(int(status.position or 0), 0) == status.version
        ranges = sorted(self.ids)
        assert all(a[1] <= b[0] for a, b in pairwise(ranges)), "a row id was given twice"

    def check_files(self, catalog: Catalog) -> None:
        """Of a process that has just opened the warehouse: every file is one that the catalog names."""
        named = {path for layout in catalog.view.layouts.values() for path in layout.files}
        named |= {f.path for layout in catalog.view.layouts.values() for c in layout.changes for f in c.files}
        warehouse = Path(catalog.warehouse)
        assert {p.relative_to(warehouse).as_posix() for p in warehouse.rglob("*.parquet")} == named
        folders = {p.relative_to(warehouse).as_posix() for p in warehouse.glob("tables/*")}
        assert folders <= {f"tables/{s.directory}" for s in catalog.view.storage.values()}

    def _rows(self, path: str) -> list[dict[str, Any]]:
        return pq.read_table(Path(self.catalog.warehouse, path), partitioning=None).to_pylist()  # type: ignore[no-any-return]

    def _changes(self, catalog: Catalog, changes: Any) -> list[dict[str, Any]]:
        if changes.inline_id is not None:
            return catalog.inline(changes).to_pylist()
        return [row for file in changes.files for row in self._rows(file.path)]

    def _version(self, changes: Any, row: dict[str, Any]) -> int:
        return changes.low if changes.insert_only else row["_commit_version"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("held", [True, False], ids=["signal", "exception"])
def test_random_interrupts_of_random_work(
    catalog: Catalog, open_catalog: Open, sample: Any, held: bool
) -> None:
    chance = random.Random(f"{SEED} {held}")
    interrupter = Interrupter(held)
    with catalog.write() as unit:
        unit.set_status("big", QueryStatus(0))
    work = Work(catalog, sample, chance)
    interrupted = steps = 0
    sqlite = catalog._database.is_sqlite
    while interrupted < (MOST // 2 if sqlite else MOST // 6):
        steps += 1
        try:
            with interrupter.at(chance.randrange(1, chance.choice([60, 400, 1500]))):
                work.step()
        except KeyboardInterrupt:
            interrupted += 1
        work.look()
        check_memory(work.catalog)
        if steps % 10 == 0:
            work.check(work.catalog)
        if steps % 50 == 0:
            work.catalog.close()
            work.catalog = open_catalog()
            work.check_files(work.catalog)
    assert steps < 50 * interrupted
    work.check(work.catalog)
    work.catalog.close()
    again = open_catalog()
    work.check(again)
    work.check_files(again)


@pytest.mark.parametrize("held", [True, False], ids=["signal", "exception"])
def test_a_commit_interrupted_at_its_every_line(
    catalog: Catalog, open_catalog: Open, sample: Any, held: bool
) -> None:
    interrupter = Interrupter(held)
    with interrupter.at(-1):
        sample.commit(catalog, [0])
    lines = interrupter.lines
    assert lines > 100, "the lines of a commit are counted"
    stride = max(1, 4 * lines // MOST)
    keys = [0]
    for number in range(1, lines + 1, stride):
        with suppress(KeyboardInterrupt), interrupter.at(number):
            sample.commit(catalog, [number])
        check_memory(catalog)
        if catalog.newest_version == len(keys):  # nothing was done: it is done again
            sample.commit(catalog, [number])
        keys.append(number)
        assert catalog.newest_version == len(keys)
    catalog.close()
    sets = open_catalog().changes(sample.orders.id, 0, len(keys))
    again = open_catalog(read_only=True)
    assert [row["k"] for each in sets for row in again.inline(each).to_pylist()] == keys


@pytest.mark.parametrize("point", POINTS)
def test_a_point_around_commit(
    catalog: Catalog, open_catalog: Open, sample: Any, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C there, past everything that holds it back; the same write, made again blindly, is refused or new."""

    def stop(name: str, *_: object) -> None:
        if name == point:
            raise KeyboardInterrupt

    def refresh() -> None:
        with catalog.write() as unit:
            unit.add_changes(sample.log, 1, 1, sample.deltas(1, [1]))
            unit.set_status("big", QueryStatus(1))
            unit.set_cursor(Cursor("big", "sink", 1), after=Cursor("big", "sink", 0))
            unit.add_refresh(RefreshRecord("big", 0, 1, 1, 0, 0, "", 0.0, sample.when(1)))

    with catalog.write() as unit:
        unit.set_status("big", QueryStatus(0))
    sample.commit(catalog, [1])
    durable = point == "catalog.after_commit"
    with monkeypatch.context() as patch:
        patch.setattr(faults, "point", stop)
        with pytest.raises(KeyboardInterrupt):
            refresh()
    assert catalog.status("big").position == int(durable)
    if durable:
        with pytest.raises(ConflictError, match="the position of big is not what this process knew"):
            refresh()
    else:
        refresh()
    check_memory(catalog)
    sample.commit(catalog, [2])
    catalog.close()
    again = open_catalog()
    assert again.newest_version == 2
    assert [c.rows for c in again.changes(sample.log.id, 0, 9)] == [1]
    assert len(again.refreshes("big")) == 1


def test_a_stale_view_writes_nothing(catalog: Catalog, sample: Any) -> None:
    """Whoever writes from what the database does not hold any more is refused, and knows the truth from then on."""
    with catalog._reading() as connection:
        old = persist.load(connection)
    sample.commit(catalog, [1])
    catalog._view = old
    with pytest.raises(ConflictError, match="the catalog is not what this process knew"):
        sample.commit(catalog, [2])
    assert catalog.newest_version == 1
    sample.commit(catalog, [2])
    check_memory(catalog)


STALE: dict[str, Callable[[Any, Any], None]] = {
    "the newest commit version": lambda unit, sample: unit.add_commit(1, sample.when(1)),
    "what is defined": lambda unit, sample: unit.set_state(replace(sample.state, tables={}, queries={})),
    "the position of big": lambda unit, _: unit.set_status("big", QueryStatus(1)),
    "the status of capture c": lambda unit, _: unit.set_capture("C", CaptureStatus()),
    "the cursor of sink": lambda unit, _: unit.set_cursor(Cursor("big", "sink", 1)),
}


@pytest.mark.parametrize("what", STALE)
def test_every_fact_is_compared_in_the_database(
    catalog: Catalog, sample: Any, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also without the counter of all writes: what one fact rests on stands in the database as the writer knows it."""
    with catalog.write() as unit:
        unit.set_status("big", QueryStatus(0))
        unit.set_cursor(Cursor("big", "sink", 0))
        captured = put_source(catalog.state, DeclaredSource("s", "csv"))
        capture = Capture("C", "s", "orders", CaptureMethod("COPY"), OnDemand())
        unit.set_state(put_capture(captured, capture))
    with catalog._reading() as connection:
        old = persist.load(connection)
    with catalog.write() as unit:
        STALE[what](unit, sample)
    old.generation = catalog.view.generation
    catalog._view = old
    with pytest.raises(ConflictError, match=what), catalog.write() as unit:
        STALE[what](unit, sample)
    check_memory(catalog)


def test_memory_that_cannot_be_read_again_is_not_trusted(
    catalog: Catalog, sample: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise StorageError("the database is away")

    with monkeypatch.context() as patch:
        patch.setattr(View, "apply", fail)
        patch.setattr(Catalog, "_catch_up", fail)
        sample.commit(catalog, [1])  # it is durable, and says so
        with pytest.raises(StorageError, match="away"):
            assert catalog.newest_version
    assert catalog.newest_version == 1
    sample.commit(catalog, [2])
    check_memory(catalog)


class TestDeferred:
    def test_ctrl_c_comes_at_the_end(self) -> None:
        done = []

        def work() -> None:
            with interrupts.deferred():
                with interrupts.deferred():
                    signal.raise_signal(signal.SIGINT)
                    done.append(1)
                done.append(2)
            done.append(3)

        before = signal.getsignal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            work()
        assert done == [1, 2]
        assert signal.getsignal(signal.SIGINT) is before

    def test_what_lasts_can_be_interrupted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(interrupts, "PATIENCE", 0.0)
        done = []

        def work() -> None:
            with interrupts.deferred():
                signal.raise_signal(signal.SIGINT)
                done.append(1)
                signal.raise_signal(signal.SIGINT)
                done.append(2)

        with pytest.raises(KeyboardInterrupt):
            work()
        assert done == [1]
