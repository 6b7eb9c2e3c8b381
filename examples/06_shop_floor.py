"""An order's way over a shop floor: trigger, queue, webhook, dashboard and terminal, by one warehouse.

    python examples/06_shop_floor.py              # 12 orders, two people who pick
    python examples/06_shop_floor.py --orders 50

An order is a row. A trigger reserves what it needs; the reservation is a message for whoever picks; what was picked goes to
the customer by a webhook; a table is the dashboard, right at every commit; and this program follows the dashboard's query
and prints what changes. None of them knows of the others: each is a destination of a continuous query (shop_floor/floor.cql).
At the end everything is counted: each order was reserved, picked and told once.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from shop_floor.people import PRODUCTS, Say, Told, order, pick, telling

import cq_engine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FLOOR = Path(__file__).parent / "shop_floor" / "floor.cql"
AT_FIRST = 100
PATIENCE = 300.0


def main(argv: Sequence[str] | None = None, spark: SparkSession | None = None) -> int:
    """Runs the example; `spark` is a session to use instead of starting one. 0 where everything adds up."""
    options = _options(argv)
    console = Console(highlight=False)
    told = Told(partial(console.print, soft_wrap=True))
    with tempfile.TemporaryDirectory(prefix="cq-shop-floor-") as warehouse, telling(told) as url:
        os.environ["SHOP_HOOK"] = url
        console.print("Spark is starting ...")
        with cq_engine.connect(warehouse, spark=spark) as engine:
            engine.run_script(FLOOR)
            with engine.transaction() as tx:
                tx.insert("product", list(PRODUCTS.items()))
                tx.insert("stock", [(sku, AT_FIRST) for sku in PRODUCTS])
            run(engine, options, console, told)
            return check(engine, options.orders, console, told)


def run(engine: cq_engine.Engine, options: argparse.Namespace, console: Console, told: Told) -> None:
    """Lets everybody work until the last customer was told."""
    say = partial(console.print, soft_wrap=True)
    chance = random.Random(options.seed)  # noqa: S311 - a story
    end = time.monotonic() + PATIENCE
    with (
        engine.follow("floor", snapshot=True) as changes,
        engine.consume("picking") as one,
        engine.consume("picking") as two,
    ):
        threads = [threading.Thread(target=watch, args=(changes, say))]
        threads += [
            threading.Thread(target=pick, args=(engine, who, mine, say))
            for who, mine in (("Pat", one), ("Quinn", two))
        ]
        for thread in threads:
            thread.start()
        order(engine, options.orders, say, chance, options.pause)
        while len(told.orders) < options.orders and time.monotonic() < end:
            time.sleep(0.1)
        engine.drain(timeout=PATIENCE)
        while changes.position < engine.describe("floor").position and time.monotonic() < end:
            time.sleep(0.1)
    for thread in threads:  # what they read from is closed
        thread.join()


def watch(changes: Iterable[object], say: Say) -> None:
    """Prints what changes on the dashboard."""
    for change in changes:
        if isinstance(change, cq_engine.Delta) and change.new is not None:
            sku, on_hand, ordered, picked = change.new
            say(f"[magenta]dashboard[/]  {sku}: {on_hand} on hand, {ordered} ordered, {picked} picked")


def check(engine: cq_engine.Engine, orders: int, console: Console, told: Told) -> int:
    """Counts; 0 where everything adds up."""
    (row,) = (
        engine.execute(
            "SELECT (SELECT count(*) FROM reservation) AS reserved, (SELECT count(*) FROM picked) AS picked, "
            f"(SELECT {AT_FIRST} * count(*) - sum(on_hand) FROM stock) AS gone, "
            "(SELECT coalesce(sum(amount), 0) FROM orders) AS wanted, "
            "(SELECT sum(ordered) FROM dashboard) AS shown"
        )
        .to_arrow()
        .to_pylist()
    )
    once = len(told.orders) == orders and set(told.orders.values()) <= {1}
    right = (
        once and row["reserved"] == row["picked"] == row["shown"] == orders and row["gone"] == row["wanted"]
    )
    console.print(
        f"{orders} orders: {row['reserved']} reserved, {row['picked']} picked, {len(told.orders)} customers told, "
        f"{row['gone']} of {row['wanted']} pieces gone: "
        + ("it adds up" if right else "[red]it does not add up[/]"),
        soft_wrap=True,
    )
    return 0 if right else 1


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="An order's way over a shop floor.")
    parser.add_argument("--orders", type=int, default=12, help="how many (default: 12)")
    parser.add_argument("--pause", type=float, default=0.5, help="seconds between two orders (default: 0.5)")
    parser.add_argument("--seed", type=int, default=7)
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
