"""Large tables of PostgreSQL that executors cannot read, not to the end, or need not."""

from __future__ import annotations

import gc
import logging
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cq_engine.core import faults
from cq_engine.core.errors import CQError, SourceError, SourceUnavailableError
from cq_engine.core.limits import Limits
from cq_engine.sources import tick
from cq_engine.sources.sql.database import Database
from cq_engine.sources.sql.parts import NotBegun, Parts, failure_in
from cq_engine.sources.whole import Whole
from tests import postgres
from tests.sources.decodings import ask
from tests.sources.loads import MANY, Opened, after_cut, capture, rows
from tests.sources.shops import Shop
from tests.sources.writers import Writer, declare, here
from tests.waiting import until

pytestmark = pytest.mark.postgres


class Crash(BaseException):
    """In the place of a process that ends."""


@pytest.fixture(scope="module")
def shop(postgres_server: str) -> Shop:
    return Shop("postgresql", postgres.fresh(postgres_server))


@pytest.mark.parametrize("point", ["commit.begin", "commit.staged", "commit.before_catalog"])
def test_a_crash_leaves_nothing(
    opened: Opened, shop: Shop, orders: Writer, spreads: list[Parts], point: str
) -> None:
    engine = opened(MANY)
    declare(engine, shop, "timestamp")
    before = engine.catalog.newest_version

    def crash(name: str, *_: object) -> None:
        if name == point:
            raise Crash

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(faults, "point", crash)
        with pytest.raises(Crash):
            engine.refresh_capture("c")
    assert here(engine) == []
    assert engine.catalog.newest_version == before
    assert engine.catalog.capture_status("c").position == ""
    engine.refresh_capture("c")
    assert here(engine) == orders.rows()
    assert len(spreads) == 2


def test_few_rows_and_what_has_no_ranges_the_driver_reads(
    opened: Opened, shop: Shop, orders: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> int:
        pytest.fail("executors read")

    monkeypatch.setattr(tick, "spread", never)
    shop.run("CREATE VIEW seen AS SELECT * FROM orders")
    shop.run("DROP TABLE IF EXISTS loose")
    shop.run("CREATE TABLE loose AS SELECT * FROM orders")
    count = len(orders.rows())
    for limits, table in (
        (Limits(load_rows=count + 1), "orders"),
        (Limits(load_rows=1, load_connections=1), "orders"),
        (Limits(load_rows=1), "seen"),
        (Limits(load_rows=1), "loose"),  # no index
    ):
        engine = opened(limits)
        capture(engine, shop, table, "id INT, region STRING, price DECIMAL(10, 2), note STRING", "id")
        engine.refresh_capture("c")
        assert here(engine) == orders.rows()
        engine.execute("DROP SOURCE shop CASCADE")
        engine.execute("DROP TABLE t")
        engine.close()


def test_where_executors_cannot_begin_the_driver_reads(
    opened: Opened,
    shop: Shop,
    orders: Writer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = opened(MANY)
    declare(engine, shop, "timestamp")
    monkeypatch.setattr(Whole, "_snapshot", lambda _: "00000003-0000001B-9")
    with caplog.at_level(logging.WARNING):
        engine.refresh_capture("c")
    assert here(engine) == orders.rows()
    assert "the driver reads all rows alone" in caplog.text
    assert '"high"' in engine.catalog.capture_status("c").position


def test_who_waits_for_the_table_is_not_waited_for(
    opened: Opened, shop: Shop, orders: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, altered = (
        opened(MANY),
        threading.Thread(target=lambda: shop.run("ALTER TABLE orders ADD COLUMN x int")),
    )
    declare(engine, shop, "copy")

    def alter() -> None:
        altered.start()
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock'"
        with Database.open(shop.database.declared) as database:
            while True:
                with database.connect() as session:
                    if session.connection.exec_driver_sql(waiting).scalar_one():
                        return

    after_cut(monkeypatch, alter)
    expected = orders.rows()
    engine.refresh_capture("c")
    altered.join()
    assert here(engine) == expected


def test_a_source_that_ends_while_it_is_read(opened: Opened, shop: Shop, orders: Writer) -> None:
    engine = opened(MANY)
    engine.execute(
        "CREATE TABLE t (id INT, region STRING, price DECIMAL(10, 2), note STRING, PRIMARY KEY (id))"
    )
    engine.execute(f"CREATE SOURCE shop TYPE postgresql WITH (url = '{shop.url}')")
    slow = "WHERE 'pg_sleep(0.1) IS NOT NULL'"
    engine.execute(f"CREATE CAPTURE c INTO t FROM shop TABLE 'orders' {slow} USING COPY ON DEMAND")
    slept = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"
    )

    def end() -> None:
        until(lambda: ask(shop, slept)[0][0])
        postgres.cut(shop.url)

    thread = threading.Thread(target=end)
    thread.start()
    with pytest.raises(SourceUnavailableError) as error:
        engine.refresh_capture("c")
    thread.join()
    assert error.value.message.startswith("source shop (postgresql")
    del error
    with warnings.catch_warnings(action="ignore"):
        gc.collect()  # psycopg cannot close the cursors of a connection that has ended
    assert here(engine) == []
    status = engine.catalog.capture_status("c")
    assert (status.state, status.position, status.failures) == ("ACTIVE", "", 1)  # it is tried again
    engine.refresh_capture("c")
    assert here(engine) == orders.rows()


def test_a_statement_that_takes_too_long(opened: Opened, shop: Shop, orders: Writer) -> None:
    engine = opened(MANY)
    engine.execute(
        "CREATE TABLE t (id INT, region STRING, price DECIMAL(10, 2), note STRING, PRIMARY KEY (id))"
    )
    engine.execute(
        f"CREATE SOURCE shop TYPE postgresql WITH (url = '{shop.url}', timeout = '300 milliseconds')"
    )
    slow = "WHERE 'pg_sleep(0.1) IS NOT NULL'"
    engine.execute(f"CREATE CAPTURE c INTO t FROM shop TABLE 'orders' {slow} USING COPY ON DEMAND")
    with pytest.raises(SourceError, match="statement timeout"):
        engine.refresh_capture("c")
    assert here(engine) == []


def test_a_value_that_does_not_fit_is_named(opened: Opened, shop: Shop, spreads: list[Parts]) -> None:
    shop.run("DROP TABLE IF EXISTS odd")
    shop.run("CREATE TABLE odd (k int PRIMARY KEY, v text)")
    shop.run("INSERT INTO odd SELECT g, CASE g WHEN 7 THEN 'seven' ELSE '1' END FROM generate_series(1, 9) g")
    engine = opened(MANY)
    capture(engine, shop, "odd", "k INT, v INT", "k")
    with pytest.raises(SourceError) as error:
        engine.refresh_capture("c")
    assert error.value.message == "column v of public.odd at source shop has 'seven', which is no INT"
    assert error.value.detail == "the row with k = 7"
    assert "leave such rows out by WHERE" in error.value.hint
    assert not isinstance(error.value, NotBegun)
    assert rows(engine) == []
    assert len(spreads) == 1
    shop.run("UPDATE odd SET v = '7' WHERE k = 7")
    engine.execute("ALTER CAPTURE c RESUME")
    engine.refresh_capture("c")
    assert len(rows(engine)) == 9


def test_what_a_task_says_is_found_in_sparks_words() -> None:
    text = 'x\nRuntimeError: cq-source-error:[true, "SourceUnavailableError", "gone {]", "d", "h"]\n at java'
    found = failure_in(text)
    assert found is not None
    assert (type(found).__name__, found.message, found.detail, found.hint) == (
        "SourceUnavailableError",
        "gone {]",
        "d",
        "h",
    )
    assert isinstance(failure_in(text.replace("true", "false")), NotBegun)
    assert failure_in("something else") is None


def test_a_secret_goes_to_the_tasks_and_nowhere_else(
    opened: Opened,
    shop: Shop,
    orders: Writer,
    spreads: list[Parts],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    secret = "open${sesame}"  # is no variable, once it has been resolved
    monkeypatch.setenv("SHOP_SECRET", "open%24%7Bsesame%7D")
    engine = opened(MANY)
    engine.execute(
        "CREATE TABLE t (id INT, region STRING, price DECIMAL(10, 2), note STRING, PRIMARY KEY (id))"
    )
    url = shop.url.replace("cq@", "cq:${SHOP_SECRET}@")
    engine.execute(f"CREATE SOURCE shop TYPE postgresql WITH (url = '{url}')")
    engine.execute("CREATE CAPTURE c INTO t FROM shop TABLE 'orders' USING COPY ON DEMAND")
    engine.refresh_capture("c")
    assert here(engine) == orders.rows()
    assert spreads[0].address.secrets == {"password": secret}
    assert "sesame" not in repr(spreads[0])
    shop.run("ALTER TABLE orders ALTER COLUMN price TYPE text")
    shop.run("UPDATE orders SET price = 'much'")
    with pytest.raises(CQError) as error:
        engine.refresh_capture("c")
    assert "sesame" not in str(error.value)
    assert "much" in error.value.message
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or b"sesame" not in file.read_bytes()


def test_what_has_been_read_is_shown(
    opened: Opened, shop: Shop, orders: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, seen = opened(MANY), []
    declare(engine, shop, "copy")
    count = len(orders.rows())
    spread = tick.spread

    def watched(
        transaction: Any, table: Any, parts: Parts, watch: Callable[[Callable[[], int]], None]
    ) -> int:
        done = spread(transaction, table, parts, watch)
        seen.append(
            engine.execute("SHOW CAPTURES").to_arrow().to_pylist()[0]["state"]
        )  # as the tasks have counted
        return done

    monkeypatch.setattr(tick, "spread", watched)
    shop.run("ANALYZE orders")
    assert engine.refresh_capture("c").rows_read == count
    assert seen == [f"READING ({count} of about {count} rows)"]
    assert engine.execute("SHOW CAPTURES").to_arrow().to_pylist()[0]["state"] == "ACTIVE"
