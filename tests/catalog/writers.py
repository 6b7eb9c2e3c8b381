"""One of several processes that write to one warehouse, without Spark: `python -m tests.catalog.writers DIRECTORY URL NUMBER`.

It moves money between accounts, appends to lists, inserts rows of its own, and does upkeep, until it is killed. What was
acknowledged stands in a file of its own, a line each, written after the commit. A continuous query copies the table `op`; the
process that has the duties refreshes it and delivers its deltas to a table.

An account's balance is that of its last entry. A transfer reads two accounts and adds an entry to each, so that two
transfers that meet in an account would write the same key: one of them has to be refused.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import cq_engine
from cq_engine.api.engine import Engine
from cq_engine.api.handles import TransactionHandle
from cq_engine.core.errors import ConflictError, LeaseError, StorageError
from cq_engine.core.limits import Limits
from cq_engine.grammar import DestinationRef
from tests.catalog.copies import NoSpark, define, put_in_place

ACCOUNTS = 8
EACH = 100
LISTS = 3
IMPATIENT = Limits(lease_seconds=1.5, heartbeat_seconds=0.3, lock_seconds=40.0)
TABLES = (
    "CREATE TABLE entry (account INT, n INT, balance INT, PRIMARY KEY (account, n))",
    "CREATE TABLE item (list INT, n INT, op STRING, PRIMARY KEY (list, n))",
    "CREATE TABLE op (name STRING PRIMARY KEY, process INT)",
    "CREATE TABLE copied (name STRING, process INT)",
)


def set_up(engine: Engine) -> None:
    """The tables, and the accounts' first entries."""
    for statement in TABLES:
        engine.execute(statement)
    define(engine, "op", DestinationRef("copied", "TABLE"))
    with engine.transaction() as tx:
        tx.insert("entry", [(account, 0, EACH) for account in range(ACCOUNTS)])


def last(rows: list[dict[str, Any]], key: str) -> dict[int, dict[str, Any]]:
    """The row with the greatest n for each value of `key`."""
    found: dict[int, dict[str, Any]] = {}
    for row in rows:
        if row[key] not in found or found[row[key]]["n"] < row["n"]:
            found[row[key]] = row
    return found


def connect(warehouse: str | Path, url: str | None, limits: Limits | None = None) -> Engine:
    """An engine without Spark, whose refreshes copy."""
    spark: Any = NoSpark()
    return cq_engine.connect(warehouse, catalog=url, spark=spark, limits=limits)


class Writer:
    """What one process does."""

    def __init__(self, engine: Engine, number: int, acknowledged: Path) -> None:
        self.engine = engine
        self.chance = random.Random(f"{number} {os.getpid()}")
        self.name = f"{number}-{os.getpid()}"
        self.number = number
        self.count = 0
        self.acknowledged = acknowledged.open("a", encoding="ascii")

    def step(self) -> None:
        """One transaction, or upkeep; others may come in between."""
        what = self.chance.choices([self.transfer, self.append, self.insert, self.upkeep], [5, 3, 3, 1])[0]
        try:
            what()
        except (ConflictError, LeaseError):
            pass
        except StorageError as error:
            if "locked" not in str(error) and "terminat" not in str(error):
                raise

    def rows(self, tx: TransactionHandle, table: str) -> list[dict[str, Any]]:
        """What the transaction sees."""
        seen = tx.transaction.small_view(tx.transaction.table(table))
        assert seen is not None
        return seen.to_pylist()  # type: ignore[no-any-return]

    def commit(self, tx: TransactionHandle) -> str:
        """Marks the transaction with a row of its own."""
        self.count += 1
        name = f"{self.name}-{self.count}"
        tx.insert("op", [(name, self.number)])
        return name

    def note(self, name: str) -> None:
        """The commit was acknowledged."""
        self.acknowledged.write(name + "\n")
        self.acknowledged.flush()

    def transfer(self) -> None:
        a, b = self.chance.sample(range(ACCOUNTS), 2)
        with self.engine.transaction() as tx:
            known = last(self.rows(tx, "entry"), "account")
            amount = self.chance.randrange(1, 20)
            tx.insert("entry", [(a, known[a]["n"] + 1, known[a]["balance"] - amount)])
            if self.chance.random() < 0.2:
                time.sleep(0.02)
            tx.insert("entry", [(b, known[b]["n"] + 1, known[b]["balance"] + amount)])
            name = self.commit(tx)
        self.note(name)

    def append(self) -> None:
        key = self.chance.randrange(LISTS)
        with self.engine.transaction() as tx:
            known = last(self.rows(tx, "item"), "list")
            name = self.commit(tx)
            tx.insert("item", [(key, known[key]["n"] + 1 if key in known else 0, name)])
        self.note(name)

    def insert(self) -> None:
        with self.engine.transaction(retries=20) as tx:
            name = self.commit(tx)
        self.note(name)

    def upkeep(self) -> None:
        if self.engine.catalog.has_duties:
            self.chance.choice([self.engine.publish, self.engine.maintain])()
        else:
            self.chance.choice([self.engine.vacuum, self.engine.maintain, self.refresh])()

    def refresh(self) -> None:
        self.engine.refresh("q")


def main(warehouse: str, url: str, number: int) -> None:
    put_in_place()
    engine = connect(warehouse, url or None, IMPATIENT)
    writer = Writer(engine, number, Path(warehouse, f"acknowledged-{number}"))
    print("open", flush=True)
    while True:
        writer.step()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
