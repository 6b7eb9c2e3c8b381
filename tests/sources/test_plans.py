"""The sources' own plans: what is bounded reads an index, on a table that is large enough for it to matter."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta

import pytest

from cq_engine.sources.sql import select as s
from cq_engine.sources.sql.model import Statement
from tests.sources.shops import TYPES, Shop, capture, naive

ROWS = 20_000
EPOCH = naive(2024, 1, 1)
SCANS = {"sqlite": r"SCAN (?!CONSTANT|\(|\d)", "postgresql": "Seq Scan", "mariadb": r"type=(ALL|index)\b"}


@pytest.fixture(scope="module")
def large(shop: Shop) -> Callable[..., s.Selection]:
    """Makes a selection of a table with a key of two columns, a timestamp, and an index that has all that some want."""
    types = TYPES[shop.kind]
    shop.run(
        f"CREATE TABLE large (a INT NOT NULL, b {types['key']} NOT NULL, v INT, w VARCHAR(200), ts {types['moment']},"
        " gone INT, PRIMARY KEY (a, b))"
    )
    shop.insert(
        "large",
        [(n // 4, f"k{n % 4}", n, "w" * 150, EPOCH + timedelta(seconds=n), n % 2) for n in range(ROWS)],
    )
    shop.run("CREATE INDEX large_ts ON large (ts, gone, a, b, v)")
    if shop.kind == "postgresql":
        shop.run("ANALYZE large")
    else:
        shop.run("ANALYZE" if shop.kind == "sqlite" else "ANALYZE TABLE large")
    relation = shop.relation("large")
    return lambda *columns: s.selection(capture(*columns), relation)


def bounded(shop: Shop, statement: Statement) -> str:
    """The plan, in which nothing is read from one end to the other."""
    plan = s.plan(shop.database, statement)
    assert re.search(SCANS[shop.kind], plan) is None, plan
    return plan


def test_ranges_and_keys_are_found_by_the_primary_key(shop: Shop, large: Callable[..., s.Selection]) -> None:
    all_of = large("a", "b", "v", "w")
    low, high = (2000, "k1"), (2040, "k2")
    for statement in (
        s.image_between(all_of, low, high),
        s.keys_and_checksums(all_of, None, low, high),
        s.range_checksums(all_of, [(low, high), (high, (2080, "k2"))]),
        s.rows_of(all_of, [(7 * n, f"k{n % 4}") for n in range(40)]),
        s.next_keys(all_of, low, 10),
    ):
        assert not s.reads_only_index(shop.database, statement) or statement.names == ("a", "b")
        bounded(shop, statement)
    assert len(shop.rows(s.image_between(all_of, low, high))) == 161
    assert shop.rows(s.next_keys(all_of, low, 161)) == [high]
    many = [(n, f"K{n % 4}") for n in range(s.KEYS)]
    assert len(shop.rows(s.rows_of(all_of, many))) == s.KEYS
    with pytest.raises(AssertionError):  # so that the words that are looked for are those of a scan
        bounded(shop, s.image(all_of))


def test_a_key_of_one_column(shop: Shop) -> None:
    shop.run("CREATE TABLE one (id BIGINT PRIMARY KEY, v VARCHAR(200))")
    shop.insert("one", [(n, "v" * 100) for n in range(ROWS)])
    shop.run({"sqlite": "ANALYZE", "postgresql": "ANALYZE one", "mariadb": "ANALYZE TABLE one"}[shop.kind])
    one = s.selection(capture("id", "v"), shop.relation("one"))
    for statement in (
        s.image_between(one, (500,), (700,)),
        s.rows_of(one, [(n * 11,) for n in range(30)]),
        s.range_checksums(one, [((19_000,), (19_100,))]),
    ):
        bounded(shop, statement)


def test_what_an_index_has_is_read_from_it_alone(shop: Shop, large: Callable[..., s.Selection]) -> None:
    low, high = (shop._plain(EPOCH + timedelta(seconds=n)) for n in (9_000, 9_050))
    if shop.kind == "postgresql":
        with shop.database.write() as session:  # VACUUM is no part of a transaction
            driver = session.connection.connection.driver_connection
            assert driver is not None
            driver.rollback()
            driver.autocommit = True
            driver.execute("VACUUM (ANALYZE) large")
            driver.autocommit = False
    covered = s.since(large("a", "b", "v"), "ts", low, high, deleted="gone")
    bounded(shop, covered)
    assert s.reads_only_index(shop.database, covered)
    assert len(shop.rows(covered)) == 50
    whole = s.since(large("a", "b", "v", "w"), "ts", low, high, deleted="gone")
    bounded(shop, whole)
    assert not s.reads_only_index(shop.database, whole)


def test_purging_finds_rows_by_their_key(shop: Shop, large: Callable[..., s.Selection]) -> None:
    rows = [((n // 4, f"k{n % 4}"), shop._plain(EPOCH + timedelta(seconds=n))) for n in range(1, 60, 2)]
    purge = s.purge(large("a", "b"), "ts", "gone", rows)
    plan = s.plan(shop.database, Statement(purge.sql.replace("DELETE", "SELECT *", 1), purge.parameters))
    assert re.search(SCANS[shop.kind], plan) is None, plan
