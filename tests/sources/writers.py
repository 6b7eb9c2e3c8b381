"""Somebody who writes to a source at random, and what a capture of each method is to have of it."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import count
from typing import Any

from cq_engine import Engine
from tests.sources.shops import TEXT, TYPES, Shop

__all__ = ["METHODS", "TABLE", "Row", "Writer", "declare", "here"]

Row = tuple[Any, ...]
BEGIN = datetime(2026, 1, 1)  # noqa: DTZ001 - the sources have no zone

TABLE = "CREATE TABLE t (id INT, region STRING, price DECIMAL(10, 2), note STRING, PRIMARY KEY (id))"
METHODS = {
    "copy": "TABLE 'orders' USING COPY",
    "copy where": "TABLE 'orders' WHERE 'id % 3 <> 0' USING COPY",
    "copy there": "TABLE 'orders' USING COPY WITH (at = 'source')",
    "copy there where": "TABLE 'orders' WHERE 'orders.id % 3 <> 0' USING COPY WITH (at = 'source')",
    "view": "USING VIEW 'SELECT o.id, o.region, o.price, o.note FROM orders o JOIN regions r ON r.name = o.region'",
    "timestamp": "TABLE 'orders' USING TIMESTAMP (ts) WITH (overlap = '1 second')",
    "flag": "TABLE 'orders' USING TIMESTAMP (ts, DELETED gone) WITH (overlap = '1 second')",
    "purge": "TABLE 'orders' USING TIMESTAMP (ts, DELETED gone) WITH (overlap = '1 second', purge = true)",
    "flag where": "TABLE 'orders' WHERE 'price > 1' USING TIMESTAMP (ts, DELETED gone)",
    "checksum": "TABLE 'orders' USING CHECKSUM",
    "checksum where": "TABLE 'orders' WHERE 'id % 3 <> 0' USING CHECKSUM",
    "own checksum": "TABLE 'orders' USING CHECKSUM (version)",
    "ranges": "TABLE 'orders' USING RANGES (rows = 4)",
    "ranges where": "TABLE 'orders' WHERE 'id % 3 <> 0' USING RANGES (rows = 4)",
    "checked ranges": "TABLE 'orders' USING RANGES (rows = 4, CHECKSUM)",
}
MARKS = {"flag", "purge", "flag where"}
RESTRICTED = {
    "copy where": "id % 3 <> 0", "copy there where": "id % 3 <> 0", "checksum where": "id % 3 <> 0", "ranges where": "id % 3 <> 0", "flag where": "price > 1",
    "log where": "price > 1", "view": "region IN (SELECT name FROM regions)",
}  # fmt: skip


class _TakenBack(Exception):
    pass


@dataclass
class Writer:
    """Somebody who writes to the source: rows, keys, restrictions, rollbacks."""

    shop: Shop
    dice: random.Random
    method: str
    clock: Iterator[int] = field(default_factory=lambda: count(1))
    ever: set[Row] = field(default_factory=set)

    def create(self) -> None:
        moment, text = TYPES[self.shop.kind]["moment"], TEXT[self.shop.kind]
        self.shop.run("DROP TABLE IF EXISTS orders")
        self.shop.run("DROP TABLE IF EXISTS regions")
        self.shop.run(
            f"CREATE TABLE orders (id INT NOT NULL PRIMARY KEY, region VARCHAR(20), price DECIMAL(10, 2), note {text},"
            f" ts {moment}, gone SMALLINT, version BIGINT)"
        )
        self.shop.run("CREATE TABLE regions (name VARCHAR(20) NOT NULL PRIMARY KEY)")
        self.shop.insert("regions", [("north",), ("south",)])

    def transaction(self) -> None:
        """Some changes at once, now and then taken back."""
        database = self.shop.database
        mark, percent = database.server.mark, database.server.percent
        taken_back = self.dice.random() < 0.15
        with suppress(_TakenBack), database.write() as session:
            for _ in range(self.dice.randint(1, 5)):
                sql, row = self.change()
                text = sql.replace("%", percent).replace("?", mark)
                session.connection.exec_driver_sql(text, tuple(row))
            if taken_back:
                raise _TakenBack
            found = session.connection.exec_driver_sql(self.query("orders"))
            self.ever |= {self.plain(row) for row in found}

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Commits transaction after transaction during the block."""
        stop, failures = threading.Event(), []

        def write() -> None:
            while not stop.is_set():
                try:
                    self.transaction()
                except Exception as error:  # noqa: BLE001 - the test looks at it
                    failures.append(error)
                    return
                stop.wait(0.005)

        thread = threading.Thread(target=write)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
        assert not failures

    def change(self) -> tuple[str, list[Any]]:
        k, n = self.dice.randint(1, 30), next(self.clock)
        moment = BEGIN + timedelta(seconds=n)
        written = moment.isoformat(" ", "microseconds") if self.shop.kind == "sqlite" else moment
        values = [
            self.region(),
            self.price(),
            self.dice.choice([None, "", "ab", "ü\nß", "a'b"]),
            written,
            0,
            n,
        ]
        kind = self.dice.random()
        if kind < 0.25 and self.method != "timestamp":
            if self.method in MARKS:
                return "UPDATE orders SET gone = 1, ts = ?, version = ? WHERE id = ?", [written, n, k]
            return "DELETE FROM orders WHERE id = ?", [k]
        if kind < 0.35 and self.method not in MARKS and self.method != "timestamp":
            return "UPDATE orders SET id = ?, version = ? WHERE id = ?", [100 + n, n, k]
        if kind < 0.6:
            sets = "region = ?, price = ?, note = ?, ts = ?, gone = ?, version = ?"
            return f"UPDATE orders SET {sets} WHERE id = ?", [*values, k]
        rows = ", ".join("?" * 7)
        return f"INSERT INTO orders SELECT {rows} WHERE NOT EXISTS (SELECT 1 FROM orders WHERE id = ?)", [
            k,
            *values,
            k,
        ]

    def region(self) -> str | None:
        return self.dice.choice(["north", "south", "east", None])

    def price(self) -> Any:
        price = self.dice.choice([None, Decimal("0.50"), Decimal("12.25"), Decimal("-3.00")])
        return float(price) if price is not None and self.shop.kind == "sqlite" else price

    def query(self, table: str) -> str:
        return f"SELECT id, region, price, note FROM {table}"

    def plain(self, row: Any) -> Row:
        key, region, price, note = row
        return key, region, None if price is None else Decimal(str(price)).quantize(Decimal("0.01")), note

    def rows(self) -> list[Row]:
        """What the capture is to have of the source now."""
        sql = self.query("orders")
        conditions = [RESTRICTED[self.method]] if self.method in RESTRICTED else []
        conditions += ["gone = 0"] if self.method in MARKS else []
        if conditions:
            sql += f" WHERE {' AND '.join(conditions)}"
        with self.shop.database.connect() as session:
            found = session.connection.exec_driver_sql(sql.replace("%", self.shop.database.server.percent))
            return sorted((self.plain(row) for row in found), key=lambda row: row[0])


def here(engine: Engine) -> list[Row]:
    rows = engine.execute("SELECT id, region, price, note FROM t").to_arrow().to_pylist()
    return sorted((tuple(row.values()) for row in rows), key=lambda row: row[0])


def declare(engine: Engine, shop: Shop, method: str) -> None:
    engine.execute(TABLE)
    url = shop.url
    engine.execute(f"CREATE SOURCE shop TYPE {shop.kind} WITH (url = '{url}')")
    engine.execute(f"CREATE CAPTURE c INTO t FROM shop {METHODS[method]} ON DEMAND")


def resumed(engine: Engine, writer: Writer) -> None:
    """After RESUME replica and source are the same, and stay so."""
    engine.execute("ALTER CAPTURE c RESUME")
    engine.refresh_capture("c")
    assert here(engine) == writer.rows()
    writer.transaction()
    engine.refresh_capture("c")
    assert here(engine) == writer.rows()
