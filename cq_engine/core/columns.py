"""A column: what tables, results and logs have, and the names of columns that only the engine has beside them."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "BEFORE",
    "FOREVER",
    "INTERNAL",
    "ROW_FROM",
    "ROW_TO",
    "ROW_VERSION",
    "ROW_WEIGHT",
    "Column",
    "quote",
]

INTERNAL = "_cq_"
"""Columns that stand beside those of a table, for as long as a statement runs, begin with this; no column of a table
may, in whatever case."""

ROW_VERSION = f"{INTERNAL}version"
"""Of a signed change row: its commit version."""
ROW_WEIGHT = f"{INTERNAL}weight"
"""Of a signed change row: −1 for what was, +1 for what is."""
ROW_FROM = f"{INTERNAL}from"
"""Of a row version: the version from which it is valid."""
ROW_TO = f"{INTERNAL}to"
"""Of a row version: the version from which it is not valid any more."""
BEFORE = -1
"""The version that stands for "before the interval"."""
FOREVER = 9_223_372_036_854_775_807
"""The version that stands for "still there at the end of the interval"."""


@dataclass(frozen=True)
class Column:
    """`type` is Spark's simple string, lower case: `decimal(10,2)`, `array<int>`, `timestamp_ntz`."""

    name: str
    type: str
    nullable: bool = True
    comment: str | None = None


def quote(name: str) -> str:
    """`name` as a Spark identifier."""
    return "`" + name.replace("`", "``") + "`"
