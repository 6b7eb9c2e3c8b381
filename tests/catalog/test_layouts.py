"""Layouts against a naive model that remembers every image and every commit."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from cq_engine.catalog.flush import flush
from cq_engine.catalog.model import CatalogState, ChangeSet, DataFile, Layout, Table, VersionedTable
from cq_engine.catalog.store import Catalog
from cq_engine.catalog.tables import write_parquet
from cq_engine.core.clock import SystemClock
from cq_engine.core.columns import Column
from cq_engine.core.errors import StorageError
from tests.catalog.conftest import vacuum

TABLE = VersionedTable(1, "base", "t", (Column("k", "bigint", False),), ("k",))
START = datetime(2020, 1, 1, tzinfo=timezone.utc)

Change = tuple[int, str, int]
"""(version, insert or delete, key)"""

operations = st.lists(
    st.one_of(
        st.tuples(st.just("inline"), st.sets(st.integers(0, 20), min_size=1, max_size=4)),
        st.tuples(st.just("bulk"), st.integers(1, 3)),
        st.tuples(st.sampled_from(["compact", "flush", "reopen"]), st.just(0)),
        st.tuples(st.sampled_from(["vacuum", "forget"]), st.integers(0, 20)),
    ),
    max_size=14,
)


@dataclass
class Naive:
    """Everything that ever was."""

    images: list[set[int]] = field(default_factory=lambda: [set()])
    log: list[Change] = field(default_factory=list)
    fresh: int = 100

    @property
    def newest(self) -> int:
        return len(self.images) - 1

    def commit(self, changes: list[Change]) -> None:
        image = set(self.images[-1])
        for _, kind, key in changes:
            if kind == "insert":
                image.add(key)
            else:
                image.discard(key)
        self.images.append(image)
        self.log += changes


class Warehouse:
    """The catalog under test, driven by the same operations."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.files: dict[str, list[int]] = {}
        self.naive = Naive()
        self.forgotten = 0
        self.open()
        with self.catalog.write() as unit:
            unit.set_state(CatalogState({"t": Table("t", TABLE, ("k",))}, {}, 2))

    def open(self) -> None:
        self.catalog = Catalog.open(self.directory, clock=SystemClock())

    def staged(self, kind: str, keys: list[int]) -> tuple[object, DataFile]:
        attempt = self.catalog.attempt(kind)
        rows = pa.table({"k": pa.array(keys, pa.int64())})
        path = f"{attempt.directory(TABLE, 'snapshot')}/part-0.parquet"
        file = write_parquet(rows, path, self.catalog.store)
        self.files[file.path] = keys
        return attempt, file

    def inline(self, keys: set[int]) -> None:
        """Every key that is there goes, every one that is not comes."""
        version = self.naive.newest + 1
        there = self.naive.images[-1]
        changes = [(version, "delete" if k in there else "insert", k) for k in sorted(keys)]
        rows = pa.table(
            {
                "k": pa.array([c[2] for c in changes], pa.int64()),
                "_change_type": [c[1] for c in changes],
                "_commit_version": pa.array([version] * len(changes), pa.int64()),
            }
        )
        with self.catalog.write() as unit:
            unit.add_commit(version, START + timedelta(seconds=version))
            unit.add_changes(TABLE, version, version, rows)
        self.naive.commit(changes)

    def bulk(self, count: int) -> None:
        version = self.naive.newest + 1
        keys = list(range(self.naive.fresh, self.naive.fresh + count))
        self.naive.fresh += count
        attempt, file = self.staged("copy", keys)
        with self.catalog.write(attempt) as unit:  # type: ignore[arg-type]
            unit.add_commit(version, START + timedelta(seconds=version))
            unit.add_change_files(TABLE, version, version, [file], frozenset({"INSERT"}), insert_only=True)
        self.naive.commit([(version, "insert", k) for k in keys])

    def compact(self, _: int) -> None:
        newest = self.naive.newest
        attempt, file = self.staged("compact", sorted(self.naive.images[-1]))
        old = [f.path for f in self.catalog.layout(1, newest).snapshot]
        with self.catalog.write(attempt) as unit:  # type: ignore[arg-type]
            unit.advance_snapshot(TABLE, newest, [file], old)

    def flush(self, _: int) -> None:
        flush(self.catalog)

    def reopen(self, _: int) -> None:
        self.catalog.close()
        self.open()

    def vacuum(self, pin: int) -> None:
        vacuum(self.catalog, min(pin, self.naive.newest))

    def forget(self, pin: int) -> None:
        """The change log, too."""
        self.catalog.forget(lambda: {1: min(pin, self.naive.newest)}, logs=True)
        self.catalog.sweep()
        self.forgotten = self.catalog.view.layouts[1].floor if 1 in self.catalog.view.layouts else 0

    def changes_in(self, change_set: ChangeSet) -> list[Change]:
        if change_set.inline_id is not None:
            rows = self.catalog.inline(change_set)
        elif change_set.insert_only:
            return [(change_set.low, "insert", k) for f in change_set.files for k in self.files[f.path]]
        else:
            rows = pa.concat_tables(
                pa.parquet.read_table(f"{self.catalog.warehouse}/{f.path}") for f in change_set.files
            )
            cached = self.catalog.cached(change_set)
            assert cached is None or cached.equals(rows.select(cached.column_names))
        return [(r["_commit_version"], r["_change_type"], r["k"]) for r in rows.to_pylist()]

    def image(self, layout: Layout, at: int) -> set[int]:
        keys = {k for f in layout.snapshot for k in self.files[f.path]}
        for change_set in layout.changes:
            for version, kind, key in self.changes_in(change_set):
                if layout.base < version <= at:
                    (keys.add if kind == "insert" else keys.remove)(key)
        return keys


def check(warehouse: Warehouse) -> None:
    naive, catalog = warehouse.naive, warehouse.catalog
    floor = catalog.view.layouts[1].floor if 1 in catalog.view.layouts else 0
    for at in range(naive.newest + 1):
        if at < floor:
            try:
                catalog.layout(1, at)
            except StorageError:
                continue
            raise AssertionError(f"version {at} lies below {floor}")
        layout = catalog.layout(1, at)
        assert layout.base <= at
        assert warehouse.image(layout, at) == naive.images[at]
    logged = [c for s in catalog.changes(1, 1, naive.newest) for c in warehouse.changes_in(s)]
    kept = [c for c in logged if c[0] > warehouse.forgotten]
    assert sorted(kept) == sorted(c for c in naive.log if c[0] > warehouse.forgotten)
    for layout in catalog.view.layouts.values():
        assert all(c.high > warehouse.forgotten for c in layout.changes)
    for version, *_ in kept:
        assert catalog.timestamp(version) == START + timedelta(seconds=version)
    for at in range(max(floor, 1), naive.newest + 1):
        found = catalog.version_at(START + timedelta(seconds=at))
        assert floor <= found <= at
        assert naive.images[found] == naive.images[at]
        stored = [f for s in layout.files.values() for f in [s.file]] + [
            f for c in layout.changes for f in c.files
        ]
        assert all(Path(catalog.warehouse, f.path).is_file() for f in stored)
    assert [v for v, _, _ in logged] == sorted(v for v, _, _ in logged)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(operations)
def test_images_and_changes_are_those_of_a_naive_model(steps: list[tuple[str, object]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        warehouse = Warehouse(directory)
        try:
            for name, argument in steps:
                getattr(warehouse, name)(argument)
                check(warehouse)
            warehouse.reopen(0)
            check(warehouse)
        finally:
            warehouse.catalog.close()
