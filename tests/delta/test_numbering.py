"""The rows of a large version are numbered in parts: the same rows as in one, by several tasks, each with a number of its own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import cq_engine
from cq_engine.core.limits import Limits
from cq_engine.delta.partial.model import to_change_rows
from cq_engine.destinations.log import _slices
from cq_engine.planner.consolidate import consolidate
from cq_engine.refresh.delta_rows import _without_gaps
from tests.limits import EXECUTORS

COLUMNS = {
    "k": "int",
    "d": "double",
    "c": "string collate UTF8_LCASE",
    "m": "map<string,int>",
    "s": "string",
}
ROWS = """
    SELECT CAST(id % 300 AS int) AS k, CASE id % 4 WHEN 0 THEN 0.0D WHEN 1 THEN -0.0D WHEN 2 THEN double('NaN') END AS d,
           if(id % 2 = 0, 'a', 'A') COLLATE UTF8_LCASE AS c, map('x', CAST(id % 3 AS int)) AS m, CAST(id % 7 AS string) AS s,
           id % 3 AS _v, if(id % 5 < 2, -1, 1) AS _w FROM range(2000)"""


def _typed(frame: DataFrame) -> DataFrame:
    assert dict(frame.dtypes)["_sequence"] == "bigint"
    return frame


def _rows(frame: DataFrame) -> list[dict[str, Any]]:
    return [
        {name: repr(value) for name, value in row.asDict().items() if name != "_sequence"}
        | {"_sequence": row["_sequence"]}
        for row in frame.collect()
    ]


@pytest.mark.parametrize("key", [("k",), ("d", "k"), ("c",), ("c", "k"), ("s",), (), None], ids=str)
def test_parts_have_the_rows_of_the_whole(spark: SparkSession, key: Sequence[str] | None) -> None:
    names, types = list(COLUMNS), list(COLUMNS.values())
    whole, parts = (
        _rows(_typed(spark.sql(consolidate(f"({ROWS})", names, key, types, number)))) for number in (1, 16)
    )

    def counted(rows: list[dict[str, Any]]) -> list[tuple[str, ...]]:
        shown = [name for name in rows[0] if name not in ("_sequence", "d", "c")]
        return sorted(tuple(row[name] for name in shown) for row in rows)

    assert counted(whole) == counted(parts)
    for rows in (whole, parts):
        assert min(row["_sequence"] for row in rows) >= 1
        keys: dict[tuple[Any, ...], set[tuple[str, ...]]] = defaultdict(set)
        numbers: dict[tuple[str, ...], set[int]] = defaultdict(set)
        for n, row in enumerate(rows):
            mine = (str(n),) if key is None else tuple(_same(row, name) for name in key)
            keys[row["_commit_version"], row["_sequence"]].add(mine)
            numbers[(row["_commit_version"], *mine)].add(row["_sequence"])
        assert all(len(found) == 1 for found in keys.values()), "a number is one key's"
        assert all(len(found) == 1 for found in numbers.values()), "a key has one number in a version"
        for version in {row["_commit_version"] for row in rows} if key is None else ():
            gone, come = (
                [
                    r["_sequence"]
                    for r in rows
                    if r["_commit_version"] == version and r["_change_type"] == kind
                ]
                for kind in ("'delete'", "'insert'")
            )
            assert max(gone) < min(come), "what goes comes first"


def _same(row: dict[str, Any], name: str) -> str:
    """The value in a form that is the same where Spark takes it for the same key."""
    value: str = row[name]
    return {"c": value.lower(), "d": value.replace("-0.0", "0.0")}.get(name, value)


@pytest.mark.parametrize("key", [("k",), None], ids=str)
def test_several_tasks_number_one_version(spark: SparkSession, key: Sequence[str] | None) -> None:
    rows = "(SELECT CAST(id AS int) AS k, 1 AS _v, 1 AS _w FROM range(4000))"
    settings = {"spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": "4"}
    before = {name: spark.conf.get(name) for name in settings}
    found = {}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        for parts in (1, 128):
            frame = spark.sql(consolidate(rows, ["k"], key, ["int"], parts))
            counts: Any = frame.groupBy(f.spark_partition_id().alias("task"))
            counts = counts.agg(f.count("_sequence").alias("count"), f.max("_sequence")).collect()
            found[parts] = sorted(row["count"] for row in counts)
    finally:
        for name, value in before.items():
            spark.conf.set(name, str(value))
    assert found[1] == [4000]
    assert len(found[128]) == 4, found
    assert found[128][0] > 500, found


def test_partial_changes_are_numbered_in_parts_likewise(spark: SparkSession) -> None:
    rows = f"(SELECT *, 'comp' AS _flag FROM ({ROWS}))"
    names = ["k", "s"]
    types = [COLUMNS[name] for name in names]
    whole, parts = (
        _rows(spark.sql(to_change_rows(rows, names, ("k",), None, types, number))) for number in (1, 16)
    )
    for each in (whole, parts):
        assert len({(row["_commit_version"], row["_sequence"]) for row in each}) == len(
            {(row["_commit_version"], row["k"]) for row in each}
        )
    shown = [[{n: v for n, v in row.items() if n != "_sequence"} for row in each] for each in (whole, parts)]
    assert sorted(map(str, shown[0])) == sorted(map(str, shown[1]))


@pytest.mark.parametrize(
    ("columns", "options", "kept"),
    [
        ("id, x", "COMPUTE COMPRESSED DELTA", -1),
        ("x", "COMPUTE TRANSACTIONAL DELTA", -1),
        ("x", "WITH (refresh = 'full')", -1),
        ("id, x", "WITH (refresh = 'full')", 1000),
        ("x", "COMPUTE COMPRESSED DELTA", 1000),
    ],
)
def test_numbers_of_a_query(
    tmp_path: Path, spark: SparkSession, columns: str, options: str, kept: int
) -> None:
    """Numbers are unique in their version, whoever has made them; those of what the driver keeps have no gaps. A query that reads this
    one has its rows, whose identities come from the numbers where it has no key."""
    limits = Limits(**{**EXECUTORS, "log_rows": kept, "start_rows": kept})
    with cq_engine.connect(tmp_path / "w", spark=spark, scheduler=False, limits=limits) as engine:
        engine.execute("CREATE TABLE t (id INT PRIMARY KEY, x INT)")
        engine.execute("INSERT INTO t SELECT id, id % 40 FROM range(1500)")
        compute, _, full = options.partition("WITH")
        query = f"SELECT {columns} FROM t WHERE x <> 3 AND id < 300"
        engine.execute(
            f"CREATE CONTINUOUS QUERY q {compute} ON DEMAND START FROM SNAPSHOT {full and 'WITH' + full} AS {query}"
        )
        engine.execute(
            "CREATE CONTINUOUS QUERY above ON DEMAND START FROM SNAPSHOT AS SELECT x, count(*) AS n FROM q GROUP BY x"
        )
        engine.execute("UPDATE t SET x = x + 1 WHERE id % 3 = 0")
        engine.execute("DELETE FROM t WHERE id % 5 = 0")
        engine.refresh("above")
        by: dict[int, list[Any]] = defaultdict(list)
        for delta in engine.deltas("q"):
            by[delta.commit_version].append(delta)
        assert len(by) == (2 if "COMPRESSED" in options else 3)
        for deltas in by.values():
            numbers = [each.sequence for each in deltas]
            assert len(set(numbers)) == len(numbers)
            assert (numbers == list(range(1, len(numbers) + 1))) == (kept > 0)
            if columns == "x":
                assert "ID" not in "".join(each.marker for each in deltas), "what goes comes first"
        for name, text in (("q", query), ("above", f"SELECT x, count(*) AS n FROM ({query}) GROUP BY x")):
            expected = sorted(map(tuple, engine.execute(text).fetchall()))
            assert sorted(map(tuple, engine.execute(f"SELECT * FROM {name}").fetchall())) == expected


def test_a_query_begins_again_with_its_result_and_the_difference_to_it(
    tmp_path: Path, spark: SparkSession
) -> None:
    """Both are files of one attempt."""
    with cq_engine.connect(
        tmp_path / "w", spark=spark, scheduler=False, limits=Limits(**EXECUTORS)
    ) as engine:
        engine.execute("CREATE TABLE t (id INT PRIMARY KEY, x INT)")
        engine.execute("INSERT INTO t SELECT id, id % 40 FROM range(200)")
        engine.execute(
            "CREATE CONTINUOUS QUERY q ON DEMAND START FROM SNAPSHOT AS SELECT id, x FROM t WHERE x > 1"
        )
        engine.execute(
            "CREATE CONTINUOUS QUERY above ON DEMAND START FROM SNAPSHOT AS SELECT x, count(*) AS n FROM q GROUP BY x"
        )
        engine.execute("UPDATE t SET x = x + 1 WHERE id % 3 = 0")
        engine.execute("ALTER CONTINUOUS QUERY q RESUME FROM SNAPSHOT")
        engine.refresh("above")
        expected = engine.execute("SELECT x, count(*) AS n FROM t WHERE x > 1 GROUP BY x").fetchall()
        assert sorted(map(tuple, engine.execute("SELECT * FROM above").fetchall())) == sorted(
            map(tuple, expected)
        )


@pytest.mark.parametrize(
    "numbers", ["id + 1", "id * 7 + 5", "if(id % 2 = 0, id % 1000 * 50 + id DIV 1000, id * id) + 1"]
)
def test_slices_of_a_large_version(spark: SparkSession, numbers: str) -> None:
    """Blocks of a log that is read have about as many rows as they may, wherever its numbers have gaps, and every row once."""
    rows = spark.sql(
        f"SELECT id, CAST({numbers} AS BIGINT) AS _sequence, CAST(if(id < 100, 1, 2) AS BIGINT) AS _commit_version FROM range(20000)"
    )
    counts = [rows.where(each).count() for each in _slices(rows, 1000)]
    assert sum(counts) == 20000
    assert max(counts) <= 1200
    assert len(counts) <= 25


def test_numbers_without_gaps() -> None:
    """What the driver keeps is numbered anew, update pairs together."""
    log = pa.table({"_commit_version": [3, 3, 3, 7, 7], "_sequence": [5, 5, 80, 2, 66]})
    assert _without_gaps(log).column("_sequence").to_pylist() == [1, 1, 2, 1, 2]
    assert _without_gaps(log.slice(0, 0)).num_rows == 0
