"""Data files that executors read and write through Arrow, in Spark's Python processes.

That is how Spark reaches a store of which its own session has no file system: nothing but this package has to be installed
where its executors run. A task is told which row groups of which files it reads, which columns, and which values are wanted
of some of them: what Spark's optimizer finds out about the query above does not get that far. A task that writes says what
it has written, so nothing is listed or renamed; a file of which no task told the driver, because it was repeated or ended,
is garbage of the attempt.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from cq_engine.catalog.model import DataFile
from cq_engine.catalog.storage.base import Store
from cq_engine.catalog.tables import CODEC, dictionaries, footer_stats, reading
from cq_engine.core.columns import Column
from cq_engine.core.limits import Limits
from cq_engine.core.types import columns_of, spark_schema
from cq_engine.spark.arrow_io import received, receiving, sendable, sent, sent_schema
from cq_engine.spark.sql import translate_errors
from cq_engine.spark.widths import cores, task_bytes
from cq_engine.storage.layout import in_layout
from cq_engine.storage.row_groups import RowGroups
from cq_engine.storage.rows import conform, open_dataset
from cq_engine.storage.shares import Share, cut

__all__ = ["read", "write"]

_WRITTEN = "path STRING, rows BIGINT, bytes BIGINT, stats STRING"
Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


# ---------------------------------------------------------------- reading


def read(
    spark: SparkSession,
    store: Store,
    files: Sequence[DataFile],
    columns: Sequence[Column],
    restrict: Mapping[str, pa.Array],
    *,
    limits: Limits,
) -> DataFrame:
    """The rows of `files` as a DataFrame with exactly `columns`; columns a file lacks are NULL.

    With `restrict` rows without a wanted value may be missing: row groups are left out by their statistics.
    """
    schema = spark_schema(columns)
    few = {name: values for name, values in restrict.items() if len(values) <= limits.in_list}
    size = sum(file.bytes for file in files)
    tasks = _cut(files, task_bytes(size, cores(spark), limits))
    reader = _reader(store, tasks, tuple(columns), few, limits.store_batch_rows)
    frame = spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(reader, sent_schema(schema))
    return receiving(frame, schema)


def _cut(files: Sequence[DataFile], size: int) -> list[list[Share[DataFile]]]:
    """Who reads what. Of the files' statistics tasks have no use, and each gets all shares."""
    return cut(((replace(file, stats={}), file.bytes, True) for file in files), size)


def _reader(
    store: Store,
    tasks: Sequence[Sequence[Share[DataFile]]],
    columns: tuple[Column, ...],
    restrict: Mapping[str, pa.Array],
    batch_rows: int,
) -> Task:
    """What runs in Spark's Python processes: it gets the numbers of the tasks."""

    def task(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = spark_schema(columns)
        wanted = to_arrow_schema(sent_schema(schema), timezone="UTC")
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                for share in tasks[number]:
                    for rows in _rows(store, share, columns, restrict, batch_rows):
                        yield from in_layout(sent(rows, schema), wanted).to_batches()

    return task


def _rows(
    store: Store,
    share: Share[DataFile],
    columns: Sequence[Column],
    restrict: Mapping[str, pa.Array],
    batch_rows: int,
) -> Iterator[pa.Table]:
    with reading(f"read {share.file.path}", store, [share.file]):
        dataset = open_dataset([store.path(share.file.path)], columns, store.filesystem)
        (whole,) = dataset.get_fragments()
        first, end = (whole.num_row_groups * n // share.of for n in (share.number, share.number + 1))
        pruned, _ = RowGroups(1).prune(dataset, restrict)
        names = [c.name for c in columns]
        for fragment in pruned.get_fragments():
            wanted = [group.id for group in fragment.row_groups if first <= group.id < end]
            part = fragment.subset(row_group_ids=wanted)
            for batch in part.to_batches(dataset.schema, names, batch_size=batch_rows, batch_readahead=1):
                yield conform(pa.Table.from_batches([batch]), columns)


# ---------------------------------------------------------------- writing


def write(
    store: Store,
    frame: DataFrame,
    directory: str,
    stats_columns: Sequence[str],
    *,
    row_group: int,
    most: int,
) -> list[DataFile]:
    """Writes a frame as it is partitioned; the files in the order of the partitions, none of them without rows.

    In groups of `row_group` rows, and in files of at most `most` rows, where that is not 0. Raises CQError.
    """
    writer = _writer(store, directory, frame.schema, tuple(stats_columns), row_group, most)
    with translate_errors():
        written = sendable(frame).mapInArrow(writer, _WRITTEN).toArrow().to_pylist()
    files = [
        DataFile(each["path"], each["rows"], each["bytes"], _stats(json.loads(each["stats"])))
        for each in written
    ]
    return sorted(files, key=lambda file: file.path)


def _stats(found: Mapping[str, Sequence[object]]) -> dict[str, tuple[object, object]]:
    return {name: (low, high) for name, (low, high) in found.items()}


def _writer(
    store: Store, directory: str, schema: StructType, stats: tuple[str, ...], row_group: int, most: int
) -> Task:
    """What runs in Spark's Python processes: it writes its partition, and says what it has written."""
    columns = columns_of(schema)

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        number = 0 if context is None else context.partitionId()
        # Every attempt at a task has names of its own: nobody writes where another one does.
        prefix = f"{directory}/part-{number:05d}-{secrets.token_hex(4)}"
        rows = (_named(batch, schema, columns) for batch in batches if batch.num_rows)
        found = list(_write_parts(store, prefix, rows, row_group, most, stats))
        yield pa.record_batch(
            [
                pa.array([file.path for file in found], pa.string()),
                pa.array([file.rows for file in found], pa.int64()),
                pa.array([file.bytes for file in found], pa.int64()),
                pa.array([json.dumps(file.stats) for file in found], pa.string()),
            ],
            names=["path", "rows", "bytes", "stats"],
        )

    return task


def _named(batch: pa.RecordBatch, schema: StructType, columns: Sequence[Column]) -> pa.Table:
    names = [c.name for c in columns]
    return conform(received(pa.Table.from_batches([batch]).rename_columns(names), schema), columns)


def _write_parts(
    store: Store, prefix: str, rows: Iterator[pa.Table], row_group: int, most: int, stats: tuple[str, ...]
) -> Iterator[DataFile]:
    """Rows in files of at most `most` rows, in groups of `row_group` rows."""
    size = min(row_group, most) if most else row_group
    groups = _groups(rows, size)
    group = next(groups, None)
    number = 0
    while group is not None:
        path, count = f"{prefix}-{number:03d}.parquet", 0
        footers: list[pq.FileMetaData] = []
        options = {
            "compression": CODEC,
            "use_dictionary": dictionaries(group),
            "metadata_collector": footers,
        }
        with store.writing(path) as sink:
            with pq.ParquetWriter(sink, group.schema, **options) as writer:
                while group is not None and (not most or count + group.num_rows <= most):
                    writer.write_table(group, row_group_size=size)
                    count += group.num_rows
                    group = next(groups, None)
            length = sink.tell()
        yield DataFile(path, count, length, footer_stats(footers[0], stats))
        number += 1


def _groups(rows: Iterator[pa.Table], size: int) -> Iterator[pa.Table]:
    """The same rows in tables of exactly `size` rows, the last one of less."""
    held: list[pa.Table] = []
    count = 0
    for some in rows:
        held.append(some)
        count += some.num_rows
        while count >= size:
            whole = pa.concat_tables(held)
            yield whole.slice(0, size)
            held, count = [whole.slice(size)], count - size
    if count:
        yield pa.concat_tables(held)
