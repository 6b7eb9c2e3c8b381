"""A real catalog with one continuous query, whose delta log the tests write themselves, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from cq_engine.catalog.model import (
    CatalogState,
    ContinuousQuery,
    OutputColumn,
    QueryStatus,
    Table,
    VersionedTable,
)
from cq_engine.catalog.store import Catalog
from cq_engine.context.services import Services
from cq_engine.core import faults
from cq_engine.core.clock import ManualClock
from cq_engine.core.columns import Column
from cq_engine.core.types import arrow_schema
from cq_engine.destinations.base import Destination
from cq_engine.storage.reader import Reader
from cq_engine.storage.rows import change_columns

__all__ = ["OUTPUTS", "QUERY", "Crash", "Line", "World", "crash_point", "row"]

Line = tuple[int, str, int]
"""What was received of a delta: its commit version, its marker, and `id` of its row, an old one for D."""

LOG_COLUMNS = (
    Column("id", "int"),
    Column("name", "string"),
    Column("amount", "decimal(10,2)"),
    Column("_e0", "bigint"),
)
OUTPUTS = (
    OutputColumn("id", "int", "result", 0),
    OutputColumn("name", "string", "result", 1),
    OutputColumn("amount", "decimal(10,2)", "result", 2),
    OutputColumn("was", "decimal(10,2)", "old", 2),
    OutputColumn("doubled", "bigint", "old", 3),
    OutputColumn("m", "string", "marker"),
    OutputColumn("refreshed", "timestamp", "time"),
    OutputColumn("committed", "timestamp", "commit_time"),
    OutputColumn("v", "bigint", "commit_version"),
)
QUERY = ContinuousQuery(
    name="Totals",
    id=10,
    statement="",
    query="",
    result=VersionedTable(1, "delta", "Totals", LOG_COLUMNS, ("id",)),
    key=("ID",),
    mode="TRANSACTIONAL",
    markers=("I", "D", "U"),
    outputs=OUTPUTS,
    width=3,
)
"""id INT, name STRING, amount DECIMAL(10, 2) with the key id, and delta functions over them."""

_START = datetime(2026, 1, 1, tzinfo=timezone.utc)
_KINDS = {"I": ("insert",), "D": ("delete",), "U": ("update_preimage", "update_postimage")}


class Crash(BaseException):
    """A process that dies: nothing may catch it."""


def crash_point(name: str, hit: int = 1) -> Callable[..., None]:
    """What takes the place of `faults.point` so that this point, when it is reached for the `hit`-th time, raises Crash."""
    if name not in faults.POINTS:
        raise ValueError(f"there is no point {name}")
    hits = 0

    def point(reached: str, *_: object) -> None:
        nonlocal hits
        hits += reached == name
        if reached == name and hits == hit:
            raise Crash(name)

    return point


def row(number: int, name: str | None = None, amount: str = "1.50") -> tuple[Any, ...]:
    """A row of the log: the result columns and the hidden one."""
    return (number, name if name is not None else f"n{number}", Decimal(amount), number * 2)


class World:
    """The catalog, the engine's parts around it, and ways to write and read."""

    def __init__(self, warehouse: Path) -> None:
        self.clock = ManualClock(_START)
        self.catalog = Catalog.open(str(warehouse), clock=self.clock)
        self.spark: Callable[[], Any] = self._no_spark
        reader = Reader(self.catalog, self.any_spark)
        self.services = Services(self.catalog, reader, self.any_spark, self.clock)
        self.query = QUERY
        self.define()

    def any_spark(self) -> Any:
        return self.spark()

    @staticmethod
    def _no_spark() -> Any:
        raise AssertionError("no Spark is needed here")

    def define(self, *tables: Table, query: ContinuousQuery = QUERY) -> None:
        """The catalog has these tables, and this query, which has processed nothing."""
        self.query = query
        state = CatalogState({t.name.lower(): t for t in tables}, {query.name.lower(): query}, 100)
        with self.catalog.write() as unit:
            unit.set_state(state)
            unit.set_status(query.name, QueryStatus(0))

    def select(self, *markers: str) -> None:
        """The query delivers deltas with these markers only."""
        tables = self.catalog.state.tables.values()
        self.define(*tables, query=replace(self.query, markers=tuple(markers)))

    def refresh(self, *deltas: Sequence[Any], first: int = 1) -> int:
        """A commit and its deltas: (marker, row) or ("U", old, new), numbered from `first`."""
        self.clock.set(self.clock.now() + timedelta(minutes=1))
        version = self.catalog.newest_version + 1
        with self.catalog.lock, self.catalog.write() as unit:
            unit.add_commit(version, self.clock.now())
            if deltas:
                rows = self.change_rows(version, deltas, first)
                unit.add_changes(self.query.result, version, version, rows)
        return version

    def change_rows(self, version: int, deltas: Sequence[Sequence[Any]], first: int = 1) -> pa.Table:
        """Deltas as the log has them."""
        columns = change_columns(self.query.result)
        width = len(self.query.result.columns)
        lines = [
            (*values[:width], kind, version, number, self.clock.now() + timedelta(seconds=1))
            for number, (marker, *images) in enumerate(deltas, first)
            for kind, values in zip(_KINDS[marker], images)
        ]
        schema = arrow_schema(columns)
        arrays = [pa.array([line[n] for line in lines], f.type) for n, f in enumerate(schema)]
        return pa.Table.from_arrays(arrays, schema=schema)

    def table(self, name: str = "sink") -> Table:
        return self.catalog.state.tables[name]

    def image(self, name: str = "sink") -> pa.Table:
        """What a table has now."""
        found = self.services.reader.small_image(self.table(name).storage, self.catalog.newest_version)
        if found is None:
            raise AssertionError(f"{name} is too large for a test without Spark")
        return found

    def start_at(self, destination: Destination, version: int, sequence: int = 0) -> None:
        """The destination has received everything up to there."""
        with self.catalog.write() as unit:
            unit.set_cursor(replace(destination.cursor, version=version, sequence=sequence))
