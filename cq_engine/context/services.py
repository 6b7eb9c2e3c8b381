"""What transactions and queries need from the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from cq_engine.catalog.model import Table
from cq_engine.catalog.store import Catalog
from cq_engine.context.foreground import Foreground
from cq_engine.context.functions import Functions
from cq_engine.context.rights import Rights
from cq_engine.core.clock import Clock
from cq_engine.core.columns import Column
from cq_engine.core.errors import CatalogError
from cq_engine.core.limits import Limits
from cq_engine.storage.read_holds import ReadHolds
from cq_engine.storage.reader import Reader

__all__ = ["Condition", "RemoteRows", "ResultRows", "Results", "Services", "SmallRows", "Wanted"]


class SmallRows(NamedTuple):
    """The rows of a small relation, in memory, with exactly `columns`."""

    rows: pa.Table
    columns: tuple[Column, ...]


class ResultRows(NamedTuple):
    """The result of a continuous query at a version; `source` says from where it comes. It is `small` where it can be had without
    Spark."""

    frame: Callable[[], DataFrame]
    version: int
    source: str
    small: SmallRows | None = None


Results = Callable[[str, int | None, int], ResultRows]
"""The result of a continuous query by its name: at a version, or (None) at the newest one that it has processed up to
another version. Raises CQError."""


class Condition(NamedTuple):
    """What a query asks of a column: `=`, `<`, `<=`, `>`, `>=` with one value of Python, IN with several, IS NULL or IS NOT
    NULL with none."""

    column: str
    operator: str
    values: tuple[object, ...] = ()


class Wanted(NamedTuple):
    """What a query needs of a table that stays at its source."""

    columns: frozenset[str] | None = None
    """In lower case; None for all."""
    conditions: tuple[Condition, ...] = ()
    """Rows for which one of them does not hold are not needed; they may come nevertheless."""


class RemoteRows(NamedTuple):
    """Rows of a table that stays at its source, as they are now. All columns of the table are there, those that nobody has
    asked for with NULL. `note` says how the source was asked."""

    rows: DataFrame
    note: str


Remote = Callable[[Table, Wanted, bool], RemoteRows]
"""Reads a table at its source; the flag says that all must be read now, once, and so be few rows. Raises SourceError."""


def _no_remote(table: Table, _wanted: Wanted, _once: bool) -> RemoteRows:
    raise CatalogError(f"table {table.name} cannot be read at its source here")


def _no_results(name: str, _at: int | None, _newest: int) -> ResultRows:
    raise CatalogError(f"the result of {name} cannot be read here")


@dataclass(frozen=True)
class Services:
    """The parts that the engine's façade builds once. `spark` may start the session on its first call."""

    catalog: Catalog
    reader: Reader
    spark: Callable[[], SparkSession]
    clock: Clock
    rights: Rights = field(default_factory=Rights)
    """What statements may do besides reading and writing tables."""
    functions: Functions = field(default_factory=Functions)
    """The functions of the user that queries may call."""
    read_holds: ReadHolds = field(default_factory=ReadHolds)
    """Versions that retention leaves alone besides those that the catalog knows of."""
    foreground: Foreground = field(default_factory=Foreground)
    """The refreshes under way: merges wait until they are through, for a while."""
    spark_runs: Callable[[], bool] = lambda: True
    """Is there a session already?"""
    results: Results = _no_results
    """What the names of continuous queries stand for in plain queries."""
    ending: set[str] = field(default_factory=set)
    """Captures, in lower case, that a statement is about to drop: that their ticks fail meanwhile is no news."""
    remote: Remote = _no_remote
    """What the names of tables that stay at their sources stand for."""

    @property
    def limits(self) -> Limits:
        """The bounds that everything works within."""
        return self.catalog.limits

    def now(self) -> datetime:
        return self.clock.now()

    def time_zone(self) -> str:
        """Spark's session time zone, in which literals without a zone are read."""
        return self.spark().conf.get("spark.sql.session.timeZone") or "UTC"
