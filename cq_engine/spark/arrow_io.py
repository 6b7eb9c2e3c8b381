"""DataFrames to Arrow and back, for every type that a column can have.

Two types do not pass PySpark's own conversion. Year-month intervals have no Arrow type there: they travel as their
months. A variant that is NULL fails, because PySpark says that its two parts are not nullable: a mark travels instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t

from cq_engine.core.capabilities import Use, can
from cq_engine.core.columns import Column
from cq_engine.core.limits import DEFAULT_LIMITS
from cq_engine.core.types import contains, rebuild_type, spark_schema
from cq_engine.core.values import Parts, is_variant, with_variants
from cq_engine.spark.sql import translate_errors

__all__ = [
    "few_rows",
    "from_arrow",
    "is_plain",
    "received",
    "receiving",
    "sendable",
    "sent",
    "sent_schema",
    "to_arrow",
]

_TEXT = "NULL of cq-engine 4d1f0a2e-6f0c-4b7e-9a55-0c6c1d1f7b1e"
_MARK = {
    name: bytes(part) for name, part in vars(t.VariantVal.parseJson(f'"{_TEXT}"')).items()
}  # its value and metadata

Leaf = Callable[[str, t.DataType], str]


def is_plain(schema: t.StructType) -> bool:
    """True where PySpark's own conversion to Arrow will do."""
    return all(can(field.dataType, Use.EXCHANGED) for field in schema.fields)


def few_rows(frame: DataFrame, most: int) -> pa.Table | None:
    """The rows of `frame` as Arrow, or None where they are more than `most`. Raises CQError."""
    with translate_errors():
        rows = to_arrow(frame.limit(most + 1))
    return rows if rows.num_rows <= most else None


def to_arrow(frame: DataFrame) -> pa.Table:
    """The rows of `frame` as Arrow, in the types of `types.arrow_type`. PySpark's exceptions pass through."""
    if is_plain(frame.schema):
        return frame.toArrow()
    rows = sendable(frame).toArrow().rename_columns(frame.columns)
    return received(rows, frame.schema)


def sendable(frame: DataFrame) -> DataFrame:
    """`frame` in a form whose values pass PySpark's conversion to Arrow, after which `received` has its rows. Where there is
    something to do, its columns have other names, in the same order."""
    if is_plain(frame.schema):
        return frame
    kinds = [field.dataType for field in frame.schema.fields]
    plain = frame.toDF(*(f"_c{n}" for n in range(len(kinds))))  # names may be empty, or stand twice
    shown = [f.expr(_each(f"_c{n}", kind, _send_sql)).alias(f"_c{n}") for n, kind in enumerate(kinds)]
    return plain.select(*shown)


def received(rows: pa.Table, schema: t.StructType) -> pa.Table:
    """What has come of a frame with `schema` that was `sendable`: its rows, but for year-month intervals as their months."""
    for n, field in enumerate(schema.fields):
        if contains(field.dataType, t.VariantType):
            rows = rows.set_column(n, rows.column_names[n], _with_nulls(rows.column(n)))
    return rows


def from_arrow(
    spark: SparkSession, rows: pa.Table, columns: Sequence[Column], most: int = DEFAULT_LIMITS.local_bytes
) -> DataFrame:
    """Arrow rows in the types of `columns` (see `rows.conform`) as a DataFrame of them, whose partitions have about `most`
    bytes at most: they travel to the executors in tasks."""
    schema = spark_schema(columns)
    # An empty chunk between others would end Spark's reading there: combine them first.
    # No chunk at all is an error for nested types.
    rows = rows.combine_chunks() if len(rows) else rows.schema.empty_table()
    rows = _cut(sent(rows, schema), most)
    return receiving(spark.createDataFrame(rows, schema=sent_schema(schema)), schema)


def _cut(rows: pa.Table, most: int) -> pa.Table:
    """The same rows in chunks of at most about so many bytes, each of which becomes a partition of its own."""
    parts = min(rows.num_rows, math.ceil(rows.nbytes / most))
    if parts < 2:
        return rows
    size = math.ceil(rows.num_rows / parts)
    return pa.concat_tables([rows.slice(start, size) for start in range(0, rows.num_rows, size)])


def sent_schema(schema: t.StructType) -> t.StructType:
    """The types in which rows of `schema` pass PySpark's conversion from Arrow."""
    if is_plain(schema):
        return schema
    return t.StructType([t.StructField(each.name, rebuild_type(each.dataType, _number)) for each in schema])


def sent(rows: pa.Table, schema: t.StructType) -> pa.Table:
    """`rows` of `schema` in a form of which `receiving` makes them again."""
    for n, field in enumerate(schema):
        if contains(field.dataType, t.VariantType):
            rows = rows.set_column(n, field.name, _with_marks(rows.column(n)))
    return rows


def receiving(frame: DataFrame, schema: t.StructType) -> DataFrame:
    """A frame of `sent_schema(schema)`, of rows that were `sent`, as one of `schema`."""
    if is_plain(schema):
        return frame
    frame = frame.toDF(*(f"_c{n}" for n in range(len(schema))))
    shown = [f.expr(_each(f"_c{n}", each.dataType, _receive_sql)) for n, each in enumerate(schema)]
    return frame.select(*(e.cast(each.dataType).alias(each.name) for e, each in zip(shown, schema)))


def _number(kind: t.DataType) -> t.DataType:
    return t.IntegerType() if isinstance(kind, t.YearMonthIntervalType) else kind


# ------------------------------------------------------------------------------------------------ in Spark


def _send_sql(value: str, kind: t.DataType) -> str:
    if isinstance(kind, t.VariantType):
        return f"coalesce({value}, parse_json('\"{_TEXT}\"'))"
    return f"CAST(CAST({value} AS INTERVAL MONTH) AS INT)"  # only an interval of one unit becomes a number


def _receive_sql(value: str, kind: t.DataType) -> str:
    if isinstance(kind, t.VariantType):
        return f"CASE WHEN to_json({value}) <> '\"{_TEXT}\"' THEN {value} END"
    return f"CAST(CAST({value} AS INTERVAL MONTH) AS {kind.simpleString()})"


def _each(value: str, kind: t.DataType, leaf: Leaf, depth: int = 0) -> str:
    """SQL that applies `leaf` to every interval and variant inside of `value`."""
    if can(kind, Use.EXCHANGED):
        return value
    key, item = f"k{depth}", f"e{depth}"
    if isinstance(kind, t.ArrayType):
        return f"transform({value}, {item} -> {_each(item, kind.elementType, leaf, depth + 1)})"
    if isinstance(kind, t.MapType):
        keys = _each(key, kind.keyType, leaf, depth + 1)
        if keys != key:
            value = f"transform_keys({value}, ({key}, {item}) -> {keys})"
        items = _each(item, kind.valueType, leaf, depth + 1)
        return value if items == item else f"transform_values({value}, ({key}, {item}) -> {items})"
    if isinstance(kind, t.StructType):
        fields = []
        for each in kind.fields:
            quoted = each.name.replace("`", "``")
            text = each.name.replace("\\", "\\\\").replace("'", "\\'")
            fields.append(f"'{text}', {_each(f'{value}.`{quoted}`', each.dataType, leaf, depth + 1)}")
        return f"CASE WHEN {value} IS NOT NULL THEN named_struct({', '.join(fields)}) END"
    return leaf(value, kind)


# ------------------------------------------------------------------------------------------------ in Arrow


def _with_nulls(column: pa.ChunkedArray) -> pa.ChunkedArray:
    def unmarked(parts: Parts | None) -> Parts | None:
        return None if parts == _MARK else parts

    if is_variant(column.type):
        marked = pc.equal(pc.struct_field(column, "value"), _MARK["value"])
        if not pc.any(marked, min_count=0).as_py():
            return column
    return with_variants(column, unmarked)


def _with_marks(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if is_variant(column.type) and column.null_count == 0:
        return column
    return with_variants(column, lambda parts: _MARK if parts is None else parts)
