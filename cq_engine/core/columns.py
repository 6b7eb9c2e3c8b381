"""A column: what tables, results and logs have."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Column"]


@dataclass(frozen=True)
class Column:
    """`type` is Spark's simple string, lower case: `decimal(10,2)`, `array<int>`, `timestamp_ntz`."""

    name: str
    type: str
    nullable: bool = True
    comment: str | None = None
