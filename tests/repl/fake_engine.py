"""An engine with the shape of cq_engine.Engine and a handful of statements, for the tests of the prompt.

As a program it is `cq` over this engine: `python tests/repl/fake_engine.py [arguments of cq]`. The environment
variable FAKE_CQ_OPEN_SECONDS delays opening.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa

from cq_engine.catalog.model import (
    CatalogState,
    ContinuousQuery,
    Cursor,
    ForeignKey,
    QueryStatus,
    RefreshRecord,
    Table,
    VersionedTable,
)
from cq_engine.catalog.overview import Overview
from cq_engine.core.calls import call
from cq_engine.core.columns import Column
from cq_engine.core.errors import CatalogError, CQSyntaxError, LeaseError, Location, TransactionError
from cq_engine.grammar.clauses import DestinationRef
from cq_engine.query.result import Result
from cq_engine.query.stream import StreamingResult

NOON = datetime(2024, 5, 1, 12, 0, tzinfo=timezone.utc)

ORDERS = Table(
    "orders",
    VersionedTable(
        1,
        "base",
        "orders",
        (
            Column("oid", "int", nullable=False),
            Column("cid", "int"),
            Column("amount", "decimal(10,2)", comment="in EUR"),
        ),
        ("oid",),
        ("oid",),
    ),
    primary_key=("oid",),
    foreign_keys=(ForeignKey("orders_cid_fk", ("cid",), "customers", ("cid",), rely=True),),
)
CUSTOMERS = Table(
    "customers",
    VersionedTable(
        2, "base", "customers", (Column("cid", "int", nullable=False), Column("name", "string")), ("cid",)
    ),
    primary_key=("cid",),
)
BIG_SPENDERS = ContinuousQuery(
    "big_spenders",
    3,
    "CREATE CONTINUOUS QUERY ...",
    "SELECT cid, sum(amount) AS total\nFROM orders\nGROUP BY cid",
    VersionedTable(
        3, "delta", "big_spenders", (Column("cid", "int"), Column("total", "decimal(20,2)")), ("cid",)
    ),
    ("cid",),
    "TRANSACTIONAL",
    ("I", "D", "U"),
    destinations=(DestinationRef("alerts", "CALLBACK"), DestinationRef("spender_totals", "TABLE")),
    sources=("orders",),
    verdict="INCREMENTAL",
    reasons=("sum of decimals is kept per group",),
)


class FakeCatalog:
    """Two tables, one query, and one destination that has trouble."""

    def __init__(self) -> None:
        self.state = CatalogState({"orders": ORDERS, "customers": CUSTOMERS}, {"big_spenders": BIG_SPENDERS})
        self.newest_version = 8
        self.statuses = {"big_spenders": QueryStatus(position=7, last_refresh=NOON)}
        self.records: list[RefreshRecord] = []

    def status(self, query: str) -> QueryStatus:
        return self.statuses[query]

    def cursors(self, query: str) -> list[Cursor]:
        return [Cursor(query, "alerts", 5, failures=2, error="timed out")]

    def refreshes(self, query: str | None = None, limit: int = 100) -> list[RefreshRecord]:
        return self.records[::-1][:limit]


class FakeEngine:
    """Understands a few statements; `calls` has all that were asked for, with their places."""

    def __init__(self, warehouse: str = "warehouse", **options: Any) -> None:
        self.warehouse = warehouse
        self.options = options
        self.calls: list[tuple[str, str, int, int]] = []
        self.in_transaction = False
        self.drained = 0
        self.closed = False
        self.catalog = FakeCatalog()

    @property
    def spark(self) -> object:
        return object()

    def overview(self) -> Overview:
        return Overview.of(self.catalog)

    def execute(self, sql: str, *, source: str = "<sql>", line: int = 1, column: int = 1) -> Result:
        self.calls.append((sql, source, line, column))
        return self._execute(sql.rstrip(";").strip(), source, line, column)

    def _execute(self, sql: str, source: str, line: int, column: int) -> Result:
        word = sql.split(None, 1)[0].upper()
        if word == "BEGIN":
            self.in_transaction = True
            return Result(message="BEGIN")
        if word in {"COMMIT", "ROLLBACK"}:
            if not self.in_transaction:
                raise TransactionError(f"{word} outside a transaction")
            self.in_transaction = False
            return Result(message=word)
        if word == "INSERT":
            return Result(message="INSERT 1", rowcount=1, commit_version=8)
        if word == "SELECT":
            return Result(arrow=_answer(sql))
        if word == "FOLLOW":
            return _followed(sql)
        if word == "SLEEP":
            print("sleeping", file=sys.stderr, flush=True)
            time.sleep(float(sql.split()[1]))
            return Result(message="slept")
        if word == "DEAF":  # as in a conversation with Spark that does not end
            print("sleeping", file=sys.stderr, flush=True)
            exec(compile("__name__ = 'py4j.deaf'\nimport time\ntime.sleep(60)", "deaf", "exec"), {})
        if word == "SAVE":
            with call() as under_way:
                under_way.durable.commit(9)
                time.sleep(float(sql.split()[1]))
            return Result(message="saved", commit_version=9)
        if word == "BOOM":
            raise ZeroDivisionError("a bug\nwith two lines")
        if word == "DROP":
            raise CatalogError(
                "orders is in use", detail="big_spenders reads it", hint="drop big_spenders first"
            )
        text = sql.splitlines()[0]
        raise CQSyntaxError(
            f"unexpected {word}", location=Location(source, line, column, " " * (column - 1) + text)
        )

    def drain(self, timeout: float | None = None) -> None:
        self.drained += 1

    def tell_of_duties(self, tell: Callable[[str], None]) -> None:
        """They are here."""

    def close(self) -> None:
        self.closed = True


def _followed(sql: str) -> Result:
    """Two pieces, and then nothing for a long time."""
    schema = pa.schema([("cid", pa.int32()), ("_change_type", pa.string()), ("_commit_version", pa.int64())])
    rows = [([1, 22, None], ["insert", "delete", "progress"]), ([333, None], ["insert", "progress"])]
    pieces = [pa.table([c, k, [n] * len(k)], schema=schema) for n, (c, k) in enumerate(rows, 7)]

    def following() -> pa.Table | None:
        if not pieces:
            print("waiting", file=sys.stderr, flush=True)
            time.sleep(60)
        return pieces.pop(0) if pieces else None

    if "missing" in sql:
        raise CatalogError("there is no continuous query missing")
    return StreamingResult(schema, following, lambda: None)


def _answer(sql: str) -> pa.Table:
    if re.search(r"\bmany\b", sql):
        return pa.table({"n": range(100)})
    return pa.table(
        {
            "oid": pa.array([1, 2], pa.int32()),
            "name": ["Anna", None],
            "amount": pa.array([Decimal("12.50"), Decimal("3.00")], pa.decimal128(10, 2)),
            "placed": pa.array([NOON, None], pa.timestamp("us", "UTC")),
        }
    )


def connect(path: str, **options: Any) -> FakeEngine:
    """In place of cq_engine.connect. A warehouse called `leased` cannot be opened."""
    time.sleep(float(os.environ.get("FAKE_CQ_OPEN_SECONDS", "0")))
    if path.endswith("leased"):
        raise LeaseError(f"another process holds {path}", hint="open it with --read-only")
    return FakeEngine(path, **options)


def main() -> int:
    import cq_engine
    from cq_engine.cli import main as cq
    from cq_engine.launch import prestart as ahead

    ahead.start_spark = lambda conf: None  # type: ignore[assignment,unused-ignore]
    cq_engine.connect = connect  # type: ignore[attr-defined,assignment,unused-ignore]
    return cq()


if __name__ == "__main__":
    sys.exit(main())
