"""The change rows of a table or of a delta log as a relation, each with the time of its commit."""

from __future__ import annotations

from datetime import datetime, timezone

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from cq_engine.catalog.change_rows import COMMIT_TIMESTAMP, COMMIT_VERSION
from cq_engine.catalog.model import VersionedTable
from cq_engine.context.services import Services
from cq_engine.core.columns import Column
from cq_engine.spark.sql import quote
from cq_engine.storage.rows import change_columns

__all__ = ["aware", "change_log"]


def change_log(services: Services, storage: VersionedTable, a: int, b: int, width: int | None) -> DataFrame:
    """The change rows of (a, b] with the first `width` columns and the commit's time."""
    reader = services.reader
    columns = [
        *storage.columns[:width],
        Column("_change_type", "string"),
        Column(COMMIT_VERSION, "bigint"),
    ]
    shown = [f.col(quote(c.name)) for c in columns]
    rows = reader.changes_arrow(storage, a, b)
    frame = reader.frame(rows, change_columns(storage)) if rows is not None else reader.changes(storage, a, b)
    times = services.catalog.timestamps(a + 1, b) if b > a else {}
    moments = pa.table(
        {
            "_cq_version": pa.array(list(times), pa.int64()),
            COMMIT_TIMESTAMP: _instants(list(times.values())),
        }
    )
    clock = reader.frame(moments, [Column("_cq_version", "bigint"), Column(COMMIT_TIMESTAMP, "timestamp")])
    joined = frame.select(*shown).join(
        f.broadcast(clock), f.col(COMMIT_VERSION) == f.col("_cq_version"), "left"
    )
    return joined.select(*shown, f.col(COMMIT_TIMESTAMP))


def _instants(moments: list[datetime]) -> pa.Array:
    return pa.array([aware(m) for m in moments], pa.timestamp("us", tz="UTC"))


def aware(moment: datetime) -> datetime:
    return moment.replace(tzinfo=timezone.utc) if moment.tzinfo is None else moment
