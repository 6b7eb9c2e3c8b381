"""What Arrow gives for an expression is what Spark gives, or nothing: of each kind of expression, over special values."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from itertools import product

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from cq_engine.algebra.dialect import parse_expression
from cq_engine.core.columns import Column
from cq_engine.core.types import arrow_schema, arrow_type
from cq_engine.evaluation.expressions import evaluate
from cq_engine.evaluation.vectors import Rows, TooLargeError, UnsupportedError

COLUMNS = (
    Column("t", "tinyint"),
    Column("i", "int"),
    Column("j", "int"),
    Column("n", "bigint"),
    Column("p", "decimal(10,2)"),
    Column("q", "decimal(38,0)"),
    Column("d", "double"),
    Column("e", "double"),
    Column("s", "string"),
    Column("u", "string"),
    Column("b", "boolean"),
    Column("c", "boolean"),
    Column("f", "date"),
)
VALUES: dict[str, Sequence[object]] = {
    "t": [None, 0, -128, 127],
    "i": [None, 0, 1, -1, 7, 2**31 - 1, -(2**31)],
    "j": [None, 0, 1, 3, -2],
    "n": [None, 0, 1, -5, 2**53 + 1, 2**63 - 1, -(2**63)],
    "p": [None, Decimal("0.00"), Decimal("1.25"), Decimal("-99999999.99")],
    "q": [None, Decimal(0), Decimal(3), Decimal(2**62)],
    "d": [None, 0.0, -0.0, 1.5, -2.5, 1e300],
    "e": [None, 1.0, 3.0, -0.5],
    "s": [None, "", "a", "A", "ä", "a ", "Z"],
    "u": [None, "a", "b"],
    "b": [None, True, False],
    "c": [None, True, False],
    "f": [None, dt.date(1500, 2, 28), dt.date(2024, 2, 29), dt.date(1970, 1, 1)],
}
COMPARED = [("i", "j"), ("i", "n"), ("n", "p"), ("p", "q"), ("p", "1.25"), ("t", "i"), ("s", "u"), ("s", "'a'"),
            ("b", "c"), ("f", "DATE '2024-02-29'"), ("d", "e"), ("d", "i"), ("d", "p"), ("n", "9223372036854775807"),
            ("i", "NULL"), ("s", "i"), ("i", "-1")]  # fmt: skip
EXPRESSIONS = [
    *(f"{a} {sign} {b}" for (a, b), sign in product(COMPARED, ("=", "<>", "<", "<=", ">", ">=", "<=>"))),
    *(f"{a} {sign} {b}" for (a, b), sign in product(
        [("i", "j"), ("n", "j"), ("t", "t"), ("d", "e"), ("d", "i"), ("n", "n"), ("p", "p"), ("q", "i")], "+-*/")),
    *(f"-{name}" for name in "tinpqd"),
    *(f"CAST({name} AS {kind})" for name, kind in product(
        "tijnpqds", ("tinyint", "int", "bigint", "decimal(38,0)", "decimal(12,2)", "decimal(5,2)", "double", "string"))),
    *(f"CAST({name} AS {kind})" for name, kind in product("jt", ("bigint", "decimal(20,4)", "double"))),
    "b AND c", "b OR c", "NOT b", "b AND NULL", "(b OR i > 0) AND NOT (c AND s = 'a')",
    "i IS NULL", "s IS NOT NULL", "i IS DISTINCT FROM j", "s IS NOT DISTINCT FROM u",
    "i IN (1, 7, -1)", "s IN ('a', 'Z')", "i IN (1, NULL)", "i NOT IN (0, 1)", "i BETWEEN -1 AND 7", "f BETWEEN DATE '1970-01-01' AND DATE '2025-01-01'",
    "CASE WHEN i > 0 THEN i WHEN i < 0 THEN j END", "CASE WHEN b THEN n ELSE i END", "CASE WHEN b THEN p ELSE j END",
    "CASE WHEN j <> 0 THEN i / j ELSE 0 END", "CASE WHEN e > 0 THEN d / e END", "CASE WHEN j > 0 THEN CAST(q AS DOUBLE) / j END",
    "CASE i WHEN 1 THEN 'one' ELSE 'more' END", "IF(b, s, u)", "CASE WHEN b THEN NULL ELSE NULL END", "CASE WHEN b THEN s ELSE i END",
    "COALESCE(i, j)", "COALESCE(i, n, 0)", "COALESCE(p, 0)", "COALESCE(s, u, 'none')", "COALESCE(q, 0)", "COALESCE(NULL, d)",
    "GREATEST(i, j)", "LEAST(i, n, 0)", "GREATEST(p, q)", "GREATEST(s, u)", "LEAST(d, e)",
    "1", "2147483648", "'text'", "1.50", "0.001", "NULL", "true", "DATE '2024-02-29'", "DATE '2023-02-30'", "DATE '24-1-1'",
    "s LIKE 'a%'", "upper(s)", "i % 3", "length(s)", "i + 1 > j * 2 AND COALESCE(n, 0) >= 0",
]  # fmt: skip


def _table() -> pa.Table:
    """Every value of a column beside every other's, by steps that have no common divisor."""
    count = 420
    columns = [
        [VALUES[c.name][(row * (place + 1) + row // 7) % len(VALUES[c.name])] for row in range(count)]
        for place, c in enumerate(COLUMNS)
    ]
    arrays = [pa.array(each, arrow_type(c.type)) for each, c in zip(columns, COLUMNS)]
    return pa.Table.from_arrays(arrays, schema=arrow_schema(COLUMNS))


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_an_expression_gives_what_spark_gives_or_nothing(spark: SparkSession, ansi: str) -> None:
    table = _table()
    session = spark.newSession()
    session.conf.set("spark.sql.ansi.enabled", ansi)
    frame = session.createDataFrame(table)
    rows = Rows.of(table, COLUMNS, [c.name for c in COLUMNS])
    why: Counter[str] = Counter()
    found: dict[str, pa.Array] = {}
    for text in EXPRESSIONS:
        try:
            vector = evaluate(parse_expression(text), rows)
            found[text] = vector.to_arrow(vector.type.simpleString())
        except (UnsupportedError, TooLargeError) as reason:
            why[type(reason).__name__] += 1
            continue
        assert len(found[text]) == table.num_rows, text
    known = frame.selectExpr(*(f"{text} AS c{n}" for n, text in enumerate(found)))
    try:
        given = known.toArrow()
    except PySparkException as error:
        raise AssertionError("Spark refuses what Arrow evaluates") from error
    for (text, mine), theirs in zip(found.items(), given.columns):
        assert list(map(repr, mine.to_pylist())) == list(map(repr, theirs.to_pylist())), text
    assert len(found) > 130, "an allow list that lets nothing through proves nothing"
    assert why["UnsupportedError"], why
    assert why["TooLargeError"], why
