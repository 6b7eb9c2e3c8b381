"""Spark's ANSI store assignment: which values may be written to a column, and how they become its type."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as f
from pyspark.sql import types as t

from cq_engine.catalog.model import Table
from cq_engine.core.columns import Column
from cq_engine.core.errors import AnalysisError
from cq_engine.core.types import inner_pairs, spark_type
from cq_engine.spark.sql import quote

__all__ = ["assign", "can_store"]

_DATETIME = (t.DateType, t.TimestampType, t.TimestampNTZType)


def can_store(source: t.DataType, target: t.DataType) -> bool:
    """True where Spark's INSERT accepts `source` for `target` (`Cast.canANSIStoreAssign`).

    >>> can_store(t.LongType(), t.ByteType()), can_store(t.StringType(), t.IntegerType())
    (True, False)
    """
    if source == target or isinstance(source, t.NullType):
        return True
    if (pairs := inner_pairs(source, target)) is not None:
        return all(can_store(*pair) for pair in pairs)
    return any(rule(source, target) for rule in _RULES)


def _is_nested(kind: t.DataType) -> bool:
    return isinstance(kind, (t.ArrayType, t.MapType, t.StructType, t.VariantType))


_RULES: tuple[Callable[[t.DataType, t.DataType], bool], ...] = (
    lambda a, b: isinstance(a, t.NumericType) and isinstance(b, t.NumericType),
    lambda a, b: not _is_nested(a) and isinstance(b, t.StringType),
    lambda a, b: isinstance(a, _DATETIME) and isinstance(b, _DATETIME),
    lambda a, b: isinstance(a, t.DayTimeIntervalType) and isinstance(b, t.DayTimeIntervalType),
    lambda a, b: isinstance(a, t.YearMonthIntervalType) and isinstance(b, t.YearMonthIntervalType),
)


def assign(table: Table, column: Column, source: str, schema: t.StructType) -> SparkColumn:
    """The column `source` of a frame with `schema`, cast to `column` of `table`.

    Raises AnalysisError where Spark's INSERT would not accept the type.
    """
    found = schema[source].dataType
    target = spark_type(column.type)
    if not can_store(found, target):
        raise AnalysisError(
            f"cannot write {found.simpleString()} to column {table.name}.{column.name}, which is {column.type}",
            detail="Spark's ANSI store assignment allows no such conversion",
            hint=f"write CAST(... AS {column.type.upper()})",
        )
    value = f.col(quote(source))
    return value if found == target else value.cast(target)


def select(
    table: Table, columns: Sequence[Column], sources: Sequence[str | None], schema: t.StructType
) -> list[SparkColumn]:
    """One output per column: the assigned source, or NULL where there is none."""
    return [
        (f.lit(None).cast(spark_type(c.type)) if s is None else assign(table, c, s, schema)).alias(c.name)
        for c, s in zip(columns, sources)
    ]
