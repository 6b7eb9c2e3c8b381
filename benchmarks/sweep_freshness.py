"""How old a delta is that a query over tables at their sources delivers, beside a query over copies of them.

    python benchmarks/sweep_freshness.py                                    # SQLite, and PostgreSQL where it can be started: five minutes
    python benchmarks/sweep_freshness.py --kinds sqlite --rates 10 --seconds 5

Orders in one database, customers in another, two orders for each customer; at each somebody updates so many rows a second, each in a
transaction of its own, by a process of its own. A continuous query joins both tables and delivers to a callback:

    COMPLETE     over the tables where they are, a delta for each transaction (SWEEP)
    STRONG       over the tables where they are, a delta for those that are met on the way (Nested SWEEP)
    COPY         over copies, which captures by the same triggers fill EVERY 1 SECOND; the others ask each second, too

    freshness    seconds from the moment just before the write at the source until the callback has its delta: of all updates that were
                 delivered; `drained` are the seconds from the last write until the callback has had all
    shipped      what came from the sources: `begin_bytes` while the query (and the copies) were made, `bytes_per_update` after that,
                 counted by a process in between (PostgreSQL); `keys_per_update` went there and `rows_per_update` came back as answers to
                 questions, apart from the log's own rows; `recopied_rows` are those that copying both tables anew would ship

The callback is called for each commit, and confirms each in the catalog; with `--batch refresh` for those of a refresh together.
At the end the result is compared with the join of what the databases have. One JSON line per figure.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import sqlalchemy as sa
from frame import Figure, arguments, canvas, run
from pyspark.sql import SparkSession
from sweep_writer import connected
from wire import Counter, counted

import cq_engine

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests import postgres

NAME = "sweep_freshness"
METHODS = ("COMPLETE", "STRONG", "COPY")
WRITER = Path(__file__).with_name("sweep_writer.py")
TABLES = {"orders": "oid INT NOT NULL PRIMARY KEY, cid INT", "customers": "cid INT NOT NULL PRIMARY KEY"}
DECLARED = {
    "orders": "oid INT, cid INT, sent BIGINT, PRIMARY KEY (oid)",
    "customers": "cid INT, sent BIGINT, PRIMARY KEY (cid)",
}
QUERY = (
    "SELECT o.oid, c.cid, o.sent AS ordered, c.sent AS moved FROM orders o JOIN customers c ON c.cid = o.cid"
)


def main(argv: Sequence[str] | None = None, spark: SparkSession | None = None) -> int:
    """Runs the benchmark and prints its JSON lines."""
    options = _options(argv)
    options.scales = [float(options.rows)]

    def measure(directory: Path, _: float) -> Iterator[Figure]:
        for kind in options.kinds:
            for method in options.methods:
                for rate in options.rates:
                    where = {"of": kind, "method": method, "per_second": rate}
                    if options.batch != "transaction":
                        where["batch"] = options.batch
                    yield from of(directory / f"{kind}{method}{rate}", where, options, spark)

    return run(NAME, options, measure, draw=plot)


def of(
    directory: Path, where: Figure, options: argparse.Namespace, spark: SparkSession | None
) -> Iterator[Figure]:
    """One query at one rate."""
    kind, method, rate = where["of"], where["method"], where["per_second"]
    directory.mkdir()
    with ExitStack() as stack:
        urls, counters = _servers(kind, directory, stack)
        for (table, url), rows in zip(urls.items(), (options.rows, options.rows // 2)):
            _fill(url, table, rows, options.rows // 2)
        engine = stack.enter_context(cq_engine.connect(directory / "warehouse", spark=spark))
        seen = Seen(engine, options.batch)
        _declare(engine, kind, method)
        seen.whole.wait(options.patience)
        begin = sum(each.value for each in counters)
        load = os.getloadavg()[0]
        written = _write(urls, rate, options)
        started = time.monotonic()
        drained = seen.until([last for _, _, last in written], options.patience)
        updates = sum(count for count, _, _ in written)
        _compare(engine, urls, drained)
        late = sorted(seen.late)
        yield {
            **where, "figure": "freshness", "updates": updates, "load": round(load, 1),
            "reached_per_second": [round(count / seconds, 1) for count, seconds, _ in written],
            "median": round(median(late), 3), "p99": round(late[int(len(late) * 0.99)], 3),
            "greatest": round(late[-1], 3), "commits": seen.commits,
            "drained": round(time.monotonic() - started, 3) if drained else f"not in {options.patience} s",
        }  # fmt: skip
        yield {
            **where, "figure": "shipped", "recopied_rows": options.rows + options.rows // 2,
            **_shipped(engine, updates),
            **({"begin_bytes": begin, "bytes_per_update": round((sum(c.value for c in counters) - begin) / updates)}
               if counters else {}),
        }  # fmt: skip
        engine.execute("DROP CONTINUOUS QUERY q")
        if method == "COPY":
            for table in TABLES:
                engine.execute(f"DROP CAPTURE {table}_in")


class Seen:
    """What a callback has been told: how late, in how many commits, and up to which moments of both tables."""

    def __init__(self, engine: cq_engine.Engine, batch: str) -> None:
        self.late: list[float] = []
        self.commits = 0
        self.last = [0, 0]
        self.whole = threading.Event()
        engine.callback("told", batch=batch)(self.told)

    def told(self, batch: cq_engine.DeltaBatch) -> None:
        """Notes the deltas of a batch; the first is the whole result."""
        now = time.time()
        if self.whole.is_set():
            self.commits += len({delta.commit_version for delta in batch})
        for delta in batch:
            if delta.new is None:
                continue
            for place, moment in enumerate(delta.new[2:]):
                if self.whole.is_set() and moment and (delta.old is None or delta.old[2 + place] != moment):
                    self.late.append(now - moment / 1e6)
                self.last[place] = max(self.last[place], moment)
        if batch.last:
            self.whole.set()

    def until(self, moments: Sequence[int], patience: float) -> bool:
        """Waits until the last update of each table has come."""
        end = time.monotonic() + patience
        while time.monotonic() < end:
            if all(had >= moment for had, moment in zip(tuple(self.last), moments)):
                return True
            time.sleep(0.01)
        return False


# ---------------------------------------------------------------- the sources


def _servers(kind: str, directory: Path, stack: ExitStack) -> tuple[dict[str, str], list[Counter]]:
    """A database for each table, by its URL; the engine is told of one that counts, where it can be."""
    urls, counters = {}, []
    if kind == "postgresql":
        server = stack.enter_context(postgres.server())
        urls = {table: postgres.fresh(server) for table in TABLES}
    else:
        urls = {table: f"sqlite:///{directory}/{table}.db" for table in TABLES}
    for table, url in urls.items():
        through = url
        if kind == "postgresql":
            through, counter = stack.enter_context(counted(url))
            counters.append(counter)
        os.environ[f"CQ_BENCH_{table.upper()}"] = through
    return urls, counters


def _fill(url: str, table: str, rows: int, customers: int) -> None:
    database = connected(url)
    with database.begin() as connection:
        connection.exec_driver_sql(f"CREATE TABLE {table} ({TABLES[table]}, sent BIGINT)")
        names = ", ".join(f":{name}" for name in ("oid", "cid")[table == "customers" :])
        some = [{"oid": n, "cid": n % customers} for n in range(rows)]
        connection.execute(sa.text(f"INSERT INTO {table} VALUES ({names}, 0)"), some)
        if table == "orders":
            connection.exec_driver_sql("CREATE INDEX orders_cid ON orders (cid)")
    database.dispose()


def _write(urls: dict[str, str], rate: int, options: argparse.Namespace) -> list[tuple[int, float, int]]:
    """Both write at once: for each how many updates, in how many seconds, and the last moment."""
    writers = []
    for (table, url), keys in zip(urls.items(), (options.rows, options.rows // 2)):
        key = "oid" if table == "orders" else "cid"
        command = [
            sys.executable, str(WRITER), url, table, key,
            *map(str, (keys, rate, options.seconds, options.seed)),
        ]  # fmt: skip
        writers.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    written = []
    for writer in writers:
        said, _ = writer.communicate()
        count, seconds, last = said.split()
        written.append((int(count), float(seconds), int(last)))
    return written


# ---------------------------------------------------------------- the warehouse


def _declare(engine: cq_engine.Engine, kind: str, method: str) -> None:
    log = "USING LOG WITH (install = true)"
    for table, columns in DECLARED.items():
        at = f"at_{table}"
        engine.execute(f"CREATE SOURCE {at} TYPE {kind} WITH (url = '${{CQ_BENCH_{table.upper()}}}')")
        if method == "COPY":
            engine.execute(f"CREATE TABLE {table} ({columns})")
            engine.execute(
                f"CREATE CAPTURE {table}_in INTO {table} FROM {at} TABLE '{table}' {log} EVERY 1 SECOND"
            )
            engine.refresh_capture(f"{table}_in")
        else:
            engine.execute(f"CREATE TABLE {table} ({columns}) REMOTE FROM {at} TABLE '{table}' {log}")
    level = "" if method == "COPY" else f"CONSISTENCY {method}"
    engine.execute(
        f"CREATE CONTINUOUS QUERY q {level} DESTINATION CALLBACK told START FROM SNAPSHOT AS {QUERY}"
    )


def _shipped(engine: cq_engine.Engine, updates: int) -> Figure:
    """What a sweep has counted, by update."""
    for capture in engine.execute("SHOW CAPTURES").to_arrow().to_pylist():
        found = json.loads(capture["position"] or "{}").get("all")
        if found:
            return {
                "messages_per_update": round(found["messages"] / updates, 4),
                "keys_per_update": round(found["keys_sent"] / updates, 3),
                "rows_per_update": round(found["rows_received"] / updates, 3),
                "compensations": found["compensations"],
            }
    return {}


def _compare(engine: cq_engine.Engine, urls: dict[str, str], drained: bool) -> None:
    if not drained:
        return
    rows: dict[str, list[Any]] = {}
    for table, url in urls.items():
        database = connected(url)
        with database.connect() as connection:
            rows[table] = [tuple(row) for row in connection.execute(sa.text(f"SELECT * FROM {table}"))]
        database.dispose()
    moved = dict(rows["customers"])
    wanted = sorted((oid, cid, sent, moved[cid]) for oid, cid, sent in rows["orders"])
    if sorted(map(tuple, engine.execute("SELECT * FROM q").fetchall())) != wanted:
        raise AssertionError("the result is not the join of what the sources have")


# ---------------------------------------------------------------- plot


def plot(figures: Sequence[Figure], path: str) -> None:
    """Freshness by rate: medians, and the 99th percentile as a thin line."""
    found = [figure for figure in figures if figure["figure"] == "freshness"]
    kinds = sorted({figure["of"] for figure in found})
    drawn = canvas(len(kinds))
    if drawn is None:
        return
    drawing, panels = drawn
    for kind, panel in zip(kinds, panels):
        for number, method in enumerate(METHODS):
            chosen = [f for f in found if f["of"] == kind and f["method"] == method]
            rates = [f["per_second"] for f in chosen]
            panel.plot(rates, [f["median"] for f in chosen], marker="o", color=f"C{number}", label=method)
            panel.plot(rates, [f["p99"] for f in chosen], linestyle=":", color=f"C{number}")
        panel.set(title=kind, xlabel="updates a second of each source", xscale="log", yscale="log")
    panels[0].set(ylabel="seconds from a write to its delta (p99 dotted)")
    panels[0].legend(fontsize="small")
    drawing.savefig(path, dpi=150)


def _kinds() -> list[str]:
    return ["sqlite"] if postgres.missing() else ["sqlite", "postgresql"]


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = arguments(__doc__.split("\n", 1)[0], scales=(), rounds=1)
    parser.add_argument("--rows", type=int, default=20_000, help="of the orders (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=10, help="of writing (default: %(default)s)")
    parser.add_argument("--patience", type=float, default=60, help="seconds (default: %(default)s)")
    parser.add_argument("--kinds", nargs="+", choices=("sqlite", "postgresql"), default=_kinds())
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument(
        "--batch",
        choices=("transaction", "refresh"),
        default="transaction",
        help="of the callback (default: %(default)s)",
    )
    parser.add_argument("--rates", type=int, nargs="+", default=[10, 100, 500], help="of each source")
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
