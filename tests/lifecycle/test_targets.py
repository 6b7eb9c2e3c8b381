"""Destinations outside of the warehouse, as a user has them: Delta tables and databases."""

from __future__ import annotations

import os
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import cq_engine
from cq_engine import Engine
from cq_engine.destinations import Retry
from tests import postgres
from tests.lifecycle.asking import error_of, shown
from tests.limits import limited

SUMS = "SELECT k, count(*) AS n, sum(amt) AS total FROM t GROUP BY k"


@pytest.fixture
def engine(warehouse: Path, once: SparkSession) -> Iterator[Engine]:
    with cq_engine.connect(warehouse, spark=once, scheduler=False) as opened:
        opened.delivery.retry = Retry(attempts=2, base=0.0)
        opened.execute("CREATE TABLE t (id INT PRIMARY KEY, k STRING, amt DECIMAL(10,2))")
        yield opened


def by_sqlite(file: Path, table: str = "sums") -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(file)) as connection:
        return connection.execute(f"SELECT * FROM {table}").fetchall()


def by_delta(path: Path) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in DeltaTable(path).to_pyarrow_table().to_pylist()]


def by_duckdb(path: Path) -> list[tuple[Any, ...]]:
    rows = DeltaTable(path).to_pyarrow_table()
    assert rows is not None
    return duckdb.sql("SELECT * FROM rows").fetchall()


def numbers(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """For comparison: SQLite has no decimals."""
    return sorted(((k, n, None if x is None else float(x)) for k, n, x in rows), key=repr)


def change(engine: Engine, dice: random.Random, number: int) -> None:
    """A transaction of several statements."""
    with engine.transaction() as tx:
        tx.insert("t", [(number * 3 + n, dice.choice(["a", "b", "c", None]), Decimal(dice.randint(-99, 99))) for n in range(3)])  # fmt: skip
        tx.execute(f"UPDATE t SET amt = amt + 1 WHERE id % 5 = {dice.randint(0, 4)}")
        tx.execute(f"DELETE FROM t WHERE id % 7 = {dice.randint(0, 6)}")


def test_a_key_that_is_written_anew(engine: Engine, tmp_path: Path) -> None:
    """A collation takes the old and the new spelling for one key, the targets do not."""
    lake, file = tmp_path / "lake", tmp_path / "x.db"
    engine.execute("CREATE TABLE u (s STRING COLLATE UTF8_LCASE PRIMARY KEY, v INT)")
    engine.execute(f"CREATE DESTINATION lake TYPE delta WITH (path = '{lake}', mode = 'merge')")
    options = f"url = 'sqlite:///{file}', table = 'sums', mode = 'merge'"
    engine.execute(f"CREATE DESTINATION sums TYPE database WITH ({options})")
    engine.execute("CREATE CONTINUOUS QUERY q ON DEMAND DESTINATION lake, sums AS SELECT s, v FROM u")
    for statements, wanted in (
        (("INSERT INTO u VALUES ('ABC', 1), ('x', 2)",), [("ABC", 1), ("x", 2)]),
        (("UPDATE u SET s = 'Abc' WHERE v = 1",), [("Abc", 1), ("x", 2)]),
        (("UPDATE u SET s = 'abc', v = 3 WHERE v = 1", "UPDATE u SET s = 'aBC' WHERE v = 3"), [("aBC", 3), ("x", 2)]),
        (("UPDATE u SET s = 'abC' WHERE v = 3", "DELETE FROM u WHERE v = 3"), [("x", 2)]),
    ):  # fmt: skip
        for statement in statements:
            engine.execute(statement)
        engine.refresh("q")
        assert sorted(by_sqlite(file)) == wanted
        assert sorted(by_delta(lake)) == wanted


@pytest.mark.parametrize("mode", ["COMPRESSED", "TRANSACTIONAL"])
def test_targets_have_the_result_and_the_history(engine: Engine, tmp_path: Path, mode: str) -> None:
    dice, lake, log, file = random.Random(3), tmp_path / "lake", tmp_path / "log", tmp_path / "x.db"
    change(engine, dice, 0)
    engine.execute(f"CREATE DESTINATION lake TYPE delta WITH (path = '{lake}', mode = 'merge')")
    engine.execute(f"CREATE DESTINATION log TYPE delta WITH (path = '{log}')")
    for name, kind in (("sums", "merge"), ("events", "history")):
        options = f"url = 'sqlite:///{file}', table = '{name}', mode = '{kind}'"
        engine.execute(f"CREATE DESTINATION {name} TYPE database WITH ({options})")
    select = SUMS.replace("SELECT", "SELECT delta_marker() AS m, cq_old_value(total) AS was,")
    engine.execute(
        f"CREATE CONTINUOUS QUERY q COMPUTE {mode} ON DEMAND DESTINATION lake, log, sums, events AS {select}"
    )
    for number in range(1, 6):
        change(engine, dice, number)
        if number % 2:
            change(engine, dice, number + 100)
        engine.execute("REFRESH CONTINUOUS QUERY q")
        wanted = numbers(engine.execute(SUMS).fetchall())
        assert numbers(by_delta(lake)) == wanted
        assert numbers(by_sqlite(file)) == wanted
    assert numbers(by_duckdb(lake)) == wanted
    deltas = [
        (d.marker, None if d.marker == "I" else d.old[2], *(d.old if d.marker == "D" else d.new))
        for d in engine.deltas("q", 0)
    ]
    assert sorted(by_delta(log), key=repr) == sorted(deltas, key=repr)
    floats = [tuple(float(v) if isinstance(v, Decimal | int | float) else v for v in line) for line in deltas]
    events = [tuple(float(v) if isinstance(v, int | float) else v for v in line) for line in by_sqlite(file, "events")]  # fmt: skip
    assert sorted(events, key=repr) == sorted(floats, key=repr)
    rows = shown(engine, "destination", "type", "state", "lag_versions", "error")
    assert {row[1:] for row in rows} == {("delta", "ACTIVE", 0, ""), ("database", "ACTIVE", 0, "")}


def test_the_whole_result_comes_first_also_in_blocks(engine: Engine, tmp_path: Path) -> None:
    file, lake = tmp_path / "x.db", tmp_path / "lake"
    engine.execute("CREATE CONTINUOUS QUERY q AS SELECT id, k, amt FROM t WHERE amt > 0")
    engine.execute("INSERT INTO t SELECT id, 'x', 1 + id FROM range(100)")
    engine.drain()
    engine.execute(f"CREATE DESTINATION d TYPE database WITH (url = 'sqlite:///{file}', table = 'sums', mode = 'merge')")  # fmt: skip
    engine.execute(f"CREATE DESTINATION lake TYPE delta WITH (path = '{lake}', mode = 'merge')")
    with limited(engine, log_block_rows=7):
        engine.execute("ALTER CONTINUOUS QUERY q SET DESTINATION d, lake")
        engine.drain()
        assert len(by_sqlite(file)) == len(by_delta(lake)) == 100
        engine.execute("DELETE FROM t WHERE id % 2 = 0")
        engine.drain()
    assert sorted(row[0] for row in by_sqlite(file)) == list(range(1, 100, 2))
    assert sorted(row[0] for row in by_delta(lake)) == list(range(1, 100, 2))


def test_one_that_is_away(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The query is created and goes on; the destination says why it lags, without the secret, and comes after."""
    monkeypatch.setenv("CQ_TEST_URL", "postgresql://me:hush42@127.0.0.1:9/db")
    created = "CREATE DESTINATION d TYPE database WITH (url = '${CQ_TEST_URL}', table = 'sums', mode = 'merge', backoff = '0 seconds')"  # fmt: skip
    engine.execute(created)
    engine.execute(f"CREATE CONTINUOUS QUERY q DESTINATION d AS {SUMS}")
    engine.execute("INSERT INTO t VALUES (1, 'a', 5)")
    with pytest.raises(cq_engine.DestinationError, match="d of q could not be served"):
        engine.drain()
    assert engine.execute("SELECT * FROM q").fetchall() == [("a", 1, Decimal("5.00"))]
    ((state, lag, error),) = shown(engine, "state", "lag_versions", "error")
    assert (state, lag) == ("RETRYING", 1)
    assert "127.0.0.1:9" in error
    said = str(engine.execute("DESCRIBE DESTINATION d").fetchall()) + error
    assert "hush42" not in said
    assert "${CQ_TEST_URL}" in said
    monkeypatch.setenv("CQ_TEST_URL", f"sqlite:///{tmp_path}/x.db")
    engine.drain()
    assert numbers(by_sqlite(tmp_path / "x.db")) == [("a", 1, 5.0)]
    warehouse = Path(engine.catalog.warehouse)
    assert not any(b"hush42" in file.read_bytes() for file in warehouse.rglob("*") if file.is_file())
    monkeypatch.delenv("CQ_TEST_URL")
    engine.execute("INSERT INTO t VALUES (2, 'a', 5)")
    with pytest.raises(cq_engine.DestinationError, match="d of q") as raised:
        engine.drain()
    assert "CQ_TEST_URL is not set" in raised.value.detail


def test_pause_skip_replay_drop(engine: Engine, tmp_path: Path) -> None:
    file, log = tmp_path / "x.db", tmp_path / "log"
    engine.execute(f"CREATE DESTINATION d TYPE database WITH (url = 'sqlite:///{file}', table = 'sums', mode = 'merge')")  # fmt: skip
    engine.execute(f"CREATE DESTINATION log TYPE delta WITH (path = '{log}')")
    engine.execute(f"CREATE CONTINUOUS QUERY q DESTINATION d, log AS {SUMS}")
    engine.execute("INSERT INTO t VALUES (1, 'a', 5)")
    engine.drain()
    for name in ("d", "log"):
        engine.execute(f"ALTER DESTINATION {name} PAUSE")
    engine.execute("INSERT INTO t VALUES (2, 'b', 6)")
    skipped = engine.catalog.newest_version
    engine.execute("INSERT INTO t VALUES (3, 'c', 7)")
    engine.drain()
    assert (len(by_sqlite(file)), len(by_delta(log))) == (1, 1)
    assert "SKIP is not for d" in error_of(engine, f"ALTER DESTINATION d SKIP TO VERSION {skipped}").message
    engine.execute(f"ALTER DESTINATION log SKIP TO VERSION {skipped}")
    for name in ("d", "log"):
        engine.execute(f"ALTER DESTINATION {name} RESUME")
    engine.drain()
    assert numbers(by_sqlite(file)) == [("a", 1, 5.0), ("b", 1, 6.0), ("c", 1, 7.0)]
    assert sorted(row[0] for row in by_delta(log)) == ["a", "c"]
    engine.execute("ALTER DESTINATION log REPLAY FROM VERSION 0")
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("DELETE FROM sums WHERE k = 'a'")
        connection.commit()
    assert "whole result" in engine.execute("ALTER DESTINATION d REPLAY FROM VERSION 0").message
    engine.drain()
    assert sorted(row[0] for row in by_delta(log)) == ["a", "a", "b", "c", "c"]
    assert len(by_sqlite(file)) == 3
    error = error_of(engine, f"CREATE CONTINUOUS QUERY other DESTINATION d AS {SUMS}")
    assert "destination d is the result of q" in error.message
    engine.execute("DROP DESTINATION d CASCADE")
    engine.execute("INSERT INTO t VALUES (4, 'd', 7)")
    engine.drain()
    assert (len(by_sqlite(file)), len(by_delta(log))) == (3, 6)


def test_a_target_that_is_changed_for_another(engine: Engine, tmp_path: Path) -> None:
    """It has the result at once, and not with the next delta."""
    engine.execute("INSERT INTO t VALUES (1, 'a', 5)")
    engine.execute(f"CREATE DESTINATION d TYPE database WITH (url = 'sqlite:///{tmp_path}/x.db', table = 'sums', mode = 'merge')")  # fmt: skip
    engine.execute(f"CREATE CONTINUOUS QUERY q DESTINATION d AS {SUMS}")
    engine.drain()
    engine.execute("ALTER DESTINATION d SET WITH (table = 'other')")
    engine.drain()
    assert numbers(by_sqlite(tmp_path / "x.db", "other")) == [("a", 1, 5.0)]
    engine.execute(f"ALTER DESTINATION d SET WITH (url = 'sqlite:///{tmp_path}/y.db')")
    engine.drain()
    assert numbers(by_sqlite(tmp_path / "y.db", "other")) == [("a", 1, 5.0)]
    assert shown(engine, "lag_versions", "error") == [(0, "")]


def test_members_of_a_group(engine: Engine, tmp_path: Path) -> None:
    text = "SELECT id, amt FROM t WHERE k = '{0}'"
    for k in "abc":
        options = f"url = 'sqlite:///{tmp_path}/x.db', table = 'of_{k}', mode = 'merge'"
        engine.execute(f"CREATE DESTINATION d{k} TYPE database WITH ({options})")
        engine.execute(f"CREATE CONTINUOUS QUERY q{k} DESTINATION d{k} AS {text.format(k)}")
    engine.execute("INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 2)")
    engine.drain()
    engine.execute("UPDATE t SET k = 'c' WHERE id = 1")
    engine.drain()
    found = {k: [row[0] for row in by_sqlite(tmp_path / "x.db", f"of_{k}")] for k in "abc"}
    assert found == {"a": [], "b": [2], "c": [1]}


def test_what_is_refused_at_create(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no database")
    cases = {
        "delta": ("needs the option path", "TYPE delta"),
        "delta WITH (path = 'here')": ("path = 'here' is not possible", "path"),
        f"delta WITH (path = '{engine.catalog.warehouse}/x')": ("lies in the warehouse", "d"),
        f"delta WITH (path = '{tmp_path}/file')": ("is a file", "d"),
        f"delta WITH (path = '{tmp_path}')": ("is no Delta table and not empty", "d"),
        "database WITH (url = 'sqlite:////nowhere/x.db', table = 't')": ("unable to open", "d"),
        "database WITH (url = '${CQ_UNSET}', table = 't')": ("CQ_UNSET is not set", "d"),
        "database WITH (url = 'postgresql://u:hush@h/d', table = 't')": ("has a password in it", ""),
        "database WITH (url = '${CQ_UNSET}', table = 'a.b.c')": ("table = 'a.b.c' is not possible", "table"),
        "database WITH (url = '${CQ_UNSET}', table = 't', mode = 'merge', on_failure = 'dead_letter')": (
            "dead letters are not for mode = 'merge'",
            "on_failure",
        ),
    }
    for text, (said, _) in cases.items():
        error = error_of(engine, f"CREATE DESTINATION d TYPE {text}")
        assert said in error.message, text
        assert error.hint or error.detail
        assert error.location is not None
        assert "hush" not in error.location.caret()
    with closing(sqlite3.connect(tmp_path / "x.db")) as connection:
        connection.execute("CREATE TABLE sums (k TEXT, n TEXT)")
    engine.execute(f"CREATE DESTINATION d TYPE database WITH (url = 'sqlite:///{tmp_path}/x.db', table = 'sums')")  # fmt: skip
    error = error_of(engine, f"CREATE CONTINUOUS QUERY q DESTINATION d AS {SUMS}")
    assert "column n of continuous query q does not fit table sums" in error.message
    assert "q" not in engine.catalog.state.queries


def test_a_restricted_engine_writes_nowhere(warehouse: Path, once: SparkSession, tmp_path: Path) -> None:
    with cq_engine.connect(warehouse, spark=once, scheduler=False, conf={"restricted": "on"}) as engine:
        error = error_of(engine, f"CREATE DESTINATION d TYPE delta WITH (path = '{tmp_path}/x')")
        assert "is switched off" in error.message


@pytest.mark.postgres
def test_wrong_credentials(engine: Engine, postgres_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for url, said in {
        f"{postgres_server}/there_is_none": "does not exist",
        f"{postgres_server.replace('cq@', 'nobody:hush42@')}/postgres": "does not exist",
    }.items():
        monkeypatch.setenv("CQ_TEST_URL", url)
        error = error_of(
            engine, "CREATE DESTINATION d TYPE database WITH (url = '${CQ_TEST_URL}', table = 't')"
        )
        assert said in error.message
        assert "hush42" not in str(error)


VALUES: dict[str, tuple[str, Any]] = {
    "i8": ("CAST(-7 AS TINYINT)", -7),
    "i64": ("CAST(9223372036854775807 AS BIGINT)", 2**63 - 1),
    "f": ("CAST(0.5 AS FLOAT)", 0.5),
    "d": ("CAST(1e300 AS DOUBLE)", 1e300),
    "dec": ("CAST(12345678901234567890.12 AS DECIMAL(38,2))", Decimal("12345678901234567890.12")),
    "s": ("'ü \"q\", \\n'", 'ü "q", \n'),
    "empty": ("''", ""),
    "b": ("CAST(true AS BOOLEAN)", True),
    "bin": ("X'00FF'", b"\x00\xff"),
    "day": ("DATE '2026-02-03'", date(2026, 2, 3)),
    "ts": ("TIMESTAMP '2026-02-03 04:05:06.789Z'", datetime(2026, 2, 3, 4, 5, 6, 789000, timezone.utc)),
    "ntz": ("TIMESTAMP_NTZ '2026-02-03 04:05:06'", datetime(2026, 2, 3, 4, 5, 6)),  # noqa: DTZ001
    "arr": ("array(1, NULL)", [1, None]),
    "st": ("named_struct('x', 1, 'y', 'z')", {"x": 1, "y": "z"}),
    "mp": ("map('k', 1)", {"k": 1}),
    "nothing": ("CAST(NULL AS INT)", None),
}


@pytest.mark.postgres
def test_types(engine: Engine, postgres_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import psycopg

    monkeypatch.setenv("CQ_TEST_URL", postgres.fresh(postgres_server))
    engine.execute("CREATE DESTINATION pg TYPE database WITH (url = '${CQ_TEST_URL}', table = 'types', mode = 'merge')")  # fmt: skip
    engine.execute("CREATE DESTINATION pg_log TYPE database WITH (url = '${CQ_TEST_URL}', table = 'log')")
    engine.execute(f"CREATE DESTINATION lite TYPE database WITH (url = 'sqlite:///{tmp_path}/x.db', table = 'types', mode = 'merge')")  # fmt: skip
    engine.execute(f"CREATE DESTINATION lake TYPE delta WITH (path = '{tmp_path}/lake', mode = 'merge')")
    columns = ", ".join(f"{text} AS {name}" for name, (text, _) in VALUES.items())
    engine.execute(
        f"CREATE CONTINUOUS QUERY q DESTINATION pg, pg_log, lite, lake AS SELECT id, k, {columns} FROM t"
    )
    for number, k in enumerate(["x", "y"]):
        engine.execute(f"INSERT INTO t VALUES ({number}, '{k}', 1)")
        engine.drain()
    engine.execute("UPDATE t SET k = 'z' WHERE id = 0")
    engine.drain()
    wanted = [value for _, value in VALUES.values()]
    with psycopg.connect(os.environ["CQ_TEST_URL"]) as connection:
        rows = connection.execute("SELECT * FROM types ORDER BY id").fetchall()
        assert len(connection.execute("SELECT * FROM log").fetchall()) == 3
    assert [row[:2] for row in rows] == [(0, "z"), (1, "y")]
    assert list(rows[0][2:]) == wanted
    lake = [row for row in by_delta(tmp_path / "lake") if row[0] == 0]
    assert [
        dict(v) if isinstance(v, list) and v and isinstance(v[0], tuple) else v for v in lake[0][2:]
    ] == wanted
    lite = dict(zip(VALUES, next(row for row in by_sqlite(tmp_path / "x.db", "types") if row[0] == 0)[2:]))
    assert lite["dec"] == "12345678901234567890.12"
    assert (lite["s"], lite["bin"], lite["b"], lite["empty"]) == ('ü "q", \n', b"\x00\xff", 1, "")
    assert (lite["day"], lite["ts"]) == ("2026-02-03", "2026-02-03 04:05:06.789000Z")
    assert (lite["arr"], lite["mp"]) == ("[1, null]", '{"k": 1}')
