"""Statements that are planned once and run again over other rows: plan inputs, which plans may be kept, and their results."""

from __future__ import annotations

import datetime as dt
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import cq_engine
from cq_engine.core.columns import Column
from cq_engine.core.limits import DEFAULT_LIMITS, Limits
from cq_engine.refresh import driver, operators, plan_cache
from cq_engine.refresh.operators import keeps_nothing
from cq_engine.refresh.plan_cache import CachedPlan
from cq_engine.refresh.plan_inputs import PlanInput, PlanInputFullError, fits_plan_input

BY_SPARK = Limits(arrow_rows=-1)
"""Nothing is evaluated by the driver itself."""
COLUMNS = (
    Column("a", "bigint"),
    Column("b", "string"),
    Column("c", "decimal(12,2)"),
    Column("d", "double"),
    Column("e", "timestamp"),
    Column("f", "date"),
    Column("g", "array<struct<x:int,y:string>>"),
    Column("h", "binary"),
    Column("i", "timestamp_ntz"),
    Column("j", "map<string,int>"),
)


def _rows(count: int) -> pa.Table:
    def row(n: int) -> dict[str, Any]:
        return {
            "a": n - 3,
            "b": None if n % 5 == 0 else f"ä{n}" * (n % 7),
            "c": Decimal(n) / 4,
            "d": [1.5, float("inf"), -0.0, None][n % 4],
            "e": dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc) + dt.timedelta(microseconds=n),
            "f": dt.date(1500, 1, 1) + dt.timedelta(days=n),
            "g": [{"x": n, "y": None}] * (n % 3),
            "h": bytes([n % 256]),
            "i": dt.datetime(2026, 1, 1, 12, 0, n % 60),  # noqa: DTZ001 - a time without zone
            "j": {"k": n},
        }

    types = [
        pa.int64(), pa.string(), pa.decimal128(12, 2), pa.float64(), pa.timestamp("us", "UTC"), pa.date32(),
        pa.list_(pa.struct([("x", pa.int32()), ("y", pa.string())])), pa.binary(), pa.timestamp("us"),
        pa.map_(pa.string(), pa.int32()),
    ]  # fmt: skip
    schema = pa.schema([(c.name, t) for c, t in zip(COLUMNS, types)])
    return pa.Table.from_pylist([row(n) for n in range(count)], schema=schema)


def test_a_dataframe_gives_what_the_plan_input_has_now(spark: SparkSession) -> None:
    assert fits_plan_input(COLUMNS)
    source = PlanInput(COLUMNS, _rows(3), DEFAULT_LIMITS)
    frame = source.frame(spark)
    for count in (3, 250, 0, 1, 40):
        source.put(_rows(count))
        assert frame.toArrow().to_pylist() == _rows(count).to_pylist()
    with pytest.raises(PlanInputFullError):
        source.put(_rows(20_000))
    assert frame.count() == 40, "a plan input stays as it was"
    source.remove()


@pytest.mark.parametrize(
    "kind",
    ["variant", "interval year to month", "array<interval day to second>", "string collate UTF8_LCASE"],
)
def test_types_that_no_plan_input_holds(kind: str) -> None:
    assert not fits_plan_input([Column("a", "int"), Column("b", kind)])


class _Runs:
    """Counts which statements ran prepared."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.prepared = 0
        self.asked = 0
        run = CachedPlan.run

        def counted(kept: CachedPlan, *arguments: Any) -> pa.Table | None:
            rows = run(kept, *arguments)
            self.asked += 1
            self.prepared += rows is not None
            return rows

        patch.setattr(CachedPlan, "run", counted)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> _Runs:
    return _Runs(monkeypatch)


@pytest.fixture
def limits() -> Limits:
    """Those of the engine; a test may have others by its parameters."""
    return BY_SPARK


@pytest.fixture
def engine(spark: SparkSession, warehouse: Path, limits: Limits) -> Iterator[cq_engine.Engine]:
    with cq_engine.connect(warehouse, spark=spark, scheduler=False, limits=limits) as opened:
        opened.execute("CREATE TABLE c (c INT PRIMARY KEY, region STRING, since TIMESTAMP)")
        opened.execute("CREATE TABLE o (o INT PRIMARY KEY, c INT, amount DECIMAL(10, 2))")
        opened.execute("CREATE TABLE l (o INT, n INT, price DOUBLE, PRIMARY KEY (o, n))")
        yield opened


QUERIES = {
    "joined": "SELECT l.o, l.n, c.region, o.amount, l.price FROM l JOIN o ON l.o = o.o JOIN c ON o.c = c.c",
    "rich": "SELECT c.c, c.region, sum(l.price) AS s, count(*) AS k FROM c JOIN o ON c.c = o.c JOIN l ON l.o = o.o"
    " GROUP BY c.c, c.region HAVING sum(l.price) > 20",
    "without": "SELECT p.o, p.amount FROM o AS p WHERE NOT EXISTS (SELECT 1 FROM l WHERE l.o = p.o AND l.price > 5)",
    "beside": "SELECT c.c, max(o.amount) AS most FROM c LEFT JOIN o ON c.c = o.c GROUP BY c.c",
    "ranked": "SELECT o, c, row_number() OVER (PARTITION BY c ORDER BY amount DESC, o) AS r FROM o",
    # No equality: Spark needs a broadcast for it, so that this one is planned anew each time.
    "unequal": "SELECT o.o, l.n, l.price FROM o LEFT JOIN l ON o.amount > l.price",
}


def _transaction(engine: cq_engine.Engine, chance: random.Random) -> None:
    with engine.transaction() as tx:
        for _ in range(chance.randint(1, 3)):
            o = chance.randint(1, 12)
            tx.execute(f"DELETE FROM o WHERE o = {o}")
            tx.execute(f"INSERT INTO o VALUES ({o}, {chance.randint(1, 5)}, {chance.randint(1, 99)}.25)")
        if chance.random() < 0.5:
            tx.execute(
                f"UPDATE c SET region = '{chance.choice(['n', 's'])}' WHERE c = {chance.randint(1, 5)}"
            )
        o = chance.randint(1, 12)
        tx.execute(f"DELETE FROM l WHERE o = {o}")
        if chance.random() < 0.8:
            tx.execute(f"INSERT INTO l SELECT {o}, id, id * {chance.randint(1, 9)} FROM range(1, 4)")


def _apply(rows: dict[Any, Any], engine: cq_engine.Engine, name: str, after: int) -> None:
    for delta in engine.deltas(name, after_version=after):
        if delta.marker != "I":
            assert rows.pop(delta.key) == delta.old
        if delta.marker != "D":
            assert delta.key not in rows
            rows[delta.key] = delta.new


@pytest.mark.parametrize(
    ("early", "limits"),
    [(False, replace(BY_SPARK, compiled_rows=25)), (True, BY_SPARK)],
    ids=["with the second refresh, now compiled and now not", "before the first"],
)
def test_prepared_statements_give_the_deltas(engine: cq_engine.Engine, runs: _Runs, early: bool) -> None:
    """Commits of all kinds, a refresh after each; the results follow from the deltas."""
    chance = random.Random(7)
    engine.execute("INSERT INTO c SELECT id, 'n', TIMESTAMP '2026-01-01 00:00:00' FROM range(1, 6)")
    keys = {"joined": "o, n", "without": "o", "rich": "c, region", "beside": "c", "ranked": "o"}
    results: dict[str, dict[Any, Any]] = {name: {} for name in keys}
    for name, key in keys.items():
        engine.execute(
            f"CREATE CONTINUOUS QUERY {name} PRIMARY KEY ({key}) ON DEMAND START FROM SNAPSHOT AS {QUERIES[name]}"
        )
        _apply(results[name], engine, name, 0)
        if early:
            engine.queries.refreshes.prepare(name)
    for _ in range(3 if early else 5):
        _transaction(engine, chance)
        for name in keys:
            text = QUERIES[name]
            before = engine.describe(name).position
            engine.refresh(name)
            _apply(results[name], engine, name, before)
            assert sorted(results[name].values(), key=str) == sorted(
                engine.execute(text).fetchall(), key=str
            ), name
    assert runs.prepared > runs.asked / 2


def test_plans_with_kept_rows_are_not_prepared(engine: cq_engine.Engine, runs: _Runs) -> None:
    engine.execute(f"CREATE CONTINUOUS QUERY q ON DEMAND AS {QUERIES['unequal']}")
    for n in range(1, 7):
        engine.execute(f"INSERT INTO o VALUES ({n}, 1, {n}.00)")
        engine.refresh("q")
        assert engine.execute("SELECT count(*) FROM q CHANGES FROM VERSION 1 TO VERSION 100").fetchall() == [
            (n,)
        ]
    assert runs.prepared == 2, "two plans run once, before Spark is asked whether they may run again"
    kept = engine.queries.refresher.plans._plans.values()
    assert [statement for each in kept for statement in each.few._by_name.values()] == [None, None]


PHYSICAL = """== Physical Plan ==
CollectLimit 10
+- *(2) Project [c0#1 AS o#2]
   +- Coalesce 1
      +- {operator}
         :- *(1) ColumnarToRow
         :  +- FileScan parquet [c0#1] Batched: true
         +- Scan OneRowRelation[]

"""


@pytest.mark.parametrize("operator", ["CartesianProduct", "*(1) SortMergeJoin [o#1], [o#2], Inner", "Union"])
def test_plans_of_known_operators_may_run_again(operator: str) -> None:
    assert keeps_nothing(PHYSICAL.format(operator=operator))


@pytest.mark.parametrize(
    "operator",
    [
        "OperatorOfALaterSpark [o#1]",
        "*(1) ProjectAndRemember [o#1]",
        "Exchange SinglePartition, ENSURE_REQUIREMENTS, [plan_id=1]",
        "BroadcastNestedLoopJoin BuildRight, Inner",
        "Subquery subquery#1, [id=#2]",
        "AdaptiveSparkPlan isFinalPlan=false",
        "Scan ExistingRDD[o#1]",
        "InMemoryTableScan [o#1]",
        "(text of a literal that has lines)",
    ],
)
def test_an_operator_that_is_not_known_is_planned_anew(operator: str) -> None:
    assert not keeps_nothing(PHYSICAL.format(operator=operator))


def test_what_shows_no_operator_is_planned_anew() -> None:
    assert not keeps_nothing("")
    assert not keeps_nothing("== Physical Plan ==\n")


def test_statements_with_an_operator_that_is_not_known_run_once(
    engine: cq_engine.Engine, runs: _Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = operators.KEEPING_NOTHING - {"FileScan"}  # as if a later Spark called it otherwise
    monkeypatch.setattr(operators, "KEEPING_NOTHING", known)
    engine.execute("CREATE CONTINUOUS QUERY q ON DEMAND AS SELECT o, c, amount FROM o WHERE amount > 0")
    for n in range(1, 4):
        engine.execute(f"INSERT INTO o VALUES ({n}, 1, {n}.00)")
        assert engine.refresh("q").inserted == 1
    assert runs.prepared == 2, "two plans run once, before Spark is asked whether they may run again"


@pytest.mark.prepared
@pytest.mark.parametrize("limits", [replace(BY_SPARK, prepare_seconds=0.0, prepare_many_seconds=0.0)])
def test_plans_are_prepared_after_create(engine: cq_engine.Engine, runs: _Runs) -> None:
    engine.execute(f"CREATE CONTINUOUS QUERY q ON DEMAND AS {QUERIES['rich']}")
    end = time.monotonic() + 120
    while runs.prepared < 8:  # two statements for few rows and for many, twice each
        assert time.monotonic() < end
        time.sleep(0.05)
    (kept,) = (each for each in engine.queries.refresher.plans._plans.values() if each.prepare)
    assert len(kept.few._by_name) == len(kept.many._by_name) == 2
    for n in (1, 2):
        with engine.transaction() as tx:
            tx.execute(f"INSERT INTO c VALUES ({n}, 'n', NULL)")
            tx.execute(f"INSERT INTO o VALUES ({n}, {n}, 1.00)")
            tx.execute(f"INSERT INTO l VALUES ({n}, 1, 22.5)")
        assert engine.refresh("q").inserted == 1
    assert runs.prepared == runs.asked


@pytest.mark.parametrize("limits", [replace(BY_SPARK, compiled_rows=2)])
def test_statements_are_compiled_for_many_rows(
    engine: cq_engine.Engine, runs: _Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.execute(
        "CREATE CONTINUOUS QUERY q ON DEMAND AS SELECT o, c, amount * 2 AS a FROM o WHERE amount > 0"
    )
    first, total = 0, 0
    for rows in (1, 2, 3, 1, 4):
        first, total = total, total + rows
        engine.execute(f"INSERT INTO o SELECT {first} + id, 1, 1.00 FROM range({rows})")
        assert engine.refresh("q").inserted == rows
    assert runs.prepared == 5
    kept = [each for each in engine.queries.refresher.plans._plans.values() if each.prepare]
    for statements in (kept[0].few, kept[0].many):
        (statement,) = statements._by_name.values()
        assert statement is not None
        statement.frame.explain()
        assert ("*(1)" in capsys.readouterr().out) == statements.many


def test_a_general_plan_serves_every_interval(engine: cq_engine.Engine, runs: _Runs) -> None:
    engine.execute(f"CREATE CONTINUOUS QUERY q PRIMARY KEY (o, n) ON DEMAND AS {QUERIES['joined']}")
    for n in range(1, 4):
        with engine.transaction() as tx:
            tx.execute(f"INSERT INTO c VALUES ({n}, 'n', NULL)")
            tx.execute(f"INSERT INTO o VALUES ({n}, {n}, 1.00)")
            tx.execute(f"INSERT INTO l VALUES ({n}, 1, 2.5)")
        assert engine.refresh("q").inserted == 1
    assert runs.prepared == 3, "the first, too, because its plan is not larger than one for less"
    engine.execute("INSERT INTO l VALUES (1, 2, 3.5)")
    assert engine.refresh("q").inserted == 1
    engine.execute("DELETE FROM l WHERE o = 2")
    assert engine.refresh("q").deleted == 1
    engine.execute("UPDATE c SET region = 's' WHERE c = 1")
    assert engine.refresh("q").updated == 2
    assert runs.prepared == 6


@pytest.mark.parametrize("limits", [replace(BY_SPARK, own_plan_uses=2)])
def test_a_kind_of_interval_that_comes_often_gets_a_plan(engine: cq_engine.Engine, runs: _Runs) -> None:
    engine.execute(f"CREATE CONTINUOUS QUERY q PRIMARY KEY (o) ON DEMAND AS {QUERIES['without']}")
    plans = engine.queries.refresher.plans
    found = []
    for n in range(1, 7):
        engine.execute(f"INSERT INTO o VALUES ({n}, 1, 1.00)")
        assert engine.refresh("q").inserted == 1
        found.append(sorted(tuple(sorted(k.changed)) for k, kept in plans._plans.items() if kept.prepare))
    every, own = [("l", "o")], [("l", "o"), ("o",)]
    assert found == [[], every, every, every, own, own]
    assert runs.prepared == 5


def test_a_general_plan_that_cannot_be_prepared_does_not_run(engine: cq_engine.Engine, runs: _Runs) -> None:
    """For changes of the small table it would need all rows of the large one, at every refresh."""
    engine.execute("INSERT INTO o SELECT id, 1, id FROM range(100000)")
    engine.execute("CREATE TABLE limits (n INT PRIMARY KEY, low INT)")
    engine.execute("INSERT INTO limits VALUES (1, 0), (2, 150000)")
    engine.execute(
        "CREATE CONTINUOUS QUERY q PRIMARY KEY (o, n) ON DEMAND AS SELECT o, n FROM o JOIN limits ON amount > low"
    )
    for n in range(200_000, 200_008):
        engine.execute(f"INSERT INTO o VALUES ({n}, 1, {n}.00)")
        assert engine.refresh("q").inserted == 2
        reads = engine.queries.refresher.reports["q"].reads
        assert sum(read.rows for read in reads if read.how in ("scan", "look-up")) == 0


@pytest.mark.parametrize("limits", [replace(BY_SPARK, input_least_bytes=65_536)])
def test_more_rows_than_the_plan_input_holds(engine: cq_engine.Engine, runs: _Runs) -> None:
    engine.execute("CREATE CONTINUOUS QUERY q ON DEMAND AS SELECT o, c, amount FROM o WHERE amount > 0")
    total = 0
    for rows in (1, 1, 9_000, 9_000, 3):
        engine.execute(f"INSERT INTO o SELECT {total} + id, 1, 1.00 FROM range({rows})")
        assert engine.refresh("q").inserted == rows
        total += rows
    assert runs.prepared == 5, "the third makes the plan input larger"


@pytest.mark.parametrize("limits", [replace(BY_SPARK, input_least_bytes=65_536, input_most_bytes=200_000)])
def test_an_interval_that_no_plan_input_holds_comes_between(engine: cq_engine.Engine, runs: _Runs) -> None:
    engine.execute("CREATE CONTINUOUS QUERY q ON DEMAND AS SELECT o, c, amount FROM o WHERE amount > 0")
    total = 0
    for rows in (1, 9_000, 1, 9_000, 3):
        engine.execute(f"INSERT INTO o SELECT {total} + id, 1, 1.00 FROM range({rows})")
        assert engine.refresh("q").inserted == rows
        total += rows
    assert runs.prepared == 3, "the small ones"


def test_results_that_spark_does_not_send(engine: cq_engine.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are few, but larger than what the driver takes, are written by executors."""

    def refused(_: object) -> pa.Table:
        raise PySparkException("... is bigger than spark.driver.maxResultSize (1024.0 MiB)")

    engine.execute("CREATE CONTINUOUS QUERY q ON DEMAND AS SELECT o, c, amount FROM o WHERE amount > 0")
    engine.execute("INSERT INTO o SELECT id, 1, 1.00 FROM range(5)")
    with monkeypatch.context() as patch:
        patch.setattr(driver, "to_arrow", refused)
        assert engine.refresh("q").inserted == 5
    assert sorted(d.new for d in engine.deltas("q")) == [(n, 1, Decimal("1.00")) for n in range(5)]


@pytest.mark.parametrize("limits", [replace(BY_SPARK, refresh_rows=3)])
def test_a_full_delta_that_is_too_large_is_written_by_executors(engine: cq_engine.Engine) -> None:
    """Each commit gives few rows; the interval gives more than the driver takes."""
    engine.execute(
        "CREATE CONTINUOUS QUERY q PRIMARY KEY (o) ON DEMAND WITH (refresh = 'full') AS SELECT o, amount FROM o"
    )
    for low in (1, 3):
        engine.execute(f"INSERT INTO o SELECT id, 1, 1.00 FROM range({low}, {low + 2})")
    engine.execute("UPDATE o SET amount = 2 WHERE o = 1")
    done = engine.refresh("q")
    assert (done.inserted, done.updated) == (4, 1)
    assert engine.queries.refresher.reports["q"].run == "cluster: its rows are too many for the driver"
    assert [(d.marker, d.new) for d in engine.deltas("q")] == [
        *(("I", (n, Decimal(1))) for n in range(1, 5)),
        ("U", (1, Decimal(2))),
    ]


def test_a_changed_function_is_seen(engine: cq_engine.Engine) -> None:
    engine.execute("CREATE FUNCTION twice(x DECIMAL(10, 2)) RETURNS DECIMAL(11, 2) RETURN x * 2")
    engine.execute("CREATE CONTINUOUS QUERY q ON DEMAND AS SELECT o, twice(amount) AS t FROM o")
    for n in range(1, 4):
        engine.execute(f"INSERT INTO o VALUES ({n}, 1, {n}.00)")
        engine.refresh("q")
    assert [d.new for d in engine.deltas("q")] == [(n, Decimal(2 * n)) for n in (1, 2, 3)]


def test_least_used_plans_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_cache, "plan_delta", lambda *_, **__: object())
    plans = plan_cache.PlanCache(Limits(plans=2))
    compiled: Any = object()
    a, b = (plans.exact_plan(compiled, frozenset(t), insert_only=True) for t in "ab")
    assert plans.exact_plan(compiled, frozenset("a"), insert_only=True) is a
    plans.exact_plan(compiled, frozenset("c"), insert_only=True)
    assert plans.exact_plan(compiled, frozenset("b"), insert_only=True) is not b
    assert DEFAULT_LIMITS.refresh_rows > DEFAULT_LIMITS.refresh_changes
