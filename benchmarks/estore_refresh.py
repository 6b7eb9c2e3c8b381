"""How long a refresh takes after a few order transactions, against computing the same query again.

    python benchmarks/estore_refresh.py                          # scales 0.1 and 1, about a quarter of an hour
    python benchmarks/estore_refresh.py --scales 0.01 0.1 --rounds 3 --plot refresh.png

Every round applies some transactions of the shop's stream B (60 % new orders, 25 % changed prices, 10 % cancelled
orders, 5 % changed customers) and then measures, for every query, side by side in one process:

    refresh          engine.refresh(query): the delta, durably logged
    recompute        Spark computes the query from scratch and throws the rows away (noop)
    recompute + diff Spark computes it from scratch, writes it, and compares it with what it was a round before

The deltas of every round are checked against that comparison. One JSON line per figure goes to standard output;
seconds are medians over the rounds, the first of which is a warm-up and not counted.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark programs use

import cq_engine

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

from estore import QUERIES, Transaction, change_tables, create_queries, load, transactions

NAME = "estore_refresh"
Figure = dict[str, Any]
Rows = Counter[tuple[Any, ...]]


@dataclass
class Timings:
    """Seconds per round of one query at one scale, and how many delta rows the rounds had."""

    refresh: list[float] = field(default_factory=list)
    recompute: list[float] = field(default_factory=list)
    recompute_diff: list[float] = field(default_factory=list)
    deltas: list[int] = field(default_factory=list)

    def figure(self, scale: float, query: str, plan: str) -> Figure:
        refresh, recompute = median(self.refresh), median(self.recompute)
        return {
            "benchmark": NAME,
            "figure": "refresh against recompute",
            "scale": scale,
            "query": query,
            "refresh_seconds": round(refresh, 4),
            "recompute_seconds": round(recompute, 4),
            "ratio": round(recompute / refresh, 2),
            "recompute_diff_seconds": round(median(self.recompute_diff), 4),
            "delta_rows": median(self.deltas),
            "rounds": len(self.refresh),
            "plan": plan,
        }


class DeltaMismatchError(Exception):
    """The deltas are not the difference between two results."""


def main(argv: Sequence[str] | None = None, spark: SparkSession | None = None) -> int:
    """Runs the benchmark and prints its JSON lines; `spark` is a session to use instead of starting one."""
    options = _options(argv)
    figures: list[Figure] = []

    def report(figure: Figure) -> None:
        figures.append(figure)
        print(json.dumps(figure), flush=True)

    for scale in sorted(options.scales):
        with tempfile.TemporaryDirectory(prefix="cq-bench-") as directory:
            for figure in measure(Path(directory), scale, options, spark):
                report(figure)
    for figure in growth(figures, NAME):
        report(figure)
    if options.plot is not None:
        plot(figures, options.plot)
    return 0


def measure(
    directory: Path, scale: float, options: argparse.Namespace, spark: SparkSession | None
) -> Iterator[Figure]:
    """The figures of one scale."""
    with cq_engine.connect(str(directory / "warehouse"), spark=spark, scheduler=False) as engine:
        loaded = load(engine, scale)
        yield {
            "benchmark": NAME,
            "figure": "load",
            "scale": scale,
            "rows": loaded.rows,
            "generate_seconds": round(loaded.generate_seconds, 2),
            "load_seconds": round(loaded.load_seconds, 2),
        }
        create_queries(engine, {query: QUERIES[query] for query in options.queries})
        watched = {query: _Watched(engine, query, directory / query) for query in options.queries}
        stream = transactions(options.seed, scale)
        commits = [
            _round(engine, watched, list(islice(stream, options.transactions)), counted=number > 0)
            for number in range(options.rounds + 1)
        ]
        yield {
            "benchmark": NAME,
            "figure": "commit",
            "scale": scale,
            "transactions": options.transactions,
            "apply_changes_seconds": round(median(commits[1:]), 4),
        }
        for query, one in watched.items():
            yield one.timings.figure(scale, query, str(engine.describe(query).verdict))


def growth(figures: Sequence[Figure], benchmark: str) -> Iterator[Figure]:
    """How much longer a refresh takes at the largest scale than at the smallest."""
    seconds: dict[str, dict[float, float]] = {}
    for figure in figures:
        if "refresh_seconds" in figure:
            seconds.setdefault(figure["query"], {})[figure["scale"]] = figure["refresh_seconds"]
    for query, by_scale in seconds.items():
        small, large = min(by_scale), max(by_scale)
        if small < large:
            yield {
                "benchmark": benchmark,
                "figure": "growth",
                "query": query,
                "scales": [small, large],
                "ratio": round(by_scale[large] / by_scale[small], 2),
            }


def plot(figures: Sequence[Figure], path: str) -> None:
    """Seconds of refresh and recompute over the scale, one panel per query. Needs matplotlib."""
    try:
        canvas_type: Any = importlib.import_module("matplotlib.figure").Figure
    except ImportError:
        print("no plot: pip install matplotlib", file=sys.stderr)
        return
    measured = [figure for figure in figures if "refresh_seconds" in figure]
    queries = list(dict.fromkeys(figure["query"] for figure in measured))
    across = min(4, len(queries))
    down = -(-len(queries) // across)
    canvas = canvas_type(figsize=(4 * across, 3.5 * down), layout="constrained")
    panels = canvas.subplots(down, across, sharey=True, squeeze=False).flat
    for panel, query in zip(panels, queries):
        points = sorted((f for f in measured if f["query"] == query), key=lambda figure: figure["scale"])
        for column in [name for name in points[0] if name.endswith("_seconds")]:
            label = column.removesuffix("_seconds").replace("_", " + ")
            panel.plot([f["scale"] for f in points], [f[column] for f in points], marker="o", label=label)
        panel.set(title=query, xlabel="scale", xscale="log", yscale="log")
    panels[0].set_ylabel("seconds")
    panels[-1].legend()
    canvas.savefig(path, dpi=150)


# ---------------------------------------------------------------- one round


class _Watched:
    """A query that is refreshed and, beside it, computed from scratch."""

    def __init__(self, engine: cq_engine.Engine, query: str, directory: Path) -> None:
        self.timings = Timings()
        self._engine = engine
        self._query = query
        self._directory = directory
        self._rounds = 0
        self._before = self._written()
        self._position = engine.describe(query).position

    def round(self, *, counted: bool) -> None:
        """Refreshes, recomputes and compares."""
        refresh, _ = timed(lambda: self._engine.refresh(self._query))
        recompute, _ = timed(lambda: discard(self._recomputed()))
        recompute_diff, (removed, added) = timed(self._difference)
        deltas = list(self._engine.deltas(self._query, after_version=self._position))
        self._position = self._engine.describe(self._query).position
        if net(deltas) != (removed, added):
            raise DeltaMismatchError(f"{self._query}: the deltas are not what changed in the result")
        if counted:
            self.timings.refresh.append(refresh)
            self.timings.recompute.append(recompute)
            self.timings.recompute_diff.append(recompute_diff)
            self.timings.deltas.append(len(deltas))

    def _recomputed(self) -> DataFrame:
        frame: DataFrame = self._engine.execute(QUERIES[self._query]).to_df()
        return frame

    def _written(self) -> DataFrame:
        """The result from scratch, written as Parquet and read from there."""
        path = str(self._directory / str(self._rounds))
        self._rounds += 1
        frame = self._recomputed()
        frame.write.parquet(path)
        spark: SparkSession = self._engine.spark
        return spark.read.schema(frame.schema).parquet(path)

    def _difference(self) -> tuple[Rows, Rows]:
        before, after = self._before, self._written()
        self._before = after
        return difference(before, after)


def difference(before: DataFrame, after: DataFrame) -> tuple[Rows, Rows]:
    """The rows that are gone and those that are new."""
    changed = before.exceptAll(after).withColumn("weight", F.lit(-1))
    changed = changed.unionAll(after.exceptAll(before).withColumn("weight", F.lit(1)))
    rows = [tuple(row) for row in changed.collect()]
    removed = Counter(row[:-1] for row in rows if row[-1] < 0)
    return removed, Counter(row[:-1] for row in rows if row[-1] > 0)


def net(deltas: Sequence[cq_engine.Delta]) -> tuple[Rows, Rows]:
    """The rows that the deltas of several commits take away and add, net by result key."""
    first: dict[Any, tuple[Any, ...] | None] = {}
    last: dict[Any, tuple[Any, ...] | None] = {}
    for delta in deltas:
        left = delta.new if delta.marker == "D" and delta.old is None else delta.old
        first.setdefault(delta.key, None if delta.marker == "I" else left)
        last[delta.key] = None if delta.marker == "D" else delta.new
    changed = [key for key in first if first[key] != last[key]]
    return _rows(first, changed), _rows(last, changed)


def _rows(by_key: Mapping[Any, tuple[Any, ...] | None], keys: Sequence[Any]) -> Rows:
    return Counter(row for key in keys if (row := by_key[key]) is not None)


def _round(
    engine: cq_engine.Engine, watched: Mapping[str, _Watched], batch: list[Transaction], *, counted: bool
) -> float:
    """One round; gives the seconds that the commits took."""
    changes = change_tables(batch)
    seconds, _ = timed(lambda: engine.apply_changes(changes, op="op", transaction="txn", order="seq"))
    for one in watched.values():
        one.round(counted=counted)
    return seconds


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result


def discard(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Refresh against recompute, on a shop's data.")
    parser.add_argument("--scales", type=float, nargs="+", default=[0.1, 1.0], metavar="S")
    parser.add_argument("--transactions", type=int, default=20, help="per round (default: 20)")
    parser.add_argument("--rounds", type=int, default=5, help="counted rounds (default: 5)")
    parser.add_argument("--queries", nargs="+", choices=list(QUERIES), default=list(QUERIES), metavar="Q")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--plot", metavar="PNG", help="draw the figures (needs matplotlib)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
