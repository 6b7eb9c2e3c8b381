"""Values: literals as Spark evaluates them, every type through commits and images, unusual identities."""

from __future__ import annotations

import pyarrow as pa
import pytest
import sqlglot
from pyspark.sql import SparkSession
from sqlglot import exp

from cq_engine.core.columns import Column
from cq_engine.core.limits import DEFAULT_LIMITS, Limits
from cq_engine.spark.literals import literal_rows
from cq_engine.storage.rows import conform
from cq_engine.transactions.dml import _by_position
from tests.transactions.harness import Small

LITERALS = {
    "int": ["1", "-7", "2147483647", "NULL", "3.0", "CAST('5' AS INT)", "3000000000", "'1'", "1.5"],
    "bigint": ["9223372036854775807", "-9223372036854775807", "1", "2L", "'x'"],
    "decimal(10,2)": ["1.005", "-0.125", "12345678.99", "3", "CAST('2.345' AS DECIMAL(9,4))", "123456789.5"],
    "double": ["1.5", "1e3", "-2.5D", "7", "CAST('0.1' AS DOUBLE)", "0.1", "CAST(-3 AS DOUBLE)", "-0.0D"],
    "string": ["'a'", "'it''s'", '"q"', "12", "DATE '2020-01-01'", "1.50", "true"],
    "date": [
        "DATE '2020-02-29'",
        "CAST('1999-12-31' AS DATE)",
        "'2020-01-01'",
        "TIMESTAMP '2020-01-01 10:00:00'",
    ],
    "timestamp": [
        "TIMESTAMP '2020-07-01 12:00:00'",
        "TIMESTAMP '2020-01-01 12:00:00.123456'",
        "TIMESTAMP '2020-01-01 00:00:00+05:30'",
        "TIMESTAMP '2020-03-29 02:30:00'",
        "TIMESTAMP '2020-10-25 02:30:00'",
        "TIMESTAMP '2020-07-01'",
        "DATE '2020-07-01'",
        "CAST('2020-07-01 01:02:03' AS TIMESTAMP)",
    ],
    "timestamp_ntz": [
        "TIMESTAMP_NTZ '2020-07-01 12:00:00'",
        "DATE '2020-07-01'",
        "TIMESTAMP '2020-07-01 00:00:00'",
    ],
    "boolean": ["true", "false", "1"],
}


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
@pytest.mark.parametrize("kind", list(LITERALS))
def test_literals_are_what_spark_makes_of_them(
    small: Small, spark: SparkSession, kind: str, zone: str
) -> None:
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        table = small.create(f"CREATE TABLE l (c {kind})")
        for text in LITERALS[kind]:
            values = sqlglot.parse_one(f"VALUES ({text})", dialect="spark")
            assert isinstance(values, exp.Values)
            mine = literal_rows(values, table.columns, lambda: zone)
            if mine is None:
                continue
            frame = _by_position(table, spark.sql(f"VALUES ({text})"), [0], False)
            theirs = conform(frame.toArrow(), table.columns)
            assert conform(mine, table.columns).to_pylist() == theirs.to_pylist(), text
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_some_literals_need_no_spark() -> None:
    values = sqlglot.parse_one(
        "VALUES (1, -2.5, 'a', NULL, DATE '2020-01-01'), (2, 3, 'b', 1.5, NULL)", dialect="spark"
    )
    columns = [
        Column(name, kind) for name, kind in zip("abcde", ["int", "decimal(9,3)", "string", "double", "date"])
    ]
    assert isinstance(values, exp.Values)
    found = literal_rows(values, columns, lambda: pytest.fail("no time zone is needed"))
    assert found is not None
    assert found.num_rows == 2


TYPES = "k INT PRIMARY KEY, a ARRAY<INT>, m MAP<STRING, INT>, s STRUCT<x: INT, y: STRING>, b BINARY, t TIMESTAMP, d DECIMAL(38,10)"
ROW = "array({0}, NULL), map('p', {0}), named_struct('x', {0}, 'y', 'z'), X'0{0}', TIMESTAMP '2020-01-01 00:00:0{0}', {0}.5BD"


@pytest.mark.parametrize(
    "limits",
    [
        DEFAULT_LIMITS,
        Limits(small_rows=-1, inline_bytes=0),
        Limits(small_rows=-1, inline_bytes=0, pending_rows=0),
    ],
    ids=["memory", "spark", "bulk"],
)
def test_every_type(small: Small) -> None:
    small.create(f"CREATE TABLE n ({TYPES})")
    for k in (1, 2, 3):
        small.run(f"INSERT INTO n SELECT {k}, " + ROW.format(k))
    small.run(
        "UPDATE n SET m = map('q', 9), s = named_struct('x', 7, 'y', NULL) WHERE k = 2",
        "DELETE FROM n WHERE k = 3",
    )
    assert small.rows("SELECT k, a[0], m['q'], m['p'], s.x, hex(b), second(t), d = k + 0.5BD FROM n") == [
        (1, 1, None, 1, 1, "01", 1, True),
        (2, 2, 9, None, 7, "02", 2, True),
    ]
    assert small.run("UPDATE n SET a = a, m = m, s = s").commit_version is None


@pytest.mark.parametrize(
    "limits", [DEFAULT_LIMITS, Limits(small_rows=-1, look_up_rows=-1)], ids=["memory", "spark"]
)
def test_identity_of_floats(small: Small) -> None:
    small.create("CREATE TABLE f (x DOUBLE PRIMARY KEY, v INT)")
    small.run("INSERT INTO f SELECT double('NaN'), 1 UNION ALL SELECT 0.0D, 2 UNION ALL SELECT 1.5D, 3")
    for again in ("double('NaN')", "-0.0D"):
        with pytest.raises(Exception, match="PRIMARY KEY"):
            small.run(f"INSERT INTO f SELECT {again}, 9")
    small.run("UPDATE f SET v = v + 10", "DELETE FROM f WHERE x = 1.5D")
    assert small.rows("SELECT v FROM f") == [(11,), (12,)]


def test_an_empty_chunk_ends_nothing(small: Small) -> None:
    rows = pa.table({"a": pa.array([1, 2], pa.int32())})
    chunks = pa.concat_tables([rows, rows.slice(0, 0), rows])
    assert small.services.reader.frame(chunks, [Column("a", "int")]).count() == 4
