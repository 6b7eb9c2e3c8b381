"""Forgetting: what nobody can ask for goes, what somebody has not processed stays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import cq_engine
from cq_engine.api.engine import Engine
from cq_engine.core.clock import ManualClock
from cq_engine.core.errors import AnalysisError, CatalogError, CQSyntaxError, StorageError
from cq_engine.core.options import parse_retention
from cq_engine.destinations import DeltaBatch
from cq_engine.maintenance.retention import outlived
from tests.maintenance.oracle import check_law, image

START = datetime(2026, 1, 1, tzinfo=timezone.utc)
TOTALS = "SELECT g, count(*) AS n FROM t t GROUP BY g"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
def engine(spark: SparkSession, warehouse: Path, clock: ManualClock) -> Iterator[Engine]:
    with cq_engine.connect(warehouse, spark=spark, scheduler=False, clock=clock) as engine:
        engine.execute("CREATE TABLE t (k INT PRIMARY KEY, g INT)")
        yield engine


def days(engine: Engine, clock: ManualClock, count: int) -> None:
    """A commit a day, each merged into a snapshot of its own."""
    table = engine.catalog.state.tables["t"].storage
    for _ in range(count):
        clock.set(clock.now() + timedelta(days=1))
        k = engine.catalog.newest_version + 1
        engine.execute(f"INSERT INTO t VALUES ({k}, {k % 3})")
        engine.compactor.merge(table)


def files(engine: Engine) -> set[str]:
    root = Path(engine.catalog.warehouse)
    found = {str(path.relative_to(root)) for path in root.rglob("*.parquet")}
    return {path for path in found if "_delta_log" not in path}


def oldest(engine: Engine) -> int:
    return engine.catalog.floor(engine.catalog.state.tables["t"].storage.id)


def test_the_declared_time_is_kept(engine: Engine, clock: ManualClock) -> None:
    days(engine, clock, 20)
    images = {v: image(engine, TOTALS, v) for v in range(1, 21)}
    engine.execute("VACUUM")
    assert oldest(engine) == 13, "committed seven days ago, at this very moment"
    for version in range(13, 21):
        assert image(engine, TOTALS, version) == images[version]
    for text in ("t VERSION AS OF 12", "t CHANGES FROM VERSION 12 TO VERSION 14"):
        with pytest.raises(StorageError, match="no longer kept"):
            engine.execute(f"SELECT * FROM {text}").fetchall()
    later = engine.execute("SELECT k FROM t CHANGES FROM VERSION 14 TO VERSION 20").fetchall()
    assert sorted(k for (k,) in later) == list(range(14, 21))


def test_tables_that_seldom_change_forget_too(engine: Engine, clock: ManualClock) -> None:
    """However short their logs are: the log and the times of commits do not grow for ever."""
    engine.execute("CREATE CONTINUOUS QUERY totals ON DEMAND AS SELECT g, count(*) AS n FROM t GROUP BY g")
    images = {}
    for day in range(1, 27):
        clock.set(clock.now() + timedelta(days=1))
        version = engine.execute(f"INSERT INTO t VALUES ({day}, {day % 3})").commit_version
        assert version is not None
        images[version] = image(engine, TOTALS, version)
        engine.refresh("totals")
        engine.publish()
        merged = engine.maintenance.run(outlived(engine.services, engine.conf))
        assert day > 7 or not merged
        engine.vacuum()
    newest = engine.catalog.newest_version
    assert newest - 16 <= oldest(engine) <= newest - 7
    assert len(engine.catalog.timestamps(0, newest)) <= 20
    for version in range(oldest(engine), newest + 1):
        assert image(engine, TOTALS, version) == images[version]
    check_law(
        engine, "totals", TOTALS, engine.catalog.floor(engine.catalog.state.queries["totals"].result.id)
    )


def test_nothing_is_forgotten_before_its_time(engine: Engine, clock: ManualClock) -> None:
    days(engine, clock, 6)
    before = files(engine)
    done = engine.vacuum()
    assert (done.forgotten, done.removed, oldest(engine)) == (0, 0, 0)
    assert before <= files(engine)


def test_files_stay_for_whoever_reads_them(engine: Engine, clock: ManualClock) -> None:
    """A DataFrame that was made before its files were forgotten can be read for a while."""
    days(engine, clock, 12)
    frame = engine.reader.files(
        engine.catalog.layout(engine.catalog.state.tables["t"].storage.id, 2).snapshot,
        (engine.catalog.state.tables["t"].columns),
    )
    done = engine.vacuum()
    assert done.forgotten > 0
    assert done.removed == 0
    assert frame.count() == 2
    assert engine.vacuum(retain="0 hours").removed >= done.forgotten


def test_a_query_that_lags_keeps_what_it_has_not_processed(engine: Engine, clock: ManualClock) -> None:
    days(engine, clock, 3)
    engine.execute(f"CREATE CONTINUOUS QUERY totals ON DEMAND AS {TOTALS}")
    engine.execute("CREATE CONTINUOUS QUERY paused AS SELECT k FROM t t WHERE g = 1")
    engine.execute("ALTER CONTINUOUS QUERY paused PAUSE")
    days(engine, clock, 9)
    images = {v: image(engine, TOTALS, v) for v in range(3, 13)}
    engine.execute("VACUUM RETAIN 0 HOURS")
    assert oldest(engine) == 3
    assert {v: image(engine, TOTALS, v) for v in images} == images
    engine.refresh("totals")
    assert check_law(engine, "totals", TOTALS, 3) == 9
    engine.execute("VACUUM RETAIN 0 HOURS")
    assert oldest(engine) == 3, "the other one is paused, and goes on one day"
    engine.execute("ALTER CONTINUOUS QUERY paused RESUME")
    engine.refresh("paused")
    check_law(engine, "paused", "SELECT k FROM t t WHERE g = 1", 3)
    engine.execute("VACUUM RETAIN 0 HOURS")
    assert oldest(engine) == 12


def test_a_destination_that_lags_keeps_the_delta_log(engine: Engine, clock: ManualClock) -> None:
    days(engine, clock, 1)
    engine.execute("CREATE CONTINUOUS QUERY q DESTINATION CALLBACK late, TABLE sink AS SELECT k, g FROM t t")
    days(engine, clock, 12)
    engine.refresh("q")
    log = engine.catalog.state.queries["q"].result.id
    engine.execute("VACUUM q RETAIN 0 HOURS")
    assert engine.catalog.floor(log) == 1
    got: list[int] = []

    @engine.callback("late")
    def _late(batch: DeltaBatch) -> None:
        got.extend(delta.new[0] for delta in batch)

    engine.drain(60)
    assert got == list(range(2, 14))
    days(engine, clock, 1)
    engine.drain(60)
    engine.execute("VACUUM q RETAIN 0 HOURS")
    newest = engine.describe("q").position
    assert engine.catalog.floor(log) == newest
    assert list(engine.deltas("q")) == []
    with pytest.raises(StorageError, match="no longer kept"):
        list(engine.deltas("q", after_version=newest - 1))
    days(engine, clock, 1)
    engine.refresh("q")
    assert [delta.new[0] for delta in engine.deltas("q")] == [engine.catalog.newest_version - 1]


def test_an_open_transaction_keeps_what_it_reads(engine: Engine, clock: ManualClock) -> None:
    days(engine, clock, 2)
    with engine.transaction() as reading:
        assert reading.execute("SELECT count(*) FROM t").fetchall() == [(2,)]
        days(engine, clock, 3)
        engine.vacuum(retain="0 hours")
        assert oldest(engine) == 2
        assert reading.execute("SELECT count(*) FROM t").fetchall() == [(2,)]
    engine.vacuum(retain="0 hours")
    assert oldest(engine) == 5


def test_everything_is_published_before_it_goes(engine: Engine, clock: ManualClock) -> None:
    """The published log of a table is complete, and its files stay; nothing of it is lost by a restart."""
    days(engine, clock, 9)
    engine.vacuum(retain="0 hours")
    root = f"{engine.catalog.warehouse}/changes/t"
    published = DeltaTable(root).to_pyarrow_table()
    assert sorted(published["_commit_version"].to_pylist()) == list(range(1, 10))
    days(engine, clock, 1)
    engine.publish()
    assert DeltaTable(root).to_pyarrow_table().num_rows == 10
    assert DeltaTable(f"{engine.catalog.warehouse}/tables/t").to_pyarrow_table().num_rows == 10


@pytest.mark.parametrize("restart", [False, True])
def test_a_damaged_log_is_reported_and_stops_no_other(
    spark: SparkSession, engine: Engine, clock: ManualClock, warehouse: Path, restart: bool
) -> None:
    """After a restart publishing sees it, too, before anything is forgotten."""
    engine.catalog.limits = replace(engine.catalog.limits, published_files=2)
    engine.execute("CREATE TABLE other (k INT PRIMARY KEY, g INT)")
    small: set[str] = set()
    for day in range(3):
        clock.set(clock.now() + timedelta(days=1))
        for name in ("t", "other"):
            engine.execute(f"INSERT INTO {name} VALUES ({day}, 0)")
        engine.publish()
        small |= {path for path in files(engine) if path.startswith("changes/other/")}
    first = warehouse / "changes/t/_delta_log" / f"{0:020}.json"
    whole = first.read_text()
    if restart:
        engine.close()
        engine = cq_engine.connect(warehouse, spark=spark, scheduler=False, clock=clock)
        engine.execute("INSERT INTO t VALUES (3, 0)")
    first.write_text("damaged")
    with engine:
        for name in ("t", "other"):
            engine.compactor.merge(engine.catalog.state.tables[name].storage)
        with pytest.raises(StorageError, match="read the Delta table changes/t") as caught:
            engine.vacuum(retain="0 hours")
        assert "Json error" in caught.value.detail
        left = {path for path in files(engine) if path.startswith("changes/other/")}
        named = DeltaTable(str(warehouse / "changes/other"))
        assert left < small
        assert named.to_pyarrow_table().num_rows == 3
        assert named.metadata().configuration["delta.logRetentionDuration"] == "interval 168 hours"
        first.write_text(whole)
        engine.vacuum(retain="0 hours")
    assert DeltaTable(str(warehouse / "changes/t")).to_pyarrow_table().num_rows == 3 + restart


def test_it_is_forgotten_after_a_restart(
    spark: SparkSession, engine: Engine, clock: ManualClock, warehouse: Path
) -> None:
    engine.execute(f"CREATE CONTINUOUS QUERY totals AS {TOTALS}")
    days(engine, clock, 9)
    engine.refresh("totals")
    engine.vacuum(retain="0 hours")
    log = engine.catalog.state.queries["totals"].result.id
    before = (oldest(engine), engine.catalog.floor(log), files(engine))
    engine.close()
    with cq_engine.connect(warehouse, spark=spark, scheduler=False, clock=clock) as again:
        assert (oldest(again), again.catalog.floor(log), files(again)) == before
        assert oldest(again) == 9
        days(again, clock, 2)
        again.refresh("totals")
        assert check_law(again, "totals", TOTALS, 9) == 2


def test_retention_of_a_table_and_of_the_engine(engine: Engine, clock: ManualClock) -> None:
    engine.execute("CREATE TABLE d (k INT PRIMARY KEY) WITH (retention = '2 days')")
    engine.execute("SET retention = 'forever'")
    table = engine.catalog.state.tables["d"].storage
    for number in range(9):
        clock.set(clock.now() + timedelta(days=1))
        engine.execute(f"INSERT INTO d VALUES ({number})")
        engine.compactor.merge(table)
    days(engine, clock, 1)
    engine.vacuum()
    assert engine.catalog.floor(table.id) == 8
    assert oldest(engine) == 0


@pytest.mark.parametrize("text", ["soon", "7", "-1 days", "2 fortnights"])
def test_a_retention_that_is_none(engine: Engine, text: str) -> None:
    for statement in (
        f"CREATE TABLE d (k INT PRIMARY KEY) WITH (retention = '{text}')",
        f"CREATE CONTINUOUS QUERY q WITH (retention = '{text}') AS SELECT k FROM t",
    ):
        with pytest.raises(AnalysisError, match="length of time"):
            engine.execute(statement)
    assert "d" not in engine.catalog.state.tables


def test_lengths() -> None:
    assert parse_retention("36 Hours") == timedelta(hours=36)
    assert parse_retention("1 week") == timedelta(days=7)
    assert parse_retention("Forever") is None
    assert parse_retention("999999999999 weeks") is None


def test_what_cannot_be_vacuumed(engine: Engine) -> None:
    with pytest.raises(CatalogError, match="no table or continuous query nowhere"):
        engine.execute("VACUUM nowhere")
    with pytest.raises(AnalysisError, match="length of time"):
        engine.execute("VACUUM t RETAIN 2 MONTHS")
    with pytest.raises(CQSyntaxError):
        engine.execute("VACUUM t RETAIN 2")
