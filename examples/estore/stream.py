"""The transactions that follow the bulk load, an endless reproducible stream.

An order comes in *FK-PK units* when it and its lines are committed together; otherwise the order is committed first
and its lines follow some transactions later. Changes of prices and quantities prefer recent orders, as in a shop.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal

import pyarrow as pa

from estore import values
from estore.schema import ARROW, LINES_PER_ORDER, Sizes

__all__ = ["STREAM_A", "STREAM_B", "Change", "Shop", "Transaction", "change_tables", "transactions"]

Value = int | str | Decimal | date
Row = dict[str, Value]

STREAM_A: Mapping[str, float] = {"orders": 1.0}
"""Inserts only."""

STREAM_B: Mapping[str, float] = {"orders": 0.60, "prices": 0.25, "cancellation": 0.10, "customer": 0.05}
"""Shares of the kinds of transactions: new orders, changed prices and quantities, deleted orders, changed customers."""

KEYS = {"customer": ("cid",), "orders": ("oid",), "orderline": ("oid", "line")}
_CENT = Decimal("0.01")


@dataclass(frozen=True)
class Change:
    """One row changed: `op` is I, U or D, `row` the whole row after it (before it, for D)."""

    table: str
    op: str
    row: Row


@dataclass(frozen=True)
class Transaction:
    """Changes that are committed together. `kind` is a name of a stream's mix, or 'lines' for lines that come late."""

    number: int
    kind: str
    changes: tuple[Change, ...]

    def statements(self) -> list[str]:
        """The transaction as DML, one statement per row."""
        return [_statement(change) for change in self.changes]


def change_tables(stream: Iterable[Transaction], *, scatter: bool = False) -> dict[str, pa.Table]:
    """Transactions as input of `engine.apply_changes`: per table its columns, and `op`, `txn`, `seq`.

    Args:
        scatter: order numbers are `values.scattered`, as those of a load with `scatter`.
    """
    columns: dict[str, dict[str, list[Value]]] = {}
    sequence = 0
    for transaction in stream:
        for change in transaction.changes:
            sequence += 1
            shown = change.row
            if scatter and "oid" in shown:
                shown = {**shown, "oid": values.scattered(_integer(shown, "oid"))}
            row = {**shown, "op": change.op, "txn": transaction.number, "seq": sequence}
            into = columns.setdefault(change.table, {name: [] for name in row})
            for name, value in row.items():
                into[name].append(value)
    marks = [("op", pa.string()), ("txn", pa.int64()), ("seq", pa.int64())]
    return {name: pa.table(rows, pa.schema([*ARROW[name], *marks])) for name, rows in columns.items()}


def transactions(
    seed: int,
    scale: float,
    *,
    mix: Mapping[str, float] = STREAM_B,
    units: float = 1.0,
    orders: int = 1,
) -> Iterator[Transaction]:
    """The transactions after the bulk load of `scale`, numbered from 1, without end.

    Args:
        seed: what the stream depends on besides the scale.
        mix: share of every kind of transaction, e.g. STREAM_A or STREAM_B.
        units: share of the orders that come in FK-PK units.
        orders: how many orders (or customers) one transaction inserts, changes or deletes.
    """
    return Shop(seed, scale).transactions(mix=mix, units=units, orders=orders)


class Shop:
    """The shop after the bulk load of `scale`. It remembers the orders and customers that its transactions touched.

    Streams of one shop can be taken one after the other: each goes on where the one before was left.
    """

    def __init__(self, seed: int, scale: float) -> None:
        self._rng = random.Random(seed)  # noqa: S311 - no secrets here
        self._sizes = Sizes(scale)
        self._number = 0
        self._units = 1.0
        self._newest = self._sizes.orders
        self._orders: dict[int, Row] = {}
        self._lines: dict[int, list[Row]] = {}
        self._customers: dict[int, Row] = {}
        self._deleted: set[int] = set()
        self._late: deque[tuple[int, list[Row]]] = deque()
        self._without_lines: set[int] = set()

    def transactions(
        self, *, mix: Mapping[str, float] = STREAM_B, units: float = 1.0, orders: int = 1
    ) -> Iterator[Transaction]:
        """Transactions without end, numbered on; the arguments are those of `transactions`."""
        make = {
            "orders": self._new_order,
            "prices": self._new_prices,
            "cancellation": self._cancel,
            "customer": self._change_customer,
        }
        while True:
            self._number += 1
            if self._late and self._late[0][0] <= self._number:
                yield Transaction(self._number, "lines", tuple(self._late_lines()))
                continue
            self._units = units
            kind = self._rng.choices(list(mix), list(mix.values()))[0]
            changes: list[Change] = []
            for _ in range(orders):
                changes += make[kind](self._number)
            yield Transaction(self._number, kind, tuple(changes))

    # ------------------------------------------------------------ kinds of transactions

    def _new_order(self, number: int) -> list[Change]:
        self._newest += 1
        oid, rng = self._newest, self._rng
        lines: list[Row] = [
            {
                "oid": oid,
                "line": line,
                "item": rng.choice(values.ITEMS),
                "price": rng.randrange(100, 20_000) * _CENT,
                "qty": rng.randint(1, 5),
            }
            for line in range(1, rng.randint(LINES_PER_ORDER - 2, LINES_PER_ORDER + 2) + 1)
        ]
        order: Row = {
            "oid": oid,
            "cid": rng.randint(1, self._sizes.customers),
            "odate": values.FIRST_DATE + timedelta(days=values.YEAR + number // 1000),
            "paid": sum((_total(line) for line in lines), Decimal("0.00")),
        }
        self._orders[oid] = order
        self._lines[oid] = lines
        changes = [Change("orders", "I", order)]
        if rng.random() < self._units:
            return changes + [Change("orderline", "I", line) for line in lines]
        self._late.append((number + rng.randint(1, 3), lines))
        self._without_lines.add(oid)
        return changes

    def _late_lines(self) -> list[Change]:
        _, lines = self._late.popleft()
        self._without_lines.discard(_integer(lines[0], "oid"))
        return [Change("orderline", "I", line) for line in lines]

    def _new_prices(self, _number: int) -> list[Change]:
        rng = self._rng
        lines = self._lines_of(self._recent_order())
        changes = []
        for position in rng.sample(range(len(lines)), k=min(len(lines), rng.randint(1, 3))):
            line = lines[position] = dict(lines[position])
            if rng.random() < 0.7:
                line["price"] = (_decimal(line, "price") * rng.randint(80, 125) / 100).quantize(_CENT)
            else:
                line["qty"] = _integer(line, "qty") % 5 + 1
            changes.append(Change("orderline", "U", line))
        return changes

    def _cancel(self, _number: int) -> list[Change]:
        oid = self._recent_order()
        order, lines = self._order(oid), self._lines_of(oid)
        self._deleted.add(oid)
        return [*(Change("orderline", "D", line) for line in lines), Change("orders", "D", order)]

    def _change_customer(self, number: int) -> list[Change]:
        rng = self._rng
        cid = rng.randint(1, self._sizes.customers)
        customer = self._customers[cid] = dict(self._customers.get(cid) or _bulk_customer(cid))
        if rng.random() < 0.5:
            customer["region"] = rng.choice([name for name in values.REGIONS if name != customer["region"]])
        else:
            customer["name"] = f"Customer {cid} (as of {number})"
        return [Change("customer", "U", customer)]

    # ------------------------------------------------------------ rows as they are now

    def _recent_order(self) -> int:
        """An order that exists and has its lines; half of the picks are among the newest 1.6 %."""
        while True:
            oid = self._newest - int(self._newest * self._rng.random() ** 6)
            if oid > 0 and oid not in self._deleted and oid not in self._without_lines:
                return oid

    def _order(self, oid: int) -> Row:
        return self._orders.get(oid) or _bulk_order(oid, self._sizes)

    def _lines_of(self, oid: int) -> list[Row]:
        if oid not in self._lines:
            self._lines[oid] = [_bulk_line(oid, line) for line in range(1, LINES_PER_ORDER + 1)]
        return self._lines[oid]


def _bulk_customer(cid: int) -> Row:
    return {
        "cid": cid,
        "name": f"Customer {cid}",
        "region": values.REGIONS[values.region_index(cid)],
        "segment": values.SEGMENTS[values.segment_index(cid)],
    }


def _bulk_order(oid: int, sizes: Sizes) -> Row:
    lines = (_bulk_line(oid, line) for line in range(1, LINES_PER_ORDER + 1))
    return {
        "oid": oid,
        "cid": values.order_customer(oid, sizes.customers),
        "odate": values.FIRST_DATE + timedelta(days=(oid - 1) * values.YEAR // sizes.orders),
        "paid": sum((_total(line) for line in lines), Decimal("0.00")),
    }


def _bulk_line(oid: int, line: int) -> Row:
    return {
        "oid": oid,
        "line": line,
        "item": values.ITEMS[values.item_index(oid, line)],
        "price": values.price_cents(oid, line) * _CENT,
        "qty": values.quantity(oid, line),
    }


def _total(line: Row) -> Decimal:
    return _decimal(line, "price") * _integer(line, "qty")


def _decimal(row: Row, column: str) -> Decimal:
    value = row[column]
    assert isinstance(value, Decimal)
    return value


def _integer(row: Row, column: str) -> int:
    value = row[column]
    assert isinstance(value, int)
    return value


# ---------------------------------------------------------------- DML


def _statement(change: Change) -> str:
    key = KEYS[change.table]
    where = " AND ".join(f"{name} = {_literal(change.row[name])}" for name in key)
    if change.op == "I":
        return f"INSERT INTO {change.table} VALUES ({', '.join(map(_literal, change.row.values()))})"
    if change.op == "D":
        return f"DELETE FROM {change.table} WHERE {where}"
    assigned = ", ".join(
        f"{name} = {_literal(value)}" for name, value in change.row.items() if name not in key
    )
    return f"UPDATE {change.table} SET {assigned} WHERE {where}"


def _literal(value: Value) -> str:
    if isinstance(value, str):
        return f"'{value}'"
    if isinstance(value, date):
        return f"DATE '{value.isoformat()}'"
    return str(value)
