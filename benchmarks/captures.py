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
    lag          how far a table is behind that is written to in 500 transactions a second, captured by LOG EVERY 1 SECOND: the age
                 of its newest row
    freshness    from a commit at the source until the delta of a continuous query, a join of two captured tables, is with a
                 callback; both captures EVERY 1 SECOND, by their timestamps and, where the server decodes its log, by LOG

Seconds are medians over the rounds; ratios say how many times longer the dump and the bisection took. One JSON line per figure.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import Any

from capture_source import Source
from frame import Figure, arguments, bars, run, timed
from pyspark.sql import SparkSession
from wire import Counter, counted

import cq_engine

NAME = "captures"
METHODS = {
    "TIMESTAMP": "TIMESTAMP (ts, DELETED gone)",
    "CHECKSUM": "CHECKSUM",
    "RANGES": "RANGES (rows = 1000)",
    "RANGES CHECKSUM": "RANGES (rows = 1000, CHECKSUM)",
    "COPY": "COPY",
    "COPY AT SOURCE": "COPY WITH (at = 'source')",
}
CHANGES = ["scattered", "clustered", "none"]
COMMITS = 500
"""A second, of what is followed for its lag."""
FIGURES = ["log", "freshness"]
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
        if "log" in options.figures:
            yield log(directory, options.rows, spark)
        for kind, url in urls.items():
            with counted(url) if options.bytes else nullcontext((url, None)) as (through, count):
                os.environ["CQ_BENCH_SOURCE"] = through
                yield from of(directory / kind, kind, options, spark, count)

    return run(NAME, options, measure, draw=plot)


def plot(figures: Sequence[Figure], path: str) -> None:
    """Rows that came from the source, by method."""
    found = {
        f["method"]: f["rows_read"] for f in figures if f["figure"] == "tick" and f["changed"] == "clustered"
    }
    bars(found, path, title="rows from the source, 1 % changed in one place")


def of(
    directory: Path,
    kind: str,
    options: argparse.Namespace,
    spark: SparkSession | None,
    count: Counter | None,
) -> Iterator[Figure]:
    """All figures of one database."""
    source = Source(kind, options.rows, options.seed)
    source.fill()
    source.wire = count
    known = {"of": f"{options.rows:,} rows in {kind}".replace(",", " "), "rows": options.rows}
    with cq_engine.connect(directory, spark=spark, conf={"maintenance": "manual"}, scheduler=False) as engine:
        engine.execute(f"CREATE SOURCE shop TYPE {kind} WITH (url = '${{CQ_BENCH_SOURCE}}')")
        for number, name in enumerate(options.methods):
            using = METHODS[name]
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
        engine.maintain()  # as the background does between ticks
        for how in options.changes:
            yield from _ticks(engine, source, how, options, known)
    if "log" in options.figures and source.is_decoded():
        yield decoding(directory / "decoding", source, spark)
    if "freshness" in options.figures and source.is_decoded():
        yield freshness(directory / "log", source, options.commits, "LOG WITH (slot = '{slot}')", spark)
    if "freshness" in options.figures:
        yield freshness(directory / "fresh", source, options.commits, METHODS["TIMESTAMP"], spark)
    if "freshness" in options.figures and source.is_decoded():
        yield lag(directory / "lag", source, options.seconds, spark)  # it leaves timestamps of today


def _ticks(
    engine: cq_engine.Engine, source: Source, how: str, options: argparse.Namespace, known: Figure
) -> Iterator[Figure]:
    seconds: dict[str, list[float]] = {}
    read: dict[str, int] = {}
    sent: dict[str, int] = {}

    def note(name: str, action: Callable[[], Any]) -> Any:
        before = source.sent()
        took, done = timed(action)
        seconds.setdefault(name, []).append(took)
        sent[name] = source.sent() - before
        return done

    for _ in range(options.rounds):
        source.change(how)
        for number, name in enumerate(options.methods):
            done = note(name, lambda number=number: engine.refresh_capture(f"c{number}"))
            if (done.rows == 0) is (how != "none"):
                raise AssertionError(f"{name} has found {done.rows} change rows")
            read[name] = done.rows_read
        note("dump", source.dump)
        if source.is_bisected():
            note("bisection", source.bisect)
        engine.maintain()
    medians = {name: median(values) for name, values in seconds.items()}
    for name, took in medians.items():
        figure: Figure = {"figure": "tick", "method": name} if name in METHODS else {"figure": name}
        figure = {**known, **figure, "changed": how, "seconds": round(took, 3)}
        if options.bytes:
            figure["bytes"] = sent[name]
        if name in METHODS:
            figure["rows_read"] = read[name]
            for other in ("dump", "bisection"):
                if other in medians:
                    figure[f"{other}_ratio"] = round(medians[other] / took, 2)
        yield figure


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
        "figure": "log", "of": "debezium", "changes": 2 * rows, "commits": len(done.commit_versions),
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
        "figure": "log", "of": "postgresql", "changes": changes, "commits": len(done.commit_versions),
        "seconds": round(seconds, 3), "changes_per_second": round(changes / seconds),
    }  # fmt: skip


def lag(directory: Path, source: Source, seconds: int, spark: SparkSession | None) -> Figure:
    """How far the table is behind while its rows are written in transactions of their own, without end."""
    late = []
    with cq_engine.connect(directory, spark=spark) as engine:
        engine.execute("CREATE TABLE t (id INT PRIMARY KEY, ts TIMESTAMP)")
        engine.execute("CREATE SOURCE shop TYPE postgresql WITH (url = '${CQ_BENCH_SOURCE}')")
        engine.execute(
            "CREATE CAPTURE c INTO t FROM shop TABLE 'orders' (id, ts) USING LOG WITH (slot = 'cq_benchmark_lag')"
            " EVERY 1 SECOND"
        )
        try:
            engine.refresh_capture("c")
            writer = threading.Thread(target=source.pace, args=(seconds, COMMITS))
            writer.start()
            time.sleep(2)
            while writer.is_alive():
                (newest,) = engine.execute("SELECT max(ts) FROM t").fetchall()[0]
                late.append((datetime.now(timezone.utc) - newest).total_seconds())
                time.sleep(0.3)
            writer.join()
        finally:
            engine.execute("DROP CAPTURE c")
    return {
        "figure": "lag", "of": source.kind, "method": "LOG", "commits_per_second": COMMITS,
        "median": round(median(late), 3), "greatest": round(max(late), 3),
    }  # fmt: skip


def freshness(
    directory: Path, source: Source, commits: int, using: str, spark: SparkSession | None
) -> Figure:
    """One row at a time, each as soon as the one before has come, through a join of two captured tables."""
    came = threading.Event()
    late = []
    with cq_engine.connect(directory, spark=spark) as engine:
        engine.execute(TABLE.format("t"))
        engine.execute("CREATE TABLE customers (cid INT PRIMARY KEY, region STRING)")
        engine.execute(f"CREATE SOURCE shop TYPE {source.kind} WITH (url = '${{CQ_BENCH_SOURCE}}')")
        for capture, into, table in (("c", "t", "orders"), ("d", "customers", "customers")):
            clauses = f"USING {using.format(slot=f'cq_benchmark_{capture}')} EVERY 1 SECOND"
            engine.execute(f"CREATE CAPTURE {capture} INTO {into} FROM shop TABLE '{table}' {clauses}")
            engine.refresh_capture(capture)

        @engine.callback("alert")
        def alert(_: cq_engine.DeltaBatch) -> None:
            came.set()

        engine.execute(
            "CREATE CONTINUOUS QUERY q DESTINATION CALLBACK alert AS"
            " SELECT t.id, t.price, c.region FROM t JOIN customers AS c ON c.cid = t.customer WHERE t.price > 5000"
        )
        for number in range(commits + 3):
            came.clear()
            source.run("UPDATE orders SET price = 6000, ts = ? WHERE id = ?", (source.now(), number))
            took, arrived = timed(lambda: came.wait(60))
            if not arrived:
                raise AssertionError(f"no delta of order {number} has come")
            if number >= 3:
                late.append(took)
            time.sleep(source.dice.random())
        for capture in ("c", "d"):
            engine.execute(f"DROP CAPTURE {capture}")
        source.run("UPDATE orders SET price = 1, ts = ? WHERE price = 6000", (source.now(),))
    late.sort()
    return {
        "figure": "freshness", "of": source.kind, "method": using.split(maxsplit=1)[0], "commits": commits,
        "median": round(median(late), 3), "p99": round(late[int(len(late) * 0.99)], 3),
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
    parser.add_argument(
        "--seconds", type=int, default=20, help="of writing, for the lag (default: %(default)s)"
    )
    parser.add_argument(
        "--bytes", action="store_true", help="counts what the servers send, by a process in between"
    )
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS), help="default: all")
    parser.add_argument("--changes", nargs="+", choices=CHANGES, default=CHANGES, help="default: all")
    parser.add_argument(
        "--figures", nargs="*", choices=FIGURES, default=FIGURES, help="besides ticks (default: all)"
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
