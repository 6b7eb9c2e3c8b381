"""Destinations with `mode = 'merge'`: the table is the query's current result, and right at every version."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine import AnalysisError, CatalogError, CQError, Engine
from tests.lifecycle.test_results import QUERIES, at, change, create_tables, rows
from tests.oracle.law import difference

MERGE = "TYPE table WITH (mode = 'merge')"


@pytest.fixture
def engine(warehouse: Path, once: SparkSession) -> Iterator[Engine]:
    with cq_engine.connect(warehouse, spark=once, scheduler=False) as opened:
        create_tables(opened)
        yield opened


def equal(engine: Engine, name: str, wanted: str, position: int, version: int | None = None) -> None:
    """The table, at a version, is the query over the tables as they were at `position`."""
    clause = "" if version is None else f" VERSION AS OF {version}"
    got = rows(engine, f"SELECT * FROM {name}{clause}")
    assert not difference(got, rows(engine, at(wanted, position))), (name, version, position)


@pytest.mark.parametrize("mode", ["TRANSACTIONAL", "COMPRESSED"])
def test_every_version_is_the_result_at_that_version(warehouse: Path, once: SparkSession, mode: str) -> None:
    """Keyed and not, with states and without, over a random history; one half is created with the query, the other half
    added to one that has run. Among them are a row that is there many times, and a query over such a table."""
    chance = random.Random(f"merge {mode}")
    queries = {
        **{name: QUERIES[name] for name in ("sums", "bosses", "bag")},
        "twice": "SELECT grp, s FROM sums_now UNION ALL SELECT grp, s FROM sums_now",
    }
    sums = f"(SELECT * FROM ({QUERIES['sums']}))"
    positions: dict[str, list[int]] = {name: [] for name in queries}
    with cq_engine.connect(warehouse, spark=once, scheduler=False) as engine:
        create_tables(engine)
        for number, (name, text) in enumerate(queries.items()):
            engine.execute(f"CREATE DESTINATION {name}_now {MERGE}")
            clause = f"DESTINATION {name}_now, TABLE {name}_log" if number % 2 == 0 else ""
            engine.execute(
                f"CREATE CONTINUOUS QUERY {name} COMPUTE {mode} DELTA ON DEMAND {clause} AS {text}"
            )
        for step in range(5):
            if step == 2:
                for name in list(queries)[1::2]:
                    engine.execute(f"ALTER CONTINUOUS QUERY {name} SET DESTINATION {name}_now")
            change(engine, chance)
            for name in queries:
                if chance.random() < 0.5:
                    engine.refresh(name)
            for name, seen in positions.items():  # a refresh begins with what it reads
                if step > 1:
                    seen.append(engine.describe(name).position)
            if step == 3:
                engine.maintain()
        for name, seen in positions.items():
            wanted = queries[name].replace("sums_now", sums)
            equal(engine, f"{name}_now", wanted, seen[-1])
            version = chance.randint(seen[0], seen[-1])
            stood = version if mode == "TRANSACTIONAL" else max(p for p in seen if p <= version)
            if mode == "COMPRESSED" and name == "twice":  # its versions are those of what it reads, too
                version = stood = seen[-1]
            equal(engine, f"{name}_now", wanted, stood, version)


def test_it_is_one_table_of_one_query(engine: Engine, warehouse: Path, once: SparkSession) -> None:
    text = QUERIES["sums"]
    engine.execute(f"CREATE DESTINATION now {MERGE}")
    engine.execute(f"CREATE CONTINUOUS QUERY sums DESTINATION now AS {text}")
    equal(engine, "now", text, engine.catalog.newest_version)
    assert engine.execute("SELECT n.grp FROM now n JOIN g ON g.grp = n.grp WHERE g.boss = 1").fetchall()
    assert ("now", 4, "(grp)", True, "") in engine.execute("SHOW TABLES").fetchall()
    assert engine.execute("DESCRIBE now").fetchall()[0][:4] == ("grp", "string", True, True)
    engine.execute("INSERT INTO t VALUES (9, 'z', 1)")
    engine.drain()
    row = engine.execute("SHOW DESTINATIONS").to_arrow().to_pylist()[0]
    assert (row["destination"], row["type"], row["delivered"], row["lag_versions"]) == ("now", "table", 3, 0)
    assert engine.execute("SELECT grp FROM now CHANGES FROM VERSION 3 TO VERSION 3").fetchall() == [("z",)]
    engine.close()
    with cq_engine.connect(warehouse, spark=once, scheduler=False) as again:
        equal(again, "now", text, 3)
        again.execute(
            f"CREATE OR REPLACE CONTINUOUS QUERY sums DESTINATION now AS {text} HAVING sum(amt) > 0"
        )
        equal(again, "now", f"{text} HAVING sum(amt) > 0", 4)
        again.execute("CREATE CONTINUOUS QUERY above AS SELECT grp, s FROM now WHERE s > 3")
        again.execute("INSERT INTO t VALUES (10, 'z', 5)")
        again.drain()
        equal(again, "above", f"SELECT grp, s FROM ({text}) WHERE s > 3", 5)
        for sql in ("DROP DESTINATION now CASCADE", "ALTER CONTINUOUS QUERY sums SET NO DESTINATION"):
            with pytest.raises(CatalogError) as caught:
                again.execute(sql)
            assert caught.value.detail == "read by above"
        again.execute("DROP CONTINUOUS QUERY above")
        again.execute("DROP DESTINATION now CASCADE")
        assert again.queries.find("sums").relation is None
        with pytest.raises(AnalysisError, match="there is no table now"):
            again.execute("SELECT * FROM now")


def test_it_begins_in_an_empty_warehouse(warehouse: Path, once: SparkSession) -> None:
    with cq_engine.connect(warehouse, spark=once, scheduler=False) as engine:
        engine.execute("CREATE TABLE t (id INT PRIMARY KEY, grp STRING)")
        engine.execute(f"CREATE DESTINATION now {MERGE}")
        engine.execute("CREATE CONTINUOUS QUERY q DESTINATION now AS SELECT grp, 1 AS one FROM t")
        engine.execute("CREATE CONTINUOUS QUERY r AS SELECT count(*) AS n FROM t")
        engine.execute(f"CREATE DESTINATION count_now {MERGE}")
        engine.execute("ALTER CONTINUOUS QUERY r SET DESTINATION count_now")
        assert engine.execute("SELECT * FROM now").fetchall() == []
        assert engine.execute("SELECT * FROM count_now").fetchall() == [(0,)]
        engine.execute("INSERT INTO t VALUES (1, 'a'), (2, 'a'), (3, 'b')")
        engine.execute("DELETE FROM t WHERE id = 2")
        engine.drain()
        assert rows(engine, "SELECT grp FROM now") == [("a",), ("b",)]
        assert engine.execute("SELECT n FROM count_now").fetchall() == [(2,)]


def test_a_member_of_a_group_goes_on_alone(engine: Engine) -> None:
    text = "SELECT id, amt FROM t WHERE amt > {}"
    for number in (1, 2, 3):
        engine.execute(f"CREATE CONTINUOUS QUERY q{number} AS {text.format(number)}")
    assert engine.queries.find("q3").group is not None
    engine.execute(f"CREATE DESTINATION now {MERGE}")
    engine.execute(f"CREATE DESTINATION other {MERGE}")
    engine.execute("ALTER CONTINUOUS QUERY q3 SET DESTINATION now")
    engine.execute(f"CREATE CONTINUOUS QUERY q4 DESTINATION other AS {text.format(4)}")
    assert engine.queries.find("q3").group is engine.queries.find("q4").group is None
    engine.execute("INSERT INTO t VALUES (7, 'c', 4), (8, 'c', 5)")
    engine.drain()
    equal(engine, "now", text.format(3), 3)
    equal(engine, "other", text.format(4), 3)


@pytest.mark.parametrize(
    ("sql", "message", "hint"),
    [
        (f"CREATE DESTINATION t {MERGE}", "there is a table t already", "mode = 'history'"),
        (f"CREATE DESTINATION q {MERGE}", "there is a continuous query q already", "another name"),
        ("CREATE TABLE now (a INT)", "now is the name of a destination", "another name"),
        (
            "CREATE CONTINUOUS QUERY now AS SELECT 1 AS a FROM t",
            "now is the name of a destination",
            "another name",
        ),
        (
            "CREATE CONTINUOUS QUERY r DESTINATION now AS SELECT id FROM t",
            "now is the result of q",
            "another",
        ),
        (
            "CREATE CONTINUOUS QUERY r DESTINATION TABLE now AS SELECT id FROM t",
            "now is the result of q",
            "another",
        ),
        ("CREATE OR REPLACE CONTINUOUS QUERY q DESTINATION now AS SELECT id FROM now", "its own result", ""),
        ("ALTER DESTINATION now PAUSE", "PAUSE is not for now", "ALTER CONTINUOUS QUERY q PAUSE"),
        ("ALTER DESTINATION now REPLAY FROM VERSION 1", "REPLAY is not for now", ""),
        ("ALTER DESTINATION now SET WITH (mode = 'history')", "q delivers to MERGE now already", ""),
        ("ALTER DESTINATION now SET WITH (on_failure = pause)", "on_failure is not for mode = 'merge'", ""),
        ("INSERT INTO now VALUES (5)", "now is the result of q, not a table", ""),
        ("DROP TABLE now", "now is a destination, the result of q", "DROP DESTINATION now"),
        ("FOLLOW now", "now is a destination, the result of q", "write q"),
    ],
)
def test_errors(shared: Engine, sql: str, message: str, hint: str) -> None:
    with pytest.raises(CQError) as caught:
        shared.execute(sql)
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert set(shared.catalog.state.destinations) == {"now"}


@pytest.fixture(scope="module")
def shared(once: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with cq_engine.connect(tmp_path_factory.mktemp("shared"), spark=once, scheduler=False) as opened:
        opened.execute("CREATE TABLE t (id INT PRIMARY KEY)")
        opened.execute(f"CREATE DESTINATION now {MERGE}")
        opened.execute("CREATE CONTINUOUS QUERY q DESTINATION now AS SELECT id FROM t")
        yield opened
