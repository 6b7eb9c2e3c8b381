"""Captures into tables WITHOUT SNAPSHOT: what they bring is partial, and the views over it are right."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine import Engine
from cq_engine.core.errors import AnalysisError
from cq_engine.core.limits import Limits
from cq_engine.sources.sql.database import Session
from cq_engine.sources.tick import Tick

LOW = Limits(pending_rows=6)


@pytest.fixture
def source(tmp_path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(tmp_path / "shop.db", isolation_level=None)
    connection.execute("CREATE TABLE o (id INTEGER PRIMARY KEY, c INT, v INT, ts DATETIME, gone BOOLEAN)")
    connection.execute("CREATE TABLE c (id INTEGER PRIMARY KEY, name TEXT, ts DATETIME, gone BOOLEAN)")
    return connection


@pytest.fixture
def engine(source: sqlite3.Connection, once: SparkSession, tmp_path: Path) -> Iterator[Engine]:
    made = cq_engine.connect(tmp_path / "warehouse", spark=once, scheduler=False, limits=LOW)
    made.execute(f"CREATE SOURCE shop TYPE sqlite WITH (url = 'sqlite:///{tmp_path}/shop.db')")
    made.execute("CREATE TABLE o (id INT, c INT, v INT, PRIMARY KEY (id)) WITHOUT SNAPSHOT")
    made.execute("CREATE TABLE c (id INT, name STRING, PRIMARY KEY (id)) WITHOUT SNAPSHOT")
    yield made
    made.close()


def rows(engine: Engine, query: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in engine.execute(query).to_arrow().to_pylist())


VIEW = "SELECT o.id, o.v, c.name FROM o JOIN c ON o.c = c.id WHERE o.v > 1"


class Clock:
    """Times of the source, each later than the one before."""

    def __init__(self) -> None:
        self.seconds = 0

    def __call__(self) -> str:
        self.seconds += 1
        return f"2026-01-01 {self.seconds // 3600:02d}:{self.seconds // 60 % 60:02d}:{self.seconds % 60:02d}"


def test_timestamps_with_a_delete_flag(engine: Engine, source: sqlite3.Connection) -> None:
    """The paper's audit columns (Figure 2): upserts and partial deletions, and nothing is kept of the rows but the view."""
    choose, now = random.Random(3), Clock()
    source.executemany("INSERT INTO o VALUES (?, ?, ?, ?, 0)", [(n, n % 4, n % 3, now()) for n in range(20)])
    source.executemany("INSERT INTO c VALUES (?, ?, ?, 0)", [(n, f"n{n}", now()) for n in range(3)])
    for name in ("o", "c"):
        engine.execute(
            f"CREATE CAPTURE {name}_in INTO {name} FROM shop TABLE '{name}' USING TIMESTAMP (ts, DELETED gone)"
            " WITH (overlap = '0 seconds') ON DEMAND"
        )
    engine.execute("CREATE DESTINATION there TYPE table WITH (mode = 'merge')")
    engine.execute(
        f"CREATE CONTINUOUS QUERY v COMPUTE TRANSACTIONAL DELTA ON DEMAND DESTINATION there AS {VIEW}"
    )
    for _ in range(4):
        for name in ("o", "c"):
            engine.execute(f"REFRESH CAPTURE {name}_in")
        engine.refresh("v")
        engine.drain()
        alive = VIEW.replace("WHERE", "WHERE NOT o.gone AND NOT c.gone AND")
        assert rows(engine, "SELECT * FROM there") == sorted(source.execute(alive).fetchall())
        for _ in range(5):
            key = choose.randrange(25)
            source.execute("INSERT OR REPLACE INTO o VALUES (?, ?, ?, ?, ?)",
                           (key, choose.randrange(5), choose.randrange(4), now(), choose.random() < 0.3))  # fmt: skip
        source.execute("INSERT OR REPLACE INTO c VALUES (?, ?, ?, ?)",
                       (choose.randrange(5), f"m{choose.random():.3f}", now(), choose.random() < 0.3))  # fmt: skip
    kinds = {row[0] for row in rows(engine, "SELECT _change_type FROM o CHANGES FROM VERSION 1")}
    assert kinds == {"upsert", "partial_delete"}


def test_envelopes(engine: Engine, tmp_path: Path) -> None:
    directory = tmp_path / "envelopes"
    directory.mkdir()
    engine.execute(f"CREATE SOURCE log TYPE debezium WITH (path = '{directory}')")
    engine.execute("CREATE CAPTURE c_in INTO c FROM log USING LOG ON DEMAND")
    engine.execute("CREATE DESTINATION there TYPE table WITH (mode = 'merge')")
    engine.execute(
        "CREATE CONTINUOUS QUERY v COMPUTE DELTA ON DEMAND DESTINATION there AS SELECT id, name FROM c WHERE name <> 'x'"
    )

    def said(op: str, before: dict[str, Any] | None, after: dict[str, Any] | None) -> str:
        return json.dumps({"op": op, "before": before, "after": after, "ts_ms": 1}) + "\n"

    lines = [
        said("c", None, {"id": 1, "name": "a"}),
        said("r", None, {"id": 2, "name": "b"}),
        said("u", None, {"id": 1, "name": "x"}),
        said("u", {"id": 2, "name": "b"}, {"id": 3, "name": "b"}),
        said("d", {"id": 9, "name": "q"}, None),
    ]
    for n, line in enumerate(lines):
        with (directory / "log.jsonl").open("a") as file:
            file.write(line)
        engine.execute("REFRESH CAPTURE c_in")
        engine.refresh("v")
        engine.drain()
        expected = [[(1, "a")], [(1, "a"), (2, "b")], [(2, "b")], [(3, "b")], [(3, "b")]]
        assert rows(engine, "SELECT * FROM there") == expected[n]
    with (directory / "log.jsonl").open("a") as file:
        file.write(said("t", None, None))
    with pytest.raises(cq_engine.CQError, match="compared as a whole"):
        engine.execute("REFRESH CAPTURE c_in")


@pytest.mark.parametrize("using", ["CHECKSUM", "COPY", "RANGES (rows = 100)", "VIEW 'SELECT * FROM o'"])
def test_methods_that_compare(engine: Engine, source: sqlite3.Connection, using: str) -> None:
    table = "" if using.startswith("VIEW") else "TABLE 'o' "
    with pytest.raises(AnalysisError, match="WITHOUT SNAPSHOT"):
        engine.execute(f"CREATE CAPTURE c_in INTO o FROM shop {table}USING {using} ON DEMAND")


def test_the_first_rows_are_begun_again(
    engine: Engine, source: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between two of their commits."""
    source.executemany("INSERT INTO o VALUES (?, 1, 1, '2026-01-01', 0)", [(n,) for n in range(30)])
    monkeypatch.setattr(Session.blocks, "__defaults__", (5,))
    engine.execute("CREATE CAPTURE o_in INTO o FROM shop TABLE 'o' USING TIMESTAMP (ts) ON DEMAND")
    apply: Callable[..., None] = Tick.apply
    calls = []

    def killed(tick: Tick, *given: Any, **more: Any) -> None:
        calls.append(given)
        if len(calls) == 2:
            raise KeyboardInterrupt
        apply(tick, *given, **more)

    monkeypatch.setattr(Tick, "apply", killed)
    with pytest.raises(KeyboardInterrupt):
        engine.execute("REFRESH CAPTURE o_in")
    monkeypatch.setattr(Tick, "apply", apply)
    engine.execute("REFRESH CAPTURE o_in")
    keys = rows(engine, "SELECT DISTINCT id FROM o CHANGES FROM VERSION 1")
    assert keys == [(n,) for n in range(30)]


def test_rows_of_the_overlap_come_once(
    engine: Engine, source: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are read with every tick, and brought as often as they have changed."""
    engine.execute(
        "CREATE CAPTURE o_in INTO o FROM shop TABLE 'o' USING TIMESTAMP (ts, DELETED gone) WITH (overlap = '1 hour') ON DEMAND"
    )

    def tick(*changes: tuple[int, int, int]) -> list[tuple[Any, ...]]:
        for key, value, gone in changes:
            source.execute(
                "INSERT OR REPLACE INTO o VALUES (?, 1, ?, '2026-01-01 00:00:01', ?)", (key, value, gone)
            )
        before = engine.catalog.newest_version
        engine.execute("REFRESH CAPTURE o_in")
        if engine.catalog.newest_version == before:
            return []
        return rows(engine, f"SELECT id, v, _change_type FROM o CHANGES FROM VERSION {before + 1}")

    tick((1, 5, 0), (2, 5, 0))
    tick()  # after the first rows, nothing is noted
    assert tick() == []
    assert tick((1, 6, 0)) == [(1, 6, "upsert")]
    assert tick((1, 5, 0), (2, 5, 1)) == [(1, 5, "upsert"), (2, None, "partial_delete")]
    assert tick() == []
    assert tick((2, 5, 0), (3, 1, 0)) == [(2, 5, "upsert"), (3, 1, "upsert")]
    monkeypatch.setattr("cq_engine.sources.methods.seen.MOST", 2)
    assert len(tick()) == 0
    assert len(tick()) == 3, "more than are noted: they come again"
    monkeypatch.undo()
    assert len(tick()) == 3
    assert tick() == []
    engine.execute("DROP CAPTURE o_in")
    assert [row[0] for row in rows(engine, "SHOW TABLES")] == ["c", "o"]
