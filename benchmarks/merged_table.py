"""A merged table of a million rows beside the history of the same deltas: refresh and delivery under stream B of the shop.

    python benchmarks/merged_table.py                 # scale 0.1: 1 000 000 order lines, all of them in the result

Both are destinations of one query, the join of all tables without a condition, one after the other in one warehouse: `table` with
`mode = 'history'`, to which the refresh's deltas are delivered, and with `mode = 'merge'`, which the refresh writes. Timed is
`REFRESH` and `drain` after twenty transactions of stream B (see `recompute_and_diff.py`), with merging between the rounds. One JSON line
per figure goes to standard output.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from statistics import median

from frame import EVERY_LINE, UNDISTURBED, Figure, apply, arguments, canvas, ratio, run, timed
from pyspark.sql import SparkSession

import cq_engine
from estore import STREAM_B, Shop, change_tables, load

NAME = "merged_table"
ORDERS = 12


def main(argv: Sequence[str] | None = None, spark: SparkSession | None = None) -> int:
    """Runs the benchmark and prints its JSON lines."""
    options = _options(argv)
    return run(NAME, options, lambda place, scale: measure(place, scale, options, spark), draw=plot)


def measure(
    directory: Path, scale: float, options: argparse.Namespace, spark: SparkSession | None
) -> Iterator[Figure]:
    """Rounds of both, and how they compare."""
    seconds: dict[str, float] = {}
    with cq_engine.connect(
        str(directory / "warehouse"), spark=spark, scheduler=False, conf=UNDISTURBED
    ) as engine:
        load(engine, scale, str(directory / "bulk"))
        transactions = Shop(options.seed, scale).transactions(mix=STREAM_B, orders=ORDERS)
        for mode in ("history", "merge"):
            engine.execute(f"CREATE DESTINATION {mode}_sink TYPE table WITH (mode = '{mode}')")
            engine.execute(f"CREATE CONTINUOUS QUERY q ON DEMAND DESTINATION {mode}_sink AS {EVERY_LINE}")
            rounds = []
            for _ in range(options.rounds + 2):
                engine.maintain()
                apply(engine, change_tables(list(islice(transactions, options.transactions))))
                taken, _ = timed(lambda: (engine.refresh("q"), engine.drain(timeout=600)))
                rounds.append(taken)
            seconds[mode] = median(rounds[2:])
            count = engine.execute(f"SELECT count(*) FROM {mode}_sink").fetchall()[0][0]
            yield {
                "figure": "refresh and delivery",
                "scale": scale,
                "mode": mode,
                "rows": count,
                "seconds": round(seconds[mode], 4),
            }
            engine.execute("DROP CONTINUOUS QUERY q")
    yield {
        "figure": "merge over history",
        "scale": scale,
        "ratio": ratio(seconds["merge"], seconds["history"]),
    }


def plot(figures: Sequence[Figure], path: str) -> None:
    """Seconds of both."""
    drawn = canvas(1)
    if drawn is None:
        return
    drawing, (panel,) = drawn
    found = {f["mode"]: f["seconds"] for f in figures if f["figure"] == "refresh and delivery"}
    panel.bar(list(found), list(found.values()))
    panel.set(title="refresh and delivery, seconds")
    drawing.savefig(path, dpi=150)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = arguments(__doc__ or "", scales=(0.1,), rounds=5)
    parser.add_argument("--transactions", type=int, default=20, help="per round (default: 20)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
