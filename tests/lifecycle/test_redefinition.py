"""Another defining query for a continuous query: the difference of the results is a delta like any other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine import AnalysisError, CatalogError, Engine
from tests.limits import forced, limit
from tests.oracle.law import Account, Change, Row, row_of

SUMS = "SELECT grp, sum(amt) AS s FROM t GROUP BY grp"
POSITIVE = "SELECT grp, sum(amt) AS s FROM t WHERE amt > 0 GROUP BY grp"
BAG = "SELECT grp, amt FROM t UNION ALL SELECT grp, id FROM t"
OTHER_BAG = "SELECT grp, amt FROM t WHERE amt > 0 UNION ALL SELECT grp, amt FROM t"


@pytest.fixture
def engine(warehouse: Path, spark: SparkSession) -> Iterator[Engine]:
    with cq_engine.connect(warehouse, spark=spark, scheduler=False) as opened:
        opened.execute("CREATE TABLE t (id INT, grp STRING, amt INT, PRIMARY KEY (id))")
        opened.execute(
            "INSERT INTO t VALUES (1, 'a', 5), (2, 'a', -7), (3, 'b', 1), (4, 'c', -1), (5, NULL, 3)"
        )
        yield opened


def rows(engine: Engine, query: str) -> list[Row]:
    return [row_of(r) for r in engine.execute(query).fetchall()]


def changes(engine: Engine, query: str, after: int) -> list[Change]:
    def converted(row: tuple[object, ...] | None) -> Row | None:
        return None if row is None else row_of(row)

    return [
        Change(d.commit_version, d.sequence, d.marker, converted(d.key), converted(d.new), converted(d.old))
        for d in engine.deltas(query, after)
    ]


def check_law(engine: Engine, name: str, old: list[Row], new: str, after: int) -> int:
    """The deltas after version `after` lead from the rows `old` to the result of the query `new`."""
    account = Account(old, engine.describe(name).key is not None)
    if account.keyed:
        account.start([0])
    found = changes(engine, name, after)
    for version in sorted({c.version for c in found}):
        account.apply([c for c in found if c.version == version])
    account.check(rows(engine, new), f"of {name}")
    return len(found)


REPLACE, ALTER = "CREATE OR REPLACE CONTINUOUS QUERY q ON DEMAND AS", "ALTER CONTINUOUS QUERY q AS"


@pytest.mark.parametrize(
    ("how", "old", "new", "large"),
    [
        (REPLACE, SUMS, POSITIVE, False),
        (ALTER, BAG, OTHER_BAG, False),
        pytest.param(ALTER, SUMS, POSITIVE, True, marks=pytest.mark.long),
        pytest.param(REPLACE, BAG, OTHER_BAG, True, marks=pytest.mark.long),
    ],
    ids=["keyed", "bag", "keyed_large", "bag_large"],
)
def test_the_difference_is_delivered(engine: Engine, how: str, old: str, new: str, large: bool) -> None:
    if large:
        limit(engine, start_rows=0, **forced(bulk=True, large=True))
    engine.execute(f"CREATE CONTINUOUS QUERY q ON DEMAND AS {old}")
    value = engine.describe("q").columns[1]
    engine.execute(
        f"CREATE CONTINUOUS QUERY r ON DEMAND AS SELECT sum({value}) AS total, count(*) AS n FROM q"
    )
    totals = rows(engine, f"SELECT sum({value}), count(*) FROM ({old})")
    engine.execute("UPDATE t SET amt = 0 WHERE id = 2")
    before = rows(engine, old)
    position = engine.catalog.newest_version
    said = engine.execute(f"{how} {new}").message
    assert f"at version {position + 1}" in said
    assert check_law(engine, "q", before, new, position) > 0
    engine.execute("INSERT INTO t VALUES (6, 'c', 8), (7, 'a', -3)")
    engine.execute("DELETE FROM t WHERE id = 1")
    engine.refresh("r")
    check_law(engine, "q", before, new, position)
    account = Account(totals, True)
    account.start([])
    for change in changes(engine, "r", 0):
        account.apply([change])
    account.check(rows(engine, f"SELECT sum({value}), count(*) FROM ({new})"), "of what reads it")
    newest = engine.execute("SHOW REFRESHES FOR q").to_arrow().to_pylist()
    assert "REDEFINED" in {row["plan"] for row in newest}


def test_destinations_stay_right(engine: Engine) -> None:
    engine.execute(
        "CREATE CONTINUOUS QUERY q ON DEMAND DESTINATION TABLE log AS"
        " SELECT grp, sum(amt) AS s, delta_marker() AS m, cq_old_value(s * 10) AS tenfold FROM t GROUP BY grp"
    )
    engine.execute("UPDATE t SET amt = 2 WHERE id = 3")
    engine.execute(
        "ALTER CONTINUOUS QUERY q AS SELECT grp, sum(amt) + 1 AS s, delta_marker() AS m, cq_old_value(s * 10) AS tenfold"
        " FROM t WHERE grp <> 'c' GROUP BY grp"
    )
    logged = sorted(rows(engine, "SELECT grp, s, m, tenfold FROM log"), key=repr)
    assert logged == sorted(
        map(row_of, [("b", 2, "U", 10), ("b", 3, "U", 20), ("a", -1, "U", -20), ("c", -1, "D", -10),
                     (None, 3, "D", 30)]), key=repr,
    )  # fmt: skip
    engine.execute("ALTER CONTINUOUS QUERY q SET NO DESTINATION")
    engine.execute(
        "CREATE OR REPLACE CONTINUOUS QUERY q ON DEMAND DESTINATION TABLE fresh AS"
        " SELECT grp, sum(amt) AS s FROM t WHERE grp = 'a' GROUP BY grp"
    )
    assert rows(engine, "SELECT * FROM fresh") == []  # a destination that is added gets what comes after
    assert {d.marker for d in engine.deltas("q", engine.catalog.newest_version - 1)} == {"U", "D"}


def test_results_that_cannot_be_compared(engine: Engine) -> None:
    engine.execute(f"CREATE CONTINUOUS QUERY q ON DEMAND AS {SUMS}")
    for query, why in (
        (
            "SELECT grp, sum(amt) AS total FROM t GROUP BY grp",
            "the result's columns were (grp string, s bigint)",
        ),
        ("SELECT grp, CAST(sum(amt) AS INT) AS s FROM t GROUP BY grp", "would be (grp string, s int)"),
        ("SELECT grp, CAST(amt AS BIGINT) AS s FROM t", "the result key was (grp) and would be none"),
    ):
        with pytest.raises(AnalysisError, match="another kind of result") as raised:
            engine.execute(f"ALTER CONTINUOUS QUERY q AS {query}")
        assert why in raised.value.detail
        assert "CREATE OR REPLACE" in raised.value.hint
    assert engine.queries.find("q").query == SUMS
    said = engine.execute("CREATE OR REPLACE CONTINUOUS QUERY q ON DEMAND AS SELECT grp, amt FROM t").message
    assert "without the difference to the old result: the result's columns were" in said
    assert list(engine.deltas("q")) == []
    engine.execute("CREATE CONTINUOUS QUERY r ON DEMAND AS SELECT count(*) AS n FROM q")
    for bad in (
        f"CREATE OR REPLACE CONTINUOUS QUERY q ON DEMAND AS {SUMS}",
        "CREATE OR REPLACE CONTINUOUS QUERY q ON DEMAND START FROM SNAPSHOT AS SELECT grp, amt FROM t WHERE amt > 0",
    ):
        with pytest.raises(CatalogError, match="in use and cannot start anew") as clash:
            engine.execute(bad)
        assert "read by r" in clash.value.detail


def test_a_paused_query_stays_paused_and_a_failed_one_is_repaired(engine: Engine) -> None:
    engine.execute(f"CREATE CONTINUOUS QUERY q ON DEMAND AS {SUMS}")
    engine.execute("ALTER CONTINUOUS QUERY q PAUSE")
    before = rows(engine, SUMS)
    position = engine.catalog.newest_version
    engine.execute("INSERT INTO t VALUES (9, 'd', 4)")
    engine.execute(f"ALTER CONTINUOUS QUERY q AS {POSITIVE}")
    assert engine.describe("q").state == "PAUSED"
    check_law(engine, "q", before, POSITIVE, position)

    engine.execute("CREATE CONTINUOUS QUERY f ON DEMAND AS SELECT id, 10 / amt AS q FROM t")
    before, position = rows(engine, "SELECT id, 10 / amt AS q FROM t"), engine.catalog.newest_version
    engine.execute("UPDATE t SET amt = 0 WHERE id = 3")
    with pytest.raises(cq_engine.RefreshError):
        engine.refresh("f")
    engine.execute("ALTER CONTINUOUS QUERY f AS SELECT id, 10 / nullif(amt, 0) AS q FROM t")
    assert engine.describe("f").state == "ACTIVE"
    assert check_law(engine, "f", before, "SELECT id, 10 / nullif(amt, 0) AS q FROM t", position) == 1


def test_a_query_over_queries_is_redefined_over_others(
    engine: Engine, warehouse: Path, spark: SparkSession
) -> None:
    engine.execute(f"CREATE CONTINUOUS QUERY sums ON DEMAND AS {SUMS}")
    engine.execute("CREATE CONTINUOUS QUERY most ON DEMAND AS SELECT grp, max(amt) AS m FROM t GROUP BY grp")
    engine.execute("CREATE CONTINUOUS QUERY q ON DEMAND AS SELECT grp, s AS v FROM sums WHERE s > 0")
    before, position = rows(engine, f"SELECT * FROM ({SUMS}) WHERE s > 0"), engine.catalog.newest_version
    engine.execute("INSERT INTO t VALUES (6, 'c', 8)")
    engine.execute("ALTER CONTINUOUS QUERY q AS SELECT grp, CAST(m AS BIGINT) AS v FROM most")
    new = "SELECT grp, CAST(max(amt) AS BIGINT) AS v FROM t GROUP BY grp"
    check_law(engine, "q", before, new, position)
    assert engine.queries.find("sums").relation is None
    engine.close()
    with cq_engine.connect(warehouse, spark=spark, scheduler=False) as again:
        again.execute("DELETE FROM t WHERE id IN (1, 3)")
        again.refresh("q")
        check_law(again, "q", before, new, position)
