"""Rows in Arrow on the driver: identities as Python keys, schemas and files."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as t

from cq_engine.catalog.change_rows import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    SEQUENCE,
)
from cq_engine.catalog.model import CHANGES, ContinuousQuery, VersionedTable
from cq_engine.core.arrays import array, empty_table
from cq_engine.core.capabilities import Use, problem
from cq_engine.core.columns import Column
from cq_engine.core.errors import AnalysisError
from cq_engine.core.types import arrow_schema, inner_types, spark_type
from cq_engine.core.values import is_variant, variant

if TYPE_CHECKING:
    import pyarrow.dataset as ds
    import pyarrow.fs as pafs

__all__ = [
    "Heap",
    "change_columns",
    "conform",
    "empty",
    "feed_columns",
    "identity_columns",
    "identity_keys",
    "open_dataset",
    "row_values",
    "same_images",
]

_NAN = ("NaN",)
_MOST_DIGITS = 76
"""Of Arrow's widest decimals."""
_REFRESH_TIME = "_refresh_time"


def change_columns(table: VersionedTable) -> tuple[Column, ...]:
    """The columns of change rows: the physical ones, `_change_type`, `_commit_version`; of a delta log also
    `_sequence` and `_refresh_time`."""
    more = [Column(CHANGE_TYPE, "string", False), Column(COMMIT_VERSION, "bigint", False)]
    if table.kind == "delta":
        more += [Column(SEQUENCE, "bigint", False), Column(_REFRESH_TIME, "timestamp", True)]
    physical = table.physical_columns
    if table.kind == CHANGES:  # of a change that is partial, the key may be all that is known
        physical = tuple(replace(c, nullable=c.name not in table.identity) for c in physical)
    taken = {c.name for c in physical}
    return (*physical, *(c for c in more if c.name not in taken))


def feed_columns(query: ContinuousQuery) -> tuple[Column, ...]:
    """The columns of a query's change data feed: those of CHANGES."""
    return (
        *(Column(c.name, c.type) for c in query.result.columns[: query.width]),
        Column(CHANGE_TYPE, "string"),
        Column(COMMIT_VERSION, "bigint"),
        Column(COMMIT_TIMESTAMP, "timestamp"),
    )


def conform(table: pa.Table, columns: Sequence[Column]) -> pa.Table:
    """`table` with exactly these columns, in this order and in Arrow's types for them; columns it lacks are NULL."""
    schema = arrow_schema(columns)
    if table.schema.equals(schema):
        return table
    present = set(table.column_names)
    arrays = []
    for field in schema:
        if field.name not in present:
            arrays.append(pa.chunked_array([pa.nulls(table.num_rows, field.type)]))
            continue
        arrays.append(_cast(table.column(field.name), field.type))
    return pa.Table.from_arrays(arrays, schema=schema)


def _cast(values: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Arrow refuses every whole number where the decimals have room for fewer digits than its type may have."""
    if values.type.equals(kind):
        return values
    if pa.types.is_integer(values.type) and pa.types.is_decimal(kind):
        values = values.cast(pa.decimal256(_MOST_DIGITS, kind.scale))
    return values.cast(kind)


def empty(columns: Sequence[Column]) -> pa.Table:
    """No rows of these columns."""
    return empty_table(arrow_schema(columns))


def identity_columns(table: VersionedTable) -> tuple[Column, ...]:
    """The columns that identify a row of `table`."""
    by_name = {c.name: c for c in table.physical_columns}
    return tuple(by_name[name] for name in table.identity)


def identity_keys(table: pa.Table, identity: Sequence[Column]) -> list[Hashable]:
    """The identity of each row as a hashable value: NULL = NULL, NaN = NaN, −0.0 = 0.0, text by its collation.

    Times are their numbers, so that every instant that Spark has is representable.
    Raises AnalysisError for a collation that only Spark can compare.
    """
    if not identity:
        return [()] * table.num_rows
    lists = [_hashable(table.column(c.name), _key_type(c)) for c in identity]
    return lists[0] if len(lists) == 1 else list(zip(*lists))


def row_values(table: pa.Table) -> list[Hashable]:
    """Every row of `table` as one hashable value, equal exactly where the rows are the same row image.

    Text counts as it is written, whatever its collation; the order of a map's entries does not.
    """
    if not table.num_columns:
        return [()] * table.num_rows
    lists = [_hashable(column, None) for column in table.columns]
    return lists[0] if len(lists) == 1 else list(zip(*lists))


def same_images(old: pa.Table, new: pa.Table) -> npt.NDArray[np.bool_]:
    """Where the rows of two tables of the same columns are the same row image, as `row_values` tells them."""
    same = np.ones(old.num_rows, np.bool_)
    for mine, theirs in zip(old.columns, new.columns):
        same &= _same(mine, theirs)
    return same


def _same(mine: pa.ChunkedArray, theirs: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    kind = mine.type
    if pa.types.is_nested(kind) or pa.types.is_null(kind):
        pairs = zip(_hashable(mine, None), _hashable(theirs, None))
        return np.fromiter((a == b for a, b in pairs), np.bool_, len(mine))
    same = pc.equal(mine, theirs).fill_null(False)
    if pa.types.is_floating(kind):
        same = pc.or_(same, pc.and_(pc.is_nan(mine), pc.is_nan(theirs)).fill_null(False))
    found: npt.NDArray[np.bool_] = np.asarray(pc.or_(same, pc.and_(pc.is_null(mine), pc.is_null(theirs))))
    return found


def _key_type(column: Column) -> t.DataType:
    why = problem(column.type, Use.KEY)
    if why:
        raise AnalysisError(
            f"column {column.name} of type {column.type} cannot identify rows",
            detail=why,
            hint="text can be compared by another collation, such as UTF8_LCASE",
        )
    return spark_type(column.type)


def _fold(text: str, collation: str) -> str:
    """Equal where Spark takes two texts of the collation for equal."""
    if collation.endswith("_RTRIM"):
        text = text.rstrip(" ")
    if collation.startswith("UTF8_LCASE"):  # code point by code point, both small sigmas as one
        return text.lower() if text.isascii() else "".join(map(str.lower, text)).replace("ς", "σ")
    return text


def _hashable(column: pa.ChunkedArray, key: t.DataType | None) -> list[Hashable]:
    """The values; where they are a `key`, text is folded by its collation."""
    kind = column.type
    if pa.types.is_floating(kind):
        return [_NAN if v is not None and math.isnan(v) else v for v in pc.add(column, 0.0).to_pylist()]
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind) or pa.types.is_time64(kind):
        return column.cast(pa.int64()).to_pylist()  # type: ignore[no-any-return]
    if pa.types.is_date32(kind):
        return column.cast(pa.int32()).to_pylist()  # type: ignore[no-any-return]
    values = column.to_pylist()
    if pa.types.is_nested(kind) or (isinstance(key, t.StringType) and key.collation != "UTF8_BINARY"):
        return [_freeze(v, kind, key) for v in values]
    return values  # type: ignore[no-any-return]


def _freeze(value: Any, kind: pa.DataType, key: t.DataType | None) -> Hashable:
    if value is None:
        return None
    if is_variant(kind):
        return _tag(variant(value))
    inner = [None] * kind.num_fields if key is None else inner_types(key)
    if pa.types.is_struct(kind):
        return tuple(_freeze(value[field.name], field.type, of) for field, of in zip(kind, inner))
    if pa.types.is_map(kind):
        return frozenset(
            (_freeze(k, kind.key_type, None), _freeze(v, kind.item_type, None)) for k, v in value
        )
    if pa.types.is_list(kind):
        return tuple(_freeze(v, kind.value_type, inner[0]) for v in value)
    if isinstance(value, float):
        return _NAN if math.isnan(value) else value + 0.0
    return _fold(value, key.collation) if isinstance(key, t.StringType) else value


def _tag(value: Any) -> Hashable:
    """A value inside a variant with its type: there, 1 is not 1.0 and not true."""
    if isinstance(value, dict):
        return frozenset((key, _tag(item)) for key, item in value.items())
    if isinstance(value, list):
        return tuple(_tag(item) for item in value)
    if isinstance(value, float):
        return "float", (_NAN if math.isnan(value) else value + 0.0)
    return type(value).__name__, value


def open_dataset(
    paths: Sequence[str], columns: Sequence[Column], filesystem: pafs.FileSystem | None = None
) -> ds.Dataset:
    """Parquet files of a file system, by default the local one, as a dataset of `columns`."""
    import pyarrow.dataset as ds  # and pandas: commits do without

    schema = arrow_schema(columns)
    # A session of the user's own writes times as INT96, of which Arrow would make nanoseconds: those from 1677 to 2262.
    parquet = ds.ParquetFileFormat(coerce_int96_timestamp_unit="us")
    return ds.dataset(list(paths), schema=schema, format=parquet, filesystem=filesystem)


class Heap:
    """Rows in Arrow by their positions; they are only appended."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self.columns = tuple(columns)
        self.nbytes = 0
        self._chunks: list[pa.Table] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def append(self, rows: pa.Table) -> int:
        """Appends `rows`, with the columns; the position of the first one."""
        start, rows = self._size, conform(rows, self.columns)
        self._chunks.append(rows)
        self._size += rows.num_rows
        self.nbytes += rows.nbytes
        return start

    def take(self, positions: Iterable[int]) -> pa.Table:
        """The rows at these positions."""
        wanted = list(positions)
        if not wanted:
            return empty(self.columns)
        if len(self._chunks) > 1:
            self._chunks = [pa.concat_tables(self._chunks).combine_chunks()]
        (whole,) = self._chunks
        if len(wanted) == self._size and wanted == list(range(self._size)):
            return whole
        return whole.take(array(wanted, pa.int64())).combine_chunks()
