"""Change rows in files: read once while there is room for them, and right where there is none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine.catalog.model import DataFile, VersionedTable
from cq_engine.core.columns import Column
from cq_engine.core.limits import Limits

MIB = 2**20


@pytest.fixture(params=[256 * MIB, 3_000, 0], ids=["room", "little", "none"])
def engine(
    spark: SparkSession, warehouse: Path, request: pytest.FixtureRequest
) -> Iterator[cq_engine.Engine]:
    """All change rows go into files; what is read of them may stay in so many bytes of memory."""
    limits = Limits(inline_bytes=0, small_rows=-1, inline_cache_bytes=request.param)
    with cq_engine.connect(
        warehouse, spark=spark, scheduler=False, conf={"maintenance": "manual"}, limits=limits
    ) as opened:
        opened.execute("CREATE TABLE t (k BIGINT PRIMARY KEY, v BIGINT)")
        opened.execute("INSERT INTO t SELECT id, id FROM range(100)")
        opened.execute(
            "CREATE CONTINUOUS QUERY q COMPUTE TRANSACTIONAL DELTA ON DEMAND "
            "AS SELECT v % 10 AS g, count(*) AS n, sum(v) AS s FROM t GROUP BY v % 10"
        )
        yield opened


@pytest.fixture
def opened(engine: cq_engine.Engine, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The change files that are opened, in order."""
    paths: list[str] = []
    read = engine.reader.read_files

    def reading(table: VersionedTable, files: Sequence[DataFile], columns: Sequence[Column]) -> pa.Table:
        paths.extend(file.path for file in files if file.path.startswith("changes/"))
        return read(table, files, columns)

    monkeypatch.setattr(engine.reader, "read_files", reading)
    return paths


def change(engine: cq_engine.Engine, *numbers: int) -> None:
    for n in numbers:
        engine.execute(f"UPDATE t SET v = v + {n + 1} WHERE k % 7 = {n}")
        engine.execute(f"DELETE FROM t WHERE k = {n}")
        engine.execute(f"INSERT INTO t (k, v) VALUES ({1000 + n}, {n})")
        engine.refresh("q")


def result(engine: cq_engine.Engine) -> Counter[Any]:
    return Counter(tuple(row) for row in engine.execute("SELECT * FROM q").fetchall())


def from_scratch(engine: cq_engine.Engine) -> Counter[Any]:
    text = "SELECT v % 10 AS g, count(*) AS n, sum(v) AS s FROM t GROUP BY v % 10"
    return Counter(tuple(row) for row in engine.execute(text).fetchall())


def test_a_change_file_is_opened_once_while_there_is_room(
    engine: cq_engine.Engine, opened: list[str]
) -> None:
    change(engine, *range(4))
    assert result(engine) == from_scratch(engine)
    room = engine.catalog.limits.inline_cache_bytes
    again = max(Counter(opened).values())
    assert again == 1 if room == 256 * MIB else again > 1, Counter(opened)


@pytest.mark.parametrize("engine", [256 * MIB, 0], ids=["room", "none"], indirect=True)
def test_a_column_that_comes_later_is_read_from_files_that_were_read_without_it(
    engine: cq_engine.Engine,
) -> None:
    change(engine, 0, 1)
    engine.execute("ALTER TABLE t ADD COLUMN w BIGINT")
    engine.execute("UPDATE t SET w = k WHERE k % 2 = 0")
    change(engine, 2, 3)
    assert result(engine) == from_scratch(engine)
    found = engine.execute("SELECT k, w FROM t WHERE k >= 10 AND k < 100").fetchall()
    assert {k for k, w in found if w is not None} == {k for k, _ in found if k % 2 == 0}
    assert all(w in (None, k) for k, w in found)
