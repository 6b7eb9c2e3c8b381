"""Every comparison that the driver makes in Spark's place gives what Spark gives: types × operators × spellings × values.

What the driver does not decide is not compared; `DECIDED` says of which spellings it has to.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from functools import cache

import pytest
import sqlglot
from pyspark.sql import SparkSession
from sqlglot import exp

from cq_engine.algebra.dialect import CQSpark
from cq_engine.core.columns import Column
from cq_engine.core.types import arrow_type
from cq_engine.refresh.conditions import is_compared, possible
from cq_engine.spark.arrow_io import from_arrow, to_arrow

NINES = "9" * 38
VALUES = {
    "boolean": ["true", "false"],
    "tinyint": ["-128Y", "-1Y", "0Y", "1Y", "127Y"],
    "smallint": ["-32768S", "0S", "1S", "128S", "32767S"],
    "int": ["-2147483648", "-1", "0", "1", "128", "2147483647"],
    "bigint": ["-9223372036854775808", "-1L", "0L", "1L", "2147483648L", "9007199254740993L", "9223372036854775807L"],
    "float": ["0F", "-0.0F", "1F", "0.1F", "float('NaN')", "float('Infinity')"],
    "double": ["0D", "-0.0D", "1D", "0.1D", "double('NaN')", "12345678901234567000D"],
    "decimal(10,2)": ["0BD", "1BD", "-1.5BD", "1.01BD", "99999999.99BD", "-99999999.99BD"],
    "decimal(38,0)": ["0BD", "1BD", "-1BD", "12345678901234567000BD", "12345678901234567001BD", f"{NINES}BD", f"-{NINES}BD"],
    "decimal(38,18)": ["0BD", "1BD", "1.5BD", "0.000000000000000001BD", f"{'9' * 20}.{'9' * 18}BD"],
    "decimal(38,38)": ["0BD", f"0.{'9' * 38}BD", f"-0.{'9' * 38}BD", "0.5BD"],
    "string": ["''", "'a'", "'A'", "'a '", "'b'", "'1'", "' 1'", "'01'", "'ä'", "'\\u00e9'", "'e\\u0301'", "'\\U0001F600'",
               "'\\uffff'", "'a\\nb'", "'its'", "\"it's\"", "'2024-02-29'", "'%'"],
    "binary": ["X''", "X'61'", "X'00FF'"],
    "date": ["DATE '0001-01-01'", "DATE '1582-10-04'", "DATE '1582-10-15'", "DATE '2024-02-29'", "DATE '9999-12-31'"],
    "timestamp": ["TIMESTAMP '2024-02-29 00:00:00'", "TIMESTAMP '0001-01-02 00:00:00'"],
    "timestamp_ntz": ["TIMESTAMP_NTZ '2024-02-29 00:00:00'", "TIMESTAMP_NTZ '0001-01-01 00:00:00'"],
    "time(6)": ["TIME '00:00:00'", "TIME '23:59:59.999999'"],
    "interval year to month": ["INTERVAL '0-1' YEAR TO MONTH", "INTERVAL '1-0' YEAR TO MONTH"],
    "interval day to second": ["INTERVAL '1 00:00:00' DAY TO SECOND"],
}  # fmt: skip
NUMBERS = [
    "0", "1", "-1", "-0", "007", "127", "128", "-129", "2147483648", "9223372036854775807", "9223372036854775808",
    "-9223372036854775808", "12345678901234567000", NINES, f"-{NINES}", "1.", ".5", "0.5", "1.0", "1.50", "1.01", "1.010",
    "-1.5", "-.5", "-0.0", "99999999.99", "99999999.990", "0.000000000000000001", f"0.{'9' * 38}", f"-0.{'9' * 38}",
    f"{'9' * 20}.{'9' * 18}", f"-{'9' * 20}.{'9' * 18}", f"{'1' * 30}.5", "9007199254740993", "9.007199254740992E15",
    "1e0", "1E2", "1.2345678901234567E19", "-1e0", "1D", "1F", "0.1F", "0.1D", "1L", "1S", "1Y", "1.5BD", "1e-3BD",
    "- -1", "-(1)", "(1)", "+1", "1 + 0", "CAST(1 AS INT)", "true", "NULL",
]  # fmt: skip
TEXTS = [
    "''", "'a'", "'A'", "'a '", "'ä'", "'\\u00e9'", "'é'", "'e\\u0301'", "'\\U0001F600'", "'\\uffff'", "'a\\nb'", "'\\101'", "'\\x'",
    "'it''s'", "\"it's\"", '"a"', "'i' 'ts'", "r'a\\nb'", "'\\%'", "'1'", "' 1'", "'1.0'", "'a' COLLATE UTF8_LCASE", "X'61'",
    "lower('A')", "'0'",
]  # fmt: skip
TIMES = [
    "DATE '2024-02-29'", "DATE '2024-2-29'", "DATE '20240229'", "DATE '2024-W09-4'", "DATE '0001-01-01'", "DATE '1582-10-10'",
    "DATE '2023-02-29'", "DATE '+2024-02-29'", "DATE '2024-02-29T'", "DATE '2024'", "CAST('2024-02-29' AS DATE)",
    "CAST(' 2024-02-29 ' AS DATE)", "TRY_CAST('2024-02-29' AS DATE)", "TRY_CAST('2024-02-30' AS DATE)", "date('9999-12-31')",
    "'2024-02-29'", "TIMESTAMP '2024-02-29 00:00:00'", "TIMESTAMP_NTZ '2024-02-29 00:00:00'", "TIME '00:00:00'",
    "INTERVAL '1' MONTH", "INTERVAL '1' DAY", "DATE '2024-02-28' + 1",
]  # fmt: skip
SPELLINGS = [*NUMBERS, *TEXTS, *TIMES]
OPERATORS = ("=", "<>", "<", "<=", ">", ">=")
DECIDED = {
    "tinyint": {"0", "-1", "007", "128", "9223372036854775807"},
    "int": {"0", "1", "2147483648", "-0", "-129"},
    "bigint": {"9007199254740993", "9223372036854775807"},
    "decimal(10,2)": {"1", "1.01", "1.", ".5", "-1.5", "1.010", "-0.0"},
    "decimal(38,0)": {"0", "12345678901234567000", NINES, f"-{NINES}"},
    "decimal(38,18)": {"0.000000000000000001", f"{'9' * 20}.{'9' * 18}", f"-{'9' * 20}.{'9' * 18}"},
    "string": {"''", "'a'", "'A'", "'a '", "'ä'", '"it\'s"', "'1'"},
    "date": {"DATE '2024-02-29'", "CAST('2024-02-29' AS DATE)", "DATE '0001-01-01'"},
}


def conditions(name: str) -> Iterable[str]:
    for spelling in SPELLINGS:
        for operator in OPERATORS:
            yield f"{name} {operator} {spelling}"
            yield f"{spelling} {operator} {name}"
        yield f"{name} <=> {spelling}"
        yield f"{name} IN ({spelling})"
    for pair in itertools.combinations(SPELLINGS, 2):
        yield f"{name} IN ({', '.join(pair)})"


@cache
def parsed(condition: str) -> exp.Expr | None:
    """The condition as the planner has it; None where it is no SQL."""
    try:
        where = sqlglot.parse_one(f"SELECT * FROM t WHERE {condition}", dialect=CQSpark).find(exp.Where)
    except sqlglot.ParseError:
        return None
    return where.this if where is not None else None


@pytest.mark.parametrize("kind", VALUES)
def test_comparisons_are_those_of_spark(spark: SparkSession, kind: str) -> None:
    listed = [*VALUES[kind], "NULL"]
    rows = ", ".join(f"({n}, CAST({value} AS {kind}))" for n, value in enumerate(listed))
    frame = spark.sql(f"SELECT c FROM VALUES {rows} AS t(n, c) ORDER BY n")
    table = to_arrow(frame)
    assert table.schema.field("c").type == arrow_type(kind)
    told = {}
    for condition in conditions("c"):
        tree = parsed(condition)
        mask = None if tree is None else possible(tree, {"c": table.column("c")} if is_compared(kind) else {})
        if mask is not None:
            told[condition] = mask.to_pylist()
    missing = {f"c = {spelling}" for spelling in DECIDED.get(kind, ())} - told.keys()
    assert not missing, "the driver has to decide these"
    same = from_arrow(spark, table, [Column("c", kind)]).coalesce(1)
    texts = list(told)
    for start in range(0, len(texts), 250):
        part = texts[start : start + 250]
        found = same.selectExpr(*(f"({text}) AS r{n}" for n, text in enumerate(part))).toArrow()
        for n, text in enumerate(part):
            assert found.column(n).to_pylist() == told[text], text
