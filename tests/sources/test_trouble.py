"""What happens to captures when sources, clocks and processes do what they should not."""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine import Engine
from cq_engine.core import faults
from cq_engine.sources import options
from cq_engine.sources.methods.timestamp import Timestamp
from tests.sources.shops import Shop
from tests.sources.writers import METHODS, Writer, declare, here
from tests.waiting import until

FLAG = "TIMESTAMP (ts, DELETED gone)"
THERE = "COPY WITH (at = 'source')"


class Crash(BaseException):
    """In the place of a process that ends."""


@pytest.fixture
def engine(tmp_path: Path, once: SparkSession) -> Iterator[Engine]:
    with cq_engine.connect(tmp_path / "warehouse", spark=once, scheduler=False) as opened:
        yield opened


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    path.touch()
    return path


@pytest.fixture
def source(file: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute(
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, region TEXT, price DECIMAL(10, 2), note TEXT, ts DATETIME, gone BOOLEAN)"
    )
    return connection


def capture(engine: Engine, file: Path, using: str) -> None:
    engine.execute(
        "CREATE TABLE t (id INT, region STRING, price DECIMAL(10, 2), note STRING, PRIMARY KEY (id))"
    )
    engine.execute(f"CREATE SOURCE shop TYPE sqlite WITH (url = 'sqlite:///{file}')")
    engine.execute(f"CREATE CAPTURE c INTO t FROM shop TABLE 'orders' USING {using}")


def add(source: sqlite3.Connection, number: int, moment: str, gone: int = 0) -> None:
    source.execute(
        "INSERT OR REPLACE INTO orders VALUES (?, 'north', 1.5, NULL, ?, ?)", (number, moment, gone)
    )


def keys(engine: Engine) -> list[int]:
    return [row[0] for row in here(engine)]


def state(engine: Engine) -> dict[str, Any]:
    found: dict[str, Any] = engine.execute("SHOW CAPTURES").to_arrow().to_pylist()[0]
    return found


# ---------------------------------------------------------------- time


def test_an_overlap_finds_what_became_visible_late(
    engine: Engine, file: Path, source: sqlite3.Connection
) -> None:
    add(source, 1, "2026-01-01 00:10:00")
    capture(engine, file, "TIMESTAMP (ts) WITH (overlap = '5 minutes') ON DEMAND")
    engine.refresh_capture("c")
    add(source, 2, "2026-01-01 00:06:00")  # by a transaction that was open for four minutes
    add(source, 3, "2026-01-01 00:04:00")  # and one that was so for longer
    engine.refresh_capture("c")
    assert keys(engine) == [1, 2]


def test_a_clock_that_is_ahead_hides_nothing(engine: Engine, file: Path, source: sqlite3.Connection) -> None:
    add(source, 1, "2026-01-01 00:00:00")
    add(source, 2, "2126-01-01 00:00:00")
    capture(engine, file, "TIMESTAMP (ts) WITH (overlap = '1 second') ON DEMAND")
    engine.refresh_capture("c")
    assert keys(engine) == [1, 2]
    add(source, 3, "2026-01-02 00:00:00")
    engine.refresh_capture("c")
    assert keys(engine) == [1, 2, 3]
    add(source, 4, "2126-01-02 00:00:00")
    engine.refresh_capture("c")
    assert keys(engine) == [1, 2, 3, 4]
    assert "2126" not in state(engine)["position"]


def test_a_source_that_was_restored_is_compared(
    engine: Engine, file: Path, source: sqlite3.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    add(source, 1, "2026-01-01 00:00:00")
    capture(engine, file, "TIMESTAMP (ts) WITH (overlap = '1 second') ON DEMAND")
    add(source, 2, "2026-01-02 00:00:00")
    add(source, 1, "2026-01-02 00:00:01")
    engine.refresh_capture("c")
    source.execute("DELETE FROM orders WHERE id = 2")
    add(source, 1, "2026-01-01 00:00:00")
    engine.refresh_capture("c")
    assert keys(engine) == [1]
    assert "has gone back" in caplog.text


def test_a_flag_that_is_taken_back(engine: Engine, file: Path, source: sqlite3.Connection) -> None:
    add(source, 1, "2026-01-01 00:00:00")
    add(source, 2, "2026-01-01 00:00:01", gone=1)
    capture(engine, file, f"{FLAG} ON DEMAND")
    engine.refresh_capture("c")
    assert keys(engine) == [1]
    add(source, 1, "2026-01-01 00:00:02", gone=1)
    add(source, 2, "2026-01-01 00:00:03")
    engine.refresh_capture("c")
    assert keys(engine) == [2]


def test_purging_waits_for_what_is_durable(
    engine: Engine, file: Path, source: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2, 3):
        add(source, number, f"2026-01-01 00:00:0{number}")
    capture(engine, file, f"{FLAG} WITH (purge = true, overlap = '1 second') ON DEMAND")
    engine.refresh_capture("c")
    add(source, 1, "2026-01-01 00:01:00", gone=1)
    add(source, 2, "2026-01-01 00:01:00", gone=1)

    def crash(*_: Any) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(Timestamp, "_purge", crash)
        with pytest.raises(Crash):
            engine.refresh_capture("c")
    assert keys(engine) == [3]
    assert source.execute("SELECT count(*) FROM orders").fetchone() == (3,)
    add(source, 3, "2026-01-01 01:00:00")  # beyond the overlap
    add(source, 2, "2026-01-01 01:00:00")  # written again meanwhile
    engine.refresh_capture("c")
    assert keys(engine) == [2, 3]
    assert source.execute("SELECT id FROM orders ORDER BY id").fetchall() == [(2,), (3,)]
    assert "purge" not in state(engine)["position"]


def test_an_index_that_covers(engine: Engine, file: Path, source: sqlite3.Connection) -> None:
    add(source, 1, "2026-01-01 00:00:00")
    with pytest.raises(cq_engine.AnalysisError, match="no index of orders covers"):
        capture(engine, file, f"{FLAG} WITH (index = 'covering')")
    source.execute("CREATE INDEX covering ON orders (ts, gone, id, region, price, note)")
    engine.execute(
        f"CREATE CAPTURE c INTO t FROM shop TABLE 'orders' USING {FLAG} WITH (index = 'covering') ON DEMAND"
    )
    engine.refresh_capture("c")
    assert keys(engine) == [1]


# ---------------------------------------------------------------- sources


@pytest.mark.parametrize("using", ["COPY", THERE, "CHECKSUM", "RANGES", FLAG])
def test_a_source_that_is_away_is_tried_again(
    engine: Engine, file: Path, source: sqlite3.Connection, using: str
) -> None:
    add(source, 1, "2026-01-01 00:00:00")
    capture(engine, file, f"{using} ON DEMAND")
    engine.refresh_capture("c")
    file.rename(file.with_suffix(".away"))
    with pytest.raises(cq_engine.SourceUnavailableError, match="there is no file"):
        engine.refresh_capture("c")
    assert state(engine)["state"] == "ACTIVE"
    assert "there is no file" in state(engine)["error"]
    file.with_suffix(".away").rename(file)
    add(source, 2, "2026-01-01 00:00:01")
    engine.refresh_capture("c")
    assert keys(engine) == [1, 2]
    assert state(engine)["error"] == ""


@pytest.mark.parametrize("using", ["COPY", THERE, "CHECKSUM", "RANGES (rows = 2, CHECKSUM)", FLAG])
def test_a_column_that_is_gone_fails_the_capture(
    engine: Engine, file: Path, source: sqlite3.Connection, using: str
) -> None:
    add(source, 1, "2026-01-01 00:00:00")
    capture(engine, file, f"{using} ON DEMAND")
    engine.refresh_capture("c")
    source.execute("ALTER TABLE orders ADD COLUMN fresh TEXT")
    engine.refresh_capture("c")
    source.execute("ALTER TABLE orders RENAME COLUMN note TO remark")
    with pytest.raises(cq_engine.SourceError, match="no column note"):
        engine.refresh_capture("c")
    assert state(engine)["state"] == "FAILED"
    assert keys(engine) == [1]
    with pytest.raises(cq_engine.CatalogError, match="has failed") as error:
        engine.refresh_capture("c")
    assert "RESUME" in error.value.hint
    source.execute("ALTER TABLE orders RENAME COLUMN remark TO note")
    source.execute("UPDATE orders SET note = 'here', ts = '2026-01-01 00:00:05'")
    engine.execute("ALTER CAPTURE c RESUME")
    engine.refresh_capture("c")
    assert here(engine)[0][3] == "here"


def test_a_value_that_does_not_fit_loses_nothing(
    engine: Engine, file: Path, source: sqlite3.Connection
) -> None:
    add(source, 1, "2026-01-01 00:00:00")
    capture(engine, file, f"{FLAG} ON DEMAND")
    engine.refresh_capture("c")
    add(source, 2, "2026-01-01 00:00:01")
    source.execute("UPDATE orders SET price = 'twelve' WHERE id = 2")
    with pytest.raises(cq_engine.SourceError, match="twelve"):
        engine.refresh_capture("c")
    source.execute("UPDATE orders SET price = 12 WHERE id = 2")
    engine.execute("ALTER CAPTURE c RESUME")
    engine.refresh_capture("c")
    assert keys(engine) == [1, 2]


def test_a_table_without_a_key(engine: Engine, file: Path, source: sqlite3.Connection) -> None:
    engine.execute("CREATE TABLE t (id INT, note STRING)")
    engine.execute(f"CREATE SOURCE shop TYPE sqlite WITH (url = 'sqlite:///{file}')")
    with pytest.raises(cq_engine.AnalysisError, match="no primary key"):
        engine.execute("CREATE CAPTURE c INTO t FROM shop TABLE 'orders' USING COPY")


def test_a_password_in_a_url(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(cq_engine.CQError, match="has a password in it"):
        engine.execute("CREATE SOURCE shop TYPE postgresql WITH (url = 'postgresql://me:secret@host/db')")
    monkeypatch.setenv("CQ_TEST_URL", "postgresql://me:secret@127.0.0.1:1/db")
    with pytest.raises(cq_engine.SourceUnavailableError) as error:
        engine.execute("CREATE SOURCE shop TYPE postgresql WITH (url = '${CQ_TEST_URL}')")
    assert "secret" not in str(error.value)
    with pytest.raises(cq_engine.CQError, match="CQ_TEST_NONE is not set"):
        engine.execute("CREATE SOURCE shop TYPE postgresql WITH (url = '${CQ_TEST_NONE}')")


# ---------------------------------------------------------------- life


@pytest.mark.parametrize("method", ["copy", "copy there", "flag", "checksum", "ranges", "checked ranges"])
@pytest.mark.parametrize("point", ["commit.begin", "commit.before_catalog", "commit.after_catalog"])
def test_a_process_that_is_killed(
    tmp_path: Path, file: Path, once: SparkSession, monkeypatch: pytest.MonkeyPatch, method: str, point: str
) -> None:
    shop = Shop("sqlite", f"sqlite:///{file}")
    writer = Writer(shop, random.Random(f"{method} {point}"), method)
    writer.create()
    for _ in range(8):
        writer.transaction()
    with cq_engine.connect(tmp_path / "warehouse", spark=once, scheduler=False) as engine:
        declare(engine, shop, method)
        engine.refresh_capture("c")
    for _ in range(3):
        for _ in range(6):
            writer.transaction()

        def crash(name: str, *_: Any) -> None:
            if name == point:
                raise Crash

        with (
            cq_engine.connect(tmp_path / "warehouse", spark=once, scheduler=False) as engine,
            monkeypatch.context() as patch,
        ):
            patch.setattr(faults, "point", crash)
            with pytest.raises(Crash):
                engine.refresh_capture("c")
        with cq_engine.connect(tmp_path / "warehouse", spark=once, scheduler=False) as engine:
            engine.refresh_capture("c")
            assert here(engine) == writer.rows()


def test_captures_run_by_themselves(
    tmp_path: Path, file: Path, source: sqlite3.Connection, once: SparkSession
) -> None:
    add(source, 1, "2026-01-01 00:00:00")
    with cq_engine.connect(tmp_path / "warehouse", spark=once) as engine:
        capture(engine, file, f"{FLAG} EVERY 1 SECOND")
        until(lambda: keys(engine) == [1])
        add(source, 2, "2026-01-01 00:00:01")
        until(lambda: keys(engine) == [1, 2])
        assert engine.execute("ALTER CAPTURE c PAUSE").message == "capture c is paused"
        add(source, 3, "2026-01-01 00:00:02")
        time.sleep(1.5)
        assert keys(engine) == [1, 2]
        assert state(engine)["state"] == "PAUSED"
        engine.execute("ALTER CAPTURE c RESUME")
        until(lambda: keys(engine) == [1, 2, 3])
    add(source, 4, "2026-01-01 00:00:03")
    with cq_engine.connect(tmp_path / "warehouse", spark=once) as engine:
        until(lambda: keys(engine) == [1, 2, 3, 4])
        file.rename(file.with_suffix(".away"))
        until(lambda: "there is no file" in state(engine)["error"])
        file.with_suffix(".away").rename(file)
        add(sqlite3.connect(file, isolation_level=None), 5, "2026-01-01 00:00:04")
        until(lambda: keys(engine) == [1, 2, 3, 4, 5], 90)


def test_a_process_without_the_duties_asks_for_a_tick(
    tmp_path: Path, file: Path, source: sqlite3.Connection, once: SparkSession
) -> None:
    add(source, 1, "2026-01-01 00:00:00")
    with (
        cq_engine.connect(tmp_path / "warehouse", spark=once) as holder,
        cq_engine.connect(tmp_path / "warehouse", spark=once, duties=False) as other,
    ):
        capture(other, file, f"{FLAG} ON DEMAND")
        done = other.refresh_capture("c")
        assert (done.rows, keys(other), keys(holder)) == (1, [1], [1])
        assert other.execute("REFRESH CAPTURE c").message == "c: 0 change rows, nothing has changed"
        assert state(other)["rows"] == 1


def test_what_a_capture_takes_with_it(engine: Engine, file: Path, source: sqlite3.Connection) -> None:
    add(source, 1, "2026-01-01 00:00:00")
    capture(engine, file, "CHECKSUM ON DEMAND")
    engine.refresh_capture("c")
    with pytest.raises(cq_engine.CatalogError, match="capture"):
        engine.execute("DROP TABLE t")
    with pytest.raises(cq_engine.CatalogError, match="c"):
        engine.execute("DROP SOURCE shop")
    assert "with it" in engine.execute("DROP SOURCE shop CASCADE").message
    names = engine.execute("SHOW TABLES").to_arrow().column("name").to_pylist()
    assert names == ["t"]
    assert keys(engine) == [1]
    engine.execute(f"CREATE SOURCE shop TYPE sqlite WITH (url = 'sqlite:///{file}')")
    engine.execute("CREATE CAPTURE c INTO t FROM shop TABLE 'orders' USING CHECKSUM ON DEMAND")
    engine.refresh_capture("c")
    engine.execute("DROP TABLE t CASCADE")
    assert engine.execute("SHOW TABLES").to_arrow().num_rows == 0
    assert engine.execute("SHOW CAPTURES").to_arrow().num_rows == 0


def test_a_capture_whose_table_is_renamed(engine: Engine, file: Path, source: sqlite3.Connection) -> None:
    add(source, 1, "2026-01-01 00:00:00")
    capture(engine, file, "COPY ON DEMAND")
    engine.execute("ALTER TABLE t RENAME TO orders")
    engine.refresh_capture("c")
    assert engine.execute("SELECT id FROM orders").to_arrow().to_pylist() == [{"id": 1}]


def test_every_method_is_in_these_tests() -> None:
    named = {using.split("USING ")[1].split()[0] for using in METHODS.values()}
    assert named == set(options.METHODS) - {"LOG"}
