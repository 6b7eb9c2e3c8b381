"""The rows that a destination gets, in the layout of the outermost SELECT list (`query.outputs`).

Two versions of one thing: `output_rows` for deltas that are in Arrow, `output_frame` for those that stay in Spark.
A D shows its old row where the SELECT list shows the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from cq_engine.catalog.change_rows import (
    CHANGE_TYPE,
    COMMIT_VERSION,
    DELETES,
    SEQUENCE,
    UPDATE_PAIR,
    UPDATE_POSTIMAGE,
    UPDATE_PREIMAGE,
)
from cq_engine.catalog.model import ContinuousQuery, OutputColumn
from cq_engine.context.services import Services
from cq_engine.core.columns import Column
from cq_engine.core.types import arrow_type, spark_type
from cq_engine.destinations.pairs import GONE, MARKER_OF, REFRESH_TIME, new_column, old_column
from cq_engine.spark.sql import quote

__all__ = ["choose", "marker_of", "output_frame", "output_rows", "shown_columns"]


# ---------------------------------------------------------------- Arrow


def output_rows(query: ContinuousQuery, wide: pa.Table, times: Mapping[int, datetime]) -> pa.Table:
    """The output rows of deltas in the wide layout (destinations/pairs.py), in their order.

    `times` gives the commit time of every version.
    """
    places = [output.index for output in query.outputs if output.kind == "result"]
    shown = dict(zip(places, shown_columns(wide, places)))
    arrays = []
    for output in query.outputs:
        array = shown[output.index] if output.kind == "result" else _array(output, wide, times)
        wanted = arrow_type(output.type)
        arrays.append(array if array.type.equals(wanted) else array.cast(wanted))
    fields = [pa.field(o.name, arrow_type(o.type), True) for o in query.outputs]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def shown_columns(wide: pa.Table, places: Sequence[int]) -> list[pa.ChunkedArray]:
    """The columns of the result at `places`, for deltas in the wide layout: of a D the old values, else the new ones."""
    new = [wide.column(new_column(n)) for n in places]
    deleted = pc.is_in(wide.column("marker"), pa.array(GONE))
    if not pc.any(deleted).as_py():
        return new
    return [choose(deleted, wide.column(old_column(n)), values) for n, values in zip(places, new)]


def _array(output: OutputColumn, wide: pa.Table, times: Mapping[int, datetime]) -> pa.ChunkedArray:
    if output.kind == "old":
        return wide.column(old_column(output.index))
    if output.kind == "commit_time":
        return _times(wide.column("version"), times)
    return wide.column(_PLAIN[output.kind])


_PLAIN = {"marker": "marker", "time": "time", "commit_version": "version"}


def marker_of(kind: SparkColumn) -> SparkColumn:
    """The marker of a change row's delta."""
    found = f.lit("U")
    for change_type, marker in MARKER_OF.items():
        found = f.when(kind == change_type, marker).otherwise(found) if marker != "U" else found
    return found


def choose(condition: pa.ChunkedArray, yes: pa.ChunkedArray, no: pa.ChunkedArray) -> pa.ChunkedArray:
    """Of each row the value of one column or the other."""
    if not pa.types.is_nested(yes.type):
        return pc.if_else(condition, yes, no)
    both = pa.chunked_array([*yes.chunks, *no.chunks], type=yes.type)
    places = np.arange(len(yes)) + np.where(condition.to_numpy(), 0, len(yes))
    return both.take(pa.array(places))


def _times(versions: pa.ChunkedArray, times: Mapping[int, datetime]) -> pa.ChunkedArray:
    distinct, places = np.unique(versions.to_numpy(), return_inverse=True)
    found = pa.array([times[int(version)] for version in distinct], arrow_type("timestamp"))
    return pa.chunked_array([found.take(pa.array(places.reshape(-1)))])


# ---------------------------------------------------------------- Spark


def output_frame(
    services: Services, query: ContinuousQuery, changes: DataFrame, times: Mapping[int, datetime]
) -> DataFrame:
    """The output rows of the change rows `changes` of the query's delta log, in no order.

    Only an update whose old values are asked for makes a join: its pre-image with its post-image.
    """
    if any(o.kind == "commit_time" for o in query.outputs):
        changes = _with_times(services, changes, times)
    wanted = {o.index for o in query.outputs if o.kind == "old"}
    if not wanted:
        rows = changes.where(f.col(CHANGE_TYPE) != UPDATE_PREIMAGE)
        return _select(query, rows)
    old = [(old_column(n), _log_column(query, n)) for n in sorted(wanted)]
    single = changes.where(~f.col(CHANGE_TYPE).isin(*UPDATE_PAIR))
    gone = f.col(CHANGE_TYPE).isin(*DELETES)
    single = single.select("*", *(f.when(gone, c).alias(name) for name, c in old))
    before = changes.where(f.col(CHANGE_TYPE) == UPDATE_PREIMAGE)
    before = before.select(
        f.col(COMMIT_VERSION).alias("_old_version"),
        f.col(SEQUENCE).alias("_old_sequence"),
        *(c.alias(name) for name, c in old),
    )
    after = changes.where(f.col(CHANGE_TYPE) == UPDATE_POSTIMAGE)
    on = (f.col(COMMIT_VERSION) == f.col("_old_version")) & (f.col(SEQUENCE) == f.col("_old_sequence"))
    updated = after.join(before, on).drop("_old_version", "_old_sequence")
    return _select(query, single.unionAll(updated))


def _with_times(services: Services, changes: DataFrame, times: Mapping[int, datetime]) -> DataFrame:
    versions = pa.array(list(times), pa.int64())
    moments = pa.array([times[version] for version in times], arrow_type("timestamp"))
    columns = [Column("_of_version", "bigint"), Column(_COMMIT_TIME, "timestamp")]
    commits = services.reader.frame(pa.table({"_of_version": versions, _COMMIT_TIME: moments}), columns)
    joined = changes.join(f.broadcast(commits), f.col(COMMIT_VERSION) == f.col("_of_version"), "left")
    return joined.drop("_of_version")


_COMMIT_TIME = "_commit_time"


def _select(query: ContinuousQuery, rows: DataFrame) -> DataFrame:
    shown = [
        _spark_column(query, output).cast(spark_type(output.type)).alias(output.name)
        for output in query.outputs
    ]
    return rows.select(*shown)


def _spark_column(query: ContinuousQuery, output: OutputColumn) -> SparkColumn:
    if output.kind == "result":
        return _log_column(query, output.index)
    if output.kind == "old":
        return f.col(old_column(output.index))
    if output.kind == "marker":
        kind = f.col(CHANGE_TYPE)
        return marker_of(kind)
    return f.col(
        {"time": REFRESH_TIME, "commit_time": _COMMIT_TIME, "commit_version": COMMIT_VERSION}[output.kind]
    )


def _log_column(query: ContinuousQuery, index: int) -> SparkColumn:
    return f.col(quote(query.result.columns[index].name))
