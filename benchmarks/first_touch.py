"""What a user meets: the first load, the first refreshes, the one catch-up. Cold, once, with default settings.

    python benchmarks/first_touch.py                             # scale 0.1, about three minutes
    python benchmarks/first_touch.py --scale 1 --queries negative_balance

Every query gets a warehouse of its own, with background work running; nothing is left out as a warm-up, and nothing is
merged for it between two commits.

    first load   the three tables: CREATE TABLE and COPY INTO (one shot)
    create       CREATE CONTINUOUS QUERY with its first result (one shot)
    touch        commit and refresh of so many transactions, so many times: the first time, the median and the
                 greatest, in the order in which the steps come; a catch-up is a step of one round (one shot)
    trivial      the median of a query of five constants in the same session, to read the others by

`--steps 10x20` is ten times twenty transactions of stream B (see `recompute_and_diff.py`), committed by one call.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median

from frame import JOINED, Figure, Scratch, apply, arguments, canvas, check, create, run, timed
from pyspark.sql import SparkSession

import cq_engine
from estore import STREAM_B, Shop, Transaction, change_tables, load

NAME = "first_touch"


def main(argv: Sequence[str] | None = None, spark: SparkSession | None = None) -> int:
    """Runs the benchmark and prints its JSON lines; `spark` is a session to use instead of starting one."""
    options = _options(argv)
    return run(NAME, options, lambda directory, scale: measure(directory, scale, options, spark), draw=plot)


def measure(
    directory: Path, scale: float, options: argparse.Namespace, spark: SparkSession | None
) -> Iterator[Figure]:
    """The figures of one scale."""
    started, session = timed(lambda: spark or cq_engine.spark_session())
    first, _ = timed(lambda: session.range(5).toArrow())
    again = [timed(lambda: session.range(5).toArrow())[0] for _ in range(20)]
    yield {
        "figure": "trivial",
        "scale": scale,
        "start_seconds": round(started, 3),
        "first_seconds": round(first, 4),
        "seconds": round(median(again), 4),
    }
    for query in options.queries:
        place = directory / query
        with cq_engine.connect(
            str(place / "warehouse"), spark=session, scheduler=False, conf=dict(options.conf)
        ) as engine:
            seconds = load(engine, scale, str(place / "bulk")).load_seconds
            yield {"figure": "first load", "scale": scale, "query": query, "seconds": round(seconds, 3)}
            seconds, _ = timed(partial(create, engine, query, JOINED[query]))
            yield {"figure": "create", "scale": scale, "query": query, "seconds": round(seconds, 3)}
            begin = engine.describe(query).position
            scratch = Scratch(engine, JOINED[query], place / "results") if options.check else None
            shop = Shop(options.seed, scale)
            for step in options.steps.split(","):
                yield {"figure": "touch", "scale": scale, "query": query, **_touch(engine, query, shop, step)}
            if scratch is not None:
                check(query, engine.deltas(query, after_version=begin), scratch.difference())


def _touch(engine: cq_engine.Engine, query: str, shop: Shop, step: str) -> Figure:
    rounds, transactions = map(int, step.split("x"))
    commits, refreshes, changes = [], [], 0
    for _ in range(rounds):
        batch: list[Transaction] = list(islice(shop.transactions(mix=STREAM_B, orders=10), transactions))
        changes += sum(len(transaction.changes) for transaction in batch)
        commits.append(apply(engine, change_tables(batch)))
        refreshes.append(timed(lambda: engine.refresh(query))[0])
    both = [commit + refresh for commit, refresh in zip(commits, refreshes)]
    return {
        "step": step,
        "changes": changes,
        "changes_per_second": round(changes / sum(both)),
        "commit_seconds": round(median(commits), 4),
        "refresh_seconds": round(median(refreshes), 4),
        "first_commit_seconds": round(commits[0], 4),
        "first_refresh_seconds": round(refreshes[0], 4),
        "most_commit_seconds": round(max(commits), 4),
        "most_refresh_seconds": round(max(refreshes), 4),
        "refreshes": [round(each, 4) for each in refreshes],
        "commits": [round(each, 4) for each in commits],
    }


def plot(figures: Sequence[Figure], path: str) -> None:
    """The seconds of every commit and refresh in their order, by query."""
    touches = [figure for figure in figures if figure["figure"] == "touch"]
    queries = list(dict.fromkeys((figure["scale"], figure["query"]) for figure in touches))
    drawing = canvas(len(queries))
    if drawing is None:
        return
    for (scale, query), panel in zip(queries, drawing[1]):
        steps = [f for f in touches if (f["scale"], f["query"]) == (scale, query)]
        for name in ("refreshes", "commits"):
            panel.plot([second for step in steps for second in step[name]], marker=".", label=name)
        panel.set(title=f"{query}, scale {scale:g}", xlabel="round", ylabel="seconds", yscale="log")
        panel.legend(fontsize="small")
    drawing[0].savefig(path, dpi=150)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = arguments("What a user meets, once, with default settings.", scales=[0.1])
    parser.add_argument("--queries", nargs="+", choices=list(JOINED), default=list(JOINED), metavar="Q")
    parser.add_argument("--steps", default="10x20,1x2000,10x20,10x1", metavar="NxK,...")
    parser.add_argument(
        "--check",
        action="store_true",
        help="compare all deltas with two results, the first of which warms Spark up",
    )
    parser.add_argument(
        "--conf", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"), help="an engine's option"
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
