"""Spark's format `cq` without Spark: what its methods give when they are called as Spark calls them."""

from __future__ import annotations

import pickle
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from cq_engine import AnalysisError, CatalogError, StorageError
from cq_engine.catalog.flush import flush
from cq_engine.catalog.model import Cursor, QueryStatus
from cq_engine.catalog.storage.base import Store
from cq_engine.catalog.store import Catalog
from cq_engine.catalog.tables import write_parquet
from cq_engine.core.clock import SystemClock
from cq_engine.data_source import source
from cq_engine.data_source.log import QueryLog
from cq_engine.data_source.source import SparkSource
from cq_engine.destinations.contract import World
from cq_engine.destinations.contract import world as world_module
from cq_engine.destinations.contract.world import LOG_COLUMNS, row
from cq_engine.destinations.follow import Follower, Piece
from tests.limits import limit

Row = tuple[Any, ...]


@pytest.fixture
def world(warehouse: Path) -> Iterator[World]:
    made = World(warehouse)
    yield made
    made.catalog.close()


def moved(world: World, version: int | None = None) -> None:
    """The query has processed everything, or up to a version."""
    at = world.catalog.newest_version if version is None else version
    with world.catalog.write() as unit:
        unit.set_status(world.query.name, QueryStatus(at))


def history(world: World, commits: int, seed: int = 1, *, files: bool = True) -> None:
    """Deltas of random kinds; some commits have none, and some are flushed to files with row groups of two rows."""
    chance = random.Random(seed)
    for number in range(commits):
        some: list[tuple[Any, ...]] = [
            chance.choice((("I", row(n)), ("D", row(n)), ("U", row(n), row(n, "other"))))
            for n in range(chance.randrange(4))
        ]
        world.refresh(*some)
        if files and number % 4 == 2:
            flush(world.catalog)
    moved(world)


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(rows: pa.Table, path: str, store: Store, stats: Any = ()) -> Any:
        return write_parquet(rows, path, store, stats, row_group=2)

    monkeypatch.setattr("cq_engine.catalog.flush.write_parquet", write)


def made(world: World, **options: Any) -> SparkSource:
    asked = {"warehouse": world.catalog.warehouse, "query": "totals", **options}
    return SparkSource({name: str(value) for name, value in asked.items()})


def rows_of(reader: Any, partitions: Any) -> list[Row]:
    """What the executors read, each from what is pickled."""
    found: list[Row] = []
    copy = pickle.loads(pickle.dumps(type(reader)(reader.asked, reader.schema)))  # Spark makes one for this
    for partition in pickle.loads(pickle.dumps(list(partitions))):
        for batch in copy.read(partition):
            found += [tuple(line.values()) for line in batch.to_pylist()]
    return found


def batch(world: World, **options: Any) -> list[Row]:
    some = made(world, **options)
    reader = some.reader(some.schema())
    return rows_of(reader, reader.partitions())


def stream(world: World, **options: Any) -> Any:
    some = made(world, **options)
    return some.streamReader(some.schema())


def followed(world: World, low: int, high: int) -> list[Row]:
    """FOLLOW's rows of the versions [low, high]."""
    follower = Follower(world.services, "totals", low - 1)
    found: list[Row] = []
    while (piece := follower.next(wait=False)) is not None:
        assert isinstance(piece, Piece)
        found += [tuple(line.values()) for line in piece.rows().to_pylist()]
    follower.close()
    return [line for line in found if line[-3] != "progress" and line[-2] <= high]


def run(reader: Any, start: dict[str, Any], limit: Any = None) -> tuple[list[Row], dict[str, Any]]:
    end = reader.latestOffset(start, reader.getDefaultReadLimit() if limit is None else limit)
    return ([] if end == start else rows_of(reader, reader.partitions(start, end))), end


@pytest.mark.parametrize("seed", range(3))
def test_any_range_has_the_rows_of_follow(world: World, seed: int) -> None:
    """Whatever lies in files and whatever in the catalog, and however it is parted."""
    history(world, 14, seed)
    chance = random.Random(seed)
    for _ in range(12):
        low = chance.randint(0, 14)
        high = chance.randint(low, 14)
        rows = batch(
            world, startingVersion=low, endingVersion=high, rowsPerPartition=chance.choice((1, 3, 100))
        )
        assert sorted(rows, key=repr) == sorted(followed(world, low, high), key=repr)
    assert batch(world) == batch(world, startingVersion=1, endingVersion=14)


def test_partitions_are_bounded(world: World) -> None:
    history(world, 14)
    with closing(QueryLog(world.catalog.warehouse, None, "totals")) as log:
        parts = log.partitions(0, 14, 4)
        assert len(parts) > 3
        assert all(sum(piece.count for piece in part.pieces) <= 4 or len(part.pieces) == 1 for part in parts)
        assert any(piece.shares > 1 for part in parts for piece in part.pieces)
        assert [p.selection.upto for p in log.partitions(5, 6, 100)] in ([], [6])


def test_files_of_one_version(world: World) -> None:
    """Insert-only files say neither their version nor that they are inserts; others of one version need not be asked."""
    version = world.refresh()
    inserted = world.change_rows(version, [("I", row(n)) for n in range(5)])
    plain = inserted.drop_columns(["_change_type", "_commit_version"])
    store = world.catalog.store
    later = world.refresh()
    with world.catalog.write() as unit:
        files = [write_parquet(plain, "deltas/plain.parquet", store, row_group=2)]
        unit.add_change_files(
            world.query.result, version, version, files, frozenset({"INSERT"}), insert_only=True
        )
        rows = world.change_rows(later, [("U", row(1), row(1, "x")), ("D", row(2))])
        other = [write_parquet(rows, "deltas/other.parquet", store, row_group=1)]
        unit.add_change_files(world.query.result, later, later, other, frozenset({"UPDATE", "DELETE"}))
    moved(world)
    assert sorted(batch(world, rowsPerPartition=2), key=repr) == sorted(followed(world, 0, later), key=repr)
    assert len(batch(world)) == 8


def test_only_the_markers_of_the_query(world: World) -> None:
    world.select("U", "D")
    history(world, 8)
    assert {line[-3] for line in batch(world)} == {"delete", "update_preimage", "update_postimage"}


def test_a_member_of_a_query_group(world: World) -> None:
    """Its rows are those with its number in a log that others share."""
    part = replace(world.query, result=replace(world.query.result, part=7))
    shared = replace(
        world.query,
        result=replace(world.query.result, columns=(*LOG_COLUMNS, replace(LOG_COLUMNS[3], name="_member"))),
    )
    world.define(query=part)
    world.query = shared
    for number in range(3):
        world.refresh(("I", (*row(number), 7)), ("I", (*row(number + 10), 8)))
    version, store = world.refresh(), world.catalog.store
    rows = world.change_rows(version, [("I", (*row(13), 8)), ("I", (*row(3), 7))])
    with world.catalog.write() as unit:
        files = [write_parquet(rows, "deltas/part.parquet", store)]
        unit.add_change_files(shared.result, version, version, files, frozenset({"INSERT"}))
    moved(world)
    assert sorted(line[0] for line in batch(world)) == [0, 1, 2, 3]


@pytest.mark.parametrize("limits", [{}, {"maxVersionsPerTrigger": 1}, {"maxRowsPerTrigger": 4}])
@pytest.mark.parametrize("seed", range(3))
def test_a_stream_gives_each_delta_once(world: World, limits: dict[str, int], seed: int) -> None:
    """With commits in between, and readers that begin anew at the offset; the same offsets give the same rows again."""
    chance = random.Random(seed)
    reader = stream(world, **limits)
    offset = reader.initialOffset()
    given: list[Row] = []
    for _ in range(6):
        history(world, chance.randrange(4), chance.randrange(100))
        while True:
            rows, end = run(reader, offset)
            if end == offset:
                break
            assert sorted(rows_of(reader, reader.partitions(offset, end)), key=repr) == sorted(rows, key=repr)
            if "maxVersionsPerTrigger" in limits:
                assert len({line[-2] for line in rows}) <= 1
            if "maxRowsPerTrigger" in limits:
                assert len(rows) <= 4 or len({line[-2] for line in rows}) == 1
            given, offset = given + rows, end
            if chance.random() < 0.5:
                reader.stop()
                reader = stream(world, **limits)
    reader.stop()
    assert sorted(given, key=repr) == sorted(followed(world, 0, world.catalog.newest_version), key=repr)


def test_once_takes_everything(world: World) -> None:
    """Trigger.Once gives no limit, and the options do not count then."""
    reader = stream(world, maxVersionsPerTrigger=1)
    start = reader.initialOffset()
    history(world, 6)
    rows, end = run(reader, start, ReadAllAvailable())
    assert (end["version"], len(rows)) == (6, len(followed(world, 0, 6)))


def test_available_now_ends(world: World) -> None:
    history(world, 3)
    reader = stream(world)
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    history(world, 3, 2)
    rows, end = run(reader, start)
    assert (end["version"], max(line[-2] for line in rows)) == (3, 3)
    assert run(reader, end) == ([], end)


def test_where_a_stream_begins(world: World) -> None:
    history(world, 5)
    assert stream(world).initialOffset() == {"query": 10, "version": 0, "begun": 0}
    assert stream(world, startingVersion=3).initialOffset()["version"] == 2
    assert stream(world, startingVersion="latest").initialOffset()["version"] == 5
    assert stream(world, startingVersion=6).initialOffset()["version"] == 5
    with pytest.raises(AnalysisError, match="there is no version 7 yet"):
        stream(world, startingVersion=7).initialOffset()


def test_a_first_batch_that_is_repeated_begins_where_it_began(world: World) -> None:
    """Spark asks for the first offset again where the first batch was planned and not done; `latest` is another by then."""
    history(world, 4)
    first = stream(world, startingVersion="latest")
    start = first.initialOffset()
    history(world, 4, 2)
    rows, end = run(first, start)
    assert rows
    history(world, 4, 3)
    again = stream(world, startingVersion="latest")
    other = again.initialOffset()
    assert other["version"] > end["version"]
    assert rows_of(again, again.partitions(other, end)) == rows


def test_where_nothing_happens_the_offset_moves_now_and_then(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not with every commit that has no deltas, which would each be a batch; but before retention passes it."""
    reader = stream(world)
    offset = reader.initialOffset()
    world.refresh(("I", row(1)))
    moved(world)
    _, offset = run(reader, offset)
    world.refresh()
    moved(world)
    assert run(reader, offset) == ([], offset)
    monkeypatch.setattr(source, "QUIET_SECONDS", 0.0)
    assert run(reader, offset) == ([], {**offset, "version": 2})


def forget(world: World, below: int) -> None:
    """Retention lets go of the deltas up to a version."""
    with world.catalog.write() as unit:
        unit.set_cursor(Cursor("totals", "x", below))
    world.catalog.forget(lambda: {world.query.result.id: below}, logs=True)
    world.catalog.sweep(0.0)


def test_what_is_no_longer_kept(world: World) -> None:
    history(world, 9)
    reader, late = stream(world), stream(world)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    planned = list(reader.partitions(start, end))
    forget(world, 6)
    with pytest.raises(StorageError, match=r"Totals from version 1 on are no longer kept[^$]*version 7"):
        reader.partitions(start, end)
    with pytest.raises(StorageError, match="no longer kept"):
        batch(world, startingVersion=4)
    with pytest.raises(StorageError, match=r"not there[^$]*no longer kept"):  # removed after it was planned
        rows_of(reader, planned)
    assert late.initialOffset()["version"] == 6
    assert sorted(batch(world), key=repr) == sorted(followed(world, 7, 9), key=repr)


def test_a_query_that_is_gone_or_another(world: World) -> None:
    history(world, 4)
    reader = stream(world)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    world.define(query=replace(world.query, id=11))
    moved(world)
    for ask in (
        lambda: reader.latestOffset(start, ReadAllAvailable()),
        lambda: reader.partitions(start, end),
    ):
        with pytest.raises(CatalogError, match="totals was replaced by another one"):
            ask()
    world.define(query=replace(world.query, name="Other"))
    with pytest.raises(CatalogError, match="no continuous query totals"):
        reader.latestOffset(start, ReadAllAvailable())


def test_a_checkpoint_of_another_warehouse(world: World) -> None:
    history(world, 4)
    reader = stream(world)
    ahead = {"query": 10, "version": 9, "begun": 0}
    for ask in (
        lambda: reader.latestOffset(ahead, ReadAllAvailable()),
        lambda: reader.partitions(reader.initialOffset(), ahead),
    ):
        with pytest.raises(AnalysisError, match=r"has not processed version 9[^$]*position is 4"):
            ask()


def test_other_columns_than_spark_expects(world: World) -> None:
    history(world, 2)
    some = made(world)
    columns = list(world.query.result.columns)
    columns[1] = replace(columns[1], name="renamed")
    expected = some.schema()
    world.define(query=replace(world.query, result=replace(world.query.result, columns=tuple(columns))))
    with pytest.raises(AnalysisError, match=r"others than those that Spark expects[^$]*renamed"):
        some.reader(expected).partitions()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"query": "nope"}, "there is no continuous query nope"),
        ({"query": "total"}, "did you mean Totals"),
        ({"query": ""}, "lacks the option query"),
        ({"warehouse": ""}, "lacks the option warehouse"),
        ({"warehouse": "/nowhere/at/all"}, "there is no warehouse at /nowhere/at/all"),
        ({"startVersion": "1"}, "no option startversion[^$]*did you mean startingVersion"),
        ({"startingVersion": "x"}, "startingVersion = x is not possible"),
        ({"maxRowsPerTrigger": "0"}, "maxRowsPerTrigger = 0 is not possible"),
        ({"startingVersion": "latest"}, "is for readStream"),
        ({"startingVersion": "9"}, "there is no version 9 yet"),
        ({"endingVersion": "9"}, r"has not processed version 9[^$]*refresh the query first"),
        ({"startingVersion": "3", "endingVersion": "1"}, "from 3 to 1 are backwards"),
    ],
)
def test_what_cannot_be_read(world: World, options: dict[str, str], problem: str) -> None:
    history(world, 4)
    with pytest.raises((AnalysisError, CatalogError), match=problem):
        batch(world, **options)


def test_an_end_is_not_for_streams(world: World) -> None:
    with pytest.raises(AnalysisError, match=r"endingVersion is for spark\.read"):
        stream(world, endingVersion=3)


def test_versions_after_the_newest_have_no_rows_yet(world: World) -> None:
    """So a job can go on after the last version that it has, whatever there is."""
    history(world, 4)
    assert batch(world, startingVersion=5) == []


def test_in_the_middle_of_a_flush(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that move from the catalog to files between the look at the layout and the reading are looked for again."""
    history(world, 6, files=False)
    wanted = batch(world)
    with closing(QueryLog(world.catalog.warehouse, None, "totals")) as log:
        inline: Callable[..., Any] = log.catalog.inline

        def late(each: Any) -> Any:
            flush(world.catalog)
            return inline(each)

        monkeypatch.setattr(log.catalog, "inline", late)
        limit(log, inline_cache_bytes=0)
        parts = log.partitions(0, 6, 100)
    some = made(world)
    assert sorted(rows_of(some.reader(some.schema()), parts), key=repr) == sorted(wanted, key=repr)


def test_a_catalog_in_postgres(
    warehouse: Path, fresh_postgres: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = fresh_postgres()
    monkeypatch.setattr(world_module.Catalog, "open", partial(Catalog.open, url=url))
    with closing(World(warehouse).catalog) as catalog:
        monkeypatch.undo()
        reader = World.__new__(World)
        reader.catalog = catalog
    assert batch(reader, catalog=url) == []


def test_it_only_reads(world: World, warehouse: Path) -> None:
    """In a process of its own, as Spark has it: without JVM, threads, duties or a row in the catalog."""
    history(world, 4)
    world.catalog.close()
    program = f"""
import threading
from pyspark import SparkContext
from pyspark_cq import DefaultSource
some = DefaultSource({{"warehouse": {str(warehouse)!r}, "query": "totals"}})
reader = some.reader(some.schema())
for partition in reader.partitions():
    print(sum(batch.num_rows for batch in reader.read(partition)))
print(SparkContext._gateway, threading.active_count())
import sys
print([name for name in sys.modules if "apscheduler" in name or name.startswith("cq_engine.api")])
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ran.stdout.splitlines()[-2:] == ["None 1", "[]"], ran.stderr
    with closing(Catalog.open(str(warehouse), clock=SystemClock(), read_only=True)) as catalog:
        assert catalog.processes()[2] == []
