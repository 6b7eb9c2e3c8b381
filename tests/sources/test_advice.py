"""ADVISE CAPTURE: which methods it finds possible, what it estimates beside what is measured, and that what it writes runs."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

import cq_engine
from cq_engine import Engine
from cq_engine.core.errors import SourceError
from cq_engine.core.limits import Limits
from cq_engine.sources.advice import formulas
from cq_engine.sources.advice.criteria import CRITERIA
from cq_engine.sources.advice.statistics import statistics
from cq_engine.sources.kinds import methods_of
from tests.sources.shops import TYPES, Shop, declared, naive

Advice = dict[str, dict[str, Any]]
COLUMNS = ("method", "possible", "why_not", "needs", "misses", "rows_read", "rows_shipped", "recommended")
EPOCH = naive(2024, 1, 1)
ROWS = 20_000
FEW = 200
"""One in a hundred of them."""


@pytest.fixture
def opened(once: SparkSession, tmp_path: Path) -> Iterator[Callable[..., Engine]]:
    engines = []

    def connect(shop: Shop | None = None, **bounds: Any) -> Engine:
        limits = Limits(**{"advice_seconds": 0.0, **bounds})
        engines.append(cq_engine.connect(tmp_path / "warehouse", spark=once, scheduler=False, limits=limits))
        if shop is not None:
            engines[-1].execute(f"CREATE SOURCE shop TYPE {shop.kind} WITH (url = '{shop.url}')")
        return engines[-1]

    yield connect
    for engine in engines:
        engine.close()


def advise(engine: Engine, relation: str, source: str = "shop") -> Advice:
    """The rows by the method."""
    result = engine.execute(f"ADVISE CAPTURE FROM {source} TABLE '{relation}'")
    assert tuple(result.columns) == COLUMNS
    return {row["method"]: row for row in result.to_arrow().to_pylist()}


def possible(advice: Advice) -> list[str]:
    return [method for method, row in advice.items() if row["possible"]]


def recommended(advice: Advice) -> str | None:
    found = [method for method, row in advice.items() if row["recommended"]]
    assert len(found) == bool(possible(advice))
    return found[0] if found else None


def analyze(shop: Shop, table: str) -> None:
    shop.run(
        {"sqlite": "ANALYZE", "postgresql": f"ANALYZE {table}", "mariadb": f"ANALYZE TABLE {table}"}[
            shop.kind
        ]
    )


def vacuum(shop: Shop, table: str) -> None:
    """So that PostgreSQL knows from the index alone which rows are there."""
    if shop.kind != "postgresql":
        return analyze(shop, table)
    with shop.database.write() as session:  # VACUUM is no part of a transaction
        driver = session.connection.connection.driver_connection
        assert driver is not None
        driver.rollback()
        driver.autocommit = True
        driver.execute(f"VACUUM (ANALYZE) {table}")
        driver.autocommit = False
    return None


# ---------------------------------------------------------------- shapes

ORDERS = "TIMESTAMP (updated_at, DELETED is_deleted)"


def make_orders(shop: Shop, name: str, rows: int, index: str | None = "updated_at") -> None:
    """Orders with a timestamp and a flag, and `index` over these columns."""
    moment = TYPES[shop.kind]["moment"]
    shop.run(
        f"CREATE TABLE {name} (id INT NOT NULL PRIMARY KEY, note VARCHAR(40), created_at {moment},"
        f" updated_at {moment} NOT NULL, is_deleted SMALLINT NOT NULL)"
    )
    moments = [shop._plain(EPOCH + timedelta(minutes=n)) for n in range(rows)]
    shop.insert(name, [(n, f"note {n}", EPOCH, moments[n], 0) for n in range(rows)])
    if index is not None:
        shop.run(f"CREATE INDEX {name}_i ON {name} ({index})")
    vacuum(shop, name)


def test_a_flag_with_an_index(opened: Callable[..., Engine], shop: Shop) -> None:
    make_orders(shop, "flagged", 3000)
    advice = advise(opened(shop), "flagged")
    assert list(advice)[:8] == [
        "TIMESTAMP (updated_at)",
        ORDERS,
        f"{ORDERS} WITH (index = 'covering')",
        "CHECKSUM",
        "COPY",
        "RANGES (rows = '1000')",
        "RANGES (rows = '1000', CHECKSUM)",
        next(method for method in advice if method.startswith("VIEW")),
    ]
    assert recommended(advice) == ORDERS
    assert advice[ORDERS]["why_not"] is None
    assert "removed and not marked" in advice[ORDERS]["misses"]
    assert advice["TIMESTAMP (updated_at)"]["misses"].startswith("deletions")
    covering = advice[f"{ORDERS} WITH (index = 'covering')"]
    assert covering["why_not"].endswith("covers what such a capture reads")
    assert covering["needs"].endswith("an index over updated_at, is_deleted, id, note, created_at")


def test_an_index_that_covers(opened: Callable[..., Engine], shop: Shop) -> None:
    make_orders(shop, "covered", 3000, "updated_at, is_deleted, id, note, created_at")
    advice = advise(opened(shop), "covered")
    assert recommended(advice) == f"{ORDERS} WITH (index = 'covering')"


def test_without_an_index_checksums_are_compared(opened: Callable[..., Engine], shop: Shop) -> None:
    make_orders(shop, "plain", 11_000, None)
    advice = advise(opened(shop), "plain")
    assert recommended(advice) == "CHECKSUM"
    assert "there is none, and each tick reads all rows twice" in advice[ORDERS]["needs"]
    assert advice[ORDERS]["rows_read"] == 22_000


def test_a_small_table_is_copied(opened: Callable[..., Engine], shop: Shop) -> None:
    shop.run("CREATE TABLE regions (name INT NOT NULL PRIMARY KEY, paid SMALLINT, updated_by INT)")
    shop.insert("regions", [(1, 0, 7), (2, 1, 7)])
    advice = advise(opened(shop), "regions")
    assert recommended(advice) == "COPY"
    assert advice["TIMESTAMP (ts)"]["why_not"].endswith("has no column that could be a timestamp of writes")
    assert (advice["COPY"]["rows_read"], advice["COPY"]["rows_shipped"]) == (2, 2)
    assert advice["TIMESTAMP (ts)"]["rows_read"] is None


def test_without_a_key_nothing_is_possible(opened: Callable[..., Engine], shop: Shop) -> None:
    shop.run("CREATE TABLE keyless (a INT NOT NULL, b INT)")
    advice = advise(opened(shop), "keyless")
    assert possible(advice) == []
    assert recommended(advice) is None
    for method, row in advice.items():
        assert "no primary key" in row["why_not"] or method.startswith("LOG")
    shop.run("CREATE UNIQUE INDEX keyless_b ON keyless (b)")  # which may be NULL
    engine = opened()
    assert possible(advise(engine, "keyless")) == []
    shop.run("CREATE UNIQUE INDEX keyless_a ON keyless (a)")
    assert recommended(advise(engine, "keyless")) == "COPY"


def test_a_key_that_the_source_orders_otherwise(opened: Callable[..., Engine], shop: Shop) -> None:
    shop.run(f"CREATE TABLE named (name {TYPES[shop.kind]['key']} NOT NULL PRIMARY KEY, v INT)")
    advice = advise(opened(shop), "named")
    for ranges in ("RANGES (rows = '1000')", "RANGES (rows = '1000', CHECKSUM)"):
        assert not advice[ranges]["possible"]
        assert "orders name in a way that ranges cannot follow" in advice[ranges]["why_not"]
    assert "CHECKSUM" in possible(advice)


def test_a_timestamp_that_nobody_sets(opened: Callable[..., Engine], shop: Shop) -> None:
    moment = TYPES[shop.kind]["moment"]
    shop.run(f"CREATE TABLE unset (id INT NOT NULL PRIMARY KEY, changed_on {moment} NULL)")
    shop.insert("unset", [(1, None)])
    shop.run("CREATE INDEX unset_i ON unset (changed_on)")
    advice = advise(opened(shop), "unset")
    assert advice["TIMESTAMP (changed_on)"]["why_not"] == "changed_on is NULL in every row: no write sets it"


def test_what_is_not_there(opened: Callable[..., Engine], shop: Shop) -> None:
    engine = opened(shop)
    with pytest.raises(SourceError, match="has no table nowhere") as caught:
        advise(engine, "nowhere")
    assert caught.value.location is not None
    with pytest.raises(cq_engine.CQError, match="there is no source store"):
        advise(engine, "nowhere", "store")


def test_nothing_changes_at_the_source_and_a_transaction_may_ask(
    opened: Callable[..., Engine], shop: Shop
) -> None:
    make_orders(shop, "watched", 50)
    engine, before = opened(shop), contents(shop, "watched")
    version = engine.catalog.newest_version
    engine.execute("BEGIN")
    advice = advise(engine, "watched")
    engine.execute("ROLLBACK")
    assert recommended(advice) is not None
    assert contents(shop, "watched") == before
    assert engine.catalog.newest_version == version


def contents(shop: Shop, table: str) -> Any:
    """Its rows, and the names of all that the database has."""
    names = {
        "sqlite": "SELECT name FROM sqlite_master ORDER BY name",
        "postgresql": "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace ORDER BY 1",
        "mariadb": "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() ORDER BY 1",
    }
    with shop.database.connect() as session:
        run = session.connection.exec_driver_sql
        return [run(sql).all() for sql in (f"SELECT * FROM {table} ORDER BY id", names[shop.kind])]


# ---------------------------------------------------------------- what it writes


def test_what_it_writes_can_be_used(opened: Callable[..., Engine], shop: Shop) -> None:
    make_orders(shop, "written", 3000, "updated_at, is_deleted, id, note, created_at")
    engine = opened(shop)
    methods = possible(advise(engine, "written"))
    assert len(methods) >= 8
    for n, method in enumerate(methods):
        engine.execute(f"CREATE TABLE t{n} (id INT, note STRING, updated_at TIMESTAMP_NTZ, PRIMARY KEY (id))")
        place = "" if method.startswith("VIEW") else "TABLE 'written'"
        engine.execute(f"CREATE CAPTURE c{n} INTO t{n} FROM shop {place} USING {method} ON DEMAND")
        engine.refresh_capture(f"c{n}")
        with shop.database.connect() as session:
            rows = session.connection.exec_driver_sql("SELECT id, note FROM written").all()
        found = engine.execute(f"SELECT id, note FROM t{n}").fetchall()
        assert sorted(found) == sorted(map(tuple, rows)), method


# ---------------------------------------------------------------- estimates


def reads(shop: Shop, table: str) -> int:
    """Rows and index entries of the table that the server has passed, as it counts them."""
    with shop.database.connect() as session:
        run = session.connection.exec_driver_sql
        if shop.kind == "mariadb":
            sql = "SELECT rows_read FROM information_schema.table_statistics WHERE table_schema = DATABASE()"
            return int(run(f"{sql} AND table_name = %s", (table,)).scalar() or 0)
        sql = (
            "SELECT seq_tup_read + (SELECT sum(greatest(idx_tup_read, idx_tup_fetch)) FROM pg_stat_user_indexes AS i"
            " WHERE i.relid = t.relid) FROM pg_stat_user_tables AS t WHERE relname = %s"
        )
        return int(run(sql, (table,)).scalar() or 0)


def settled(shop: Shop, table: str) -> int:
    """The same when sessions that have ended have told what they did."""
    if shop.kind != "postgresql":
        return reads(shop, table)
    before, end = reads(shop, table), time.monotonic() + 10
    while time.monotonic() < end:
        time.sleep(0.3)
        now = reads(shop, table)
        if now == before:
            return now
        before = now
    return before


def near(estimate: int, measured: int) -> bool:
    """Within a factor of two."""
    return measured <= 2 * estimate and estimate <= 2 * measured


def write_few(shop: Shop, table: str, moment: datetime) -> None:
    """Changes one row in a hundred, of which four in five are among the newest fifth."""
    dice = random.Random(moment.isoformat())
    recent = dice.sample(range(ROWS * 4 // 5, ROWS), FEW * 4 // 5)
    keys = [*recent, *dice.sample(range(ROWS * 4 // 5), FEW // 5)]
    rows = [(f"at {moment}", shop._plain(moment + timedelta(milliseconds=n)), k) for n, k in enumerate(keys)]
    shop.run(f"UPDATE {table} SET note = ?, updated_at = ? WHERE id = ?", *rows)


@pytest.fixture(scope="module")
def large(shop: Shop) -> Callable[[str], str]:
    """Makes a table of 20 000 rows, with an index over the timestamp, that covers or not."""
    if shop.kind == "mariadb":
        shop.run("SET GLOBAL userstat = 1")

    def made(index: str) -> str:
        name = f"large_{index.count(',')}"
        if name not in shop.tables:
            make_orders(shop, name, ROWS, index)
            shop.tables[name] = index
        return name

    return made


@pytest.mark.parametrize(
    "method",
    [
        "TIMESTAMP (updated_at)",
        ORDERS,
        f"{ORDERS} WITH (index = 'covering')",
        "CHECKSUM",
        "COPY",
        "RANGES (rows = '1000')",
        "RANGES (rows = '1000', CHECKSUM)",
        "VIEW",
    ],
)
def test_estimates_are_what_a_tick_costs(
    opened: Callable[..., Engine], shop: Shop, large: Callable[[str], str], method: str
) -> None:
    table = large("updated_at, is_deleted, id, note, created_at" if "covering" in method else "updated_at")
    engine = opened(shop)
    (said,) = (row for name, row in advise(engine, table).items() if name in (method, _view(name, method)))
    engine.execute("CREATE TABLE t (id INT, note STRING, updated_at TIMESTAMP_NTZ, PRIMARY KEY (id))")
    place = "" if method == "VIEW" else f"TABLE '{table}'"
    engine.execute(f"CREATE CAPTURE c INTO t FROM shop {place} USING {said['method']} ON DEMAND")
    engine.refresh_capture("c")
    with shop.database.connect() as session:
        newest = session.connection.exec_driver_sql(f"SELECT max(updated_at) FROM {table}").scalar()
    began = datetime.fromisoformat(str(newest)) + timedelta(hours=1)  # long ago by the source's own clock
    for n in range(2):  # the second tick reads what the first one has read, as it lies in the overlap
        write_few(shop, table, began + timedelta(seconds=30 * n))
        vacuum(shop, table)
        before, shipped = settled(shop, table) if shop.kind != "sqlite" else 0, Counted(engine)
        engine.refresh_capture("c")
    assert near(said["rows_shipped"], shipped.rows), (said, shipped.rows)
    if shop.kind != "sqlite":
        assert near(said["rows_read"], settled(shop, table) - before), (said, settled(shop, table) - before)


def _view(name: str, method: str) -> str | None:
    return name if method == "VIEW" and name.startswith("VIEW") else None


class Counted:
    """The rows that the next tick gets from the source."""

    def __init__(self, engine: Engine) -> None:
        self._ticks: list[Any] = []
        make = engine.capturing._tick

        def tick(capture: Any) -> Any:
            self._ticks.append(make(capture))
            return self._ticks[-1]

        engine.capturing._tick = tick  # type: ignore[method-assign]

    @property
    def rows(self) -> int:
        return int(self._ticks[0].read)


# ---------------------------------------------------------------- rates, rights, other sources


def test_the_rate_is_measured_where_the_server_counts(opened: Callable[..., Engine], shop: Shop) -> None:
    if shop.kind == "mariadb":
        shop.run("SET GLOBAL userstat = 1")
    make_orders(shop, "busy", 2000)
    stop, written = threading.Event(), [0, 0.0]

    def write() -> None:
        began = time.monotonic()
        while not stop.is_set():
            n = int(written[0])
            moment = shop._plain(EPOCH + timedelta(days=10, seconds=n))
            shop.run(
                "UPDATE busy SET updated_at = ? WHERE id = ?", *[(moment, (n + k) % 2000) for k in range(2)]
            )
            written[:] = n + 2, time.monotonic() - began
            stop.wait(0.2)

    engine, thread = opened(shop, advice_seconds=4.0), threading.Thread(target=write)
    thread.start()
    try:
        time.sleep(1)
        result = engine.execute("ADVISE CAPTURE FROM shop TABLE 'busy'")
    finally:
        stop.set()
        thread.join()
    shipped = {row["method"]: row["rows_shipped"] for row in result.to_arrow().to_pylist()}
    per_tick = written[0] / written[1] * formulas.TICK
    assert "rows have changed in" in result.message, result.message
    assert near(shipped["TIMESTAMP (updated_at)"], round(2 * min(per_tick, 1000))), (shipped, per_tick)


def test_what_is_assumed_is_said(opened: Callable[..., Engine], shop: Shop) -> None:
    shop.run("CREATE TABLE quiet (id INT NOT NULL PRIMARY KEY)")
    shop.insert("quiet", [(n,) for n in range(1000)])
    result = opened(shop).execute("ADVISE VERBOSE CAPTURE FROM shop TABLE 'quiet'")
    assert result.message.startswith(("quiet: about 1000 rows of", "public.quiet: about", "cq_"))
    assert result.message.endswith("1% per tick was assumed")
    assert tuple(result.columns) == (*COLUMNS, *CRITERIA)
    assert len(CRITERIA) == 15
    for row in result.to_arrow().to_pylist():
        assert all(1 <= row[name] <= 5 for name in CRITERIA)


@pytest.mark.postgres
def test_what_the_account_may_not_do(opened: Callable[..., Engine], postgres_server: str) -> None:
    from tests import postgres

    shop = Shop("postgresql", postgres.fresh(postgres_server))
    make_orders(shop, "secret", 10)
    make_orders(shop, "readable", 10)
    user = f"reader_{time.time_ns()}"
    shop.run(f"CREATE ROLE {user} LOGIN")
    shop.run(f"GRANT SELECT ON readable TO {user}")
    engine = opened()
    url = shop.url.replace("://cq@", f"://{user}@")
    engine.execute(f"CREATE SOURCE shop TYPE postgresql WITH (url = '{url}')")
    advice = advise(engine, "secret")
    assert possible(advice) == []
    assert "permission denied" in advice["COPY"]["why_not"]
    assert advice["COPY"]["rows_read"] is None
    advice = advise(engine, "readable")
    assert recommended(advice) == ORDERS
    log = advice["LOG WITH (install = 'true')"]
    assert not log["possible"]
    if "LOG" in methods_of(declared("postgresql", url)):
        assert log["why_not"] == "the account may not create triggers and tables there"
    assert "as wal_level is logical, slot = 'name'" in log["needs"]


@pytest.mark.mariadb
def test_a_timestamp_that_the_server_sets(opened: Callable[..., Engine], mariadb_server: Any) -> None:
    from tests import mariadb

    shop = Shop("mariadb", mariadb.fresh(mariadb_server))
    shop.run(
        "CREATE TABLE kept (id INT NOT NULL PRIMARY KEY, updated_at DATETIME,"
        " seen TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6))"
    )
    advice = advise(opened(shop), "kept")
    assert advice["TIMESTAMP (seen)"]["needs"].startswith("the server sets seen")


def test_delta_tables(opened: Callable[..., Engine], tmp_path: Path) -> None:
    rows = pa.table({"k": pa.array(range(1000), pa.int64()), "v": pa.array(["a"] * 1000)})
    write_deltalake(tmp_path / "lake" / "on", rows, configuration={"delta.enableChangeDataFeed": "true"})
    write_deltalake(tmp_path / "lake" / "off", rows)
    engine = opened()
    engine.execute(f"CREATE SOURCE lake TYPE delta WITH (path = '{tmp_path}/lake')")
    for name, read in (("on", 10), ("off", 1000)):
        advice = advise(engine, name, "lake")
        assert possible(advice) == ["COPY", "LOG"]
        assert recommended(advice) == "LOG"
        assert (advice["LOG"]["rows_read"], advice["COPY"]["rows_read"]) == (read, 1000)
        assert (
            advice["CHECKSUM"]["why_not"] == "a Delta table tells its changes itself, and is not asked in SQL"
        )
        for method in possible(advice):
            engine.execute(f"CREATE TABLE {name}_{method} (k BIGINT, v STRING, PRIMARY KEY (k))")
            place = f"INTO {name}_{method} FROM lake TABLE '{name}' USING {method} ON DEMAND"
            engine.execute(f"CREATE CAPTURE c_{name}_{method} {place}")
            assert engine.refresh_capture(f"c_{name}_{method}").rows == 1000
    assert DeltaTable(tmp_path / "lake" / "on").version() == 0
    with pytest.raises(SourceError, match="has no Delta table"):
        advise(engine, "gone", "lake")


def test_envelopes_of_debezium(opened: Callable[..., Engine], tmp_path: Path) -> None:
    (tmp_path / "dbz").mkdir()
    engine = opened()
    engine.execute(f"CREATE SOURCE dbz TYPE debezium WITH (path = '{tmp_path}/dbz')")
    advice = advise(engine, "public.orders", "dbz")
    assert possible(advice) == ["LOG"]
    assert recommended(advice) == "LOG"
    assert advice["LOG"]["rows_read"] is None
    assert "are a log" in advice["COPY"]["why_not"]
    verbose = engine.execute("ADVISE VERBOSE CAPTURE FROM dbz TABLE 'public.orders'").to_arrow().to_pylist()
    assert verbose[-1]["database_schema"] == 0


def test_a_file_that_cannot_be_written_takes_no_triggers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "shop.db"
    file.touch()
    shop = Shop("sqlite", f"sqlite:///{file}")
    make_orders(shop, "orders", 5)

    def refused() -> str:
        with shop.database.connect() as session:
            return statistics(shop.database.server, session, shop.relation("orders")).triggers

    assert refused() == ""
    monkeypatch.setattr(
        os, "access", lambda path, _: Path(path) != file
    )  # some accounts may write to any file
    assert refused() == "the file shop.db cannot be written to"
