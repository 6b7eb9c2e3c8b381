"""CREATE, ALTER, DROP, SHOW and DESCRIBE DESTINATION: what is declared, where each one stands, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine import AnalysisError, CatalogError, DestinationError, Engine, ManualClock
from cq_engine.destinations import Retry
from tests.lifecycle.asking import error_of, shown

START = datetime(2026, 1, 1, tzinfo=timezone.utc)


@pytest.fixture
def engine(warehouse: Path, once: SparkSession) -> Iterator[Engine]:
    with cq_engine.connect(warehouse, spark=once, scheduler=False, clock=ManualClock(START)) as opened:
        opened.delivery.retry = Retry(attempts=2, base=0.0)
        opened.execute("CREATE TABLE t (id INT PRIMARY KEY, amt INT)")
        opened.execute("INSERT INTO t VALUES (1, 10)")
        yield opened


def test_several_destinations_of_several_queries(engine: Engine, warehouse: Path, once: SparkSession) -> None:
    got: list[tuple[str, Any]] = []
    assert (
        "until its function is registered" in engine.execute("CREATE DESTINATION hook TYPE callback").message
    )
    engine.execute("CREATE DESTINATION log TYPE table WITH (backoff = 2 seconds)")
    assert (
        engine.execute("CREATE DESTINATION IF NOT EXISTS log TYPE table").message == "destination log exists"
    )
    engine.execute("CREATE CONTINUOUS QUERY a DESTINATION log, hook AS SELECT id, amt FROM t WHERE amt > 5")
    engine.execute(
        "CREATE CONTINUOUS QUERY b DESTINATION hook, TABLE log AS SELECT id, amt FROM t WHERE amt < 50"
    )
    engine.callback("hook")(lambda batch: got.extend((batch.query, delta.new) for delta in batch))
    engine.execute("INSERT INTO t VALUES (2, 20), (3, 60)")
    engine.drain()
    assert sorted(got) == [("a", (2, 20)), ("a", (3, 60)), ("b", (2, 20))]
    assert sorted(engine.execute("SELECT id FROM log").fetchall()) == [(2,), (2,), (3,)]
    rows = shown(
        engine, "query", "destination", "type", "state", "lag_versions", "lag_seconds", "rows", "dead"
    )
    assert rows == [
        ("a", "log", "table", "ACTIVE", 0, 0.0, 2, 0),
        ("a", "hook", "callback", "ACTIVE", 0, 0.0, 2, 0),
        ("b", "hook", "callback", "ACTIVE", 0, 0.0, 1, 0),
        ("b", "log", "table", "ACTIVE", 0, 0.0, 1, 0),
    ]
    facts = engine.execute("DESCRIBE DESTINATION log").fetchall()
    assert ("option", "backoff = 2 SECONDS") in facts
    assert [value.split(",")[0] for name, value in facts if name == "query"] == ["a", "b"]
    engine.close()
    with cq_engine.connect(warehouse, spark=once, scheduler=False) as again:
        assert again.catalog.state.destinations["log"].options == (("backoff", "2 SECONDS"),)


def test_pause_and_resume(engine: Engine) -> None:
    got: list[int] = []
    engine.callback("hook")(lambda batch: got.extend(delta.new[0] for delta in batch))
    engine.execute("CREATE CONTINUOUS QUERY q DESTINATION TABLE log, CALLBACK hook AS SELECT id FROM t")
    engine.execute("ALTER DESTINATION hook PAUSE")  # one that only the query names
    engine.execute("ALTER DESTINATION log PAUSE")
    engine.execute("INSERT INTO t VALUES (2, 20)")
    engine.clock.set(START + timedelta(seconds=30))  # type: ignore[attr-defined]
    engine.execute("INSERT INTO t VALUES (3, 30)")
    engine.drain()
    assert got == []
    assert engine.execute("SELECT count(*) FROM log").fetchall() == [(0,)]
    columns = ("destination", "state", "delivered", "lag_versions", "lag_seconds")
    assert shown(engine, *columns) == [("log", "PAUSED", 1, 2, 30.0), ("hook", "PAUSED", 1, 2, 30.0)]
    engine.execute("ALTER DESTINATION hook RESUME")
    engine.execute("ALTER DESTINATION log RESUME")
    engine.drain()
    assert got == [2, 3]
    assert engine.execute("SELECT count(*) FROM log").fetchall() == [(2,)]


def test_replay_and_skip(engine: Engine) -> None:
    got: list[int] = []
    engine.callback("hook")(lambda batch: got.extend(delta.new[0] for delta in batch))
    engine.execute("CREATE CONTINUOUS QUERY q DESTINATION hook AS SELECT id FROM t")
    for number in (2, 3, 4):
        engine.execute(f"INSERT INTO t VALUES ({number}, 0)")
    engine.drain()
    engine.execute("ALTER DESTINATION hook REPLAY FROM VERSION 2")
    engine.drain()
    assert got == [2, 3, 4, 3, 4]
    engine.execute("ALTER DESTINATION hook PAUSE")
    for number in (5, 6):
        engine.execute(f"INSERT INTO t VALUES ({number}, 0)")
    engine.drain()
    engine.execute("ALTER DESTINATION hook SKIP FOR q TO VERSION 5")
    engine.execute("ALTER DESTINATION hook RESUME")
    engine.drain()
    assert got[5:] == [6]
    for sql, said in {
        "REPLAY FROM VERSION 9": "has received q up to version 6",
        "SKIP TO VERSION 6": "has received q up to version 6",
        "SKIP TO VERSION 9": "has processed version 6",
        "REPLAY FOR nobody FROM VERSION 1": "no continuous query nobody",
    }.items():
        assert said in error_of(engine, f"ALTER DESTINATION hook {sql}").message
    engine.catalog.forget(lambda: dict.fromkeys(engine.catalog.view.layouts, 3), logs=True)
    error = error_of(engine, "ALTER DESTINATION hook REPLAY FROM VERSION 1")
    assert "not kept any more" in error.message
    assert "REPLAY FROM VERSION 3" in error.hint


def test_what_is_poison_goes_to_the_dead_letters(engine: Engine) -> None:
    """One commit of three is refused, by a callback and by a table's constraint; the others arrive, in order."""
    got: list[int] = []

    @engine.callback("hook")
    def hook(batch: cq_engine.DeltaBatch) -> None:
        if batch.commit_version == 3:
            raise ValueError("poison")
        got.extend(delta.new[0] for delta in batch if delta.new)

    options = "WITH (on_failure = 'dead_letter', max_attempts = 3, backoff = '0 seconds')"
    engine.execute("CREATE TABLE log (id INT, amt INT NOT NULL)")
    assert "appends to table log" in engine.execute(f"CREATE DESTINATION log TYPE table {options}").message
    engine.execute(f"CREATE DESTINATION hook TYPE callback {options}")
    engine.execute("CREATE CONTINUOUS QUERY q DESTINATION log, hook AS SELECT id, amt FROM t")
    for number, amt in ((2, 20), (3, "NULL"), (4, 40)):
        engine.execute(f"INSERT INTO t VALUES ({number}, {amt})")
    engine.drain()
    assert got == [2, 4]
    assert sorted(engine.execute("SELECT id FROM log").fetchall()) == [(2,), (4,)]
    dead = "SELECT query, marker, key, new, old, commit_version, attempts, error FROM {}_dead"
    for name, said in {"log": "NULL for column amt", "hook": "poison"}.items():
        ((query, marker, key, new, old, version, attempts, error),) = engine.execute(
            dead.format(name)
        ).fetchall()
        assert (query, marker, json.loads(key), json.loads(new)) == (
            "q",
            "I",
            {"id": 3},
            {"id": 3, "amt": None},
        )
        assert (old, version, attempts) == (None, 3, 3)
        assert said in error
    assert shown(engine, "destination", "rows", "failures", "dead") == [("log", 2, 0, 1), ("hook", 2, 0, 1)]
    engine.execute("DROP TABLE hook_dead")
    engine.execute("ALTER DESTINATION hook REPLAY FROM VERSION 2")
    with pytest.raises(DestinationError, match="hook"):
        engine.drain()
    engine.execute("ALTER DESTINATION hook SET WITH (on_failure = dead_letter)")
    engine.drain()
    assert engine.execute("SELECT count(*) FROM hook_dead").fetchall() == [(1,)]


def test_a_destination_that_fails_too_often_rests(engine: Engine) -> None:
    tries: list[int] = []
    broken = [True]

    @engine.callback("hook")
    def hook(batch: cq_engine.DeltaBatch) -> None:
        tries.append(batch.commit_version)
        if broken[0]:
            raise ValueError("down")

    engine.execute("CREATE DESTINATION hook TYPE callback WITH (on_failure = pause, max_attempts = 2)")
    engine.execute("CREATE CONTINUOUS QUERY q DESTINATION hook AS SELECT id FROM t")
    engine.execute("INSERT INTO t VALUES (2, 0)")
    engine.drain()
    engine.drain()
    assert tries == [2, 2]
    ((state, failures, error),) = shown(engine, "state", "failures", "error")
    assert (state, failures) == ("PAUSED", 2)
    assert "down" in error
    broken[0] = False
    engine.execute("ALTER DESTINATION hook RESUME")
    engine.drain()
    assert shown(engine, "state", "failures", "rows") == [("ACTIVE", 0, 1)]


def test_dropping(engine: Engine) -> None:
    engine.execute("CREATE DESTINATION log TYPE table")
    engine.execute("CREATE CONTINUOUS QUERY q DESTINATION log, CALLBACK hook AS SELECT id FROM t")
    error = error_of(engine, "DROP DESTINATION log")
    assert (error.message, error.detail) == ("destination log is in use", "q delivers to it")
    engine.execute("DROP DESTINATION log CASCADE")
    engine.execute("INSERT INTO t VALUES (2, 0)")
    engine.refresh("q")
    assert [cursor.destination for cursor in engine.catalog.cursors("q")] == ["callback:hook"]
    assert engine.execute("SELECT count(*) FROM log").fetchall() == [(0,)], "the table stays"
    assert engine.execute("DROP DESTINATION IF EXISTS log").message == "there is no destination log"
    engine.execute("CREATE DESTINATION spare TYPE table")
    assert shown(engine, "query", "destination", "state")[-1] == (None, "spare", "UNUSED")
    engine.execute("DROP DESTINATION spare")


@pytest.mark.parametrize(
    ("sql", "message", "hint", "column"),
    [
        ("CREATE DESTINATION x TYPE tabel", "there is no type tabel of destinations", "did you mean table?", 27),
        ("CREATE DESTINATION x TYPE kafka", "a destination of type kafka needs the option url", "kafka://host", 27),
        (
            "CREATE DESTINATION x TYPE table WITH (max_attemps = 3)",
            "there is no option max_attemps of a destination of type table", "did you mean max_attempts?", 39,
        ),
        ("CREATE DESTINATION x TYPE callback WITH (mode = 'merge')", "there is no option mode", "on_failure", 42),
        (
            "CREATE DESTINATION x TYPE table WITH (max_attempts = 0)", "max_attempts = '0' is not possible",
            "max_attempts = 5", 39,
        ),
        ("CREATE DESTINATION x TYPE table WITH (backoff = soon)", "backoff = 'soon'", "'2 seconds'", 39),
        ("ALTER DESTINATION used SET WITH (on_failure = no)", "on_failure = 'no'", "retry, dead_letter or pause", 34),
        ("CREATE DESTINATION Used TYPE table", "used exists already", "ALTER DESTINATION used", 20),
        ("CREATE DESTINATION q TYPE table", "there is a continuous query q already", "another name", 20),
        ("CREATE DESTINATION log TYPE callback", "q delivers to TABLE log already", "another name", 20),
        ("ALTER DESTINATION usd PAUSE", "there is no destination usd", "did you mean used?", 19),
        ("DROP DESTINATION nowhere", "there is no destination nowhere", "SHOW DESTINATIONS", 18),
        ("DESCRIBE DESTINATION nowhere", "there is no destination nowhere", "SHOW DESTINATIONS", 22),
        ("ALTER DESTINATION used REPLAY FROM VERSION 1", "no queries deliver to used", "DESTINATION names it", 19),
        (
            "CREATE CONTINUOUS QUERY r DESTINATION CALLBACK used AS SELECT id FROM t",
            "destination used is no CALLBACK", "write DESTINATION used", None,
        ),
    ],
)  # fmt: skip
def test_errors(shared: Engine, sql: str, message: str, hint: str, column: int | None) -> None:
    error = error_of(shared, sql)
    assert isinstance(error, AnalysisError | CatalogError | DestinationError)
    assert message in error.message
    assert hint in error.hint
    assert (error.location and error.location.column) == column
    assert set(shared.catalog.state.destinations) == {"used"}


@pytest.fixture(scope="module")
def shared(once: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with cq_engine.connect(tmp_path_factory.mktemp("shared"), spark=once, scheduler=False) as opened:
        opened.execute("CREATE TABLE t (id INT PRIMARY KEY)")
        opened.execute("CREATE CONTINUOUS QUERY q DESTINATION TABLE log AS SELECT id FROM t")
        opened.execute("CREATE DESTINATION used TYPE table")
        yield opened
