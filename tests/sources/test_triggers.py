"""Captures by triggers, server by server: the replica beside the source, whoever writes there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine as Pool

from cq_engine.core.limits import Limits
from cq_engine.sources.sql.database import Session
from tests.sources.kills import killed_in_refresh
from tests.sources.shops import TYPES, Shop
from tests.sources.trigger_logs import LOG, Opened, declare, installed, logged, put
from tests.sources.writers import BEGIN, Writer, here


@pytest.mark.parametrize(
    "limits", [Limits(), Limits(pending_rows=5, small_rows=-1, apply_rows=8)], ids=["driver", "spark"]
)
@pytest.mark.parametrize("method", ["log", "log where"])
def test_the_replica_is_the_source(
    opened: Opened, shop: Shop, written: Writer, method: str, limits: Limits
) -> None:
    engine, writer = opened(limits), written
    writer.method = method
    declare(engine, shop, "WHERE 'orders.price > 1'" if method == "log where" else "")
    engine.refresh_capture("c")
    assert here(engine) == writer.rows()
    for _ in range(5 if limits.small_rows > 0 else 3):
        for _ in range(writer.dice.randint(1, 4)):
            writer.transaction()
        engine.refresh_capture("c")
        assert here(engine) == writer.rows()
        assert logged(shop) == 0
    before = engine.catalog.newest_version
    engine.refresh_capture("c")
    assert engine.catalog.newest_version == before
    engine.execute("DROP CAPTURE c")
    assert installed(shop) == []


def test_while_others_write(opened: Opened, shop: Shop, written: Writer) -> None:
    engine, writer = opened(Limits()), written
    declare(engine, shop)
    with writer.at_work():
        for _ in range(8):
            engine.refresh_capture("c")
    engine.refresh_capture("c")
    assert here(engine) == writer.rows()
    found = engine.execute("SELECT id, region, price, note FROM t CHANGES FROM VERSION 1").to_arrow()
    assert {tuple(row.values()) for row in found.to_pylist()} <= writer.ever


@contextmanager
def held(shop: Shop) -> Iterator[Session]:
    with shop.database.write() as session:
        yield session


def run(session: Session, *statements: str) -> None:
    for sql in statements:
        session.connection.exec_driver_sql(sql)


def test_commits_in_another_order_than_they_began(opened: Opened, shop: Shop, written: Writer) -> None:
    if shop.kind == "sqlite":
        pytest.skip("SQLite has one writer at a time")
    engine, writer = opened(Limits()), written
    declare(engine, shop)
    engine.refresh_capture("c")
    with held(shop) as first:
        run(first, put(1001, "first"))
        with held(shop) as second:
            run(second, put(1002, "second"), "UPDATE orders SET note = 'by the second' WHERE id = 1002")
        engine.refresh_capture("c")
        assert here(engine) == writer.rows()
        assert 1002 in [row[0] for row in here(engine)]
        run(first, "UPDATE orders SET note = 'by the first' WHERE id = 1002", put(1003, "first"))
        engine.refresh_capture("c")
        assert 1001 not in [row[0] for row in here(engine)]
    shop.run("UPDATE orders SET note = 'after both' WHERE id = 1003")
    engine.refresh_capture("c")
    assert here(engine) == writer.rows()
    notes = {row[0]: row[3] for row in here(engine)}
    assert (notes[1001], notes[1002], notes[1003]) == ("first", "by the first", "after both")


def test_rolled_back_and_interleaved(opened: Opened, shop: Shop, written: Writer) -> None:
    engine, writer = opened(Limits()), written
    declare(engine, shop)
    engine.refresh_capture("c")
    before = here(engine)

    with shop.database.write() as session:
        run(session, put(1001, "never"), "DELETE FROM orders WHERE id < 1000")
        session.connection.get_transaction().rollback()
    engine.refresh_capture("c")
    assert here(engine) == before == writer.rows()


def test_transactions_are_the_sources(opened: Opened, shop: Shop, written: Writer) -> None:
    engine = opened(Limits())
    declare(engine, shop)
    engine.refresh_capture("c")
    for key in (1001, 1002, 1003):
        with held(shop) as session:
            run(session, put(key, "a"), f"UPDATE orders SET note = 'b' WHERE id = {key}", put(key + 50, "c"))
    done = engine.refresh_capture("c")
    assert len(done.commit_versions) == (3 if shop.kind == "postgresql" else 1)
    times = engine.execute("SELECT DISTINCT _commit_timestamp FROM t CHANGES FROM VERSION 2").to_arrow()
    assert times.num_rows == len(done.commit_versions)
    assert here(engine) == written.rows()


def test_killed_between_commit_and_clean_up(
    opened: Opened, shop: Shop, written: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, writer = opened(Limits()), written
    declare(engine, shop)
    engine.refresh_capture("c")
    shop.run(put(1001, "once"))
    shop.run("UPDATE orders SET note = 'twice', id = 1002 WHERE id = 1001")
    begun = engine.catalog.newest_version
    killed_in_refresh(engine, "commit.after_catalog", monkeypatch)
    engine.close()
    engine = opened(Limits())
    assert here(engine) == writer.rows()
    assert logged(shop) > 0
    assert engine.catalog.newest_version > begun
    once = engine.catalog.newest_version
    engine.refresh_capture("c")
    assert engine.catalog.newest_version == once
    assert logged(shop) == 0
    shop.run("DELETE FROM orders WHERE id = 1002")
    engine.refresh_capture("c")
    assert here(engine) == writer.rows()


def test_only_what_comes(opened: Opened, shop: Shop, written: Writer) -> None:
    engine = opened(Limits())
    declare(engine, shop, more=", initial = 'none'")
    shop.run(put(1001, "new"))
    engine.refresh_capture("c")
    assert [row[0] for row in here(engine)] == [1001]


def test_truncated(opened: Opened, shop: Shop, written: Writer) -> None:
    engine = opened(Limits())
    declare(engine, shop)
    engine.refresh_capture("c")
    assert here(engine)
    shop.run("DELETE FROM orders" if shop.kind == "sqlite" else "TRUNCATE TABLE orders")
    shop.run(put(1001, "only"))
    engine.refresh_capture("c")
    assert here(engine) == written.rows() == [(1001, None, None, "only")]


def test_replaced_by_another_unique_column(opened: Opened, shop: Shop, written: Writer) -> None:
    if shop.kind == "postgresql":
        pytest.skip("PostgreSQL has no REPLACE")
    shop.run("DELETE FROM orders")
    shop.run("CREATE UNIQUE INDEX once ON orders (version, gone)")
    shop.run("INSERT INTO orders (id, version, gone) VALUES (1, 1, 0), (2, 2, 0), (3, 3, 0), (4, NULL, 0)")
    engine = opened(Limits())
    declare(engine, shop)
    engine.refresh_capture("c")
    shop.run("REPLACE INTO orders (id, version, gone) VALUES (9, 2, 0), (4, NULL, 0)")
    engine.refresh_capture("c")
    assert [row[0] for row in here(engine)] == [1, 3, 4, 9]
    if shop.kind == "sqlite":
        shop.run("UPDATE OR REPLACE orders SET version = 1 WHERE id = 3")
        engine.refresh_capture("c")
        assert [row[0] for row in here(engine)] == [3, 4, 9]


def test_values_and_keys(opened: Opened, shop: Shop) -> None:
    """Keys that differ by case alone, NULLs, decimals, binary and times."""
    types = TYPES[shop.kind]
    shop.run("DROP TABLE IF EXISTS orders")
    shop.run(
        f"CREATE TABLE orders (a {types['key']} NOT NULL, n INT NOT NULL, d DECIMAL(20, 5), b {types['binary']},"
        f" m {types['moment']}, f {types['double']}, PRIMARY KEY (a, n))"
    )
    engine = opened(Limits())
    engine.execute(
        "CREATE TABLE t (a STRING, n INT, d DECIMAL(20, 5), b BINARY, m TIMESTAMP_NTZ, f DOUBLE, PRIMARY KEY (a, n))"
    )
    engine.execute(f"CREATE SOURCE shop TYPE {shop.kind} WITH (url = '{shop.url}')")
    engine.execute(LOG.format("", ""))
    engine.refresh_capture("c")
    moment = BEGIN + timedelta(microseconds=123456)
    decimal: Any = 12345.5 if shop.kind == "sqlite" else Decimal("123456789012345.00001")
    rows = [("ab", 1, decimal, b"\x00\xff'", moment, 0.1), ("c,\"'\\", 2, None, None, None, None)]
    shop.insert("orders", rows)

    def same() -> list[tuple[Any, ...]]:
        engine.refresh_capture("c")
        found = [tuple(row.values()) for row in engine.execute("SELECT * FROM t").to_arrow().to_pylist()]
        engine.execute("CREATE TABLE IF NOT EXISTS u (a STRING, n INT, d DECIMAL(20, 5), b BINARY, m TIMESTAMP_NTZ,"
                       " f DOUBLE, PRIMARY KEY (a, n))")  # fmt: skip
        engine.execute("CREATE CAPTURE IF NOT EXISTS d INTO u FROM shop TABLE 'orders' USING COPY ON DEMAND")
        engine.refresh_capture("d")
        copied = [tuple(row.values()) for row in engine.execute("SELECT * FROM u").to_arrow().to_pylist()]
        assert sorted(map(repr, found)) == sorted(map(repr, copied))
        return found

    assert len(same()) == 2
    shop.run("UPDATE orders SET a = 'AB' WHERE n = 1")
    assert sorted(row[0] for row in same()) == ["AB", "c,\"'\\"]
    shop.run("UPDATE orders SET b = NULL, f = 1e300 WHERE n = 1")
    shop.run("UPDATE orders SET n = 3 WHERE n = 2")
    assert sorted(row[1] for row in same()) == [1, 3]
    shop.run("DELETE FROM orders WHERE n = 3")
    assert [row[1] for row in same()] == [1]
    engine.execute("DROP SOURCE shop CASCADE")
    assert installed(shop) == []


def test_nothing_but_the_log_is_read(opened: Opened, shop: Shop, written: Writer) -> None:
    engine = opened(Limits())
    declare(engine, shop)
    engine.refresh_capture("c")
    seen: list[tuple[str, Any]] = []

    def note(_: Any, __: Any, sql: str, parameters: Any, *___: Any) -> None:
        seen.append((sql, parameters))

    event.listen(Pool, "before_cursor_execute", note)
    try:
        engine.refresh_capture("c")
        quiet = list(seen)
        seen.clear()
        shop.run(put(1001, "one"))
        engine.refresh_capture("c")
        busy = list(seen)
    finally:
        event.remove(Pool, "before_cursor_execute", note)
    assert not touching(shop, quiet)
    assert touching(shop, busy) or shop.kind == "postgresql"
    assert here(engine) == written.rows()


def touching(shop: Shop, statements: list[tuple[str, Any]]) -> list[str]:
    """Statements whose plans read rows of the captured table; of SQLite not that for its greatest row number."""
    found = []
    for sql, parameters in statements:
        if not sql.lstrip().startswith("SELECT") or "cq_commits" in sql or "max(_rowid_)" in sql:
            continue
        try:
            with shop.database.connect() as session:
                plan = shop.database.server.explain(session.connection, sql, parameters)
        except Exception:  # noqa: BLE001 - a statement of the catalog's own database
            continue
        if any(re.search(r"\b(on|SCAN|SEARCH) orders\b|\btable=orders\b", line) for line in plan):
            found.append(sql)
    return found
