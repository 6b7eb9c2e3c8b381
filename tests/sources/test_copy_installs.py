"""Copies at the source, whoever drops, alters, restores or owns them; the values that they have; and what is refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine import Engine
from cq_engine.core.errors import AnalysisError, SourceError
from cq_engine.core.limits import Limits
from cq_engine.sources.copies.capture import CopyAtSource
from tests.sources.copies import CAPTURE, NAMES, Opened, ask, failed, installed
from tests.sources.shops import TEXT, TYPES, Shop
from tests.sources.writers import BEGIN, TABLE, Writer, here, resumed

LOST = "is not as it was"
OTHER_CAPTURE = "table cq_copy_c at the source is the copy of another capture"
OTHER_TICK = "is of another tick than this warehouse"


@pytest.mark.parametrize("name", NAMES)
def test_a_table_is_dropped(copied: Engine, shop: Shop, beside: Writer, name: str) -> None:
    shop.run(f"DROP TABLE {name}")
    assert f"table {name} is gone" in failed(copied, LOST)
    beside.transaction()
    resumed(copied, beside)


def test_a_process_ends_while_it_makes_the_copy_anew(
    copied: Engine, shop: Shop, beside: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy is made, and nothing here says so."""
    shop.run(f"DROP TABLE {NAMES[1]}")
    failed(copied, LOST)
    made = CopyAtSource.prepare

    def ended(*given: Any) -> None:
        made(*given)
        raise SourceError("ended")

    with monkeypatch.context() as patch:
        patch.setattr(CopyAtSource, "prepare", ended)
        with pytest.raises(SourceError, match="ended"):
            copied.execute("ALTER CAPTURE c RESUME")
    beside.transaction()
    resumed(copied, beside)


def test_columns_are_altered(copied: Engine, shop: Shop, beside: Writer) -> None:
    shop.run("ALTER TABLE orders ADD COLUMN more INT")
    shop.run("ALTER TABLE orders DROP COLUMN gone")
    shop.run("UPDATE orders SET note = 'wide'")
    copied.refresh_capture("c")
    assert here(copied) == beside.rows()
    if shop.kind == "sqlite":
        return  # it has no ALTER for a type, and copies values as they are
    alter = {
        "postgresql": "ALTER COLUMN region TYPE text",
        "mariadb": "MODIFY region VARCHAR(20) COLLATE utf8mb4_bin",
    }
    shop.run(f"ALTER TABLE orders {alter[shop.kind]}")
    assert "column region was " in failed(copied, LOST)
    copied.execute("ALTER CAPTURE c RESUME")
    shop.run("UPDATE orders SET region = 'a longer name'")
    copied.refresh_capture("c")
    assert here(copied) == beside.rows()


def kept(shop: Shop, what: str) -> None:
    """Puts the tables of the copy aside (`aside`), or back (`back`), as a backup does."""
    for name in NAMES:
        if what == "aside":
            shop.run(f"CREATE TABLE {name}_{what} AS SELECT * FROM {name}")
        else:
            shop.run(f"DELETE FROM {name}")
            shop.run(f"INSERT INTO {name} SELECT * FROM {name}_aside")
            shop.run(f"DROP TABLE {name}_aside")


def test_the_source_is_restored(copied: Engine, shop: Shop, beside: Writer) -> None:
    kept(shop, "aside")
    shop.run("INSERT INTO orders (id, note, gone) VALUES (1001, 'lost', 0)")
    copied.refresh_capture("c")
    kept(shop, "back")
    shop.run("DELETE FROM orders WHERE id = 1001")
    failed(copied, OTHER_TICK)
    assert 1001 in [row[0] for row in here(copied)]
    resumed(copied, beside)


def test_the_warehouse_is_restored(
    opened: Opened, copied: Engine, shop: Shop, beside: Writer, tmp_path: Path, once: SparkSession
) -> None:
    """Two warehouses have one capture: the second one fails until it is told to take over; the copy is not the first one's then."""
    copied.close()
    shutil.copytree(tmp_path / "warehouse", tmp_path / "backup")
    first = opened(Limits())
    shop.run("UPDATE orders SET note = 'for the first'")
    first.refresh_capture("c")
    with cq_engine.connect(tmp_path / "backup", spark=once, scheduler=False) as second:
        failed(second, OTHER_TICK)
        resumed(second, beside)
    failed(first, OTHER_CAPTURE)
    with pytest.raises(SourceError, match=OTHER_CAPTURE):
        first.execute("ALTER CAPTURE c RESUME")


def test_the_copy_of_another_capture(opened: Opened, copied: Engine, shop: Shop, beside: Writer) -> None:
    """Dropped by hand, and made anew by somebody else."""
    shop.run("UPDATE cq_copy_c_state SET cq_owner = 'somebody else'")
    owned = ask(shop, "SELECT * FROM cq_copy_c")
    failed(copied, OTHER_CAPTURE)
    with pytest.raises(SourceError, match=OTHER_CAPTURE):
        copied.execute("ALTER CAPTURE c RESUME")
    assert f"is still there: {OTHER_CAPTURE}" in copied.execute("DROP CAPTURE c").message
    assert installed(shop) == NAMES
    assert ask(shop, "SELECT * FROM cq_copy_c") == owned
    with pytest.raises(AnalysisError, match="has a table cq_copy_c already"):
        copied.execute(CAPTURE)
    assert ask(shop, "SELECT * FROM cq_copy_c") == owned


# ---------------------------------------------------------------- coming and going


def test_it_goes_with_the_capture(copied: Engine, shop: Shop, beside: Writer) -> None:
    assert installed(shop) == NAMES
    assert copied.execute("DROP CAPTURE c").message == "capture c dropped; table t stays"
    assert installed(shop) == []
    assert here(copied) == beside.rows()
    for statement in ("DROP TABLE t CASCADE", "DROP SOURCE shop CASCADE"):
        said = copied.execute(CAPTURE).message
        assert (
            said
            == f"capture c created; cq_copy_c, a copy of what is captured of {shop.relation('orders').shown}, is kept at the source"
        )
        copied.execute(statement)
        assert installed(shop) == []
        if "TABLE" in statement:
            copied.execute(TABLE)


def test_it_stays_where_the_source_is_gone(copied: Engine, shop: Shop) -> None:
    away = {"sqlite": "sqlite:////nowhere/shop.db"}.get(shop.kind, f"{shop.kind}://cq@127.0.0.1:1/shop")
    source = copied.catalog.state.sources["shop"]
    with copied.catalog.lock, copied.catalog.write() as unit:  # as after a change of the environment
        sources = {"shop": replace(source, options=(("url", away),))}
        unit.set_state(replace(copied.catalog.state, sources=sources))
    assert "is still there" in copied.execute("DROP CAPTURE c").message
    assert copied.execute("SHOW CAPTURES").to_arrow().num_rows == 0
    assert installed(shop) == NAMES


def test_without_rights(opened: Opened, shop: Shop, beside: Writer) -> None:
    if shop.kind == "sqlite":
        pytest.skip("SQLite has no accounts")
    engine = opened(Limits())
    engine.execute(TABLE)
    owner, reader = ("cq@", "reader@") if shop.kind == "postgresql" else ("root@", "reader@")
    place = shop.database.address.url.database
    if shop.kind == "postgresql":
        shop.run("DROP ROLE IF EXISTS reader")
        shop.run("CREATE ROLE reader LOGIN")
        shop.run("GRANT SELECT ON orders TO reader")
        rights = ["GRANT CREATE ON SCHEMA public TO reader"]
    else:
        shop.run("CREATE OR REPLACE USER reader")
        shop.run(f"GRANT SELECT, CREATE, DROP ON {place}.* TO reader")  # what is half made goes
        rights = [f"GRANT INSERT, UPDATE, DELETE ON {place}.* TO reader"]
    engine.execute(f"CREATE SOURCE shop TYPE {shop.kind} WITH (url = '{shop.url.replace(owner, reader)}')")
    with pytest.raises(SourceError, match="the copy of capture c cannot be made at the source") as caught:
        engine.execute(CAPTURE)
    assert "denied" in caught.value.detail
    assert "CREATE" in caught.value.hint
    assert installed(shop) == []
    assert engine.execute("SHOW CAPTURES").to_arrow().num_rows == 0
    for right in rights:
        shop.run(right)
    engine.execute(CAPTURE)
    engine.refresh_capture("c")
    beside.transaction()
    engine.refresh_capture("c")
    assert here(engine) == beside.rows()
    engine.execute("DROP CAPTURE c")
    assert installed(shop) == []
    if shop.kind == "postgresql":
        shop.run("DROP OWNED BY reader")
        shop.run("DROP ROLE reader")


def test_what_is_refused(opened: Opened, shop: Shop, beside: Writer, tmp_path: Path) -> None:
    engine = opened(Limits())
    engine.execute(TABLE)
    engine.execute(f"CREATE SOURCE shop TYPE {shop.kind} WITH (url = '{shop.url}')")
    with pytest.raises(AnalysisError, match="at = 'there' is not possible") as caught:
        engine.execute(CAPTURE.replace("'source'", "'there'"))
    assert caught.value.hint == "it is here or source"
    assert caught.value.location is not None
    with pytest.raises(AnalysisError, match="there is no option at"):
        engine.execute(CAPTURE.replace("COPY", "CHECKSUM"))
    engine.execute(f"CREATE SOURCE files TYPE csv WITH (path = '{tmp_path}')")
    with pytest.raises(AnalysisError, match="there is no option at"):
        engine.execute(CAPTURE.replace("shop", "files"))
    engine.execute(CAPTURE.replace("source", "here"))
    engine.refresh_capture("c")
    assert installed(shop) == []
    with pytest.raises(AnalysisError, match="cannot change by what it reads"):
        engine.execute("ALTER CAPTURE c SET WITH (at = 'source')")
    engine.execute("ALTER CAPTURE c SET WITH (at = 'here')")
    engine.execute("DROP CAPTURE c")
    shop.run("CREATE TABLE cq_copy_c_staged (a INT)")
    with pytest.raises(AnalysisError, match="has a table cq_copy_c_staged already"):
        engine.execute(CAPTURE)
    assert installed(shop) == ["cq_copy_c_staged"]


def test_what_is_advised(opened: Opened, shop: Shop, beside: Writer) -> None:
    engine = opened(Limits())
    engine.execute(f"CREATE SOURCE shop TYPE {shop.kind} WITH (url = '{shop.url}')")
    rows = engine.execute("ADVISE CAPTURE FROM shop TABLE 'orders'").to_arrow().to_pylist()
    needs = {row["method"]: row["needs"] for row in rows}
    assert "at = 'source'" in needs["COPY"]
    assert all("at = 'source'" not in text for method, text in needs.items() if method != "COPY")


# ---------------------------------------------------------------- values


def test_values_and_keys(opened: Opened, shop: Shop, beside: Writer) -> None:
    """Keys and texts that differ by case alone, NULLs, decimals, binary, times, and types that cannot be compared."""
    types, json_type = TYPES[shop.kind], {"postgresql": "json", "mariadb": "json", "sqlite": ""}[shop.kind]
    shop.run("DROP TABLE orders")
    shop.run(
        f"CREATE TABLE orders (a {types['key']} NOT NULL, n INT NOT NULL, d DECIMAL(20, 5), b {types['binary']},"
        f" m {types['moment']}, f {types['double']}, s {types['key']}, j {json_type}, x {TEXT[shop.kind]}, PRIMARY KEY (a, n))"
    )
    engine = opened(Limits())
    columns = "d DECIMAL(20, 5), b BINARY, m TIMESTAMP_NTZ, f DOUBLE, s STRING, j STRING"
    engine.execute(f"CREATE TABLE t (a STRING, n INT, {columns}, PRIMARY KEY (a, n))")
    engine.execute(f"CREATE SOURCE shop TYPE {shop.kind} WITH (url = '{shop.url}')")
    engine.execute(CAPTURE)
    decimal: Any = 12345.5 if shop.kind == "sqlite" else Decimal("123456789012345.00001")
    moment = BEGIN + timedelta(microseconds=123456)
    rows = [
        ("ab", 1, decimal, b"\x00\xff'", moment, 0.1, "a", json.dumps({"a": 1}), "x"),
        ("c,\"'\\", 2, *[None] * 7),
    ]
    shop.insert("orders", rows)
    engine.refresh_capture("c")
    engine.execute(f"CREATE TABLE u (a STRING, n INT, {columns}, PRIMARY KEY (a, n))")
    engine.execute("CREATE CAPTURE d INTO u FROM shop TABLE 'orders' USING COPY ON DEMAND")

    def shipped(change: str) -> int:
        """How many rows a change brings, after which the table is that of a copy that is kept here."""
        shop.run(f"UPDATE orders SET {change}")
        read = engine.refresh_capture("c").rows_read
        engine.refresh_capture("d")
        found, copied = (
            [repr(row) for row in engine.execute(f"SELECT * FROM {name} ORDER BY n").to_arrow().to_pylist()]
            for name in "tu"
        )
        assert found == copied
        assert engine.refresh_capture("c").rows_read == 0
        return read

    assert shipped("x = 'not captured'") == 0
    assert shipped("a = 'AB' WHERE n = 1") == 2  # gone by one key, there by another
    assert shipped("s = 'A' WHERE n = 1") == 1
    assert shipped("s = '' WHERE n = 2") == 1
    assert shipped("s = NULL, b = NULL") == 2
    assert shipped("f = 0.1 + 0.000000000000000001 WHERE n = 1") == 0  # the same number
    assert shipped("f = 0.10000000000000002 WHERE n = 1") == 1
    assert shipped("j = '{\"a\": 2}'") == 2
    assert shipped("n = n + 10") == 4
    assert shipped("d = NULL, m = NULL, f = NULL, j = NULL") == 2


ODD = 'odd "%`'
KINDS: dict[str, list[tuple[str, str, str]]] = {
    "sqlite": [
        ("", "1", "'1'"), ("INT", "'text'", "x'00'"), ("REAL", "1", "1.5"), ("TEXT", "1", "x'31'"), ("BLOB", "x'00'", "NULL"),
        ("NUMERIC", "0.30000000000000004", "0.3"), ("BOOLEAN", "0", "1"),
    ],
    "postgresql": [
        ("jsonb", """'{"a": 1}'""", "'[]'"), ("text[]", "'{a,NULL}'", "'{A,NULL}'"), ("interval", "'1 month'", "'30 days'"),
        ("numeric", "1.10", "1.1000000000000000001"), ("real", "0.1", "'NaN'"), ("char(5)", "'ab'", "'AB'"),
        ("timestamptz", "'2026-01-01 00:00:00.000001+02'", "NULL"), ("date", "'infinity'", "'2026-01-01'"),
        ("inet", "'10.0.0.1'", "'10.0.0.0/8'"), ("bit(3)", "B'101'", "B'111'"), ("xml", "'<a/>'", "'<b/>'"),
        ("point", "'(1,2)'", "'(1,3)'"), ("varchar(9) COLLATE ci", "'é'", "'É'"), ("boolean", "true", "false"),
    ],
    "mariadb": [
        ("ENUM('a', 'b')", "'a'", "'b'"), ("SET('a', 'b')", "'a,b'", "'b'"), ("BIT(9)", "b'101'", "b'1'"), ("YEAR", "2026", "2027"),
        ("TIME(3)", "'-100:00:00.001'", "'00:00:00'"), ("JSON", """'{"a": 1}'""", """'{"a":1}'"""), ("FLOAT", "0.1", "0.10000001"),
        ("DECIMAL(30, 10)", "1.5", "1.5000000001"), ("TIMESTAMP(6) NULL", "'2026-01-01 00:00:00.000001'", "NULL"),
        ("DATE", "'0000-00-00'", "'2026-01-01'"), ("BIGINT UNSIGNED", "18446744073709551615", "0"), ("UUID", "UUID()", "NULL"),
        ("VARCHAR(9)", "'a'", "'a '"), ("VARCHAR(9) COLLATE latin1_swedish_ci", "'é'", "'e'"), ("BINARY(3)", "x'61'", "x'6161'"),
    ],
}  # fmt: skip


def test_types(opened: Opened, shop: Shop, beside: Writer) -> None:
    """A value of whatever type goes into the copy as it is, and another one is seen."""
    kinds = KINDS[shop.kind]
    names = [shop.quoted(f"{ODD}{n}") for n, _ in enumerate(kinds)]
    shop.run("DROP TABLE orders")
    declared = ", ".join(f"{name} {kind}" for name, (kind, _, _) in zip(names, kinds))
    key, values = shop.quoted(ODD), ", ".join(first for _, first, _ in kinds)
    with shop.database.write() as session:
        run, percent = session.connection.exec_driver_sql, shop.database.server.percent
        if shop.kind == "mariadb":
            run("SET SESSION sql_mode = ''")
        run(f"CREATE TABLE orders ({key} INT PRIMARY KEY, {declared})".replace("%", percent))
        run(
            f"INSERT INTO orders VALUES (1, {values}), (2, {', '.join(['NULL'] * len(kinds))})".replace(
                "%", percent
            )
        )
    engine = opened(Limits())
    engine.execute(
        f"CREATE TABLE t ({', '.join(f'c{n} STRING' for n, _ in enumerate(kinds))}, k INT, PRIMARY KEY (k))"
    )
    engine.execute(f"CREATE SOURCE shop TYPE {shop.kind} WITH (url = '{shop.url}')")
    columns = ", ".join(f"`{ODD.replace('`', '``')}{n}` AS c{n}" for n, _ in enumerate(kinds))
    engine.execute(CAPTURE.replace("USING", f"(`{ODD.replace('`', '``')}` AS k, {columns}) USING"))
    assert engine.refresh_capture("c").rows_read == 2
    assert engine.refresh_capture("c").rows_read == 0
    for name, (kind, first, second) in zip(names, kinds):
        for value in (second, first):
            shop.run(f"UPDATE orders SET {name} = {value} WHERE {key} = 1")
            assert engine.refresh_capture("c").rows_read == 1, (kind, value)
            assert engine.refresh_capture("c").rows_read == 0, (kind, value)
