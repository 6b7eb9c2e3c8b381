"""How long a refresh and a CREATE take where many continuous queries differ in constants only.

    python benchmarks/many_queries.py                            # 1, 100 and 10 000 queries
    python benchmarks/many_queries.py --queries 1 50 --rounds 2 --plot many.png

Each query watches one customer: what was spent, and how often, once that is over a limit. Every round commits some new
orders of random customers and measures `engine.drain()`: the refresh work of that commit for all queries together. Then
the deltas of the queries whose customers bought something are read, one query after the other, and at the end compared
with the result from scratch. One JSON line per figure goes to standard output; seconds are medians over the rounds, the
first of which is a warm-up and not counted.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

import pyarrow as pa
from frame import UNDISTURBED, DeltaMismatchError, Figure, arguments, canvas, ratio, run, timed
from pyspark.sql import SparkSession

import cq_engine

NAME = "many_queries"
QUERY = (
    "SELECT customer, sum(amount) AS spent, count(*) AS orders FROM orders "
    "WHERE customer = {customer} GROUP BY customer HAVING sum(amount) > {limit}"
)


def main(argv: Sequence[str] | None = None, spark: SparkSession | None = None) -> int:
    """Runs the benchmark and prints its JSON lines; `spark` is a session to use instead of starting one."""
    options = _options(argv)
    return run(
        NAME,
        options,
        lambda directory, count: measure(directory, int(count), options, spark),
        conclude=growth,
        draw=plot,
    )


def measure(
    directory: Path, count: int, options: argparse.Namespace, spark: SparkSession | None
) -> Iterator[Figure]:
    """The figures of `count` queries."""
    rng = random.Random(options.seed)
    with cq_engine.connect(
        str(directory / "warehouse"), spark=spark, scheduler=False, conf=UNDISTURBED
    ) as engine:
        engine.execute("CREATE TABLE orders (id BIGINT PRIMARY KEY, customer INT, amount INT)")
        _order(engine, rng, options, 0, options.rows)
        seconds = [_create(engine, number) for number in range(count)]
        later = seconds[2:] or seconds
        yield {
            "figure": "create",
            "queries": count,
            "first_seconds": round(seconds[0], 4),
            "second_seconds": round(seconds[min(1, count - 1)], 4),
            "each_later_seconds": round(sum(later) / len(later), 5),
            "all_seconds": round(sum(seconds), 2),
        }
        first = engine.catalog.newest_version
        before = _results(engine)
        refresh, read, touched = [], [], set[int]()
        for number in range(options.rounds + 1):
            engine.maintain()
            start = options.rows + number * options.orders
            customers = _order(engine, rng, options, start, options.orders)
            refresh.append(timed(engine.drain)[0])
            names = [f"watch_{customer}" for customer in customers if customer < count]
            read.append(timed(lambda names=names: [list(engine.deltas(name, first)) for name in names])[0])
            touched.update(customer for customer in customers if customer < count)
        _check(engine, touched, before, first)
        yield {
            "figure": "refresh",
            "queries": count,
            "refresh_seconds": round(median(refresh[1:]), 4),
            "first_refresh_seconds": round(refresh[0], 4),
            "read_seconds": round(median(read[1:]), 4),
            "queries_with_deltas": len(touched),
            "rounds": options.rounds,
        }


def growth(figures: Sequence[Figure]) -> Iterator[Figure]:
    """How much longer a refresh takes for the most queries than for the fewest."""
    seconds = {f["queries"]: f["refresh_seconds"] for f in figures if f["figure"] == "refresh"}
    few, many = min(seconds), max(seconds)
    if few < many:
        yield {
            "figure": "growth",
            "queries": [few, many],
            "ratio": ratio(seconds[many], seconds[few]),
        }


def plot(figures: Sequence[Figure], path: str) -> None:
    """Seconds of a refresh and of a CREATE over the number of queries."""
    drawn = canvas(2, shared=False)
    if drawn is None:
        return
    drawing, (left, right) = drawn
    for panel, figure, column, title in (
        (left, "refresh", "refresh_seconds", "refresh of one commit, all queries"),
        (right, "create", "each_later_seconds", "CREATE, each after the second"),
    ):
        points = [(f["queries"], f[column]) for f in figures if f["figure"] == figure]
        panel.plot(*zip(*points), marker="o")
        panel.set(title=title, xlabel="queries", xscale="log", ylabel="seconds", ylim=(0, None))
    drawing.savefig(path, dpi=150)


# ---------------------------------------------------------------- one warehouse


def _create(engine: cq_engine.Engine, customer: int) -> float:
    text = QUERY.format(customer=customer, limit=100 + customer % 400)
    return timed(lambda: engine.execute(f"CREATE CONTINUOUS QUERY watch_{customer} AS {text}"))[0]


def _order(
    engine: cq_engine.Engine,
    rng: random.Random,
    options: argparse.Namespace,
    start: int,
    count: int,
) -> list[int]:
    """One commit of `count` new orders; the customers who bought, customer 0 among them."""
    customers = [0, *(rng.randrange(options.customers) for _ in range(count - 1))]
    rows = {
        "id": pa.array(range(start, start + count), pa.int64()),
        "customer": pa.array(customers, pa.int32()),
        "amount": pa.array([rng.randrange(1, 100) for _ in range(count)], pa.int32()),
    }
    with engine.transaction() as transaction:
        transaction.insert("orders", pa.table(rows))
    return sorted(set(customers))


def _results(engine: cq_engine.Engine) -> dict[int, tuple[int, int]]:
    """What every customer has spent, and how often."""
    rows = engine.execute(
        "SELECT customer, sum(amount) AS spent, count(*) AS orders FROM orders GROUP BY customer"
    ).fetchall()
    return {customer: (spent, orders) for customer, spent, orders in rows}


def _check(
    engine: cq_engine.Engine, touched: set[int], before: dict[int, tuple[int, int]], first: int
) -> None:
    after = _results(engine)
    for customer in touched:
        limit = 100 + customer % 400
        known = before.get(customer)
        row = None if known is None or known[0] <= limit else (customer, *known)
        for delta in engine.deltas(f"watch_{customer}", first):
            if delta.old != row:
                raise DeltaMismatchError(f"watch_{customer}: {delta} does not follow {row}")
            row = delta.new
        spent = after[customer]
        if row != (None if spent[0] <= limit else (customer, *spent)):
            raise DeltaMismatchError(f"watch_{customer} ends with {row}, the result is {spent}")


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = arguments("Many queries that differ in constants.", scales=())
    parser.add_argument(
        "--queries", dest="scales", type=int, nargs="+", default=[1, 100, 10_000], metavar="N",
        help="how many there are (default: 1 100 10000)",
    )  # fmt: skip
    parser.add_argument("--rows", type=int, default=200_000, help="orders at the start (default: 200 000)")
    parser.add_argument("--customers", type=int, default=10_000)
    parser.add_argument("--orders", type=int, default=50, help="new orders per commit (default: 50)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
