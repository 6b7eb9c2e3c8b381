"""The shop: bulk rows, the stream of transactions, and the example that uses them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import duckdb
import pytest
from delivered import row_of
from pyspark.sql import SparkSession

import cq_engine
from estore import QUERIES, STREAM_A, Sizes, change_tables, transactions
from estore.bulk import bulk_rows
from estore.schema import ARROW
from estore.stream import KEYS

SCALE = 0.001
Rows = Counter[tuple[Any, ...]]


@pytest.fixture(scope="module")
def bulk(spark: SparkSession) -> dict[str, Any]:
    """The bulk rows as Arrow tables."""
    return {name: frame.toArrow() for name, frame in bulk_rows(spark, Sizes(SCALE)).items()}


def test_bulk_rows_have_the_types_and_numbers_promised(bulk: dict[str, Any]) -> None:
    for name, table in bulk.items():
        assert table.cast(ARROW[name]).num_rows == Sizes(SCALE).rows()[name]
        assert table.schema.types == ARROW[name].types


def test_orders_are_paid_in_full_before_the_stream(bulk: dict[str, Any]) -> None:
    shop = _shop(bulk)
    assert _rows(shop, QUERIES["negative_balance"]) == Counter()


@pytest.mark.parametrize("units", [1.0, 0.5, 0.0])
@pytest.mark.parametrize("orders", [1, 10])
def test_stream_keeps_every_key(bulk: dict[str, Any], units: float, orders: int) -> None:
    """The DML meets exactly the rows that it names, and no line is ever without its order."""
    shop = _shop(bulk)
    for transaction in islice(transactions(3, SCALE, units=units, orders=orders), 200):
        shop.execute("BEGIN")
        for statement in transaction.statements():
            assert shop.execute(statement).fetchall() == [(1,)], statement
        shop.execute("COMMIT")
        assert not shop.execute("FROM orderline ANTI JOIN orders USING (oid)").fetchall()
        assert not shop.execute("FROM orders ANTI JOIN customer USING (cid)").fetchall()


def test_dml_and_change_tables_say_the_same(bulk: dict[str, Any]) -> None:
    by_dml, by_changes = _shop(bulk), _shop(bulk)
    stream = list(islice(transactions(5, SCALE, units=0.5), 300))
    for transaction in stream:
        for statement in transaction.statements():
            by_dml.execute(statement)
    for name, changes in change_tables(stream).items():
        key = ", ".join(KEYS[name])
        by_changes.register("changes", changes)
        by_changes.execute(f"DELETE FROM {name} WHERE ({key}) IN (SELECT ({key}) FROM changes)")
        by_changes.execute(
            f"INSERT INTO {name} SELECT * EXCLUDE (op, txn, seq, n) FROM (SELECT *, row_number() OVER "
            f"(PARTITION BY {key} ORDER BY seq DESC) AS n FROM changes) WHERE n = 1 AND op <> 'D'"
        )
    for name in ARROW:
        assert _rows(by_dml, f"SELECT * FROM {name}") == _rows(by_changes, f"SELECT * FROM {name}")


def test_stream_is_reproducible_and_mixed_as_asked() -> None:
    one, two = (list(islice(transactions(11, SCALE, units=0.5), 500)) for _ in range(2))
    assert one == two
    kinds = Counter(transaction.kind for transaction in one if transaction.kind != "lines")
    total = sum(kinds.values())
    assert abs(kinds["orders"] / total - 0.6) < 0.07
    assert abs(kinds["prices"] / total - 0.25) < 0.07
    inserts = islice(transactions(11, SCALE, mix=STREAM_A), 100)
    assert {change.op for transaction in inserts for change in transaction.changes} == {"I"}


def test_example_delivers_what_changed(
    bulk: dict[str, Any],
    load_program: Callable[[str], ModuleType],
    spark: SparkSession,
    warehouse: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The deltas, applied to the results after the load, give the results after the last transaction."""
    program = load_program("examples/04_estore.py")
    count = 120
    arguments = ["--transactions", str(count), "--batch", "60", "--warehouse", str(warehouse)]
    assert program.main(arguments, spark=spark) == 0
    assert "Delivered" in capsys.readouterr().out

    shop = _shop(bulk)
    before = {name: _rows(shop, query) for name, query in QUERIES.items()}
    for transaction in islice(transactions(7, SCALE, units=0.5), count):
        for statement in transaction.statements():
            shop.execute(statement)
    with cq_engine.connect(str(warehouse), spark=spark, scheduler=False) as engine:
        for name, query in QUERIES.items():
            assert _applied(before[name], list(engine.deltas(name))) == _rows(shop, query), name


def _shop(bulk: dict[str, Any]) -> duckdb.DuckDBPyConnection:
    """The shop in DuckDB, with its keys."""
    shop = duckdb.connect()
    for name, rows in bulk.items():
        shop.register("bulk_rows", rows)
        shop.execute(f"CREATE TABLE {name} AS SELECT * FROM bulk_rows")
        shop.execute(f"CREATE UNIQUE INDEX {name}_key ON {name} ({', '.join(KEYS[name])})")
    return shop


def _rows(shop: duckdb.DuckDBPyConnection, query: str) -> Rows:
    return Counter(shop.execute(query).fetchall())


def _applied(rows: Rows, deltas: list[cq_engine.Delta]) -> Rows:
    result = Counter(rows)
    for delta in deltas:
        if delta.marker != "I":
            left = row_of(delta) if delta.marker == "D" else delta.old
            assert result[left] > 0, delta
            result[left] -= 1
        if delta.marker != "D":
            result[delta.new] += 1
    return +result
