"""Captures of PostgreSQL's own log: what is refused, what somebody does at the source, and how it goes on."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from cq_engine.catalog.unit import UnitOfWork
from cq_engine.core.errors import AnalysisError, CQError, SourceError, SourceUnavailableError
from cq_engine.core.limits import Limits
from cq_engine.sources.decoding import slot as slots
from tests import postgres
from tests.sources.decodings import SLOT, Opened, ask, declare, drop_all, slot_of, there
from tests.sources.shops import Shop
from tests.sources.trigger_logs import installed, put, state
from tests.sources.writers import TABLE, Writer, here

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def shop(postgres_server: str) -> Shop:
    return Shop("postgresql", postgres.fresh(postgres_server))


@pytest.fixture
def written(shop: Shop) -> Iterator[Writer]:
    """A table with rows, and who writes to it; no slot is left of it."""
    writer = Writer(shop, random.Random(11), "log")
    writer.create()
    for _ in range(6):
        writer.transaction()
    yield writer
    drop_all(shop)
    shop.run("DROP TABLE IF EXISTS o CASCADE")
    shop.run("DROP TABLE IF EXISTS orders")


@pytest.mark.parametrize(
    ("done", "reason"),
    [
        (["SELECT pg_drop_replication_slot('{slot}')"], "slot {slot} is gone"),
        (["DROP PUBLICATION {slot}"], "publication {slot} is gone"),
        (
            ["ALTER PUBLICATION {slot} DROP TABLE orders", "UPDATE orders SET note = 'unseen'",
             "ALTER PUBLICATION {slot} ADD TABLE orders"],
            "the table in publication {slot} was changed",
        ),
        (["ALTER PUBLICATION {slot} SET (publish = 'insert')"], "publication {slot} was changed"),
        (
            ["UPDATE orders SET note = 'unseen'", "SELECT pg_replication_slot_advance('{slot}', pg_current_wal_lsn())"],
            "slot {slot} is beyond what was read here",
        ),
        (["ALTER TABLE orders ALTER COLUMN price TYPE numeric(10, 1)"], "column price was numeric(10,2) and is numeric(10,1)"),
        (["ALTER TABLE orders REPLICA IDENTITY NOTHING"], "REPLICA IDENTITY was changed"),
        (
            ["CREATE TABLE other (LIKE orders INCLUDING ALL)", "INSERT INTO other SELECT * FROM orders LIMIT 2",
             "DROP TABLE orders", "ALTER TABLE other RENAME TO orders"],
            "table public.orders was changed",
        ),
    ],
    ids=["slot", "publication", "left out for a while", "inserts only", "advanced", "type", "identity", "other table"],
)  # fmt: skip
def test_what_somebody_does(
    opened: Opened, shop: Shop, written: Writer, done: list[str], reason: str
) -> None:
    engine, writer, name = opened(Limits()), written, f"cq_{slot_of(shop)}"
    declare(engine, shop)
    engine.refresh_capture("c")
    shop.run(put(1001, "before"))
    for sql in done:
        (ask if sql.startswith("SELECT") else Shop.run)(shop, sql.format(slot=name))
    shop.run(put(1002, "after"))
    with pytest.raises(SourceError, match="not as it was") as caught:
        engine.refresh_capture("c")
    assert reason.format(slot=name) in str(caught.value)
    assert "RESUME" in str(caught.value)
    assert state(engine)[0] == "FAILED"
    if "NOTHING" in done[0]:
        with pytest.raises(AnalysisError, match="does not say which rows"):
            engine.execute("ALTER CAPTURE c RESUME")
        shop.run("ALTER TABLE orders REPLICA IDENTITY DEFAULT")
    engine.execute("ALTER CAPTURE c RESUME")
    engine.refresh_capture("c")
    assert here(engine) == writer.rows()
    for _ in range(3):
        writer.transaction()
    engine.refresh_capture("c")
    assert here(engine) == writer.rows()
    engine.execute("DROP CAPTURE c")
    assert there(shop) == []


def test_columns_are_altered(opened: Opened, shop: Shop, written: Writer) -> None:
    engine, writer = opened(Limits()), written
    declare(engine, shop)
    engine.refresh_capture("c")
    shop.run("UPDATE orders SET region = 'west'")
    shop.run("ALTER TABLE orders ADD COLUMN more INT DEFAULT 7")
    shop.run("UPDATE orders SET more = 8, note = 'wide'")
    shop.run("ALTER TABLE orders DROP COLUMN version")
    shop.run(put(1001, "narrow"))
    engine.refresh_capture("c")
    assert here(engine) == writer.rows()
    shop.run("ALTER TABLE orders RENAME COLUMN note TO remark")
    with pytest.raises(SourceError, match="has no column note"):
        engine.refresh_capture("c")
    assert state(engine)[0] == "FAILED"
    with pytest.raises(SourceError, match="has no column note"):
        engine.execute("ALTER CAPTURE c RESUME")
    shop.run("ALTER TABLE orders RENAME COLUMN remark TO note")
    engine.execute("ALTER CAPTURE c RESUME")
    engine.refresh_capture("c")
    assert here(engine) == writer.rows()


def test_the_table_is_dropped(opened: Opened, shop: Shop, written: Writer) -> None:
    engine = opened(Limits())
    declare(engine, shop)
    engine.refresh_capture("c")
    before = here(engine)
    shop.run("DROP TABLE orders")
    with pytest.raises(SourceError, match="has no table"):
        engine.refresh_capture("c")
    assert here(engine) == before
    assert engine.execute("DROP CAPTURE c").message == "capture c dropped; table t stays"
    assert there(shop) == []


def test_a_value_that_does_not_fit(opened: Opened, shop: Shop, written: Writer) -> None:
    """The log has it forever: RESUME compares all rows, and goes on behind it."""
    engine = opened(Limits())
    engine.execute("CREATE TABLE t (id INT, version SMALLINT, PRIMARY KEY (id))")
    engine.execute(f"CREATE SOURCE shop TYPE postgresql WITH (url = '{shop.url}')")
    engine.execute(SLOT.format("", slot_of(shop), ""))
    engine.refresh_capture("c")
    shop.run("UPDATE orders SET version = 100000")
    with pytest.raises(SourceError, match="which is no SMALLINT") as caught:
        engine.refresh_capture("c")
    assert "the row with id" in str(caught.value)
    shop.run("UPDATE orders SET version = 5")
    engine.execute("ALTER CAPTURE c RESUME")
    engine.refresh_capture("c")
    shop.run("UPDATE orders SET version = 6")
    engine.refresh_capture("c")
    assert engine.execute("SELECT DISTINCT version FROM t").to_arrow()["version"].to_pylist() == [6]


@contextmanager
def held_by_somebody(shop: Shop, name: str) -> Iterator[None]:
    """Somebody reads the slot by the replication protocol, and confirms nothing."""
    from psycopg import pq

    reader = pq.PGconn.connect(f"{shop.url}?replication=database".encode())
    options = f"\"proto_version\" '1', \"publication_names\" '{name}'"
    reader.send_query(f"START_REPLICATION SLOT {name} LOGICAL 0/0 ({options})".encode())
    assert reader.get_result().status == pq.ExecStatus.COPY_BOTH
    try:
        yield
    finally:
        reader.finish()


def test_somebody_else_reads_the_slot(opened: Opened, shop: Shop, written: Writer) -> None:
    engine, writer, name = opened(Limits()), written, f"cq_{slot_of(shop)}"
    declare(engine, shop)
    engine.refresh_capture("c")
    with held_by_somebody(shop, name):
        shop.run(put(1001, "meanwhile"))
        with pytest.raises(SourceUnavailableError, match="is active for PID"):
            engine.refresh_capture("c")
        assert state(engine)[0] == "ACTIVE"  # it is tried again
    for _ in range(100):
        if ask(shop, f"SELECT active FROM pg_replication_slots WHERE slot_name = '{name}'") == [(False,)]:
            break
        time.sleep(0.05)
    engine.refresh_capture("c")
    assert here(engine) == writer.rows()


def test_dropped_while_somebody_reads_the_slot(
    opened: Opened, shop: Shop, written: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, name = opened(Limits()), f"cq_{slot_of(shop)}"
    declare(engine, shop)
    with held_by_somebody(shop, name):
        monkeypatch.setattr(slots, "READS", 0.2)
        message = engine.execute("DROP CAPTURE c").message
        assert "is still there" in message
        assert "is active for PID" in message
    assert name in there(shop)
    engine.execute(SLOT.format("", slot_of(shop) + "_2", ""))
    monkeypatch.undo()
    with ExitStack() as held:
        held.enter_context(held_by_somebody(shop, f"{name}_2"))
        threading.Timer(0.5, held.pop_all().close).start()
        assert engine.execute("DROP CAPTURE c").message == "capture c dropped; table t stays"
    assert f"{name}_2" not in there(shop)


def test_the_server_gives_up_the_slot(opened: Opened, shop: Shop, written: Writer) -> None:
    engine, writer = opened(Limits()), written
    declare(engine, shop)
    engine.refresh_capture("c")
    alter = "ALTER SYSTEM {} max_slot_wal_keep_size {}"
    with postgres.connected(shop.url) as connection:
        connection.execute(alter.format("SET", "= '1MB'"))
        connection.execute("SELECT pg_reload_conf()")
        try:
            for number in range(3):
                connection.execute(f"INSERT INTO orders (id, note) VALUES ({3000 + number}, 'much')")
                connection.execute("SELECT pg_switch_wal()")
            connection.execute("CHECKPOINT")
            with pytest.raises(SourceError, match="not as it was") as caught:
                engine.refresh_capture("c")
        finally:
            connection.execute(alter.format("RESET", ""))
            connection.execute("SELECT pg_reload_conf()")
    assert "the server has given up slot" in str(caught.value)
    engine.execute("ALTER CAPTURE c RESUME")
    engine.refresh_capture("c")
    assert here(engine) == writer.rows()


def test_restored_from_a_backup(
    opened: Opened, shop: Shop, written: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, writer = opened(Limits()), written
    declare(engine, shop)
    engine.refresh_capture("c")
    with monkeypatch.context() as patched:
        patched.setattr(slots, "end_of_log", lambda _: 1)
        with pytest.raises(SourceError, match="not as it was") as caught:
            engine.refresh_capture("c")
    assert "it was restored from a backup" in str(caught.value)
    engine.execute("ALTER CAPTURE c RESUME")
    engine.refresh_capture("c")
    assert here(engine) == writer.rows()


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("done", "where", "more", "reason", "hint"),
    [
        (["ALTER TABLE orders REPLICA IDENTITY NOTHING"], "", "", "does not say which rows", "REPLICA IDENTITY FULL"),
        (["ALTER TABLE orders DROP CONSTRAINT orders_pkey"], "", "", "does not say which rows", "primary key"),
        (
            ["ALTER TABLE orders DROP CONSTRAINT orders_pkey", "ALTER TABLE orders ADD PRIMARY KEY (id, version)"],
            "", "", "is not what identifies the rows", "primary key of the source",
        ),
        (["ALTER TABLE orders SET UNLOGGED"], "", "", "no table of its own that is logged", "COPY"),
        (
            ["ALTER TABLE orders DROP COLUMN note", "ALTER TABLE orders ADD COLUMN note text GENERATED ALWAYS AS (region) STORED"],
            "", "", "is computed by the server", "leave note out",
        ),
        ([], "WHERE 'price > 1'", "", "WHERE needs REPLICA IDENTITY FULL", "ALTER TABLE"),
        ([], "", ", initial = 'none'", "initial = 'none' needs REPLICA IDENTITY FULL", "ALTER TABLE"),
        ([], "", ", install = 'true'", "slot and install are two logs", "leave install out"),
        (["ALTER TABLE orders RENAME TO o", "CREATE VIEW orders AS SELECT * FROM o"], "", "", "is no table of its own", "COPY"),
    ],
    ids=["nothing", "no key", "another key", "unlogged", "computed", "where", "none", "install", "view"],
)  # fmt: skip
def test_refused(
    opened: Opened,
    shop: Shop,
    written: Writer,
    done: list[str],
    where: str,
    more: str,
    reason: str,
    hint: str,
) -> None:
    engine = opened(Limits())
    if reason.startswith("is not"):
        shop.run("DELETE FROM orders WHERE version IS NULL")
    for sql in done:
        shop.run(sql)
    with pytest.raises(AnalysisError) as caught:
        declare(engine, shop, where, more)
    assert reason in str(caught.value)
    assert hint in str(caught.value)
    assert there(shop) == []
    assert engine.execute("SHOW CAPTURES").to_arrow().num_rows == 0


def test_names(opened: Opened, shop: Shop, written: Writer) -> None:
    engine = opened(Limits())
    message = declare(engine, shop)
    assert f"slot cq_{slot_of(shop)} and publication cq_{slot_of(shop)} are made" in message
    engine.execute(TABLE.replace(" t ", " u "))
    other = SLOT.format("", slot_of(shop), "").replace(" c INTO t", " d INTO u")
    with pytest.raises(AnalysisError, match="has a slot"):
        engine.execute(other)
    for name in ("Orders", "a b", "x" * 61, ""):
        with pytest.raises(AnalysisError, match="slot"):
            engine.execute(other.replace(f"cq_{slot_of(shop)}", name))
    with pytest.raises(AnalysisError, match="has to say which log"):
        engine.execute("CREATE CAPTURE d INTO u FROM shop TABLE 'orders' USING LOG ON DEMAND")
    engine.execute(other.replace(f"cq_{slot_of(shop)}", f"shop_{slot_of(shop)}"))
    assert f"cq_shop_{slot_of(shop)}" in there(shop)
    with pytest.raises(
        AnalysisError, match="cannot change by what it reads"
    ):  # it may be the slot of another reader
        engine.execute(f"ALTER CAPTURE d SET WITH (slot = 'cq_other_{slot_of(shop)}')")
    engine.execute("DROP SOURCE shop CASCADE")
    assert there(shop) == []


def test_without_rights(opened: Opened, shop: Shop, written: Writer) -> None:
    database = shop.url.rpartition("/")[2]
    shop.run("DROP ROLE IF EXISTS follower")
    shop.run("CREATE ROLE follower LOGIN")
    shop.run("GRANT SELECT ON orders TO follower")
    engine = opened(Limits())
    engine.execute(TABLE)
    engine.execute(
        f"CREATE SOURCE shop TYPE postgresql WITH (url = '{shop.url.replace('cq@', 'follower@')}')"
    )
    rights = (
        f"GRANT CREATE ON DATABASE {database} TO follower",
        "ALTER TABLE orders OWNER TO follower",
        "ALTER ROLE follower REPLICATION",
    )
    for right in rights:
        with pytest.raises(SourceError, match="cannot be made") as caught:
            engine.execute(SLOT.format("", slot_of(shop), ""))
        assert "REPLICATION" in str(caught.value)
        assert there(shop) == []
        assert engine.execute("SHOW CAPTURES").to_arrow().num_rows == 0
        shop.run(right)
    engine.execute(SLOT.format("", slot_of(shop), ""))
    engine.refresh_capture("c")
    written.transaction()
    engine.refresh_capture("c")
    assert here(engine) == written.rows()
    engine.execute("DROP CAPTURE c")
    assert there(shop) == []
    shop.run("DROP OWNED BY follower")
    shop.run("DROP ROLE follower")


def test_a_transaction_that_is_open_for_long(
    opened: Opened, shop: Shop, written: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slot cannot be made before it ends."""
    monkeypatch.setattr(slots, "WAITS", 1)
    engine = opened(Limits())
    with shop.database.write() as session:
        session.connection.exec_driver_sql(put(1001, "open"))
        with pytest.raises(SourceError, match="cannot be made") as caught:
            declare(engine, shop)
        assert "transactions that are open for long" in str(caught.value)
        assert there(shop) == []
    engine.execute(SLOT.format("", slot_of(shop), ""))
    engine.refresh_capture("c")
    assert here(engine) == written.rows()


def test_a_server_whose_log_is_not_logical(opened: Opened, tmp_path: Path) -> None:
    engine = opened(Limits())
    with postgres.server(wal_level="replica") as url:
        shop = Shop("postgresql", postgres.fresh(url))
        shop.run("CREATE TABLE orders (id INT PRIMARY KEY, region text, price numeric, note text)")
        with pytest.raises(AnalysisError, match="wal_level is replica") as caught:
            declare(engine, shop)
        assert "wal_level = logical" in str(caught.value)
        assert "install = true" in str(caught.value)
        shop.database.close()
    with pytest.raises(CQError):
        engine.execute(SLOT.format("", slot_of(shop), ""))


def test_nothing_is_left_of_a_capture_that_could_not_be_written(
    opened: Opened, shop: Shop, written: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slot would keep the server's log for ever."""
    engine, writer = opened(Limits()), written

    def fails(*_: object, **__: object) -> None:
        raise OSError("no room")

    monkeypatch.setattr(UnitOfWork, "set_capture", fails)
    with pytest.raises((CQError, OSError)):
        declare(engine, shop)
    assert there(shop) == []
    assert engine.execute("SHOW CAPTURES").fetchall() == []
    monkeypatch.undo()
    engine.execute(SLOT.format("", slot_of(shop), ""))
    engine.refresh_capture("c")
    assert here(engine) == writer.rows()
    engine.execute("DROP CAPTURE c")
    assert there(shop) == []
    engine.execute(
        "CREATE CAPTURE c INTO t FROM shop TABLE 'orders' USING LOG WITH (install = true) ON DEMAND"
    )
    with pytest.raises(AnalysisError, match="cannot change by what it reads"):
        engine.execute(f"ALTER CAPTURE c SET WITH (install = 'false', slot = 'cq_{slot_of(shop)}')")
    engine.execute("DROP CAPTURE c")
    assert installed(shop) == []
