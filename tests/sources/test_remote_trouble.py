"""Continuous queries over tables that stay at their sources: what is refused, what fails, and what comes after it."""

from __future__ import annotations

import json
import random
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine import AnalysisError, CatalogError, CQError, Engine, SourceError
from cq_engine.catalog.model import Capture
from cq_engine.core import faults
from cq_engine.core.limits import Limits
from cq_engine.definition.registry import Registry
from cq_engine.lifecycle import captures, remote_queries
from cq_engine.sources.remote.channel import Channel
from tests import mariadb
from tests.brokers import Server
from tests.sources.kills import Killed, killed_in_refresh
from tests.sources.remote_pairs import LOG, change, create, declare, here, installed, there, with_two
from tests.sources.shops import Shop


@pytest.fixture
def shop_with_two(shop: Shop) -> Iterator[Shop]:
    """Two tables of one source."""
    yield from with_two(shop)


@pytest.fixture
def one_shop(places: Callable[[], Path]) -> Iterator[Shop]:
    """The same in SQLite, for what does not depend on the server."""
    yield from with_two(Shop("sqlite", f"sqlite:///{places()}"))


@pytest.fixture
def engine(opened: Callable[..., Engine], shop_with_two: Shop) -> Engine:
    made = opened(Limits())
    declare(made, shop_with_two)
    return made


@pytest.fixture
def one_engine(opened: Callable[..., Engine], one_shop: Shop) -> Engine:
    made = opened(Limits())
    declare(made, one_shop)
    return made


# ---------------------------------------------------------------- what comes and goes


def test_it_comes_and_goes_with_its_logs(engine: Engine, shop_with_two: Shop) -> None:
    """A table twice, and both tables of one source: one log, one channel."""
    assert "the join at shop is kept in table q_remote" in create(engine)
    assert installed(shop_with_two) > 1
    dice = random.Random(5)
    for _ in range(4):
        for _ in range(dice.randint(1, 3)):
            change(shop_with_two, dice)
        engine.refresh("q")
        assert here(engine) == there(shop_with_two)
    with shop_with_two.database.connect() as session:
        assert session.connection.exec_driver_sql(f"SELECT count(*) FROM {LOG}").scalar_one() == 0
    row = engine.execute("SHOW CAPTURES").to_arrow().to_pylist()[0]
    assert (row["name"], row["source"], row["method"], row["state"]) == (
        "q_remote",
        "shop",
        "SWEEP",
        "ACTIVE",
    )
    assert [name for name, *_ in engine.execute("SHOW TABLES")] == ["a", "b"]
    version = engine.catalog.newest_version
    engine.refresh("q")
    assert engine.catalog.newest_version == version  # nothing has changed, nothing is committed
    engine.execute("DROP CONTINUOUS QUERY q")
    assert installed(shop_with_two) == 0
    assert engine.execute("SHOW CAPTURES").fetchall() == []
    assert "q_remote" not in engine.catalog.state.tables


def test_tables_of_the_warehouse_and_aggregates_above(one_engine: Engine, one_shop: Shop) -> None:
    one_engine.execute("CREATE TABLE weights (word STRING, weight INT, PRIMARY KEY (word))")
    one_engine.execute("INSERT INTO weights VALUES ('one', 10), ('two', 3)")
    create(
        one_engine,
        "STRONG",
        "SELECT w.weight, count(*) AS n, sum(a.id + w.weight) FROM b, a LEFT JOIN weights w ON b.word = w.word"
        " WHERE a.b = b.id AND a.id < 4 GROUP BY w.weight HAVING count(*) > 0",
    )
    assert sorted(one_engine.execute("SELECT * FROM q").fetchall(), key=repr) == [(10, 2, 23), (3, 1, 6)]
    one_shop.run("UPDATE b SET word = 'two' WHERE id = 1")
    one_engine.execute("UPDATE weights SET weight = 5 WHERE word = 'two'")
    one_engine.refresh("q")
    assert one_engine.execute("SELECT * FROM q").fetchall() == [(5, 3, 21)]
    names = [name for name, *_ in one_engine.execute("DESCRIBE q_remote")]
    assert names == ["b_id", "a_id", "b_word"]
    assert one_engine.execute("SELECT * FROM q").columns[:2] == ["weight", "n"]


def test_explain_and_figures(one_engine: Engine, one_shop: Shop) -> None:
    create(one_engine)
    plan = "\n".join(row[0] for row in one_engine.execute("EXPLAIN CONTINUOUS QUERY q"))
    assert "a change of a asks b, then x" in plan
    assert "b at shop: SELECT" in plan
    one_shop.run("UPDATE a SET b = 2 WHERE id = 1")
    report = "\n".join(row[0] for row in one_engine.execute("EXPLAIN ANALYZE CONTINUOUS QUERY q"))
    assert "questions sent: 4" in report  # of a and of x, two each
    assert "keys shipped there: 8" in report, report
    assert here(one_engine) == there(one_shop)


def test_when_sources_are_asked(one_engine: Engine, one_shop: Shop) -> None:
    """Each second ON COMMIT; else by the query's refreshes, however they come."""
    create(one_engine)
    one_engine.execute("ALTER CONTINUOUS QUERY q SET ON COMMIT")
    assert ("schedule", "EVERY INTERVAL '1' SECOND") in one_engine.execute(
        "DESCRIBE CAPTURE q_remote"
    ).fetchall()
    one_engine.execute("ALTER CONTINUOUS QUERY q SET EVERY 1 HOUR")
    assert ("schedule", "ON DEMAND") in one_engine.execute("DESCRIBE CAPTURE q_remote").fetchall()
    one_shop.run("UPDATE b SET word = 'later' WHERE id = 1")
    one_engine._run_query("q")
    assert here(one_engine) == there(one_shop)
    one_shop.run("UPDATE b SET word = 'latest' WHERE id = 1")
    assert one_engine.execute("REFRESH CAPTURE q_remote").rowcount > 0
    one_engine.execute("ALTER CAPTURE q_remote PAUSE")
    one_engine.execute("ALTER CAPTURE q_remote RESUME")
    one_engine.execute("ALTER CONTINUOUS QUERY q PAUSE")
    one_engine.execute("ALTER CONTINUOUS QUERY q RESUME")
    one_engine.refresh("q")
    assert here(one_engine) == there(one_shop)
    assert json.loads(
        "\n".join(row[0] for row in one_engine.execute("EXPLAIN (FORMAT JSON) CONTINUOUS QUERY q"))
    )
    one_engine.execute("DROP TABLE q_remote CASCADE")
    assert installed(one_shop) == 0
    assert one_engine.catalog.state.captures == one_engine.catalog.state.queries == {}


# ---------------------------------------------------------------- what is refused

REFUSED = [
    ("SELECT a.id FROM a LEFT JOIN b ON a.b = b.id", "an outer join"),
    ("SELECT a.id FROM a FULL JOIN b ON a.b = b.id", "an outer join"),
    ("SELECT id FROM a JOIN b USING (id)", "USING and NATURAL"),
    ("SELECT a.id FROM a JOIN b ON a.b < b.id", "no equality joins b"),
    ("SELECT a.id FROM a, b", "no equality joins b"),
    ("SELECT id FROM t WHERE id IN (SELECT a.b FROM a)", "a stands in a subquery"),
    ("SELECT a.id FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.id = a.b)", "b stands in another SELECT"),
    ("SELECT id FROM a UNION ALL SELECT id FROM b", "b stands in another SELECT"),
    ("SELECT a.id FROM a JOIN k ON a.id = k.id", "k has no primary key"),
    ("SELECT a.id FROM a JOIN u ON a.id = u.id", "nothing tells what changes in u"),
    ("SELECT id FROM t", "CONSISTENCY COMPLETE is for queries over tables that stay"),
]


def test_what_cannot_be_maintained_is_refused(one_engine: Engine, one_shop: Shop) -> None:
    one_engine.execute("CREATE TABLE t (id INT, PRIMARY KEY (id))")
    one_engine.execute("CREATE TABLE u REMOTE FROM shop TABLE 'b'")
    one_engine.execute("CREATE TABLE k (id INT) REMOTE FROM shop TABLE 'b' USING LOG WITH (install = true)")
    for query, said in REFUSED:
        with pytest.raises(CQError, match=said) as caught:
            create(one_engine, query=query)
        assert caught.value.hint, query
        if "CONSISTENCY" not in said:
            assert caught.value.location is not None, query
    assert installed(one_shop) == 0
    create(one_engine)
    for sql in (
        "CREATE OR REPLACE CONTINUOUS QUERY q CONSISTENCY STRONG AS SELECT id FROM a",
        "CREATE OR REPLACE CONTINUOUS QUERY q AS SELECT id FROM t",
        "ALTER CONTINUOUS QUERY q AS SELECT id FROM t",
        "DROP CAPTURE q_remote",
        "ALTER CAPTURE q_remote SET EVERY 1 MINUTE",
        "DROP TABLE a",
        "DROP SOURCE shop",
        "INSERT INTO q_remote SELECT * FROM q_remote",
        "DELETE FROM q_remote",
    ):
        with pytest.raises((AnalysisError, CatalogError)) as caught:
            one_engine.execute(sql)
        assert caught.value.hint, sql
    one_engine.execute("DROP SOURCE shop CASCADE")
    assert installed(one_shop) == 0
    assert one_engine.execute("SHOW CONTINUOUS QUERIES").fetchall() == []


# ---------------------------------------------------------------- what fails


@pytest.mark.parametrize(
    "point", ["sweep.gathered", "sweep.evaluated", "commit.before_catalog", "commit.after_catalog"]
)
@pytest.mark.parametrize("level", ["COMPLETE"])
def test_a_tick_that_is_killed_has_happened_or_has_not(
    one_engine: Engine, one_shop: Shop, level: str, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, shop_with_two = one_engine, one_shop
    create(engine, level)
    dice = random.Random(f"{level} {point}")
    shop_with_two.run("UPDATE b SET word = 'killed' WHERE id = 1")
    change(shop_with_two, dice)

    killed_in_refresh(engine, point, monkeypatch, "q_remote")
    engine.catalog.follow()
    change(shop_with_two, dice)
    if engine.catalog.capture_status("q_remote").state == "FAILED":
        engine.execute("ALTER CAPTURE q_remote RESUME")
    engine.refresh("q")
    assert here(engine) == there(shop_with_two)


def test_create_leaves_nothing_where_it_is_killed(
    one_engine: Engine, one_shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(name: str, *_: object) -> None:
        if name in ("sweep.loaded", "create.computed"):
            raise SourceError("the network is gone")

    with monkeypatch.context() as patched:
        patched.setattr(faults, "point", kill)
        with pytest.raises(SourceError, match="network"):
            create(one_engine)
    assert installed(one_shop) == 0
    assert one_engine.catalog.state.captures == {}
    assert set(one_engine.catalog.state.tables) == {"a", "b"}
    create(one_engine)
    assert here(one_engine) == there(one_shop)


def test_what_a_dead_process_has_begun_is_taken_back(
    one_engine: Engine, one_shop: Shop, monkeypatch: pytest.MonkeyPatch, once: SparkSession, tmp_path: Path
) -> None:
    def kill(name: str, *_: object) -> None:
        if name == "create.computed":
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(faults, "point", kill)
        patched.setattr(remote_queries, "_take_back", lambda *_: None)
        with pytest.raises(Killed):
            create(one_engine)
    assert installed(one_shop) > 0
    one_engine.close()
    with cq_engine.connect(tmp_path / "warehouse", spark=once, scheduler=False) as again:
        assert set(again.catalog.state.tables) == {"a", "b"}
        assert installed(one_shop) == 0
        create(again)
        assert here(again) == there(one_shop)
        again.execute("DROP CONTINUOUS QUERY q")


def test_a_source_that_goes_away_meanwhile(
    one_engine: Engine, one_shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(one_engine)
    one_shop.run("UPDATE a SET b = 2 WHERE id = 1")

    def gone(*_: object) -> None:
        raise SourceError("the network is gone")

    with monkeypatch.context() as patched:
        patched.setattr(Channel, "answers", gone)
        with pytest.raises(SourceError, match="network"):
            one_engine.refresh("q")
    one_engine.execute("ALTER CAPTURE q_remote RESUME")
    one_engine.refresh("q")
    assert here(one_engine) == there(one_shop)


@pytest.mark.parametrize("statement", ["DROP CONTINUOUS QUERY q", "DROP SOURCE shop CASCADE"])
def test_that_a_tick_meets_its_drop_is_no_news(
    one_engine: Engine, one_shop: Shop, statement: str,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """What a query has installed is removed before the query is, so that a tick of another thread may miss it."""
    create(one_engine)
    capturing, release, met = one_engine.capturing, captures._release, []

    def tick() -> None:
        try:
            capturing.refresh("q_remote")
        except CQError as error:
            met.append((error, one_engine.catalog.capture_status("q_remote").state))
            capturing._failed("q_remote", error)

    def released(registry: Registry, dropped: Sequence[Capture]) -> str:
        left = release(registry, dropped)
        if dropped:
            thread = threading.Thread(target=tick)
            thread.start()
            thread.join()
        return left

    monkeypatch.setattr(captures, "_release", released)
    with caplog.at_level("WARNING"):
        one_engine.execute(statement)
    ((error, state),) = met
    assert ("is not as it was" in error.message, state) == (True, "ACTIVE")
    assert caplog.records == []
    assert one_engine.services.ending == set()
    assert installed(one_shop) == 0


def test_what_is_installed_is_looked_after(engine: Engine, shop_with_two: Shop) -> None:
    """A log that is dropped stops the query; TRUNCATE and a new column have all of it computed anew."""
    create(engine)
    cascade = " CASCADE" if shop_with_two.kind == "postgresql" else ""
    if shop_with_two.kind == "sqlite" or shop_with_two.kind == "mariadb":
        shop_with_two.run(f"DROP TRIGGER {LOG}_0_insert")
    else:
        shop_with_two.run(f"DROP FUNCTION {LOG}(){cascade}")
    shop_with_two.run("INSERT INTO a (id, b) VALUES (20, 1)")
    with pytest.raises(SourceError, match="is not as it was"):
        engine.refresh("q")
    with pytest.raises(CatalogError, match="has failed"):
        engine.refresh("q")
    engine.execute("ALTER CAPTURE q_remote RESUME")
    engine.refresh("q")
    assert here(engine) == there(shop_with_two)
    shop_with_two.run("ALTER TABLE b ADD COLUMN more INT")
    shop_with_two.run("UPDATE b SET word = 'eins' WHERE id = 1")
    engine.refresh("q")
    assert here(engine) == there(shop_with_two)
    shop_with_two.run("DELETE FROM a" if shop_with_two.kind == "sqlite" else "TRUNCATE TABLE a")
    shop_with_two.run("INSERT INTO a (id, b) VALUES (1, 2)")
    engine.refresh("q")
    assert here(engine) == there(shop_with_two) == Counter([(1, "two", 1)])


def test_more_changes_than_are_taken_at_once(opened: Callable[..., Engine], one_shop: Shop) -> None:
    engine = opened(Limits(apply_rows=5, sweep_rows=5, sweep_updates=2, sweep_keys=2))
    declare(engine, one_shop)
    create(engine)
    for n in range(30, 38):
        one_shop.run(f"INSERT INTO a (id, b) VALUES ({n}, 1)")
    engine.refresh("q")
    assert here(engine) == there(one_shop)
    for n in range(30, 33):
        one_shop.run(f"DELETE FROM a WHERE id = {n}")
    engine.refresh("q")
    assert here(engine) == there(one_shop)


WRITES = [
    "REPLACE INTO a VALUES ({key}, '{code}', {b})",
    "INSERT OR IGNORE INTO a VALUES ({key}, '{code}', {b})",
    "UPDATE OR REPLACE a SET code = '{code}' WHERE id = {other}",
    "UPDATE OR IGNORE a SET id = {other} WHERE code = '{code}'",
    "UPDATE OR REPLACE a SET id = {other}, b = {b} WHERE code = '{code}'",
    "INSERT INTO a VALUES ({key}, '{code}', {b}) ON CONFLICT DO UPDATE SET b = excluded.b + 1, code = excluded.code || 'x'",
    "DELETE FROM a WHERE id = {other}",
]


def test_replace_in_sqlite_is_seen(opened: Callable[..., Engine], tmp_path: Path) -> None:
    """REPLACE and its like remove rows for which SQLite fires no trigger."""
    file = tmp_path / "replaced.db"
    with closing(sqlite3.connect(file)) as shop:
        shop.executescript(
            "CREATE TABLE a (id INTEGER PRIMARY KEY, code TEXT UNIQUE COLLATE NOCASE, b INT);"
            " CREATE TABLE b (id INTEGER PRIMARY KEY, word TEXT); INSERT INTO b VALUES (1, 'one'), (2, 'two')"
        )
    engine = opened(Limits())
    declare(engine, Shop("sqlite", f"sqlite:///{file}"))
    create(engine, query="SELECT a.id, a.code, b.word FROM a JOIN b ON a.b = b.id")
    dice = random.Random(8)
    for _ in range(5):
        with closing(sqlite3.connect(file)) as shop:
            shop.execute(f"PRAGMA recursive_triggers = {dice.choice(['ON', 'OFF'])}")
            for _ in range(12):
                key, code, b = dice.choice([1, 2, 3, 4, "NULL"]), dice.choice("aAbBcd"), dice.randint(1, 3)
                other = dice.randint(1, 4)
                sql = dice.choice(WRITES).format(key=key, code=code, b=b, other=other)
                with suppress(sqlite3.IntegrityError):
                    shop.execute(sql)
                shop.commit()
            wanted = Counter(shop.execute("SELECT a.id, a.code, b.word FROM a JOIN b ON a.b = b.id"))
        engine.refresh("q")
        assert here(engine) == wanted


MARIADB_WRITES = [
    "REPLACE INTO a VALUES ({key}, '{code}', {b})",
    "INSERT IGNORE INTO a VALUES ({key}, '{code}', {b})",
    "UPDATE IGNORE a SET id = {key} WHERE id = {other}",
    "UPDATE IGNORE a SET code = '{code}' WHERE id = {other}",
    "UPDATE IGNORE a SET id = id + 1, b = {b} ORDER BY id DESC",
    "UPDATE IGNORE a SET b = {b} WHERE code <> '{code}'",
    "UPDATE IGNORE a JOIN b ON a.b = b.id SET a.code = '{code}', b.word = '{code}' WHERE b.id = {b}",
    "INSERT INTO a VALUES ({key}, '{code}', {b}) ON DUPLICATE KEY UPDATE b = {b}, code = UPPER(code)",
    "UPDATE a SET code = IF(code = UPPER(code), LOWER(code), UPPER(code))",
    "DELETE IGNORE FROM a WHERE id = {other}",
]


@pytest.mark.mariadb
def test_what_mariadb_ignores_is_not_taken_for_a_change(
    opened: Callable[..., Engine], mariadb_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """UPDATE IGNORE fires triggers for rows that it leaves as they are."""
    shop = Shop("mariadb", mariadb.fresh(mariadb_server))
    shop.run("CREATE TABLE a (id INT NOT NULL PRIMARY KEY, code VARCHAR(9) UNIQUE, b INT CHECK (b <> 4))")
    shop.run("CREATE TABLE b (id INT NOT NULL PRIMARY KEY, word VARCHAR(9))")
    shop.run("INSERT INTO b VALUES (1, 'one'), (2, 'two')")
    query = "SELECT a.id, a.code, b.word FROM a JOIN b ON a.b = b.id"
    engine = opened(Limits())
    declare(engine, shop)
    create(engine, query=query)
    dice = random.Random(8)
    for _ in range(8):
        for _ in range(8):
            key, other, code = dice.randint(1, 6), dice.randint(1, 6), dice.choice("aAbBcd")
            sql = dice.choice(MARIADB_WRITES).format(key=key, other=other, code=code, b=dice.randint(1, 4))
            with suppress(SourceError):
                shop.run(sql)
        engine.refresh("q")
        with shop.database.connect() as session:
            wanted = Counter(tuple(row) for row in session.connection.exec_driver_sql(query))
        assert here(engine) == wanted
    assert not caplog.messages  # what the log tells was enough each time
