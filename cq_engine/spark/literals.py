"""INSERT ... VALUES of plain literals, evaluated without Spark and with exactly Spark's result.

Whatever is not surely the same is left to Spark: an expression, a string escape, a value that does not fit its
column, a type that Spark would refuse.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation, localcontext
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
from pyspark.sql import types as t
from sqlglot import exp

from cq_engine.core.arrays import array
from cq_engine.core.columns import Column
from cq_engine.core.types import arrow_type, spark_type

__all__ = ["literal_rows"]


class _Unsure(Exception):
    """Spark has to evaluate this."""


@dataclass(frozen=True)
class _Value:
    """A literal with its Spark type."""

    value: Any
    kind: t.DataType


_RANGES: dict[type[t.DataType], int] = {t.ByteType: 7, t.ShortType: 15, t.IntegerType: 31, t.LongType: 63}
_WIDE = Context(prec=200)


def literal_rows(
    values: exp.Values, columns: Sequence[Column], time_zone: Callable[[], str]
) -> pa.Table | None:
    """The rows of VALUES as Arrow columns in the order of `columns`, or None where Spark must evaluate them.

    VALUES is one relation in Spark: a column whose rows have several types is coerced, so it is left to Spark, too.
    """
    rows = [row.expressions if isinstance(row, exp.Tuple) else [row] for row in values.expressions]
    if any(len(row) != len(columns) for row in rows):
        return None
    try:
        arrays = [_column([row[n] for row in rows], column, time_zone) for n, column in enumerate(columns)]
    except (_Unsure, pa.ArrowInvalid, OverflowError, ValueError, InvalidOperation):
        return None
    return pa.Table.from_arrays(arrays, names=[c.name for c in columns])


def _column(cells: Sequence[exp.Expression], column: Column, time_zone: Callable[[], str]) -> pa.Array:
    found = [_literal(cell, time_zone) for cell in cells]
    target = spark_type(column.type)
    kinds = {repr(v.kind): v.kind for v in found if not isinstance(v.kind, t.NullType)}
    if len(kinds) > 1 and (
        isinstance(target, t.StringType) or not all(_mixes(kind) for kind in kinds.values())
    ):
        raise _Unsure
    return array([_store(v, target) for v in found], arrow_type(column.type))


def _mixes(kind: t.DataType) -> bool:
    """True for types whose values stay what they are when Spark brings them to a common type."""
    exact = isinstance(kind, t.DecimalType) and kind.precision <= 18 and kind.scale <= 18
    return exact or isinstance(kind, t.IntegralType)


# ---------------------------------------------------------------- what a literal is


def _literal(cell: exp.Expression, time_zone: Callable[[], str]) -> _Value:
    if isinstance(cell, exp.Null) or (
        isinstance(cell, (exp.Var, exp.Column)) and cell.name.upper() == "DEFAULT"
    ):
        return _Value(None, t.NullType())
    if isinstance(cell, exp.Boolean):
        return _Value(bool(cell.this), t.BooleanType())
    if isinstance(cell, exp.Neg):
        inner = _literal(cell.this, time_zone)
        if isinstance(cell.this, exp.Literal) and isinstance(inner.value, (int, float, Decimal)):
            if inner.value == 0 and isinstance(inner.value, float):
                raise _Unsure
            return _Value(-inner.value, inner.kind)
        raise _Unsure
    if isinstance(cell, exp.Literal):
        return _Value(cell.this, t.StringType()) if cell.is_string else _number(cell.this)
    if isinstance(cell, (exp.Cast, exp.TryCast)):
        return _cast(cell, time_zone)
    raise _Unsure


def _number(text: str) -> _Value:
    if re.fullmatch(r"\d+", text):
        value = int(text)
        if value < 2**31:
            return _Value(value, t.IntegerType())
        if value < 2**63:
            return _Value(value, t.LongType())
        return _decimal(text)
    if re.fullmatch(r"\d*\.\d+|\d+\.\d*", text):
        return _decimal(text)
    if re.fullmatch(r"(\d+(\.\d*)?|\.\d+)[eE][+-]?\d+", text):
        return _Value(float(text), t.DoubleType())
    raise _Unsure


def _decimal(text: str) -> _Value:
    value = Decimal(text)
    _, digits, exponent = value.as_tuple()
    scale = max(-int(exponent), 0)
    precision = max(len(digits), scale)
    if precision > 38:
        raise _Unsure
    return _Value(value, t.DecimalType(precision, scale))


def _cast(cell: exp.Cast | exp.TryCast, time_zone: Callable[[], str]) -> _Value:
    source = cell.this
    if isinstance(source, (exp.Neg, exp.Literal)):
        inner = _literal(source, time_zone)
    elif isinstance(source, exp.Null):
        inner = _Value(None, t.NullType())
    else:
        raise _Unsure
    target = _type(cell.to)
    if inner.value is None:
        return _Value(None, target)
    if isinstance(inner.kind, t.StringType):
        return _Value(_parse(inner.value, target, time_zone), target)
    return _Value(_store(inner, target), target)


_TYPE_NAMES = {
    "TIMESTAMPTZ": t.TimestampType(),
    "TIMESTAMPLTZ": t.TimestampType(),
    "TIMESTAMPNTZ": t.TimestampNTZType(),
    "DATE": t.DateType(),
    "TINYINT": t.ByteType(),
    "SMALLINT": t.ShortType(),
    "INT": t.IntegerType(),
    "BIGINT": t.LongType(),
    "DOUBLE": t.DoubleType(),
    "BOOLEAN": t.BooleanType(),
    "TEXT": t.StringType(),
}


def _type(kind: exp.DataType) -> t.DataType:
    name = kind.this.name
    if name == "DECIMAL":
        numbers = [int(p.this.this) for p in kind.expressions]
        return t.DecimalType(*numbers) if numbers else t.DecimalType(10, 0)
    if name in _TYPE_NAMES and not kind.expressions:
        return _TYPE_NAMES[name]
    raise _Unsure


# ---------------------------------------------------------------- text to a type

_DATE = re.compile(r"(\d{4})-(\d{2})-(\d{2})")
_TIME = re.compile(r"(\d{4})-(\d{2})-(\d{2})[ T](\d{2}):(\d{2}):(\d{2})(?:\.(\d{1,6}))?(Z|[+-]\d{2}:\d{2})?")


def _parse(text: str, target: t.DataType, time_zone: Callable[[], str]) -> Any:
    if isinstance(target, t.StringType):
        return text
    if isinstance(target, t.DateType) and (found := _DATE.fullmatch(text)):
        return dt.date(*map(int, found.groups()))
    if isinstance(target, (t.TimestampType, t.TimestampNTZType)):
        return _parse_time(text, isinstance(target, t.TimestampNTZType), time_zone)
    if isinstance(target, t.DecimalType) and re.fullmatch(r"[+-]?(\d+(\.\d*)?|\.\d+)", text):
        return _quantize(Decimal(text), target)
    if isinstance(target, t.DoubleType) and re.fullmatch(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", text):
        return float(text)
    if type(target) in _RANGES and re.fullmatch(r"-?\d+", text):
        return _check_range(int(text), target)
    raise _Unsure


def _parse_time(text: str, without_zone: bool, time_zone: Callable[[], str]) -> dt.datetime:
    date = _DATE.fullmatch(text)
    found = _TIME.fullmatch(text)
    zone = None
    if date is not None:
        moment = dt.datetime.combine(dt.date(*map(int, date.groups())), dt.time())
    elif found is not None:
        year, month, day, hour, minute, second = (int(g) for g in found.groups()[:6])
        fraction = int((found.group(7) or "").ljust(6, "0"))
        moment = dt.datetime.combine(dt.date(year, month, day), dt.time(hour, minute, second, fraction))
        zone = found.group(8)
    else:
        raise _Unsure
    if without_zone:
        if zone is not None:
            raise _Unsure
        return moment
    if moment.year < 1900:
        raise _Unsure  # zones before standard time have seconds
    if zone is not None:
        return dt.datetime.fromisoformat(moment.isoformat() + zone.replace("Z", "+00:00")).astimezone(
            dt.timezone.utc
        )
    return _local(moment, time_zone())


def _local(moment: dt.datetime, name: str) -> dt.datetime:
    try:
        zone = ZoneInfo(name)
    except Exception as error:  # an offset such as +01:00, which ZoneInfo does not know
        raise _Unsure from error
    if moment.replace(tzinfo=zone).utcoffset() != moment.replace(tzinfo=zone, fold=1).utcoffset():
        raise _Unsure  # in a gap or an overlap of local time
    return moment.replace(tzinfo=zone).astimezone(dt.timezone.utc)


# ---------------------------------------------------------------- a value to its column


def _store(found: _Value, target: t.DataType) -> Any:
    """ANSI store assignment where it is plain; anything that may fail or round oddly is left to Spark."""
    value, kind = found.value, found.kind
    if value is None or kind == target:
        return value
    integral = isinstance(kind, t.IntegralType)
    if type(target) in _RANGES and (integral or (isinstance(kind, t.DecimalType) and value == int(value))):
        return _check_range(int(value), target)
    if isinstance(target, t.DecimalType) and (integral or isinstance(kind, t.DecimalType)):
        return _quantize(Decimal(value), target)
    if isinstance(target, t.DoubleType) and (
        isinstance(kind, t.DecimalType) or (integral and abs(value) < 2**53)
    ):
        return float(value)
    if isinstance(target, t.StringType) and (integral or isinstance(kind, t.StringType)):
        return str(value)
    if isinstance(target, t.TimestampNTZType) and isinstance(kind, t.DateType):
        return dt.datetime.combine(value, dt.time())
    raise _Unsure


def _check_range(value: int, target: t.DataType) -> int:
    limit = 1 << _RANGES[type(target)]
    if not -limit <= value < limit:
        raise _Unsure  # Spark words the overflow
    return value


def _quantize(value: Decimal, target: t.DecimalType) -> Decimal:
    with localcontext(_WIDE):
        rounded = value.quantize(Decimal(1).scaleb(-target.scale), rounding=ROUND_HALF_UP)
        if len(rounded.as_tuple().digits) > target.precision and rounded != 0:
            raise _Unsure
    return rounded
