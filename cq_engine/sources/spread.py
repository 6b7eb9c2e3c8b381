"""Rows of a source that executors read and write: they do not pass through the driver."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from cq_engine.catalog.model import Table
from cq_engine.context.staging import clustering
from cq_engine.core.errors import CQError
from cq_engine.core.types import spark_schema
from cq_engine.sources.bulk import all_columns, is_empty, merge
from cq_engine.sources.sql.parts import NotBegun, Parts, failure_in
from cq_engine.spark.session_kind import is_connect
from cq_engine.storage.data_files import write_files
from cq_engine.transactions.transaction import Transaction

if TYPE_CHECKING:
    from pyspark import Accumulator  # a Spark Connect client may have none

__all__ = ["spread"]

_MISSING = re.compile(r"ModuleNotFoundError: (No module named '[^']+')|(PYTHON_VERSION_MISMATCH)")

Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def spread(
    transaction: Transaction, table: Table, parts: Parts, watch: Callable[[Callable[[], int]], None]
) -> int:
    """Makes the table's rows those of the parts; how many these are. `watch` gets what tells how many have been read so far.

    An empty table gets the files that the tasks write. For any other one they are files that end with the transaction, with
    which the table is compared.

    Raises NotBegun where executors cannot read the source, and SourceError where it ends or has a value that does not fit.
    """
    spark = transaction.services.spark()
    count = None if is_connect(spark) else spark.sparkContext.accumulator(0)
    watch(lambda: 0 if count is None else int(count.value))
    number = len(parts.statements)
    frame = spark.range(0, number, 1, number).mapInArrow(_task(parts, count), spark_schema(parts.columns))
    with _failing():
        if parts.in_order and is_empty(transaction.services, table) and _is_sorted_by_key(table):
            return transaction.load(table.name, all_columns(table, frame), in_ranges=True)
        store = transaction.services.catalog.store
        path = f"{transaction.scratch().directory(table.storage, 'snapshot')}/captured"
        files = write_files(store, frame, path, (), transaction.services.limits, durable=False)
    merge(transaction, table, transaction.services.reader.files(files, parts.columns), parts.columns)
    return sum(file.rows for file in files)


def _task(parts: Parts, count: Accumulator[int] | None) -> Task:
    """What runs in Spark's Python processes, which get the address of the source with it."""

    def task(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from parts.read(numbers) if count is None else parts.read(numbers, count.add)

    return task


def _is_sorted_by_key(table: Table) -> bool:
    return tuple(clustering(table)) == table.primary_key


@contextmanager
def _failing() -> Iterator[None]:
    """A block in which what the source has said to a task is raised as it was said."""
    try:
        yield
    except CQError as error:
        text = str(error.__cause__ or error)
        missing = _MISSING.search(text)
        failure = NotBegun(missing[0]) if missing else failure_in(text)
        if failure is None:
            raise
        raise failure from None
