"""Spark's format `cq` in Spark: batches and streams of a query's deltas, as any user of Spark asks for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import cq_engine
from cq_engine import Engine

ADDED = {"insert": 1, "update_postimage": 1, "delete": -1, "update_preimage": -1}


@pytest.fixture
def engine(warehouse: Path, spark: SparkSession) -> Iterator[Engine]:
    with cq_engine.connect(warehouse, spark=spark, scheduler=False) as opened:
        opened.execute("CREATE TABLE t (id INT, grp STRING, amt INT, PRIMARY KEY (id))")
        opened.execute("INSERT INTO t VALUES (1, 'a', 5), (2, 'b', 7)")
        yield opened


def loaded(engine: Engine, query: str = "q", **options: Any) -> DataFrame:
    reader = engine.spark.read.format("cq").option("warehouse", engine.catalog.warehouse)
    return reader.options(query=query, **options).load()


def history(engine: Engine, *queries: str) -> None:
    """Some commits, each of which is refreshed, or two together."""
    number = engine.catalog.newest_version
    for statement in (
        f"INSERT INTO t VALUES ({number * 10}, 'c', 1), ({number * 10 + 1}, 'a', 2)",
        f"UPDATE t SET amt = amt + {number} WHERE grp = 'a'",
        "UPDATE t SET grp = 'z' WHERE id = 2",
        f"DELETE FROM t WHERE id = {number * 10}",
    ):
        engine.execute(statement)
        if "UPDATE" not in statement:
            for query in queries:
                engine.refresh(query)


class Stream:
    """A stream into Parquet files, with a checkpoint."""

    def __init__(self, engine: Engine, place: Path, query: str, **options: Any) -> None:
        self.engine = engine
        self.place = place / query
        self.options = {"query": query, "warehouse": engine.catalog.warehouse, **options}

    def run(self) -> None:
        """Takes what there is, and ends. Spark gives a Python process ten seconds to start, which is little on a busy machine;
        a stream that ends so goes on as any other."""
        for last in (False, False, False, True):
            try:
                self._run()
                break
            except StreamingQueryException as error:
                if last or "connect back" not in str(error):
                    raise

    def _run(self) -> None:
        rows = self.engine.spark.readStream.format("cq").options(**self.options).load()
        sink = rows.writeStream.format("parquet").option("checkpointLocation", str(self.place / "checkpoint"))
        sink.trigger(availableNow=True).start(str(self.place / "rows")).awaitTermination()

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.engine.spark.read.parquet(str(self.place / "rows")).collect()]


def added_up(rows: list[tuple[Any, ...]]) -> Counter[tuple[Any, ...]]:
    found: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        found[row[:-3]] += ADDED[row[-3]]
    assert all(count >= 0 for count in found.values()), "more is taken away than was given"
    return +found


def test_streams_add_up_to_the_result(engine: Engine, tmp_path: Path) -> None:
    """In both modes, of multisets and members of groups: however often a stream ends and goes on, with commits and with
    rows that move to files in between."""
    for name, text in {
        "q": "COMPUTE TRANSACTIONAL DELTA ON DEMAND START FROM SNAPSHOT AS SELECT grp, sum(amt) AS s FROM t GROUP BY grp",
        "net": "COMPUTE COMPRESSED DELTA ON DEMAND START FROM SNAPSHOT AS SELECT grp, count(*) AS n FROM t GROUP BY grp",
        "bag": "ON DEMAND START FROM SNAPSHOT AS SELECT grp, amt FROM t WHERE amt > 1",
        "member": "ON DEMAND START FROM SNAPSHOT WITH (query_group = 'on') AS SELECT id, amt FROM t WHERE grp = 'a'",
        "other": "ON DEMAND START FROM SNAPSHOT WITH (query_group = 'on') AS SELECT id, amt FROM t WHERE grp = 'c'",
    }.items():
        engine.execute(f"CREATE CONTINUOUS QUERY {name} {text}")
    streams = {
        "q": Stream(engine, tmp_path, "q", maxVersionsPerTrigger=3),
        "net": Stream(engine, tmp_path, "net"),
    }
    for step in range(2):
        history(engine, "q", "net", "bag", "member")
        if step == 1:
            engine.publish()
        for name, stream in streams.items():
            stream.run()
            wanted = Counter(engine.execute(f"SELECT * FROM {name}").fetchall())
            assert added_up(stream.rows) == wanted, name
    engine.execute("INSERT INTO t VALUES (7, 'a', 9)")  # not in a file yet
    for name in ("q", "net", "bag", "member"):
        engine.refresh(name)
        rows = engine.execute(f"SELECT * FROM {name} CHANGES FROM VERSION 0").to_df().collect()
        changes = sorted(map(tuple, rows), key=repr)
        assert sorted(map(tuple, loaded(engine, name, rowsPerPartition=2).collect()), key=repr) == changes
        if name in streams:
            streams[name].run()
            assert sorted(streams[name].rows, key=repr) == changes


TYPES = {
    "a ARRAY<INT>": "array(7, NULL)",
    "m MAP<STRING, INT>": "map('p', 7)",
    "s STRUCT<x: INT, y: STRING>": "named_struct('x', 7, 'y', NULL)",
    "b BINARY": "X'07'",
    "t TIMESTAMP": "TIMESTAMP '1582-01-01 00:00:07.123456'",
    "n TIMESTAMP_NTZ": "TIMESTAMP_NTZ '2020-07-01 12:00:00'",
    "d DECIMAL(38,10)": "1234567890.5BD",
    "day DATE": "DATE '2020-02-29'",
    "tm TIME": "TIME '12:13:14.5'",
    "bo BOOLEAN": "true",
    "ti TINYINT": "1Y",
    "sm SMALLINT": "2S",
    "bi BIGINT": "9223372036854775807L",
    "f FLOAT": "1.5F",
    "do DOUBLE": "double('NaN')",
    "st STRING": "'žluť'",
    "co STRING COLLATE UTF8_LCASE": "'Abc'",
    "v VARIANT": """parse_json('{"a": [1, null]}')""",
    "nested ARRAY<STRUCT<v: VARIANT, m: MAP<INT, VARIANT>>>": "array(named_struct('v', parse_json('[1]'), 'm', map(1, parse_json('2'))))",
    "dt INTERVAL DAY TO SECOND": "INTERVAL '1 02:03:04' DAY TO SECOND",
}


def test_every_type(engine: Engine) -> None:
    """From the catalog and from files; year-month intervals, which PySpark's sources do not have, as months."""
    engine.execute(f"CREATE TABLE n (k INT, {', '.join(TYPES)}, ym INTERVAL YEAR TO MONTH, PRIMARY KEY (k))")
    engine.execute("CREATE CONTINUOUS QUERY q ON DEMAND START FROM SNAPSHOT AS SELECT * FROM n")
    engine.execute(f"INSERT INTO n SELECT 1, {', '.join(TYPES.values())}, INTERVAL '1-2' YEAR TO MONTH")
    engine.execute("INSERT INTO n (k) VALUES (2)")
    engine.refresh("q")
    engine.execute("UPDATE n SET ti = 9 WHERE k = 1")
    engine.refresh("q")
    for _ in ("inline", "files"):
        rows = loaded(engine)
        assert rows.schema["ym"].dataType.simpleString() == "int"
        assert [str(row["ym"]) for row in rows.where("k = 1").select("ym").collect()] == ["14"] * 3
        wanted = engine.execute("SELECT * FROM q CHANGES FROM VERSION 1").to_df().drop("ym")
        found = rows.drop("ym")
        assert found.schema == wanted.schema
        assert sorted(map(repr, found.collect())) == sorted(map(repr, wanted.collect()))
        engine.publish()


def test_what_is_wrong_reaches_the_user(engine: Engine, tmp_path: Path) -> None:
    engine.execute("CREATE CONTINUOUS QUERY q ON DEMAND START FROM SNAPSHOT AS SELECT id, amt FROM t")
    with pytest.raises(AnalysisException, match="there is no continuous query p"):
        loaded(engine, "p")
    with pytest.raises(PySparkException, match=r"there is no version 99 yet[^$]*newest commit version is 1"):
        loaded(engine, startingVersion=99).collect()
    stream = Stream(engine, tmp_path, "q")
    stream.run()
    engine.execute("DROP CONTINUOUS QUERY q")
    engine.execute("CREATE CONTINUOUS QUERY q ON DEMAND START FROM SNAPSHOT AS SELECT id, amt FROM t")
    with pytest.raises(StreamingQueryException, match=r"q was replaced by another one[^$]*new checkpoint"):
        stream.run()
    assert len(stream.rows) == 2
