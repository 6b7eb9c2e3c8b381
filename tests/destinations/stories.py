"""A query's result that changes at random, and the targets that are to have it."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from cq_engine.catalog.model import DeclaredDestination, OutputColumn, VersionedTable
from cq_engine.context.services import ResultRows
from cq_engine.core.columns import Column
from cq_engine.core.types import arrow_schema
from cq_engine.destinations.targets import target as targets
from cq_engine.destinations.targets.database import DatabaseDestination
from cq_engine.destinations.targets.delta import DeltaDestination
from cq_engine.destinations.targets.target import TargetDestination
from tests import mariadb
from tests.limits import limit

Row = tuple[Any, ...]
COLUMNS = (Column("Id", "int"), Column("a b", "string"), Column("amount", "decimal(10,2)"))
POINTS = ("deliver.begin", "deliver.before_cursor", "deliver.after_cursor", "catalog.begin")


@dataclass
class Place:
    """Where a destination delivers to, and what is there."""

    kind: str
    url: str
    read: Callable[[], list[Row]]

    def options(self, mode: str) -> tuple[tuple[str, str], ...]:
        if self.kind == "delta":
            return (("path", self.url), ("mode", mode))
        return (("url", self.url), ("table", "Sink"), ("mode", mode))

    def destination(self, world: Any, mode: str, token: str = "t1") -> TargetDestination:
        of = DeltaDestination if self.kind == "delta" else DatabaseDestination
        declared = DeclaredDestination("sink", self.kind.upper(), self.options(mode), token=token)
        return of(world.services, world.query, declared)


@pytest.fixture(
    params=[
        "delta",
        "sqlite",
        pytest.param("postgresql", marks=pytest.mark.postgres),
        pytest.param("mariadb", marks=pytest.mark.mariadb),
    ]
)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "delta":
        path = tmp_path / "lake" / "sink"

        def by_delta() -> list[Row]:
            rows = DeltaTable(path).to_pyarrow_table()
            return [tuple(row.values()) for row in rows.to_pylist()]

        return Place("delta", str(path), by_delta)
    if request.param == "sqlite":
        file = tmp_path / "sink.db"

        def by_sqlite() -> list[Row]:
            with closing(sqlite3.connect(file)) as connection:
                found = connection.execute('SELECT * FROM "Sink"')
                amount = [each[0] for each in found.description].index("amount")
                return [(*row[:amount], _cents(row[amount]), *row[amount + 1 :]) for row in found]

        return Place("database", f"sqlite:///{file}", by_sqlite)
    if request.param == "mariadb":
        url = request.getfixturevalue("fresh_mariadb")()

        def by_mariadb() -> list[Row]:
            with closing(mariadb.connect(url)) as connection, connection.cursor() as cursor:
                cursor.execute("SELECT * FROM `Sink`")
                return list(cursor.fetchall())

        return Place("database", url, by_mariadb)
    url = request.getfixturevalue("fresh_postgres")()

    def by_postgres() -> list[Row]:
        import psycopg

        with psycopg.connect(url) as connection:
            return list(connection.execute('SELECT * FROM "Sink"').fetchall())

    return Place("database", url, by_postgres)


def _cents(value: float | None) -> Decimal | None:
    """SQLite has no decimals."""
    return None if value is None else Decimal(str(value)).quantize(Decimal("0.01"))


@dataclass
class Story:
    """A query's result as a dictionary, and every version of it."""

    world: Any
    dice: random.Random
    rows: dict[Any, Row] = field(default_factory=dict)
    at: dict[int, dict[Any, Row]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        query = self.world.query
        result = VersionedTable(1, "delta", query.name, COLUMNS, ("Id",))
        outputs = (
            OutputColumn("m", "string", "marker"),
            *(OutputColumn(c.name, c.type, "result", n) for n, c in enumerate(COLUMNS)),
            OutputColumn("v", "bigint", "commit_version"),
        )
        self.world.define(query=replace(query, result=result, outputs=outputs, key=("Id",), width=3))
        self.world.services = replace(self.world.services, results=self.result)

    def commit(self, most: int = 6) -> int:
        deltas: list[tuple[Any, ...]] = []
        for key in self.dice.sample([None, *range(12)], self.dice.randint(1, most)):
            new = (key, self.dice.choice(["", "x", 'q"uo,te', "ü\n", None]), Decimal(self.dice.randint(-99, 99)).scaleb(-2))  # fmt: skip
            old = self.rows.get(key)
            if old is None:
                deltas.append(("I", new))
                self.rows[key] = new
            elif self.dice.random() < 0.4:
                deltas.append(("D", old))
                del self.rows[key]
            elif old != new:
                deltas.append(("U", old, new))
                self.rows[key] = new
        version = int(self.world.refresh(*deltas))
        self.deltas.extend((m, *images[-1], version) for m, *images in deltas)
        self.at[version] = dict(self.rows)
        return version

    @property
    def deltas(self) -> list[Row]:
        return self.__dict__.setdefault("_deltas", [])  # type: ignore[no-any-return]

    def result(self, _name: str, _at: int | None, newest: int) -> ResultRows:
        """In the place of the engine's results: blocks of Arrow rows."""
        rows = list(self.at.get(newest, {}).values())
        whole = pa.Table.from_arrays(
            [pa.array([row[n] for row in rows], f.type) for n, f in enumerate(arrow_schema(COLUMNS))],
            schema=arrow_schema(COLUMNS),
        )
        blocks: Any = [whole.slice(0, 3), whole.slice(3)]
        return ResultRows(lambda: blocks, newest, "")


@pytest.fixture
def story(world: Any, monkeypatch: pytest.MonkeyPatch) -> Story:
    limit(world, log_block_rows=8)
    monkeypatch.setattr(targets, "result_blocks", lambda rows, _: iter(rows))
    return Story(world, random.Random(7))


def in_slices(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Long logs come in several blocks."""
    whole = targets.read_pairs

    def read(*arguments: Any) -> Iterator[pa.Table]:
        for block in whole(*arguments):
            for start in range(0, block.num_rows, size):
                yield block.slice(start, size)

    monkeypatch.setattr(targets, "read_pairs", read)


def same(found: Sequence[Row], wanted: Sequence[Row]) -> None:
    assert sorted(found, key=repr) == sorted(wanted, key=repr)


def crashing(monkeypatch: pytest.MonkeyPatch, crash: type, dice: random.Random) -> None:
    """Once, at some point of the deliveries to come."""
    from cq_engine.core import faults

    point, left = dice.choice(POINTS), [dice.randint(1, 3)]

    def reached(name: str, *_: object) -> None:
        if name == point:
            left[0] -= 1
            if left[0] == 0:
                raise crash(name)

    monkeypatch.setattr(faults, "point", reached)
