"""How long a person waits for `cq`: until its prompt takes input, and until a new process has refreshed a query.

    python benchmarks/cold_start.py                              # scale 0.1, about two minutes
    python benchmarks/cold_start.py --scale 0.01 --rounds 3

The warehouse exists, with a query of every shape and 20 transactions (see `recompute_and_diff.py`) that the queries
have not seen; each round commits another 20. Every figure is a process of its own, started as a user starts it.

    first delta    `cq exec "REFRESH CONTINUOUS QUERY q" "SELECT * FROM q CHANGES ..."`: seconds until the first delta
                   is printed, and until the process has ended; beside it `pyspark_seconds`, until an empty program of
                   PySpark has the result of its first query, and how many times as long the first delta takes
    prompt         `cq WAREHOUSE` at a pseudo-terminal: seconds until the prompt shows; `first_answer_seconds` until
                   `SHOW TABLES;`, typed at once, is answered

Seconds are medians over the rounds; nothing is left out as a warm-up, but the machine's file cache is what it is.
"""

from __future__ import annotations

import argparse
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from statistics import median

from frame import JOINED, Figure, apply, arguments, canvas, create, ratio, run
from pyspark.sql import SparkSession

import cq_engine
from estore import STREAM_B, Shop, Transaction, change_tables, load

NAME = "cold_start"
CQ = (sys.executable, "-m", "cq_engine")
DELTA = "_change_type"
"""The column of a change feed that only a table of deltas has."""
EMPTY = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[*]").config("spark.ui.enabled", "false").getOrCreate()
spark.range(5).toArrow()
print("done", flush=True)
spark.stop()
"""
"""The least that a program of PySpark's does."""
_LIMIT = 300.0
"""Seconds after which a process is given up."""


class ProcessError(Exception):
    """`cq` has not done what it was to do."""


@dataclass
class _Seconds:
    """What the processes of one kind took, by round."""

    first: list[float] = field(default_factory=list)
    second: list[float] = field(default_factory=list)


def main(argv: Sequence[str] | None = None, spark: SparkSession | None = None) -> int:
    """Runs the benchmark and prints its JSON lines; `spark` is a session for preparing the warehouse."""
    options = _options(argv)
    return run(NAME, options, lambda directory, scale: measure(directory, scale, options, spark), draw=plot)


def measure(
    directory: Path, scale: float, options: argparse.Namespace, spark: SparkSession | None
) -> Iterator[Figure]:
    """The figures of one scale."""
    warehouse = directory / "warehouse"
    shop = Shop(options.seed, scale)
    with cq_engine.connect(str(warehouse), spark=spark, scheduler=False) as engine:
        load(engine, scale)
        for query in options.queries:
            create(engine, query, JOINED[query])
    refreshed = {query: _Seconds() for query in options.queries}
    prompt, empty = _Seconds(), []
    for _ in range(options.rounds):
        batch = list(islice(shop.transactions(mix=STREAM_B, orders=12), options.transactions))
        since = _commit(warehouse, spark, batch)
        for query, into in refreshed.items():
            first, end = first_delta(warehouse, query, since)
            into.first.append(first)
            into.second.append(end)
        empty.append(first_query())
        shown, answered = time_to_prompt(warehouse)
        prompt.first.append(shown)
        prompt.second.append(answered)
    for query, into in refreshed.items():
        yield {
            "figure": "first delta",
            "scale": scale,
            "query": query,
            "first_delta_seconds": round(median(into.first), 3),
            "process_seconds": round(median(into.second), 3),
            "pyspark_seconds": round(median(empty), 3),
            "ratio": ratio(median(into.first), median(empty)),
            "n": len(into.first),
        }
    yield {
        "figure": "prompt",
        "scale": scale,
        "prompt_seconds": round(median(prompt.first), 3),
        "first_answer_seconds": round(median(prompt.second), 3),
        "n": len(prompt.first),
    }


def _commit(warehouse: Path, spark: SparkSession | None, batch: list[Transaction]) -> int:
    """Commits transactions; the version before them."""
    with cq_engine.connect(str(warehouse), spark=spark, scheduler=False) as engine:
        before = engine.catalog.newest_version
        apply(engine, change_tables(batch))
        return before


def first_query() -> float:
    """Seconds until an empty program of PySpark has its first result. Raises ProcessError."""
    started = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-c", EMPTY],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        found = time.perf_counter() - started
        if process.wait(_LIMIT) or said != "done\n":
            raise ProcessError("PySpark did not start")
    return found


def first_delta(warehouse: Path, query: str, since: int) -> tuple[float, float]:
    """Refreshes a query in a process of its own: seconds until the first delta is printed, and until the end.

    Raises ProcessError where the process fails or prints no delta.
    """
    statements = (
        f"REFRESH CONTINUOUS QUERY {query}",
        f"SELECT * FROM {query} CHANGES FROM VERSION {since + 1} LIMIT 20",
    )
    started = time.perf_counter()
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            [*CQ, "exec", "--warehouse", str(warehouse), *statements],
            stdout=subprocess.PIPE,
            stderr=errors,
            stdin=subprocess.DEVNULL,
            env=_environment(),
        ) as process,
    ):
        assert process.stdout is not None
        printed = b""
        first = None
        while part := os.read(process.stdout.fileno(), 65536):
            printed += part
            # Below the header and its rule comes the first row.
            if first is None and printed.partition(DELTA.encode())[2].count(b"\n") > 2:
                first = time.perf_counter() - started
        failed = process.wait(_LIMIT)
        end = time.perf_counter() - started
        if failed or first is None:
            errors.seek(0)
            raise ProcessError(f"cq exec printed no delta of {query}: {errors.read().decode() or printed!r}")
    return first, end


def time_to_prompt(warehouse: Path) -> tuple[float, float]:
    """Opens the prompt: seconds until it shows, and until it has answered SHOW TABLES, typed as soon as it shows."""
    import pty

    master, terminal = pty.openpty()
    started = time.perf_counter()
    try:
        with subprocess.Popen(
            [*CQ, str(warehouse)],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env=_environment(),
            start_new_session=True,
        ) as process:
            os.close(terminal)
            try:
                _read_until(master, "cq>", started)
                shown = time.perf_counter() - started
                os.write(master, b"SHOW TABLES;\r")
                _read_until(master, "orderline", started)
                answered = time.perf_counter() - started
                os.write(master, b"\\q\r")
                _read_to_the_end(master, started)
            finally:
                process.kill()
    finally:
        os.close(master)
    return shown, answered


def _read_until(master: int, text: str, started: float) -> None:
    printed = ""
    while text not in printed:
        if not select.select([master], [], [], max(0.0, started + _LIMIT - time.perf_counter()))[0]:
            raise ProcessError(f"the prompt did not print {text!r}: {printed!r}")
        printed += os.read(master, 65536).decode(errors="replace")


def _read_to_the_end(master: int, started: float) -> None:
    """A closed terminal ends with an error on Linux, and with nothing to read elsewhere."""
    while select.select([master], [], [], max(0.0, started + _LIMIT - time.perf_counter()))[0]:
        try:
            if not os.read(master, 65536):
                return
        except OSError:
            return


def _environment() -> dict[str, str]:
    """Ours, with this checkout's package first, and a terminal that answers no questions."""
    root = str(Path(__file__).resolve().parents[1])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "PROMPT_TOOLKIT_NO_CPR": "1", "TERM": "xterm"}


def plot(figures: Sequence[Figure], path: str) -> None:
    """Seconds as bars, at the largest scale."""
    largest = max(figure["scale"] for figure in figures if "scale" in figure)
    bars = {"prompt": 0.0, "first answer": 0.0}
    for figure in figures:
        if figure.get("scale") != largest:
            continue
        if figure["figure"] == "prompt":
            bars["prompt"] = figure["prompt_seconds"]
            bars["first answer"] = figure["first_answer_seconds"]
        else:
            bars[f"first delta,\n{figure['query']}"] = figure["first_delta_seconds"]
    drawing = canvas(1)
    if drawing is None:
        return
    (panel,) = drawing[1]
    panel.barh(list(bars), list(bars.values()))
    panel.invert_yaxis()
    panel.set(title=f"a new process, scale {largest:g}", xlabel="seconds")
    drawing[0].savefig(path, dpi=150)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = arguments("From the start of a process to its prompt and its first delta.", scales=(0.1,))
    parser.add_argument("--transactions", type=int, default=20, help="per round (default: 20)")
    parser.add_argument(
        "--queries",
        nargs="+",
        choices=list(JOINED),
        default=["every_line"],
        metavar="Q",
        help="refreshed one after the other, in a process each (default: every_line)",
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
