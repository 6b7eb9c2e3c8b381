"""What a refresh reads and how long it takes as the tables grow, for the shapes that are harder than joins and sums.

    python benchmarks/shapes_refresh.py                          # scales 0.1 and 1, about a quarter of an hour
    python benchmarks/shapes_refresh.py --scale 0.01 0.05 --queries left_join anti_join --plot shapes.png

Every round applies the same number of transactions of the shop's stream B (see `recompute_and_diff.py`; half of the
orders come before their lines), whatever the scale, and then refreshes every query. Figures per query and scale:

    refresh_seconds    engine.refresh(query): the delta, durably logged; median over the rounds, without two warm-ups
    recompute_seconds  Spark computes the query from scratch once and throws the rows away (noop)
    rows_read          rows that a refresh took out of snapshot files: those that the driver selected, and all rows of
                       the files that it left to Spark; mean over the rounds. Tables of up to 50 000 rows are in memory
                       and not counted.
    growth             refresh_seconds at the largest scale over refresh_seconds at the smallest

After the last round the deltas of all rounds are compared with the difference of the results before and after.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from statistics import mean, median
from typing import Any

from frame import (
    UNDISTURBED,
    Figure,
    Scratch,
    apply,
    arguments,
    canvas,
    check,
    create,
    discard,
    growth,
    run,
    timed,
)
from pyspark.sql import SparkSession

import cq_engine
from estore import change_tables, load, transactions

NAME = "shapes_refresh"
WARM_UPS = 2
"""Rounds that are not counted, so that the first scale does not pay for the start of the JVM."""

QUERIES: dict[str, str] = {
    "left_join": """
        SELECT c.cid, c.region, o.oid, o.paid
        FROM customer c LEFT JOIN orders o ON c.cid = o.cid""",
    # Non-events: orders that have come without their lines.
    "anti_join": """
        SELECT o.oid, o.cid, o.odate
        FROM orders o
        WHERE NOT EXISTS (SELECT 1 FROM orderline ol WHERE ol.oid = o.oid)""",
    "window": """
        SELECT oid, cid, paid,
               sum(paid) OVER (PARTITION BY cid ORDER BY oid) AS spent_so_far,
               rank() OVER (PARTITION BY cid ORDER BY paid DESC) AS place
        FROM orders""",
    # The three largest lines of every order.
    "top_n": """
        SELECT oid, line, item, price * qty AS amount
        FROM orderline
        QUALIFY row_number() OVER (PARTITION BY oid ORDER BY price * qty DESC, line) <= 3""",
    # EXISTS inside of OR.
    "mark_join": """
        SELECT o.oid, o.cid, o.paid
        FROM orders o
        WHERE o.paid > 6000
           OR EXISTS (SELECT 1 FROM orderline ol WHERE ol.oid = o.oid AND ol.qty = 5 AND ol.price > 190)""",
    "distinct": """
        SELECT DISTINCT o.cid, ol.item
        FROM orders o JOIN orderline ol ON ol.oid = o.oid
        WHERE ol.qty = 5 AND ol.price > 150""",
    # Customers without an order after the first year.
    "except": """
        SELECT cid FROM customer
        EXCEPT
        SELECT cid FROM orders WHERE odate >= DATE '2025-01-01'""",
    "max_per_group": "SELECT oid, max(price) AS dearest, count(*) AS lines FROM orderline GROUP BY oid",
}


def main(argv: Sequence[str] | None = None, spark: SparkSession | None = None) -> int:
    """Runs the benchmark and prints its JSON lines; `spark` is a session to use instead of starting one."""
    options = _options(argv)
    if options.drawn is not None:
        plot([json.loads(line) for line in options.drawn.read_text().splitlines()], options.plot)
        return 0
    return run(
        NAME,
        options,
        lambda directory, scale: measure(directory, scale, options, spark),
        conclude=growth,
        draw=plot,
    )


def measure(
    directory: Path, scale: float, options: argparse.Namespace, spark: SparkSession | None
) -> Iterator[Figure]:
    """The figures of one scale."""
    with cq_engine.connect(
        str(directory / "warehouse"), spark=spark, scheduler=False, conf=UNDISTURBED
    ) as engine:
        loaded = load(engine, scale)
        yield {
            "figure": "load",
            "scale": scale,
            "rows": loaded.rows,
            "seconds": round(loaded.load_seconds, 2),
        }
        watched = [_Watched(engine, name, directory / name) for name in options.queries]
        stream = transactions(options.seed, scale, units=0.5)
        for number in range(-WARM_UPS, options.rounds):
            engine.maintain()
            changes = change_tables(islice(stream, options.transactions))
            apply(engine, changes)
            for one in watched:
                one.refresh(counted=number >= 0)
        for one in watched:
            yield one.figure(scale)


class _Watched:
    """A query that is refreshed, and compared with its result from scratch in the end."""

    def __init__(self, engine: cq_engine.Engine, query: str, directory: Path) -> None:
        create(engine, query, QUERIES[query])
        self._engine = engine
        self._query = query
        self._scratch = Scratch(engine, QUERIES[query], directory)
        self._seconds: list[float] = []
        self._reads: list[int] = []
        self._position = engine.describe(query).position

    def refresh(self, *, counted: bool) -> None:
        with _Reads(self._engine) as reads:
            seconds, _ = timed(lambda: self._engine.refresh(self._query))
        if counted:
            self._seconds.append(seconds)
            self._reads.append(reads.rows)

    def figure(self, scale: float) -> Figure:
        """The figures. Raises DeltaMismatchError where the deltas are not what changed in the result."""
        recompute, _ = timed(lambda: discard(self._scratch.computed()))
        deltas = list(self._engine.deltas(self._query, after_version=self._position))
        check(self._query, deltas, self._scratch.difference())
        refresh = median(self._seconds)
        return {
            "figure": "refresh",
            "scale": scale,
            "query": self._query,
            "refresh_seconds": round(refresh, 4),
            "recompute_seconds": round(recompute, 4),
            "ratio": round(recompute / refresh, 2),
            "rows_read": round(mean(self._reads)),
            "delta_rows": len(deltas),
            "n": len(self._seconds),
            "plan": str(self._engine.describe(self._query).verdict),
        }


class _Reads:
    """Counts what the engine's reader takes out of snapshot files inside of a block."""

    def __init__(self, engine: cq_engine.Engine) -> None:
        self.rows = 0
        self._reader: Any = engine.reader

    def __enter__(self) -> _Reads:
        base_arrow, files = self._reader.base_arrow, self._reader.files

        def counted_base(*args: Any, **named: Any) -> Any:
            rows = base_arrow(*args, **named)
            self.rows += 0 if rows is None else rows.num_rows
            return rows

        def counted_files(read: Any, *args: Any, **named: Any) -> Any:
            self.rows += sum(file.rows for file in read)
            return files(read, *args, **named)

        self._reader.base_arrow, self._reader.files = counted_base, counted_files
        return self

    def __exit__(self, *exc: object) -> None:
        del self._reader.base_arrow, self._reader.files


def plot(figures: Sequence[Figure], path: str) -> None:
    """Seconds of refresh and recompute over the scale, one panel per query."""
    measured = [figure for figure in figures if figure["figure"] == "refresh"]
    queries = list(dict.fromkeys(figure["query"] for figure in measured))
    drawing = canvas(len(queries))
    if drawing is None:
        return
    for panel, query in zip(drawing[1], queries):
        points = sorted((f for f in measured if f["query"] == query), key=lambda figure: figure["scale"])
        for name in ("refresh", "recompute"):
            panel.plot(
                [f["scale"] for f in points], [f[f"{name}_seconds"] for f in points], marker="o", label=name
            )
        panel.set(title=query, xlabel="scale", xscale="log", yscale="log")
    drawing[1][0].set_ylabel("seconds")
    drawing[1][-1].legend()
    drawing[0].savefig(path, dpi=150)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = arguments("Refreshes of several shapes of query, on a shop's data.")
    parser.add_argument("--transactions", type=int, default=20, help="per round (default: 20)")
    parser.add_argument("--queries", nargs="+", choices=list(QUERIES), default=list(QUERIES), metavar="Q")
    parser.add_argument("--draw", type=Path, dest="drawn", metavar="JSONL", help="only draw these figures")
    options = parser.parse_args(argv)
    if options.drawn is not None and options.plot is None:
        parser.error("--draw needs --plot")
    return options


if __name__ == "__main__":
    raise SystemExit(main())
