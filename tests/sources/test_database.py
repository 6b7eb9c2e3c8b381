"""How a database is reached, and what a person sees where it is not."""

from __future__ import annotations

import pickle
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from cq_engine.catalog.model import DeclaredSource
from cq_engine.core.errors import SourceError
from cq_engine.sources.sql import select as s
from cq_engine.sources.sql.address import check_declaration
from cq_engine.sources.sql.database import Database
from cq_engine.sources.sql.model import Statement
from cq_engine.sources.sql.relation import describe
from tests.brokers import free_port
from tests.sources.shops import Shop, capture, declared

SECRET = "p:a/s@s%w"
SPELLED = "p%3Aa%2Fs%40s%25w"


def test_a_source_answers_by_its_declaration_alone(shop: Shop) -> None:
    with pickle.loads(pickle.dumps(shop.database)) as other:
        other.check()
        assert (other.kind, other.dialect) == (shop.kind, shop.database.dialect)
    kinds = {"sqlite": "sqlite", "postgresql": "postgres", "mariadb": "mysql"}
    assert shop.database.dialect == kinds[shop.kind]


def test_whatever_sqlalchemy_knows_is_asked_as_what_it_is(shop: Shop) -> None:
    url = shop.url.replace("mariadb://", "mysql+pymysql://")
    with Database.open(declared("sql", url, timeout="20 seconds")) as database:
        assert database.kind == {"mariadb": "mysql"}.get(shop.kind, shop.kind)
        name = shop.fresh()
        shop.run(f"CREATE TABLE {name} (id INT PRIMARY KEY, v INT)")
        shop.insert(name, [(1, 2)])
        made = s.selection(capture("id", "v"), describe(database, name))
        with database.connect() as session:
            assert session.one(s.image(made)) == (1, 2)


def test_a_transaction_reads_one_state_and_changes_nothing(shop: Shop) -> None:
    name = shop.fresh()
    shop.run(f"CREATE TABLE {name} (id INT PRIMARY KEY)")
    shop.insert(name, [(1,)])
    if shop.kind == "sqlite":
        with closing(sqlite3.connect(shop.database.address.url.database or "")) as file:
            file.execute("PRAGMA journal_mode = WAL")
    image = s.image(s.selection(capture("id"), shop.relation(name)))
    with shop.database.connect() as session:
        assert session.rows(image) == [(1,)]
        shop.insert(name, [(2,)])
        assert session.rows(image) == [(1,)]
    assert sorted(shop.rows(image)) == [(1,), (2,)]
    with pytest.raises(SourceError, match=r"(?i)read.?only"), shop.database.connect() as session:
        session.change(Statement(f"DELETE FROM {name}".replace("%", shop.database.server.percent)))
    assert len(shop.rows(image)) == 2


def test_a_result_comes_in_blocks(shop: Shop) -> None:
    name = shop.fresh()
    shop.run(f"CREATE TABLE {name} (id INT PRIMARY KEY)")
    shop.insert(name, [(n,) for n in range(25)])
    image = s.image(s.selection(capture("id"), shop.relation(name)), order=True)
    with shop.database.connect() as session:
        blocks = list(session.blocks(image, size=10))
        assert [len(block) for block in blocks] == [10, 10, 5]
        first = next(iter(session.blocks(image, size=10)))
    assert first == [(n,) for n in range(10)]


def test_a_statement_takes_no_longer_than_it_may(shop: Shop) -> None:
    slow = {
        "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n",
        "postgresql": "SELECT pg_sleep(30)",
        "mariadb": "SELECT SLEEP(30) FROM (SELECT 1 UNION SELECT 2) AS two WHERE SLEEP(30) = 0",
    }[shop.kind]
    with (
        Database.open(declared(shop.kind, shop.url, timeout="200 milliseconds")) as database,
        pytest.raises(SourceError, match=r"timeout|max_statement_time|interrupted"),
        database.connect() as session,
    ):
        session.rows(Statement(slow))


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_no_secret_is_in_an_error(kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(f"{SPELLED}\n", encoding="utf-8")
    monkeypatch.setenv("SHOP_PASSWORD", SPELLED)
    for url in ("${SHOP_PASSWORD}", f"${{file:{file}}}"):
        made = declared(kind, f"{kind}://me:{url}@127.0.0.1:{free_port()}/shop", connect_timeout="1 second")
        check_declaration(made)
        database = Database.open(made)
        assert database.address.secrets == {"password": SECRET}
        with pytest.raises(SourceError) as error:
            database.check()
        shown = "".join(
            map(str, (error.value, error.value.__cause__, error.value.__context__, database.address))
        )
        assert SECRET not in shown
        assert SPELLED not in shown
        assert "***@127.0.0.1" in str(error.value)
        assert SECRET.encode() not in pickle.dumps(database)


def test_a_server_that_refuses_says_why(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    if shop.kind == "sqlite":
        url = "sqlite:////nowhere/shop.db"
    else:
        monkeypatch.setenv("SHOP_PASSWORD", "h1dd3n")
        url = shop.url.replace("//cq@", "//nobody:${SHOP_PASSWORD}@").replace(
            "//root@", "//nobody:${SHOP_PASSWORD}@"
        )
    with Database.open(declared(shop.kind, url)) as database, pytest.raises(SourceError) as error:
        database.check()
    assert "source shop" in error.value.message
    assert "h1dd3n" not in str(error.value)
    assert error.value.hint


def test_a_file_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    file = tmp_path / "none.db"
    with pytest.raises(SourceError, match="there is no file"):
        Database.open(declared("sqlite", f"sqlite:///{file}")).check()
    assert not file.exists()


def test_a_file_that_is_no_database(places: Callable[[], Path]) -> None:
    file = places()
    file.write_bytes(b"certainly no database, but long enough to look at" * 30)
    with pytest.raises(SourceError, match="file is not a database"):
        Database.open(declared("sqlite", f"sqlite:///{file}")).check()


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("sqlite", {}, "has no url"),
        ("oracel", {"url": "x://y"}, "is no database"),
        ("postgresql", {"url": "sqlite:////a.db"}, "is of sqlite"),
        ("postgresql", {"url": "postgresql://me:word@h/d"}, "has a password in it"),
        ("mariadb", {"url": "mariadb://me@h/d?ssl_password=word"}, "has a password in it"),
        ("sql", {"url": "snowflake://me:word@h/d"}, "has a password in it"),
        ("sql", {"url": "no url"}, "is not the URL of a database"),
        ("postgresql", {"url": "postgresql://me@h/d", "timeout": "soon"}, "no length of time"),
        ("postgresql", {"url": "postgresql://me@h/d", "time_zone": "Europe/Wien"}, "no time zone"),
        ("postgresql", {"url": "postgresql://me@h/d", "timeuot": "1 second"}, "have no option timeuot"),
    ],
)
def test_a_declaration_is_checked_without_asking(kind: str, options: dict[str, str], said: str) -> None:
    with pytest.raises(SourceError, match=said) as error:
        check_declaration(DeclaredSource("shop", kind, tuple(options.items())))
    assert "word@" not in str(error.value)
    assert "=word" not in str(error.value)


@pytest.mark.parametrize(
    "url", ["${SHOP_URL}", "postgresql://me:${WORD}@h/d", "postgresql://me:${file:/x}@h/d"]
)
def test_a_declaration_may_have_variables(url: str) -> None:
    check_declaration(declared("postgresql", url))


def test_variables_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="environment variable CQ_NOT_SET is not set"):
        Database.open(declared("postgresql", "postgresql://me:${CQ_NOT_SET}@h/d"))
    with pytest.raises(SourceError, match="cannot be read: No such file"):
        Database.open(declared("postgresql", f"postgresql://me:${{file:{tmp_path}/none}}@h/d"))


def test_a_dialect_without_its_package() -> None:
    with pytest.raises(SourceError, match=r"snowflake|dialect"):
        Database.open(declared("sql", "snowflake://me@h/d")).check()


def test_a_writer_of_sqlite_is_not_kept_waiting_after_a_read(places: Callable[[], Path]) -> None:
    file = places()
    shop = Shop("sqlite", f"sqlite:///{file}")
    shop.run("CREATE TABLE t (id INT PRIMARY KEY)")
    shop.insert("t", [(1,)])
    assert shop.rows(s.image(s.selection(capture("id"), shop.relation("t")))) == [(1,)]
    with closing(sqlite3.connect(file, timeout=0)) as writer:
        writer.execute("INSERT INTO t VALUES (2)")
        writer.commit()
