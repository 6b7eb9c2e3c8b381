"""SELECTs that are answered from memory: what Spark says of the same text, and without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import cq_engine
from cq_engine.query.query import Resolver, query_frame
from cq_engine.query.small import small_select
from cq_engine.spark.arrow_io import to_arrow
from tests.oracle.budget import budget

KINDS = {
    "id": "INT NOT NULL", "tiny": "TINYINT", "big": "BIGINT", "flag": "BOOLEAN", "price": "DECIMAL(20, 3)", "name": "STRING",
    "raw": "BINARY", "day": "DATE", "at": "TIMESTAMP", "local": "TIMESTAMP_NTZ", "f": "DOUBLE", "parts": "ARRAY<INT>",
    "Mixed": "STRING", "lower": "STRING COLLATE UTF8_LCASE", "doc": "VARIANT",
}  # fmt: skip
ROWS = """
  (1, 1Y, 7, true, 1.5, 'b', X'00FF', DATE '2024-02-29', TIMESTAMP '2024-01-01 10:00:00', TIMESTAMP_NTZ '2024-01-01 10:00:00',
   CAST('NaN' AS DOUBLE), array(1, 2), 'M', 'B', parse_json('[1]')),
  (2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
  (3, -1Y, 7, false, -1.25, 'B', X'', DATE '1969-12-31', TIMESTAMP '1969-12-31 23:59:59.5', TIMESTAMP_NTZ '1969-12-31 23:59:59.5',
   -0.0D, array(), 'm', 'a', parse_json('null')),
  (4, 1Y, -9, true, 1.5, 'ä', X'00', DATE '2024-02-29', TIMESTAMP '2024-01-01 10:00:00', TIMESTAMP_NTZ '2024-01-01 10:00:00',
   1.0D, array(NULL), 'n', 'b', parse_json('{"a": 1}'))
"""
QUERY = "SELECT tiny, count(*) AS n, sum(big) AS s, max(name) AS m FROM plain GROUP BY tiny"


@pytest.fixture(scope="module")
def engine(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[cq_engine.Engine]:
    """A table with a column of most types, one without VARIANT, and a query over it."""
    place = tmp_path_factory.mktemp("small") / "w"
    with cq_engine.connect(place, spark=spark, scheduler=False, conf={"maintenance": "manual"}) as engine:
        columns = ", ".join(f"{name} {kind}" for name, kind in KINDS.items())
        engine.execute(f"CREATE TABLE every ({columns})")
        engine.execute(f"INSERT INTO every VALUES {ROWS}")
        plain = ", ".join(f"{name} {kind}" for name, kind in KINDS.items() if name not in ("doc", "lower"))
        names = ", ".join(name for name in KINDS if name not in ("doc", "lower"))
        engine.execute(f"CREATE TABLE plain ({plain}, PRIMARY KEY (id))")
        engine.execute(f"INSERT INTO plain SELECT {names} FROM every")
        engine.execute(f"CREATE CONTINUOUS QUERY q ON DEMAND AS {QUERY}")
        engine.execute("DELETE FROM plain WHERE id = 4")
        engine.refresh("q")
        yield engine


def rows(table: pa.Table, ordered: bool) -> list[str]:
    """NaN is NaN here."""
    found = [repr(row) for row in zip(*(column.to_pylist() for column in table.columns))]
    return found if ordered else sorted(found)


def ask(engine: cq_engine.Engine, text: str) -> tuple[pa.Table | None, pa.Table]:
    """The rows without Spark, where there are some, and Spark's."""
    small = small_select(text, Resolver(engine.services).small)
    return None if small is None else small.rows, to_arrow(query_frame(engine.services, text))


@st.composite
def selects(draw: st.DrawFn) -> str:
    relation, names = draw(
        st.sampled_from(
            [("plain", [n for n in KINDS if n not in ("doc", "lower")]), ("q", ["tiny", "n", "s", "m"])]
        )
    )
    some = st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True)
    alias = draw(st.sampled_from(["", " x", f" AS {relation}"]))
    own = alias.split()[-1] if alias else relation
    prefix = draw(st.sampled_from(["", f"{own}."]))
    aliases = ["", " AS one", " two", " AS `a b`"]
    shown = [f"{prefix}{name}{draw(st.sampled_from(aliases[:1])) if n else draw(st.sampled_from(aliases))}"
             for n, name in enumerate(draw(some))]  # fmt: skip
    wanted = draw(st.sampled_from(["*", ", ".join(shown)]))
    ways = st.sampled_from(["", " ASC", " DESC", " NULLS LAST", " DESC NULLS FIRST"])
    order = [f"{name}{draw(ways)}" for name in draw(some)]
    text = f"SELECT {wanted} FROM {relation}{draw(st.sampled_from(['', ' VERSION AS OF 3']))}{alias}"
    return f"{text} ORDER BY {', '.join(order)}" if draw(st.booleans()) else text


@budget("CQ_ORACLE_PLAN_EXAMPLES", 25)
@given(text=selects())
def test_the_rows_are_those_of_spark(engine: cq_engine.Engine, text: str) -> None:
    small, large = ask(engine, text)
    if small is None:
        assert " f" in text.partition("ORDER BY")[2] or " parts" in text.partition("ORDER BY")[2]
        return
    assert small.schema.equals(large.schema)
    assert rows(small, False) == rows(large, False)
    ordering = text.partition("ORDER BY")[2]
    if ordering and " id" in ordering:
        assert rows(small, True) == rows(large, True)
    first = ordering.split(",")[0].split()[0] if ordering else ""
    if first in small.column_names:
        assert small.column(first).to_pylist() == large.column(first).to_pylist()


@pytest.mark.parametrize(
    "text",
    ["SELECT count(*) FROM plain", "SELECT count(*) AS `how many` FROM every VERSION AS OF 1", "SELECT * FROM plain ORDER BY id LIMIT 2",
     "SELECT id FROM plain ORDER BY price DESC, id LIMIT 0", "SELECT price AS id, id AS p FROM plain ORDER BY id DESC, p",
     "SELECT id, name FROM plain p ORDER BY p.price, id"],
)  # fmt: skip
def test_shapes(engine: cq_engine.Engine, text: str) -> None:
    small, large = ask(engine, text)
    assert small is not None
    assert small.schema.equals(large.schema)
    assert rows(small, True) == rows(large, True)


@pytest.mark.parametrize(
    "text",
    ["SELECT * FROM every", "SELECT ID FROM plain", "SELECT id, id FROM plain", "SELECT id + 1 FROM plain", "SELECT id FROM plain ORDER BY 1",
     "SELECT DISTINCT big FROM plain", "SELECT id FROM plain WHERE id = 1", "SELECT p.id FROM plain p JOIN q", "SELECT id FROM plain LIMIT 1 + 1",
     "SELECT id FROM plain ORDER BY f", "SELECT * EXCEPT (id) FROM plain", "WITH c AS (SELECT 1 AS id) SELECT id FROM c", "SELECT a FROM plain p(a)",
     "SELECT id FROM plain TABLESAMPLE (10 ROWS)", "SELECT id FROM plain CHANGES FROM VERSION 1", "SELECT count(*), id FROM plain GROUP BY id",
     "SELECT id FROM plain UNION ALL SELECT id FROM plain", "SELECT id FROM plain OFFSET 1", "SELECT count(id) FROM plain",
     "SELECT id FROM plain VERSION AS OF 99", "SELECT n FROM nothing", "SELECT count(*) OVER () FROM plain", "SELECT other.id FROM plain"],
)  # fmt: skip
def test_everything_else_is_spark_s(engine: cq_engine.Engine, text: str) -> None:
    assert small_select(text, Resolver(engine.services).small) is None


def test_errors_are_those_of_spark(engine: cq_engine.Engine) -> None:
    with pytest.raises(cq_engine.AnalysisError, match="nonsense"):
        engine.execute("SELECT nonsense FROM plain")
    with pytest.raises(cq_engine.AnalysisError, match="there is no version 99"):
        engine.execute("SELECT id FROM plain VERSION AS OF 99")
    with pytest.raises(cq_engine.AnalysisError, match="there is no table nothing"):
        engine.execute("SELECT n FROM nothing")


def test_a_result_of_both_kinds(engine: cq_engine.Engine) -> None:
    """It is a DataFrame, too, and has its rows at once."""
    result = engine.execute("SELECT id AS number, parts FROM plain ORDER BY id")
    assert repr(result) == "<Result: 3 rows of (number, parts)>"
    assert [tuple(row) for row in result.to_df().collect()] == [(1, [1, 2]), (2, None), (3, [])]


def test_a_transaction_shows_its_own_rows(engine: cq_engine.Engine) -> None:
    engine.execute("BEGIN")
    engine.execute("DELETE FROM plain WHERE id = 1")
    assert engine.execute("SELECT count(*) FROM plain").fetchall() == [(2,)]
    engine.execute("ROLLBACK")
    assert engine.execute("SELECT count(*) FROM plain").fetchall() == [(3,)]


def test_explain_says_so(engine: cq_engine.Engine) -> None:
    said = "answered from memory, without Spark"
    assert said in str(engine.execute("EXPLAIN SELECT id FROM plain").fetchall())
    assert said not in str(engine.execute("EXPLAIN SELECT id + 1 FROM plain").fetchall())


def test_a_large_table_is_spark_s(engine: cq_engine.Engine) -> None:
    from tests.limits import limited

    with limited(engine, small_rows=2):
        engine.services.reader.forget_all()
        assert small_select("SELECT id FROM plain", Resolver(engine.services).small) is None
        assert len(engine.execute("SELECT id FROM plain").fetchall()) == 3


def test_no_spark_is_started(warehouse: Path) -> None:
    with cq_engine.connect(warehouse, scheduler=False) as engine:
        engine.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
        engine.execute("INSERT INTO t VALUES (1, 10), (2, 20)")
        assert engine.execute("SELECT v FROM t ORDER BY id DESC").fetchall() == [(20,), (10,)]
        assert engine._spark_session.started is None
