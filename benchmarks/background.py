"""Whether background work is felt: a steady stream of commits and refreshes before, during and after a catch-up.

    python benchmarks/background.py                              # scale 0.1, ten minutes of commits and ten without
    python benchmarks/background.py --seconds 60

One thread commits a transaction at a steady rate, another refreshes the query, again and again. After a third of the
time, 2 000 transactions are committed at once and the query catches up; that call and that refresh are not counted. All
of it is done twice: with nothing in the background (`maintenance` is manual), and with default settings: merging,
caching and publishing run.

    tails    of a phase the median, the 99th percentile and the greatest of commits and of refreshes, in seconds; the
             phases are `before` the catch-up, `during` the time in which what it left is merged (as long as before),
             and `after` that
    over     the 99th percentile of a phase over the median, and over the 99th percentile, that the same phase has without
             background work

A commit is timed from when it is called; where commits come later than at their rate, the next ones follow at once.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from frame import JOINED, UNDISTURBED, Figure, apply, arguments, canvas, create, ratio, run, timed
from pyspark.sql import SparkSession

import cq_engine
from estore import STREAM_B, Shop, Transaction, change_tables, load

NAME = "background"
PHASES = ("before", "during", "after")
WAYS: Mapping[str, Mapping[str, str]] = {"none": UNDISTURBED, "default": {}}
"""What runs in the background, and the settings for it."""


def main(argv: Sequence[str] | None = None, spark: SparkSession | None = None) -> int:
    """Runs the benchmark and prints its JSON lines; `spark` is a session to use instead of starting one."""
    options = _options(argv)
    return run(NAME, options, lambda directory, scale: measure(directory, scale, options, spark), draw=plot)


@dataclass
class _Course:
    """When calls began, and how long they took, in seconds; when the catch-up began and ended."""

    commits: list[tuple[float, float]] = field(default_factory=list)
    refreshes: list[tuple[float, float]] = field(default_factory=list)
    catch_up: tuple[float, float] = (0.0, 0.0)


def measure(
    directory: Path, scale: float, options: argparse.Namespace, spark: SparkSession | None
) -> Iterator[Figure]:
    """The figures of one scale."""
    session = spark or cq_engine.spark_session()
    without: dict[tuple[str, str], Figure] = {}
    for way, conf in WAYS.items():
        place = directory / way
        with cq_engine.connect(str(place / "warehouse"), spark=session, conf=dict(conf)) as engine:
            load(engine, scale, str(place / "bulk"))
            create(engine, "q", JOINED[options.query])
            course = _course(engine, Shop(options.seed, scale), options)
        for figure in _figures(course, options.seconds):
            key = figure["phase"], figure["of"]
            of = {"scale": scale, "query": options.query, "background": way}
            yield {"figure": "tails", **of, **figure}
            if way == "none":
                without[key] = figure
            elif key in without:
                over = ratio(figure["p99_seconds"], without[key]["median_seconds"])
                tails = ratio(figure["p99_seconds"], without[key]["p99_seconds"])
                yield {
                    "figure": "over",
                    **of,
                    "phase": key[0],
                    "of": key[1],
                    "ratio": over,
                    "p99_ratio": tails,
                }


def _course(engine: cq_engine.Engine, shop: Shop, options: argparse.Namespace) -> _Course:
    def batch(count: int) -> dict[str, Any]:
        some: list[Transaction] = list(islice(shop.transactions(mix=STREAM_B, orders=10), count))
        return change_tables(some)

    for _ in range(options.warm):
        apply(engine, batch(1))
        engine.refresh("q")
    course, stop, catching_up = _Course(), threading.Event(), threading.Lock()
    started = time.monotonic()

    def refresh() -> None:
        while not stop.wait(0.05):
            with catching_up:
                at = time.monotonic() - started
                course.refreshes.append((at, timed(lambda: engine.refresh("q"))[0]))

    refresher = threading.Thread(target=refresh)
    refresher.start()
    try:
        while (now := time.monotonic() - started) < options.seconds:
            if not course.catch_up[0] and now > options.seconds / 3:
                with catching_up:
                    changes = batch(options.transactions)
                    at = time.monotonic() - started
                    apply(engine, changes)
                    engine.refresh("q")
                    course.catch_up = (at, time.monotonic() - started)
                continue
            changes = batch(1)
            at = time.monotonic() - started
            course.commits.append((at, apply(engine, changes)))
            time.sleep(max(0.0, len(course.commits) / options.rate - (time.monotonic() - started)))
    finally:
        stop.set()
        refresher.join()
    return course


def _figures(course: _Course, seconds: float) -> Iterator[Figure]:
    begin, end = course.catch_up
    until = {
        "before": (0.0, begin),
        "during": (end, end + begin),
        "after": (end + begin, seconds + end - begin),
    }
    for phase in PHASES:
        low, high = until[phase]
        for of, calls in (("commit", course.commits), ("refresh", course.refreshes)):
            taken = [took for at, took in calls if low <= at < high]
            if taken:
                yield {
                    "phase": phase,
                    "of": of,
                    "median_seconds": round(float(np.median(taken)), 4),
                    "p99_seconds": round(float(np.percentile(taken, 99)), 4),
                    "most_seconds": round(max(taken), 4),
                    "n": len(taken),
                    "course": _curve(calls, low, high),
                }


def _curve(
    calls: Sequence[tuple[float, float]], low: float, high: float, pieces: int = 20
) -> list[list[float]]:
    """The greatest of every piece of a phase: when, and seconds."""
    width = max(1e-9, (high - low) / pieces)
    most: dict[int, float] = {}
    for at, took in calls:
        if low <= at < high:
            piece = int((at - low) / width)
            most[piece] = max(most.get(piece, 0.0), took)
    return [[round(low + piece * width, 2), round(took, 4)] for piece, took in sorted(most.items())]


def plot(figures: Sequence[Figure], path: str) -> None:
    """The greatest commit and refresh over time, with and without background work."""
    drawing = canvas(2, shared=False)
    if drawing is None:
        return
    for of, panel in zip(("commit", "refresh"), drawing[1]):
        for way in WAYS:
            found = [f for f in figures if f["figure"] == "tails" and (f["of"], f["background"]) == (of, way)]
            points = [point for figure in found for point in figure["course"]]
            panel.plot([at for at, _ in points], [took for _, took in points], label=f"background: {way}")
        panel.set(title=f"greatest {of}", xlabel="seconds", ylabel="seconds", yscale="log")
        panel.legend(fontsize="small")
    drawing[0].savefig(path, dpi=150)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = arguments("Commits and refreshes before, during and after a catch-up.", scales=[0.1])
    parser.add_argument("--seconds", type=float, default=600.0, help="of each way (default: 600)")
    parser.add_argument("--rate", type=float, default=20.0, help="commits a second (default: 20)")
    parser.add_argument("--transactions", type=int, default=2000, help="of the catch-up (default: 2000)")
    parser.add_argument("--warm", type=int, default=10, help="refreshes that are not counted (default: 10)")
    parser.add_argument(
        "--query", choices=list(JOINED), default="negative_balance", help="(default: negative_balance)"
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
