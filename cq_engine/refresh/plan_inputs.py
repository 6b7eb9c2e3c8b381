"""Places for a few rows that a DataFrame reads anew whenever it runs: Parquet files of a fixed size.

A DataFrame over such a file is analysed, optimised and planned once. When the rows change, the file is replaced by one
of the same length, because Spark keeps the length that it saw: the data pages come first, then a hole, then the footer
(whose offsets count from the start of the file). Only for a Spark on this machine; the files lie in memory where the
system has a place for that.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from cq_engine.core.capabilities import Use, can
from cq_engine.core.columns import Column
from cq_engine.core.limits import Limits
from cq_engine.core.types import spark_schema
from cq_engine.storage.rows import conform
from cq_engine.storage.scratch import scratch_directory

__all__ = ["PlanInput", "PlanInputFullError", "fits_plan_input"]


_TAIL_BYTES = 8  # the footer's length and the magic number
_MEMORY = Path("/dev/shm")  # noqa: S108 - a directory of our own is made in it
_numbers = count(1)


class PlanInputFullError(Exception):
    """The rows do not fit into the plan input."""


def fits_plan_input(columns: Sequence[Column]) -> bool:
    """True where Arrow's Parquet files give Spark these types as they are."""
    return all(can(c.type, Use.PLAN_INPUT) for c in columns)


class PlanInput:
    """A file that holds rows of `columns`, at first `rows`. Not thread-safe.

    Raises PlanInputFullError for rows of more than `limits.input_most_bytes`, OSError.
    """

    def __init__(self, columns: Sequence[Column], rows: pa.Table, limits: Limits) -> None:
        self.columns = tuple(columns)
        content = _parquet(rows, self.columns)
        self._size = limits.input_least_bytes
        while self._size < min(limits.input_spare * len(content), limits.input_most_bytes):
            self._size *= 2
        if len(content) > limits.input_most_bytes:
            raise PlanInputFullError
        self._path = _fresh_path()
        self._replace(content)

    def put(self, rows: pa.Table) -> None:
        """Replaces the rows. Raises PlanInputFullError, OSError; the plan input is then as it was."""
        content = _parquet(rows, self.columns)
        if len(content) > self._size:
            raise PlanInputFullError
        self._replace(content)

    def frame(self, spark: SparkSession) -> DataFrame:
        """The rows that the plan input has when the DataFrame runs, in one partition."""
        return spark.read.schema(spark_schema(self.columns)).parquet(self._path.as_uri()).coalesce(1)

    def remove(self) -> None:
        """Takes the file away; DataFrames over it cannot run any more."""
        self._path.unlink(missing_ok=True)

    def _replace(self, content: memoryview) -> None:
        footer = int.from_bytes(content[-_TAIL_BYTES : -_TAIL_BYTES + 4], "little") + _TAIL_BYTES
        following = self._path.with_suffix(".new")
        with following.open("wb") as file:
            file.write(content[:-footer])
            file.seek(self._size - footer)
            file.write(content[-footer:])
        following.replace(self._path)


def _parquet(rows: pa.Table, columns: Sequence[Column]) -> memoryview:
    stream = pa.BufferOutputStream()
    pq.write_table(
        conform(rows, columns),
        stream,
        compression="none",
        use_dictionary=False,
        write_statistics=False,
        store_schema=False,
        row_group_size=max(1, rows.num_rows),
    )
    return memoryview(stream.getvalue())


def _fresh_path() -> Path:
    place = _MEMORY if os.access(_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
    return scratch_directory(place, "cq-engine-inputs-") / f"{next(_numbers)}.parquet"
