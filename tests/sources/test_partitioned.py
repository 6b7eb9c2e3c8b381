"""Captures of partitioned tables of PostgreSQL, by every method: rows that move, partitions that come, go and are emptied."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from cq_engine import Engine
from cq_engine.core.errors import CQError
from cq_engine.core.limits import Limits
from cq_engine.sources.sql.parts import Parts
from cq_engine.sources.tick import Tick
from tests import postgres
from tests.sources.decodings import ask, drop_all, slot_of, there
from tests.sources.loads import MANY, Opened, rows
from tests.sources.shops import Shop
from tests.sources.test_values import ALIKE, OWN
from tests.sources.writers import METHODS, TABLE, Writer, here

pytestmark = pytest.mark.postgres

LOGS = {
    "install": "TABLE 'orders' USING LOG WITH (install = true)",
    "slot": "TABLE 'orders' USING LOG WITH (slot = 'cq_{}')",
}
EVERY = {**{name: METHODS[name] for name in METHODS if name != "purge"}, **LOGS}


@pytest.fixture(scope="module")
def shop(postgres_server: str) -> Shop:
    return Shop("postgresql", postgres.fresh(postgres_server))


class Partitioned(Writer):
    """Writes to a table of which one partition has the columns in another order, and another one has partitions itself."""

    def create(self) -> None:
        super().create()
        self.shop.run("DROP TABLE orders")
        columns = [
            "id INT NOT NULL", "region VARCHAR(20)", "price DECIMAL(10, 2)", "note text", "ts timestamp", "gone SMALLINT",
            "version BIGINT",
        ]  # fmt: skip
        for sql in (
            f"CREATE TABLE orders ({', '.join(columns)}, PRIMARY KEY (id)) PARTITION BY RANGE (id)",
            "CREATE TABLE orders_low PARTITION OF orders FOR VALUES FROM (0) TO (12)",
            f"CREATE TABLE orders_mid (more int, {', '.join(reversed(columns))})",
            "ALTER TABLE orders_mid DROP COLUMN more",
            "ALTER TABLE orders ATTACH PARTITION orders_mid FOR VALUES FROM (12) TO (100)",
            "CREATE TABLE orders_high PARTITION OF orders FOR VALUES FROM (100) TO (100000) PARTITION BY HASH (id)",
            "CREATE TABLE orders_even PARTITION OF orders_high FOR VALUES WITH (MODULUS 2, REMAINDER 0)",
            "CREATE TABLE orders_odd PARTITION OF orders_high FOR VALUES WITH (MODULUS 2, REMAINDER 1)",
        ):
            self.shop.run(sql)


@pytest.fixture
def written(shop: Shop) -> Iterator[Partitioned]:
    writer = Partitioned(shop, random.Random(11), "log")
    writer.create()
    for _ in range(10):
        writer.transaction()
    yield writer
    drop_all(shop)
    shop.run("DROP TABLE IF EXISTS orders, orders_gone CASCADE")
    shop.run("DROP TABLE IF EXISTS cq_log_c")
    shop.run("DROP FUNCTION IF EXISTS cq_log_c() CASCADE")


def declare(engine: Engine, shop: Shop, method: str, table: str = TABLE) -> str:
    engine.execute(table)
    engine.execute(f"CREATE SOURCE shop TYPE postgresql WITH (url = '{shop.url}')")
    using = EVERY[method].format(slot_of(shop))
    return engine.execute(f"CREATE CAPTURE c INTO t FROM shop {using} ON DEMAND").message


@pytest.mark.parametrize("method", EVERY)
def test_the_replica_is_the_source(opened: Opened, shop: Shop, written: Partitioned, method: str) -> None:
    engine, writer = opened(Limits()), written
    writer.method = "log" if method in LOGS else method
    declare(engine, shop, method)
    engine.refresh_capture("c")
    assert here(engine) == writer.rows()
    for _ in range(4):
        for _ in range(3):
            writer.transaction()
        engine.refresh_capture("c")
        assert here(engine) == writer.rows()
    before = engine.catalog.newest_version
    engine.refresh_capture("c")
    assert engine.catalog.newest_version == before
    assert {ask(shop, f"SELECT count(*) > 0 FROM {name}")[0][0] for name in ("orders_low", "orders_mid")} == {
        True
    }
    engine.execute("DROP CAPTURE c")
    assert there(shop) == []
    assert ask(shop, "SELECT 1 FROM pg_trigger WHERE starts_with(tgname, 'cq_')") == []


@pytest.mark.parametrize("method", ["copy", "timestamp", "checksum", "ranges", "checked ranges", *LOGS])
def test_a_row_that_moves_to_another_partition(opened: Opened, shop: Shop, method: str) -> None:
    shop.run("DROP TABLE IF EXISTS orders CASCADE")
    columns = 'id int, region text COLLATE "C", price decimal(10, 2), note text, ts timestamp, PRIMARY KEY (id, region)'
    shop.run(f"CREATE TABLE orders ({columns}) PARTITION BY LIST (region)")
    for region in ("north", "south"):
        shop.run(f"CREATE TABLE orders_{region} PARTITION OF orders FOR VALUES IN ('{region}')")
    shop.run(
        "INSERT INTO orders SELECT g, 'north', g, 'n', timestamp '2026-01-01' FROM generate_series(1, 9) g"
    )
    engine = opened(Limits())
    declare(engine, shop, method, TABLE.replace("(id))", "(id, region))"))
    engine.refresh_capture("c")
    shop.run("UPDATE orders SET region = 'south', price = 70, ts = timestamp '2026-01-02' WHERE id = 7")
    shop.run("UPDATE orders SET region = 'south', ts = timestamp '2026-01-02' WHERE id = 8")
    shop.run("UPDATE orders SET region = 'north', ts = timestamp '2026-01-03' WHERE id = 8")
    engine.refresh_capture("c")
    found = {(row[0], row[1]): row[2] for row in here(engine)}
    assert found.pop((7, "south")) == 70
    if method == "timestamp":  # does not see that the row has left its key
        assert found.pop((7, "north")) == 7
    assert found == {(n, "north"): n for n in (1, 2, 3, 4, 5, 6, 8, 9)}
    engine.execute("DROP CAPTURE c")
    shop.run("DROP TABLE orders")


def attached(shop: Shop) -> None:
    shop.run("CREATE TABLE orders_gone (LIKE orders INCLUDING ALL)")
    shop.run("INSERT INTO orders_gone VALUES (200001, 'north', 1, 'came with it', NULL, 0, 0)")
    shop.run("ALTER TABLE orders ATTACH PARTITION orders_gone FOR VALUES FROM (200000) TO (300000)")


def detached(shop: Shop) -> None:
    shop.run("ALTER TABLE orders DETACH PARTITION orders_mid")
    shop.run("ALTER TABLE orders_mid RENAME TO orders_gone")


def attached_again(shop: Shop) -> None:
    shop.run("ALTER TABLE orders DETACH PARTITION orders_mid")
    shop.run("UPDATE orders_mid SET note = 'meanwhile'")
    shop.run("ALTER TABLE orders ATTACH PARTITION orders_mid FOR VALUES FROM (12) TO (100)")


@pytest.mark.parametrize("log", LOGS)
@pytest.mark.parametrize(
    "happens",
    [
        attached,
        detached,
        attached_again,
        lambda shop: shop.run("TRUNCATE orders_low"),
        lambda shop: shop.run("TRUNCATE orders"),
        lambda shop: shop.run("DROP TABLE orders_low"),
    ],
    ids=["attached", "detached", "attached again", "partition emptied", "table emptied", "dropped"],
)
def test_partitions_come_and_go(
    opened: Opened, shop: Shop, written: Partitioned, log: str, happens: Any
) -> None:
    engine = opened(Limits())
    declare(engine, shop, log)
    engine.refresh_capture("c")
    written.transaction()
    before = written.rows()
    happens(shop)
    assert written.rows() != before
    engine.refresh_capture("c")
    assert here(engine) == written.rows()
    if happens is not detached:
        shop.run("INSERT INTO orders VALUES (50, 'new', 1, NULL, NULL, 0, 0)")
    shop.run("INSERT INTO orders VALUES (150, 'new', 1, NULL, NULL, 0, 0)")
    if happens is attached:
        shop.run("UPDATE orders SET note = 'logged' WHERE id = 200001")
    engine.refresh_capture("c")
    assert here(engine) == written.rows()


@pytest.mark.parametrize("log", LOGS)
def test_values_are_logged_as_they_are(opened: Opened, shop: Shop, log: str) -> None:
    documents = ("json", "jsonb") if log == "install" else ()  # in the log of triggers they would be others
    own = [each for each in OWN["postgresql"] if each[0] not in documents]
    kinds = [(kind, ours) for kind, ours, _ in ALIKE] + [(kind, ours) for kind, ours, _, _ in own]
    shop.run("DROP TABLE IF EXISTS valued")
    named = ", ".join(f"c{n} {kind}" for n, (kind, _) in enumerate(kinds))
    shop.run(f"CREATE TABLE valued (id INT PRIMARY KEY, {named}) PARTITION BY HASH (id)")
    shop.run("CREATE TABLE valued_all PARTITION OF valued FOR VALUES WITH (MODULUS 1, REMAINDER 0)")
    engine = opened(Limits())
    columns = ", ".join(["id INT", *(f"c{n} {ours}" for n, (_, ours) in enumerate(kinds))])
    engine.execute(f"CREATE TABLE t ({columns}, PRIMARY KEY (id))")
    engine.execute(f"CREATE SOURCE shop TYPE postgresql WITH (url = '{shop.url}')")
    using = LOGS[log].replace("orders", "valued").format(slot_of(shop))
    engine.execute(f"CREATE CAPTURE c INTO t FROM shop {using} ON DEMAND")
    engine.refresh_capture("c")
    marks = ", ".join(["?"] * (1 + len(ALIKE)) + [each[2] for each in own])
    shop.run(f"INSERT INTO valued VALUES ({marks})", (4, *(each[2] for each in ALIKE)))
    shop.run("INSERT INTO valued (id) VALUES (2)")
    engine.refresh_capture("c")
    first, second = sorted(rows(engine))
    assert set(first[1:]) == {None}
    assert list(second[1:]) == [*(each[2] for each in ALIKE), *(each[3] for each in own)]
    engine.execute("DROP CAPTURE c")
    shop.run("DROP TABLE valued")


def test_partitions_that_no_trigger_is_in(opened: Opened, shop: Shop, written: Partitioned) -> None:
    engine = opened(Limits())
    message = declare(engine, shop, "install")
    assert "where partitions come or go, all rows are compared" in message
    engine.refresh_capture("c")
    shop.run("ALTER TABLE orders_low DISABLE TRIGGER ALL")
    shop.run("UPDATE orders SET note = 'unseen'")
    with pytest.raises(CQError) as error:
        engine.refresh_capture("c")
    assert "trigger cq_log_c is gone" in error.value.detail
    engine.execute("ALTER CAPTURE c RESUME")
    engine.refresh_capture("c")
    assert here(engine) == written.rows()


@pytest.mark.parametrize("kind", ["json", "jsonb"])
def test_documents_are_not_for_triggers(opened: Opened, shop: Shop, written: Partitioned, kind: str) -> None:
    shop.run(f"ALTER TABLE orders ADD COLUMN document {kind}")
    with pytest.raises(CQError, match="triggers cannot log document"):
        declare(opened(Limits()), shop, "install")


def test_a_trigger_that_was_off_for_a_while(opened: Opened, shop: Shop, written: Partitioned) -> None:
    engine = opened(Limits())
    declare(engine, shop, "install")
    engine.refresh_capture("c")
    for change in ("DISABLE TRIGGER cq_log_c", "ENABLE ALWAYS TRIGGER cq_log_c"):
        shop.run(f"ALTER TABLE orders_low {change}")
        shop.run(f"UPDATE orders SET note = '{change}'")
    engine.refresh_capture("c")
    assert here(engine) == written.rows()


def test_a_partition_comes_between_rows_and_checksums(
    opened: Opened, shop: Shop, written: Partitioned, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No checksum may stand for a row that is not here."""
    engine = opened(Limits(pending_rows=1, small_rows=-1))
    declare(engine, shop, "checksum")
    replaced = Tick.replace

    def then_attached(tick: Tick, *given: Any) -> None:
        monkeypatch.undo()
        replaced(tick, *given)
        attached(shop)

    monkeypatch.setattr(Tick, "replace", then_attached)
    with pytest.raises(CQError, match=r"partitions of .* have come or gone"):
        engine.refresh_capture("c")
    engine.execute("ALTER CAPTURE c RESUME")
    engine.refresh_capture("c")
    assert here(engine) == written.rows()


def test_partitions_that_identify_rows_otherwise(opened: Opened, shop: Shop, written: Partitioned) -> None:
    engine = opened(Limits())
    shop.run("ALTER TABLE orders_mid REPLICA IDENTITY FULL")
    with pytest.raises(CQError) as error:
        declare(engine, shop, "slot")
    assert "the partitions of public.orders do not identify their rows as it does" in error.value.message
    assert "ALTER TABLE orders_mid REPLICA IDENTITY DEFAULT" in error.value.hint
    shop.run("ALTER TABLE orders_mid REPLICA IDENTITY DEFAULT")
    engine.execute(f"CREATE CAPTURE c INTO t FROM shop {LOGS['slot'].format(slot_of(shop))} ON DEMAND")
    engine.refresh_capture("c")
    shop.run("ALTER TABLE orders_low REPLICA IDENTITY NOTHING")
    with pytest.raises(CQError, match="do not identify"):
        engine.refresh_capture("c")
    shop.run("ALTER TABLE orders_low REPLICA IDENTITY DEFAULT")
    engine.execute("ALTER CAPTURE c RESUME")
    written.transaction()
    engine.refresh_capture("c")
    assert here(engine) == written.rows()


@pytest.mark.parametrize("log", LOGS)
def test_what_the_server_does_not_log_is_refused(
    opened: Opened, shop: Shop, written: Partitioned, log: str
) -> None:
    for sql in (
        "CREATE EXTENSION IF NOT EXISTS file_fdw",
        "CREATE SERVER IF NOT EXISTS elsewhere FOREIGN DATA WRAPPER file_fdw",
    ):
        shop.run(sql)
    shop.run("CREATE TABLE few (id int) PARTITION BY RANGE (id)")
    shop.run(
        "CREATE FOREIGN TABLE few_far PARTITION OF few FOR VALUES FROM (0) TO (9) SERVER elsewhere OPTIONS (filename '/dev/null')"
    )
    engine = opened(Limits())
    engine.execute("CREATE TABLE t (id INT, PRIMARY KEY (id))")
    engine.execute(f"CREATE SOURCE shop TYPE postgresql WITH (url = '{shop.url}')")
    using = LOGS[log].replace("'orders'", "'few'").format(slot_of(shop))
    try:
        with pytest.raises(CQError) as error:
            engine.execute(f"CREATE CAPTURE c INTO t FROM shop {using} ON DEMAND")
        assert "partition few_far of public.few is no table" in error.value.message
        assert "COPY or CHECKSUM" in error.value.hint
    finally:
        shop.run("DROP TABLE few CASCADE")


def test_executors_read_partitions(
    opened: Opened, shop: Shop, written: Partitioned, spreads: list[Parts]
) -> None:
    engine = opened(MANY)
    declare(engine, shop, "slot")
    engine.refresh_capture("c")
    assert here(engine) == written.rows()
    assert [len(each.statements) for each in spreads] == [3]


def test_advice_counts_the_rows_of_partitions(opened: Opened, shop: Shop, written: Partitioned) -> None:
    shop.run("INSERT INTO orders SELECT g, 'north', 1, 'n', NULL, 0, 0 FROM generate_series(1000, 4000) g")
    assert shop.relation("orders").rows is None  # until all partitions are known
    shop.run("ANALYZE orders")
    for name in ("low", "mid", "even", "odd"):
        shop.run(f"ANALYZE orders_{name}")
    relation = shop.relation("orders")
    assert relation.rows == ask(shop, "SELECT count(*) FROM orders")[0][0] > 3000
    assert relation.key == ("id",)
    engine = opened(Limits(advice_seconds=0.1))
    engine.execute(f"CREATE SOURCE shop TYPE postgresql WITH (url = '{shop.url}')")
    advised = rows(engine, "ADVISE CAPTURE FROM shop TABLE 'orders'")
    found = {row[0]: row for row in advised}
    assert found["COPY"][1] is True
    assert found["COPY"][5] == relation.rows
    assert any(name.startswith("LOG") and row[1] for name, row in found.items())
