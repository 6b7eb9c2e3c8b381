"""Alerts from tables that are there already: a database in three statements, a Delta Lake table in two.

    python examples/07_captures.py
    python examples/07_captures.py --url postgresql://me@127.0.0.1/bank      # its table bank_account is made anew

A bank keeps its accounts in a database that knows nothing of us. CREATE SOURCE says where it is, CREATE TABLE and CREATE
CAPTURE bring its table here and what changes there from then on, every second; a continuous query says who went below zero
and who came back. Its transfers are a Delta Lake table, which one statement captures. The bank works on; the alerts come.
At the end the alerts are compared with what the bank's own tables say.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import sqlalchemy as sa
from deltalake import write_deltalake
from rich.console import Console

import cq_engine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PEOPLE = ("Andy", "Beth", "Carl", "Dora", "Emil", "Fay")
PATIENCE = 120.0
ACCOUNTS = sa.Table(
    "bank_account",
    sa.MetaData(),
    sa.Column("acct", sa.Integer, primary_key=True),
    sa.Column("owner", sa.String(20)),
    sa.Column("balance", sa.Numeric(10, 2)),
)
STATEMENTS = (
    "CREATE SOURCE bank TYPE {kind} WITH (url = '${{BANK_URL}}')",
    "CREATE TABLE account (acct INT, owner STRING, balance DECIMAL(10, 2), PRIMARY KEY (acct))",
    "CREATE CAPTURE account_in INTO account FROM bank TABLE 'bank_account' USING CHECKSUM EVERY 1 SECOND",
    "CREATE TABLE transfer (PRIMARY KEY (number)) FROM DELTA '{transfers}' EVERY 1 SECOND",
    "CREATE CONTINUOUS QUERY overdrawn DESTINATION CALLBACK alert AS SELECT acct, owner, balance FROM account WHERE balance < 0",
    "CREATE CONTINUOUS QUERY volume AS SELECT acct, count(*) AS transfers, sum(amount) AS moved FROM transfer GROUP BY acct",
)


def main(argv: Sequence[str] | None = None, spark: SparkSession | None = None) -> int:
    """Runs the example; `spark` is a session to use instead of starting one. 0 where the alerts are right."""
    options = _options(argv)
    console = Console(highlight=False)
    say = partial(console.print, soft_wrap=True)
    with tempfile.TemporaryDirectory(prefix="cq-captures-") as place:
        transfers = Path(place, "transfers")
        with (
            bank(options.url, place) as database,
            cq_engine.connect(f"{place}/warehouse", spark=spark) as engine,
        ):
            chance = random.Random(options.seed)  # noqa: S311 - a story
            move(database, transfers, chance, 0)
            overdrawn = watch(engine, say)
            for statement in STATEMENTS:
                text = statement.format(kind=database.dialect.name, transfers=transfers)
                say(f"[bold]cq>[/bold] {text}", highlight=False)
                engine.execute(text)
            for number in range(1, options.transfers + 1):
                move(database, transfers, chance, number)
                time.sleep(0.2)
            return check(engine, database, overdrawn, options.transfers, say)


@contextmanager
def bank(url: str | None, place: str) -> Iterator[sa.Engine]:
    """The bank's own database, with its accounts."""
    os.environ["BANK_URL"] = url or f"sqlite:///{place}/bank.db"
    database = sa.create_engine(os.environ["BANK_URL"].replace("postgresql://", "postgresql+psycopg://"))
    ACCOUNTS.drop(database, checkfirst=True)
    ACCOUNTS.create(database)
    with database.begin() as connection:
        rows = [{"acct": n, "owner": name, "balance": 50} for n, name in enumerate(PEOPLE, 1)]
        connection.execute(sa.insert(ACCOUNTS), rows)
    yield database
    database.dispose()


def move(database: sa.Engine, transfers: Path, chance: random.Random, number: int) -> None:
    """A transfer: both accounts in one transaction, and a line in the Delta Lake table."""
    giver, taker = chance.sample(range(1, len(PEOPLE) + 1), 2)
    amount = chance.randint(1, 60)
    with database.begin() as connection:
        for acct, change in ((giver, -amount), (taker, amount)):
            by = ACCOUNTS.c.acct == acct
            connection.execute(sa.update(ACCOUNTS).where(by).values(balance=ACCOUNTS.c.balance + change))
    row = {"number": [number], "acct": [giver], "amount": [amount]}
    write_deltalake(
        transfers, pa.table(row), mode="append", configuration={"delta.enableChangeDataFeed": "true"}
    )


def watch(engine: cq_engine.Engine, say: partial[None]) -> dict[int, str]:
    """Prints the alerts; who is below zero by them."""
    overdrawn: dict[int, str] = {}
    guard = threading.Lock()

    @engine.callback("alert")
    def alert(batch: cq_engine.DeltaBatch) -> None:
        with guard:
            for delta in batch:
                row = delta.new or delta.old
                assert row is not None
                acct, owner, balance = row
                if delta.marker == "D":
                    del overdrawn[acct]
                    say(f"  [green]{owner} is back above zero[/green]")
                else:
                    overdrawn[acct] = owner
                    say(f"  [red]{owner} is at {balance}[/red]")

    return overdrawn


def check(
    engine: cq_engine.Engine,
    database: sa.Engine,
    overdrawn: dict[int, str],
    transfers: int,
    say: partial[None],
) -> int:
    """Waits until the last change has come, and compares with the bank's own tables."""
    query = sa.select(ACCOUNTS.c.acct, ACCOUNTS.c.owner).where(ACCOUNTS.c.balance < 0)
    with database.connect() as connection:
        wanted = {row.acct: row.owner for row in connection.execute(query)}
    end = time.monotonic() + PATIENCE
    counted = 0
    while time.monotonic() < end and (overdrawn != wanted or counted != transfers + 1):
        time.sleep(0.2)
        counted = engine.execute("SELECT sum(transfers) FROM volume").fetchall()[0][0] or 0
    say(f"{counted} transfers; overdrawn: {', '.join(overdrawn.values()) or 'nobody'}")
    right = overdrawn == wanted and counted == transfers + 1
    say("as the bank says" if right else f"[red]the bank says {wanted}, {transfers + 1} transfers[/red]")
    return 0 if right else 1


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--url", help="of the bank's database (default: a SQLite file of its own)")
    parser.add_argument("--transfers", type=int, default=40, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=3)
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
