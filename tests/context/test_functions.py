"""Functions of the user: the same query with a function and with the expression that it stands for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import cq_engine
from tests.limits import limit
from tests.oracle.law import Change, replay, row_of


@pytest.fixture
def engine(spark: SparkSession, warehouse: Path) -> Iterator[cq_engine.Engine]:
    with cq_engine.connect(warehouse, spark=spark.newSession(), scheduler=False) as engine:
        engine.execute("CREATE TABLE t (id INT PRIMARY KEY, a INT, s STRING)")
        engine.execute("CREATE TABLE u (b INT PRIMARY KEY, name STRING)")
        yield engine


def _register(engine: cq_engine.Engine) -> None:
    def bucket(
        number: int | None,
    ) -> int | None:  # a function of an importable module is looked up by its name there
        return None if number is None else number // 10

    engine.function("bucket", bucket, returns="int")


QUERIES = {
    "projected": ("SELECT id, bucket(a) AS b, loud(s) AS l FROM t", "SELECT id, a DIV 10, upper(s) || '!' FROM t"),
    "filtered": ("SELECT id FROM t WHERE bucket(a) > 1 AND loud(s) <> 'X!'", "SELECT id FROM t WHERE a DIV 10 > 1 AND upper(s) || '!' <> 'X!'"),
    "grouped": (
        "SELECT bucket(a) AS k, count(*) AS c, sum(bucket(a)) AS n FROM t GROUP BY bucket(a)",
        "SELECT a DIV 10, count(*), sum(a DIV 10) FROM t GROUP BY a DIV 10",
    ),
    "largest": (
        "SELECT loud(s) AS k, max(bucket(a)) AS m FROM t GROUP BY loud(s) HAVING bucket(max(a)) > 0",
        "SELECT upper(s) || '!', max(a DIV 10) FROM t GROUP BY upper(s) || '!' HAVING max(a) DIV 10 > 0",
    ),
    "joined": (
        "SELECT t.id, u.name FROM t JOIN u ON bucket(t.a) = u.b",
        "SELECT t.id, u.name FROM t JOIN u ON t.a DIV 10 = u.b",
    ),
    "outer_joined": (
        "SELECT t.id, loud(u.name) AS l FROM t LEFT JOIN u ON bucket(t.a) = u.b",
        "SELECT t.id, upper(u.name) || '!' FROM t LEFT JOIN u ON t.a DIV 10 = u.b",
    ),
    "ranked": (
        "SELECT id, row_number() OVER (PARTITION BY bucket(a) ORDER BY loud(s), id) AS r FROM t",
        "SELECT id, row_number() OVER (PARTITION BY a DIV 10 ORDER BY upper(s), id) FROM t",
    ),
}  # fmt: skip
STEPS = [
    ["INSERT INTO u SELECT bucket(b), name FROM VALUES (10, 'ten'), (20, 'twenty'), (0, NULL) v(b, name)"],
    ["INSERT INTO t VALUES (1, 15, 'x'), (2, 25, 'y'), (3, NULL, NULL), (4, 29, 'X')"],
    ["UPDATE t SET a = bucket(a) * 10 + 20 WHERE loud(s) = 'X!'", "DELETE FROM u WHERE b = bucket(20)"],
    ["DELETE FROM t WHERE id = 2", "INSERT INTO t VALUES (5, 3, 'z'), (6, 31, 'x')"],
    [
        (
            "MERGE INTO u USING (SELECT bucket(a) AS b, loud(s) AS name FROM t WHERE id = 4) v ON u.b = v.b"
            " WHEN MATCHED THEN UPDATE SET name = v.name WHEN NOT MATCHED THEN INSERT *"
        )
    ],
]


@pytest.mark.parametrize(
    ("bulk", "queries"),
    [
        (False, ("projected", "filtered", "largest", "joined", "ranked")),
        (True, ("grouped", "outer_joined")),
        pytest.param(True, tuple(QUERIES), marks=pytest.mark.long),
    ],
    ids=["driver", "executors", "all by executors"],
)
def test_in_queries_dml_and_continuous_queries(
    engine: cq_engine.Engine, bulk: bool, queries: tuple[str, ...]
) -> None:
    if bulk:
        limit(engine, refresh_changes=-1)
    _register(engine)
    engine.execute("CREATE FUNCTION loud(s STRING) RETURNS STRING DETERMINISTIC RETURN upper(s) || '!'")
    texts = {name: QUERIES[name] for name in queries}
    for name, (text, _) in texts.items():
        engine.execute(f"CREATE CONTINUOUS QUERY {name} AS {text}")
        assert engine.describe(name).verdict != "FULL"
    results: dict[str, list[tuple[int, list[tuple[object, ...]]]]] = {name: [] for name in queries}
    for step in STEPS:
        with engine.transaction() as transaction:
            for text in step:
                transaction.execute(text)
        assert transaction.commit_version is not None
        for name, (text, plain) in texts.items():
            engine.refresh(name)
            rows = [row_of(row) for row in engine.execute(plain).fetchall()]
            if step is STEPS[-1]:
                called = [row_of(row) for row in engine.execute(text).fetchall()]
                assert sorted(map(repr, rows)) == sorted(map(repr, called))
            results[name].append((transaction.commit_version, rows))
    for name in queries:
        columns = engine.describe(name).columns
        key = engine.describe(name).key
        changes = [
            Change(
                d.commit_version, d.sequence, d.marker, None if d.key is None else row_of(d.key),
                None if d.new is None else row_of(d.new), None if d.old is None else row_of(d.old),
            )
            for d in engine.deltas(name)
        ]  # fmt: skip
        replay([], None if key is None else [columns.index(k) for k in key], changes, results[name])
        assert changes


def test_a_query_waits_for_its_python_function(spark: SparkSession, warehouse: Path) -> None:
    session = spark.newSession()
    with cq_engine.connect(warehouse, spark=session, scheduler=False) as engine:
        engine.execute("CREATE TABLE t (a INT)")
        _register(engine)
        engine.execute("CREATE FUNCTION next_bucket(a INT) RETURNS INT RETURN bucket(a) + 1")
        engine.execute("CREATE CONTINUOUS QUERY q AS SELECT next_bucket(a) AS b FROM t")
        assert engine.catalog.state.queries["q"].functions == ("bucket", "next_bucket")
        engine.execute("INSERT INTO t VALUES (10)")
    assert not session.catalog.functionExists("bucket")
    with cq_engine.connect(warehouse, spark=session) as engine:
        rows = engine.execute("SHOW FUNCTIONS").fetchall()
        assert [row[:2] + row[4:] for row in rows] == [("bucket", "PYTHON", "q"), ("next_bucket", "SQL", "q")]
        for _ in range(2):
            with pytest.raises(
                cq_engine.RefreshError, match="function bucket, which is not registered"
            ) as raised:
                engine.drain(timeout=60)
            assert '@engine.function("bucket"' in raised.value.hint
        assert (engine.describe("q").state, engine.describe("q").position) == ("ACTIVE", 0)
        engine.execute("INSERT INTO t VALUES (20)")
        _register(engine)
        engine.drain(timeout=60)
        assert [d.new for d in engine.deltas("q")] == [(2,), (3,)]


def test_what_is_not_deterministic(engine: cq_engine.Engine) -> None:
    engine.function("dice", lambda: 4, returns="int", deterministic=False)
    engine.execute("CREATE FUNCTION today() RETURNS DATE RETURN current_date()")
    engine.execute("CREATE FUNCTION noise(a INT) RETURNS DOUBLE RETURN a + rand()")
    engine.execute("CREATE FUNCTION wrapped(a INT) RETURNS DOUBLE RETURN noise(a) * 2")
    engine.execute("CREATE FUNCTION said(a INT) RETURNS INT NOT DETERMINISTIC RETURN a")
    assert engine.execute("SELECT dice()").fetchall() == [(4,)]
    for call in ("dice()", "today()", "noise(a)", "wrapped(a)", "said(a)"):
        with pytest.raises(cq_engine.AnalysisError, match="cannot stand in a continuous query"):
            engine.execute(f"CREATE CONTINUOUS QUERY q AS SELECT id, {call} AS x FROM t")
    assert not engine.catalog.state.queries


def test_definitions_of_sql_functions(engine: cq_engine.Engine) -> None:
    run = engine.execute
    run("CREATE FUNCTION plus(a INT, b INT DEFAULT 1) RETURNS INT RETURN a + b")
    run("CREATE FUNCTION plus_two(a INT) RETURN plus(plus(a))")
    assert run("SELECT plus(1), plus(1, 5), plus_two(1)").fetchall() == [(2, 6, 3)]
    assert run("CREATE FUNCTION IF NOT EXISTS plus(a INT) RETURN 0").message == "function plus exists"
    for text, said in {
        "CREATE FUNCTION plus(a INT) RETURN a": "exists already",
        "CREATE FUNCTION upper(a INT) RETURN a": "name of a function already",
        "CREATE FUNCTION cq_x(a INT) RETURN a": "cannot be the name",
        "CREATE FUNCTION broken(a INT) RETURN nothing": "nothing",
        "CREATE FUNCTION broken(a NOSUCH) RETURN a": "(?i)nosuch",
        "CREATE FUNCTION broken(a INT) a + 1": "no RETURN",
        "CREATE FUNCTION several(a INT) RETURNS TABLE (b INT) RETURN SELECT a": "table function",
        "CREATE OR REPLACE FUNCTION plus(a INT) RETURN plus_two(a)": "call itself",
        "DROP FUNCTION plus": "called by plus_two",
        "DROP FUNCTION pluss": "did you mean plus",
    }.items():
        with pytest.raises(cq_engine.CQError) as raised:
            run(text)
        assert re.search(said, str(raised.value)), text
    run("CREATE CONTINUOUS QUERY q AS SELECT id, plus_two(a) AS b FROM t")
    with pytest.raises(cq_engine.CatalogError, match="plus_two cannot be dropped"):
        run("DROP FUNCTION plus_two RESTRICT")
    with pytest.raises(cq_engine.CatalogError, match="plus cannot be replaced"):
        run("CREATE OR REPLACE FUNCTION plus(a INT, b INT DEFAULT 2) RETURNS INT RETURN a + b")
    run("DROP CONTINUOUS QUERY q")
    run("CREATE OR REPLACE FUNCTION plus(a INT, b INT DEFAULT 2) RETURNS INT RETURN a + b")
    assert run("SELECT plus_two(1)").fetchall() == [(5,)]
    run("DROP FUNCTION plus_two")
    with pytest.raises(cq_engine.AnalysisError, match="plus_two"):
        run("SELECT plus_two(1)").fetchall()
    assert run("DROP FUNCTION IF EXISTS plus_two").message == "there is no function plus_two"


def test_registering(engine: cq_engine.Engine) -> None:
    @engine.function("shout", returns="string", arrow=True)
    def shout(text: str) -> str:
        return text.upper()

    assert shout("a") == "A"
    assert engine.execute("SELECT shout('b')").fetchall() == [("B",)]
    engine.function("shout", lambda text: text + "?", returns="string")
    assert engine.execute("SELECT SHOUT('b')").fetchall() == [("b?",)]
    for name, returns in (("upper", "string"), ("f", "nosuch"), ("delta_marker", "string"), ("a b", "int")):
        with pytest.raises(cq_engine.CQError):
            engine.function(name, str, returns=returns)
    with pytest.raises(cq_engine.CatalogError, match="is a Python function"):
        engine.execute("CREATE FUNCTION shout(a INT) RETURN a")
    engine.execute("CREATE FUNCTION sql_one(a INT) RETURN a")
    with pytest.raises(cq_engine.CatalogError, match="is a SQL function"):
        engine.function("sql_one", str, returns="string")


def test_two_engines_in_one_session(spark: SparkSession, tmp_path: Path) -> None:
    session = spark.newSession()
    with cq_engine.connect(tmp_path / "a", spark=session, scheduler=False) as one:
        one.execute("CREATE FUNCTION plus_some(a INT) RETURN a + 1")
        with cq_engine.connect(tmp_path / "b", spark=session, scheduler=False) as two:
            with pytest.raises(cq_engine.CatalogError, match="another engine's"):
                two.execute("CREATE FUNCTION plus_some(a INT) RETURN a + 2")
            assert not two.catalog.state.functions
    with cq_engine.connect(tmp_path / "b", spark=session, scheduler=False) as two:
        two.execute("CREATE FUNCTION plus_some(a INT) RETURN a + 2")
        assert two.execute("SELECT plus_some(1)").fetchall() == [(3,)]
