"""Warehouses over SQLite and over a real PostgreSQL server, and small tables to put into them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cq_engine.catalog.model import CatalogState, ContinuousQuery, Table, VersionedTable
from cq_engine.catalog.store import Catalog
from cq_engine.core.clock import SystemClock
from cq_engine.core.columns import Column

START = datetime(2020, 1, 1, tzinfo=timezone.utc)
ROOT = Path(__file__).parents[2]


class Sample:
    """A table `orders` (k BIGINT PRIMARY KEY, v STRING), a query `big` over it with one stored block."""

    orders = VersionedTable(
        1, "base", "orders", (Column("k", "bigint", False), Column("v", "string")), ("k",), ("k",)
    )
    log = VersionedTable(3, "delta", "big", (Column("k", "bigint"), Column("n", "bigint")), ("k",))
    block = VersionedTable(4, "state", "big#0", (Column("k", "bigint"), Column("n", "bigint")), ("k",))

    @property
    def query(self) -> ContinuousQuery:
        return ContinuousQuery(
            name="Big",
            id=2,
            statement="CREATE CONTINUOUS QUERY Big AS SELECT k FROM orders",
            query="SELECT k FROM orders",
            result=self.log,
            key=("k",),
            mode="TRANSACTIONAL",
            markers=("I", "D", "U"),
            sources=("orders",),
            states=(("block 0", self.block),),
        )

    @property
    def state(self) -> CatalogState:
        tables = {"orders": Table("orders", self.orders, ("k",))}
        return CatalogState(tables, {"big": self.query}, 5)

    def when(self, version: int) -> datetime:
        """The commit time of a version."""
        return START + timedelta(minutes=version)

    def rows(self, version: int, keys: Sequence[int], kind: str = "insert", value: str = "x") -> pa.Table:
        """Change rows of `orders`."""
        return pa.table(
            {
                "k": pa.array(keys, pa.int64()),
                "v": pa.array([f"{value}{k}" for k in keys], pa.string()),
                "_change_type": pa.array([kind] * len(keys), pa.string()),
                "_commit_version": pa.array([version] * len(keys), pa.int64()),
            }
        )

    def plain(self, keys: Sequence[int], value: str = "x") -> pa.Table:
        """Rows of `orders`."""
        return self.rows(0, keys, value=value).select(["k", "v"])

    def deltas(self, version: int, keys: Sequence[int]) -> pa.Table:
        """Rows of the delta log of `big`."""
        size = len(keys)
        return pa.table(
            {
                "k": pa.array(keys, pa.int64()),
                "n": pa.array([1] * size, pa.int64()),
                "_change_type": pa.array(["insert"] * size, pa.string()),
                "_commit_version": pa.array([version] * size, pa.int64()),
                "_sequence": pa.array(range(1, size + 1), pa.int64()),
                "_refresh_time": pa.array([self.when(version)] * size, pa.timestamp("us", tz="UTC")),
            }
        )

    def commit(self, catalog: Catalog, keys: Sequence[int], kind: str = "insert", value: str = "x") -> int:
        """One inline commit to `orders`; its version."""
        with catalog.lock:
            version = catalog.newest_version + 1
            with catalog.write() as unit:
                unit.add_commit(version, self.when(version))
                unit.add_changes(self.orders, version, version, self.rows(version, keys, kind, value))
        return version


def vacuum(catalog: Catalog, pin: int) -> int:
    """Forgets the images below one version of all tables and removes their files; how many."""
    catalog.forget(lambda: dict.fromkeys(catalog.view.layouts, pin))
    return catalog.sweep()


@pytest.fixture
def sample() -> Sample:
    return Sample()


@pytest.fixture
def open_catalog(warehouse: Path, database_url: str | None) -> Iterator[Callable[..., Catalog]]:
    """Opens the test's warehouse; what is open at the end is closed."""
    opened: list[Catalog] = []

    def open_it(**options: Any) -> Catalog:
        catalog = Catalog.open(str(warehouse), url=database_url, clock=SystemClock(), **options)
        opened.append(catalog)
        return catalog

    yield open_it
    for catalog in opened:
        catalog.close()


@pytest.fixture
def catalog(open_catalog: Callable[..., Catalog], sample: Sample) -> Catalog:
    """An open warehouse with the sample's definitions."""
    opened = open_catalog()
    with opened.write() as unit:
        unit.set_state(sample.state)
    return opened


@pytest.fixture
def run_python(warehouse: Path, database_url: str | None) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a second process: `program` sees `catalog`, open, and `warehouse` and `url`."""
    started: list[subprocess.Popen[str]] = []

    def start(program: str, **environment: str) -> subprocess.Popen[str]:
        head = (
            "import os, sys, time\n"
            "from cq_engine.catalog.store import Catalog\n"
            "from cq_engine.core.clock import SystemClock\n"
            f"warehouse, url = {str(warehouse)!r}, {database_url!r}\n"
            "catalog = Catalog.open(warehouse, url=url, clock=SystemClock())\n"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", head + program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
