"""Pipe syntax and paths into variants: Spark gives the same for what was written and for what our dialect makes of it."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from sqlglot.errors import ParseError

from cq_engine.algebra.dialect import parse_expression, write
from cq_engine.query.references import find_references

PIPES = (
    "FROM t |> WHERE x > 1 |> SELECT x, y",
    "FROM t |> SELECT DISTINCT y",
    "FROM t |> SELECT x + 1 AS z, y |> WHERE z > 3 AND t.y = 'a'",
    "FROM t |> ORDER BY x |> LIMIT 2 |> WHERE x > 1",
    "FROM t |> ORDER BY x DESC |> LIMIT 3 |> WHERE t.y = 'a' |> SELECT t.x",
    "FROM t |> ORDER BY x |> LIMIT 3 |> ORDER BY x DESC |> LIMIT 1",
    "FROM t |> ORDER BY x |> LIMIT 4 |> OFFSET 1 |> AGGREGATE sum(x) AS s, count(*) AS n",
    "FROM t |> WHERE x > 1 |> AGGREGATE sum(x) AS s GROUP BY y |> WHERE s > 3",
    "FROM t |> AGGREGATE count(*) AS n |> UNION ALL SELECT 7",
    "FROM t |> EXTEND x * 2 AS d |> WHERE d > 4 |> SELECT d, t.x",
    "FROM t |> WHERE x > 2 |> LEFT JOIN e ON t.x = e.x |> SELECT t.x, e.w",
    "FROM t |> WHERE x > 2 |> RIGHT JOIN e ON t.x = e.x |> SELECT t.x, e.w",
    "FROM t |> ORDER BY x |> LIMIT 1 |> CROSS JOIN e |> SELECT t.x, e.w",
    "FROM t |> WHERE x > 2 |> AS u |> JOIN e ON u.x = e.x |> SELECT u.x, w",
    "FROM t |> SELECT x |> UNION ALL SELECT x FROM e |> WHERE x > 2",
    "FROM t |> SELECT x |> UNION (SELECT x FROM e) |> EXCEPT SELECT 2",
    "FROM t |> SELECT x |> INTERSECT ALL VALUES 1, 2",
    "SELECT x % 2 AS x FROM t |> WHERE x = 1",
    "SELECT y, sum(x) AS s FROM t GROUP BY y HAVING s > 3 |> WHERE y = 'b' |> SELECT s",
    "SELECT u.z FROM (FROM t |> LIMIT 100 |> SELECT x AS z) u |> WHERE z > 1",
    "FROM t |> WHERE x > 1 |> PIVOT (sum(x) FOR y IN ('a', 'b'))",
)


@pytest.fixture(scope="module")
def views(spark: SparkSession) -> SparkSession:
    session = spark.newSession()
    session.sql(
        "SELECT * FROM VALUES (1, 'a'), (2, 'a'), (3, 'b'), (4, 'b'), (5, NULL) t(x, y)"
    ).createOrReplaceTempView("t")
    session.sql("SELECT * FROM VALUES (2, 'p'), (3, 'q'), (9, 'r') e(x, w)").createOrReplaceTempView("e")
    session.sql(
        """SELECT parse_json('{"a": {"b": [1, {"c": 2}]}, "A": 3, "e f": 4, "0": 5}') AS v, 1 AS n"""
    ).createOrReplaceTempView("o")
    return session


def rows(session: SparkSession, text: str) -> list[str]:
    return sorted(map(str, session.sql(text).toArrow().to_pylist()))


@pytest.mark.parametrize("text", PIPES)
def test_operators_are_applied_in_their_order(views: SparkSession, text: str) -> None:
    assert rows(views, write(parse_expression(text))) == rows(views, text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "FROM t |> ORDER BY x |> SELECT y |> LIMIT 1",
            "stands last or before |> LIMIT, not before |> SELECT",
        ),
        ("FROM t |> SELECT x WHERE x > 1", "each other clause is an operator of its own"),
        ("FROM t |> SHUFFLE x", "unknown operator |> SHUFFLE"),
    ],
)
def test_what_cannot_be_read_is_refused(text: str, why: str) -> None:
    with pytest.raises(ParseError, match="\\" + why if why.startswith("|") else why.replace("|", "\\|")):
        parse_expression(text)


PATHS = ("v:a.b", "v:A", "v:a", "v:a.b[1].c::int + n", "v:['a'].b[0]::string", "o.v:a:b", "v:`e f`", "v:a.b[1]:c::int",
         "v:a.B", "to_json(v:a)", "v:a.none.c", "v['a']:b")  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_paths_into_variants(views: SparkSession, path: str) -> None:
    text = f"SELECT to_json({path}) AS k FROM o" if "::" not in path else f"SELECT {path} AS k FROM o"
    told = _result(views, text)
    assert _result(views, write(parse_expression(text))) == told


def _result(session: SparkSession, text: str) -> list[str] | str:
    try:
        return rows(session, text)
    except Exception as error:  # noqa: BLE001 - Spark refuses both, or none
        return type(error).__name__


def test_tables_are_found_behind_operators() -> None:
    text = "FROM t |> AS u |> UNION ALL SELECT * FROM e |> JOIN o ON u.x = n |> WHERE x IN (SELECT x FROM p)"
    assert [(text[r.start : r.end], r.name) for r in find_references(text)] == [(n, n) for n in "teop"]
