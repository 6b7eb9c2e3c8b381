"""Continuous queries over continuous queries: what they read, in which order they go, and what holds them up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine import AnalysisError, CatalogError, Engine, RefreshError
from cq_engine.core.limits import Limits
from tests.lifecycle.chains import Chain, Step, check_chain
from tests.limits import forced
from tests.oracle.budget import LARGE_RUN
from tests.oracle.generate import History, TableSpec

T = TableSpec("t", (("id", "INT"), ("grp", "STRING"), ("amt", "INT")), ("id",))
G = TableSpec("g", (("grp", "STRING"), ("boss", "INT")), ("grp",))
INITIAL = (
    "INSERT INTO t VALUES (1, 'a', 5), (2, 'a', -7), (3, 'b', 1), (4, NULL, 2)",
    "INSERT INTO g VALUES ('a', 1), ('b', 1), ('c', 2)",
)
TRANSACTIONS = (
    ("UPDATE t SET amt = amt + 10 WHERE id IN (2, 4)",),
    ("INSERT INTO t VALUES (5, 'c', 9), (6, 'a', 5)", "DELETE FROM g WHERE grp = 'b'"),
    ("UPDATE g SET boss = 2 WHERE grp = 'a'",),
    ("DELETE FROM t WHERE grp = 'a' AND amt = 5",),
    ("UPDATE t SET grp = 'b' WHERE id = 5", "INSERT INTO g VALUES ('b', 3)"),
    ("UPDATE t SET id = id + 1 WHERE id >= 3",),
    ("DELETE FROM t", "INSERT INTO t VALUES (1, 'a', 5)"),
)
SHAPES = {
    "three_deep": (
        Step("sums", "SELECT grp, sum(amt) AS s, count(*) AS n FROM t GROUP BY grp"),
        Step("big", "SELECT grp, s FROM sums WHERE s > 0"),
        Step("led", "SELECT g.grp, boss, s FROM g LEFT JOIN big ON big.grp = g.grp"),
        Step("bosses", "SELECT boss, sum(s) AS s, count(s) AS n FROM led GROUP BY boss"),
    ),
    "diamond": (
        Step("sums", "SELECT grp, sum(amt) AS s FROM t GROUP BY grp"),
        Step("tops", "SELECT grp, max(amt) AS m FROM t GROUP BY grp"),
        Step("joined", "SELECT sums.grp, s, m FROM sums JOIN tops ON sums.grp = tops.grp"),
        Step("wrong", "SELECT grp, s, m FROM joined WHERE s > 0 AND m IS NULL"),
        Step("beside", "SELECT t.id, t.amt, s, m FROM t JOIN joined ON joined.grp = t.grp"),
    ),
    "with_itself": (
        Step("sums", "SELECT grp, sum(amt) AS s FROM t GROUP BY grp"),
        Step("pairs", "SELECT a.grp, b.grp AS other, a.s - b.s AS d FROM sums a JOIN sums b ON a.s > b.s"),
        Step("all_pairs", "SELECT a.grp, b.grp AS other FROM sums a FULL JOIN sums b ON a.s = b.s + 1"),
    ),
    "without_a_key": (
        Step("bag", "SELECT grp, amt FROM t UNION ALL SELECT grp, boss FROM g"),
        Step("counted", "SELECT grp, amt, count(*) AS n FROM bag GROUP BY grp, amt"),
        Step("twice", "SELECT a.grp, b.amt FROM bag a JOIN bag b ON a.grp = b.grp AND a.amt <= b.amt"),
        Step("total", "SELECT count(*) AS n, sum(amt) AS s FROM twice"),
    ),
}


def chain(shape: str, modes: tuple[str, ...]) -> Chain:
    steps = tuple(Step(step.name, step.query, modes[n % len(modes)]) for n, step in enumerate(SHAPES[shape]))
    return Chain(History((T, G), INITIAL, TRANSACTIONS, (), len(shape)), steps)


EACH, PACKED = ("TRANSACTIONAL",), ("COMPRESSED",)
MIXED = ("COMPRESSED", "TRANSACTIONAL")
SOME = (
    ("with_itself", EACH),
    ("diamond", PACKED),
    ("three_deep", MIXED),
    ("without_a_key", MIXED),
)
"""Every shape and every mode; `three_deep` is transactional in `test_large_deltas_cascade`."""
ALL = tuple((shape, modes) for shape in SHAPES for modes in (EACH, PACKED, MIXED))


@pytest.mark.parametrize(("shape", "modes"), ALL if LARGE_RUN else SOME)
def test_shapes(spark: SparkSession, warehouse: Path, shape: str, modes: tuple[str, ...]) -> None:
    check_chain(chain(shape, modes), spark, warehouse)


@pytest.mark.long
@pytest.mark.parametrize("shape", ["three_deep", "without_a_key"])
def test_large_deltas_cascade(spark: SparkSession, warehouse: Path, shape: str) -> None:
    limits = Limits(**forced(bulk=True, large=True))
    check_chain(chain(shape, EACH), spark, warehouse, limits)


# ------------------------------------------------------------------------------------------------ one engine


@pytest.fixture
def engine(warehouse: Path, spark: SparkSession) -> Iterator[Engine]:
    with cq_engine.connect(warehouse, spark=spark, scheduler=False) as opened:
        opened.execute("CREATE TABLE t (id INT, grp STRING, amt INT, PRIMARY KEY (id))")
        opened.execute("CREATE TABLE u (id INT, PRIMARY KEY (id))")
        opened.execute("INSERT INTO t VALUES (1, 'a', 5), (2, 'a', -7), (3, 'b', 1)")
        yield opened


def deltas(engine: Engine, query: str) -> list[tuple[object, ...]]:
    return [(d.commit_version, d.marker, d.new, d.old) for d in engine.deltas(query)]


def kept(engine: Engine) -> set[str]:
    return {q.name for q in engine.catalog.state.queries.values() if q.relation is not None}


SUMS = "SELECT grp, sum(amt) AS s FROM t GROUP BY grp"


def test_on_commit_cascades_and_drain_waits_for_the_chain(warehouse: Path, spark: SparkSession) -> None:
    with cq_engine.connect(warehouse, spark=spark) as engine:
        engine.execute("CREATE TABLE t (id INT, grp STRING, amt INT, PRIMARY KEY (id))")
        engine.execute(f"CREATE CONTINUOUS QUERY sums AS {SUMS}")
        engine.execute("CREATE CONTINUOUS QUERY big AS SELECT grp, s FROM sums WHERE s > 0")
        engine.execute("CREATE CONTINUOUS QUERY n AS SELECT count(*) AS n FROM big")
        engine.execute("CREATE CONTINUOUS QUERY news ON INSERT TO big AS SELECT grp FROM big")
        for amount in (5, -9, 3):
            engine.execute(f"INSERT INTO t VALUES ({amount + 10}, 'a', {amount})")
        engine.execute("INSERT INTO t VALUES (99, 'b', 1)")
        engine.drain(timeout=120)
        assert {engine.describe(q).position for q in ("sums", "big", "n")} == {engine.catalog.newest_version}
        counts = [d.new for d in engine.deltas("n")]
        assert counts == [(1,), (0,), (1,)]
        assert [d.new for d in engine.deltas("news")][-1] == ("b",)


def test_a_query_that_nothing_concerns_holds_nobody_up(engine: Engine) -> None:
    engine.execute(f"CREATE CONTINUOUS QUERY sums AS {SUMS}")
    engine.execute("CREATE CONTINUOUS QUERY ids AS SELECT id FROM u")
    engine.execute("CREATE CONTINUOUS QUERY both AS SELECT grp, s FROM sums, ids")
    engine.execute("INSERT INTO u VALUES (1)")
    engine.drain()
    version = engine.execute("UPDATE t SET amt = 0 WHERE id = 3").commit_version
    engine.drain()
    assert engine.describe("both").position == version
    assert deltas(engine, "both")[-2:] == [
        (version, "D", None, ("b", 1)),
        (version, "I", ("b", 0), None),
    ] or (deltas(engine, "both")[-1] == (version, "U", ("b", 0), ("b", 1)))


def test_a_refresh_by_hand_begins_with_what_it_reads(engine: Engine) -> None:
    engine.execute(f"CREATE CONTINUOUS QUERY sums ON DEMAND AS {SUMS}")
    engine.execute("CREATE CONTINUOUS QUERY big ON DEMAND AS SELECT grp, s FROM sums WHERE s > 0")
    engine.execute("CREATE CONTINUOUS QUERY n ON DEMAND AS SELECT count(*) AS n FROM big")
    version = engine.execute("INSERT INTO t VALUES (4, 'a', 9)").commit_version
    done = engine.refresh("n")
    assert (done.to_version, done.updated) == (version, 1)
    assert engine.describe("sums").position == engine.describe("big").position == version
    assert deltas(engine, "n") == [(version, "U", (2,), (1,))]


def test_a_scheduled_query_goes_only_as_far_as_what_it_reads(engine: Engine) -> None:
    engine.execute(f"CREATE CONTINUOUS QUERY sums ON DEMAND AS {SUMS}")
    engine.execute("CREATE CONTINUOUS QUERY big ON COMMIT AS SELECT grp, s FROM sums WHERE s > 0")
    before = engine.describe("big").position
    engine.execute("INSERT INTO t VALUES (4, 'a', 9)")
    engine.drain()
    assert engine.describe("big").position == before
    engine.execute("REFRESH CONTINUOUS QUERY sums")
    engine.drain()
    assert engine.describe("big").position == engine.catalog.newest_version


@pytest.mark.parametrize("how", ["PAUSED", "FAILED"])
def test_what_stands_still_holds_up_what_reads_it(engine: Engine, how: str) -> None:
    engine.execute("CREATE CONTINUOUS QUERY d PRIMARY KEY (amt) AS SELECT amt, 10 / id AS q FROM t")
    engine.execute("CREATE CONTINUOUS QUERY e AS SELECT sum(amt) AS s FROM d")
    engine.execute("CREATE CONTINUOUS QUERY f AS SELECT s FROM e")
    before = engine.describe("f").position
    if how == "PAUSED":
        engine.execute("ALTER CONTINUOUS QUERY d PAUSE")
        engine.execute("INSERT INTO t VALUES (4, 'a', 9)")
    else:
        engine.execute("INSERT INTO t VALUES (0, 'a', 9)")
        with pytest.raises(RefreshError, match="d over versions"):
            engine.refresh("f")
    assert engine.refresh("f").to_version == before
    why = f"waits for d, which is {how} at version {before}"
    assert why in engine.execute("REFRESH CONTINUOUS QUERY f").message
    assert why in {row[1] for row in engine.execute("DESCRIBE f").fetchall()}
    shown = {
        row["name"]: row["error"] for row in engine.execute("SHOW CONTINUOUS QUERIES").to_arrow().to_pylist()
    }
    assert shown["f"] == why
    if how == "FAILED":
        engine.execute("DELETE FROM t WHERE id = 0")
        engine.execute("ALTER CONTINUOUS QUERY d RESUME FROM NOW")
        engine.execute("INSERT INTO t VALUES (4, 'a', 9)")
    else:
        engine.execute("ALTER CONTINUOUS QUERY d RESUME")
    engine.refresh("f")
    assert deltas(engine, "f")[-1][1:] == ("U", (8,), (-1,)) or deltas(engine, "f")[-1][2] == (8,)
    assert engine.execute("DESCRIBE f").fetchall() == [
        row for row in engine.execute("DESCRIBE f").fetchall() if "waits" not in str(row[1])
    ]


@pytest.mark.parametrize("query", [SUMS, "SELECT grp, amt AS s FROM t UNION ALL SELECT grp, id FROM t"])
def test_skipped_versions_reach_the_readers_in_one_step(engine: Engine, query: str) -> None:
    engine.execute(f"CREATE CONTINUOUS QUERY q ON DEMAND AS {query}")
    engine.execute("CREATE CONTINUOUS QUERY r ON DEMAND AS SELECT sum(s) AS s, count(*) AS n FROM q")
    start = engine.execute(f"SELECT sum(s), count(*) FROM ({query})").fetchall()[0]
    engine.execute("INSERT INTO t VALUES (4, 'c', 9)")
    version = engine.execute("DELETE FROM t WHERE id IN (1, 3)").commit_version
    engine.execute("ALTER CONTINUOUS QUERY q RESUME FROM NOW")
    engine.refresh("r")
    now = engine.execute(f"SELECT sum(s), count(*) FROM ({query})").fetchall()[0]
    assert deltas(engine, "q") == []
    assert deltas(engine, "r") == [(version, "U", now, start)]


def test_a_compressed_source_changes_at_its_refreshes_and_branches_stay_together(engine: Engine) -> None:
    engine.execute(f"CREATE CONTINUOUS QUERY packed COMPUTE COMPRESSED DELTA ON DEMAND AS {SUMS}")
    engine.execute("CREATE CONTINUOUS QUERY n ON DEMAND AS SELECT grp, count(*) AS n FROM t GROUP BY grp")
    made = engine.execute(
        "CREATE CONTINUOUS QUERY both ON DEMAND AS SELECT n.grp, s, n FROM packed JOIN n ON n.grp = packed.grp"
    )
    assert "it changes only when it is refreshed: packed" in made.message
    first = engine.execute("INSERT INTO t VALUES (4, 'a', 9)").commit_version
    engine.queries.refreshes.refresh("n")
    second = engine.execute("INSERT INTO t VALUES (5, 'a', 1)").commit_version
    engine.queries.refreshes.refresh("packed")  # the result at `first` is nowhere now
    assert (engine.queries.refreshes.refresh("both").to_version, engine.describe("both").position) == (1, 1)
    engine.refresh("both")
    assert (first, second) == (2, 3)
    assert deltas(engine, "both")[-1][2] == ("a", 8, 4)
    assert engine.describe("both").position == second


def test_the_result_is_kept_only_while_somebody_reads_it(
    engine: Engine, warehouse: Path, spark: SparkSession
) -> None:
    engine.execute(f"CREATE CONTINUOUS QUERY sums ON DEMAND AS {SUMS}")
    with pytest.raises(AnalysisError, match="nope"):
        engine.execute("CREATE CONTINUOUS QUERY big ON DEMAND AS SELECT nope FROM sums")
    with pytest.raises(cq_engine.ResultKeyError):
        engine.execute(
            "CREATE CONTINUOUS QUERY big PRIMARY KEY (k) ON DEMAND AS SELECT 1 AS k, grp FROM sums"
        )
    assert kept(engine) == set()
    engine.execute("CREATE CONTINUOUS QUERY big ON DEMAND AS SELECT grp, s FROM sums WHERE s > 0")
    engine.execute("CREATE CONTINUOUS QUERY top ON DEMAND AS SELECT max(s) AS m FROM big")
    assert kept(engine) == {"sums", "big"}
    engine.close()
    with cq_engine.connect(warehouse, spark=spark, scheduler=False) as again:
        assert kept(again) == {"sums", "big"}
        again.execute("UPDATE t SET amt = 2 WHERE id = 3")
        again.refresh("top")
        assert [d.new for d in again.deltas("top")] == [(2,)]
        again.execute("DROP CONTINUOUS QUERY top")
        assert kept(again) == {"sums"}
        again.execute("DROP CONTINUOUS QUERY big")
        assert kept(again) == set()


def test_a_crash_between_the_steps_of_create_leaves_nothing(
    engine: Engine, warehouse: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.execute(f"CREATE CONTINUOUS QUERY sums ON DEMAND AS {SUMS}")
    monkeypatch.setattr("cq_engine.lifecycle.sources.tidy", lambda _: None)
    monkeypatch.setattr("cq_engine.lifecycle.create.prepare_start", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        engine.execute("CREATE CONTINUOUS QUERY big ON DEMAND AS SELECT grp FROM sums")
    assert kept(engine) == {"sums"}
    engine.close()
    with cq_engine.connect(warehouse, spark=spark, scheduler=False) as again:
        assert kept(again) == set()


def test_dropping_what_is_read(engine: Engine) -> None:
    engine.execute(f"CREATE CONTINUOUS QUERY sums ON DEMAND AS {SUMS}")
    engine.execute("CREATE CONTINUOUS QUERY big ON DEMAND AS SELECT grp, s FROM sums WHERE s > 0")
    engine.execute("CREATE CONTINUOUS QUERY top ON DEMAND AS SELECT max(s) AS m FROM big")
    for statement in ("DROP CONTINUOUS QUERY sums", "DROP CONTINUOUS QUERY sums RESTRICT"):
        with pytest.raises(CatalogError, match="sums is in use") as raised:
            engine.execute(statement)
        assert raised.value.detail == "by continuous query big"
        assert "CASCADE" in raised.value.hint
    with pytest.raises(CatalogError, match="table t is in use"):
        engine.execute("DROP TABLE t RESTRICT")
    assert engine.execute("DROP CONTINUOUS QUERY big CASCADE").message == (
        "continuous query big dropped, and with it top"
    )
    engine.execute("CREATE CONTINUOUS QUERY big ON DEMAND AS SELECT grp, s FROM sums WHERE s > 0")
    assert engine.execute("DROP TABLE t CASCADE").message == "table t dropped, and with it sums, big"
    assert engine.catalog.state.queries == {}
    assert (
        engine.execute("DROP CONTINUOUS QUERY IF EXISTS sums").message == "there is no continuous query sums"
    )


def test_names_that_cannot_be_read(engine: Engine) -> None:
    engine.execute(f"CREATE CONTINUOUS QUERY sums ON DEMAND AS {SUMS}")
    engine.execute("CREATE CONTINUOUS QUERY big ON DEMAND DESTINATION TABLE log AS SELECT grp, s FROM sums")
    for bad, message in (
        ("CREATE CONTINUOUS QUERY r ON DEMAND AS SELECT * FROM sum", "no table sum"),
        ("CREATE CONTINUOUS QUERY r ON DEMAND AS SELECT * FROM sums VERSION AS OF 1", "with a version"),
        ("CREATE CONTINUOUS QUERY r ON DEMAND AS SELECT * FROM sums CHANGES FROM VERSION 1", "with a version"),
        ("CREATE CONTINUOUS QUERY r ON DEMAND AS SELECT * FROM r", "no table r"),
        ("CREATE OR REPLACE CONTINUOUS QUERY sums ON DEMAND AS SELECT grp, s FROM big", "would read its own result"),
        ("ALTER CONTINUOUS QUERY sums AS SELECT grp, s FROM sums", "would read its own result"),
        ("CREATE CONTINUOUS QUERY r ON DEMAND DESTINATION TABLE t AS SELECT 1 AS id, grp, 2 AS amt FROM sums",
         "would deliver into t, which it reads through other queries"),
        ("CREATE CONTINUOUS QUERY r ON DEMAND START FROM VERSION 1 AS SELECT count(*) AS n FROM big", ""),
        ("INSERT INTO sums VALUES ('a', 1)", "is a continuous query, not a table"),
    ):  # fmt: skip
        if not message:
            engine.execute(bad)
            continue
        with pytest.raises((AnalysisError, CatalogError), match=message):
            engine.execute(bad)
    engine.execute("INSERT INTO t VALUES (4, 'a', 9)")
    engine.refresh("r")
    engine.execute("CREATE CONTINUOUS QUERY late ON DEMAND AS SELECT n FROM r")
    with pytest.raises(AnalysisError, match="the result of r is kept from version 3 on"):
        engine.execute("CREATE CONTINUOUS QUERY early ON DEMAND START FROM VERSION 1 AS SELECT n FROM r")


def test_incremental_may_be_demanded_over_other_queries(engine: Engine) -> None:
    engine.execute(f"CREATE CONTINUOUS QUERY sums ON DEMAND AS {SUMS}")
    engine.execute(
        "CREATE CONTINUOUS QUERY big ON DEMAND WITH (refresh = 'incremental') AS SELECT grp, s FROM sums WHERE s > 0"
    )
    recursive = "WITH RECURSIVE r(n) AS (SELECT s FROM sums UNION ALL SELECT n + 1 FROM r WHERE n < 3) SELECT n FROM r"
    with pytest.raises(AnalysisError, match="incrementally"):
        engine.execute(f"CREATE CONTINUOUS QUERY r ON DEMAND WITH (refresh = 'incremental') AS {recursive}")
    engine.execute(f"CREATE CONTINUOUS QUERY r ON DEMAND AS {recursive}")
    engine.execute("CREATE CONTINUOUS QUERY n ON DEMAND AS SELECT count(*) AS n FROM r")
    engine.execute("UPDATE t SET amt = 2 WHERE id = 3")
    engine.refresh("n")
    assert [d.new for d in engine.deltas("n")] == [(8,)]


def test_a_key_of_a_result_may_be_null(engine: Engine) -> None:
    """A table's key is never NULL; a full join of two results may have the same NULLs on both sides."""
    engine.execute("INSERT INTO t VALUES (4, NULL, 2)")
    engine.execute(f"CREATE CONTINUOUS QUERY sums ON DEMAND AS {SUMS}")
    engine.execute(
        "CREATE CONTINUOUS QUERY pairs ON DEMAND AS"
        " SELECT a.grp, b.grp AS other FROM sums a FULL JOIN sums b ON a.grp = b.grp"
    )
    assert engine.describe("pairs").key is None
    engine.execute("UPDATE t SET grp = 'b' WHERE id = 4")
    engine.refresh("pairs")
    assert [(m, new, old) for _, m, new, old in deltas(engine, "pairs")] == [("D", None, (None, None))] * 2


def test_a_chain_begins_in_an_empty_warehouse(warehouse: Path, spark: SparkSession) -> None:
    with cq_engine.connect(warehouse, spark=spark, scheduler=False) as engine:
        engine.execute("CREATE TABLE t (id INT, PRIMARY KEY (id))")
        engine.execute("CREATE CONTINUOUS QUERY n ON DEMAND AS SELECT max(id) AS m FROM t")
        engine.execute("CREATE CONTINUOUS QUERY r ON DEMAND AS SELECT m + 1 AS next FROM n")
        engine.execute(
            "CREATE CONTINUOUS QUERY all_of_it ON DEMAND START FROM SNAPSHOT AS SELECT next FROM r"
        )
        assert deltas(engine, "all_of_it") == [(1, "I", (None,), None)]
        version = engine.execute("INSERT INTO t VALUES (4)").commit_version
        engine.refresh("all_of_it")
        assert deltas(engine, "all_of_it")[1:] == [(version, "U", (5,), (None,))]


def test_a_query_starts_from_a_version_of_what_it_reads(engine: Engine) -> None:
    engine.execute(f"CREATE CONTINUOUS QUERY sums ON DEMAND AS {SUMS}")
    first = engine.execute("INSERT INTO t VALUES (4, 'c', 9)").commit_version
    second = engine.execute("UPDATE t SET amt = 8 WHERE id = 4").commit_version
    engine.execute(
        f"CREATE CONTINUOUS QUERY big ON DEMAND START FROM VERSION {first} AS SELECT * FROM sums WHERE s > 0"
    )
    engine.refresh("big")
    assert deltas(engine, "big") == [(second, "U", ("c", 8), ("c", 9))]
    engine.execute("CREATE CONTINUOUS QUERY q AS SELECT id FROM t")
    engine.execute(
        "CREATE CONTINUOUS QUERY late COMPUTE COMPRESSED DELTA ON DEMAND AS SELECT count(*) AS n FROM t"
    )
    engine.execute("CREATE CONTINUOUS QUERY over ON DEMAND AS SELECT n FROM late")
    inside = engine.execute("DELETE FROM t WHERE id = 4").commit_version
    engine.execute("DELETE FROM t WHERE id = 3")
    engine.refresh("over")
    with pytest.raises(AnalysisError, match="lies inside a refresh of a compressed query"):
        engine.execute(
            f"CREATE CONTINUOUS QUERY early ON DEMAND START FROM VERSION {inside} AS SELECT n FROM late"
        )
