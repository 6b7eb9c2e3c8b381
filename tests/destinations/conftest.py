"""A real catalog with one continuous query, whose delta log the tests write themselves."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from cq_engine.catalog.model import (
    ROW_ID,
    CatalogState,
    ContinuousQuery,
    Cursor,
    DeclaredDestination,
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
from cq_engine.destinations import CallbackDestination, Delivered, Destination, Retry, TableDestination
from cq_engine.destinations.database import DatabaseDestination
from cq_engine.destinations.delta import DeltaDestination
from cq_engine.storage.reader import Reader
from cq_engine.storage.rows import change_columns
from tests.limits import limit

START = datetime(2026, 1, 1, tzinfo=timezone.utc)
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
_KINDS = {"I": ("insert",), "D": ("delete",), "U": ("update_preimage", "update_postimage")}


def row(number: int, name: str | None = None, amount: str = "1.50") -> tuple[Any, ...]:
    """A row of the log: the result columns and the hidden one."""
    return (number, name if name is not None else f"n{number}", Decimal(amount), number * 2)


def destination_table(number: int = 2, name: str = "sink", **changed: Any) -> Table:
    columns = changed.pop("columns", tuple(Column(o.name, o.type) for o in OUTPUTS))
    key = changed.get("primary_key")
    return Table(name, VersionedTable(number, "base", name, columns, key or (ROW_ID,)), **changed)


class Crash(BaseException):
    """A process that dies: nothing may catch it."""


class World:
    """The catalog, the engine's parts around it, and ways to write and read."""

    def __init__(self, warehouse: Path) -> None:
        self.clock = ManualClock(START)
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
        self.query = query
        state = CatalogState({t.name.lower(): t for t in tables}, {query.name.lower(): query}, 100)
        with self.catalog.write() as unit:
            unit.set_state(state)
            unit.set_status(query.name, QueryStatus(0))

    def refresh(self, *deltas: Sequence[Any], first: int = 1) -> int:
        """A commit and its deltas: (marker, row) or ("U", old, new), numbered from `first`."""
        self.clock.set(self.clock.now() + timedelta(minutes=1))
        version = self.catalog.newest_version + 1
        with self.catalog.lock, self.catalog.write() as unit:
            unit.add_commit(version, self.clock.now())
            rows = self.change_rows(version, deltas, first)
            unit.add_changes(self.query.result, version, version, rows)
        return version

    def change_rows(self, version: int, deltas: Sequence[Sequence[Any]], first: int = 1) -> pa.Table:
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
        found = self.services.reader.small_image(self.table(name).storage, self.catalog.newest_version)
        assert found is not None
        return found

    def start_at(self, destination: Destination, version: int, sequence: int = 0) -> None:
        with self.catalog.write() as unit:
            unit.set_cursor(replace(destination.cursor, version=version, sequence=sequence))


@dataclass
class Subject:
    """One kind of destination under the contract suite, with what it has received, as output rows in order."""

    world: World
    kind: str
    calls: list[list[dict[str, Any]]] = field(default_factory=list)
    keys: list[tuple[str, int, int]] = field(default_factory=list)
    broken: bool = False

    @property
    def place(self) -> Path:
        return Path(self.world.catalog.warehouse).parent / f"target-{self.kind}"

    @property
    def destination(self) -> Destination:
        made = self.world.services, self.world.query
        if self.kind == "database":
            return DatabaseDestination(
                *made, declared("database", url=f"sqlite:///{self.place}", table="sink")
            )
        if self.kind == "delta":
            return DeltaDestination(*made, declared("delta", path=str(self.place)))
        if self.kind == "table":
            return TableDestination(self.world.services, self.world.query, self.world.table())
        return CallbackDestination(
            self.world.services,
            self.world.query,
            "sink",
            self._called,
            retry=Retry(attempts=1),
        )

    def _called(self, batch: Any) -> None:
        if self.broken:
            raise RuntimeError("out of order")
        self.calls.append(batch.to_arrow().to_pylist())
        self.keys.append(batch.idempotency_key)

    def deliver(self, upto: int | None = None) -> Delivered | None:
        return self.destination.deliver(self.world.catalog.newest_version if upto is None else upto)

    def received(self) -> list[dict[str, Any]]:
        if self.kind == "callback":
            return [line for call in self.calls for line in call]
        if self.kind in ("database", "delta"):
            return rows_of(self.place)
        lines: list[dict[str, Any]] = self.world.image().sort_by(ROW_ID).drop_columns([ROW_ID]).to_pylist()
        return lines

    def break_down(self) -> None:
        """Makes deliveries fail until `repair`."""
        self.broken = True
        if self.kind == "table":
            wrong = destination_table(columns=(Column("other", "int"),))
            self.world.define(wrong, query=self.world.query)
        if self.kind in ("database", "delta"):
            self.place.mkdir()
            (self.place / "_delta_log").write_text("no directory")

    def repair(self) -> None:
        self.broken = False
        if self.kind == "table":
            self.world.define(destination_table(), query=self.world.query)
        if self.kind in ("database", "delta"):
            shutil.rmtree(self.place)


def declared(kind: str, token: str = "token", **options: str) -> DeclaredDestination:
    return DeclaredDestination("sink", kind.upper(), tuple(options.items()), token=token)


def rows_of(place: Path) -> list[dict[str, Any]]:
    """The rows of the table sink of a SQLite database, or of a Delta table, in the order in which they came."""
    if not place.is_dir():
        with closing(sqlite3.connect(place)) as connection:
            lines = connection.execute("SELECT * FROM sink ORDER BY rowid").fetchall()
        return [{o.name: _value(v, o.type) for o, v in zip(OUTPUTS, line)} for line in lines]
    found: list[str] = []
    for version in range(DeltaTable(place).version() + 1):  # files of later commits are behind
        found += sorted(set(DeltaTable(place, version=version).file_uris()) - set(found))
    return [line for file in found for line in pq.read_table(file).to_pylist()]


def _value(value: Any, kind: str) -> Any:
    if value is None:
        return None
    if kind.startswith("decimal"):
        return Decimal(str(value)).quantize(Decimal("0.01"))
    return datetime.fromisoformat(value.replace("Z", "+00:00")) if kind == "timestamp" else value


@pytest.fixture
def world(warehouse: Path) -> Iterator[World]:
    made = World(warehouse)
    yield made
    made.catalog.close()


@pytest.fixture(params=["table", "callback", "database", "delta"])
def subject(request: pytest.FixtureRequest, world: World) -> Subject:
    limit(world, batch_deltas=2)
    world.define(destination_table())
    return Subject(world, request.param)


@pytest.fixture
def crash_at(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """crash_at(name, hit=1): the fault point raises Crash, once."""

    def arm(name: str, hit: int = 1) -> None:
        assert name in faults.POINTS
        hits = [0]

        def point(reached: str, *_: object) -> None:
            if reached == name:
                hits[0] += 1
                if hits[0] == hit:
                    raise Crash(name)

        monkeypatch.setattr(faults, "point", point)

    return arm


@pytest.fixture
def make() -> dict[str, Any]:
    """What test modules need of this file."""
    return {"row": row, "table": destination_table, "query": QUERY, "Crash": Crash, "Cursor": Cursor}
