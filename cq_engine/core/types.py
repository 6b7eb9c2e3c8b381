"""Spark's data types as text, as PySpark objects and as Arrow types, without a running Spark session."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

import pyarrow as pa
import sqlglot
from pyspark.sql import types as t

from cq_engine.core.columns import Column
from cq_engine.core.errors import AnalysisError

__all__ = [
    "arrow_schema",
    "arrow_type",
    "canonical_type",
    "collations",
    "columns_of",
    "contains",
    "inner_pairs",
    "inner_types",
    "rebuild_type",
    "spark_schema",
    "spark_type",
]

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
    "time": t.TimeType(),
    "timestamp": t.TimestampType(),
    "timestamp_ltz": t.TimestampType(),
    "timestamp_ntz": t.TimestampNTZType(),
    "variant": t.VariantType(),
    "void": t.NullType(),
    "decimal": t.DecimalType(10, 0),
    "dec": t.DecimalType(10, 0),
    "numeric": t.DecimalType(10, 0),
}
_UNITS: tuple[tuple[type[t.DayTimeIntervalType] | type[t.YearMonthIntervalType], tuple[str, ...]], ...] = (
    (t.YearMonthIntervalType, ("year", "month")),
    (t.DayTimeIntervalType, ("day", "hour", "minute", "second")),
)


@lru_cache(maxsize=4096)
def spark_type(text: str) -> t.DataType:
    """The PySpark type that `text` (Spark DDL, any case) names. CHAR(n) and VARCHAR(n) are STRING.

    Raises AnalysisError for a type that Spark does not have, or that a column cannot have.
    """
    parser = _TypeParser(text)
    found = parser.type()
    parser.end()
    return found


def canonical_type(text: str) -> str:
    """`text` as Spark's simple string, with field names quoted where they need it.

    >>> canonical_type("Decimal(10, 2)"), canonical_type("ARRAY<STRUCT<a: INT, `b c`: STRING>>")
    ('decimal(10,2)', 'array<struct<a:int,`b c`:string>>')
    """
    return _text(spark_type(text))


def spark_schema(columns: Iterable[Column]) -> t.StructType:
    """The columns as a PySpark schema, all nullable (constraints are checked at commit, not by Spark)."""
    return t.StructType([t.StructField(c.name, spark_type(c.type), True) for c in columns])


def columns_of(schema: t.StructType) -> tuple[Column, ...]:
    """A PySpark schema as catalog columns."""
    return tuple(Column(f.name, _text(f.dataType), f.nullable) for f in schema.fields)


def _text(kind: t.DataType) -> str:
    if isinstance(kind, t.ArrayType):
        return f"array<{_text(kind.elementType)}>"
    if isinstance(kind, t.MapType):
        return f"map<{_text(kind.keyType)},{_text(kind.valueType)}>"
    if isinstance(kind, t.StructType):
        return f"struct<{','.join(f'{_name(f.name)}:{_text(f.dataType)}' for f in kind.fields)}>"
    return kind.simpleString()


def _name(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_]\w*", name) else "`" + name.replace("`", "``") + "`"


# ------------------------------------------------------------------------------------------------ what is in a type


def rebuild_type(kind: t.DataType, leaf: Callable[[t.DataType], t.DataType]) -> t.DataType:
    """`kind` with `leaf` applied to every type in it that is no array, map or struct; everything nullable."""
    if isinstance(kind, t.ArrayType):
        return t.ArrayType(rebuild_type(kind.elementType, leaf))
    if isinstance(kind, t.MapType):
        return t.MapType(rebuild_type(kind.keyType, leaf), rebuild_type(kind.valueType, leaf))
    if isinstance(kind, t.StructType):
        return t.StructType([t.StructField(f.name, rebuild_type(f.dataType, leaf)) for f in kind.fields])
    return leaf(kind)


def contains(kind: t.DataType, wanted: type[t.DataType] | tuple[type[t.DataType], ...]) -> bool:
    """True where `kind` is one of `wanted`, or has one inside.

    >>> contains(spark_type("array<map<string,int>>"), t.MapType)
    True
    """
    return isinstance(kind, wanted) or any(contains(inner, wanted) for inner in inner_types(kind))


def collations(kind: t.DataType) -> frozenset[str]:
    """The collations of the strings in `kind`, but for UTF8_BINARY."""
    own = {kind.collation} if isinstance(kind, t.StringType) and kind.collation != "UTF8_BINARY" else set()
    return frozenset(own).union(*(collations(inner) for inner in inner_types(kind)))


def inner_types(kind: t.DataType) -> Sequence[t.DataType]:
    """The types of the values in an array, a map or a struct; none for others."""
    if isinstance(kind, t.ArrayType):
        return [kind.elementType]
    if isinstance(kind, t.MapType):
        return [kind.keyType, kind.valueType]
    return [field.dataType for field in kind.fields] if isinstance(kind, t.StructType) else []


def inner_pairs(source: t.DataType, target: t.DataType) -> Sequence[tuple[t.DataType, t.DataType]] | None:
    """The types of the values in two arrays, two maps or two structs, in pairs; None for others, and for structs of
    different lengths."""
    mine, theirs = inner_types(source), inner_types(target)
    alike = type(source) is type(target) and isinstance(source, (t.ArrayType, t.MapType, t.StructType))
    return list(zip(mine, theirs)) if alike and len(mine) == len(theirs) else None


# ------------------------------------------------------------------------------------------------ Arrow


@lru_cache(maxsize=4096)
def arrow_type(text: str) -> pa.DataType:
    """The Arrow type in which the engine exchanges and stores values of the Spark type `text`.

    Timestamps are UTC microseconds, year-month intervals are their months, variants their two binary parts.
    """
    return _arrow(spark_type(text))


def arrow_schema(columns: Iterable[Column]) -> pa.Schema:
    """The columns as an Arrow schema, all nullable."""
    return _arrow_schema(tuple(columns))


@lru_cache(maxsize=1024)
def _arrow_schema(columns: tuple[Column, ...]) -> pa.Schema:
    return pa.schema([pa.field(c.name, arrow_type(c.type), True) for c in columns])


_VARIANT = pa.struct(
    [
        pa.field("value", pa.binary()),
        pa.field("metadata", pa.binary(), metadata={b"variant": b"true"}),
    ]
)
"""A variant in Arrow, marked as PySpark marks it. Its parts are nullable, or Arrow could not hold a NULL variant."""


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
    (t.TimeType, pa.time64("ns")),
    (t.TimestampType, pa.timestamp("us", tz="UTC")),
    (t.TimestampNTZType, pa.timestamp("us")),
    (t.DayTimeIntervalType, pa.duration("us")),
    (t.YearMonthIntervalType, pa.int32()),
    (t.VariantType, _VARIANT),
    (t.NullType, pa.null()),
)


# ------------------------------------------------------------------------------------------------ text


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
            return self.decimal()
        if name == "time" and self.peek() == "(":
            return self.time()
        if name in ("char", "character", "varchar"):
            if self.peek() == "(":
                self.numbers(1)
            return t.StringType()
        if name == "interval":
            return self.interval()
        if name in ("string", "text") and self.peek() == "collate":
            self.next()
            return t.StringType(self.next().upper())
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

    def decimal(self) -> t.DataType:
        found = t.DecimalType(*self.numbers(2))
        if not 1 <= found.precision <= 38 or found.scale > found.precision:
            raise AnalysisError(
                f"unknown type {self.text!r}",
                detail="DECIMAL(p, s) has 1 to 38 digits p, of which s, at most p, come after the point",
            )
        return found

    def time(self) -> t.DataType:
        (precision,) = self.numbers(1)
        if precision > 6:
            raise AnalysisError(f"unknown type {self.text!r}", detail="TIME(n) has n from 0 to 6")
        return t.TimeType(precision)

    def interval(self) -> t.DataType:
        if not self.peek().isalpha():
            raise AnalysisError(
                "a column cannot be INTERVAL alone",
                detail="months and days cannot be compared with each other",
                hint="it is INTERVAL YEAR TO MONTH or INTERVAL DAY TO SECOND",
            )
        units = [self.next().lower()]
        if self.peek() == "to":
            self.next()
            units.append(self.next().lower())
        for family, names in _UNITS:
            if set(units) <= set(names):
                places = [names.index(unit) for unit in units]
                if places == sorted(places):
                    return family(places[0], places[-1])
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
            return self.map(key, value)
        fields = []
        while self.peek() != ">":
            fields.append(self.field())
            if self.peek() == ",":
                self.next()
        self.expect(">")
        return t.StructType(fields)

    def map(self, key: t.DataType, value: t.DataType) -> t.DataType:
        if contains(key, (t.MapType, t.VariantType)):
            raise AnalysisError(
                f"unknown type {self.text!r}", detail="the keys of a MAP cannot be maps or variants"
            )
        return t.MapType(key, value)

    def field(self) -> t.StructField:
        name = self.next()
        if self.peek() == ":":
            self.next()
        kind = self.type()
        if self.peek() == "not":
            raise AnalysisError(
                f"field {name} of a STRUCT cannot be NOT NULL",
                detail="only whole columns are checked",
                hint="leave NOT NULL out",
            )
        if self.peek() == "comment":
            self.next()
            self.next()
        return t.StructField(name, kind)
