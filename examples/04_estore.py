"""A shop at a small scale: a bulk load, then a stream of transactions under three continuous queries.

    python examples/04_estore.py                              # 100 customers, 1 000 orders, 10 000 lines
    python examples/04_estore.py --scale 0.1 --transactions 2000

The first transactions are written as DML, one commit each, as an application would. The rest comes in batches, as
from a capture of another database: `apply_changes` makes every source transaction a commit of its own, and one
refresh per query delivers the changes of each.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from itertools import islice

from delivered import show_delivered, show_latest
from pyspark.sql import SparkSession
from rich.console import Console

import cq_engine
from estore import QUERIES, STREAM_A, STREAM_B, change_tables, create_queries, load, transactions

BY_HAND = 5


def main(argv: Sequence[str] | None = None, spark: SparkSession | None = None) -> int:
    """Runs the example; `spark` is a session to use instead of starting one."""
    options = _options(argv)
    if options.warehouse is not None:
        run(options, options.warehouse, spark)
        return 0
    with tempfile.TemporaryDirectory(prefix="cq-estore-") as warehouse:
        run(options, warehouse, spark)
    return 0


def run(options: argparse.Namespace, warehouse: str, spark: SparkSession | None) -> None:
    """Loads the shop into `warehouse`, applies the stream and prints what the queries delivered."""
    console = Console()
    with cq_engine.connect(warehouse, spark=spark, scheduler=False) as engine:
        loaded = load(engine, options.scale)
        console.print(", ".join(f"{rows:,} rows of {table}" for table, rows in loaded.rows.items()))
        create_queries(engine)
        refreshes: dict[str, list[cq_engine.Refresh]] = {query: [] for query in QUERIES}
        mix = STREAM_A if options.stream == "A" else STREAM_B
        stream = transactions(options.seed, options.scale, mix=mix, units=options.units)

        by_hand = min(BY_HAND, options.transactions)
        for transaction in islice(stream, by_hand):
            with engine.transaction() as tx:
                for statement in transaction.statements():
                    tx.execute(statement)
        left = options.transactions - by_hand
        while left > 0:
            batch = list(islice(stream, min(left, options.batch)))
            left -= len(batch)
            engine.apply_changes(change_tables(batch), op="op", transaction="txn", order="seq")
            for query, done in refreshes.items():
                done.append(engine.refresh(query))
        for query, done in refreshes.items():
            done.append(engine.refresh(query))
            show_latest(console, engine, query)
        show_delivered(console, engine, refreshes)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A shop's transactions under three continuous queries.")
    parser.add_argument(
        "--scale", type=float, default=0.001, help="1 is 10 million order lines (default: 0.001)"
    )
    parser.add_argument("--transactions", type=int, default=300, help="how many (default: 300)")
    parser.add_argument("--batch", type=int, default=100, help="transactions per refresh (default: 100)")
    parser.add_argument(
        "--stream", choices=["A", "B"], default="B", help="A: inserts only; B: all kinds (default)"
    )
    parser.add_argument(
        "--units", type=float, default=0.5, help="share of orders in FK-PK units (default: 0.5)"
    )
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--warehouse", help="keep the warehouse here (default: a temporary one)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
