"""Limits that lead to the paths of large work, and other limits for an engine that is open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

from cq_engine.catalog.store import Catalog
from cq_engine.core import beside

__all__ = ["EXECUTORS", "forced", "limit", "limited", "many_rows"]


def forced(
    *, bulk: bool, large: bool, spark: bool = False, arrow: bool = True, slices: bool = False
) -> dict[str, int]:
    """Limits that take the paths of large deltas (`bulk`), large tables (`large`) and large intervals (`spark`), whatever
    the size; without `arrow` Spark runs every statement, with `slices` few commits are refreshed at a time."""
    bounds = {} if arrow else {"arrow_rows": -1}
    if bulk:
        bounds |= {"refresh_changes": 0, "log_rows": -1, "recompute_bytes": -1}
    if large:
        bounds |= {"small_rows": 0, "relevant_rows": 0}
    if spark:
        bounds |= {"driver_changes": -1, "counted_changes": 2**60}
    if slices:
        bounds |= {"slice_changes": 5, "least_slice_changes": 3}
    return bounds


EXECUTORS: dict[str, Any] = {
    **forced(bulk=True, large=True, spark=True),
    "start_rows": -1,
    "inline_bytes": -1,
    "row_group_rows": 5,
}
"""Limits with which everything that can be is read and written by executors."""


class _Owner(Protocol):
    """An engine, or what stands for one in a test."""

    catalog: Catalog


def limit(engine: _Owner, **bounds: Any) -> None:
    """From now on the engine works within other bounds; those that its parts take when they are made stay."""
    engine.catalog.limits = replace(engine.catalog.limits, **bounds)


@contextmanager
def limited(engine: _Owner, **bounds: Any) -> Iterator[None]:
    """Likewise for a while."""
    before = engine.catalog.limits
    limit(engine, **bounds)
    try:
        yield
    finally:
        engine.catalog.limits = before


@contextmanager
def many_rows(count: int) -> Iterator[None]:
    """For a while, work over so many rows is done beside other work."""
    before, beside.MANY_ROWS = beside.MANY_ROWS, count
    try:
        yield
    finally:
        beside.MANY_ROWS = before
