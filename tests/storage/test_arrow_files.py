"""Data files that executors read and write through Arrow, as they do where their Spark has no file system for the store."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from cq_engine.catalog import tables
from cq_engine.catalog.model import DataFile
from cq_engine.catalog.storage.local import LocalStore
from cq_engine.core.columns import Column
from cq_engine.core.errors import CQError
from cq_engine.core.limits import Limits
from cq_engine.core.types import columns_of
from cq_engine.storage import arrow_files
from cq_engine.storage.data_files import read_files, write_files
from tests.storage.test_types import KINDS, ZONE

LIMITS = Limits(row_group_rows=10, store_batch_rows=7, scan_least_bytes=1, scan_most_bytes=4000)


class Elsewhere(LocalStore):
    """A directory of which nobody is told that it is one."""

    is_local: ClassVar[bool] = False

    @property
    def filesystem(self) -> pafs.FileSystem:
        return pafs.LocalFileSystem()


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    made = spark.newSession()
    for name, value in (("session.timeZone", ZONE), ("timeType.enabled", "true"), ("shuffle.partitions", "2"),
                        ("variant.writeShredding.enabled", "false")):  # fmt: skip
        made.conf.set(f"spark.sql.{name}", value)
    return made


@pytest.fixture
def store(tmp_path: Path) -> Elsewhere:
    return Elsewhere(str(tmp_path))


def rows(frame: DataFrame) -> list[str]:
    """What Spark says that they are."""
    shown = frame.select(*(f.expr(f"to_json(named_struct('v', `{n}`))") if "variant" in frame.schema[n].dataType.simpleString()
                           else f.expr(f"CAST(`{n}` AS STRING)") for n in frame.columns))  # fmt: skip
    return sorted(map(repr, shown.collect()))


def test_every_type(session: SparkSession, store: Elsewhere) -> None:
    """Written by a task and read by Spark, written by Spark and read by a task, and both by tasks."""
    columns = ", ".join(f"{kind.first} AS {name}" for name, kind in KINDS.items())
    others = ", ".join(f"{kind.second} AS {name}" for name, kind in KINDS.items())
    typed = ", ".join(f"CAST({name} AS {kind.type}) AS {name}" for name, kind in KINDS.items())
    nulls = ", ".join(f"CAST(NULL AS {kind.type}) AS {name}" for name, kind in KINDS.items())
    frame = session.sql(
        f"SELECT {typed} FROM (SELECT {columns}) UNION ALL SELECT {typed} FROM (SELECT {others}) UNION ALL SELECT {nulls}"
    )
    wanted, kept = rows(frame), columns_of(frame.schema)
    assert len(wanted) == 3
    by_tasks = write_files(store, frame.coalesce(1), "tasks", ["decimal"], LIMITS)
    local = LocalStore(store.location)
    by_spark = write_files(local, frame.coalesce(1), "spark", ["decimal"], LIMITS)
    assert [file.rows for file in by_tasks] == [file.rows for file in by_spark] == [3]
    for at, files in ((local, by_tasks), (store, by_spark), (store, by_tasks)):
        read = read_files(session, at, files, kept, LIMITS)
        assert [each.dataType for each in read.schema] == [each.dataType for each in frame.schema]
        assert rows(read) == wanted


def test_what_tasks_say(session: SparkSession, store: Elsewhere) -> None:
    """Path, rows, bytes and statistics are those of the files; empty partitions write none."""
    frame = session.range(0, 95, 1, 5).select(
        "id", f.expr("CAST(id AS STRING)").alias("s"), f.expr("if(id < 50, NULL, id)").alias("n")
    ).where("id < 20 OR id >= 38")  # fmt: skip
    files = write_files(store, frame, "t/a", ["id", "s", "n", "unknown"], LIMITS, small_groups=True, most=12)
    assert sum(file.rows for file in files) == 77
    assert all(0 < file.rows <= 12 for file in files)
    assert [file.path for file in files] == sorted(file.path for file in files)
    for file in files:
        assert tables.data_file(file.path, store, ["id", "s", "n", "unknown"]) == file
        assert pq.read_metadata(store.path(file.path)).row_group(0).num_rows <= 10
    assert {found.path for found in store.list("t/a")} == {file.path for file in files}
    assert write_files(store, frame.where("false"), "t/b", [], LIMITS) == []


def test_columns_that_a_file_lacks(session: SparkSession, store: Elsewhere) -> None:
    frame = session.range(5).selectExpr("CAST(id AS INT) AS a", "id AS b")
    files = write_files(store, frame, "t", [], LIMITS)
    read = read_files(session, store, files, [Column("c", "string"), Column("a", "int")], LIMITS)
    assert sorted(map(tuple, read.collect())) == [(None, n) for n in range(5)]


@pytest.fixture
def sorted_files(session: SparkSession, store: Elsewhere) -> list[DataFile]:
    frame = session.range(0, 400, 1, 2).select("id", f.expr("repeat(CAST(id AS STRING), 9)").alias("s"))
    return write_files(store, frame, "t", ["id"], LIMITS, small_groups=True)


def test_shares_are_all_of_a_file_once(
    session: SparkSession, store: Elsewhere, sorted_files: list[DataFile]
) -> None:
    tasks = arrow_files._cut(sorted_files, 2000)
    assert len(tasks) > len(sorted_files)
    assert all(file.stats for file in sorted_files)
    assert not any(share.file.stats for task in tasks for share in task), "every task gets all of them"
    read = read_files(session, store, sorted_files, [Column("id", "bigint")], LIMITS)
    assert read.rdd.getNumPartitions() > 2
    assert sorted(row.id for row in read.collect()) == list(range(400))
    small = arrow_files._cut([DataFile(f"{n}", 1, 100) for n in range(50)], 1000)
    assert [len(task) for task in small] == [10] * 5


def test_row_groups_without_wanted_values_are_left_out(
    session: SparkSession, store: Elsewhere, sorted_files: list[DataFile]
) -> None:
    wanted = {"id": pa.array([17, 233], pa.int64())}
    read = read_files(session, store, sorted_files, [Column("id", "bigint")], LIMITS, wanted)
    found = sorted(row.id for row in read.collect())
    assert found == [*range(10, 20), *range(230, 240)]
    many = {"id": pa.array(range(1001), pa.int64())}
    assert read_files(session, store, sorted_files, [Column("id", "bigint")], LIMITS, many).count() == 400


def test_a_file_that_is_gone(session: SparkSession, store: Elsewhere, sorted_files: list[DataFile]) -> None:
    store.delete(sorted_files[0].path)
    read = read_files(session, store, sorted_files, [Column("id", "bigint")], LIMITS)
    with pytest.raises(Exception, match=f"{sorted_files[0].path} is not there"):
        read.count()


def test_an_expression_that_fails(session: SparkSession, store: Elsewhere) -> None:
    with pytest.raises(CQError, match="zero"):
        write_files(store, session.range(10).selectExpr("1 DIV (id - 5) AS q"), "t", [], LIMITS)
