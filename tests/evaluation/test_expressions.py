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

from cq_engine.algebra.dialect import parse_expression, write
from cq_engine.core.columns import Column
from cq_engine.core.types import arrow_schema, arrow_type, spark_schema
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
    Column("g", "date"),
    Column("x", "double"),
    Column("m", "timestamp"),
    Column("z", "timestamp_ntz"),
    Column("h", "time"),
    Column("v", "interval day to second"),
    Column("w", "binary"),
    Column("a", "array<int>"),
    Column("r", "struct<one:int,two:string>"),
    Column("y", "float"),
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
    "s": [None, "", "a", "A", "ä", "a ", "Z", "a\nb", "a%b", "aXb", "😀", "a.b"],
    "u": [None, "a", "b"],
    "b": [None, True, False],
    "c": [None, True, False],
    "g": [None, dt.date(2024, 1, 1), dt.date(2023, 12, 31), dt.date(2024, 1, 2)],
    "x": [None, 0.0, -0.0, float("nan"), float("inf"), 1.5],
    "m": [
        None,
        dt.datetime(1899, 1, 1, 1, 2, 3, tzinfo=dt.timezone.utc),
        dt.datetime(2024, 3, 31, 1, 30, tzinfo=dt.timezone.utc),
    ],
    "z": [None, dt.datetime.fromisoformat("1899-01-01"), dt.datetime.fromisoformat("2024-03-31 02:30:00")],
    "h": [None, dt.time(1, 2, 3), dt.time(23, 59, 59, 999999)],
    "v": [None, dt.timedelta(days=1, seconds=5), dt.timedelta(seconds=-1)],
    "w": [None, b"", b"\xff", b"a"],
    "a": [None, [1, None], []],
    "r": [None, {"one": 1, "two": "x"}, {"one": None, "two": None}],
    "y": [None, 0.0, -0.0, 1.5, float("nan")],
    "f": [None, dt.date(1500, 2, 28), dt.date(2024, 2, 29), dt.date(1970, 1, 1)],
}
COMPARED = [("i", "j"), ("i", "n"), ("n", "p"), ("p", "q"), ("p", "1.25"), ("t", "i"), ("s", "u"), ("s", "'a'"),
            ("b", "c"), ("f", "DATE '2024-02-29'"), ("d", "e"), ("d", "i"), ("d", "p"), ("n", "9223372036854775807"),
            ("i", "NULL"), ("s", "i"), ("i", "-1"), ("i", "-2147483648"), ("f", "'2024-02-29'"), ("g", "f"), ("'2024-01-01'", "g"),
            ("m", "m"), ("z", "m"), ("h", "h"), ("v", "v"), ("w", "X'61'"), ("a", "a"), ("y", "e"), ("x", "e"), ("p + 1", "n * 2")]  # fmt: skip
EXPRESSIONS = [
    *(f"{a} {sign} {b}" for (a, b), sign in product(COMPARED, ("=", "<>", "<", "<=", ">", ">=", "<=>"))),
    *(f"{a} {sign} {b}" for (a, b), sign in product(
        [("i", "j"), ("n", "j"), ("t", "t"), ("d", "e"), ("d", "i"), ("n", "n"), ("p", "p"), ("q", "i"),
         ("p", "1"), ("0.5", "p"), ("p", "i"), ("t", "p"), ("p", "0.125"), ("p", "-3"), ("p", "NULL"), ("i", "NULL"),
         ("x", "e"), ("p", "CAST(1 AS INT)"), ("j", "0.01"), ("-2147483648", "j"), ("(2)", "p"), ("t", "j"), ("p", "(-(1))")], "+-*/%")),
    *(f"-{name}" for name in "tinpqdxyv"),
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
    "i IN (-2147483648, 1.5)", "n IN (1.5D, 9007199254740992)", "n IN (0D, j)", "i IN (j, 1, NULL)", "i NOT IN (1, NULL)", "d IN (0D, 1.5)",
    "d IN (-0D)", "x IN (1D)", "p IN (1, 1.250)", "f IN (DATE '2024-02-29')", "f IN ('2024-02-29', '1500-02-28')", "b IN (true)", "NULL IN (1)", "i IN (NULL)", "s IN ('a', NULL, u)",
    "m IN (m)", "h IN (h)", "v IN (v)", "w IN (X'61', NULL)", "b = c < b", "b <> c >= b", "(b = c) < b", "b = (i IN (1, 2))", "f BETWEEN '1970-01-01' AND '2025-01-01'", "i BETWEEN j AND NULL",
    "CASE i WHEN 1 THEN 'one' WHEN j THEN 'j' WHEN NULL THEN 'never' END", "CASE s WHEN 'a' THEN 1 WHEN 'b' THEN 2.5 ELSE n END", "CASE b WHEN c THEN 1 ELSE 0 END",
    "NULLIF(i, 0)", "NULLIF(i, n)", "NULLIF(s, 'a')", "NULLIF(t, 1.5)", "NULLIF(p, j)", "nullif(f, '2024-02-29')", "NULLIF(d, 0)", "NULLIF(i, NULL)", "i / NULLIF(j, 0)", "NULLIF(NULL, i)",
    *(f"s {word} '{pattern}'" for word, pattern in product(("LIKE", "NOT LIKE"), ("a%", "%a", "%a%", "a", "", "%", "_", "a_b", "a.b", "a%b", "%_%", "ä"))),
    "s LIKE u", "s LIKE 'a\\\\%'", "s LIKE 'a!%' ESCAPE '!'", "s ILIKE 'A%'", "s LIKE NULL", "i LIKE '1%'", "NOT s LIKE 'a%'",
    *(f"CAST({name} AS {kind})" for name, kind in product(
        ("NULL", "m", "z", "h", "v", "f"), ("TIME", "TIMESTAMP", "TIMESTAMP_NTZ", "DATE", "INTERVAL DAY TO SECOND", "VOID", "BINARY", "ARRAY<INT>"))),
    "CAST('1 day' AS INTERVAL) IS NULL", "m + CAST('1 day' AS INTERVAL) > m", "CAST(s AS VARCHAR(1))", "CAST(s AS STRING COLLATE UNICODE_CI) = u",
    *(f"IF(b, {name}, NULL)" for name in "mzhvwarxy"), *(f"COALESCE({name}, NULL, {name})" for name in "mzhvwarxy"), "COALESCE(x, 1)", "COALESCE(x, y)",
    "CASE WHEN t < 0 THEN t * t ELSE i END", "15BD", "1.5D", "0.1D", "-1.5", "-5L", "-9223372036854775808", "-(2147483648)", "'a\\nb'", "'it''s'", "'\\d'",
    "upper(s)", "i % 3", "length(s)", "i + 1 > j * 2 AND COALESCE(n, 0) >= 0",
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


@pytest.mark.parametrize("text", ["X''", "w < X''", "w LIKE X''", "w IN (X'')", "CASE w WHEN X'' THEN 1 END"])
def test_literals_that_only_spark_has_are_left_to_it(text: str) -> None:
    table = _table()
    with pytest.raises(UnsupportedError, match="X''"):
        evaluate(parse_expression(text), Rows.of(table, COLUMNS, [c.name for c in COLUMNS]))


SETTINGS = {
    "ANSI": {},
    "no ANSI": {"spark.sql.ansi.enabled": "false"},
    "others": {
        "spark.sql.timestampType": "TIMESTAMP_NTZ",
        "spark.sql.session.timeZone": "Europe/Berlin",
        "spark.sql.decimalOperations.allowPrecisionLoss": "false",
    },
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_an_expression_gives_what_spark_gives_or_nothing(
    spark: SparkSession, settings: dict[str, str]
) -> None:
    table = _table()
    session = spark.newSession()
    for name, value in {"spark.sql.ansi.enabled": "true", **settings}.items():
        session.conf.set(name, value)
    frame = session.createDataFrame(table, spark_schema(COLUMNS))
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
    known = frame.selectExpr(*(f"{write(parse_expression(text))} AS c{n}" for n, text in enumerate(found)))
    try:
        given = known.toArrow()
    except PySparkException as error:
        raise AssertionError("Spark refuses what Arrow evaluates") from error
    wrong = [
        (
            text,
            mine.type,
            theirs.type,
            Counter(zip(*(map(repr, each.to_pylist()) for each in (mine, theirs)))),
        )
        for (text, mine), theirs in zip(found.items(), given.columns)
        if mine.type != theirs.type
        or list(map(repr, mine.to_pylist())) != list(map(repr, theirs.to_pylist()))
    ]
    assert not wrong
    assert len(found) > 330, "an allow list that lets nothing through proves nothing"
    assert why["UnsupportedError"], why
    assert why["TooLargeError"], why
