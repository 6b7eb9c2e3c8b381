"""How wide work is done: by how many tasks, and into how many files.

Nothing else decides that. It follows from how much there is and from the cores that the session has: a task has enough to
be worth its start, and no more than it can have in memory; every core has some, where there is enough for all; a file has
at most so many rows and bytes, so that a change of one row makes little be written again. The figures are in `Limits`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from cq_engine.catalog.model import DataFile
from cq_engine.core.columns import Column
from cq_engine.core.limits import Limits
from cq_engine.spark.session_kind import is_connect

__all__ = [
    "Size",
    "cores",
    "file_count",
    "numbering_parts",
    "row_bytes",
    "shuffle_width",
    "size_of_files",
    "size_of_rows",
    "task_bytes",
]


@dataclass(frozen=True)
class Size:
    """How much there is: rows, and bytes about as Parquet has them."""

    rows: int = 0
    bytes: int = 0

    def __add__(self, other: Size) -> Size:
        return Size(self.rows + other.rows, self.bytes + other.bytes)


def size_of_files(files: Iterable[DataFile]) -> Size:
    """What the catalog knows of data files."""
    found = list(files)
    return Size(sum(file.rows for file in found), sum(file.bytes for file in found))


def size_of_rows(rows: int, columns: Sequence[Column]) -> Size:
    """So many rows of these columns, of which nobody knows the bytes."""
    return Size(rows, rows * row_bytes(columns))


# ---------------------------------------------------------------- the decisions


def task_bytes(size: int, cores: int, limits: Limits) -> int:
    """What one task of so many that read `size` bytes gets, at most about: as much as lets every core have some, within
    `scan_least_bytes` and `scan_most_bytes`, and more where there would be more tasks than `most_tasks`."""
    share = min(limits.scan_most_bytes, max(limits.scan_least_bytes, math.ceil(size / cores)))
    return max(share, math.ceil(size / limits.most_tasks))


def shuffle_width(size: int, cores: int, limits: Limits) -> int:
    """Partitions of a shuffle over `size` bytes of files, which Spark puts together where they turn out small.

    >>> shuffle_width(10 * 2**40, 16, Limits())
    20000
    >>> shuffle_width(2**30, 2, Limits()), shuffle_width(10 * 2**30, 2, Limits()), shuffle_width(0, 16, Limits())
    (64, 640, 16)
    """
    wanted = math.ceil(size / limits.shuffle_bytes)
    return min(limits.most_tasks, max(cores, wanted))


def numbering_parts(width: int) -> int:
    """Parts in which a large version's rows are numbered (`delta.numbering`), so that each of a shuffle's `width` partitions has its
    share of them.

    >>> numbering_parts(2), numbering_parts(64)
    (64, 2048)
    """
    return _PARTS * width


def file_count(size: Size, cores: int, limits: Limits, most_rows: int) -> int:
    """Files of at most about `most_rows` rows and `file_most_bytes` bytes, one for every core where each gets
    `file_least_bytes`, and as many for each core as for the others, so that none waits for the last one; as many tasks write them.

    >>> [file_count(Size(n, 100 * n), 8, Limits(), 1_000_000) for n in (1, 10**6, 10**7, 10**9, 10**11)]
    [1, 8, 16, 1000, 20000]
    """
    bounded = max(math.ceil(size.rows / max(1, most_rows)), math.ceil(size.bytes / limits.file_most_bytes))
    spread = min(cores, size.bytes // max(1, limits.file_least_bytes))
    if bounded > cores:
        bounded = math.ceil(bounded / cores) * cores
    return min(limits.most_tasks, max(1, bounded, spread))


# ---------------------------------------------------------------- what they start from

_PARTS = 32
"""Of a partition: by the luck of the hash it has six more or fewer."""
_FIXED = {
    "boolean": 1, "tinyint": 1, "smallint": 2, "int": 4, "bigint": 8, "float": 4, "double": 8, "date": 4,
    "timestamp": 8, "timestamp_ntz": 8, "void": 0,
}  # fmt: skip
_TEXT, _NESTED = 16, 64


def row_bytes(columns: Sequence[Column]) -> int:
    """What a row of these columns has, by their types: a guess, where nothing has been written yet."""
    return max(1, sum(map(_column_bytes, columns)))


def _column_bytes(column: Column) -> int:
    kind = column.type.lower()
    if kind in _FIXED:
        return _FIXED[kind]
    if kind.startswith(("decimal", "interval", "time")):
        return 8
    return _NESTED if kind.startswith(("array", "map", "struct", "variant")) else _TEXT


_SECONDS = 60.0
_known: WeakKeyDictionary[SparkSession, tuple[float, int]] = WeakKeyDictionary()


def cores(spark: SparkSession) -> int:
    """The tasks that the session runs at the same time, as its cluster is now. A client of Spark Connect asks by a job, at
    most once a minute."""
    if not is_connect(spark):
        return max(1, int(spark.sparkContext.defaultParallelism))
    asked, found = _known.get(spark, (0.0, 0))
    if not found or time.monotonic() - asked > _SECONDS:
        # What nobody has cut is cut into as many parts as there are cores.
        parts = spark.range(2**16).select(f.spark_partition_id().alias("part"))
        row: Any = parts.agg(f.max("part")).first()
        found = 1 + int(row[0])
        _known[spark] = (time.monotonic(), found)
    return found
