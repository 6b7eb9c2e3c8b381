"""Large tables of PostgreSQL, which executors read range by range: what the driver would have read alone, in one state."""

from __future__ import annotations

import random
import threading
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from cq_engine.core.limits import Limits
from cq_engine.sources.sql.parts import Parts
from cq_engine.sources.whole import Whole
from tests import postgres
from tests.sources.decodings import declare as declare_slot
from tests.sources.loads import MANY, Opened, after_cut, capture, rows
from tests.sources.shops import Shop
from tests.sources.test_values import ALIKE, OWN
from tests.sources.writers import METHODS, Writer, declare, here

pytestmark = pytest.mark.postgres

UTC = timezone.utc


@pytest.fixture(scope="module")
def shop(postgres_server: str) -> Shop:
    return Shop("postgresql", postgres.fresh(postgres_server))


# ---------------------------------------------------------------- the same rows


def test_values_are_those_that_the_driver_reads(
    opened: Opened, shop: Shop, monkeypatch: pytest.MonkeyPatch, spreads: list[Parts]
) -> None:
    own = OWN["postgresql"]
    kinds = [(kind, ours) for kind, ours, _ in ALIKE] + [(kind, ours) for kind, ours, _, _ in own]
    shop.run("DROP TABLE IF EXISTS valued")
    named = ", ".join(f"c{n} {kind}" for n, (kind, _) in enumerate(kinds))
    shop.run(f"CREATE TABLE valued (id INT PRIMARY KEY, {named})")
    marks = ", ".join(["?"] * (1 + len(ALIKE)) + [each[2] for each in own])
    shop.run(f"INSERT INTO valued VALUES ({marks})", *((n, *(a[2] for a in ALIKE)) for n in (1, 4, 7)))
    shop.run("INSERT INTO valued (id) VALUES (2), (3), (5), (6)")
    engine = opened(MANY)
    columns = ", ".join(["id INT", *(f"c{n} {ours}" for n, (_, ours) in enumerate(kinds))])
    capture(engine, shop, "valued", columns, "id")
    assert engine.refresh_capture("c").rows == 7
    assert [len(each.statements) for each in spreads] == [3]
    engine.execute(f"CREATE TABLE alone ({columns}, PRIMARY KEY (id))")
    engine.execute("CREATE CAPTURE d INTO alone FROM shop TABLE 'valued' USING COPY ON DEMAND")
    monkeypatch.undo()
    monkeypatch.setattr(Whole, "parts", lambda *_: None)
    engine.refresh_capture("d")
    ours, theirs = (engine.execute(f"SELECT * FROM {t} ORDER BY id").to_arrow() for t in ("t", "alone"))
    assert ours.schema == theirs.schema
    assert repr(ours.to_pylist()) == repr(theirs.to_pylist())
    assert [row[1:] for row in rows(engine, "SELECT * FROM t WHERE id = 4")] == [
        (*(each[2] for each in ALIKE), *(each[3] for each in own))
    ]


KEYS: list[tuple[str, str, str, list[tuple[Any, ...]]]] = [
    ("k bigint", "k BIGINT", "k", [(n * 10**12,) for n in range(-20, 20)]),
    ('k text COLLATE "C"', "k STRING", "k", [(x,) for x in ("a", "B", "b", "ä", "Z", "", "é", "%", "'", "😀")]),
    ('k text COLLATE "und-x-icu"', "k STRING", "k", [(x,) for x in ("a", "B", "b", "ä", "Z", "ab", "A", "é", "%")]),
    ("k varchar(9) COLLATE ci", "k STRING", "k", [(x,) for x in ("a", "B", "c", "ä", "Z", "ab", "Ab c", "é", "%")]),
    ("k uuid", "k STRING", "k", [(str(UUID(int=n**9)),) for n in range(12)]),
    ("k numeric", "k DECIMAL(20, 4)", "k", [(Decimal(n) / 8,) for n in range(-9, 9)]),
    ("k double precision", "k DOUBLE", "k", [(x,) for x in (0.1, -0.5, float("inf"), 1e300, 5e-324, 7.0)]),
    ("k timestamptz", "k TIMESTAMP", "k", [(datetime(2024, 1, 1, tzinfo=UTC) + timedelta(n, 0, n),) for n in range(9)]),
    ("k bytea", "k BINARY", "k", [(bytes([n, 255 - n]),) for n in range(9)]),
    ("k mood", "k STRING", "k", [("glad",), ("sad",), ("angry",)]),
    ('j int, k text COLLATE "C"', "j INT, k STRING", "j, k", [(1, f"k{n}") for n in range(30)] + [(0, "x"), (2, "")]),
    ('k text COLLATE "und-x-icu", j int', "k STRING, j INT", "k, j", [(x, n) for x in "aAbB" for n in range(5)]),
]  # fmt: skip


@pytest.mark.parametrize(("source", "ours", "key", "known"), KEYS, ids=[each[0] for each in KEYS])
def test_every_row_is_in_one_range(
    opened: Opened,
    shop: Shop,
    spreads: list[Parts],
    source: str,
    ours: str,
    key: str,
    known: list[tuple[Any, ...]],
) -> None:
    shop.run("DROP TABLE IF EXISTS keyed")
    shop.run("DROP TYPE IF EXISTS mood")
    shop.run("CREATE TYPE mood AS ENUM ('sad', 'glad', 'angry')")
    shop.run(f"CREATE TABLE keyed ({source}, v int, PRIMARY KEY ({key}))")
    shuffled = random.Random(1).sample(known, len(known))
    marks = "CAST(? AS mood), ?" if "mood" in source else ", ".join("?" * (len(known[0]) + 1))
    shop.run(
        f"INSERT INTO keyed VALUES ({marks})",
        *((*k, n if n % 4 else None) for n, k in enumerate(shuffled)),
    )
    engine = opened(MANY)
    capture(engine, shop, "keyed", f"{ours}, v INT", key, "WHERE 'v IS NULL OR v <> 2'")
    engine.refresh_capture("c")
    expected = [(*k, n if n % 4 else None) for n, k in enumerate(shuffled) if n != 2]
    assert sorted(rows(engine), key=repr) == sorted(expected, key=repr)
    assert len(spreads[0].statements) == min(3, len(known))
    shop.run("DROP TABLE keyed")


def test_an_empty_table(opened: Opened, shop: Shop, spreads: list[Parts]) -> None:
    shop.run("DROP TABLE IF EXISTS nothing")
    shop.run("CREATE TABLE nothing (k int PRIMARY KEY)")
    engine = opened(Limits(load_rows=0))
    capture(engine, shop, "nothing", "k INT", "k")
    assert engine.refresh_capture("c").commit_versions == ()
    assert len(spreads) == 1
    shop.run("INSERT INTO nothing VALUES (1)")
    engine.refresh_capture("c")
    assert rows(engine) == [(1,)]


@pytest.mark.parametrize(
    "method", ["copy where", "timestamp", "flag", "flag where", "checksum", "own checksum"]
)
def test_the_replica_is_the_source(
    opened: Opened, shop: Shop, spreads: list[Parts], method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, writer = opened(MANY), Writer(shop, random.Random(method), method)
    writer.create()
    for _ in range(15):
        writer.transaction()
    declare(engine, shop, method)
    done = engine.refresh_capture("c")
    assert here(engine) == writer.rows()
    assert done.rows == len(writer.rows())
    assert {len(each.statements) for each in spreads} == {3}
    begun = len(spreads)
    for _ in range(3):
        for _ in range(3):
            writer.transaction()
        engine.refresh_capture("c")
        assert here(engine) == writer.rows()
    assert method != "copy where" or len(spreads) > begun  # compared with rows that are there
    before = engine.catalog.newest_version
    engine.refresh_capture("c")
    assert engine.catalog.newest_version == before


@pytest.mark.parametrize("log", ["install", "slot"])
def test_a_log_goes_on_from_the_state_that_was_read(
    opened: Opened,
    shop: Shop,
    orders: Writer,
    spreads: list[Parts],
    log: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = opened(MANY)
    if log == "slot":
        declare_slot(engine, shop)
    else:
        monkeypatch.setitem(METHODS, "log", "TABLE 'orders' USING LOG WITH (install = true)")
        declare(engine, shop, "log")
    before = orders.rows()
    after_cut(monkeypatch, orders.transaction)  # neither lost nor there twice
    engine.refresh_capture("c")
    assert here(engine) == before
    assert len(spreads) == 1
    engine.refresh_capture("c")
    assert here(engine) == orders.rows() != before
    engine.execute("DROP CAPTURE c")


# ---------------------------------------------------------------- one state


def test_all_ranges_see_one_state(
    opened: Opened, shop: Shop, spreads: list[Parts], monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.run("DROP TABLE IF EXISTS accounts")
    shop.run("CREATE TABLE accounts (k int PRIMARY KEY, v int)")
    shop.run("INSERT INTO accounts SELECT g, 100 FROM generate_series(0, 299) g")
    engine, dice, stop, alone = opened(MANY), random.Random(1), threading.Event(), threading.Lock()
    capture(engine, shop, "accounts", "k INT, v INT", "k")

    def transfer() -> None:
        moved, low, high = dice.randrange(300), dice.randrange(1, 150), dice.randrange(151, 300)
        statements = [
            f"UPDATE accounts SET v = v - 7 WHERE k IN ({low}, {low + 300})",
            f"UPDATE accounts SET v = v + 7 WHERE k IN ({high}, {high + 300})",
            f"UPDATE accounts SET k = CASE WHEN k < 300 THEN k + 300 ELSE k - 300 END WHERE k IN ({moved}, {moved + 300})",
        ]
        with alone, shop.database.write() as session:
            for sql in statements:
                session.connection.exec_driver_sql(sql)

    def transfers() -> None:
        while not stop.is_set():
            transfer()

    def some() -> None:
        for _ in range(30):
            transfer()

    after_cut(monkeypatch, some)
    thread = threading.Thread(target=transfers)
    thread.start()
    try:
        for _ in range(3):
            engine.refresh_capture("c")
            assert rows(engine, "SELECT count(*), sum(v), count(DISTINCT k % 300) FROM t") == [
                (300, 30_000, 300)
            ]
    finally:
        stop.set()
        thread.join()
    assert len(spreads) == 3
    assert rows(engine, "SELECT count(*) FROM t WHERE v <> 100")[0][0] > 0
