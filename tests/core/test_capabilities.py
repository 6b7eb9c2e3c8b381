"""What the table of capabilities says of a type, for all pairs of its special values, against Spark."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from cq_engine.catalog import tables
from cq_engine.catalog.storage.local import LocalStore
from cq_engine.core.capabilities import Use, can, key_problem
from cq_engine.core.columns import Column
from cq_engine.core.types import arrow_type, canonical_type, columns_of, spark_schema
from cq_engine.planner.comparable import comparable
from cq_engine.spark.arrow_io import from_arrow, to_arrow
from cq_engine.storage.file_look_ups import prune_files
from cq_engine.storage.identities import Identities
from cq_engine.storage.rows import conform, identity_keys, row_values

TEXTS = ["''", "' '", "'a'", "'A'", "'a '", "'ä'", "'Ä'", "'é'", "'e\\u0301'", "'ß'", "'ẞ'", "'ς'", "'σ'", "'Σ'", "'İ'", "'i\\u0307'",
         "'ı'", "'I'", "'\\uffff'", "'\\U0001F600'", "'1'", "'\\u0000'"]  # fmt: skip
FLOATS = [
    "0.0",
    "-0.0",
    "'NaN'",
    "'Infinity'",
    "'-Infinity'",
    "1.5",
    "1e-45",
    "'3.4028234663852886e38'",
    "NULL",
]
VALUES: dict[str, Sequence[str]] = {
    "boolean": ["true", "false"],
    "tinyint": ["-128", "0", "127"],
    "smallint": ["-32768", "0", "32767"],
    "int": ["-2147483648", "0", "1", "2147483647"],
    "bigint": ["-9223372036854775808", "-1", "0", "9007199254740992", "9007199254740993", "9223372036854775807"],
    "float": FLOATS,
    "double": [*FLOATS, "'5e-324'", "'1.7976931348623157e308'"],
    "decimal(10,2)": ["0", "-0.00BD", "1.50BD", "1.5BD", "-99999999.99BD"],
    "decimal(18,18)": ["0", "0.000000000000000001BD", "-0.999999999999999999BD"],
    "decimal(38,0)": ["0", "1", f"{'9' * 38}BD", f"-{'9' * 38}BD", f"{'9' * 37}8BD"],
    "decimal(38,38)": ["0", f"0.{'9' * 38}BD", f"-0.{'0' * 37}1BD"],
    "string": TEXTS,
    "string collate UTF8_LCASE": TEXTS,
    "string collate UTF8_BINARY_RTRIM": TEXTS,
    "string collate UTF8_LCASE_RTRIM": TEXTS,
    "string collate UNICODE": TEXTS,
    "string collate UNICODE_CI": TEXTS,
    "binary": ["X''", "X'00'", "X'61'", "X'0061'", "X'FF'"],
    "date": ["DATE '0001-01-01'", "DATE '1582-10-04'", "DATE '1582-10-15'", "DATE '1970-01-01'", "DATE '9999-12-31'"],
    "time(6)": ["TIME '00:00:00'", "TIME '00:00:00.000001'", "TIME '23:59:59.999999'"],
    "timestamp": ["TIMESTAMP '0001-01-02 00:00:00'", "TIMESTAMP '1969-12-31 23:59:59.999999'", "TIMESTAMP '2024-11-03 01:30:00'",
                  "TIMESTAMP '9999-12-30 23:59:59.999999'"],
    "timestamp_ntz": ["TIMESTAMP_NTZ '0001-01-01 00:00:00'", "TIMESTAMP_NTZ '1969-12-31 23:59:59.999999'",
                      "TIMESTAMP_NTZ '9999-12-31 23:59:59.999999'"],
    "interval year to month": ["INTERVAL '-1-0' YEAR TO MONTH", "INTERVAL '0-0' YEAR TO MONTH", "INTERVAL '1-0' YEAR TO MONTH",
                               "INTERVAL '12' MONTH"],
    "interval day to second": ["INTERVAL '-1 00:00:00' DAY TO SECOND", "INTERVAL '1 00:00:00' DAY TO SECOND", "INTERVAL '24' HOUR",
                               "INTERVAL '0 00:00:00.000001' DAY TO SECOND"],
    "array<double>": ["array()", "array(0.0D)", "array(-0.0D)", "array(double('NaN'))", "array(NULL)", "array(1D, NULL)"],
    "array<string>": ["array('a')", "array('A')", "array('')", "array()"],
    "struct<a:string,b:string collate UTF8_LCASE>": ["named_struct('a', 'x', 'b', 'x')", "named_struct('a', 'X', 'b', 'x')",
        "named_struct('a', 'x', 'b', 'X')", "named_struct('a', NULL, 'b', 'X')"],
    "struct<a:string collate UTF8_BINARY_RTRIM,b:array<string collate UTF8_LCASE>>": ["named_struct('a', 'x ', 'b', array('x'))",
        "named_struct('a', 'x', 'b', array('X'))", "named_struct('a', 'x', 'b', array('X '))", "named_struct('a', 'X', 'b', array('x'))"],
    "struct<f:double,i:interval month>": ["named_struct('f', -0.0D, 'i', INTERVAL '1' MONTH)", "named_struct('f', 0.0D, 'i', INTERVAL '1' MONTH)",
        "named_struct('f', double('NaN'), 'i', NULL)"],
    "map<string,double>": ["map()", "map('a', 0.0D, 'b', -0.0D)", "map('b', 0.0D, 'a', 0.0D)", "map('a', double('NaN'))", "map('A', NULL)"],
    "map<string collate UTF8_LCASE,int>": ["map('a', 1)", "map('A', 1)", "map('b', 1, 'a', 2)", "map('a', 2, 'b', 1)"],
    "variant": ["parse_json('1')", "parse_json('1.0')", "parse_json('\"1\"')", "parse_json('null')", "parse_json('{\"a\": 1, \"b\": [1]}')",
                "parse_json('{\"b\": [1], \"a\": 1}')", "parse_json('true')"],
    "array<variant>": ["array(parse_json('1'))", "array(parse_json('null'))", "array(NULL)"],
    "void": [],
}  # fmt: skip


@pytest.fixture(params=VALUES)
def kind(request: pytest.FixtureRequest) -> str:
    return canonical_type(str(request.param))


@pytest.fixture
def rows(spark: SparkSession, kind: str) -> DataFrame:
    given = next(values for name, values in VALUES.items() if canonical_type(name) == kind)
    listed = ", ".join(f"({n}, CAST({value} AS {kind}))" for n, value in enumerate([*given, "NULL"]))
    return spark.sql(f"SELECT n, c FROM VALUES {listed} AS t(n, c)").coalesce(1)


def arrow(rows: DataFrame) -> pa.Table:
    kind = columns_of(rows.schema)[1]
    return conform(to_arrow(rows).sort_by("n").select(["c"]), [kind])


def compare(rows: DataFrame, operator: str) -> set[tuple[int, int]] | None:
    """The pairs of values for which the comparison is true; None where Spark does not know it."""
    renamed = rows.toDF("m", "d")
    try:
        found = rows.crossJoin(renamed).where(f"c {operator} d").select("n", "m").toArrow()
    except PySparkException:
        return None
    return set(zip(found["n"].to_pylist(), found["m"].to_pylist()))


def pairs(keys: Sequence[Hashable]) -> set[tuple[int, int]]:
    return {(n, m) for n, a in enumerate(keys) for m, b in enumerate(keys) if a == b}


def test_equality_and_order(rows: DataFrame, kind: str) -> None:
    column = arrow(rows).column("c")
    equal, less, null = compare(rows, "="), compare(rows, "<"), len(column) - 1
    if can(kind, Use.EQUAL):
        assert column.type == arrow_type(kind)
        codes = pc.index_in(column, value_set=pc.unique(column)).to_pylist()
        assert {p for p in pairs(codes) if null not in p} == equal
        found = Identities(pa.table({"c": column}), [Column("c", kind)])
        assert pairs(found.numbers.tolist()) == pairs(codes)
    if can(kind, Use.ORDERED):
        physical = pa.types.is_temporal(column.type) and not pa.types.is_date(column.type)
        values = (column.cast(pa.int64()) if physical else column).to_pylist()[:-1]
        assert {(n, m) for n, a in enumerate(values) for m, b in enumerate(values) if a < b} == less


def test_equal_values_print_alike(rows: DataFrame, kind: str) -> None:
    if can(kind, Use.IDENTICAL):
        texts = rows.sort("n").selectExpr("to_json(struct(c)) AS t").toArrow().column("t").to_pylist()
        assert compare(rows, "=") <= pairs(texts)


def test_keys(rows: DataFrame, kind: str) -> None:
    same = compare(rows, "<=>")
    if not can(kind, Use.KEY):
        assert key_problem(kind)
        return
    assert pairs(identity_keys(arrow(rows), [Column("c", kind)])) == same


def test_groups_are_row_images(rows: DataFrame, kind: str) -> None:
    form = comparable("c", kind)
    assert (form == "c") == can(kind, Use.GROUPED)
    found = (
        rows.selectExpr("n", f"{form} AS g").groupBy("g").agg({"n": "collect_list"}).select("collect_list(n)")
    )
    groups = found.toArrow().column(0).to_pylist()
    assert {(n, m) for group in groups for n in group for m in group} == pairs(row_values(arrow(rows)))


def test_statistics(rows: DataFrame, kind: str, tmp_path: Path) -> None:
    column, equal = arrow(rows).column("c"), compare(rows, "=") or set()
    store = LocalStore(str(tmp_path))
    files = [
        tables.write_parquet(pa.table({"c": column.slice(n, 1)}), f"{n}.parquet", store, ["c"])
        for n in range(len(column) if pa.types.is_null(column.type) is False else 0)
    ]
    if not can(kind, Use.STATISTICS):
        assert can(kind, Use.EQUAL) is False or not any(file.stats for file in files), (
            "bounds that nobody uses"
        )
        return
    assert all(file.stats for file in files[:-1])
    for m in range(len(column) - 1):
        left = prune_files(files, {"c": column.slice(m, 1).combine_chunks()})
        assert {n for n, file in enumerate(files) if file in left} >= {n for n, other in equal if other == m}


def test_exchange(spark: SparkSession, rows: DataFrame, kind: str, tmp_path: Path) -> None:
    table, columns = arrow(rows), [Column("c", kind)]
    given: list[Any] = row_values(table)
    assert row_values(to_arrow(from_arrow(spark, table, columns).coalesce(1))) == given
    if can(kind, Use.EXCHANGED):
        assert row_values(spark.createDataFrame(table, spark_schema(columns)).coalesce(1).toArrow()) == given
    if can(kind, Use.PLAN_INPUT):
        path = tmp_path / "input.parquet"
        pq.write_table(
            table, path, compression="none", use_dictionary=False, write_statistics=False, store_schema=False
        )
        read = spark.read.schema(spark_schema(columns)).parquet(str(path)).coalesce(1)
        assert row_values(to_arrow(read)) == given
