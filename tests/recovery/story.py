"""What the killed process and its successor do: one deterministic story of transactions, refreshes and upkeep.

Every transaction writes its number into the table `progress`, so that whoever goes on knows which ones are done. All
other steps may be repeated.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from cq_engine.api.engine import Engine, TransactionHandle
from cq_engine.destinations import DeltaBatch
from tests.limits import limit

RICH = (
    "SELECT account, sum(amount) AS total, count(*) AS n FROM entry GROUP BY account HAVING sum(amount) > 100"
)
OWNED = "SELECT e.id, e.amount, e.note, a.owner FROM entry e JOIN account a ON e.account = a.id WHERE e.amount > 5"
QUERIES = {"rich": RICH, "owned": OWNED}
"""The defining queries without delta functions: what the oracle recomputes."""
OVER = {"named": f"SELECT r.account, r.total, a.owner FROM ({RICH}) r JOIN account a ON a.id = r.account"}
"""The same of queries over those, which have no destinations."""

CREATE_RICH = (
    "CREATE CONTINUOUS QUERY IF NOT EXISTS rich DESTINATION TABLE rich_log START FROM SNAPSHOT AS "
    "SELECT delta_marker() AS m, account, sum(amount) AS total, count(*) AS n, cq_old_value(total) AS was,"
    " cq_commit_version() AS v FROM entry GROUP BY account HAVING sum(amount) > 100"
)
CREATE_OWNED = (
    "CREATE CONTINUOUS QUERY IF NOT EXISTS owned DESTINATION CALLBACK calls, TABLE owned_log, owned_now"
    " START FROM SNAPSHOT AS SELECT e.id, e.amount, e.note, a.owner, delta_marker() AS m,"
    " cq_old_value(a.owner) AS was, cq_commit_version() AS v"
    " FROM entry e JOIN account a ON e.account = a.id WHERE e.amount > 5"
)
CREATE_NAMED = (
    "CREATE CONTINUOUS QUERY IF NOT EXISTS named START FROM SNAPSHOT AS"
    " SELECT r.account, r.total, a.owner FROM rich r JOIN account a ON a.id = r.account"
)
DEFINITIONS = (
    "CREATE TABLE IF NOT EXISTS progress (step INT PRIMARY KEY)",
    "CREATE TABLE IF NOT EXISTS account (id INT PRIMARY KEY, owner STRING)",
    "CREATE TABLE IF NOT EXISTS entry (id INT PRIMARY KEY, account INT, amount DECIMAL(10,2), note STRING)",
    "CREATE DESTINATION IF NOT EXISTS owned_now TYPE table WITH (mode = 'merge')",
    CREATE_RICH,
    CREATE_OWNED,
    CREATE_NAMED,
)
BULK = 600
CHUNK = 250
"""A transaction of BULK rows is more than a batch of the callback takes here, and more bytes than the catalog takes
inline: the change log, the table and the callback get it in files and in parts."""

Step = Callable[[Engine], None]


def connect_story(engine: Engine, calls: Path) -> None:
    """Registers the callback, which writes every batch durably to `calls` before it accepts it."""
    limit(engine, batch_deltas=CHUNK)

    @engine.callback("calls")
    def _write(batch: DeltaBatch) -> None:
        line = {
            "key": batch.idempotency_key,
            "last": batch.last,
            "deltas": [(d.marker, d.sequence, d.new and list(d.new), d.old and list(d.old)) for d in batch],
        }
        with calls.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, default=str) + "\n")
            file.flush()
            os.fsync(file.fileno())


def tell(engine: Engine) -> None:
    """The story from where the warehouse says that it is, to the end."""
    for definition in DEFINITIONS:
        engine.execute(definition)
    done = {step for (step,) in engine.execute("SELECT step FROM progress").fetchall()}
    for number, step in enumerate(STEPS):
        if number not in done:
            step(engine)


def transaction(*statements: str) -> Callable[[int], Step]:
    """A step that commits the statements with its number."""

    def numbered(number: int) -> Step:
        def run(engine: Engine) -> None:
            with engine.transaction() as tx:
                _mark(tx, number)
                for statement in statements:
                    tx.execute(statement)

        return run

    return numbered


def upkeep(*actions: Callable[[Engine], object]) -> Callable[[int], Step]:
    """A step that changes no table, and may be repeated."""

    def numbered(_: int) -> Step:
        def run(engine: Engine) -> None:
            for action in actions:
                action(engine)

        return run

    return numbered


def _mark(tx: TransactionHandle, number: int) -> None:
    tx.execute(f"INSERT INTO progress VALUES ({number})")


def refresh(name: str) -> Callable[[Engine], object]:
    return lambda engine: engine.refresh(name)


def compact(name: str) -> Callable[[Engine], object]:
    return lambda engine: engine.compact(name)


def merge(name: str) -> Callable[[Engine], object]:
    """What maintenance does in the background, where more has changed."""
    return lambda engine: engine.compactor.merge(engine.catalog.state.tables[name].storage)


def publish(engine: Engine) -> None:
    engine.publish()


def _stream(number: int) -> Step:
    """Three transactions of another system in one call: three commits, all or none of them."""

    def run(engine: Engine) -> None:
        entry: dict[str, list[Any]] = {
            "txn": [1, 1, 2, 2, 3],
            "op": ["I", "U", "I", "D", "U"],
            "id": [20, 1, 21, 20, 21],
            "account": [2, 1, 3, 2, 1],
            "amount": ["300.00", "7.00", "150.00", "300.00", "151.00"],
            "note": ["a", "b", "c", "a", "d"],
        }
        account = {"txn": [3], "op": ["U"], "id": [3], "owner": ["Carl"]}
        progress = {"txn": [2], "op": ["I"], "step": [number]}
        tables = {"entry": _amounts(entry), "account": pa.table(account), "progress": pa.table(progress)}
        engine.apply_changes(tables, transaction="txn")

    return run


def _amounts(columns: dict[str, list[Any]]) -> pa.Table:
    found = pa.table(columns)
    place = found.column_names.index("amount")
    return found.set_column(place, "amount", found.column("amount").cast(pa.decimal128(10, 2)))


def _bulk(number: int) -> Step:
    def run(engine: Engine) -> None:
        ids = range(1000, 1000 + BULK)
        rows = {
            "id": pa.array(ids, pa.int32()),
            "account": pa.array([i % 3 + 1 for i in ids], pa.int32()),
            "amount": pa.array([f"{6 + i % 20}.50" for i in ids]).cast(pa.decimal128(10, 2)),
            "note": [f"{i:02000d}" for i in ids],
        }
        with engine.transaction() as tx:
            _mark(tx, number)
            tx.insert("entry", pa.table(rows))

    return run


_NUMBERED = (
    transaction(
        "INSERT INTO account VALUES (1, 'Anna'), (2, 'Bert'), (3, 'Cleo')",
        "INSERT INTO entry VALUES (1, 1, 60.00, 'a'), (2, 1, 70.00, 'b'), (3, 2, 90.00, 'c'), (4, 9, 500.00, 'd')",
    ),
    upkeep(refresh("rich"), refresh("owned")),
    transaction(
        "UPDATE entry SET amount = amount + 20 WHERE account = 2",
        "DELETE FROM entry WHERE id = 2",
        "UPDATE account SET owner = 'Annie' WHERE id = 1",
    ),
    _stream,
    upkeep(publish, refresh("named")),
    transaction("INSERT INTO account VALUES (9, 'Nina')", "UPDATE entry SET id = 5 WHERE id = 4"),
    transaction("DELETE FROM entry WHERE account = 9", "INSERT INTO entry VALUES (5, 9, 101.00, 'back')"),
    upkeep(refresh("owned"), publish),
    _bulk,
    upkeep(refresh("rich"), refresh("owned"), compact("entry")),
    transaction("DELETE FROM entry WHERE id >= 1003", "UPDATE account SET owner = 'B.' WHERE id = 2"),
    upkeep(publish, refresh("owned"), compact("owned_log"), merge("entry")),
    transaction("UPDATE entry SET amount = 1 WHERE id = 3"),
)
STEPS: tuple[Step, ...] = tuple(make(number) for number, make in enumerate(_NUMBERED))


def finish(engine: Engine) -> None:
    """What the successor does after the story: everything is delivered and published."""
    engine.drain(timeout=120)
    engine.publish()
