"""Histories of a shop whose foreign keys hold at every commit: units, lines to old orders, moves, cancellations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from tests.oracle.expressions import Maker
from tests.oracle.generate import History, TableSpec

__all__ = ["QUERIES", "shop_histories"]


@dataclass(frozen=True)
class Referring(TableSpec):
    """A table with foreign keys, as text."""

    references: tuple[str, ...] = ()

    def ddl(self, with_key: bool) -> str:
        text = super().ddl(with_key)
        return ", ".join([text[:-1], *self.references]) + ")" if with_key else text


def tables(promise: str) -> tuple[TableSpec, ...]:
    """The shop's tables; `promise` is what their foreign keys say (ENFORCED, RELY or nothing)."""
    buyer = f"FOREIGN KEY (cust) REFERENCES customers (c) {promise}"
    order = f"FOREIGN KEY (o) REFERENCES orders (o) {promise}"
    return (
        TableSpec("customers", (("c", "INT"), ("city", "STRING")), ("c",)),
        Referring("orders", (("o", "INT"), ("cust", "INT"), ("note", "INT")), ("o",), (buyer,)),
        Referring("lines", (("o", "INT"), ("n", "INT"), ("item", "INT")), ("o", "n"), (order,)),
    )


QUERIES = (
    (
        "SELECT s1.o, s1.n, s1.item, s2.note, s3.city FROM lines s1 JOIN orders s2 ON s1.o = s2.o"
        " JOIN customers s3 ON s2.cust = s3.c"
    ),
    "SELECT s2.note, s1.item FROM orders s2 JOIN lines s1 ON s1.o = s2.o WHERE s2.note > 1",
    (
        "SELECT s3.city, sum(s1.item) AS total, count(*) AS n FROM lines s1 JOIN orders s2 ON s1.o = s2.o"
        " JOIN customers s3 ON s2.cust = s3.c GROUP BY s3.city"
    ),
    "SELECT s2.o, max(s1.item) AS top FROM lines s1 JOIN orders s2 ON s1.o = s2.o GROUP BY s2.o HAVING count(*) > 1",
    "SELECT s2.o, s2.note, s1.n, s1.item FROM orders s2 LEFT JOIN lines s1 ON s1.o = s2.o",
    "SELECT s3.c FROM customers s3 WHERE NOT EXISTS (SELECT 1 FROM orders s2 WHERE s2.cust = s3.c)",
    "SELECT s2.o FROM orders s2 WHERE s2.o IN (SELECT s1.o FROM lines s1 WHERE s1.item > 2)",
    (
        "SELECT s1.o, s1.n, s4.n AS m, s2.cust FROM lines s1 JOIN lines s4 ON s1.o = s4.o AND s1.item < s4.item"
        " JOIN orders s2 ON s2.o = s1.o"
    ),
    (
        "SELECT s1.o, s1.n, row_number() OVER (PARTITION BY s2.cust ORDER BY s1.o, s1.n) AS r"
        " FROM lines s1 JOIN orders s2 ON s1.o = s2.o"
    ),
    "SELECT s3.c, s2.o FROM customers s3 FULL JOIN orders s2 ON s2.cust = s3.c",
)


class _Shop(Maker):
    """Draws operations and keeps what the tables hold, so that no foreign key is ever left without a row."""

    def __init__(self, draw: Callable[[Any], Any]) -> None:
        super().__init__(draw)
        self.customers: set[int] = set()
        self.orders: dict[int, int | None] = {}
        self.lines: dict[tuple[int, int], int] = {}

    def customer(self) -> list[str]:
        c = self.number(1, 5)
        if c in self.customers:
            return [f"UPDATE customers SET city = '{self.one('abc')}' WHERE c = {c}"]
        self.customers.add(c)
        return [f"INSERT INTO customers VALUES ({c}, '{self.one('abc')}')"]

    def unit(self) -> list[str]:
        """A new order with lines, sometimes of a new customer."""
        made = self.customer() if not self.customers or self.chance(25) else []
        o = self.number(1, 9)
        if o in self.orders:
            return [*made, *self.cancel(o)]
        cust = None if self.chance(10) else self.one(sorted(self.customers))
        self.orders[o] = cust
        made.append(
            f"INSERT INTO orders VALUES ({o}, {'NULL' if cust is None else cust}, {self.number(0, 3)})"
        )
        for _ in range(self.number(0, 3)):
            made += self.line(o)
        return made

    def line(self, o: int) -> list[str]:
        n, item = self.number(1, 3), self.number(0, 5)
        if (o, n) in self.lines:
            self.lines[o, n] = item
            return [f"UPDATE lines SET item = {item} WHERE o = {o} AND n = {n}"]
        self.lines[o, n] = item
        return [f"INSERT INTO lines VALUES ({o}, {n}, {item})"]

    def cancel(self, o: int) -> list[str]:
        del self.orders[o]
        self.lines = {key: item for key, item in self.lines.items() if key[0] != o}
        both = [f"DELETE FROM lines WHERE o = {o}", f"DELETE FROM orders WHERE o = {o}"]
        return both if self.chance(50) else both[::-1]

    def again(self, o: int) -> list[str]:
        """The order goes and comes back in one transaction, with its lines or with others."""
        cust, kept = self.orders[o], self.chance(50)
        shown = "NULL" if cust is None else cust
        parent = [
            f"DELETE FROM orders WHERE o = {o}",
            f"INSERT INTO orders VALUES ({o}, {shown}, {self.number(0, 3)})",
        ]
        if kept:
            return parent
        self.lines = {key: item for key, item in self.lines.items() if key[0] != o}
        return [f"DELETE FROM lines WHERE o = {o}", *parent, *self.line(o)]

    def move(self, o: int) -> list[str]:
        """A line goes to another order, or the order to another customer."""
        mine = sorted(key for key in self.lines if key[0] == o)
        free = [p for p in sorted(self.orders) if p != o]
        if mine and free and self.chance(60):
            key, to = self.one(mine), self.one(free)
            if (to, key[1]) in self.lines:
                return self.line(o)
            self.lines[to, key[1]] = self.lines.pop(key)
            return [f"UPDATE lines SET o = {to} WHERE o = {o} AND n = {key[1]}"]
        if not self.customers:
            return self.customer()
        self.orders[o] = self.one(sorted(self.customers))
        return [f"UPDATE orders SET cust = {self.orders[o]} WHERE o = {o}"]

    def leave(self) -> list[str]:
        """A customer without orders leaves."""
        free = sorted(self.customers - set(self.orders.values()))
        if not free:
            return self.unit()
        c = self.one(free)
        self.customers.discard(c)
        return [f"DELETE FROM customers WHERE c = {c}"]

    def operation(self) -> list[str]:
        kind = self.one(
            ("unit", "unit", "unit", "line", "cancel", "again", "move", "note", "customer", "leave")
        )
        if kind == "unit" or (not self.orders and kind not in ("customer", "leave")):
            return self.unit()
        if kind in ("customer", "leave"):
            return self.customer() if kind == "customer" else self.leave()
        o = self.one(sorted(self.orders))
        if kind == "note":
            return [f"UPDATE orders SET note = {self.number(0, 3)} WHERE o = {o}"]
        return {"line": self.line, "cancel": self.cancel, "again": self.again, "move": self.move}[kind](o)

    def transaction(self) -> tuple[str, ...]:
        return tuple(statement for _ in range(self.number(1, 3)) for statement in self.operation())


@st.composite
def shop_histories(
    draw: Callable[[Any], Any], promise: str, queries: int, transactions: tuple[int, int]
) -> History:
    """Histories in which every foreign key holds at every commit."""
    shop = _Shop(draw)
    initial = tuple(s for _ in range(shop.number(1, 6)) for s in shop.operation())
    steps = tuple(shop.transaction() for _ in range(shop.number(*transactions)))
    texts = tuple(shop.some(QUERIES, queries, queries))
    return History(tables(promise), initial, steps, texts, shop.number(0, 1 << 16))
