"""What a tick of a capture reads and how long it takes, by method, beside a dump of the table and a comparison by bisection.

    python benchmarks/captures.py                                           # SQLite, 100 000 rows, five minutes
    python benchmarks/captures.py --rows 1000000 --url postgresql=postgresql://me@127.0.0.1/bench   # its table orders is made anew

One table at the source: a key, three columns of 80 bytes together, a timestamp and a delete flag, both indexed. Figures:

    initial      the first tick of each method: all rows
    tick         a tick after 1 % of the rows was changed, `scattered` over the table or `clustered` in one place, and one after
                 nothing was (`none`); `rows_read` are the rows that came from the source, keys and checksums alone among them
    dump         the driver reads all rows and throws them away
    bisection    reladiff (`pip install reladiff`) compares the table with a copy at the source from before the changes: it
                 finds what differs, and writes nothing
    log          changes a second out of a file of Debezium's envelopes into the change log, and out of PostgreSQL's own log, where
                 its wal_level is logical; transactions of ten
    freshness    from a commit at the source until the delta of a continuous query is with a callback, the capture EVERY 1 SECOND

Seconds are medians over the rounds. One JSON line per figure.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from frame import Figure, arguments, canvas, run, timed
from pyspark.sql import SparkSession

import cq_engine
from cq_engine.catalog.model import DeclaredSource
from cq_engine.sources.sql.database import Database

NAME = "captures"
METHODS = {
    "TIMESTAMP": "TIMESTAMP (ts, DELETED gone)",
    "CHECKSUM": "CHECKSUM",
    "RANGES": "RANGES (rows = 1000)",
    "RANGES CHECKSUM": "RANGES (rows = 1000, CHECKSUM)",
    "COPY": "COPY",
}
TABLE = "CREATE TABLE {} (id INT, customer INT, price DECIMAL(10, 2), note STRING, PRIMARY KEY (id))"


def main(argv: Sequence[str] | None = None, spark: SparkSession | None = None) -> int:
    """Runs the benchmark and prints its JSON lines."""
    options = _options(argv)
    options.scales = [float(options.rows)]

    def measure(directory: Path, _: float) -> Iterator[Figure]:
        urls = dict(each.split("=", 1) for each in options.url)
        if not urls:
            (directory / "shop.db").touch()
            urls = {"sqlite": f"sqlite:///{directory}/shop.db"}
        yield log(directory, options.rows, spark)
        for kind, url in urls.items():
            os.environ["CQ_BENCH_SOURCE"] = url
            yield from of(directory / kind, kind, options, spark)

    return run(NAME, options, measure, draw=plot)


def plot(figures: Sequence[Figure], path: str) -> None:
    """Rows that came from the source, by method."""
    drawn = canvas(1)
    if drawn is None:
        return
    drawing, (panel,) = drawn
    found = {
        f["method"]: f["rows_read"] for f in figures if f["figure"] == "tick" and f["changed"] == "clustered"
    }
    panel.barh(list(found), list(found.values()))
    panel.set(title="rows from the source, 1 % changed in one place")
    drawing.savefig(path, dpi=150)


class Source:
    """The database, written to by this program."""

    def __init__(self, kind: str, rows: int, seed: int) -> None:
        self.database = Database.open(DeclaredSource("shop", kind, (("url", os.environ["CQ_BENCH_SOURCE"]),)))
        self.kind, self.rows, self.dice, self.clock = kind, rows, random.Random(seed), 0

    def run(self, sql: str, *rows: Sequence[Any]) -> None:
        """A statement, once or for each row."""
        with self.database.write() as session:
            text = sql.replace("?", self.database.server.mark)
            session.connection.exec_driver_sql(text, list(map(tuple, rows)) or ())

    def fill(self) -> None:
        """All rows, one second apart."""
        moment = {"sqlite": "DATETIME", "mariadb": "DATETIME(6)"}.get(self.kind, "timestamp")
        self.run("DROP TABLE IF EXISTS orders")
        self.run(
            "CREATE TABLE orders (id INT NOT NULL PRIMARY KEY, customer INT, price DECIMAL(10, 2), note VARCHAR(100),"
            f" ts {moment}, gone SMALLINT)"
        )
        for start in range(0, self.rows, 50_000):
            some = range(start, min(start + 50_000, self.rows))
            rows = [(n, n % 1000, n % 97, f"note of order {n}" + "." * 50, self.now(), 0) for n in some]
            self.run("INSERT INTO orders VALUES (?, ?, ?, ?, ?, ?)", *rows)
        self.run("CREATE INDEX orders_ts ON orders (ts)")

    def now(self) -> str:
        """A moment after all that were given before."""
        self.clock += 1
        return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(1_600_000_000 + self.clock))

    def change(self, how: str) -> None:
        """1 % of the rows."""
        count = self.rows // 100 if how != "none" else 0
        begin = self.dice.randrange(self.rows - count)
        some = (
            range(begin, begin + count) if how == "clustered" else self.dice.sample(range(self.rows), count)
        )
        moment = self.now()
        self.copy()
        if count:
            self.run(
                "UPDATE orders SET price = price + 1, ts = ? WHERE id = ?",
                *((moment, number) for number in some),
            )

    def copy(self) -> None:
        """What bisection compares with."""
        if importlib.util.find_spec("reladiff") is not None and self.kind != "sqlite":
            self.run("DROP TABLE IF EXISTS orders_before")
            self.run("CREATE TABLE orders_before AS SELECT * FROM orders")
            self.run("ALTER TABLE orders_before ADD PRIMARY KEY (id)")

    def is_decoded(self) -> bool:
        """Whether the server can decode its own log."""
        from cq_engine.sources.sql.model import Statement

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

    def dump(self) -> int:
        """How many rows the driver has read."""
        from cq_engine.sources.sql.model import Statement

        with self.database.connect() as session:
            return sum(map(len, session.blocks(Statement("SELECT id, customer, price, note FROM orders"))))

    def bisect(self) -> int:
        """How many differences reladiff finds."""
        from reladiff import connect_to_table, diff_tables

        url = os.environ["CQ_BENCH_SOURCE"]
        extra = ("customer", "price", "note")
        tables = [
            connect_to_table(url, name, "id", extra_columns=extra) for name in ("orders", "orders_before")
        ]
        try:
            return sum(1 for _ in diff_tables(*tables))
        finally:
            for table in tables:  # which would hold what the next round makes anew
                table.database.close()


def of(
    directory: Path, kind: str, options: argparse.Namespace, spark: SparkSession | None
) -> Iterator[Figure]:
    """All figures of one database."""
    source = Source(kind, options.rows, options.seed)
    source.fill()
    known = {"source": kind, "rows": options.rows}
    with cq_engine.connect(directory, spark=spark, conf={"maintenance": "manual"}, scheduler=False) as engine:
        engine.execute(f"CREATE SOURCE shop TYPE {kind} WITH (url = '${{CQ_BENCH_SOURCE}}')")
        for number, (name, using) in enumerate(METHODS.items()):
            engine.execute(TABLE.format(f"t{number}"))
            engine.execute(
                f"CREATE CAPTURE c{number} INTO t{number} FROM shop TABLE 'orders' USING {using} ON DEMAND"
            )
            seconds, done = timed(lambda number=number: engine.refresh_capture(f"c{number}"))
            yield {
                **known,
                "figure": "initial",
                "method": name,
                "seconds": round(seconds, 3),
                "rows_read": done.rows_read,
            }
        for how in ("scattered", "clustered", "none"):
            yield from _ticks(engine, source, how, options.rounds, known)
    if source.is_decoded():
        yield decoding(directory / "decoding", source, spark)
    yield freshness(directory / "fresh", source, options.commits, spark)


def _ticks(
    engine: cq_engine.Engine, source: Source, how: str, rounds: int, known: Figure
) -> Iterator[Figure]:
    seconds: dict[str, list[float]] = {}
    read: dict[str, int] = {}
    for _ in range(rounds):
        source.change(how)
        for number, name in enumerate(METHODS):
            took, done = timed(lambda number=number: engine.refresh_capture(f"c{number}"))
            if (done.rows == 0) is (how != "none"):
                raise AssertionError(f"{name} has found {done.rows} change rows")
            seconds.setdefault(name, []).append(took)
            read[name] = done.rows_read
        seconds.setdefault("dump", []).append(timed(source.dump)[0])
        if importlib.util.find_spec("reladiff") is not None and source.kind != "sqlite":
            seconds.setdefault("bisection", []).append(timed(source.bisect)[0])
        engine.maintain()
    for name, values in seconds.items():
        figure = {"figure": "tick", "method": name} if name in METHODS else {"figure": name}
        yield {
            **known, **figure, "changed": how, "seconds": round(median(values), 3),
            **({"rows_read": read[name]} if name in read else {}),
        }  # fmt: skip


def log(directory: Path, rows: int, spark: SparkSession | None) -> Figure:
    """Inserts, then updates of every row, in transactions of ten."""
    with (directory / "log.jsonl").open("w") as file:
        for number in range(2 * rows):
            row = {
                "id": number % rows,
                "customer": number % 1000,
                "price": str(number % 97),
                "note": "." * 60,
            }
            source = {"txId": number // 10, "ts_ms": 1_600_000_000_000 + number}
            file.write(
                json.dumps({"op": "c" if number < rows else "u", "after": row, "source": source}) + "\n"
            )
    with cq_engine.connect(
        directory / "log", spark=spark, conf={"maintenance": "manual"}, scheduler=False
    ) as engine:
        engine.execute(TABLE.format("t"))
        engine.execute(f"CREATE SOURCE shop TYPE debezium WITH (path = '{directory}/log.jsonl')")
        engine.execute("CREATE CAPTURE c INTO t FROM shop USING LOG ON DEMAND")
        seconds, done = timed(lambda: engine.refresh_capture("c"))
    return {
        "figure": "log", "source": "debezium", "changes": 2 * rows, "commits": len(done.commit_versions),
        "seconds": round(seconds, 3), "changes_per_second": round(2 * rows / seconds),
    }  # fmt: skip


def decoding(directory: Path, source: Source, spark: SparkSession | None) -> Figure:
    """Updates of every row, twice, in transactions of ten, out of a replication slot."""
    with cq_engine.connect(directory, spark=spark, conf={"maintenance": "manual"}, scheduler=False) as engine:
        engine.execute(TABLE.format("t"))
        engine.execute("CREATE SOURCE shop TYPE postgresql WITH (url = '${CQ_BENCH_SOURCE}')")
        engine.execute(
            "CREATE CAPTURE c INTO t FROM shop TABLE 'orders' USING LOG WITH (slot = 'cq_benchmark') ON DEMAND"
        )
        try:
            engine.refresh_capture("c")
            source.update_by_tens()
            seconds, done = timed(lambda: engine.refresh_capture("c"))
        finally:
            engine.execute("DROP CAPTURE c")
    changes = 2 * source.rows
    return {
        "figure": "log", "source": "postgresql", "changes": changes, "commits": len(done.commit_versions),
        "seconds": round(seconds, 3), "changes_per_second": round(changes / seconds),
    }  # fmt: skip


def freshness(directory: Path, source: Source, commits: int, spark: SparkSession | None) -> Figure:
    """One row at a time, each as soon as the one before has come."""
    came = threading.Event()
    late = []
    with cq_engine.connect(directory, spark=spark) as engine:
        engine.execute(TABLE.format("t"))
        engine.execute(f"CREATE SOURCE shop TYPE {source.kind} WITH (url = '${{CQ_BENCH_SOURCE}}')")
        engine.execute(
            f"CREATE CAPTURE c INTO t FROM shop TABLE 'orders' USING {METHODS['TIMESTAMP']} EVERY 1 SECOND"
        )
        engine.refresh_capture("c")

        @engine.callback("alert")
        def alert(_: cq_engine.DeltaBatch) -> None:
            came.set()

        engine.execute(
            "CREATE CONTINUOUS QUERY q DESTINATION CALLBACK alert AS SELECT id, price FROM t WHERE price > 5000"
        )
        for number in range(commits + 3):
            came.clear()
            source.run("UPDATE orders SET price = 6000, ts = ? WHERE id = ?", (source.now(), number))
            took, _ = timed(lambda: came.wait(60))
            if number >= 3:
                late.append(took)
            time.sleep(source.dice.random())
    late.sort()
    return {
        "figure": "freshness", "source": source.kind, "median": round(median(late), 3),
        "p99": round(late[int(len(late) * 0.99)], 3),
    }  # fmt: skip


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = arguments(__doc__.split("\n", 1)[0], scales=(), rounds=3)
    parser.add_argument("--rows", type=int, default=100_000, help="of the table (default: %(default)s)")
    parser.add_argument("--commits", type=int, default=30, help="that are waited for (default: %(default)s)")
    parser.add_argument(
        "--url",
        action="append",
        default=[],
        metavar="TYPE=URL",
        help="a database whose table orders is made anew",
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
