"""Spark's data types as text, as PySpark objects and as Arrow types, without a running Spark session."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import pyarrow as pa
import sqlglot
from pyspark.sql import types as t

from cq_engine.catalog.model import Column
from cq_engine.errors import AnalysisError

__all__ = ["arrow_schema", "arrow_type", "canonical_type", "columns_of", "spark_schema", "spark_type"]

_SIMPLE: dict[str, t.DataType] = {
    "boolean": t.BooleanType(),
    "tinyint": t.ByteType(),
    "byte": t.ByteType(),
    "smallint": t.ShortType(),
    "short": t.ShortType(),
    "int": t.IntegerType(),
    "integer": t.IntegerType(),
    "bigint": t.LongType(),
    "long": t.LongType(),
    "float": t.FloatType(),
    "real": t.FloatType(),
    "double": t.DoubleType(),
    "string": t.StringType(),
    "text": t.StringType(),
    "binary": t.BinaryType(),
    "date": t.DateType(),
    "timestamp": t.TimestampType(),
    "timestamp_ltz": t.TimestampType(),
    "timestamp_ntz": t.TimestampNTZType(),
    "variant": t.VariantType(),
    "void": t.NullType(),
    "decimal": t.DecimalType(10, 0),
    "dec": t.DecimalType(10, 0),
    "numeric": t.DecimalType(10, 0),
    "interval day to second": t.DayTimeIntervalType(),
    "interval year to month": t.YearMonthIntervalType(),
}


@lru_cache(maxsize=4096)
def spark_type(text: str) -> t.DataType:
    """The PySpark type that `text` (Spark DDL, any case) names.

    Raises AnalysisError for a type that Spark does not have.
    """
    parser = _TypeParser(text)
    found = parser.type()
    parser.end()
    return found


def canonical_type(text: str) -> str:
    """`text` as Spark's simple string.

    >>> canonical_type("Decimal(10, 2)"), canonical_type("ARRAY<STRUCT<a: INT, b: STRING>>")
    ('decimal(10,2)', 'array<struct<a:int,b:string>>')
    """
    return spark_type(text).simpleString()


def spark_schema(columns: Iterable[Column]) -> t.StructType:
    """The columns as a PySpark schema, all nullable (constraints are checked at commit, not by Spark)."""
    return t.StructType([t.StructField(c.name, spark_type(c.type), True) for c in columns])


def columns_of(schema: t.StructType) -> tuple[Column, ...]:
    """A PySpark schema as catalog columns."""
    return tuple(Column(f.name, f.dataType.simpleString(), f.nullable) for f in schema.fields)


@lru_cache(maxsize=4096)
def arrow_type(text: str) -> pa.DataType:
    """The Arrow type in which PySpark exchanges values of the Spark type `text`; timestamps are UTC microseconds."""
    return _arrow(spark_type(text))


def arrow_schema(columns: Iterable[Column]) -> pa.Schema:
    """The columns as an Arrow schema, all nullable."""
    return pa.schema([pa.field(c.name, arrow_type(c.type), True) for c in columns])


def _arrow(kind: t.DataType) -> pa.DataType:
    if isinstance(kind, t.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, t.ArrayType):
        return pa.list_(pa.field("element", _arrow(kind.elementType), True))
    if isinstance(kind, t.MapType):
        return pa.map_(_arrow(kind.keyType), pa.field("value", _arrow(kind.valueType), True))
    if isinstance(kind, t.StructType):
        return pa.struct([pa.field(f.name, _arrow(f.dataType), True) for f in kind.fields])
    for python_type, arrow in _ARROW:
        if isinstance(kind, python_type):
            return arrow
    raise AnalysisError(
        f"type {kind.simpleString()} cannot be stored", hint="cast it to a type that Parquet has"
    )


_ARROW: tuple[tuple[type[t.DataType], pa.DataType], ...] = (
    (t.BooleanType, pa.bool_()),
    (t.ByteType, pa.int8()),
    (t.ShortType, pa.int16()),
    (t.IntegerType, pa.int32()),
    (t.LongType, pa.int64()),
    (t.FloatType, pa.float32()),
    (t.DoubleType, pa.float64()),
    (t.StringType, pa.string()),
    (t.BinaryType, pa.binary()),
    (t.DateType, pa.date32()),
    (t.TimestampType, pa.timestamp("us", tz="UTC")),
    (t.TimestampNTZType, pa.timestamp("us")),
    (t.DayTimeIntervalType, pa.duration("us")),
    (t.NullType, pa.null()),
)


class _TypeParser:
    """Recursive descent over sqlglot's tokens of a type."""

    def __init__(self, text: str) -> None:
        self.text = text
        spaced = text.replace("<", " < ").replace(">", " > ").replace(":", " : ")
        self.tokens = [token.text for token in sqlglot.tokenize(spaced, dialect="spark")]
        self.at = 0

    def fail(self) -> AnalysisError:
        return AnalysisError(
            f"unknown type {self.text!r}",
            hint="types are Spark SQL's: INT, DECIMAL(10,2), ARRAY<STRING>, ...",
        )

    def peek(self) -> str:
        return self.tokens[self.at].lower() if self.at < len(self.tokens) else ""

    def next(self) -> str:
        if self.at >= len(self.tokens):
            raise self.fail()
        self.at += 1
        return self.tokens[self.at - 1]

    def expect(self, wanted: str) -> None:
        if self.next() != wanted:
            raise self.fail()

    def end(self) -> None:
        if self.at != len(self.tokens):
            raise self.fail()

    def type(self) -> t.DataType:
        name = self.next().lower()
        if name in ("array", "map", "struct"):
            return self.nested(name)
        if name in ("decimal", "dec", "numeric") and self.peek() == "(":
            return t.DecimalType(*self.numbers(2))
        if name in ("char", "varchar"):
            if self.peek() == "(":
                self.numbers(1)
            return t.StringType()
        if name == "interval":
            return self.interval()
        if name in ("string", "text") and self.peek() == "collate":
            self.next()
            return t.StringType(self.next())
        if name in _SIMPLE:
            return _SIMPLE[name]
        raise self.fail()

    def numbers(self, most: int) -> list[int]:
        self.expect("(")
        found = [self.next()]
        while self.peek() == ",":
            self.next()
            found.append(self.next())
        self.expect(")")
        if len(found) > most or not all(n.isdigit() for n in found):
            raise self.fail()
        return [int(n) for n in found]

    def interval(self) -> t.DataType:
        units = [self.next().lower()]
        if self.peek() == "to":
            self.next()
            units.append(self.next().lower())
        if set(units) <= {"day", "hour", "minute", "second"}:
            return t.DayTimeIntervalType()
        if set(units) <= {"year", "month"}:
            return t.YearMonthIntervalType()
        raise self.fail()

    def nested(self, name: str) -> t.DataType:
        self.expect("<")
        if name == "array":
            element = self.type()
            self.expect(">")
            return t.ArrayType(element)
        if name == "map":
            key = self.type()
            self.expect(",")
            value = self.type()
            self.expect(">")
            return t.MapType(key, value)
        fields = []
        while self.peek() != ">":
            field = self.next()
            if self.peek() == ":":
                self.next()
            fields.append(t.StructField(field, self.type()))
            if self.peek() == ",":
                self.next()
        self.expect(">")
        return t.StructType(fields)
