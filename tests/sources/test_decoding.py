"""Captures of PostgreSQL's own log: the replica beside the source, transaction by transaction, whatever happens on the way."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime, timezone
from decimal import Decimal
from itertools import count

import pytest

from cq_engine.core.errors import SourceError
from cq_engine.core.limits import Limits
from cq_engine.sources.sql.database import Session
from tests import postgres
from tests.sources.decodings import SLOT, Opened, ask, confirmed, declare, drop_all, slot_of, there
from tests.sources.kills import killed_in_refresh
from tests.sources.shops import Shop
from tests.sources.trigger_logs import put
from tests.sources.writers import Writer, here

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def shop(postgres_server: str) -> Shop:
    return Shop("postgresql", postgres.fresh(postgres_server))


@pytest.fixture
def written(shop: Shop) -> Iterator[Writer]:
    """A table with rows, and who writes to it; no slot is left of it."""
    writer = Writer(shop, random.Random(7), "log")
    writer.create()
    for _ in range(6):
        writer.transaction()
    yield writer
    drop_all(shop)
    shop.run("DROP TABLE IF EXISTS orders")


def run(session: Session, *statements: str) -> None:
    for sql in statements:
        session.connection.exec_driver_sql(sql)


@pytest.mark.parametrize(
    "limits", [Limits(), Limits(pending_rows=5, small_rows=-1, apply_rows=8)], ids=["driver", "spark"]
)
@pytest.mark.parametrize("method", ["log", "log where"])
def test_the_replica_is_the_source(
    opened: Opened, shop: Shop, written: Writer, method: str, limits: Limits
) -> None:
    engine, writer = opened(limits), written
    writer.method = method
    if method == "log where":
        shop.run("ALTER TABLE orders REPLICA IDENTITY FULL")
    declare(engine, shop, "WHERE 'orders.price > 1'" if method == "log where" else "")
    engine.refresh_capture("c")
    assert here(engine) == writer.rows()
    for _ in range(5 if limits.small_rows > 0 else 3):
        for _ in range(writer.dice.randint(1, 4)):
            writer.transaction()
        engine.refresh_capture("c")
        assert here(engine) == writer.rows()
    before, at = engine.catalog.newest_version, confirmed(shop)
    shop.run("INSERT INTO regions VALUES ('another') ON CONFLICT DO NOTHING")
    engine.refresh_capture("c")
    assert engine.catalog.newest_version == before
    assert confirmed(shop) != at  # the server need not keep what does not concern the table
    engine.execute("DROP CAPTURE c")
    assert there(shop) == []


@contextmanager
def writing(writer: Writer) -> Iterator[None]:
    """Transaction after transaction during the block; one that meets those of others in an unlucky way is given up."""
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            with suppress(SourceError):
                writer.transaction()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_while_others_write(opened: Opened, shop: Shop, written: Writer) -> None:
    """Three writers, whose transactions end in another order than they began, also while the table is read first."""
    engine, writer = opened(Limits()), written
    shop.run("UPDATE orders SET note = 'begin'")
    writers = [Writer(shop, random.Random(seed), "log", count(seed * 1000)) for seed in (1, 2, 3)]
    with ExitStack() as at_work:
        for each in writers:
            at_work.enter_context(writing(each))
        declare(engine, shop)
        for _ in range(12):
            engine.refresh_capture("c")
    engine.refresh_capture("c")
    assert here(engine) == writer.rows()
    assert (
        engine.execute("SELECT count(*) AS n FROM t CHANGES FROM VERSION 1").to_arrow()["n"][0].as_py() > 20
    )


def test_commits_in_another_order_than_they_began(opened: Opened, shop: Shop, written: Writer) -> None:
    engine, writer = opened(Limits()), written
    declare(engine, shop)
    engine.refresh_capture("c")
    with shop.database.write() as first:
        run(first, put(1001, "first"))
        with shop.database.write() as second:
            run(second, put(1002, "second"), "UPDATE orders SET note = 'by the second' WHERE id = 1002")
        engine.refresh_capture("c")
        assert here(engine) == writer.rows()
        run(first, "UPDATE orders SET note = 'by the first' WHERE id = 1002", put(1003, "first"))
        engine.refresh_capture("c")
        assert 1001 not in [row[0] for row in here(engine)]
    engine.refresh_capture("c")
    assert here(engine) == writer.rows()
    notes = {row[0]: row[3] for row in here(engine)}
    assert (notes[1001], notes[1002], notes[1003]) == ("first", "by the first", "first")


def test_what_was_read_with_the_table_does_not_come_again(
    opened: Opened, shop: Shop, written: Writer
) -> None:
    """The slot is older than the rows that are read first: older states, and what a snapshot did not see."""
    engine, writer = opened(Limits()), written
    declare(engine, shop)
    for note in ("one", "two", "three"):
        shop.run(f"UPDATE orders SET note = '{note}'")
    shop.run(put(1001, "gone"))
    shop.run("DELETE FROM orders WHERE id = 1001")
    with shop.database.write() as open_one:
        run(open_one, put(1002, "late"))
        shop.run(put(1003, "before"))
        engine.refresh_capture("c")
        assert 1002 not in [row[0] for row in here(engine)]
        version = engine.catalog.newest_version
        engine.refresh_capture("c")
        assert engine.catalog.newest_version == version
    done = engine.refresh_capture("c")
    assert len(done.commit_versions) == 1
    assert here(engine) == writer.rows()
    seen = engine.execute("SELECT DISTINCT note FROM t CHANGES FROM VERSION 1").to_arrow()["note"].to_pylist()
    assert not {"one", "two", "gone", "begin"} & set(seen)
    shop.run("UPDATE orders SET note = 'four'")
    engine.refresh_capture("c")
    assert here(engine) == writer.rows()
    (status,) = engine.execute("SHOW CAPTURES").to_arrow().to_pylist()
    assert '"snapshot": null' in status["position"]


def test_transactions_are_the_sources(opened: Opened, shop: Shop, written: Writer) -> None:
    engine = opened(Limits())
    declare(engine, shop)
    engine.refresh_capture("c")
    for key in (1001, 1002, 1003):
        with shop.database.write() as session:
            run(session, put(key, "a"), f"UPDATE orders SET note = 'b' WHERE id = {key}", put(key + 50, "c"))
    with shop.database.write() as session:
        run(session, put(2000, "never"))
        transaction = session.connection.get_transaction()
        assert transaction is not None
        transaction.rollback()
    done = engine.refresh_capture("c")
    assert len(done.commit_versions) == 3
    changes = engine.execute("SELECT DISTINCT id, _commit_timestamp FROM t CHANGES FROM VERSION 2").to_arrow()
    ours = {row["id"]: row["_commit_timestamp"] for row in changes.to_pylist()}
    theirs = dict(ask(shop, "SELECT id, pg_xact_commit_timestamp(xmin) FROM orders WHERE id > 1000"))
    assert {key: _utc(moment) for key, moment in ours.items()} == theirs
    assert len(set(theirs.values())) == 3


def _utc(moment: datetime) -> datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)


@pytest.mark.parametrize("point", ["commit.begin", "commit.before_catalog", "commit.after_catalog"])
def test_killed(
    opened: Opened, shop: Shop, written: Writer, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    engine, writer = opened(Limits()), written
    declare(engine, shop)
    engine.refresh_capture("c")
    shop.run(put(1001, "once"))
    shop.run("UPDATE orders SET note = 'twice', id = 1002 WHERE id = 1001")
    begun, at = engine.catalog.newest_version, confirmed(shop)
    killed_in_refresh(engine, point, monkeypatch)
    assert confirmed(shop) == at  # not before it is durable here
    engine.close()
    engine = opened(Limits())
    is_done = point == "commit.after_catalog"
    assert engine.catalog.newest_version == begun + (2 if is_done else 0)
    engine.refresh_capture("c")
    assert engine.catalog.newest_version == begun + 2
    assert here(engine) == writer.rows()
    assert confirmed(shop) != at
    shop.run("DELETE FROM orders WHERE id = 1002")
    engine.refresh_capture("c")
    assert engine.catalog.newest_version == begun + 3
    assert here(engine) == writer.rows()


def test_large_values_that_an_update_leaves_out(opened: Opened, shop: Shop, written: Writer) -> None:
    """They are what the row has here, or what an earlier change of it has, also where its key has changed."""
    engine, writer = opened(Limits()), written
    shop.run("ALTER TABLE orders ALTER COLUMN note SET STORAGE EXTERNAL")
    large = [letter * 5000 for letter in "abc"]
    for key, text in enumerate(large, 1001):
        shop.run(put(key, text))
    declare(engine, shop)
    engine.refresh_capture("c")
    shop.run("UPDATE orders SET region = 'west' WHERE id > 1000")
    engine.refresh_capture("c")
    assert here(engine) == writer.rows()
    shop.run("UPDATE orders SET id = 1010, region = 'north' WHERE id = 1001")
    shop.run("UPDATE orders SET id = 1001, region = 'south' WHERE id = 1002")
    shop.run("UPDATE orders SET id = 1002 WHERE id = 1010")
    shop.run(put(1005, "d" * 5000))
    shop.run("UPDATE orders SET price = 7 WHERE id > 1000")
    shop.run("UPDATE orders SET note = NULL WHERE id = 1003")
    shop.run("UPDATE orders SET price = 8 WHERE id > 1000")
    shop.run("DELETE FROM orders WHERE id = 1005")
    engine.refresh_capture("c")
    assert here(engine) == writer.rows()
    shop.run(
        "UPDATE orders SET id = 1003, price = 9 WHERE id = 1002 AND NOT EXISTS (SELECT 1 FROM orders WHERE id = 9)"
    ) if False else shop.run("UPDATE orders SET price = 9 WHERE id = 1002")
    shop.run("TRUNCATE orders")
    shop.run(put(1001, "e" * 5000))
    shop.run("UPDATE orders SET price = 1")
    engine.refresh_capture("c")
    assert here(engine) == writer.rows() == [(1001, None, Decimal("1.00"), "e" * 5000)]


def test_a_large_value_of_a_row_that_is_not_here(opened: Opened, shop: Shop, written: Writer) -> None:
    engine, writer = opened(Limits()), written
    shop.run("ALTER TABLE orders ALTER COLUMN note SET STORAGE EXTERNAL")
    shop.run(put(1001, "a" * 5000))
    declare(engine, shop)
    engine.refresh_capture("c")
    engine.execute("DELETE FROM t WHERE id = 1001")
    shop.run("UPDATE orders SET price = 1 WHERE id = 1001")
    with pytest.raises(Exception, match="leaves out a large value") as caught:
        engine.refresh_capture("c")
    assert "id = 1001" in str(caught.value)
    engine.execute("ALTER CAPTURE c RESUME")
    engine.refresh_capture("c")
    assert here(engine) == writer.rows()
    shop.run("ALTER TABLE orders REPLICA IDENTITY FULL")
    engine.execute("DELETE FROM t WHERE id = 1001")
    shop.run("UPDATE orders SET price = 2 WHERE id = 1001")
    engine.refresh_capture("c")
    assert here(engine) == writer.rows()


def test_truncated(opened: Opened, shop: Shop, written: Writer) -> None:
    engine, writer = opened(Limits()), written
    declare(engine, shop)
    engine.refresh_capture("c")
    begun = engine.catalog.newest_version
    shop.run("UPDATE orders SET note = 'before'")
    with shop.database.write() as session:
        run(session, put(1001, "before"), "TRUNCATE orders", put(1002, "a"), put(1003, "b"))
        run(session, "UPDATE orders SET id = 1004 WHERE id = 1002", "DELETE FROM orders WHERE id = 1003")
    shop.run(put(1005, "after"))
    engine.refresh_capture("c")
    assert here(engine) == writer.rows()
    assert [row[0] for row in here(engine)] == [1004, 1005]
    assert engine.catalog.newest_version == begun + 3
    shop.run("TRUNCATE orders")
    engine.refresh_capture("c")
    assert here(engine) == []


def test_a_transaction_with_too_many_changes(opened: Opened, shop: Shop, written: Writer) -> None:
    engine, writer = opened(Limits(apply_rows=50, pending_rows=20, small_rows=-1)), written
    declare(engine, shop)
    engine.refresh_capture("c")
    shop.run(put(2000, "before"))
    shop.run("INSERT INTO orders (id, note) SELECT n, 'many' FROM generate_series(3000, 3099) AS n")
    shop.run("UPDATE orders SET note = 'after' WHERE id = 2000")
    done = engine.refresh_capture("c")
    assert len(done.commit_versions) == 2
    assert here(engine) == writer.rows()
    version = engine.catalog.newest_version
    engine.refresh_capture("c")
    assert engine.catalog.newest_version == version
    shop.run("DELETE FROM orders WHERE id = 3000")
    engine.refresh_capture("c")
    assert here(engine) == writer.rows()


def test_only_what_comes(opened: Opened, shop: Shop, written: Writer) -> None:
    engine = opened(Limits())
    shop.run("ALTER TABLE orders REPLICA IDENTITY FULL")
    declare(engine, shop, more=", initial = 'none'")
    shop.run(put(1001, "new"))
    engine.refresh_capture("c")
    assert [row[0] for row in here(engine)] == [1001]


def test_values(opened: Opened, shop: Shop, written: Writer) -> None:
    """They are those that a copy of the table has, whatever the settings of the server are."""
    database = shop.url.rpartition("/")[2]
    for setting in ("DateStyle TO 'SQL, DMY'", "TimeZone TO 'Asia/Tokyo'", "bytea_output TO 'escape'"):
        shop.run(f"ALTER DATABASE {database} SET {setting}")
    shop.run("DROP TABLE orders")
    shop.run("CREATE DOMAIN short AS varchar(20)")
    shop.run("CREATE TYPE mood AS ENUM ('glad', 'sad')")
    columns = {
        "k": ("short NOT NULL", "STRING"), "i": ("smallint", "INT"), "n": ("numeric", "DECIMAL(30, 10)"),
        "d": ("double precision", "DOUBLE"), "r": ("real", "FLOAT"), "b": ("boolean", "BOOLEAN"), "y": ("bytea", "BINARY"),
        "day": ("date", "DATE"), "at": ("timestamptz", "TIMESTAMP"), "local": ("timestamp", "TIMESTAMP_NTZ"),
        "js": ("jsonb", "STRING"), "u": ("uuid", "STRING"), "m": ("mood", "STRING"), "net": ("inet", "STRING"),
        "span": ("interval", "STRING"), "tags": ("text[]", "ARRAY<STRING>"), "ints": ("int[]", "ARRAY<INT>"),
        "f": ("character(4)", "STRING"), "text_of_number": ("double precision", "STRING"), "bits": ("bit(3)", "STRING"),
        "yes": ("boolean", "STRING"), "then": ("timestamptz", "STRING"),
    }  # fmt: skip
    theirs = ", ".join(f'"{name}" {kinds[0]}' for name, kinds in columns.items())
    shop.run(f"CREATE TABLE orders ({theirs}, PRIMARY KEY (k))")
    ours = ", ".join(f"`{name}` {kinds[1]}" for name, kinds in columns.items())
    engine = opened(Limits())
    declare(engine, shop, table=f"CREATE TABLE t ({ours}, PRIMARY KEY (k))")
    engine.refresh_capture("c")
    values = (
        "'K''%s\\ü', -7, 123456789.0123456789, 0.1, 0.1, true, '\\x00ff27', '2026-02-01', '2026-02-01 12:00:00.123456+05:30',"
        """ '2026-02-01 12:00:00.5', '{"a": [1, null]}', '0f6a1e3c-0000-4000-8000-000000000000', 'sad', '10.0.0.1',"""
        """ '1 day 02:03:04.5', '{"a,b",NULL,"c\\"d",""}', '{1,NULL,-3}', 'ab', 1e300, B'101', false, '2026-02-01 12:00:00+00'"""
    )
    shop.run(f"INSERT INTO orders VALUES ({values})")
    shop.run(f"INSERT INTO orders VALUES ('nulls'{', NULL' * (len(columns) - 1)})")
    shop.run("INSERT INTO orders (k, d, r) VALUES ('infinite', '-Infinity', 'NaN')")
    shop.run("UPDATE orders SET k = 'moved', i = 8 WHERE k = 'infinite'")
    engine.refresh_capture("c")
    engine.execute(f"CREATE TABLE u ({ours}, PRIMARY KEY (k))")
    engine.execute("CREATE CAPTURE d INTO u FROM shop TABLE 'orders' USING COPY ON DEMAND")
    engine.refresh_capture("d")
    decoded, copied = (engine.execute(f"SELECT * FROM {name}").to_arrow().to_pylist() for name in "tu")
    assert sorted(map(repr, decoded)) == sorted(map(repr, copied))
    assert len(decoded) == 3


def test_the_slot_is_not_read_twice_at_once(opened: Opened, shop: Shop, written: Writer) -> None:
    engine, writer = opened(Limits()), written
    declare(engine, shop)
    engine.refresh_capture("c")
    threads = [threading.Thread(target=engine.refresh_capture, args=("c",)) for _ in range(3)]
    shop.run(put(1001, "one"))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert here(engine) == writer.rows()


def test_another_key_than_the_first_column(opened: Opened, shop: Shop, written: Writer) -> None:
    shop.run("DROP TABLE orders")
    shop.run(
        'CREATE TABLE orders (note text, "Number" bigint, part int, v int, PRIMARY KEY (part, "Number"))'
    )
    engine = opened(Limits())
    engine.execute("CREATE TABLE t (n BIGINT, p INT, note STRING, kept STRING, PRIMARY KEY (n, p))")
    engine.execute(f"CREATE SOURCE shop TYPE postgresql WITH (url = '{shop.url}')")
    engine.execute(
        SLOT.format("", slot_of(shop), "").replace("'orders'", "'orders' (`Number` AS n, part AS p, note)")
    )
    shop.run("INSERT INTO orders VALUES ('a', 1, 1, 0), ('b', 2, 1, 0), ('c', 1, 2, 0)")
    engine.refresh_capture("c")
    engine.execute("UPDATE t SET kept = 'here'")
    shop.run("UPDATE orders SET v = 1")
    shop.run("UPDATE orders SET part = 3 WHERE note = 'b'")
    shop.run("DELETE FROM orders WHERE note = 'c'")
    engine.refresh_capture("c")
    found = engine.execute("SELECT n, p, note, kept FROM t").to_arrow().to_pylist()
    assert sorted(map(tuple, map(dict.values, found))) == [(1, 1, "a", "here"), (2, 3, "b", None)]


def test_names_that_are_quoted(opened: Opened, shop: Shop, written: Writer) -> None:
    table = '"S %d?"."Or\'d%s?ers"'

    def change(*statements: str) -> None:
        with shop.database.write() as session:
            run(session, *(sql.replace("%", "%%") for sql in statements))

    change(
        'CREATE SCHEMA "S %d?"',
        f'CREATE TABLE {table} (id int PRIMARY KEY, "no%te?" text)',
        f"ALTER TABLE {table} REPLICA IDENTITY FULL",
    )
    engine = opened(Limits())
    engine.execute("CREATE TABLE t (id INT, note STRING, PRIMARY KEY (id))")
    engine.execute(f"CREATE SOURCE shop TYPE postgresql WITH (url = '{shop.url}')")
    relation = table.replace("'", "''")
    wanted = f"'{relation}' (id, `no%te?` AS note) WHERE '\"no%te?\" LIKE ''a%'''"
    engine.execute(SLOT.format("", slot_of(shop), "").replace("'orders'", wanted))
    change(f"INSERT INTO {table} VALUES (1, 'ab'), (2, 'b'), (3, 'a')")
    engine.refresh_capture("c")
    change(f"UPDATE {table} SET \"no%te?\" = CASE id WHEN 1 THEN 'c' ELSE 'a' END")
    engine.refresh_capture("c")
    found = engine.execute("SELECT id, note FROM t ORDER BY id").to_arrow().to_pylist()
    assert [tuple(row.values()) for row in found] == [(2, "a"), (3, "a")]
    engine.execute("DROP CAPTURE c")
    change(f"DROP TABLE {table}", 'DROP SCHEMA "S %d?"')


def test_large_values_whatever_the_storage_is_now(opened: Opened, shop: Shop, written: Writer) -> None:
    """Values stay where they are when the storage of their column is altered, and are left out nevertheless."""
    engine, writer = opened(Limits()), written
    shop.run("ALTER TABLE orders ALTER COLUMN note SET STORAGE EXTERNAL")
    shop.run(put(1001, "a" * 5000))
    shop.run("ALTER TABLE orders ALTER COLUMN note SET STORAGE PLAIN")
    declare(engine, shop)
    engine.refresh_capture("c")
    shop.run("UPDATE orders SET id = 1002 WHERE id = 1001")
    shop.run("UPDATE orders SET price = 1 WHERE id = 1002")
    engine.refresh_capture("c")
    assert here(engine) == writer.rows()
    assert (1002, None, Decimal("1.00"), "a" * 5000) in here(engine)
