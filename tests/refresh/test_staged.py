"""Deltas and states that are too large for the catalog's database lie in files, and are read as those that are not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import cq_engine
from cq_engine.catalog.model import ChangeSet, VersionedTable
from cq_engine.core.errors import StorageError
from cq_engine.core.limits import Limits
from cq_engine.refresh import staged
from tests.oracle.budget import budget
from tests.oracle.generate import History
from tests.oracle.shop import shop_histories
from tests.oracle.warehouse import Tally, check_in_fresh_warehouse

QUERY = "SELECT k, sum(v) AS s, count(*) AS n FROM t GROUP BY k"


@pytest.fixture
def engine(spark: SparkSession, warehouse: Path) -> Iterator[cq_engine.Engine]:
    limits = Limits(refresh_inline_bytes=0, staged_file_rows=3)
    conf = {"maintenance": "manual"}
    with cq_engine.connect(warehouse, spark=spark, scheduler=False, conf=conf, limits=limits) as opened:
        opened.execute("CREATE TABLE t (id BIGINT PRIMARY KEY, k BIGINT, v BIGINT)")
        opened.execute("INSERT INTO t SELECT id, id % 8, id FROM range(40)")
        opened.execute(f"CREATE CONTINUOUS QUERY q PRIMARY KEY (k) ON DEMAND START FROM SNAPSHOT AS {QUERY}")
        opened.execute(
            "CREATE CONTINUOUS QUERY above ON DEMAND START FROM SNAPSHOT AS SELECT max(s) AS m FROM q"
        )
        yield opened


def written(engine: cq_engine.Engine) -> list[tuple[VersionedTable, ChangeSet]]:
    """What the last refresh has written of the query's log, of its result as a table, and of its states."""
    query, newest = engine.catalog.state.queries["q"], engine.catalog.newest_version
    assert query.relation is not None
    tables = [query.result, query.relation.storage, *(table for _, table in query.states)]
    sets = [(table, engine.catalog.layout(table.id, newest).changes[-1]) for table in tables]
    assert all(changes.high == newest for _, changes in sets)
    return sets


def results(engine: cq_engine.Engine, query: str) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, engine.execute(query).fetchall()))


def test_a_refresh_writes_files(engine: cq_engine.Engine, warehouse: Path) -> None:
    """Of a bounded size, as a flush would; and whoever follows sees what there is."""
    engine.execute("UPDATE t SET v = v + 100 WHERE k < 5")
    engine.refresh("q")
    engine.refresh("above")
    sets = written(engine)
    assert len(sets) == 3
    for table, changes in sets:
        assert changes.inline_id is None, table.name
        assert [file.rows for file in changes.files] == [3] * (changes.rows // 3) + [changes.rows % 3] * (
            changes.rows % 3 > 0
        )
        for file in changes.files:
            columns = pq.read_schema(warehouse / file.path).names
            assert "_commit_timestamp" in columns, "as they are published"
    assert results(engine, "SELECT * FROM q") == results(engine, QUERY)
    assert results(engine, "SELECT * FROM above") == results(engine, f"SELECT max(s) FROM ({QUERY}) x")
    assert [delta.marker for delta in engine.deltas("q")][-5:] == ["U"] * 5
    engine.publish()
    engine.maintain()
    engine.execute("DELETE FROM t WHERE k = 1")
    engine.refresh("q")
    assert results(engine, "SELECT * FROM q") == results(engine, QUERY)


def test_what_cannot_be_written_leaves_nothing(
    engine: cq_engine.Engine, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full at the third file: no file stays, and the next refresh has everything."""
    right, calls = staged.write_parquet, []

    def failing(*given: Any, **more: Any) -> Any:
        calls.append(given)
        if len(calls) == 3:
            raise StorageError("no space left on device")
        return right(*given, **more)

    before = sorted(warehouse.rglob("*.parquet"))
    engine.execute("UPDATE t SET v = v + 100")
    position = engine.describe("q").position
    with monkeypatch.context() as patched:
        patched.setattr(staged, "write_parquet", failing)
        with pytest.raises(cq_engine.CQError, match="no space left"):
            engine.refresh("q")
    assert len(calls) == 3
    assert sorted(warehouse.rglob("*.parquet")) == before
    assert engine.describe("q").position == position
    if engine.describe("q").state != "ACTIVE":
        engine.execute("ALTER CONTINUOUS QUERY q RESUME")
    engine.refresh("q")
    assert results(engine, "SELECT * FROM q") == results(engine, QUERY)


@pytest.mark.parametrize("query", [QUERY, "SELECT id, k, v FROM t"])
def test_a_start_writes_files(query: str, engine: cq_engine.Engine) -> None:
    """Of a query with a state and of one without, whose rows few as they are would be too large for a value."""
    engine.execute(f"CREATE CONTINUOUS QUERY begun ON DEMAND START FROM SNAPSHOT AS {query}")
    begun, newest = engine.catalog.state.queries["begun"], engine.catalog.newest_version
    for table in (begun.result, *(table for _, table in begun.states)):
        layout = engine.catalog.layout(table.id, newest)
        assert layout.snapshot or layout.changes, table.name
        assert all(changes.inline_id is None and changes.files for changes in layout.changes), table.name
    assert len(list(engine.deltas("begun"))) == len(results(engine, query))
    engine.execute("UPDATE t SET v = v + 100 WHERE k < 5")
    engine.refresh("begun")
    assert results(engine, "SELECT * FROM begun") == results(engine, query)


@pytest.mark.parametrize("most", [0, 300])
def test_the_delta_law_holds(most: int, spark: SparkSession) -> None:
    """With all change rows in files, and with those of some tables and not of others."""

    @budget("CQ_ORACLE_EXAMPLES", 2)
    @given(history=shop_histories("", queries=2, transactions=(3, 5)), rows=st.integers(1, 4))
    def check(history: History, rows: int) -> None:
        paths = {"refresh_inline_bytes": most, "staged_file_rows": rows}
        check_in_fresh_warehouse(history, spark, Tally(), paths=paths)

    check()
