"""How many transactions several processes commit to one warehouse, and how long each of them takes.

    python benchmarks/writers.py                                 # 1, 2, 4 and 8 processes
    python benchmarks/writers.py --processes 1 2 --seconds 3 --catalog postgresql://cq@127.0.0.1/bench

Each process inserts one row per transaction, without Spark, for some seconds: into a table of its own (`disjoint`), or into
rows of one table that others write, too (`contended`), where a transaction that meets another one is run again until it is
committed. None of them has the duties. Milliseconds are of one transaction with all its tries, `start_seconds` from the start
of a process to its first commit. One JSON line per figure goes to standard output. The database of `--catalog` has to be
empty, and one run takes one number of processes then.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median, quantiles

from frame import Figure, arguments, canvas, run
from pyspark.sql import SparkSession

import cq_engine

NAME = "writers"
KINDS = ("disjoint", "contended")
HOT_ROWS = 20


def main(argv: Sequence[str] | None = None, spark: SparkSession | None = None) -> int:  # noqa: ARG001 - needs none
    """Runs the benchmark and prints its JSON lines."""
    options = _options(argv)
    if options.worker is not None:
        work(*options.worker, options)
        return 0
    return run(NAME, options, lambda directory, count: measure(directory, int(count), options), draw=plot)


def measure(directory: Path, count: int, options: argparse.Namespace) -> Iterator[Figure]:
    """The figures of `count` processes."""
    warehouse = str(directory / "warehouse")
    with cq_engine.connect(warehouse, catalog=options.catalog, scheduler=False) as engine:
        engine.execute("CREATE TABLE shared (slot INT, n INT, PRIMARY KEY (slot, n))")
        for number in range(count):
            engine.execute(f"CREATE TABLE own_{number} (slot INT, n INT, PRIMARY KEY (slot, n))")
    for kind in KINDS:
        said = [json.loads(text) for text in _together(warehouse, count, kind, options)]
        times = [each for one in said for each in one["milliseconds"]]
        seconds = max(one["seconds"] for one in said)
        yield {
            "figure": kind,
            "processes": count,
            "catalog": "sqlite" if options.catalog is None else "postgresql",
            "commits_per_second": round(len(times) / seconds, 1),
            "median_ms": round(median(times), 2),
            "p99_ms": round(quantiles(times, n=100)[98], 2),
            "tries_per_commit": round(sum(one["tries"] for one in said) / len(times), 3),
            "start_seconds": round(median(one["start"] for one in said), 2),
        }


def _together(warehouse: str, count: int, kind: str, options: argparse.Namespace) -> list[str]:
    """What the processes print, which begin together when all of them have committed once."""
    command = [sys.executable, __file__, "--seconds", str(options.seconds), "--seed", str(options.seed)]
    command += [] if options.catalog is None else ["--catalog", options.catalog]
    running = [
        subprocess.Popen(
            [*command, "--worker", warehouse, kind, str(number), str(time.time())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(count)
    ]
    for process in running:
        assert process.stdout is not None
        process.stdout.readline()
    for process in running:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return [process.communicate()[0] for process in running]


def work(warehouse: str, kind: str, number: str, begun: str, options: argparse.Namespace) -> None:
    """One process."""
    chance = random.Random(f"{options.seed} {number}")
    table = "shared" if kind == "contended" else f"own_{number}"
    with cq_engine.connect(warehouse, catalog=options.catalog, duties=False) as engine:
        commit(engine, f"own_{number}", 1_000_000 + KINDS.index(kind), 0)
        start = time.time() - float(begun)
        print("ready", flush=True)
        sys.stdin.readline()
        times, tries, begin = [], 0, time.monotonic()
        while time.monotonic() < begin + options.seconds:
            at = time.monotonic()
            slot = chance.randrange(HOT_ROWS) if kind == "contended" else len(times)
            tries += commit(engine, table, slot, int(number))
            times.append(1000 * (time.monotonic() - at))
        seconds = time.monotonic() - begin
    print(json.dumps({"milliseconds": times, "tries": tries, "seconds": seconds, "start": start}))


def commit(engine: cq_engine.Engine, table: str, slot: int, n: int) -> int:
    """Inserts a row; in the shared table the next one of its slot. How often that was tried."""
    for tries in range(1, 1_000):
        try:
            with engine.transaction() as tx:
                if table == "shared":
                    rows = tx.transaction.small_view(tx.transaction.table(table))
                    known = [] if rows is None else rows.to_pylist()
                    n = 1 + max((row["n"] for row in known if row["slot"] == slot), default=0)
                tx.insert(table, [(slot, n)])
            return tries
        except cq_engine.ConflictError:
            continue
    raise RuntimeError("a thousand conflicts in a row")


def plot(figures: Sequence[Figure], path: str) -> None:
    """Commits per second over the number of processes."""
    drawn = canvas(1)
    if drawn is None:
        return
    drawing, (panel,) = drawn
    for kind in KINDS:
        points = [(f["processes"], f["commits_per_second"]) for f in figures if f["figure"] == kind]
        panel.plot(*zip(*points), marker="o", label=kind)
    panel.set(title="commits", xlabel="processes", ylabel="per second", ylim=(0, None))
    panel.legend()
    drawing.savefig(path, dpi=150)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = arguments(__doc__ or "", scales=())
    parser.add_argument("--processes", dest="scales", type=int, nargs="+", default=[1, 2, 4, 8], metavar="N")
    parser.add_argument("--seconds", type=float, default=10.0, help="for how long they commit (default: 10)")
    parser.add_argument("--catalog", metavar="URL", help="default: SQLite in the warehouse")
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
