"""Reading a continuous query's delta log in order, in blocks of bounded size."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from cq_engine.catalog.change_rows import CHANGE_TYPE, COMMIT_VERSION, SEQUENCE
from cq_engine.catalog.model import ContinuousQuery, Cursor
from cq_engine.context.services import Services
from cq_engine.core.errors import StorageError
from cq_engine.destinations.pairs import CHANGE_TYPES, MARKERS, pair, select_markers
from cq_engine.spark.arrow_io import to_arrow
from cq_engine.spark.persisting import persisted
from cq_engine.spark.sql import quote
from cq_engine.storage.rows import change_columns, conform

__all__ = ["commit_times", "count_rows", "needed_from", "read_frame", "read_pairs", "read_small"]


_VERSION = f"{quote(COMMIT_VERSION)}"


def needed_from(cursor: Cursor) -> int:
    """The version after which a destination still has to read: what retention must keep for it.

    A cursor with `sequence` 0 has everything up to and including `version`; one with a `sequence` above 0 stands in
    the middle of `version`, which is then read again.
    """
    return cursor.version - 1 if cursor.sequence > 0 else cursor.version


def read_pairs(
    services: Services, query: ContinuousQuery, cursor: Cursor, upto: int, markers: Sequence[str] = MARKERS
) -> Iterator[pa.Table]:
    """The deltas after `cursor` up to and including version `upto`, in the wide layout (destinations/pairs.py).

    Returns:
        Blocks in the order of (version, sequence), none of them empty. A long interval is read through Spark, of
        which the driver holds one block at a time.

    Raises:
        StorageError: the cursor lies below what is kept.
    """
    small = read_small(services, query, cursor, upto)
    blocks = _large_blocks(services, query, cursor, upto) if small is None else iter((small,))
    for block in blocks:
        selected = select_markers(block, markers)
        if selected.num_rows:
            yield selected


def read_small(services: Services, query: ContinuousQuery, cursor: Cursor, upto: int) -> pa.Table | None:
    """All deltas after `cursor` up to `upto` in the wide layout, or None where they are too many for the driver."""
    changes = services.reader.changes_arrow(query.result, needed_from(cursor), upto)
    if changes is None:
        return None
    wide = pair(changes, query.result.columns)
    if cursor.sequence > 0:
        version, sequence = pc.field("version"), pc.field("sequence")
        wide = wide.filter((version > cursor.version) | (sequence > cursor.sequence))
    return wide


def read_frame(
    services: Services, query: ContinuousQuery, cursor: Cursor, upto: int, markers: Sequence[str] = MARKERS
) -> DataFrame:
    """The change rows of the deltas after `cursor` up to `upto` as a DataFrame, in no order."""
    rows = services.reader.changes(query.result, needed_from(cursor), upto)
    if cursor.sequence > 0:
        rows = rows.where((f.col(_VERSION) > cursor.version) | (f.col(SEQUENCE) > cursor.sequence))
    if set(markers) >= set(MARKERS):
        return rows
    kinds = sorted({kind for marker in markers for kind in CHANGE_TYPES[marker]})
    return rows.where(f.col(CHANGE_TYPE).isin(kinds))


def count_rows(services: Services, query: ContinuousQuery, cursor: Cursor, upto: int) -> int:
    """At least the number of change rows after `cursor` up to `upto`, without reading them."""
    return sum(c.rows for c in services.catalog.changes(query.result.id, needed_from(cursor) + 1, upto))


def commit_times(services: Services, low: int, high: int) -> Mapping[int, datetime]:
    """Commit version → commit time; asking it for a version that was never committed raises StorageError."""
    return _Times(services.catalog.timestamps(low, high))


class _Times(dict[int, datetime]):
    def __missing__(self, version: int) -> datetime:
        raise StorageError(f"there is no commit version {version}", detail="the delta log has rows of it")


def _large_blocks(
    services: Services, query: ContinuousQuery, cursor: Cursor, upto: int
) -> Iterator[pa.Table]:
    """Slices of the sorted rows, each fetched as Arrow: exact types, and no Python on the executors.

    The sorted rows are persisted, so that Spark skips what lies outside a slice by its batches' minima and maxima.
    """
    size = services.limits.log_block_rows
    count = max(1, math.ceil(count_rows(services, query, cursor, upto) / size))
    rows = read_frame(services, query, cursor, upto)
    keys = [f.col(_VERSION), f.col(SEQUENCE)]  # after that: there may have been no Spark yet
    with persisted(rows.repartitionByRange(count, *keys).sortWithinPartitions(*keys)) as kept:
        for condition in _slices(kept, size):
            found = conform(to_arrow(kept.where(condition)), change_columns(query.result))
            yield pair(found, query.result.columns)


def _bounds(rows: DataFrame, count: int, first: int, last: int, most: int) -> list[int]:
    """Sequence numbers at which so many rows of one version, from `first` to `last`, are cut into parts of about `most`; numbers may have
    gaps, and be denser in one place than in others."""
    parts = math.ceil(count / most)
    if last - first < count:
        return [*range(first, last + 1, math.ceil((last - first + 1) / parts)), last + 1]
    shares = f.array(*(f.lit(n / parts) for n in range(1, parts)))
    (found,) = rows.agg(f.percentile_approx(SEQUENCE, shares, max(10_000, 10 * parts))).collect()
    return [first, *sorted({each for each in found[0] if each > first}), last + 1]


def _slices(rows: DataFrame, most: int) -> Iterator[SparkColumn]:
    """Conditions that cut the rows, in order, into parts of about `most` rows."""
    sequence = f.col(SEQUENCE)
    found = rows.groupBy(f.col(_VERSION).alias("v")).agg(f.count("*"), f.min(sequence), f.max(sequence))
    low, high, size = 0, -1, 0
    for version, count, first, last in found.orderBy("v").toLocalIterator():
        if size and size + count > most:
            yield f.col(_VERSION).between(low, high)
            size = 0
        if count <= most:
            low, high, size = (version if size == 0 else low), version, size + count
            continue
        own = f.col(_VERSION) == version
        for start, end in itertools.pairwise(_bounds(rows.where(own), count, first, last, most)):
            yield own & sequence.between(start, end - 1)
    if size:
        yield f.col(_VERSION).between(low, high)
