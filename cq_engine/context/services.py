"""What transactions and queries need from the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession

from cq_engine.catalog.store import Catalog
from cq_engine.context.functions import Functions
from cq_engine.context.rights import Rights
from cq_engine.core.clock import Clock
from cq_engine.core.errors import CatalogError
from cq_engine.core.limits import Limits
from cq_engine.storage.read_holds import ReadHolds
from cq_engine.storage.reader import Reader

__all__ = ["ResultRows", "Results", "Services"]


class ResultRows(NamedTuple):
    """The result of a continuous query at a version; `source` says from where it comes."""

    rows: DataFrame
    version: int
    source: str


Results = Callable[[str, int | None, int], ResultRows]
"""The result of a continuous query by its name: at a version, or (None) at the newest one that it has processed up to
another version. Raises CQError."""


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
    spark_runs: Callable[[], bool] = lambda: True
    """Is there a session already?"""
    results: Results = _no_results
    """What the names of continuous queries stand for in plain queries."""

    @property
    def limits(self) -> Limits:
        """The bounds that everything works within."""
        return self.catalog.limits

    def now(self) -> datetime:
        return self.clock.now()

    def time_zone(self) -> str:
        """Spark's session time zone, in which literals without a zone are read."""
        return self.spark().conf.get("spark.sql.session.timeZone") or "UTC"
