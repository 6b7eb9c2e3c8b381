"""Captures where keys, limits, columns and statements meet."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine import Engine
from cq_engine.core.limits import Limits
from cq_engine.sources.tick import Tick

LOW = Limits(pending_rows=6, apply_rows=12)


@pytest.fixture
def source(tmp_path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(tmp_path / "shop.db", isolation_level=None)
    connection.execute("CREATE TABLE o (id INTEGER PRIMARY KEY, v, region TEXT, ts DATETIME, gone BOOLEAN)")
    return connection


@pytest.fixture
def opened(once: SparkSession, tmp_path: Path) -> Iterator[Callable[..., Engine]]:
    engines = []

    def connect(table: str, limits: Limits | None = None) -> Engine:
        engine = cq_engine.connect(tmp_path / "warehouse", spark=once, scheduler=False, limits=limits)
        engines.append(engine)
        engine.execute(f"CREATE TABLE t ({table})")
        engine.execute(f"CREATE SOURCE shop TYPE sqlite WITH (url = 'sqlite:///{tmp_path}/shop.db')")
        return engine

    yield connect
    for engine in engines:
        engine.close()


def add(source: sqlite3.Connection, *keys: int, v: Any = 1) -> None:
    rows = [(key, v, "EU", f"2026-01-01 00:00:{key:02d}", 0) for key in keys]
    source.executemany("INSERT OR REPLACE INTO o VALUES (?, ?, ?, ?, ?)", rows)


def capture(engine: Engine, using: str, name: str = "c", into: str = "t") -> None:
    engine.execute(f"CREATE CAPTURE {name} INTO {into} FROM shop {using} ON DEMAND")


def state(engine: Engine) -> dict[str, Any]:
    found: dict[str, Any] = engine.execute("SHOW CAPTURES").to_arrow().to_pylist()[0]
    return found


def here(engine: Engine, columns: str = "id", table: str = "t") -> list[tuple[Any, ...]]:
    return sorted(engine.execute(f"SELECT {columns} FROM {table}").fetchall())


def test_a_split_that_ends_halfway_goes_on(opened: Callable[..., Engine], source: sqlite3.Connection) -> None:
    engine = opened("id INT PRIMARY KEY, v INT", LOW)
    add(source, *range(1, 21))
    source.execute("UPDATE o SET v = 'fifteen' WHERE id = 15")
    capture(engine, "TABLE 'o' (id, v) USING RANGES (rows = 4, CHECKSUM)")
    with pytest.raises(cq_engine.SourceError, match="fifteen"):
        engine.refresh_capture("c")
    assert 0 < len(here(engine)) < 15
    source.execute("UPDATE o SET v = 15 WHERE id = 15")
    engine.execute("ALTER CAPTURE c RESUME")
    for change in (
        "SELECT 1",
        "INSERT INTO o (id, v) VALUES (40, 4)",
        "DELETE FROM o WHERE id < 9",
        "UPDATE o SET v = 3",
    ):
        source.execute(change)
        for _ in range(2):
            engine.refresh_capture("c")
        assert here(engine, "id, v") == sorted(source.execute("SELECT id, v FROM o"))


@pytest.mark.parametrize("checksum", ["", ", CHECKSUM"])
def test_most_of_a_table_is_gone(
    opened: Callable[..., Engine], source: sqlite3.Connection, checksum: str
) -> None:
    engine = opened("id INT PRIMARY KEY, v INT", LOW)
    add(source, *range(1, 31))
    capture(engine, f"TABLE 'o' (id, v) USING RANGES (rows = 4{checksum})")
    engine.refresh_capture("c")
    source.execute("DELETE FROM o WHERE id NOT IN (3, 17)")
    engine.refresh_capture("c")
    assert here(engine) == [(3,), (17,)]


@pytest.mark.parametrize("kind", ["STRING", "STRING COLLATE UTF8_LCASE", "BINARY"])
def test_a_key_that_is_ordered_otherwise_here(
    opened: Callable[..., Engine], source: sqlite3.Connection, kind: str
) -> None:
    engine = opened(f"id {kind} PRIMARY KEY, v INT")
    add(source, *range(1, 13))
    with pytest.raises(cq_engine.AnalysisError, match="orders it otherwise"):
        capture(engine, "TABLE 'o' (id, v) USING RANGES (rows = 2)")


def test_purging_leaves_what_others_capture(
    opened: Callable[..., Engine], source: sqlite3.Connection
) -> None:
    engine = opened("id INT PRIMARY KEY, region STRING")
    engine.execute("CREATE TABLE u (id INT PRIMARY KEY, region STRING)")
    add(source, 1, 2)
    source.execute("UPDATE o SET region = 'US' WHERE id = 2")
    using = "USING TIMESTAMP (ts, DELETED gone) WITH (purge = true)"
    capture(engine, f"TABLE 'o' (id, region) WHERE 'region = ''EU''' {using}")
    capture(engine, f"TABLE 'o' (id, region) WHERE 'region = ''US''' {using}", "d", "u")
    for name in "cd":
        engine.refresh_capture(name)
    source.execute("UPDATE o SET gone = 1, ts = '2026-01-01 00:01:00'")
    engine.refresh_capture("c")
    assert (here(engine), source.execute("SELECT id FROM o").fetchall()) == ([], [(2,)])
    engine.refresh_capture("d")
    assert (here(engine, table="u"), source.execute("SELECT id FROM o").fetchall()) == ([], [])


@pytest.mark.parametrize("limits", [None, Limits(pending_rows=1, small_rows=-1)], ids=["driver", "spark"])
@pytest.mark.parametrize("using", ["COPY", "CHECKSUM", "RANGES", "TIMESTAMP (ts)"])
def test_columns_of_ones_own_stay(
    opened: Callable[..., Engine], source: sqlite3.Connection, using: str, limits: Limits | None
) -> None:
    engine = opened("id INT PRIMARY KEY, v INT, mine STRING", limits)
    add(source, 1, 2)
    capture(engine, f"TABLE 'o' (id, v) USING {using}")
    engine.refresh_capture("c")
    engine.execute("UPDATE t SET mine = 'x'")
    newest = engine.catalog.newest_version
    engine.refresh_capture("c")
    assert engine.catalog.newest_version == newest
    add(source, 2, 3, v=7)
    engine.refresh_capture("c")
    assert here(engine, "id, v, mine") == [(1, 1, "x"), (2, 7, "x"), (3, 7, None)]


@pytest.mark.parametrize("using", ["COPY", "CHECKSUM"])
def test_keys_that_are_not_unique(
    opened: Callable[..., Engine], source: sqlite3.Connection, using: str
) -> None:
    engine = opened("k INT PRIMARY KEY, v INT")
    source.execute("CREATE TABLE p (k INTEGER, v INTEGER)")
    source.executemany("INSERT INTO p VALUES (?, ?)", [(1, 1), (1, 2), (2, 1)])
    capture(engine, f"TABLE 'p' USING {using}")
    with pytest.raises(cq_engine.SourceError, match="several rows of the source have one key") as error:
        engine.refresh_capture("c")
    assert "k = 1" in error.value.detail
    assert here(engine, "k") == []


def test_a_failing_tick_of_a_paused_capture(
    opened: Callable[..., Engine], source: sqlite3.Connection, tmp_path: Path
) -> None:
    engine = opened("id INT PRIMARY KEY")
    add(source, 1)
    capture(engine, "TABLE 'o' USING COPY")
    engine.refresh_capture("c")
    engine.execute("ALTER CAPTURE c PAUSE")
    (tmp_path / "shop.db").rename(tmp_path / "away")
    with pytest.raises(cq_engine.SourceUnavailableError):
        engine.refresh_capture("c")
    assert state(engine)["state"] == "PAUSED"
    (tmp_path / "away").rename(tmp_path / "shop.db")
    engine.refresh_capture("c")
    assert state(engine)["state"] == "PAUSED"


def test_a_tick_of_a_capture_that_is_another_one_now(
    opened: Callable[..., Engine], source: sqlite3.Connection
) -> None:
    engine = opened("id INT PRIMARY KEY")
    add(source, 1)
    capture(engine, "TABLE 'o' USING TIMESTAMP (ts) WITH (initial = 'none')")
    tick = Tick(engine.services, engine.catalog.state.captures["c"])
    engine.execute("DROP CAPTURE c")
    capture(engine, "TABLE 'o' USING TIMESTAMP (ts)")
    with pytest.raises(cq_engine.ConflictError):
        tick.move({"high": '["2030-01-01"]'})
    engine.refresh_capture("c")
    assert here(engine) == [(1,)]


def test_a_timestamp_of_several_types(opened: Callable[..., Engine], source: sqlite3.Connection) -> None:
    engine = opened("id INT PRIMARY KEY")
    source.execute("CREATE TABLE p (id INTEGER PRIMARY KEY, ts)")
    source.executemany("INSERT INTO p VALUES (?, ?)", [(1, 5), (2, "2026-01-01")])
    capture(engine, "TABLE 'p' USING TIMESTAMP (ts)")
    with pytest.raises(cq_engine.SourceError, match="several types"):
        engine.refresh_capture("c")


# ---------------------------------------------------------------- Debezium


@pytest.fixture
def log(opened: Callable[..., Engine], source: sqlite3.Connection, tmp_path: Path) -> tuple[Engine, Path]:
    source.close()
    engine = opened("id INT PRIMARY KEY", LOW)
    path = tmp_path / "log.jsonl"
    path.touch()
    engine.execute(f"CREATE SOURCE dbz TYPE debezium WITH (path = '{path}')")
    return engine, path


def envelopes(*keys: int) -> str:
    lines = ({"op": "r", "after": {"id": key}, "source": {"txId": 5, "ts_ms": 1}} for key in keys)
    return "".join(json.dumps(line) + "\n" for line in lines)


def test_a_transaction_that_is_too_large_is_taken_in_parts(log: tuple[Engine, Path]) -> None:
    engine, path = log
    path.write_text(envelopes(*range(40)))
    engine.execute("CREATE CAPTURE c INTO t FROM dbz USING LOG ON DEMAND")
    assert len(engine.refresh_capture("c").commit_versions) > 1
    assert len(here(engine)) == 40


def test_a_tombstone_does_not_end_a_transaction(log: tuple[Engine, Path]) -> None:
    engine, path = log
    path.write_text(envelopes(*range(6)) + "null\n" + envelopes(6, 7))
    engine.execute("CREATE CAPTURE c INTO t FROM dbz USING LOG ON DEMAND")
    assert len(engine.refresh_capture("c").commit_versions) == 1
    assert len(here(engine)) == 8


def test_envelopes_have_no_restriction(log: tuple[Engine, Path]) -> None:
    with pytest.raises(cq_engine.AnalysisError, match="WHERE is not for"):
        log[0].execute("CREATE CAPTURE c INTO t FROM dbz WHERE 'id > 1' USING LOG")


def test_poison_is_put_aside_from_now_on(log: tuple[Engine, Path]) -> None:
    engine, path = log
    path.write_text(envelopes(1) + "{\n" + envelopes(2))
    engine.execute("CREATE CAPTURE c INTO t FROM dbz USING LOG ON DEMAND")
    with pytest.raises(cq_engine.SourceError):
        engine.refresh_capture("c")
    engine.execute("ALTER CAPTURE c SET WITH (on_poison = 'dead_letter')")
    engine.execute("ALTER CAPTURE c RESUME")
    engine.refresh_capture("c")
    assert here(engine) == [(1,), (2,)]
    assert here(engine, "envelope", "c_dead") == [("{",)]


def test_a_timestamp_after_which_none_comes(
    opened: Callable[..., Engine], source: sqlite3.Connection
) -> None:
    engine = opened("id INT PRIMARY KEY, v INT")
    add(source, 1, 2)
    capture(engine, "TABLE 'o' (id, v) USING TIMESTAMP (ts)")
    engine.refresh_capture("c")
    source.execute("UPDATE o SET ts = 'infinity' WHERE id = 1")
    with pytest.raises(cq_engine.SourceError, match="ts of o is infinity in some row"):
        engine.refresh_capture("c")
    add(source, 1, 3)
    engine.execute("ALTER CAPTURE c RESUME")
    engine.refresh_capture("c")
    assert here(engine) == [(1,), (2,), (3,)]
