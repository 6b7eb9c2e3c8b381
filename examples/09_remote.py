"""A continuous query over tables that stay where they are: orders in one database, customers in another, no copy of either.

    python examples/09_remote.py
    python examples/09_remote.py --changes 100 --consistency STRONG

A shop keeps its orders in one SQLite file; somebody else keeps the customers in another. Two CREATE SOURCE and two CREATE TABLE
... REMOTE FROM say where they are; one continuous query joins them. Two people go on writing, each in a database of their own;
what changes in the join is printed as it comes, with the time at which it was committed at its source. Each change is one
question to the other database, about the rows that join it. At the end the result that the deltas have built is compared
with the join that SQLite computes over both files.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from rich.console import Console

import cq_engine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PEOPLE = ("Andy", "Beth", "Carl", "Dora", "Emil", "Fay")
CITIES = ("Basel", "Ghent", "Porto", "Turin")
PATIENCE = 60.0
PAUSE = 0.2
ORDERS = "CREATE TABLE orders (oid INTEGER PRIMARY KEY, cid INT NOT NULL, pieces INT NOT NULL)"
CUSTOMERS = "CREATE TABLE customers (cid INTEGER PRIMARY KEY, name TEXT NOT NULL, city TEXT NOT NULL)"
JOIN = (
    "SELECT o.oid, c.cid, c.name, c.city, o.pieces FROM {} o JOIN {} c ON c.cid = o.cid WHERE o.pieces >= 3"
)
STATEMENTS = (
    "CREATE SOURCE shop TYPE sqlite WITH (url = 'sqlite:///{place}/shop.db')",
    "CREATE SOURCE crm TYPE sqlite WITH (url = 'sqlite:///{place}/crm.db')",
    "CREATE TABLE orders REMOTE FROM shop TABLE 'orders' USING LOG WITH (install = true)",
    "CREATE TABLE customers REMOTE FROM crm TABLE 'customers' USING LOG WITH (install = true)",
    "CREATE CONTINUOUS QUERY large_orders CONSISTENCY {consistency} DESTINATION CALLBACK tell START FROM SNAPSHOT AS "
    + JOIN.format("orders", "customers"),
)

Row = tuple[Any, ...]
Say = Callable[[str], None]


def main(argv: Sequence[str] | None = None, spark: SparkSession | None = None) -> int:
    """Runs the example; `spark` is a session to use instead of starting one. 0 where the deltas are right."""
    options = _options(argv)
    say: Say = partial(Console(highlight=False).print, soft_wrap=True)
    with (
        tempfile.TemporaryDirectory(prefix="cq-remote-", ignore_cleanup_errors=True) as place,
        databases(place, options.seed) as (shop, crm),
        cq_engine.connect(f"{place}/warehouse", spark=spark) as engine,
    ):
        result = watch(engine, say)
        for statement in STATEMENTS:
            text = statement.format(place=place, consistency=options.consistency)
            say(f"[bold]cq>[/bold] {text}")
            engine.execute(text)
        people = (
            threading.Thread(target=write, args=(order, shop, options.seed + 1, options.changes)),
            threading.Thread(target=write, args=(move, crm, options.seed + 2, options.changes)),
        )
        for person in people:
            person.start()
        for person in people:
            person.join()
        return check(engine, Path(place), result, say)


# ---------------------------------------------------------------- two databases, and who writes to them


@contextmanager
def databases(place: str, seed: int) -> Iterator[tuple[sa.Engine, sa.Engine]]:
    """The shop's database with orders, and the other one with customers."""
    dice = random.Random(seed)  # noqa: S311 - a story
    shop, crm = (
        sa.create_engine(f"sqlite:///{place}/{name}.db", connect_args={"timeout": 30})
        for name in ("shop", "crm")
    )
    with shop.begin() as connection:
        connection.exec_driver_sql(ORDERS)
        for _ in range(8):
            insert(connection, dice)
    with crm.begin() as connection:
        connection.exec_driver_sql(CUSTOMERS)
        for cid, name in enumerate(PEOPLE[:-1], 1):
            row = (cid, name, dice.choice(CITIES))
            connection.exec_driver_sql("INSERT INTO customers VALUES (?, ?, ?)", row)
    yield shop, crm
    for database in (shop, crm):
        database.dispose()


def write(
    change: Callable[[sa.Connection, random.Random], None], database: sa.Engine, seed: int, changes: int
) -> None:
    """So many transactions, one after the other, each with one change."""
    dice = random.Random(seed)  # noqa: S311 - a story
    for _ in range(changes):
        with database.begin() as connection:
            change(connection, dice)
        time.sleep(PAUSE)


def order(connection: sa.Connection, dice: random.Random) -> None:
    """An order comes, changes or is cancelled."""
    run, chance = connection.exec_driver_sql, dice.random()
    newest = "oid = (SELECT max(oid) FROM orders)"
    if chance < 0.5:
        insert(connection, dice)
    elif chance < 0.8:
        run(f"UPDATE orders SET pieces = ? WHERE {newest}", (dice.randint(1, 9),))
    else:
        run(f"DELETE FROM orders WHERE {newest}")


def insert(connection: sa.Connection, dice: random.Random) -> None:
    """An order of one of six people, of whom one may not be a customer."""
    row = (dice.randint(1, len(PEOPLE)), dice.randint(1, 9))
    connection.exec_driver_sql("INSERT INTO orders (cid, pieces) VALUES (?, ?)", row)


def move(connection: sa.Connection, dice: random.Random) -> None:
    """A customer moves to another city, comes, or leaves with all orders still there."""
    run, cid = connection.exec_driver_sql, dice.randint(1, len(PEOPLE))
    if dice.random() < 0.85:
        run("UPDATE customers SET city = ? WHERE cid = ?", (dice.choice(CITIES), cid))
    elif not run("DELETE FROM customers WHERE cid = ?", (cid,)).rowcount:
        run("INSERT INTO customers VALUES (?, ?, ?)", (cid, PEOPLE[cid - 1], dice.choice(CITIES)))


# ---------------------------------------------------------------- the deltas


def watch(engine: cq_engine.Engine, say: Say) -> dict[Row, Row]:
    """Prints the deltas as they come; the result by them, which changes meanwhile."""
    result: dict[Row, Row] = {}

    @engine.callback("tell")
    def tell(batch: cq_engine.DeltaBatch) -> None:
        when = f"{batch.commit_time:%H:%M:%S.%f}"[:-3]
        for delta in batch:
            assert delta.key is not None
            sign, row = "[yellow]~[/yellow]", delta.new
            if delta.marker == "I":
                sign = "[green]+[/green]"
            if row is None:
                sign, row = "[red]-[/red]", result.pop(delta.key)
            else:
                result[delta.key] = row
            say(f"  {when} {sign} {_words(row)}")

    return result


def _words(row: Row) -> str:
    oid, _, name, city, pieces = row
    return f"order {oid}: {pieces} pieces for {name} in {city}"


def check(engine: cq_engine.Engine, place: Path, result: dict[Row, Row], say: Say) -> int:
    """Waits until the last change has come, and compares with the join that SQLite computes over both files."""
    reading = sa.create_engine(f"sqlite:///{place}/shop.db", connect_args={"timeout": 30})
    with reading.connect() as connection:
        connection.exec_driver_sql("ATTACH DATABASE ? AS crm", (f"{place}/crm.db",))
        wanted = sorted(map(tuple, connection.exec_driver_sql(JOIN.format("main.orders", "crm.customers"))))
    reading.dispose()
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and sorted(result.copy().values()) != wanted:
        time.sleep(0.2)
    counted = json.loads(_position(engine)).get("all", {})
    say(
        f"{counted.get('messages', 0)} questions to the sources, with {counted.get('keys_sent', 0)} keys; "
        f"{counted.get('rows_received', 0)} rows came"
    )
    right = sorted(result.values()) == wanted
    say(
        f"{len(wanted)} large orders; "
        + ("as the databases say" if right else f"[red]the databases say {wanted}[/red]")
    )
    return 0 if right else 1


def _position(engine: cq_engine.Engine) -> str:
    (row,) = engine.execute("SHOW CAPTURES").to_arrow().to_pylist()
    return str(row["position"])


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--changes", type=int, default=30, help="at each database (default: %(default)s)")
    parser.add_argument(
        "--consistency", choices=("COMPLETE", "STRONG", "CONVERGENT"), default="COMPLETE",
        help="default: %(default)s",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=3)
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
