"""The database that the benchmarks of captures read from: a table of orders, written to by the program."""

from __future__ import annotations

import importlib.util
import os
import random
import time
from collections.abc import Sequence
from typing import Any

from wire import Counter

from cq_engine.catalog.model import DeclaredSource
from cq_engine.sources.sql.database import Database
from cq_engine.sources.sql.model import Statement

BEGIN = 1_600_000_000
"""When the first row was written, in seconds of Unix."""
AT_ONCE = 1_000
"""Rows of one statement."""


class Source:
    """The database, written to by this program."""

    def __init__(self, kind: str, rows: int, seed: int) -> None:
        self.database = Database.open(DeclaredSource("shop", kind, (("url", os.environ["CQ_BENCH_SOURCE"]),)))
        self.wire: Counter | None = None
        self.kind, self.rows, self.dice, self.clock = kind, rows, random.Random(seed), 0

    def sent(self) -> int:
        """Bytes that the server has sent so far, where they are counted."""
        return 0 if self.wire is None else self.wire.value

    def run(self, sql: str, *rows: Sequence[Any]) -> None:
        """A statement, once or for each row."""
        with self.database.write() as session:
            text = sql.replace("?", self.database.server.mark)
            session.connection.exec_driver_sql(text, list(map(tuple, rows)) or ())

    def fill(self) -> None:
        """All rows, one second apart, and customers."""
        moment = {"sqlite": "DATETIME", "mariadb": "DATETIME(6)"}.get(self.kind, "timestamp")
        self.run("DROP TABLE IF EXISTS orders")
        self.run(
            "CREATE TABLE orders (id INT NOT NULL PRIMARY KEY, customer INT, price DECIMAL(10, 2), note VARCHAR(100),"
            f" ts {moment}, gone SMALLINT)"
        )
        if self.kind == "postgresql":
            self.run(
                "INSERT INTO orders SELECT n, mod(n, 1000), mod(n, 97), 'note of order ' || n || repeat('.', 50),"
                f" to_timestamp({BEGIN} + n) AT TIME ZONE 'UTC', 0 FROM generate_series(0, {self.rows - 1}) AS n"
            )
            self.clock += self.rows
        for start in range(0, self.rows if self.kind != "postgresql" else 0, 50_000):
            some = range(start, min(start + 50_000, self.rows))
            rows = [(n, n % 1000, n % 97, f"note of order {n}" + "." * 50, self.now(), 0) for n in some]
            self.run("INSERT INTO orders VALUES (?, ?, ?, ?, ?, ?)", *rows)
        self.run("CREATE INDEX orders_ts ON orders (ts)")
        self.run("DROP TABLE IF EXISTS customers")
        self.run(
            f"CREATE TABLE customers (cid INT NOT NULL PRIMARY KEY, region VARCHAR(20), ts {moment}, gone SMALLINT)"
        )
        self.run(
            "INSERT INTO customers VALUES (?, ?, ?, ?)",
            *((n, f"region {n % 7}", self.now(), 0) for n in range(1_000)),
        )
        self.run("CREATE INDEX customers_ts ON customers (ts)")

    def now(self) -> str:
        """A moment after all that were given before."""
        self.clock += 1
        return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(BEGIN + self.clock))

    def change(self, how: str) -> None:
        """1 % of the rows."""
        count = self.rows // 100 if how != "none" else 0
        begin = self.dice.randrange(self.rows - count)
        some = (
            range(begin, begin + count) if how == "clustered" else self.dice.sample(range(self.rows), count)
        )
        moment = self.now()
        self.copy()
        numbers = list(some)
        for start in range(0, count, AT_ONCE):
            part = ", ".join(map(str, numbers[start : start + AT_ONCE]))
            self.run(f"UPDATE orders SET price = price + 1, ts = ? WHERE id IN ({part})", (moment,))

    def copy(self) -> None:
        """What bisection compares with."""
        if self.is_bisected():
            self.run("DROP TABLE IF EXISTS orders_before")
            self.run("CREATE TABLE orders_before AS SELECT * FROM orders")
            self.run("ALTER TABLE orders_before ADD PRIMARY KEY (id)")

    def is_bisected(self) -> bool:
        """Whether reladiff is there, and knows the server."""
        return importlib.util.find_spec("reladiff") is not None and self.kind != "sqlite"

    def is_decoded(self) -> bool:
        """Whether the server can decode its own log."""
        if self.kind != "postgresql":
            return False
        with self.database.connect() as session:
            return session.one(Statement("SELECT current_setting('wal_level')")) == ("logical",)

    def update_by_tens(self) -> None:
        """Each row twice, in transactions of ten rows."""
        import psycopg

        url = self.database.address.url.set(drivername="postgresql").render_as_string(hide_password=False)
        update = "UPDATE orders SET price = price + 1 WHERE id >= start AND id < start + 10; COMMIT;"
        with psycopg.connect(url, autocommit=True, **self.database.address.secrets) as connection:
            connection.execute(
                f"DO $$BEGIN FOR turn IN 1..2 LOOP FOR start IN 0..{self.rows - 1} BY 10 LOOP {update}"
                " END LOOP; END LOOP; END$$"
            )

    def pace(self, seconds: int, commits: int) -> None:
        """So many transactions of one row each second, each with the moment of its write."""
        import psycopg

        url = self.database.address.url.set(drivername="postgresql").render_as_string(hide_password=False)
        wait = f"begun + turn * interval '{1 / commits} seconds' - clock_timestamp()"
        with psycopg.connect(url, autocommit=True, **self.database.address.secrets) as connection:
            connection.execute(
                "DO $$DECLARE begun timestamptz := clock_timestamp(); BEGIN"
                f" FOR turn IN 1..{seconds * commits} LOOP"
                "  UPDATE orders SET ts = clock_timestamp() AT TIME ZONE 'UTC' WHERE id = turn; COMMIT;"
                f"  PERFORM pg_sleep(greatest(0, extract(epoch FROM {wait})));"
                " END LOOP; END$$"
            )

    def dump(self) -> int:
        """How many rows the driver has read."""
        with self.database.connect() as session:
            return sum(map(len, session.blocks(Statement("SELECT id, customer, price, note FROM orders"))))

    def bisect(self) -> int:
        """How many differences reladiff finds, by checksums, as it does between two servers."""
        from reladiff import Algorithm, connect_to_table, diff_tables

        url = os.environ["CQ_BENCH_SOURCE"]
        extra = ("customer", "price", "note")
        tables = [
            connect_to_table(url, name, "id", extra_columns=extra) for name in ("orders", "orders_before")
        ]
        try:
            return sum(1 for _ in diff_tables(*tables, algorithm=Algorithm.HASHDIFF))
        finally:
            for table in tables:  # which would hold what the next round makes anew
                table.database.close()
