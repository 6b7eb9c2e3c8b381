"""Members of a query group against the same queries by themselves, and against results from scratch."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine import Engine, RefreshError
from cq_engine.core.limits import DEFAULT_LIMITS, Limits
from tests.limits import limit

SHAPES = {
    "rows": "SELECT id, cust, amt FROM orders WHERE cust = {a}",
    "bag": "SELECT item FROM orders WHERE cust <> {a}",
    "sums": "SELECT cust, sum(amt) AS s, max(amt) AS m FROM orders WHERE cust >= {a} GROUP BY cust",
    "over": "SELECT cust, sum(amt) AS s FROM orders GROUP BY cust HAVING sum(amt) > {b}",
    "total": "SELECT count(*) AS n, sum(amt) AS s FROM orders WHERE cust = {a} OR amt > {b}",
    "joined": "SELECT o.id, i.kind, cq_old_value(o.amt) AS was, o.amt FROM orders o JOIN items i ON o.item = i.item"
    " WHERE o.cust = {a} AND i.kind = '{k}'",
    "kinds": "SELECT i.kind, count(*) AS n FROM orders o JOIN items i ON o.item = i.item"
    " WHERE o.amt BETWEEN {a} AND {b} GROUP BY i.kind HAVING count(*) >= {a}",
    "distinct": "SELECT DISTINCT item FROM orders WHERE cust IN (7, 8) OR cust < {a}",
    "left": "SELECT o.id, i.kind FROM orders o LEFT JOIN items i ON o.item = i.item WHERE o.cust = {a}",
}


@pytest.fixture
def engine(spark: SparkSession, warehouse: Path) -> Iterator[Engine]:
    with cq_engine.connect(warehouse, spark=spark, scheduler=False) as engine:
        create_tables(engine)
        yield engine


def create_tables(engine: Engine) -> None:
    engine.execute("CREATE TABLE orders (id INT PRIMARY KEY, cust INT, item STRING, amt INT)")
    engine.execute("CREATE TABLE items (item STRING PRIMARY KEY, kind STRING)")
    with engine.transaction() as tx:
        tx.insert("items", [{"item": item, "kind": kind} for item, kind in ("ax", "by", "cx")])
        rows = [(1, 1, "a", 10), (2, 2, "b", 20), (3, 1, "c", 30), (4, 3, "a", 5)]
        tx.insert("orders", [dict(zip(("id", "cust", "item", "amt"), row)) for row in rows])


class Pairs:
    """Queries that may share a query group, each beside one with the same text that may not."""

    def __init__(self, engine: Engine, rng: random.Random, mode: str) -> None:
        self.engine = engine
        self.rng = rng
        self.mode = mode
        self.texts: dict[str, str] = {}
        self.number = 0

    def create(self, shape: str) -> None:
        name = f"{shape}_{self.number}"
        self.number += 1
        text = SHAPES[shape].format(
            a=self.rng.randrange(5), b=self.rng.choice((10, 25, 40)), k=self.rng.choice("xy")
        )
        start = self.rng.choice(("", "START FROM SNAPSHOT"))
        for prefix, option in (("", "WITH (query_group = 'on')"), ("own_", "WITH (query_group = 'off')")):
            self.engine.execute(
                f"CREATE CONTINUOUS QUERY {prefix}{name} COMPUTE {self.mode} DELTA {start} {option} AS {text}"
            )
        self.texts[name] = text

    def drop(self) -> None:
        name = self.rng.choice(sorted(self.texts))
        del self.texts[name]
        for each in (name, f"own_{name}"):
            self.engine.execute(f"DROP CONTINUOUS QUERY {each}")

    def check(self) -> None:
        for name in self.texts:
            assert facts(self.engine, name) == facts(self.engine, f"own_{name}"), name
            shared, own = self.engine.describe(name), self.engine.describe(f"own_{name}")
            assert (shared.position, shared.key, shared.schema, shared.verdict) == (
                own.position, own.key, own.schema, own.verdict,
            )  # fmt: skip


def facts(engine: Engine, name: str) -> Counter[tuple[Any, ...]]:
    """The deltas of a query, whatever their order within a commit."""
    return Counter((d.commit_version, d.marker, d.key, d.new, d.old) for d in engine.deltas(name))


def change(engine: Engine, rng: random.Random) -> None:
    """A transaction of some random changes."""
    with engine.transaction() as tx:
        for _ in range(rng.randrange(1, 4)):
            number = rng.randrange(1, 9)
            tx.execute(
                rng.choice(
                    (
                        f"DELETE FROM orders WHERE id = {number}",
                        f"UPDATE orders SET amt = amt + {rng.randrange(-20, 30)} WHERE id <= {number}",
                        f"UPDATE orders SET cust = {rng.randrange(5)} WHERE id = {number}",
                        (
                            f"MERGE INTO orders USING (SELECT {number} AS i) s ON id = i WHEN NOT MATCHED THEN INSERT"
                            f" (id, cust, item, amt) VALUES (i, {rng.randrange(5)}, '{rng.choice('abcd')}', 15)"
                        ),
                        f"UPDATE items SET kind = '{rng.choice('xy')}' WHERE item = '{rng.choice('abc')}'",
                    )
                )
            )


PATHS = {
    "": DEFAULT_LIMITS,
    "large": Limits(refresh_changes=0, small_rows=0, start_rows=0),
    "recomputed": Limits(recompute_rows=0, recompute_share=0.0),
}


@pytest.mark.parametrize(
    ("seed", "mode", "large", "shapes"),
    [
        (1, "TRANSACTIONAL", "", ("rows", "left")),
        (2, "COMPRESSED", "", ("joined", "over")),
        (4, "TRANSACTIONAL", "large", ("sums",)),
        pytest.param(1, "TRANSACTIONAL", "", ("rows", "sums", "total"), marks=pytest.mark.long),
        pytest.param(2, "COMPRESSED", "", ("joined", "kinds", "over"), marks=pytest.mark.long),
        pytest.param(3, "TRANSACTIONAL", "", ("bag", "distinct", "left"), marks=pytest.mark.long),
        pytest.param(5, "COMPRESSED", "recomputed", ("over",), marks=pytest.mark.long),
        pytest.param(4, "TRANSACTIONAL", "large", ("sums", "over"), marks=pytest.mark.long),
        pytest.param(5, "COMPRESSED", "recomputed", ("total", "over"), marks=pytest.mark.long),
    ],
)
def test_members_have_the_deltas_of_queries_by_themselves(
    spark: SparkSession, warehouse: Path, seed: int, mode: str, large: str, shapes: tuple[str, ...]
) -> None:
    rng = random.Random(seed)
    engine = cq_engine.connect(warehouse, spark=spark, scheduler=False, limits=PATHS[large])
    create_tables(engine)
    pairs = Pairs(engine, rng, mode)
    for shape in (*shapes, *shapes):
        pairs.create(shape)
    assert len(engine.catalog.state.groups) == len(shapes)
    for step in range(1 if large else 0, 3):
        for _ in range(rng.randrange(1, 3)):
            change(engine, rng)
        if step == 1:
            pairs.create(rng.choice(shapes))
        elif step == 2:
            engine.close()
            engine = pairs.engine = cq_engine.connect(
                warehouse, spark=spark, scheduler=False, limits=PATHS[large]
            )
            pairs.drop()
        engine.drain()
        pairs.check()
    assert engine.catalog.state.groups
    plans = [r.plan for r in engine.catalog.refreshes() if r.query.startswith("query group")]
    assert any("recompute" in plan for plan in plans) == (large == "recomputed")
    engine.close()


# ---------------------------------------------------------------- what becomes of members


SUMS = "SELECT cust, sum(amt) AS s FROM orders WHERE cust = {} GROUP BY cust"


def create(engine: Engine, count: int, clauses: str = "", text: str = SUMS) -> None:
    for number in range(count):
        engine.execute(f"CREATE CONTINUOUS QUERY q{number} {clauses.format(number)} AS {text.format(number)}")


def groups(engine: Engine) -> dict[str, str | None]:
    return {query.name: query.group for query in engine.catalog.state.queries.values()}


def result(engine: Engine, number: int) -> list[Any]:
    return sorted(engine.execute(SUMS.format(number)).fetchall())


def accumulated(engine: Engine, name: str) -> list[Any]:
    rows: dict[Any, Any] = {}
    for delta in engine.deltas(name):
        if delta.new is None:
            assert rows.pop(delta.key) == delta.old
        else:
            assert rows.get(delta.key) == delta.old
            rows[delta.key] = delta.new
    return sorted(rows.values())


def narrower(number: int) -> str:
    return SUMS.format(number).replace("GROUP", "AND amt > 0 GROUP")


DIVERGE: dict[str, Callable[[Engine, int], object]] = {
    "pause": lambda e, n: (
        e.execute(f"ALTER CONTINUOUS QUERY q{n} PAUSE"),
        e.execute("UPDATE orders SET amt = amt + 1"),
        e.execute(f"ALTER CONTINUOUS QUERY q{n} RESUME"),
    ),
    "schedule": lambda e, n: e.execute(f"ALTER CONTINUOUS QUERY q{n} SET ON DEMAND"),
    "read": lambda e, n: e.execute(f"CREATE CONTINUOUS QUERY reader AS SELECT max(s) AS m FROM q{n}"),
    "replace": lambda e, n: e.execute(f"CREATE OR REPLACE CONTINUOUS QUERY q{n} AS {narrower(n)}"),
    "redefine": lambda e, n: e.execute(f"ALTER CONTINUOUS QUERY q{n} AS {narrower(n)}"),
    "restart": lambda e, n: e.execute(f"ALTER CONTINUOUS QUERY q{n} RESUME FROM NOW"),
}


def test_members_that_differ_leave_and_go_on(engine: Engine) -> None:
    """Each in its way, one after the other; the group goes on with those that are left."""
    count = len(DIVERGE) + 3
    engine.execute(f"INSERT INTO orders SELECT id + 20, id, 'b', 7 + id FROM range(4, {count})")
    create(engine, count, "START FROM SNAPSHOT")
    for number, (how, diverge) in enumerate(DIVERGE.items(), 2):
        engine.execute("UPDATE orders SET amt = amt * 2")
        engine.drain()
        name = f"q{number}"
        before = list(engine.deltas(name))
        diverge(engine, number)
        found = groups(engine)
        assert found[name] is None, how
        assert {found[f"q{n}"] for n in (1, *range(number + 1, count))} == {found["q1"]} != {None}, how
        assert list(engine.deltas(name))[: len(before)] == before, how
        engine.execute(
            f"INSERT INTO orders VALUES ({number + 50}, {number}, 'a', 7), ({number + 70}, 1, 'a', 8)"
        )
        for each in (name, "q1"):
            engine.refresh(each)
            assert accumulated(engine, each) == result(engine, int(each[1:])), how
    engine.drain()
    for number in range(count):
        engine.refresh(f"q{number}")
        assert accumulated(engine, f"q{number}") == result(engine, number)


def test_the_last_member_takes_the_group_along(engine: Engine) -> None:
    create(engine, 3)
    engine.execute("DROP CONTINUOUS QUERY q1")
    assert engine.catalog.state.groups
    (name,) = engine.catalog.state.groups
    assert engine.scheduler.knows(name)
    engine.execute("ALTER CONTINUOUS QUERY q2 PAUSE")
    assert not engine.catalog.state.groups
    assert not engine.scheduler.knows(name)
    assert engine.describe("q2").state == "PAUSED"


def test_a_member_that_fails_does_not_stop_the_others(engine: Engine) -> None:
    engine.execute("CREATE TABLE days (id INT PRIMARY KEY, d DATE)")
    engine.execute("INSERT INTO days VALUES (1, DATE'2024-01-01')")
    texts = ("2023-01-01", "2024-06-01", "no date", "2025-01-01", "2022-01-01")
    for number, text in enumerate(texts):
        engine.execute(f"CREATE CONTINUOUS QUERY q{number} AS SELECT id, d FROM days WHERE d > '{text}'")
    assert len({groups(engine)[f"q{number}"] for number in range(1, 5)}) == 1
    engine.execute("INSERT INTO days VALUES (2, DATE'2024-12-01')")
    with pytest.raises(RefreshError, match="q2"):
        engine.drain()
    assert [engine.describe(f"q{n}").state for n in range(5)] == [
        "ACTIVE",
        "ACTIVE",
        "FAILED",
        "ACTIVE",
        "ACTIVE",
    ]
    assert "no date" in engine.describe("q2").error
    assert groups(engine)["q2"] is None
    assert [len(list(engine.deltas(f"q{n}"))) for n in (1, 3, 4)] == [1, 0, 1]
    engine.execute("DROP CONTINUOUS QUERY q2")
    engine.execute("INSERT INTO days VALUES (3, DATE'2026-12-01')")
    engine.drain()
    assert [len(list(engine.deltas(f"q{n}"))) for n in (1, 3, 4)] == [2, 1, 2]


def test_an_error_of_all_members_waits_for_the_data(engine: Engine) -> None:
    text = "SELECT cust, 10 / amt AS share FROM orders WHERE cust <> {}"
    create(engine, 4, text=text)
    engine.execute("INSERT INTO orders VALUES (9, 9, 'a', 0)")
    with pytest.raises(RefreshError):
        engine.drain()
    assert {engine.describe(f"q{n}").state for n in (1, 2, 3)} == {"FAILED"}


def test_destinations_get_the_rows_of_their_query(engine: Engine) -> None:
    received: list[tuple[str, Any]] = []

    @engine.callback("alert")
    def alert(batch: cq_engine.DeltaBatch) -> None:
        received.extend((batch.query, delta.new) for delta in batch)

    create(engine, 4, "DESTINATION CALLBACK alert, TABLE into_{0}")
    engine.execute("INSERT INTO orders VALUES (9, 2, 'a', 7), (10, 3, 'a', 8)")
    engine.drain()
    assert sorted(received) == [("q2", (2, 27)), ("q3", (3, 13))]
    rows = [engine.execute(f"SELECT * FROM into_{n}").fetchall() for n in range(4)]
    assert rows == [[], [], [(2, 27)], [(3, 13)]]
    engine.execute("UPDATE orders SET amt = 1 WHERE id = 9")
    engine.drain()
    engine.drain()
    assert received[2:] == [("q2", (2, 21))]


def test_cursors_outlive_the_process(spark: SparkSession, warehouse: Path) -> None:
    received: list[tuple[str, Any]] = []
    with cq_engine.connect(warehouse, spark=spark, scheduler=False) as engine:
        create_tables(engine)
        create(engine, 4, "DESTINATION CALLBACK alert")
        engine.execute("INSERT INTO orders VALUES (9, 2, 'a', 7)")
        engine.refresh("q2")
    with cq_engine.connect(warehouse, spark=spark, scheduler=False) as engine:
        engine.callback("alert")(lambda batch: received.extend((batch.query, d.new) for d in batch))
        engine.drain()
        assert received == [("q2", (2, 27))]
        engine.execute("INSERT INTO orders VALUES (10, 3, 'a', 7)")
        engine.drain()
        assert received[1:] == [("q3", (3, 12))]


def test_a_reader_of_the_warehouse_sees_members(engine: Engine, spark: SparkSession, warehouse: Path) -> None:
    create(engine, 3, "START FROM SNAPSHOT")
    engine.execute("INSERT INTO orders VALUES (9, 2, 'a', 7)")
    with cq_engine.connect(warehouse, spark=spark, read_only=True) as other:
        assert other.describe("q2").position == engine.describe("q2").position
        engine.drain()
        assert list(other.deltas("q2")) == list(engine.deltas("q2"))
        assert accumulated(other, "q2") == [(2, 27)]
        rows = other.execute("SELECT * FROM q2 CHANGES FROM VERSION 1").fetchall()
        assert [row[:3] for row in rows if row[2] == "update_postimage"] == [(2, 27, "update_postimage")]


def test_scheduled_members_are_refreshed_in_the_background(spark: SparkSession, warehouse: Path) -> None:
    with cq_engine.connect(warehouse, spark=spark) as engine:
        create_tables(engine)
        create(engine, 4, "START FROM SNAPSHOT")
        engine.execute("INSERT INTO orders VALUES (9, 2, 'a', 7), (10, 3, 'a', 8)")
        engine.drain(timeout=300)
        for number in range(4):
            assert accumulated(engine, f"q{number}") == result(engine, number)
        refreshes = engine.execute("SHOW REFRESHES FOR q3").fetchall()
        assert all(row[0].startswith("query group") for row in refreshes)
        engine.publish()


def test_a_group_is_compacted_below_its_position(engine: Engine) -> None:
    limit(engine, compact_rows=0, compact_long_rows=0)
    create(engine, 3)
    for amount in range(3):
        engine.execute(f"UPDATE orders SET amt = amt + {amount + 1}")
        engine.drain()
        engine.maintain()
        name = f"later{amount}"
        engine.execute(f"CREATE CONTINUOUS QUERY {name} START FROM SNAPSHOT AS {SUMS.format(amount + 1)}")
        (group,) = engine.catalog.state.groups.values()
        position = engine.catalog.status(group.name).position
        for _, state in group.query.states:
            assert engine.catalog.layout(state.id, position).base == position - 1
    engine.execute("UPDATE orders SET amt = amt + 10")
    engine.drain()
    for amount in range(3):
        assert accumulated(engine, f"later{amount}") == result(engine, amount + 1)
