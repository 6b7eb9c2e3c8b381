"""How many tasks and files there are for how much data."""

from __future__ import annotations

import doctest

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from cq_engine.core.columns import Column
from cq_engine.core.limits import Limits
from cq_engine.spark import widths
from cq_engine.spark.arrow_io import from_arrow
from cq_engine.spark.widths import Size, cores, file_count, row_bytes, shuffle_width, task_bytes

LIMITS = Limits()
sizes = st.integers(0, 2**50)
many = st.integers(1, 4096)


def test_what_the_docstrings_say() -> None:
    found = doctest.testmod(widths)
    assert found.attempted > 1
    assert not found.failed


@given(size=sizes, more=sizes, cores=many)
def test_tasks_grow_with_what_there_is(size: int, more: int, cores: int) -> None:
    def tasks(size: int) -> int:
        return -(-size // task_bytes(size, cores, LIMITS))

    assert tasks(size) <= tasks(size + more) <= LIMITS.most_tasks
    share = task_bytes(size, cores, LIMITS)
    assert LIMITS.scan_least_bytes <= share
    assert share <= LIMITS.scan_most_bytes or tasks(size) > LIMITS.most_tasks - LIMITS.most_tasks // 100
    assert (
        shuffle_width(size, cores, LIMITS) <= shuffle_width(size + more, cores, LIMITS) <= LIMITS.most_tasks
    )
    assert shuffle_width(size, cores, LIMITS) >= min(cores, LIMITS.most_tasks)


@given(rows=st.integers(0, 2**40), width=st.integers(1, 10_000), cores=many, most=st.integers(1, 10**7))
def test_files_are_neither_large_nor_for_nothing(rows: int, width: int, cores: int, most: int) -> None:
    count = file_count(Size(rows, rows * width), cores, LIMITS, most)
    assert 1 <= count <= LIMITS.most_tasks
    if count < LIMITS.most_tasks:
        assert rows <= count * most
        assert rows * width <= count * LIMITS.file_most_bytes
        small = rows * width < 2 * LIMITS.file_least_bytes and rows <= most
        assert count == 1 or not small
        if rows * width >= cores * LIMITS.file_least_bytes:
            assert count >= min(cores, LIMITS.most_tasks)
    assert count <= file_count(Size(2 * rows, 2 * rows * width), cores, LIMITS, most)


def test_rows_by_their_types() -> None:
    narrow = [Column("a", "int"), Column("b", "BIGINT"), Column("c", "decimal(10,2)"), Column("d", "boolean")]
    assert row_bytes(narrow) == 4 + 8 + 8 + 1
    assert row_bytes([*narrow, Column("s", "string"), Column("m", "map<string,int>")]) == 21 + 16 + 64
    assert row_bytes([]) == 1


def test_the_session_says_how_many_cores_it_has(spark: SparkSession) -> None:
    assert cores(spark) == 2


def test_rows_of_the_driver_travel_in_small_parts(spark: SparkSession) -> None:
    """A message to an executor has a most; a task takes its part of the rows with it."""
    session = spark.newSession()
    session.conf.set("spark.sql.execution.arrow.localRelationThreshold", "0b")
    rows = pa.table({"id": pa.array(range(1000), pa.int64()), "s": ["x" * 92] * 1000})
    columns = [Column("id", "bigint"), Column("s", "string")]
    for most in (10_000, 50_000, 10**9):
        frame = from_arrow(session, rows, columns, most)
        parts = frame.groupBy(f.spark_partition_id()).agg(f.sum(f.length("s") + 8)).collect()
        assert max(row[1] for row in parts) <= 1.2 * most
        assert len(parts) == max(1, -(-rows.nbytes // most))
        assert sorted(row[0] for row in frame.select("id").collect()) == list(range(1000))
