"""Parquet files of the outside world, read by executors through Arrow, as Spark reads them.

The first file says which columns there are, and of which types. Another one may lack some, have others, write names in other
letters, and have types that these hold exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from cq_engine.catalog.storage.base import Found, Store
from cq_engine.core.columns import Column
from cq_engine.core.errors import CQError, StorageError
from cq_engine.core.limits import Limits
from cq_engine.core.types import columns_of, spark_schema
from cq_engine.spark.arrow_io import receiving, sent, sent_schema
from cq_engine.spark.widths import cores, task_bytes
from cq_engine.storage.layout import in_layout
from cq_engine.storage.outside_files import asking
from cq_engine.storage.rows import conform
from cq_engine.storage.shares import Share, cut

__all__ = ["parquet", "parquet_rows", "parquet_types"]

Batches = Iterator[pa.RecordBatch]
_READ_AS: dict[pa.DataType, pa.DataType] = {
    pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(), pa.null(): pa.string(), pa.large_string(): pa.string(), pa.large_binary(): pa.binary(),
}  # fmt: skip
"""What Spark reads types as that it has not."""
_WHOLE = (pa.int8(), pa.int16(), pa.int32(), pa.int64())


def parquet_types(store: Store, files: Sequence[Found]) -> dict[str, pa.DataType]:
    """The columns of the first of Parquet files, in the types that Spark reads them as. Raises StorageError."""
    first = next((file for file in files if file.size), None)
    if first is None:
        raise StorageError(
            f"{store.uri(files[0].path)} is empty", hint="a Parquet file has a footer at least"
        )
    with asking(f"read {store.uri(first.path)}", store), _opened(store, first) as source:
        return _file_types(store, first, source)


def parquet(
    spark: SparkSession, store: Store, files: Sequence[Found], kinds: dict[str, pa.DataType], limits: Limits
) -> DataFrame:
    """The rows of Parquet files, with columns of such types; what a file lacks is NULL. Raises StorageError."""
    known = [file for file in files if file.size]
    try:
        columns = columns_of(from_arrow_schema(pa.schema(list(kinds.items())), prefer_timestamp_ntz=True))
        schema = spark_schema(columns)
    except (PySparkException, CQError) as error:
        raise StorageError(
            f"{store.uri(known[0].path)} has columns of types that Spark has not",
            detail=str(error).splitlines()[0].removeprefix("error: "),
            hint="write them as others",
        ) from error
    size = sum(file.size for file in known)
    tasks = cut(((file, file.size, True) for file in known), task_bytes(size, cores(spark), limits))
    reader = _reader(store, tasks, kinds, columns, limits.store_batch_rows)
    frame = spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(reader, sent_schema(schema))
    return receiving(frame, schema)


def parquet_rows(store: Store, files: Sequence[Found]) -> int:
    """How many rows Parquet files have. Raises StorageError."""

    def rows(file: Found) -> int:
        with asking(f"read {store.uri(file.path)}", store):
            return int(pq.read_metadata(store.source(file.path)).num_rows)

    return sum(store.together(rows, [file for file in files if file.size]))


def _opened(store: Store, file: Found) -> pq.ParquetFile:
    # INT96 are times from year 1 on: Arrow would make nanoseconds of them, those from 1677 to 2262.
    return pq.ParquetFile(store.source(file.path), coerce_int96_timestamp_unit="us")


def _file_types(store: Store, file: Found, source: pq.ParquetFile) -> dict[str, pa.DataType]:
    leaves = [source.schema.column(n) for n in range(len(source.schema))]
    old_times = {each.path.split(".")[0] for each in leaves if each.physical_type == "INT96"}
    found = {
        each.name: _read_as(
            each.type, in_utc=each.name in old_times, place=f"{store.uri(file.path)}: {each.name}"
        )
        for each in source.schema_arrow
    }
    if len({name.lower() for name in found}) < len(source.schema_arrow):
        raise StorageError(
            f"{store.uri(file.path)} has columns whose names differ in their letters' case only",
            detail=", ".join(source.schema_arrow.names),
            hint="write them under other names",
        )
    return found


def _read_as(kind: pa.DataType, *, in_utc: bool, place: str) -> pa.DataType:
    """`in_utc`: times without a zone are old ones of Spark's, which are in UTC."""

    def inner(kind: pa.DataType) -> pa.DataType:
        return _read_as(kind, in_utc=in_utc, place=place)

    if pa.types.is_dictionary(kind):
        return inner(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(inner(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(inner(kind.key_type), inner(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(inner(kind.value_type)))
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_timestamp(kind):
        if kind.unit == "ns":
            raise StorageError(
                f"{place} has nanoseconds, which Spark does not read", hint="write the column in microseconds"
            )
        return pa.timestamp("us", "UTC" if kind.tz or in_utc else None)
    return _READ_AS.get(kind, kind)


def _holds(wide: pa.DataType, narrow: pa.DataType) -> bool:
    """Whether a column of a type has every value of another one as it is."""
    if wide.equals(narrow):
        return True
    if narrow in _WHOLE:
        if wide in _WHOLE:
            return _WHOLE.index(wide) > _WHOLE.index(narrow)
        return bool(pa.types.is_float64(wide)) and narrow != pa.int64()
    if pa.types.is_decimal(wide) and pa.types.is_decimal(narrow):
        return bool(
            wide.scale >= narrow.scale and wide.precision - wide.scale >= narrow.precision - narrow.scale
        )
    return bool(pa.types.is_float64(wide) and pa.types.is_float32(narrow))


def _reader(
    store: Store,
    tasks: Sequence[Sequence[Share[Found]]],
    kinds: dict[str, pa.DataType],
    columns: tuple[Column, ...],
    batch_rows: int,
) -> Callable[[Batches], Batches]:
    """What runs in Spark's Python processes: it gets the numbers of the tasks."""

    def task(numbers: Batches) -> Batches:
        schema = spark_schema(columns)
        wanted = to_arrow_schema(sent_schema(schema), timezone="UTC")
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                for share in tasks[number]:
                    for rows in _rows(store, share, kinds, batch_rows):
                        yield from in_layout(sent(conform(rows, columns), schema), wanted).to_batches()

    return task


def _rows(
    store: Store, share: Share[Found], kinds: dict[str, pa.DataType], batch_rows: int
) -> Iterator[pa.Table]:
    file, names = share.file, {name.lower(): name for name in kinds}
    with asking(f"read {store.uri(file.path)}", store), _opened(store, file) as source:
        there = {
            name: (names[name.lower()], kind)
            for name, kind in _file_types(store, file, source).items()
            if name.lower() in names
        }
        for name, (called, kind) in there.items():
            if not _holds(kinds[called], kind):
                raise StorageError(
                    f"{store.uri(file.path)} has {name} as {kind}, other files as {kinds[called]}",
                    hint="copy the files of each type by themselves",
                )
        first, end = (source.num_row_groups * n // share.of for n in (share.number, share.number + 1))
        if first == end:
            return
        for batch in source.iter_batches(
            batch_rows, row_groups=range(first, end), columns=list(there) or None
        ):
            rows = pa.Table.from_batches([batch])
            if there:
                yield rows.select(list(there)).rename_columns([called for called, _ in there.values()])
            else:
                yield pa.table({"": pa.nulls(rows.num_rows)})
