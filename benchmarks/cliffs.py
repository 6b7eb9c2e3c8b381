"""Whether time grows with the delta, and jumps nowhere: refreshes over deltas that double in size, across every bound.

    python benchmarks/cliffs.py                                  # scale 0.1, about twenty minutes
    python benchmarks/cliffs.py --scale 0.01 --most 256 --queries top_n left_join
    python benchmarks/cliffs.py --drawn cliffs.jsonl --plot cliffs.png

Every query gets a warehouse of its own and deltas of 1, 2, 4, ... `--most` transactions of the shop's stream B (about 110
changed rows each), each size committed by one call and refreshed once; the changes are merged before the next size, as
they are in the background. The bounds of `cq_engine.core.limits.Limits` lie somewhere between two sizes: a delta that
passes one is computed in another way.

    step     of a query and a size: changes, seconds of the commit and of the refresh, and who ran it
    cliff    of a query: the greatest of all steps' (seconds / changes) over the smallest that any smaller delta of at
             least `--from` transactions had. 2 means: no delta costs more than twice as much a row as a smaller one.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from frame import JOINED, UNDISTURBED, Figure, apply, arguments, canvas, create, ratio, run, timed
from pyspark.sql import SparkSession
from shapes_refresh import QUERIES as SHAPES

import cq_engine
from estore import STREAM_B, Shop, Transaction, change_tables, load

NAME = "cliffs"
TWO_KEYS = "SELECT oid, item, sum(qty) AS units FROM orderline GROUP BY oid, item"
"""Grouped by two columns, of which one has a few values: those of a delta are soon those of all rows."""
QUERIES = {
    **JOINED,
    **{name: SHAPES[name] for name in ("window", "top_n", "left_join")},
    "two_keys": TWO_KEYS,
}


def main(argv: Sequence[str] | None = None, spark: SparkSession | None = None) -> int:
    """Runs the benchmark and prints its JSON lines; `spark` is a session to use instead of starting one."""
    options = _options(argv)
    if options.drawn is not None:
        plot([json.loads(line) for line in options.drawn.read_text().splitlines()], options.plot)
        return 0
    return run(NAME, options, lambda directory, scale: measure(directory, scale, options, spark), draw=plot)


def measure(
    directory: Path, scale: float, options: argparse.Namespace, spark: SparkSession | None
) -> Iterator[Figure]:
    """The figures of one scale."""
    session = spark or cq_engine.spark_session()
    for query in options.queries:
        place = directory / query
        with cq_engine.connect(
            str(place / "warehouse"), spark=session, scheduler=False, conf=UNDISTURBED
        ) as engine:
            load(engine, scale, str(place / "bulk"))
            create(engine, query, QUERIES[query])
            steps = []
            for step in _steps(engine, query, scale, options):
                steps.append(step)
                yield {"figure": "step", "scale": scale, "query": query, **step}
            yield {"figure": "cliff", "scale": scale, "query": query, **_cliff(steps, options.least)}


def _steps(
    engine: cq_engine.Engine, query: str, scale: float, options: argparse.Namespace
) -> Iterator[Figure]:
    shop = Shop(options.seed, scale)
    stream = shop.transactions(mix=STREAM_B, orders=10)
    sizes = [1] * options.warm + [2**n for n in range(options.most.bit_length()) if 2**n <= options.most]
    for n, size in enumerate(sizes):
        batch: list[Transaction] = list(islice(stream, size))
        committed = apply(engine, change_tables(batch))
        refreshed, _ = timed(lambda: engine.refresh(query))
        if n >= options.warm:
            yield {
                "transactions": size,
                "changes": sum(len(transaction.changes) for transaction in batch),
                "commit_seconds": round(committed, 4),
                "refresh_seconds": round(refreshed, 4),
                "by": _by(engine, query),
            }
        engine.maintain()


def _by(engine: cq_engine.Engine, query: str) -> str:
    """Who ran the last refresh, in one word: arrow, driver or cluster."""
    lines = [row[0] for row in engine.execute(f"EXPLAIN ANALYZE CONTINUOUS QUERY {query}").fetchall()]
    ran = next((line.split("run by: ")[1] for line in lines if "run by: " in line), "")
    if "driver" in ran:
        return "arrow" if any("evaluated in Arrow" in line for line in lines) else "driver"
    return "cluster" if ran else "nobody"


def _cliff(steps: Sequence[Figure], least: int) -> Figure:
    worst: Figure = {"ratio": 1.0}
    cheapest: float | None = None
    for step in steps:
        if step["transactions"] < least:
            continue
        cost = (step["commit_seconds"] + step["refresh_seconds"]) / step["changes"]
        if cheapest is not None and ratio(cost, cheapest) > worst["ratio"]:
            worst = {"ratio": ratio(cost, cheapest), "transactions": step["transactions"], "by": step["by"]}
        cheapest = cost if cheapest is None else min(cheapest, cost)
    return worst


def plot(figures: Sequence[Figure], path: str) -> None:
    """Seconds over changed rows, both by their logarithms: a straight line has no cliff."""
    steps = [figure for figure in figures if figure["figure"] == "step"]
    drawing = canvas(2)
    if drawing is None:
        return
    for name, panel in zip(("commit_seconds", "refresh_seconds"), drawing[1]):
        for query in dict.fromkeys(step["query"] for step in steps):
            of = [step for step in steps if step["query"] == query]
            panel.plot([s["changes"] for s in of], [s[name] for s in of], marker=".", label=query)
        panel.set(
            title=name.replace("_", " "), xlabel="changed rows", ylabel="seconds", xscale="log", yscale="log"
        )
        panel.legend(fontsize="small")
    drawing[0].savefig(path, dpi=150)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = arguments("Refreshes over deltas that double in size.", scales=[0.1])
    parser.add_argument("--queries", nargs="+", choices=list(QUERIES), default=list(QUERIES), metavar="Q")
    parser.add_argument("--most", type=int, default=16_384, help="transactions of the largest delta")
    parser.add_argument(
        "--from", dest="least", type=int, default=64, help="transactions from which cliffs count"
    )
    parser.add_argument("--warm", type=int, default=3, help="refreshes that are not counted (default: 3)")
    parser.add_argument(
        "--drawn", type=Path, metavar="JSONL", help="only draw figures that were saved before"
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
