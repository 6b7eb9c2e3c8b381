"""Tasks and files follow what there is: each kind of work at one size and at ten times it, with small bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine.catalog.model import DataFile, VersionedTable
from cq_engine.core.limits import Limits
from cq_engine.refresh.driver import Driver
from cq_engine.spark.widths import cores
from cq_engine.transactions import copy_into
from tests.limits import forced

Connect = Callable[..., cq_engine.Engine]
EXECUTORS: dict[str, Any] = {
    **forced(bulk=True, large=True), "start_rows": 0, "pending_rows": 0, "staged_file_rows": 100, "inline_bytes": 0,
}  # fmt: skip
SIZES = (100, 1000)
ROWS = "SELECT CAST(id AS INT) AS id, CAST(id % 7 AS INT) AS g, concat('text of row ', id) AS s FROM range({}, {})"


@pytest.fixture
def connect(warehouse: Path, spark: SparkSession) -> Iterator[Connect]:
    opened: list[cq_engine.Engine] = []

    def connect(**bounds: Any) -> cq_engine.Engine:
        place = warehouse / str(len(opened))
        conf = {"maintenance": "manual"}
        made = cq_engine.connect(place, spark=spark, conf=conf, scheduler=False, limits=Limits(**bounds))
        opened.append(made)
        return made

    yield connect
    for engine in opened:
        engine.close()


def created(engine: cq_engine.Engine, rows: int) -> cq_engine.Engine:
    engine.execute("CREATE TABLE t (id INT PRIMARY KEY, g INT, s STRING)")
    if rows:
        engine.execute(f"INSERT INTO t {ROWS.format(0, rows)}")
    return engine


def files(engine: cq_engine.Engine, table: VersionedTable) -> list[DataFile]:
    layout = engine.catalog.layout(table.id, engine.catalog.newest_version)
    found = list(layout.snapshot)
    for each in layout.changes:
        assert each.inline_id is None
        found += each.files
    return found


def storage(engine: cq_engine.Engine) -> VersionedTable:
    return engine.catalog.state.tables["t"].storage


def test_insert_of_rows_that_nobody_has_counted(connect: Connect) -> None:
    counts = [
        len(files(engine, storage(engine))) for engine in (created(connect(**EXECUTORS), n) for n in SIZES)
    ]
    assert counts == [1, 10]


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_copy(connect: Connect, spark: SparkSession, tmp_path: Path, kind: str) -> None:
    bounds = {**EXECUTORS, "staged_file_rows": 10**9, "file_most_bytes": 2000, "file_least_bytes": 10**9}
    counts = []
    for size in SIZES:
        engine = created(connect(**bounds), 0)
        rows = pa.table({"id": pa.array(range(size), pa.int32()), "g": pa.array([1] * size, pa.int32()),
                         "s": [f"text of {n}" for n in range(size)]})  # fmt: skip
        path = tmp_path / f"{size}.{kind}"
        pq.write_table(rows, path) if kind == "parquet" else rows.to_pandas().to_csv(path, index=False)
        engine.execute(f"COPY INTO t FROM '{path}'")
        written = files(engine, storage(engine))
        assert sum(file.rows for file in written) == size
        counts.append(len(written))
        weight = path.stat().st_size
        expected, each = max(1, -(-(weight if kind == "parquet" else weight // 3) // 2000)), cores(spark)
        assert len(written) == (expected if expected < each else -(-expected // each) * each)
    assert counts[1] >= 3 * counts[0]


def test_copy_of_rows_that_weigh_next_to_nothing(connect: Connect, tmp_path: Path) -> None:
    counts = []
    for size in SIZES:
        engine = created(connect(**EXECUTORS), 0)
        rows = pa.table(
            {
                "id": pa.array(range(size), pa.int32()),
                "g": pa.array([1] * size, pa.int32()),
                "s": ["x"] * size,
            }
        )
        pq.write_table(rows, tmp_path / f"{size}.parquet")
        engine.execute(f"COPY INTO t FROM '{tmp_path}/{size}.parquet'")
        counts.append(len(files(engine, storage(engine))))
    assert counts == [1, 10]


def test_what_files_weigh_that_only_spark_reaches(connect: Connect, tmp_path: Path) -> None:
    spark = connect().services.spark()

    def weight(path: str) -> int:
        return copy_into._SparkFiles(spark, path, {})._listed_bytes()

    for n in range(3):
        (tmp_path / f"{n}.csv").write_text("id,g,s\n" + "1,2,x\n" * (n + 1))
    whole = sum(path.stat().st_size for path in tmp_path.glob("*.csv"))
    assert weight(tmp_path.as_uri()) == whole
    assert weight(f"{tmp_path.as_uri()}/[01].csv") < whole
    assert weight("s3a://nobody/has/this.csv") == 0


def test_logs_states_and_relations_of_executors(connect: Connect) -> None:
    """A large interval: the delta log, the state, and the result as a table; then a query that starts from it."""
    text = "SELECT id % {} AS k, count(*) AS n, max(g) AS m FROM t GROUP BY id % {}"
    counts = []
    for size in SIZES:
        engine = created(connect(**EXECUTORS), 0)
        engine.execute(f"CREATE CONTINUOUS QUERY q ON DEMAND AS {text.format(size, size)}")
        engine.execute("CREATE CONTINUOUS QUERY above ON DEMAND AS SELECT m, count(*) AS n FROM q GROUP BY m")
        engine.execute(f"INSERT INTO t {ROWS.format(0, size)}")
        engine.refresh("q")
        query = engine.catalog.state.queries["q"]
        assert query.relation is not None
        found = [
            len(files(engine, t))
            for t in (query.result, *dict(query.states).values(), query.relation.storage)
        ]
        engine.execute(
            f"CREATE CONTINUOUS QUERY late ON DEMAND START FROM SNAPSHOT AS {text.format(size, size)} HAVING n > 0"
        )
        late = engine.catalog.state.queries["late"]
        found += [len(files(engine, t)) for t in (late.result, *dict(late.states).values())]
        assert engine.execute("SELECT count(*) FROM late").fetchall() == [(size,)]
        counts.append(found)
    assert counts == [[1] * len(counts[0]), [10] * len(counts[0])]


def test_few_rows_of_executors_make_no_file(connect: Connect) -> None:
    engine = created(connect(refresh_changes=0, small_rows=0), 200)
    engine.execute("CREATE CONTINUOUS QUERY q ON DEMAND AS SELECT g, count(*) AS n FROM t GROUP BY g")
    engine.execute("CREATE CONTINUOUS QUERY bag ON DEMAND AS SELECT g % 2 AS h FROM t")  # rows without a key
    for name, column in (("q", "n"), ("bag", "h")):
        engine.execute(
            f"CREATE CONTINUOUS QUERY above_{name} ON DEMAND AS SELECT {column}, count(*) AS c FROM {name} GROUP BY {column}"
        )
    engine.execute("UPDATE t SET g = g + 1 WHERE id < 20")
    for name in ("q", "bag", "above_q", "above_bag"):
        engine.refresh(name)
        assert engine.queries.refresher.reports[name].run.startswith("cluster")
    query, bag = (engine.catalog.state.queries[name] for name in ("q", "bag"))
    assert query.relation is not None
    assert bag.relation is not None
    for table in (
        query.result,
        *dict(query.states).values(),
        query.relation.storage,
        bag.result,
        bag.relation.storage,
    ):
        sets = engine.catalog.layout(table.id, engine.catalog.newest_version).changes
        assert sets
        assert all(each.inline_id is not None for each in sets)
    assert engine.execute("SELECT * FROM q ORDER BY g").fetchall() == (
        engine.execute("SELECT g, count(*) FROM t GROUP BY g ORDER BY g").fetchall()
    )
    assert engine.execute("SELECT * FROM above_bag ORDER BY h").fetchall() == (
        engine.execute("SELECT g % 2 AS h, count(*) FROM t GROUP BY g % 2 ORDER BY h").fetchall()
    )


@pytest.mark.parametrize("log_rows", [-1, 10**6])
def test_a_recomputation_of_large_tables_is_compared_by_executors(
    connect: Connect, log_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the driver has of it is the delta, where that is small."""

    def never(*_: Any) -> None:
        raise AssertionError("the driver has the result")

    monkeypatch.setattr(Driver, "load", never)
    engine = created(connect(recompute_bytes=-1, log_rows=log_rows), 300)
    engine.execute(
        "CREATE CONTINUOUS QUERY q ON DEMAND WITH (refresh = 'full') AS SELECT g, count(*) AS n, max(s) AS m FROM t GROUP BY g"
    )
    for n in range(3):
        engine.execute(f"DELETE FROM t WHERE id BETWEEN {50 * n} AND {50 * n + 20}")
    engine.refresh("q")
    wanted = engine.execute("SELECT g, count(*), max(s) FROM t GROUP BY g ORDER BY g").fetchall()
    assert engine.execute("SELECT * FROM q ORDER BY g").fetchall() == wanted
    assert engine.queries.refresher.reports["q"].run == "cluster: FULL"
    table = engine.catalog.state.queries["q"].result
    sets = engine.catalog.layout(table.id, engine.catalog.newest_version).changes
    assert {bool(each.files) for each in sets} == {log_rows < 0}


def test_whole_tables(connect: Connect) -> None:
    counts = []
    for size in SIZES:
        engine = created(connect(**EXECUTORS, file_most_bytes=1500, snapshot_file_rows=10**9), size)
        engine.execute("DELETE FROM t WHERE id < 5")
        engine.execute("COMPACT TABLE t")
        counts.append(len(files(engine, storage(engine))))
        assert engine.execute("SELECT count(*), min(id) FROM t").fetchall() == [(size - 5, 5)]
    assert counts[0] < counts[1] / 3
