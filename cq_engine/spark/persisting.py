"""Rows that Spark's executors keep for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pyspark import StorageLevel
from pyspark.sql import DataFrame

from cq_engine.spark.jobs import LOST

__all__ = ["persisted", "release"]


@contextmanager
def persisted(rows: DataFrame) -> Iterator[DataFrame]:
    """The rows, kept in the executors' memory and on their disks until the block ends."""
    kept = rows.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield kept
    finally:
        release(kept)


def release(kept: DataFrame) -> None:
    """Lets go of persisted rows.

    A Spark that has ended meanwhile has let go of them itself: a generator that nobody reads to its end is closed when
    Python collects it, which may be after the engine was.
    """
    with suppress(*LOST):
        kept.unpersist()
