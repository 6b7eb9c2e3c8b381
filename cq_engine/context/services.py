"""What transactions and queries need from the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from pyspark.sql import DataFrame, SparkSession

from cq_engine.catalog.store import Catalog
from cq_engine.context.functions import Functions
from cq_engine.context.rights import Rights
from cq_engine.core.clock import Clock
from cq_engine.core.limits import Limits
from cq_engine.storage.read_holds import ReadHolds
from cq_engine.storage.reader import Reader

__all__ = ["Services"]


def _nothing(_name: str) -> DataFrame | None:
    return None


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
    resolve: Callable[[str], DataFrame | None] = _nothing
    """Relations that are not in the catalog's state (system views), by lower-case name; None where unknown."""

    @property
    def limits(self) -> Limits:
        """The bounds that everything works within."""
        return self.catalog.limits

    def now(self) -> datetime:
        return self.clock.now()

    def time_zone(self) -> str:
        """Spark's session time zone, in which literals without a zone are read."""
        return self.spark().conf.get("spark.sql.session.timeZone") or "UTC"
