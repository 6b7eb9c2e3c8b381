"""docs/language.md, run from top to bottom: every `sql` block, in order, against one warehouse."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine.grammar import split

PAGE = Path(__file__).resolve().parents[2] / "docs" / "language.md"

_MESSAGE = re.compile(r"\b[a-s]\d+[a-s]\d+[a-s]\d+\b")
_SQL = re.compile(r"^```sql\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def write_files(directory: Path) -> None:
    """What COPY INTO loads in the manual."""
    (directory / "orders").mkdir(parents=True)
    (directory / "orders" / "may.csv").write_text(
        "oid,cid,placed,status\n20,3,2024-05-01,new\n", encoding="utf-8"
    )
    (directory / "customer.tbl").write_text("4|Bob\n5|Eve\n", encoding="utf-8")
    lines = {"oid": [20, 20], "item": ["Hat", "Shoes"], "price": pa.array([3, 80], pa.decimal128(10, 2))}
    pq.write_table(pa.table({**lines, "oid": pa.array([20, 20], pa.int32())}), directory / "lines.parquet")
    (directory / "more.csv").write_text("30|Sock|4\n", encoding="utf-8")
    with closing(sqlite3.connect(directory / "sales.db")) as sales:
        sales.executescript(
            "CREATE TABLE orders (oid INTEGER PRIMARY KEY, item INTEGER, pieces INTEGER); INSERT INTO orders VALUES (1, 7, 3)"
        )
    with closing(sqlite3.connect(directory / "stock.db")) as stock:
        stock.executescript(
            "CREATE TABLE items (item INTEGER PRIMARY KEY, name TEXT); INSERT INTO items VALUES (7, 'Hat')"
        )


def test_every_block_runs(
    warehouse: Path, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = tmp_path / "data"
    monkeypatch.setenv("SHOP_HOOK", "http://127.0.0.1:9/")  # nobody listens
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:9")
    monkeypatch.setenv("NATS_URL", "nats://127.0.0.1:9")
    monkeypatch.setenv("AMQP_URL", "amqp://127.0.0.1:9")
    monkeypatch.setenv("KAFKA_URL", "kafka://127.0.0.1:9")
    monkeypatch.setenv("SHOP_SECRET", "secret")
    monkeypatch.setenv("SHOP_URL", f"sqlite:///{files.as_posix()}/log.db")
    write_files(files)
    clock = cq_engine.ManualClock(datetime(2024, 5, 1, 12, tzinfo=timezone.utc))
    failed = []
    given: list[str] = []
    zone = spark.conf.get("spark.sql.session.timeZone")
    with cq_engine.connect(warehouse, spark=spark, clock=clock, scheduler=False) as engine:
        page = PAGE.read_text(encoding="utf-8")
        for block in _SQL.finditer(page):
            line = page.count("\n", 0, block.start(1)) + 1
            for item in split(block[1], PAGE.name):
                place = {"source": PAGE.name, "line": item.line + line - 1, "column": item.column}
                try:
                    text = item.text.replace("'/data/", f"'{files.as_posix()}/")
                    text = text.replace("sqlite:////data/", f"sqlite:///{files.as_posix()}/")
                    if given and text.startswith(("ACK", "REJECT")):
                        text = _MESSAGE.sub(given.pop(), text)  # the last one that the manual was given
                    result = engine.execute(text, **place)
                    rows = [] if result.is_stream else result.fetchall()
                    given = [row[0] for row in rows] if text.startswith("DEQUEUE") else given
                except cq_engine.CQError as error:
                    failed.append(error.render())
        position = engine.describe("big_orders").position
        assert position == engine.catalog.newest_version, "EXPLAIN ANALYZE near the end refreshes it"
    if zone is not None:
        spark.conf.set("spark.sql.session.timeZone", zone)
    assert "\n\n".join(failed) == ""
