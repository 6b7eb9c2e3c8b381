"""Destinations that have the cursor in their target: random histories with crashes, against the result that must be there."""

from __future__ import annotations

import json
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
from cq_engine.core.errors import DestinationError
from cq_engine.core.types import arrow_schema
from cq_engine.destinations import target as targets
from cq_engine.destinations.database import DatabaseDestination
from cq_engine.destinations.delta import DeltaDestination
from cq_engine.destinations.kinds import check_declared
from cq_engine.destinations.target import TargetDestination
from tests import postgres
from tests.limits import limit

Row = tuple[Any, ...]
COLUMNS = (Column("Id", "int"), Column("a b", "string"), Column("amount", "decimal(10,2)"))
POINTS = ("deliver.begin", "deliver.before_cursor", "deliver.after_cursor", "catalog.begin")


@pytest.fixture(scope="module")
def postgres_url() -> Iterator[str]:
    problem = postgres.missing()
    if problem:
        pytest.skip(problem)
    with postgres.server() as url:
        yield url


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


@pytest.fixture(params=["delta", "sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
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
    url = postgres.fresh(request.getfixturevalue("postgres_url"))

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
        return ResultRows(blocks, newest, "")


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


@pytest.mark.parametrize("slices", [None, 3])
def test_the_result_is_there_whatever_crashes(
    place: Place, story: Story, make: Any, monkeypatch: pytest.MonkeyPatch, slices: int | None
) -> None:
    if slices:
        in_slices(monkeypatch, slices)
    dice, world, crashes = story.dice, story.world, 0
    for _ in range(30):
        for _ in range(dice.randint(1, 4)):
            story.commit()
        newest = world.catalog.newest_version
        with monkeypatch.context() as patch:
            if dice.random() < 0.6:
                crashing(patch, make["Crash"], dice)
            try:
                place.destination(world, "merge").deliver(newest)
            except make["Crash"]:
                crashes += 1
        place.destination(world, "merge").deliver(newest)
        same(place.read(), list(story.at[newest].values()))
        assert place.destination(world, "merge").cursor.version == newest
    assert crashes > 5


def test_the_history_is_there_once_whatever_crashes(
    place: Place, story: Story, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice, world, crashes = story.dice, story.world, 0
    for _ in range(30):
        for _ in range(dice.randint(1, 5)):
            story.commit()
        newest = world.catalog.newest_version
        with monkeypatch.context() as patch:
            if dice.random() < 0.6:
                crashing(patch, make["Crash"], dice)
            try:
                place.destination(world, "history").deliver(newest)
            except make["Crash"]:
                crashes += 1
        place.destination(world, "history").deliver(newest)
        same(place.read(), story.deltas)
        assert place.destination(world, "history").cursor.rows == len(story.deltas)
    assert crashes > 5


def test_every_transaction_ends_at_a_version(
    place: Place, story: Story, make: Any, crash_at: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = [story.commit() for _ in range(8)]
    for hit in range(1, 9):
        destination = place.destination(story.world, "merge")
        with monkeypatch.context():
            crash_at("deliver.before_cursor", 2)
            try:
                destination.deliver(versions[-1])
            except make["Crash"]:
                pass
        monkeypatch.undo()
        monkeypatch.setattr(targets, "result_blocks", lambda rows, _: iter(rows))
        with destination.open() as target:
            mark = target.mark()
        assert mark is not None
        same(place.read(), list(story.at[mark.version].values()))
        versions.append(story.commit())
        assert hit


def test_replay(place: Place, story: Story) -> None:
    world = story.world
    first, second = story.commit(), story.commit()
    history = place.destination(world, "history")
    history.deliver(second)
    with world.catalog.write() as unit:
        unit.set_cursor(history.placed(history.cursor, first))
    history.deliver(second)
    again = [line for line in story.deltas if line[-1] == second]
    same(place.read(), story.deltas + again)
    history.deliver(story.commit())
    same(place.read(), story.deltas + again)


def test_replay_writes_a_result_again(place: Place, story: Story) -> None:
    world = story.world
    first, second = story.commit(), story.commit()
    merged = place.destination(world, "merge")
    merged.deliver(first)
    with world.catalog.write() as unit:
        unit.set_cursor(merged.placed(merged.cursor, 0))
    merged.deliver(second)
    same(place.read(), list(story.at[second].values()))


def test_rows_of_somebody_else_stay(place: Place, story: Story) -> None:
    world = story.world
    place.destination(world, "merge").deliver(story.commit())
    there = place.read()
    other = place.destination(world, "merge", token="t2")
    with pytest.raises(DestinationError, match="has rows already, and none from sink"):
        other.check()
    with world.catalog.write() as unit:
        unit.set_cursor(other.placed(other.cursor, 0))
    with pytest.raises(DestinationError, match="has rows already"):
        other.deliver(story.commit())
    same(place.read(), there)
    place.destination(world, "merge").check()


def test_two_deliveries_at_once(place: Place, story: Story) -> None:
    """One that was begun before another has ended changes nothing."""
    first = story.commit()
    destination = place.destination(story.world, "merge")
    destination.deliver(first)
    second = story.commit()
    with destination.open() as late:
        late.mark()
        destination.deliver(second)
        with pytest.raises(DestinationError, match="meanwhile"):
            _replace_all(late, targets.Mark(second, 1), place)
    same(place.read(), list(story.at[second].values()))


def test_what_came_and_went_is_delivered_too(place: Place, story: Story) -> None:
    """Where no row changes the target has the mark all the same, and nothing is counted again."""
    world, destination = story.world, place.destination(story.world, "merge")
    destination.deliver(story.commit())
    row = (50, "x", Decimal("1.00"))
    world.refresh(("I", row))
    newest = world.refresh(("D", row))
    destination.deliver(newest)
    with destination.open() as target:
        mark = target.mark()
    assert mark is not None
    assert mark.version == newest
    same(place.read(), list(story.rows.values()))


def test_no_older_mark_follows_the_whole_result(
    place: Place, story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which comes instead of what is too much to be merged, and is newer than the end of that."""
    in_slices(monkeypatch, 3)
    destination = place.destination(story.world, "merge")
    destination.deliver(story.commit())
    for _ in range(8):
        newest = story.commit()
    versions: list[int] = []
    store = targets.TargetDestination._store

    def stored(self: Any, cursor: Any, version: int, count: int) -> Any:
        versions.append(version)
        return store(self, cursor, version, count)

    monkeypatch.setattr(targets.TargetDestination, "_store", stored)
    destination.deliver(newest)
    assert versions[-1] == newest
    assert versions == sorted(set(versions))
    same(place.read(), list(story.at[newest].values()))


def test_skip_gives_nothing_again_after_a_crash(
    place: Place, story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target had more than the catalog knew when it was said."""
    from cq_engine.core import faults

    world, destination = story.world, place.destination(story.world, "history")
    versions = [story.commit() for _ in range(3)]
    destination.deliver(versions[0])
    with monkeypatch.context() as patched:

        def point(name: str, *_: object) -> None:
            if name == "deliver.before_cursor":
                raise KeyboardInterrupt

        patched.setattr(faults, "point", point)
        with pytest.raises(KeyboardInterrupt):
            destination.deliver(versions[-1])
    there = place.read()
    assert {row[-1] for row in there} == set(versions)
    with world.catalog.write() as unit:
        unit.set_cursor(destination.placed(destination.cursor, versions[1]))
    destination.deliver(versions[-1])
    same(place.read(), there)
    newest = story.commit()
    destination.deliver(newest)
    same([row for row in place.read() if row[-1] != newest], there)
    assert newest in {row[-1] for row in place.read()}


@pytest.mark.parametrize("mode", ["history", "merge"])
def test_a_mark_of_a_later_time(place: Place, story: Story, mode: str) -> None:
    """A warehouse that was restored passes over nothing in silence."""
    destination = place.destination(story.world, mode)
    destination.deliver(story.commit())
    with destination.open() as target:
        known = target.mark()
        assert known is not None
        target.append(iter(()), targets.Mark(100, known.order))
    newest = story.commit()
    if mode == "merge":
        destination.deliver(newest)
        same(place.read(), list(story.at[newest].values()))
        return
    with pytest.raises(DestinationError, match="up to version 100, and the warehouse ends at version"):
        destination.deliver(newest)
    with story.world.catalog.write() as unit:
        unit.set_cursor(destination.placed(destination.cursor, newest - 1))
    rows = len(place.read())
    destination.deliver(newest)
    assert len(place.read()) > rows


@pytest.mark.postgres
def test_a_table_that_was_renamed_keeps_its_index(story: Story, postgres_url: str) -> None:
    import psycopg

    url = postgres.fresh(postgres_url)
    options = (("url", url), ("table", "sink"), ("mode", "merge"))
    declared = DeclaredDestination("sink", "DATABASE", options, token="t1")
    destination = DatabaseDestination(story.world.services, story.world.query, declared)
    destination.deliver(story.commit())
    with psycopg.connect(url) as connection:
        connection.execute("ALTER TABLE sink RENAME TO kept")
    destination.deliver(story.commit())
    with psycopg.connect(url) as connection:
        found = connection.execute("SELECT count(*) FROM pg_indexes WHERE tablename IN ('sink', 'kept')")
        assert found.fetchone() == (2,)


def _replace_all(late: targets.Target, mark: targets.Mark, place: Place) -> None:
    if place.kind == "delta":
        from cq_engine.destinations.delta_table import failing

        with failing("sink"):
            late.replace(iter(()), mark)
    else:
        late.replace(iter(()), mark)


def test_a_target_that_was_lost(place: Place, story: Story, tmp_path: Path) -> None:
    destination = place.destination(story.world, "merge")
    destination.deliver(story.commit())
    if place.kind == "delta":
        Path(place.url).rename(tmp_path / "away")
    else:
        with destination.open() as target:
            connection: Any = target._connection  # type: ignore[attr-defined]
            with connection.begin():
                connection.exec_driver_sql('DROP TABLE "Sink"')
    newest = story.commit()
    destination.deliver(newest)
    same(place.read(), list(story.at[newest].values()))


def test_what_does_not_fit(place: Place, story: Story) -> None:
    world = story.world
    place.destination(world, "history").deliver(story.commit())
    narrower = replace(world.query, outputs=tuple(replace(o, type="bigint") if o.name == "Id" else o for o in world.query.outputs))  # fmt: skip
    more = replace(world.query, outputs=(*world.query.outputs, OutputColumn("more", "string", "marker")))
    place.destination(world, "history").check()
    world.query = more
    with pytest.raises(DestinationError, match="column more of continuous query Totals does not fit"):
        place.destination(world, "history").check()
    if not place.url.startswith("sqlite"):  # where an integer has 64 bits
        world.query = narrower
        with pytest.raises(DestinationError, match=r"column Id .* does not fit") as raised:
            place.destination(world, "history").check()
        assert "it is bigint" in raised.value.detail


def test_without_a_key_nothing_is_merged(place: Place, story: Story) -> None:
    story.world.query = replace(story.world.query, key=None)
    with pytest.raises(DestinationError, match="has no result key"):
        place.destination(story.world, "merge").check()


def test_a_result_of_one_row(place: Place, story: Story) -> None:
    world = story.world
    world.define(query=replace(world.query, key=()))
    rows = [(n, "x", Decimal("1.00")) for n in range(3)]
    destination = place.destination(world, "merge")
    for deltas in ((("I", rows[0]),), (("U", rows[0], rows[1]),), (("D", rows[1]),), (("I", rows[2]),)):
        destination.deliver(world.refresh(*deltas))
    same(place.read(), rows[2:])


NAN = float("nan")
ODD = (
    Column("f", "double"), Column("a", "array<double>"), Column("m", "map<string,int>"),
    Column("st", "struct<x:binary,d:decimal(5,2)>"),
)  # fmt: skip


def odd_rows(place: Place, table: str) -> dict[Any, list[Any]]:
    """The rows by their key, of which there is one each; JSON as Python values."""
    name, read = '"' + table.replace('"', '""') + '"', "SELECT CAST(f AS TEXT), a, m, st FROM "
    if place.url.startswith("sqlite"):
        with closing(sqlite3.connect(place.url.removeprefix("sqlite:///"))) as connection:
            found = [tuple(map(_json, row)) for row in connection.execute(read + name)]
    else:
        import psycopg

        with psycopg.connect(place.url) as connection:
            found = [(_json(row[0]), *row[1:]) for row in connection.execute((read + name).encode())]
    assert len(found) == len({repr(row[0]) for row in found})
    return {repr(key): row for key, *row in found}


def _json(value: str | None) -> Any:
    return None if value is None else json.loads(value)


def test_odd_keys_values_and_names(place: Place, world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN and NULL are different keys; what JSON has not is text in it; a name may have any character."""
    if place.kind == "delta":
        return
    result = VersionedTable(1, "delta", world.query.name, ODD, ("f",))
    outputs = tuple(OutputColumn(c.name, c.type, "result", n) for n, c in enumerate(ODD))
    world.define(query=replace(world.query, result=result, outputs=outputs, key=("f",), width=4))
    world.services = replace(
        world.services,
        results=lambda *_: ResultRows(arrow_schema(ODD).empty_table(), 0, ""),  # type: ignore[arg-type]
    )
    table = 'we ird"100%s'
    options = (("url", place.url), ("table", table), ("mode", "merge"))
    declared = DeclaredDestination("sink", "DATABASE", options, token="t1")
    destination = DatabaseDestination(world.services, world.query, declared)
    full = (NAN, [NAN, 1.5], [("k", 1)], {"x": b"\x00\xff", "d": Decimal("1.50")})
    empty = (None, [], [], None)
    monkeypatch.setattr(targets, "result_blocks", lambda rows, _: iter((rows,)))
    destination.deliver(world.refresh(("I", full), ("I", empty), ("I", (1.5, None, None, None))))
    json_of_full = [["nan", 1.5], {"k": 1}, {"x": "AP8=", "d": "1.50"}]
    assert odd_rows(place, table) == {"nan": json_of_full, "None": [[], {}, None], "1.5": [None] * 3}
    changed = (NAN, [2.0], None, None)
    destination.deliver(world.refresh(("U", full, changed)))
    assert odd_rows(place, table)["nan"] == [[2.0], None, None]
    destination.deliver(world.refresh(("D", empty)))
    assert set(odd_rows(place, table)) == {"nan", "1.5"}
    destination.deliver(world.refresh(("D", changed)))
    assert set(odd_rows(place, table)) == {"1.5"}


@pytest.mark.postgres
def test_what_copy_refuses_is_said_in_one_line(story: Story, postgres_url: str) -> None:
    options = (("url", postgres.fresh(postgres_url)), ("table", "sink"))
    declared = DeclaredDestination("sink", "DATABASE", options, token="t1")
    destination = DatabaseDestination(story.world.services, story.world.query, declared)
    with pytest.raises(DestinationError, match="invalid byte sequence") as raised:
        destination.deliver(story.world.refresh(("I", (1, "a\0b", Decimal("1.00")))))
    assert raised.value.message.startswith("database sink (postgresql")
    assert "\n" not in raised.value.message


def test_declarations(monkeypatch: pytest.MonkeyPatch) -> None:
    def declared(**options: str) -> DeclaredDestination:
        return DeclaredDestination("d", "DATABASE", tuple({"table": "t", **options}.items()))

    check_declared(declared(url="${URL}"))
    check_declared(declared(url="postgresql://me:${PASSWORD}@host/db"))
    check_declared(declared(url="sqlite:////data/x.db"))
    for url in ("postgresql://me:hush@host/db", "postgresql://host/db?password=hush"):
        with pytest.raises(DestinationError, match="has a password in it") as raised:
            check_declared(declared(url=url))
        assert "hush" not in str(raised.value)
    with pytest.raises(DestinationError, match="is not the URL of a database"):
        check_declared(declared(url="nothing"))
    with pytest.raises(DestinationError, match="a destination cannot be in mysql"):
        check_declared(declared(url="mysql://host/db"))
    monkeypatch.delenv("CQ_NOT_SET", raising=False)
    with pytest.raises(DestinationError, match="CQ_NOT_SET is not set"):
        targets.expand("${CQ_NOT_SET}")
