"""Keys are derived only from functions that cannot tell equal values apart, and from literals that stand for one value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import cq_engine
from cq_engine import Engine
from cq_engine.algebra.analysis.equality import Equality
from cq_engine.algebra.dialect import parse_expression


@pytest.fixture
def engine(spark: SparkSession, warehouse: Path) -> Iterator[Engine]:
    with cq_engine.connect(warehouse, spark=spark, scheduler=False) as opened:
        yield opened


QUERIES = (
    ("SELECT f, CAST(f AS STRING) AS s, count(*) AS n FROM t GROUP BY f, CAST(f AS STRING)", ("f", "s")),
    ("SELECT w, ascii(w) AS s, count(*) AS n FROM t GROUP BY w, ascii(w)", ("w", "s")),
    ("SELECT a, CAST(a AS STRING) AS s, count(*) AS n FROM t GROUP BY a, CAST(a AS STRING)", ("a", "s")),
    ("SELECT d, CAST(d AS STRING) AS s, count(*) AS n FROM t GROUP BY d, CAST(d AS STRING)", ("d",)),
    ("SELECT id, k FROM t WHERE k = 9.007199254740992E15", ("id",)),
)


def test_a_key_of_equal_values(engine: Engine) -> None:
    """The second row is equal to the first by every column but the id, and prints differently."""
    engine.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, k BIGINT, f DOUBLE, w STRING COLLATE UTF8_LCASE, a ARRAY<DOUBLE>,"
        " d DECIMAL(5, 2))"
    )
    for number, (query, key) in enumerate(QUERIES):
        engine.execute(f"CREATE CONTINUOUS QUERY q{number} AS {query}")
        assert engine.services.catalog.state.queries[f"q{number}"].key == key
    engine.execute("INSERT INTO t VALUES (1, 9007199254740992, 0.0D, 'a', array(0.0D), 1.5)")
    engine.drain()
    engine.execute("INSERT INTO t VALUES (2, 9007199254740993, -0.0D, 'A', array(-0.0D), 1.50)")
    engine.drain()
    for number, (query, _) in enumerate(QUERIES):
        result = engine.execute(query)
        names = ", ".join(result.columns)
        rows: Counter[str] = Counter()
        for *row, kind in engine.execute(
            f"SELECT {names}, _change_type FROM q{number} CHANGES FROM VERSION 0 TO VERSION 100"
        ).fetchall():
            rows[str(row)] += -1 if kind in ("delete", "update_preimage") else 1
        wanted = Counter(str(list(row)) for row in result.fetchall())
        assert +rows == wanted, query
        assert not -rows


VALUES = {
    "tinyint": ("1", "-1", "127"),
    "bigint": ("9007199254740992", "9007199254740993", "-9007199254740993", "5", "9223372036854775807"),
    "decimal(38,0)": ("9007199254740992", "9007199254740993", "12345678901234567000", "12345678901234567001", "5"),
    "decimal(20,10)": ("5.0000000001", "5.0000000002", "5", "1234567890.0000000001", "1234567890"),
    "float": ("0.1", "0.5", "16777216", "5", "'NaN'", "0", "-0.0"),
    "double": ("0.1", "9007199254740992", "9007199254740994", "5", "'NaN'", "0", "'-0.0'"),
    "string": ("'5'", "'05'", "' 5'", "'5.0'", "'a'", "'A'", "'2020-01-01'"),
    "string collate UTF8_LCASE": ("'a'", "'A'"),
    "date": ("'2020-01-01'", "'2020-01-02'"),
    "timestamp": ("'2020-01-01 00:00:00'", "'2020-01-01 00:00:00.000001'"),
    "boolean": ("true", "false"),
}  # fmt: skip
LITERALS = (
    "5", "5.0", "005", "9007199254740992", "9007199254740993", "9.007199254740992E15", "5e0", "0", "0.1", "0.0",
    "12345678901234567000", "1.2345678901234567E19", "5.0000000001", "1234567890.0000000001", "'5'", "'05'", "'a'",
    "'2020-01-01'", "'2020-01-01 00:00:00'", "12345678901234567890123456789012345678", "0.00000000000000000000000001",
)  # fmt: skip


def test_a_literal_fixes_one_value(spark: SparkSession) -> None:
    """Where a literal is said to fix a column, Spark finds it equal to values that are equal to each other."""
    said = refused = 0
    for kind, values in VALUES.items():
        rows = ", ".join(f"(CAST({value} AS {kind}))" for value in values)
        for literal in LITERALS:
            fixes = Equality({"c": kind}).fixes("c", parse_expression(literal))
            said, refused = said + fixes, refused + (not fixes)
            if not fixes:
                continue
            query = f"SELECT count(DISTINCT c) FROM VALUES {rows} AS t(c) WHERE c = {literal}"
            try:
                (count,) = spark.sql(query).first() or (0,)
            except PySparkException:
                continue  # no date, or out of range
            assert count <= 1, (kind, literal)
    assert said > 40
    assert refused > 40


@pytest.mark.parametrize(
    ("kind", "literal"),
    [
        ("bigint", "9.007199254740992E15"),
        ("bigint", "5e0"),
        ("decimal(38,0)", "1.2345678901234567E19"),
        ("decimal(38,0)", "1.5"),
        ("decimal(38,0)", "'5'"),
        ("string", "5"),
        ("string collate UTF8_LCASE", "'a'"),
    ],
)
def test_a_comparison_with_a_conversion_fixes_nothing(kind: str, literal: str) -> None:
    assert not Equality({"c": kind}).fixes("c", parse_expression(literal))


def test_types_without_identity() -> None:
    kinds = {
        "int": True,
        "string": True,
        "decimal(5,2)": True,
        "array<struct<a:int>>": True,
        "timestamp": True,
    }
    kinds |= {
        "double": False,
        "array<float>": False,
        "string collate UTF8_LCASE": False,
        "struct<a:double>": False,
    }
    for kind, expected in kinds.items():
        assert Equality({"c": kind}).is_identity("c") is expected
    assert not Equality({}).is_identity("c")
