"""What tests of destinations share: the world of the contract suite, and the engine's own kinds under it."""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from cq_engine.catalog.change_rows import ROW_ID
from cq_engine.catalog.model import Cursor, DeclaredDestination, Table, VersionedTable
from cq_engine.core import faults
from cq_engine.core.columns import Column
from cq_engine.destinations import CallbackDestination, DeltaBatch, Destination, Retry, TableDestination
from cq_engine.destinations.contract import Crash, Subject, World, crash_point
from cq_engine.destinations.contract.world import OUTPUTS, QUERY, row
from cq_engine.destinations.targets.database import DatabaseDestination
from cq_engine.destinations.targets.delta import DeltaDestination
from tests import mariadb
from tests.brokers import free_port
from tests.destinations.stories import place, story  # noqa: F401 - fixtures
from tests.limits import limit


def destination_table(number: int = 2, name: str = "sink", **changed: Any) -> Table:
    columns = changed.pop("columns", tuple(Column(o.name, o.type) for o in OUTPUTS))
    key = changed.get("primary_key")
    return Table(name, VersionedTable(number, "base", name, columns, key or (ROW_ID,)), **changed)


class OwnSubject(Subject):
    """One of the engine's own kinds under the contract suite."""

    def __init__(self, world: World, kind: str, url: str = "") -> None:
        super().__init__(world)
        self.kind = kind
        self.url = self.working = url
        self.lines: list[dict[str, Any]] = []
        self.broken = False

    @property
    def place(self) -> Path:
        return Path(self.world.catalog.warehouse).parent / f"target-{self.kind}"

    @property
    def destination(self) -> Destination:
        made = self.world.services, self.world.query
        if self.kind == "sqlite":
            return DatabaseDestination(
                *made, declared("database", url=f"sqlite:///{self.place}", table="sink")
            )
        if self.url:
            return DatabaseDestination(*made, declared("database", url=self.url, table="sink"))
        if self.kind == "delta":
            return DeltaDestination(*made, declared("delta", path=str(self.place)))
        if self.kind == "table":
            return TableDestination(*made, self.world.table())
        return CallbackDestination(*made, "sink", self._called, retry=Retry(attempts=1))

    def _called(self, batch: DeltaBatch) -> None:
        if self.broken:
            raise RuntimeError("out of order")
        self.lines += batch.to_arrow().to_pylist()
        self.note(batch)

    def received(self) -> list[tuple[int, str, int]]:
        return [(line["v"], line["m"], line["id"]) for line in self.rows()]

    def rows(self) -> list[dict[str, Any]]:
        """What was received, in the layout of the SELECT list."""
        if self.kind == "callback":
            return self.lines
        if self.kind in ("sqlite", "delta"):
            return rows_of(self.place)
        if self.url:
            return rows_on(self.working)
        lines: list[dict[str, Any]] = self.world.image().sort_by(ROW_ID).drop_columns([ROW_ID]).to_pylist()
        return lines

    def break_down(self) -> None:
        self.broken = True
        if self.kind == "table":
            wrong = destination_table(columns=(Column("other", "int"),))
            self.world.define(wrong, query=self.world.query)
        if self.url:
            self.url = re.sub(r"(?<=127\.0\.0\.1:)\d+", str(free_port()), self.url)
        if self.kind in ("sqlite", "delta"):
            self.place.mkdir()
            (self.place / "_delta_log").write_text("no directory")

    def repair(self) -> None:
        self.broken = False
        if self.kind == "table":
            self.world.define(destination_table(), query=self.world.query)
        self.url = self.working
        if self.kind in ("sqlite", "delta"):
            shutil.rmtree(self.place)


def declared(kind: str, token: str = "token", **options: str) -> DeclaredDestination:
    return DeclaredDestination("sink", kind.upper(), tuple(options.items()), token=token)


def rows_of(there: Path) -> list[dict[str, Any]]:
    """The rows of the table sink of a SQLite database, or of a Delta table, in the order in which they came."""
    if not there.is_dir():
        with closing(sqlite3.connect(there)) as connection:
            lines = connection.execute("SELECT * FROM sink ORDER BY rowid").fetchall()
        return [{o.name: _value(v, o.type) for o, v in zip(OUTPUTS, line)} for line in lines]
    found: list[str] = []
    for version in range(DeltaTable(there).version() + 1):  # files of later commits are behind
        found += sorted(set(DeltaTable(there, version=version).file_uris()) - set(found))
    return [line for file in found for line in pq.read_table(file).to_pylist()]


def rows_on(url: str) -> list[dict[str, Any]]:
    """The rows of the table sink of PostgreSQL or MariaDB, in the order in which they came."""
    if url.startswith("mariadb"):
        with closing(mariadb.connect(url)) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT * FROM sink")  # in that of the hidden key
            lines = cursor.fetchall()
    else:
        import psycopg

        with psycopg.connect(url) as connection:
            lines = connection.execute("SELECT * FROM sink ORDER BY ctid").fetchall()
    return [{o.name: _value(v, o.type) for o, v in zip(OUTPUTS, line)} for line in lines]


def _value(value: Any, kind: str) -> Any:
    if isinstance(value, datetime):
        return value if value.tzinfo else value.replace(tzinfo=timezone.utc)
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


@pytest.fixture(
    params=[
        "table",
        "callback",
        "delta",
        "sqlite",
        pytest.param("postgresql", marks=pytest.mark.postgres),
        pytest.param("mariadb", marks=pytest.mark.mariadb),
    ]
)
def subject(request: pytest.FixtureRequest, world: World) -> OwnSubject:
    limit(world, batch_deltas=2)
    world.define(destination_table())
    fresh = {"postgresql": "fresh_postgres", "mariadb": "fresh_mariadb"}.get(request.param)
    return OwnSubject(world, request.param, request.getfixturevalue(fresh)() if fresh else "")


@pytest.fixture
def crash_at(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """crash_at(name, hit=1): the fault point raises Crash, once."""
    return lambda name, hit=1: monkeypatch.setattr(faults, "point", crash_point(name, hit))


@pytest.fixture
def make() -> dict[str, Any]:
    """What test modules need of this file."""
    return {"row": row, "table": destination_table, "query": QUERY, "Crash": Crash, "Cursor": Cursor}
