"""How long a refresh takes after a few order transactions, against computing the same query again.

    python benchmarks/recompute_and_diff.py                      # scales 0.1 and 1, about three quarters of an hour
    python benchmarks/recompute_and_diff.py --scale 0.01 --rounds 3 --queries big_spenders --plot refresh.png

Two streams over one loaded shop: A inserts orders, B is 60 % new orders, 25 % changed prices (mostly of recent orders),
10 % cancelled orders and 5 % changed customers. A transaction of A has 10 orders (about 110 changed rows), one of B 12
orders or customers, so that 20 transactions are about 2 000 changed rows. A round applies 20 transactions and then
measures, for every query, side by side in one process:

    refresh             engine.refresh(query): the delta, durably logged
    spark recompute     Spark computes the query from scratch and throws the rows away (noop)
    ... + diff          Spark computes it, writes it, and compares it by EXCEPT ALL both ways with the round before
    duckdb recompute    DuckDB computes it from scratch into a table of a database file (CREATE TABLE AS)
    ... + diff          and compares it in the same way

DuckDB's tables are brought up to date outside of the timing. The deltas of every round are checked against both
differences. The shop's tables are read as the engine keeps them: files of the bulk load and the changes after it.

    refresh against recompute   seconds are medians over the rounds, without the first; ratios are theirs to `refresh`
    single transaction          a refresh after one transaction of stream A, over `spark.range(5).toArrow()`, the
                                cheapest query that Spark has; four times as many rounds
    growth                      a refresh at the largest scale over one at the smallest
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median

from duck import Duck
from frame import (
    JOINED,
    UNDISTURBED,
    Figure,
    Rows,
    Scratch,
    apply,
    arguments,
    canvas,
    check,
    create,
    discard,
    growth,
    ratio,
    run,
    timed,
)
from pyspark.sql import SparkSession

import cq_engine
from estore import STREAM_A, STREAM_B, Shop, Transaction, change_tables, load

NAME = "recompute_and_diff"
STREAMS = {"A": STREAM_A, "B": STREAM_B}
ORDERS = {"A": 10, "B": 12}
"""Orders (or customers) per transaction: 110 and 98 changed rows."""
WARM_UPS = 3
"""Single transactions that are not counted."""

MEASURED = ("refresh", "spark_recompute", "spark_recompute_diff", "duckdb_recompute", "duckdb_recompute_diff")


def main(argv: Sequence[str] | None = None, spark: SparkSession | None = None) -> int:
    """Runs the benchmark and prints its JSON lines; `spark` is a session to use instead of starting one."""
    options = _options(argv)
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
    staging = str(directory / "bulk")
    with ExitStack() as stack:
        engine = stack.enter_context(
            cq_engine.connect(str(directory / "warehouse"), spark=spark, scheduler=False, conf=UNDISTURBED)
        )
        loaded = load(engine, scale, staging)
        yield {
            "figure": "load",
            "scale": scale,
            "rows": loaded.rows,
            "generate_seconds": round(loaded.generate_seconds, 2),
            "load_seconds": round(loaded.load_seconds, 2),
        }
        duck = stack.enter_context(Duck(directory / "shop.duckdb", staging))
        watched = {query: _Watched(engine, duck, query, directory / query) for query in options.queries}
        shop = Shop(options.seed, scale)
        for stream in options.streams:
            orders = options.orders or ORDERS[stream]
            transactions = shop.transactions(mix=STREAMS[stream], orders=orders)
            changes = [
                _round(engine, duck, watched, list(islice(transactions, options.transactions)), number)
                for number in range(options.rounds + 1)
            ]
            for one in watched.values():
                yield {
                    "figure": "refresh against recompute",
                    "scale": scale,
                    "stream": stream,
                    "transactions": options.transactions,
                    "changes": round(median(changes[1:])),
                    **one.figure(),
                }
        transactions = shop.transactions(mix=STREAM_A, orders=options.orders or ORDERS["A"])
        single = islice(transactions, WARM_UPS + 4 * options.rounds)
        for figure in _single(engine, duck, watched, single):
            yield {"figure": "single transaction", "scale": scale, "stream": "A", **figure}


def _round(
    engine: cq_engine.Engine,
    duck: Duck,
    watched: Mapping[str, _Watched],
    batch: list[Transaction],
    number: int,
) -> int:
    """One round, the first of which is a warm-up; gives the number of changed rows."""
    engine.maintain()
    changes = change_tables(batch)
    apply(engine, changes)
    duck.apply(changes)
    for one in watched.values():
        one.round(counted=number > 0)
    return sum(len(transaction.changes) for transaction in batch)


def _single(
    engine: cq_engine.Engine,
    duck: Duck,
    watched: Mapping[str, _Watched],
    transactions: Iterator[Transaction],
) -> Iterator[Figure]:
    """Refreshes after single transactions, each beside Spark's cheapest query."""
    refreshes: dict[str, list[float]] = {query: [] for query in watched}
    trivial: dict[str, list[float]] = {query: [] for query in watched}
    changed = []
    for transaction in transactions:
        engine.maintain()
        changes = change_tables([transaction])
        changed.append(len(transaction.changes))
        apply(engine, changes)
        duck.apply(changes)
        for query in watched:
            trivial[query].append(timed(lambda: engine.spark.range(5).toArrow())[0])
            refreshes[query].append(timed(partial(engine.refresh, query))[0])
    for query, one in watched.items():
        one.check(duck.recompute(query, JOINED[query])[2])
        refresh, least = median(refreshes[query][WARM_UPS:]), median(trivial[query][WARM_UPS:])
        yield {
            "query": query,
            "changes": round(median(changed)),
            "refresh_seconds": round(refresh, 4),
            "trivial_seconds": round(least, 4),
            "ratio": ratio(refresh, least),
            "n": len(refreshes[query]) - WARM_UPS,
        }


class _Watched:
    """A query that is refreshed and, beside it, computed from scratch."""

    def __init__(self, engine: cq_engine.Engine, duck: Duck, query: str, directory: Path) -> None:
        create(engine, query, JOINED[query])
        duck.watch(query, JOINED[query])
        self._engine = engine
        self._duck = duck
        self._query = query
        self._scratch = Scratch(engine, JOINED[query], directory)
        self._position = engine.describe(query).position
        self._begin()

    def _begin(self) -> None:
        self._seconds: dict[str, list[float]] = {name: [] for name in MEASURED}
        self._deltas: list[int] = []

    def round(self, *, counted: bool) -> None:
        """Refreshes, recomputes and compares. Raises DeltaMismatchError."""
        refresh, _ = timed(lambda: self._engine.refresh(self._query))
        recompute, _ = timed(lambda: discard(self._scratch.computed()))
        recompute_diff, by_spark = timed(self._scratch.difference)
        duck, duck_diff, by_duck = self._duck.recompute(self._query, JOINED[self._query])
        count = self.check(by_spark, by_duck)
        if counted:
            self._deltas.append(count)
            for name, seconds in zip(MEASURED, (refresh, recompute, recompute_diff, duck, duck_diff)):
                self._seconds[name].append(seconds)

    def check(self, *differences: tuple[Rows, Rows]) -> int:
        """How many deltas there are since the last check. Raises DeltaMismatchError where they are not these."""
        deltas = list(self._engine.deltas(self._query, after_version=self._position))
        self._position = self._engine.describe(self._query).position
        check(self._query, deltas, *differences)
        return len(deltas)

    def figure(self) -> Figure:
        """The medians since the last figure."""
        seconds = {name: median(values) for name, values in self._seconds.items()}
        figure = {
            "query": self._query,
            **{f"{name}_seconds": round(value, 4) for name, value in seconds.items()},
            **{f"{name}_ratio": ratio(seconds[name], seconds["refresh"]) for name in MEASURED[1:]},
            "delta_rows": median(self._deltas),
            "n": len(self._deltas),
            "plan": str(self._engine.describe(self._query).verdict),
        }
        self._begin()
        return figure


def plot(figures: Sequence[Figure], path: str) -> None:
    """Seconds over the scale, a row of panels per stream and one panel per query."""
    measured = [figure for figure in figures if figure["figure"] == "refresh against recompute"]
    names = list(dict.fromkeys((figure["stream"], figure["query"]) for figure in measured))
    drawing = canvas(len(names), len({query for _, query in names}))
    if drawing is None:
        return
    for panel, (stream, query) in zip(drawing[1], names):
        points = [f for f in measured if (f["stream"], f["query"]) == (stream, query)]
        for name in MEASURED:
            panel.plot(
                [f["scale"] for f in points],
                [f[f"{name}_seconds"] for f in points],
                marker="o",
                label=name.replace("_diff", " + diff").replace("_", " "),
            )
        panel.set(title=f"{query}, stream {stream}", xlabel="scale", xscale="log", yscale="log")
    drawing[1][0].set_ylabel("seconds")
    drawing[1][-1].legend(fontsize="small")
    drawing[0].savefig(path, dpi=150)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = arguments("Refresh against recompute, on a shop's data.")
    parser.add_argument("--transactions", type=int, default=20, help="per round (default: 20)")
    parser.add_argument("--orders", type=int, help="orders per transaction (default: A 10, B 12)")
    parser.add_argument("--streams", nargs="+", choices=list(STREAMS), default=list(STREAMS), metavar="A|B")
    parser.add_argument("--queries", nargs="+", choices=list(JOINED), default=list(JOINED), metavar="Q")
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
