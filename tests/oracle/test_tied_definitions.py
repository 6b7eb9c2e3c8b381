"""What is said of orders with ties where a query is created, and what becomes of types."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine.definition.analysis import compile_definition, shape_of
from cq_engine.planner.compiled import Compiled
from cq_engine.query.query import query_frame
from tests.oracle.tied import QUERIES


@pytest.fixture
def engine(spark: SparkSession, warehouse: Path) -> Iterator[cq_engine.Engine]:
    with cq_engine.connect(warehouse, spark=spark, scheduler=False) as opened:
        opened.execute("CREATE TABLE t (id INT PRIMARY KEY, p INT, o INT, x INT, s STRING)")
        opened.execute("CREATE TABLE e (p INT, o INT, x INT, s STRING)")
        yield opened


def _compiled(engine: cq_engine.Engine, query: str) -> Compiled:
    services = engine.services
    return compile_definition(services, shape_of(services, services.catalog.state, query), None)


@pytest.mark.parametrize("query", [query for query, _ in QUERIES])
def test_types_stay(engine: cq_engine.Engine, query: str) -> None:
    """The plan's text, by Spark's analysis, has the types of the user's query."""
    services = engine.services
    compiled = _compiled(engine, query)
    assert compiled.text != query
    told, meant = (query_frame(services, text).schema for text in (query, compiled.text))
    assert [(f.name, f.dataType.simpleString()) for f in meant] == [
        (f.name, f.dataType.simpleString()) for f in told
    ]


def test_full_breaks_ties_alike(engine: cq_engine.Engine) -> None:
    engine.execute("INSERT INTO t VALUES (9, 1, 1, 5, 'a'), (8, 1, 1, 6, 'b')")
    engine.execute(
        "CREATE CONTINUOUS QUERY q ON DEMAND START FROM SNAPSHOT WITH (refresh = 'full')"
        " AS SELECT p, first(x) AS a, collect_list(s) AS b FROM t GROUP BY p"
    )
    engine.execute("INSERT INTO t VALUES (7, 1, 1, 7, 'c')")
    engine.refresh("q")
    assert engine.describe("q").verdict == "FULL"
    assert [(d.marker, d.new, d.old) for d in engine.deltas("q")] == [
        ("I", (1, 6, ["b", "a"]), None),
        ("U", (1, 7, ["c", "b", "a"]), (1, 6, ["b", "a"])),
    ]


@pytest.mark.parametrize(
    ("query", "note"),
    [
        ("SELECT p, approx_percentile(x, 0.5) AS a FROM t GROUP BY p", "approx_percentile: approximate"),
        (
            "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 3)"  # noqa: ISC004
            " SELECT n, x FROM r JOIN t ON id = n ORDER BY x LIMIT 2",
            "limit: of rows that are equal in the order",
        ),
        ("SELECT p, first(x) AS a FROM t GROUP BY p", ""),
    ],
)
def test_create_says_what_cannot_be_made_certain(engine: cq_engine.Engine, query: str, note: str) -> None:
    message = engine.execute(f"CREATE CONTINUOUS QUERY q ON DEMAND AS {query}").message or ""
    assert (note in message.lower()) if note else ("any may be taken" not in message)


def test_maps_variants_and_collations_tell_rows_apart(engine: cq_engine.Engine) -> None:
    engine.execute("CREATE TABLE w (p INT, m MAP<STRING, INT>, v VARIANT, c STRING COLLATE UTF8_LCASE)")
    query = "SELECT p, first(m) AS a, collect_list(c) AS b, collect_list(m) AS d FROM w GROUP BY p"
    engine.execute(f"CREATE CONTINUOUS QUERY q ON DEMAND AS {query}")
    assert "any may be taken" not in " ".join(engine.describe("q").reasons)
    engine.execute(
        "INSERT INTO w VALUES (1, map('b', 1), parse_json('1'), 'x'), (1, map('a', 2), parse_json('2'), 'Y'),"
        " (1, map('a', 2), parse_json('1'), 'y'), (1, map('a', 2), parse_json('1'), 'Y')"
    )
    engine.refresh("q")
    (delta,) = engine.deltas("q")
    a = [("a", 2)]
    assert delta.new is not None
    assert [dict(delta.new[1]), delta.new[2], [dict(m) for m in delta.new[3]]] == [
        dict(a), ["Y", "y", "Y", "x"], [dict(a), dict(a), dict(a), {"b": 1}],
    ]  # fmt: skip
