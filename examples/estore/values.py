"""The values of the bulk rows, as functions of their keys.

Executors compute them for ten million rows at once, and the stream of transactions computes them in the driver for
the few rows that it changes: the same arithmetic serves Spark columns and Python integers, so that nobody has to read
a row back to know what is in it. Everything stays below 2^63, as ANSI mode demands.
"""

from __future__ import annotations

from datetime import date
from typing import TypeVar

from pyspark.sql import Column

__all__ = [
    "FIRST_DATE",
    "ITEMS",
    "REGIONS",
    "SEGMENTS",
    "YEAR",
    "item_index",
    "order_customer",
    "price_cents",
    "quantity",
    "region_index",
    "scattered",
    "segment_index",
]

FIRST_DATE = date(2024, 1, 1)
YEAR = 366
REGIONS = ("north", "south", "east", "west", "overseas")
SEGMENTS = ("consumer", "business", "school", "public")
ITEMS = (
    "shoes", "pants", "shirt", "tie", "blouse", "scarf", "coat", "hat", "socks", "gloves", "belt", "bag",
)  # fmt: skip

_PRIME = 2**31 - 1
_LINES = 16  # more than any order has

Number = TypeVar("Number", int, Column)


def mix(key: Number, salt: int) -> Number:
    """A pseudo-random number below 2^31 − 1 that depends on `key` and `salt` (1 ... 1000) only."""
    x = (key * 1_103_515 + salt * 2_097_143) % _PRIME
    x = (x * x + key) % _PRIME
    x = x * 16_807 % _PRIME
    return (x * x + salt) % _PRIME


def scattered(key: Number) -> Number:
    """Another number for every key below 2^31 − 1, in no order: as random identifiers are, where keys 1, 2, 3 only grow."""
    return key * 48_271 % _PRIME


def region_index(cid: Number) -> Number:
    """Where the customer lives: an index into REGIONS."""
    return mix(cid, 1) % len(REGIONS)


def segment_index(cid: Number) -> Number:
    """What kind of customer: an index into SEGMENTS."""
    return mix(cid, 2) % len(SEGMENTS)


def order_customer(oid: Number, customers: int) -> Number:
    """Who placed the order."""
    return mix(oid, 3) % customers + 1


def item_index(oid: Number, line: Number | int) -> Number:
    """What the line is for: an index into ITEMS."""
    return mix(oid * _LINES + line, 4) % len(ITEMS)


def price_cents(oid: Number, line: Number | int) -> Number:
    """The line's price for one piece: 1.00 to 199.99."""
    return mix(oid * _LINES + line, 5) % 19_900 + 100


def quantity(oid: Number, line: Number | int) -> Number:
    """How many pieces: 1 to 5."""
    return mix(oid * _LINES + line, 6) % 5 + 1
