"""Results and states of small tables without Spark: those that Spark computes, and None where only Spark can."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine.definition import start
from cq_engine.refresh.evaluated import evaluated_result, evaluated_state
from cq_engine.refresh.recompute import result_at, state_at
from cq_engine.spark.arrow_io import to_arrow
from tests.limits import limited

SHAPES = {
    "groups": "SELECT g, count(*) AS n, sum(v) AS s, min(d) AS low, max(t) AS high FROM a GROUP BY g",
    "having": "SELECT g, avg(v) AS m FROM a GROUP BY g HAVING count(*) > 1",
    "whole": "SELECT count(*) AS n, sum(d) AS s, max(v) AS m FROM a WHERE v > 100",
    "distinct": "SELECT DISTINCT g, t FROM a",
    "joined": "SELECT a.id, a.v, b.name FROM a JOIN b ON a.g = b.g",
    "outer": "SELECT a.id, b.name, coalesce(b.weight, 0) AS w FROM a LEFT JOIN b ON a.g = b.g",
    "without": "SELECT id, v FROM a WHERE NOT EXISTS (SELECT 1 FROM b WHERE b.g = a.g)",
    "windows": "SELECT id, g, sum(v) OVER (PARTITION BY g ORDER BY id) AS s, rank() OVER (PARTITION BY g ORDER BY v) AS r FROM a",
    "nested": "SELECT n, count(*) AS groups FROM (SELECT g, count(*) AS n FROM a GROUP BY g) GROUP BY n",
    "both": "SELECT g, 'a' AS side FROM a UNION ALL SELECT g, 'b' AS side FROM b",
}
ONLY_SPARK = {
    "function": "SELECT g, max(reverse(t)) AS r FROM a GROUP BY g",
    "text": "SELECT g, listagg(t, ',') WITHIN GROUP (ORDER BY t) AS l FROM a GROUP BY g",
}


@pytest.fixture(scope="module")
def engine(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[cq_engine.Engine]:
    place = tmp_path_factory.mktemp("evaluated") / "w"
    with cq_engine.connect(place, spark=spark, scheduler=False, conf={"maintenance": "manual"}) as engine:
        engine.execute("CREATE TABLE a (id INT PRIMARY KEY, g INT, v BIGINT, d DECIMAL(12, 2), t STRING)")
        engine.execute("CREATE TABLE b (g INT PRIMARY KEY, name STRING, weight INT)")
        engine.execute(
            "INSERT INTO a SELECT CAST(id AS INT), CAST(nullif(id % 5, 4) AS INT), id * 7 % 11, CAST(id AS DECIMAL(12, 2)) / 4, "
            "if(id % 7 = 0, NULL, concat('t', id % 3)) FROM range(40)"
        )
        engine.execute("INSERT INTO b VALUES (0, 'zero', 1), (1, 'one', NULL), (3, NULL, 3)")
        engine.execute("UPDATE a SET v = v + 1 WHERE id > 30")
        for name, text in {**SHAPES, **ONLY_SPARK}.items():
            engine.execute(f"CREATE CONTINUOUS QUERY {name} ON DEMAND AS {text}")
        engine.execute(
            "CREATE CONTINUOUS QUERY keyed PRIMARY KEY (id, t) ON DEMAND AS SELECT id, t, v FROM a WHERE t IS NOT NULL"
        )
        yield engine


def rows(table: pa.Table) -> list[str]:
    return sorted(repr(row) for row in zip(*(column.to_pylist() for column in table.columns)))


def types(table: pa.Table) -> list[tuple[str, pa.DataType]]:
    return [(field.name, field.type) for field in table.schema]


@pytest.mark.parametrize("name", [*SHAPES, "keyed"])
def test_they_are_those_of_spark(engine: cq_engine.Engine, name: str) -> None:
    services, version = engine.services, engine.catalog.newest_version
    compiled = engine.queries.registry.compiled(engine.queries.find(name))
    result = evaluated_result(services, compiled, version)
    assert result is not None
    wanted = to_arrow(result_at(services, compiled, version))
    assert (types(result), rows(result)) == (types(wanted), rows(wanted))
    for stored in compiled.states:
        state = evaluated_state(services, compiled, stored, version)
        assert state is not None
        wanted = to_arrow(state_at(services, compiled, stored, version))
        assert (types(state), rows(state)) == (types(wanted), rows(wanted))


@pytest.mark.parametrize("name", ONLY_SPARK)
def test_what_only_spark_evaluates_is_none(engine: cq_engine.Engine, name: str) -> None:
    compiled = engine.queries.registry.compiled(engine.queries.find(name))
    assert evaluated_result(engine.services, compiled, engine.catalog.newest_version) is None


def test_a_table_that_is_not_small_is_none(engine: cq_engine.Engine) -> None:
    compiled = engine.queries.registry.compiled(engine.queries.find("groups"))
    with limited(engine, small_rows=2):
        engine.services.reader.forget_all()
        assert evaluated_result(engine.services, compiled, engine.catalog.newest_version) is None


def test_two_rows_of_one_key_are_spark_s_to_tell(engine: cq_engine.Engine) -> None:
    with pytest.raises(cq_engine.ResultKeyError, match=r"two rows of twice have the result key \(g = 0\)"):
        engine.execute(
            "CREATE CONTINUOUS QUERY twice PRIMARY KEY (g) ON DEMAND AS SELECT g, v FROM a WHERE g = 0"
        )


@pytest.mark.parametrize("name", ["groups", "both"])
def test_tables_of_results_and_snapshots_begin_with_them(
    engine: cq_engine.Engine, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a result with a key, and of one whose rows have hidden identities."""
    monkeypatch.setattr(start, "result_at", lambda *_: pytest.fail("Spark has computed it"))
    text = "SELECT g, count(*) AS n FROM {} GROUP BY g"
    engine.execute(
        f"CREATE CONTINUOUS QUERY over_{name} ON DEMAND START FROM SNAPSHOT AS {text.format(name)}"
    )
    wanted = sorted(map(repr, engine.execute(text.format(f"({SHAPES[name]})")).fetchall()))
    assert sorted(repr(delta.new) for delta in engine.deltas(f"over_{name}")) == wanted
    engine.execute("INSERT INTO b VALUES (7, 'seven', 7)")
    engine.execute("DELETE FROM a WHERE id = 3")
    for each in (name, f"over_{name}"):
        engine.refresh(each)
    wanted = sorted(map(repr, engine.execute(text.format(f"({SHAPES[name]})")).fetchall()))
    assert sorted(map(repr, engine.execute(f"SELECT * FROM over_{name}").fetchall())) == wanted
    engine.execute("INSERT INTO a VALUES (3, 3, 3, 3, 'three')")
    engine.execute("DELETE FROM b WHERE g = 7")
