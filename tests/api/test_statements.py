"""Statements as a user types them: what they give, and what they say when they cannot."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine import AnalysisError, CatalogError, CQError, Engine, ResultKeyError, TransactionError
from cq_engine.query.rendering import render_result
from tests.limits import EXECUTORS, limited


@pytest.fixture
def engine(warehouse: Path, spark: SparkSession) -> Iterator[Engine]:
    with cq_engine.connect(warehouse, spark=spark, scheduler=False) as opened:
        opened.execute("CREATE TABLE t (id INT, grp STRING, amt INT, PRIMARY KEY (id))")
        opened.execute("INSERT INTO t VALUES (1, 'a', 5), (2, 'a', -7), (3, 'b', 1)")
        yield opened


def deltas(engine: Engine, query: str) -> list[tuple[object, ...]]:
    return [(d.marker, d.new, d.old) for d in engine.deltas(query)]


def test_create_table_as_select_and_describe(engine: Engine) -> None:
    made = engine.execute("CREATE TABLE s AS SELECT grp, sum(amt) AS total, count(*) FROM t GROUP BY grp")
    assert made.rowcount == 2
    assert engine.execute("SELECT * FROM s ORDER BY grp").fetchall() == [("a", -2, 2), ("b", 1, 1)]
    names = [row[0] for row in engine.execute("DESCRIBE s").fetchall()]
    assert names == ["grp", "total", "count_1"]
    assert [row[0] for row in engine.execute("SHOW TABLES").fetchall()] == ["s", "t"]


def test_a_query_starts_from_a_snapshot_or_a_version(engine: Engine) -> None:
    engine.execute(
        "CREATE CONTINUOUS QUERY q ON DEMAND START FROM SNAPSHOT AS SELECT grp, sum(amt) AS s FROM t GROUP BY grp"
    )
    assert sorted(deltas(engine, "q")) == [("I", ("a", -2), None), ("I", ("b", 1), None)]
    engine.execute("UPDATE t SET amt = 2 WHERE id = 3")
    engine.execute("CREATE CONTINUOUS QUERY v ON DEMAND START FROM VERSION 1 AS SELECT id, amt FROM t")
    engine.refresh("q")
    engine.refresh("v")
    assert deltas(engine, "q")[2:] == [("U", ("b", 2), ("b", 1))]
    assert deltas(engine, "v") == [("U", (3, 2), (3, 1))]
    with pytest.raises(AnalysisError, match="no such commit"):
        engine.execute("CREATE CONTINUOUS QUERY w ON DEMAND START FROM VERSION 99 AS SELECT id FROM t")


def test_old_values_of_expressions_reach_the_destination(engine: Engine) -> None:
    engine.execute(
        "CREATE CONTINUOUS QUERY q ON DEMAND DESTINATION TABLE log AS SELECT grp, sum(amt) AS s,"
        " cq_old_value(sum(amt)) AS before, cq_old_value(s * 10) AS tenfold, cq_commit_version() AS v FROM t GROUP BY grp"
    )
    version = engine.execute("UPDATE t SET amt = 4 WHERE id = 3").commit_version
    engine.refresh("q")
    assert engine.execute("SELECT * FROM log").fetchall() == [("b", 4, 1, 10, version)]
    with pytest.raises(AnalysisError, match="not an expression over the result"):
        engine.execute(
            "CREATE CONTINUOUS QUERY r ON DEMAND AS SELECT grp, cq_old_value(amt) FROM t GROUP BY grp"
        )


def test_a_star_keeps_its_meaning_when_the_table_grows(
    engine: Engine, warehouse: Path, spark: SparkSession
) -> None:
    engine.execute("CREATE CONTINUOUS QUERY q ON DEMAND AS SELECT * FROM t")
    engine.execute("ALTER TABLE t ADD COLUMNS (note STRING)")
    engine.close()
    with cq_engine.connect(warehouse, spark=spark, scheduler=False) as again:
        again.execute("UPDATE t SET note = 'x' WHERE id = 1")
        again.execute("UPDATE t SET amt = 6 WHERE id = 1")
        again.refresh("q")
        assert deltas(again, "q") == [("U", (1, "a", 6), (1, "a", 5))]


def test_a_statement_that_fails_leaves_the_catalog_as_it_was(engine: Engine) -> None:
    engine.execute("CREATE CONTINUOUS QUERY q ON DEMAND AS SELECT id, amt FROM t")
    for bad in (
        "CREATE OR REPLACE CONTINUOUS QUERY q ON DEMAND AS SELECT nothing FROM t",
        "CREATE OR REPLACE CONTINUOUS QUERY q CRON '99 * * * *' AS SELECT id FROM t",
        "CREATE CONTINUOUS QUERY r EVERY 5 SECONDS DESTINATION TABLE t AS SELECT id, grp, amt FROM t",
        "CREATE CONTINUOUS QUERY r ON DEMAND AS SELECT id, now() AS n FROM t",
        "CREATE CONTINUOUS QUERY r ON DEMAND AS SELECT id, amt AS id FROM t",
        "CREATE CONTINUOUS QUERY r ON DEMAND AS SELECT id FROM t VERSION AS OF 1",
        "CREATE CONTINUOUS QUERY r PRIMARY KEY (nope) ON DEMAND AS SELECT id FROM t",
        "CREATE CONTINUOUS QUERY r ON DEMAND WITH (refresh = 'sometimes') AS SELECT id FROM t",
    ):
        with pytest.raises(AnalysisError):
            engine.execute(bad)
    assert [q.name for q in engine.catalog.state.queries.values()] == ["q"]
    assert engine.queries.find("q").query == "SELECT id, amt FROM t"
    engine.execute("CREATE OR REPLACE CONTINUOUS QUERY q ON DEMAND AS SELECT id FROM t")
    assert engine.describe("q").columns == ("id",)


def test_a_declared_key_is_checked(engine: Engine) -> None:
    with pytest.raises(ResultKeyError, match=r"grp = 'a'"):
        engine.execute("CREATE CONTINUOUS QUERY q PRIMARY KEY (grp) ON DEMAND AS SELECT grp, amt FROM t")
    engine.execute("CREATE CONTINUOUS QUERY q PRIMARY KEY (amt) ON DEMAND AS SELECT grp, amt FROM t")
    engine.execute("INSERT INTO t VALUES (4, 'c', 5)")
    with pytest.raises(ResultKeyError, match="amt = 5"):
        engine.refresh("q")
    assert engine.describe("q").state == "FAILED"
    assert deltas(engine, "q") == []


@pytest.mark.parametrize("paths", [{}, EXECUTORS], ids=["driver", "executors"])
def test_few_rows_are_read_to_name_a_key_that_two_have(engine: Engine, paths: Mapping[str, Any]) -> None:
    engine.execute("CREATE CONTINUOUS QUERY q PRIMARY KEY (amt) ON DEMAND AS SELECT grp, amt FROM t")
    engine.execute("INSERT INTO t SELECT id, 'c', id % 3 FROM range(100, 190)")
    with (
        limited(engine, **{**paths, "error_rows": 1}),
        pytest.raises(ResultKeyError, match=r"amt = \d") as caught,
    ):
        engine.refresh("q")
    assert len(caught.value.detail) < 100


@pytest.mark.parametrize("mode", ["TRANSACTIONAL", "COMPRESSED"])
def test_a_recomputed_query_gives_the_same_deltas(engine: Engine, mode: str) -> None:
    query = "SELECT grp, max(amt) AS m, count(*) AS n FROM t GROUP BY grp HAVING count(*) > 1"
    engine.execute(f"CREATE CONTINUOUS QUERY q COMPUTE {mode} DELTA ON DEMAND AS {query}")
    engine.execute(
        f"CREATE CONTINUOUS QUERY f PRIMARY KEY (grp) COMPUTE {mode} DELTA ON DEMAND WITH (refresh = 'full') AS {query}"
    )
    assert engine.describe("f").verdict == "FULL"
    for statement in (
        "INSERT INTO t VALUES (5, 'b', 9)",
        "DELETE FROM t WHERE id = 2",
        "UPDATE t SET amt = 0 WHERE id = 5",
    ):
        engine.execute(statement)
    engine.refresh("q")
    engine.refresh("f")
    assert deltas(engine, "q") == deltas(engine, "f") != []
    with pytest.raises(AnalysisError, match="incrementally"):
        engine.execute(
            "CREATE CONTINUOUS QUERY r ON DEMAND WITH (refresh = 'incremental') AS"
            " WITH RECURSIVE r(n) AS (SELECT id FROM t UNION ALL SELECT n + 1 FROM r WHERE n < 3) SELECT n FROM r"
        )


def test_errors_name_the_place_in_the_script(engine: Engine, tmp_path: Path) -> None:
    script = tmp_path / "s.cql"
    script.write_text("SELECT 1 AS one;\n\nSELECT id,\n       wrong\nFROM t;\n")
    with pytest.raises(AnalysisError) as raised:
        engine.run_script(script)
    location = raised.value.location
    assert location is not None
    assert (location.source, location.line, location.column) == (str(script), 4, 8)
    assert "       ^" in raised.value.render()


def test_show_explain_and_check(engine: Engine) -> None:
    engine.execute(
        "CREATE TABLE c (id INT, t INT, PRIMARY KEY (id), FOREIGN KEY (t) REFERENCES t (id) NOT ENFORCED RELY)"
    )
    engine.execute("INSERT INTO c VALUES (1, 1), (2, 77)")
    found = {row[1].split(" ")[0]: row[2] for row in engine.execute("CHECK CONSTRAINTS ON c").fetchall()}
    assert found == {"PRIMARY": 0, "FOREIGN": 1}
    engine.execute("CREATE CONTINUOUS QUERY q ON DEMAND AS SELECT grp, sum(amt) AS s FROM t GROUP BY grp")
    shown = engine.execute("SHOW CONTINUOUS QUERIES").to_arrow().to_pylist()[0]
    assert (shown["name"], shown["verdict"], shown["key"]) == ("q", "INCREMENTAL", "(grp)")
    plan = "\n".join(row[0] for row in engine.execute("EXPLAIN CONTINUOUS QUERY q").fetchall())
    assert "INCREMENTAL" in plan
    assert "changes_of_t" in plan
    engine.execute("INSERT INTO t VALUES (9, 'z', 1)")
    engine.refresh("q")
    (refreshed,) = engine.execute("SHOW REFRESHES FOR q").to_arrow().to_pylist()
    assert refreshed["inserted"] == 1
    assert refreshed["seconds"] == round(refreshed["seconds"], 3) > 0, "milliseconds are all that can be read"


def test_explain_of_a_query_is_sparks_plan(engine: Engine) -> None:
    plan = "\n".join(row[0] for row in engine.execute("EXPLAIN SELECT grp, sum(amt) FROM t GROUP BY grp"))
    assert "HashAggregate" in plan
    assert "cq_t_" not in plan
    with pytest.raises(AnalysisError, match="only queries"):
        engine.execute("EXPLAIN INSERT INTO t VALUES (1, 'a', 1)")


def test_describe_shows_the_whole_statement(engine: Engine) -> None:
    engine.execute(
        f"CREATE CONTINUOUS QUERY q AS SELECT grp, sum(amt) AS s, '{'x' * 80}' AS x FROM t GROUP BY grp"
    )
    shown = render_result(engine.execute("DESCRIBE q"), 1, width=40)
    assert "x" * 80 in shown
    assert "\\n" not in shown
    assert "|   COMPUTE TRANSACTIONAL" in shown


def test_options_that_there_are_not(engine: Engine) -> None:
    with pytest.raises(AnalysisError, match="there is no option retentoin") as raised:
        engine.execute("SET retentoin = '5 days'")
    assert raised.value.hint == "did you mean retention?"
    assert raised.value.location is not None
    assert raised.value.location.column == 5
    with pytest.raises(AnalysisError, match="no option foo") as raised:
        engine.execute("SET foo = bar")
    assert "options are copy_paths, look_up_cache, maintenance" in raised.value.hint
    engine.execute("SET RETENTION = '5 days'")
    assert engine.conf["retention"] == "5 days"


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("MERGE INTO t USING (SELECT 1 AS i) u ON t.id = u.nope WHEN MATCHED THEN DELETE", "`u`.`nope`"),
        ("SELECT nofunc(id) FROM t", "Cannot resolve routine `nofunc`."),
        (
            "CREATE FUNCTION f(a INT) RETURNS INT RETURN a + (SELECT max(id) FROM nowhere)",
            "`nowhere` cannot be found.",
        ),
        ("SELECT id / (amt - amt) FROM t", "Division by zero"),
        ("SELECT a.nope FROM t AS a", "`a`.`nope`"),
        ("EXPLAIN SELECT nope FROM t", "`nope`"),
        ("SET spark.sql.ansi.enabled = maybe", "'maybe'"),
    ],
)
def test_errors_name_nothing_of_the_engines_own(engine: Engine, statement: str, message: str) -> None:
    with pytest.raises(CQError) as raised:
        engine.execute(statement).fetchall()
    assert message in raised.value.message
    assert not re.search(r"\b_?cq_|\b_s\d|_row_id|spark_catalog|SQLSTATE", raised.value.render())


def test_an_error_while_rows_are_computed_has_its_place(engine: Engine) -> None:
    result = engine.execute("SELECT id,\n  1 / (amt - amt) FROM t", source="s.cql", line=7, column=3)
    with pytest.raises(CQError) as raised:
        result.head(1)
    assert raised.value.render().startswith("s.cql:8:3: error: Division by zero")
    with pytest.raises(CatalogError) as failed:
        engine.execute("DROP TABLE nowhere", source="s.cql", line=7, column=3)
    assert failed.value.render().startswith("s.cql:7:14: error: ")


def test_transaction_statements_in_the_wrong_place(engine: Engine) -> None:
    with pytest.raises(TransactionError, match="without a transaction"):
        engine.execute("COMMIT")
    engine.execute("BEGIN")
    engine.execute("INSERT INTO t VALUES (8, 'h', 1)")
    assert engine.execute("SELECT count(*) FROM t").fetchall() == [(4,)]
    with pytest.raises(TransactionError, match="inside a transaction"):
        engine.execute("CREATE TABLE u (id INT)")
    engine.execute("ROLLBACK")
    assert engine.execute("SELECT count(*) FROM t").fetchall() == [(3,)]
    with pytest.raises(CatalogError):
        engine.describe("nobody")
