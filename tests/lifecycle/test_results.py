"""`SELECT … FROM q`: the result of a continuous query, at the newest version that it has processed and at earlier ones."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine import AnalysisError, CQError, Engine, ManualClock, StorageError
from tests.oracle.law import difference, row_of

SUMS = "SELECT grp, sum(amt) AS s, count(*) AS n, max(amt) AS top FROM t GROUP BY grp"
QUERIES = {
    "sums": SUMS,
    "large": f"SELECT grp, s FROM ({SUMS}) WHERE s > 0",
    "total": "SELECT sum(amt) AS s, count(*) AS n, avg(amt) AS a FROM t",
    "joined": "SELECT t.id, t.amt, g.boss FROM t JOIN g ON g.grp = t.grp",
    "bosses": "SELECT g.grp, g.boss, x.s FROM g LEFT JOIN (SELECT grp, sum(amt) AS s FROM t GROUP BY grp) x ON x.grp = g.grp",
    "bag": "SELECT grp, amt FROM t UNION ALL SELECT grp, boss FROM g",
    "ranked": "SELECT id, grp, row_number() OVER (PARTITION BY grp ORDER BY amt, id) AS r FROM t",
    "kinds": "SELECT grp, count(DISTINCT amt) AS n FROM t GROUP BY grp",
    "best": "SELECT id, amt FROM t ORDER BY amt DESC, id LIMIT 2",
    "whole": "WITH RECURSIVE r(n) AS (SELECT max(amt) FROM t UNION ALL SELECT n - 1 FROM r WHERE n > 8) SELECT n FROM r",
}
"""Queries of every verdict, keyed and not, with states and without."""


def create_tables(engine: Engine) -> None:
    engine.execute("CREATE TABLE t (id INT, grp STRING, amt INT, PRIMARY KEY (id))")
    engine.execute("CREATE TABLE g (grp STRING, boss INT, PRIMARY KEY (grp))")
    engine.execute("CREATE TABLE u (id INT)")
    engine.execute("INSERT INTO t VALUES (1, 'a', 5), (2, 'a', -7), (3, 'b', 9), (4, NULL, 2)")
    engine.execute("INSERT INTO g VALUES ('a', 1), ('b', 1), ('c', 2)")


@pytest.fixture
def engine(warehouse: Path, spark: SparkSession) -> Iterator[Engine]:
    with cq_engine.connect(warehouse, spark=spark, scheduler=False) as opened:
        create_tables(opened)
        yield opened


def rows(engine: Engine, sql: str) -> list[tuple[object, ...]]:
    return sorted((row_of(row) for row in engine.execute(sql).fetchall()), key=repr)


def way(engine: Engine, sql: str) -> str:
    """What EXPLAIN says of the first query that is read."""
    return str(engine.execute(f"EXPLAIN {sql}").fetchall()[0][0])


def change(engine: Engine, chance: random.Random) -> None:
    """One commit of any kind, which may concern some queries only."""
    number, group = chance.randint(1, 6), chance.choice(("NULL", "'a'", "'b'"))
    statements = (
        f"INSERT INTO t SELECT coalesce(max(id), 0) + 1, {group}, {number - 4} FROM t",
        f"INSERT INTO t SELECT coalesce(max(id), 0) + 1, {group}, {number} FROM t",
        f"UPDATE t SET grp = {group}, amt = amt + 3 WHERE id >= {number}",
        f"DELETE FROM t WHERE id = {number} OR amt < -5",
        f"UPDATE g SET boss = {number} WHERE grp = 'a'",
        f"INSERT INTO u VALUES ({number})",
    )
    engine.execute(chance.choice(statements))


def at(text: str, version: int) -> str:
    """The query over the tables as they were."""
    return re.sub(r"\b(FROM|JOIN) ([tg])\b", rf"\1 \2 VERSION AS OF {version}", text)


@pytest.mark.parametrize("mode", ["TRANSACTIONAL", "COMPRESSED"])
def test_the_result_is_that_of_the_tables_at_every_version(
    warehouse: Path, spark: SparkSession, mode: str
) -> None:
    """Over a random history with refreshes and upkeep in between; the last two are in a query group."""
    chance = random.Random(mode)
    alike = {f"alike{n}": f"SELECT grp, sum(amt) AS s FROM t WHERE id > {n} GROUP BY grp" for n in (1, 2)}
    positions: dict[str, list[int]] = {}
    with cq_engine.connect(warehouse, spark=spark, scheduler=False) as engine:
        create_tables(engine)
        for name, text in {**QUERIES, **alike}.items():
            group = "on" if name in alike else "off"
            engine.execute(
                f"CREATE CONTINUOUS QUERY {name} COMPUTE {mode} DELTA ON DEMAND WITH (query_group = '{group}') AS {text}"
            )
            positions[name] = [engine.describe(name).position]
        for step in range(6):
            change(engine, chance)
            for name in positions:
                if chance.random() < 0.35:
                    engine.refresh(name)
            for name, seen in positions.items():
                seen.append(engine.describe(name).position)
            if step == 3:
                engine.maintain()
        for name, seen in positions.items():
            check(engine, name, {**QUERIES, **alike}[name], sorted(set(seen)), mode, chance)


def check(
    engine: Engine, name: str, wanted: str, positions: list[int], mode: str, chance: random.Random
) -> None:
    """The result now, at a position of earlier and in between."""
    assert not difference(rows(engine, f"SELECT * FROM {name}"), rows(engine, at(wanted, positions[-1]))), (
        name
    )
    for version in {chance.choice(positions), chance.randint(positions[0], positions[-1])}:
        stood = version if mode == "TRANSACTIONAL" else max(p for p in positions if p <= version)
        got = rows(engine, f"SELECT * FROM {name} VERSION AS OF {version}")
        assert not difference(got, rows(engine, at(wanted, stood))), (name, version, stood)


def test_explain_says_from_where_the_rows_come(engine: Engine) -> None:
    engine.execute(f"CREATE CONTINUOUS QUERY sums ON DEMAND AS {SUMS}")
    engine.execute(f"CREATE CONTINUOUS QUERY joined ON DEMAND AS {QUERIES['joined']}")
    assert (
        way(engine, "SELECT * FROM sums")
        == "sums: its result at version 2, from the groups that are stored for it"
    )
    assert way(engine, "SELECT * FROM joined") == "joined: its result at version 2, computed by its query"
    engine.execute("CREATE CONTINUOUS QUERY big ON DEMAND AS SELECT grp FROM sums WHERE s > 0")
    said = "sums: its result at version 2, from the table kept for the queries that read it"
    assert way(engine, "SELECT * FROM sums") == said
    engine.execute("INSERT INTO t VALUES (9, 'z', 1)")
    assert way(engine, "SELECT * FROM sums") == said
    engine.refresh("sums")
    assert way(engine, "SELECT * FROM sums").startswith("sums: its result at version 3, ")
    assert way(engine, "SELECT * FROM sums VERSION AS OF 2") == said
    plan = "\n".join(row[0] for row in engine.execute("EXPLAIN CONTINUOUS QUERY joined").fetchall())
    assert "computed by its query" in plan


def test_results_are_relations_like_others(engine: Engine) -> None:
    engine.execute(f"CREATE CONTINUOUS QUERY sums ON DEMAND AS {SUMS}")
    engine.execute(
        "CREATE CONTINUOUS QUERY marked ON DEMAND AS"
        " SELECT id, amt, delta_marker() AS m, cq_old_value(amt) AS was, cq_commit_version() AS v FROM t"
    )
    assert engine.execute("SELECT * FROM marked").columns == ["id", "amt"]
    assert rows(engine, "SELECT g.boss, sums.s FROM g JOIN sums ON sums.grp = g.grp") == rows(
        engine, f"SELECT g.boss, sums.s FROM g JOIN ({SUMS}) sums ON sums.grp = g.grp"
    )
    assert rows(engine, "SELECT count(*) FROM sums a JOIN marked b ON b.amt = a.top") == [row_of((3,))]
    assert rows(engine, "WITH sums AS (SELECT 1 AS one) SELECT * FROM sums") == [row_of((1,))]
    assert rows(
        engine, "SELECT grp FROM `sums` AS x WHERE EXISTS (SELECT 1 FROM sums s WHERE s.s > x.s)"
    ) == rows(
        engine, f"SELECT grp FROM ({SUMS}) AS x WHERE EXISTS (SELECT 1 FROM ({SUMS}) s WHERE s.s > x.s)"
    )
    engine.execute("CREATE TABLE copied AS SELECT * FROM sums")
    engine.execute("INSERT INTO u SELECT s FROM sums WHERE s > 0")
    engine.execute("DELETE FROM t WHERE grp IN (SELECT grp FROM sums WHERE s > 5)")
    assert rows(engine, "SELECT * FROM copied") == rows(engine, "SELECT * FROM sums")
    assert rows(engine, "SELECT DISTINCT grp FROM t WHERE grp = 'b'") == []
    for bad in ("INSERT INTO sums VALUES ('a', 1, 1, 1)", "DELETE FROM sums", "UPDATE sums SET s = 1"):
        with pytest.raises(AnalysisError, match="sums is a continuous query, not a table"):
            engine.execute(bad)


def test_versions_that_are_not_there(engine: Engine) -> None:
    engine.execute(f"CREATE CONTINUOUS QUERY sums ON DEMAND AS {SUMS}")
    engine.execute("INSERT INTO u VALUES (1)")
    before = rows(engine, "SELECT * FROM sums")
    assert rows(engine, "SELECT * FROM sums VERSION AS OF 3") == before  # nothing that it reads has changed
    engine.execute("INSERT INTO t VALUES (9, 'z', 1)")
    for version, problem in (
        (1, "sums had no result at version 1"),
        (4, "sums has not processed version 4 yet"),
        (5, "there is no version 5 of sums yet"),
    ):
        with pytest.raises(AnalysisError, match=problem) as caught:
            engine.execute(f"SELECT 1 FROM sums VERSION AS OF {version}")
        assert caught.value.location is not None
        assert caught.value.location.column == len("SELECT 1 FROM ") + 1
    engine.execute("ALTER CONTINUOUS QUERY sums PAUSE")
    with pytest.raises(AnalysisError, match="version 4") as caught:
        engine.execute("SELECT * FROM sums VERSION AS OF 4")
    assert "PAUSED" in caught.value.detail
    assert "RESUME" in caught.value.hint
    assert rows(engine, "SELECT * FROM sums") == before


def test_time_stamps(warehouse: Path, spark: SparkSession) -> None:
    clock = ManualClock(datetime(2024, 5, 1, tzinfo=timezone.utc))
    with cq_engine.connect(warehouse, spark=spark, scheduler=False, clock=clock) as engine:
        create_tables(engine)
        engine.execute(f"CREATE CONTINUOUS QUERY sums ON DEMAND AS {SUMS}")
        before = rows(engine, "SELECT * FROM sums")
        clock.set(clock.now() + timedelta(hours=1))
        engine.execute("DELETE FROM t")
        engine.refresh("sums")
        assert rows(engine, "SELECT * FROM sums") == []
        assert rows(engine, "SELECT * FROM sums TIMESTAMP AS OF '2024-05-01 00:30:00'") == before


def test_a_query_that_has_failed_gives_what_it_has(engine: Engine) -> None:
    engine.execute("CREATE CONTINUOUS QUERY parts ON DEMAND AS SELECT id, 100 / amt AS part FROM t")
    before = rows(engine, "SELECT * FROM parts")
    engine.execute("INSERT INTO t VALUES (9, 'z', 0)")
    with pytest.raises(CQError):
        engine.refresh("parts")
    assert engine.describe("parts").state == "FAILED"
    assert rows(engine, "SELECT * FROM parts") == before
    engine.execute(
        "CREATE CONTINUOUS QUERY bad ON DEMAND AS SELECT id, 1 / (amt - 5) AS part FROM t WHERE amt <> 5"
    )
    engine.execute("ALTER CONTINUOUS QUERY parts RESUME FROM NOW")
    with pytest.raises(CQError, match=r"[Dd]ivision by zero") as caught:
        rows(engine, "SELECT part, id, part + 1 AS more FROM parts")
    assert caught.value.location is None  # the text that fails is not this one


def test_inside_transactions(engine: Engine) -> None:
    engine.execute(f"CREATE CONTINUOUS QUERY sums ON DEMAND AS {SUMS}")
    before = rows(engine, "SELECT * FROM sums")
    with engine.transaction() as transaction:
        transaction.execute("INSERT INTO t VALUES (8, 'own', 1)")
        engine.execute("INSERT INTO t VALUES (9, 'z', 1)")
        engine.refresh("sums")
        assert sorted(map(row_of, transaction.execute("SELECT * FROM sums").fetchall()), key=repr) == before
        assert len(rows(engine, "SELECT * FROM sums")) == len(before) + 1
    engine.refresh("sums")
    assert len(rows(engine, "SELECT * FROM sums")) == len(before) + 2


def test_compressed_results_are_those_of_refreshes(engine: Engine) -> None:
    for name, text in (("sums", SUMS), ("read", SUMS)):
        engine.execute(f"CREATE CONTINUOUS QUERY {name} COMPUTE COMPRESSED DELTA ON DEMAND AS {text}")
    engine.execute("CREATE CONTINUOUS QUERY over ON DEMAND AS SELECT grp FROM read")
    before = rows(engine, "SELECT * FROM sums")
    for number in (7, 8, 9):
        engine.execute(f"INSERT INTO t VALUES ({number}, 'z', 1)")
    engine.refresh("sums")
    engine.refresh("over")
    for name in ("sums", "read"):
        for version in (2, 3, 4):
            assert rows(engine, f"SELECT * FROM {name} VERSION AS OF {version}") == before, (name, version)
        assert rows(engine, f"SELECT * FROM {name} VERSION AS OF 5") == rows(engine, SUMS)


def test_another_defining_query(engine: Engine) -> None:
    for name in ("alone", "read"):
        engine.execute(
            f"CREATE CONTINUOUS QUERY {name} ON DEMAND AS SELECT grp, sum(amt) AS s FROM t GROUP BY grp"
        )
    engine.execute("CREATE CONTINUOUS QUERY over ON DEMAND AS SELECT grp FROM read")
    before = rows(engine, "SELECT * FROM alone")
    for name in ("alone", "read"):
        engine.execute(f"ALTER CONTINUOUS QUERY {name} AS SELECT grp, sum(amt) + 1 AS s FROM t GROUP BY grp")
        version = engine.describe(name).position
        after = rows(engine, "SELECT grp, sum(amt) + 1 AS s FROM t GROUP BY grp")
        assert rows(engine, f"SELECT * FROM {name}") == after
        assert rows(engine, f"SELECT * FROM {name} VERSION AS OF {version}") == after
    with pytest.raises(AnalysisError, match="alone had another defining query at version 2"):
        engine.execute("SELECT * FROM alone VERSION AS OF 2")
    assert rows(engine, "SELECT * FROM read VERSION AS OF 2") == before


def test_settings_are_those_of_the_query(engine: Engine) -> None:
    engine.execute(
        "CREATE CONTINUOUS QUERY hours ON DEMAND AS"
        " SELECT id, CAST(TIMESTAMP_SECONDS(amt) AS STRING) AS moment FROM t"
    )
    before = rows(engine, "SELECT * FROM hours")
    try:
        engine.execute("SET spark.sql.session.timeZone = 'Asia/Tokyo'")
        assert rows(engine, "SELECT * FROM hours") == before
        assert rows(engine, "SELECT id, CAST(TIMESTAMP_SECONDS(amt) AS STRING) AS moment FROM t") != before
    finally:
        engine.execute("SET spark.sql.session.timeZone = 'UTC'")


def test_versions_that_are_no_longer_kept(engine: Engine) -> None:
    engine.execute(f"CREATE CONTINUOUS QUERY sums ON DEMAND AS {SUMS}")
    for number in (7, 8, 9):
        engine.execute(f"INSERT INTO t VALUES ({number}, 'z', 1)")
        engine.refresh("sums")
    engine.execute("COMPACT TABLE t")
    engine.execute("VACUUM RETAIN 0 MINUTES")
    assert rows(engine, "SELECT * FROM sums") == rows(engine, SUMS)
    with pytest.raises(StorageError, match="the result of sums at version 3 cannot be computed any more"):
        rows(engine, "SELECT * FROM sums VERSION AS OF 3")


def test_readers_and_empty_warehouses(warehouse: Path, spark: SparkSession) -> None:
    with cq_engine.connect(warehouse, spark=spark, scheduler=False) as engine:
        engine.execute("CREATE TABLE t (id INT, grp STRING, amt INT, PRIMARY KEY (id))")
        engine.execute(f"CREATE CONTINUOUS QUERY sums ON DEMAND AS {SUMS}")
        engine.execute("CREATE CONTINUOUS QUERY total ON DEMAND AS SELECT count(*) AS n FROM t")
        assert rows(engine, "SELECT * FROM sums") == []
        assert rows(engine, "SELECT * FROM total") == [row_of((0,))]
        with cq_engine.connect(warehouse, spark=spark, read_only=True) as reader:
            assert rows(reader, "SELECT * FROM total") == [row_of((0,))]
            engine.execute("INSERT INTO t VALUES (1, 'a', 5)")
            assert rows(reader, "SELECT * FROM total") == [row_of((0,))]
            engine.refresh("total")
            assert rows(reader, "SELECT * FROM total") == [row_of((1,))]
