"""RANGES: how often the warehouse and the source are asked, and ranges that grow."""

from __future__ import annotations

import math
import random
import sqlite3
import struct
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine import Engine
from cq_engine.core.columns import Column
from cq_engine.core.limits import Limits
from cq_engine.sources.methods.range_rows import RangeRows, _same
from cq_engine.sources.sql.database import Session

Opened = Callable[..., Engine]


@pytest.fixture
def source(tmp_path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(tmp_path / "shop.db", isolation_level=None)
    connection.execute("CREATE TABLE o (id INTEGER PRIMARY KEY, v)")
    return connection


@pytest.fixture
def opened(once: SparkSession, tmp_path: Path) -> Iterator[Opened]:
    engines = []

    def connect(using: str, limits: Limits, kind: str = "INT") -> Engine:
        engine = cq_engine.connect(tmp_path / "warehouse", spark=once, scheduler=False, limits=limits)
        engines.append(engine)
        engine.execute(f"CREATE TABLE t (id INT PRIMARY KEY, v {kind})")
        engine.execute(f"CREATE SOURCE shop TYPE sqlite WITH (url = 'sqlite:///{tmp_path}/shop.db')")
        engine.execute(f"CREATE CAPTURE c INTO t FROM shop TABLE 'o' USING RANGES ({using}) ON DEMAND")
        return engine

    yield connect
    for engine in engines:
        engine.close()


def counted(monkeypatch: pytest.MonkeyPatch, of: type, name: str) -> list[None]:
    """One None for each call of a method from now on."""
    calls: list[None] = []
    known = getattr(of, name)

    def call(*given: Any, **more: Any) -> Any:
        calls.append(None)
        return known(*given, **more)

    monkeypatch.setattr(of, name, call)
    return calls


@pytest.mark.parametrize("using", ["rows = 5", "rows = 5, CHECKSUM"])
def test_the_warehouse_is_asked_for_many_ranges_at_once(
    opened: Opened, source: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch, using: str
) -> None:
    engine = opened(using, Limits(small_rows=-1))
    source.executemany("INSERT INTO o VALUES (?, ?)", [(n, n) for n in range(200)])
    engine.refresh_capture("c")
    source.execute("UPDATE o SET v = -v WHERE id % 7 = 3")
    source.execute("DELETE FROM o WHERE id = 100")
    asked = counted(monkeypatch, RangeRows, "_ours")
    statements = counted(monkeypatch, Session, "blocks")
    done = engine.refresh_capture("c")
    assert done.rows == 2 * len(range(3, 200, 7)) + 1
    assert len(asked) == 1
    if "CHECKSUM" in using:
        assert len(statements) < 20, "29 ranges have changed"
    assert engine.execute("SELECT * FROM t").fetchall() == source.execute("SELECT * FROM o").fetchall()


def test_ranges_that_grow_are_cut(opened: Opened, source: sqlite3.Connection) -> None:
    """By a few rows, by more than a step takes, at the end, and several at once."""
    engine = opened("rows = 4, CHECKSUM", Limits(pending_rows=24))
    chance = random.Random(3)
    source.executemany("INSERT INTO o VALUES (?, ?)", [(n * 1000, n) for n in range(40)])
    for low, high, count in (
        (8001, 9000, 6),
        (16_001, 17_000, 30),
        (50_000, 60_000, 40),
        (0, 60_000, 300),
        (3, 4, 0),
    ):
        engine.refresh_capture("c")
        keys = chance.sample(range(low, high), count)
        source.executemany(
            "INSERT OR IGNORE INTO o VALUES (?, ?)", [(key, chance.randrange(99)) for key in keys]
        )
        source.execute("UPDATE o SET v = (v * 31 + id) % 9973")
        engine.refresh_capture("c")
        here = engine.execute("SELECT * FROM t ORDER BY id").fetchall()
        assert here == source.execute("SELECT * FROM o ORDER BY id").fetchall()
        ranges = engine.execute("SELECT low, high, rows, checksum FROM c_ranges").fetchall()
        assert sum(rows for *_, rows, _ in ranges) == len(here)
        assert all(rows <= 8 and checksum for *_, rows, checksum in ranges)
        lows, highs = ({each[place] for each in ranges} for place in (0, 1))
        assert lows == highs
        assert len(lows) == len(ranges)
        assert engine.refresh_capture("c").rows_read == 0


def test_ranges_far_apart_are_compared_by_few(
    opened: Opened, source: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is a condition of its own, of which Spark does not take hundreds in one."""
    engine = opened("rows = 2, CHECKSUM", Limits(small_rows=-1))
    source.executemany("INSERT INTO o VALUES (?, ?)", [(n, n) for n in range(440)])
    engine.refresh_capture("c")
    source.execute("UPDATE o SET v = -1 WHERE id % 4 = 3")
    asked = counted(monkeypatch, RangeRows, "_ours")
    assert engine.refresh_capture("c").rows == 220
    assert len(asked) == 3
    assert (
        engine.execute("SELECT * FROM t ORDER BY id").fetchall()
        == source.execute("SELECT * FROM o").fetchall()
    )


def test_ranges_that_are_empty_are_not_read_again(
    opened: Opened, source: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = opened("rows = 2, CHECKSUM", Limits())
    source.executemany("INSERT INTO o VALUES (?, ?)", [(n, n) for n in range(100)])
    engine.refresh_capture("c")
    source.execute("DELETE FROM o WHERE id < 80")
    assert engine.refresh_capture("c").rows == 80
    statements = counted(monkeypatch, Session, "blocks")
    assert engine.refresh_capture("c").rows_read == 0
    assert len(statements) == 2, "50 ranges, and one more"


@pytest.mark.parametrize("size", [1, 3, 20])
def test_more_ranges_than_are_applied_at_once(opened: Opened, source: sqlite3.Connection, size: int) -> None:
    engine = opened(f"rows = {size}, CHECKSUM", Limits(pending_rows=30, apply_rows=24))
    source.executemany("INSERT INTO o VALUES (?, ?)", [(n * 10, n) for n in range(60)])
    for change in (
        "SELECT 1",
        "UPDATE o SET v = v + 1 WHERE id % 30 = 0",
        "INSERT INTO o SELECT id + 1, v FROM o",
    ):
        source.execute(change)
        engine.refresh_capture("c")
        here = engine.execute("SELECT * FROM t ORDER BY id").fetchall()
        assert here == source.execute("SELECT * FROM o ORDER BY id").fetchall()


@pytest.mark.parametrize("using", ["rows = 1", "rows = 3, CHECKSUM", "rows = 100"])
def test_a_key_that_is_null_loses_nothing(opened: Opened, source: sqlite3.Connection, using: str) -> None:
    source.execute("DROP TABLE o")
    source.execute("CREATE TABLE o (id INT PRIMARY KEY, v)")
    source.executemany("INSERT INTO o VALUES (?, ?)", [(n, n) for n in range(6)])
    engine = opened(using, Limits())
    engine.refresh_capture("c")
    source.execute("INSERT INTO o VALUES (NULL, 9)")
    with pytest.raises(cq_engine.SourceError, match="rows with NULL in their key"):
        engine.refresh_capture("c")
    assert len(engine.execute("SELECT * FROM t").fetchall()) == 6
    source.execute("DELETE FROM o WHERE id IS NULL OR id = 2")
    engine.execute("ALTER CAPTURE c RESUME")
    engine.refresh_capture("c")
    assert (
        engine.execute("SELECT * FROM t ORDER BY id").fetchall()
        == source.execute("SELECT * FROM o").fetchall()
    )


@pytest.mark.parametrize("using", ["rows = 1", "rows = 3, CHECKSUM"])
def test_two_rows_with_one_key_are_refused(opened: Opened, source: sqlite3.Connection, using: str) -> None:
    source.execute("DROP TABLE o")
    source.execute("CREATE TABLE o (id INT NOT NULL, v)")
    source.executemany("INSERT INTO o VALUES (?, ?)", [(1, 1), (1, 2), (3, 3)])
    engine = opened(using, Limits())
    with pytest.raises(cq_engine.SourceError, match="one key"):
        engine.refresh_capture("c")


@pytest.mark.parametrize("kind", ["DOUBLE", "FLOAT", "ARRAY<INT>", "STRING COLLATE UTF8_LCASE", "BINARY"])
def test_values_that_look_the_same_are_not(opened: Opened, source: sqlite3.Connection, kind: str) -> None:
    """What is equal and not the same is a change; what is the same is none."""
    nan = math.nan
    steps = {
        "DOUBLE": [0.0, 1.5, None, 0.1],
        "FLOAT": [0.0, 1.5, None, 0.5],
        "ARRAY<INT>": ["[1, 2]", "[1,2]", "[]", None],
        "STRING COLLATE UTF8_LCASE": ["a", "A", "", None, "a"],
        "BINARY": [b"", b"\0", None, struct.pack(">d", nan)],
    }[kind]
    engine = opened("rows = 2", Limits(small_rows=-1), kind)
    source.execute("INSERT INTO o VALUES (1, NULL), (2, NULL), (3, NULL)")
    engine.refresh_capture("c")
    for was, value in zip([None, *steps], steps):
        source.execute("UPDATE o SET v = ? WHERE id = 2", [value])
        done = engine.refresh_capture("c")
        assert (done.rows > 0) is (repr(value).replace(" ", "") != repr(was).replace(" ", "")), (was, value)
        assert engine.refresh_capture("c").rows == 0


@pytest.mark.parametrize(("kind", "held"), [("double", pa.float64()), ("float", pa.float32())])
def test_numbers_are_the_same_where_their_bits_are(kind: str, held: pa.DataType) -> None:
    """SQLite has no -0.0; other sources do."""
    values = [0.0, -0.0, math.nan, None]
    each, other = (
        pa.chunked_array([pa.array([pair[side] for pair in product(values, values)], held)])
        for side in (0, 1)
    )
    found = _same(Column("v", kind), each, other)
    assert found is not None
    assert found.tolist() == [place // 4 == place % 4 for place in range(16)]
