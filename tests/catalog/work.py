"""Random writes to a catalog beside a model of them, and a memory that has to be the database's."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from cq_engine.catalog import persist
from cq_engine.catalog.flush import flush
from cq_engine.catalog.model import (
    Capture,
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
from cq_engine.grammar.clauses import CaptureMethod, OnDemand


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
