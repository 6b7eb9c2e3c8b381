"""Columns in memory with their Spark types, and the rows that they make up.

Whole numbers and decimals are 64-bit integers, whatever their type: of a decimal its unscaled value. So sums and
comparisons are exact, and what does not fit is noticed (`TooLargeError`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as t

from cq_engine.core.beside import together
from cq_engine.core.columns import Column
from cq_engine.core.types import arrow_type, spark_type

__all__ = [
    "INTEGERS",
    "MOST_DIGITS",
    "Flags",
    "Numbers",
    "Rows",
    "TooLargeError",
    "UnsupportedError",
    "Vector",
    "common_type",
    "concat",
    "constant",
    "integers",
    "is_number",
    "rescale",
    "retype",
    "scale_of",
    "whole_digits",
    "with_nulls",
]

Numbers: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]

INTEGERS: Mapping[type[t.DataType], int] = {t.ByteType: 8, t.ShortType: 16, t.IntegerType: 32, t.LongType: 64}
"""Spark's whole numbers, and their bits."""
_DIGITS: Mapping[type[t.DataType], int] = {t.ByteType: 3, t.ShortType: 5, t.IntegerType: 10, t.LongType: 20}
MOST_DIGITS = 38
"""Of a decimal."""
EXACT = 2**53
_EXACT_POWERS = 22
"""Whole numbers below the one, and powers of ten up to the other, are a DOUBLE exactly, so that their quotient is
rounded once, and correctly."""
_WIDE = 19
"""Decimals of so many digits hold every 64-bit integer."""


class UnsupportedError(Exception):
    """The statement has something in it that only Spark evaluates, whatever the rows are."""


class TooLargeError(Exception):
    """These rows are too many, or a value is too large; others may do."""


@dataclass(frozen=True)
class Vector:
    """A column: its Spark type, and its values in one Arrow array."""

    type: t.DataType
    values: pa.Array

    @classmethod
    def of(cls, column: pa.ChunkedArray | pa.Array, kind: str) -> Vector:
        """A column of the Spark type `kind` as tables have it."""
        values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        found = spark_type(kind)
        if type(found) in INTEGERS:
            values = values.cast(pa.int64())
        elif isinstance(found, t.DecimalType):
            values = _unscaled(values.cast(pa.decimal128(found.precision, found.scale)))
        elif not values.type.equals(arrow_type(kind)):
            values = values.cast(arrow_type(kind))
        return cls(found, values)

    def to_arrow(self, kind: str) -> pa.Array:
        """The values as tables have those of the Spark type `kind`. Raises UnsupportedError, TooLargeError."""
        wanted = spark_type(kind)
        if isinstance(self.type, t.NullType):
            return pa.nulls(len(self.values), arrow_type(kind))
        if isinstance(wanted, t.DecimalType) and is_number(self.type):
            return _decimals(rescale(self, wanted.scale), wanted)
        if type(wanted) in INTEGERS and type(self.type) in INTEGERS:
            return self.values.cast(arrow_type(kind))
        if type(wanted) is not type(self.type):
            raise UnsupportedError(f"{self.type.simpleString()} as {kind}")
        return self.values

    def take(self, places: pa.Array) -> Vector:
        return replace(self, values=self.values.take(places))

    def filter(self, mask: pa.BooleanArray) -> Vector:
        return replace(self, values=self.values.filter(mask))

    @property
    def nulls(self) -> Flags:
        """Which values are NULL."""
        return np.asarray(self.values.is_null())


@dataclass(frozen=True)
class Rows:
    """Columns by name, all of the same length."""

    columns: Mapping[str, Vector]
    count: int

    @classmethod
    def of(cls, table: pa.Table, columns: Sequence[Column], names: Sequence[str]) -> Rows:
        """A table's rows under other names, by position; `columns` say of which types they are."""
        vectors = (Vector.of(table.column(n), column.type) for n, column in enumerate(columns))
        return cls(dict(zip(names, vectors, strict=True)), table.num_rows)

    def __getitem__(self, name: str) -> Vector:
        return self.columns[name]

    def take(self, places: pa.Array | Numbers) -> Rows:
        """The rows at these places, in this order; a NULL place gives a row of NULLs."""
        where = places if isinstance(places, pa.Array) else pa.array(places)
        taken = together([partial(vector.take, where) for vector in self.columns.values()], len(where))
        return Rows(dict(zip(self.columns, taken)), len(where))

    def filter(self, mask: pa.BooleanArray | Flags) -> Rows:
        """The rows for which `mask` is true."""
        flags = mask if isinstance(mask, pa.Array) else pa.array(mask)
        kept = together([partial(vector.filter, flags) for vector in self.columns.values()], self.count)
        return Rows(dict(zip(self.columns, kept)), pc.sum(flags).as_py() or 0)

    def slice(self, start: int, count: int) -> Rows:
        """So many rows from `start` on."""
        columns = {name: replace(v, values=v.values.slice(start, count)) for name, v in self.columns.items()}
        return Rows(columns, count)

    @classmethod
    def stacked(cls, parts: Sequence[Rows]) -> Rows:
        """The rows of one part after those of the other; all have the same columns."""
        if len(parts) == 1:
            return parts[0]
        count = sum(part.count for part in parts)
        joined = [partial(concat, [part[name] for part in parts]) for name in parts[0].columns]
        return cls(dict(zip(parts[0].columns, together(joined, count))), count)

    def select(self, names: Iterable[str]) -> Rows:
        return Rows({name: self.columns[name] for name in names}, self.count)

    def add(self, columns: Mapping[str, Vector]) -> Rows:
        return Rows({**self.columns, **columns}, self.count)


# ------------------------------------------------------------------------------------------------ types


def is_number(kind: t.DataType) -> bool:
    """Is it a whole number or a decimal?"""
    return type(kind) in INTEGERS or isinstance(kind, t.DecimalType)


def scale_of(kind: t.DataType) -> int:
    return kind.scale if isinstance(kind, t.DecimalType) else 0


def common_type(kinds: Iterable[t.DataType]) -> t.DataType:
    """The type in which Spark has values of several types (CASE, COALESCE, UNION). Raises UnsupportedError."""
    found: t.DataType = t.NullType()
    for kind in kinds:
        found = _wider(found, kind)
    return found


def _wider(one: t.DataType, other: t.DataType) -> t.DataType:
    if one == other or isinstance(other, t.NullType):
        return one
    if isinstance(one, t.NullType):
        return other
    if any(isinstance(each, t.DoubleType) for each in (one, other)) and (is_number(one) or is_number(other)):
        return t.DoubleType()
    if type(one) in INTEGERS and type(other) in INTEGERS:
        return one if INTEGERS[type(one)] >= INTEGERS[type(other)] else other
    if is_number(one) and is_number(other):
        scale = max(scale_of(one), scale_of(other))
        digits = max(whole_digits(one), whole_digits(other)) + scale
        if digits <= MOST_DIGITS:
            return t.DecimalType(digits, scale)
    raise UnsupportedError(f"{one.simpleString()} beside {other.simpleString()}")


def whole_digits(kind: t.DataType) -> int:
    """How many digits before the point a number's type has."""
    return kind.precision - kind.scale if isinstance(kind, t.DecimalType) else _DIGITS[type(kind)]


def retype(vector: Vector, kind: t.DataType) -> Vector:
    """The values in a type that has all of them: what `common_type` gave. Raises TooLargeError."""
    if vector.type == kind:
        return vector
    if isinstance(vector.type, t.NullType):
        return Vector(kind, pa.nulls(len(vector.values), _physical(kind)))
    if isinstance(kind, t.DoubleType):
        return Vector(kind, _doubles(vector))
    return Vector(kind, rescale(vector, scale_of(kind)))


def _physical(kind: t.DataType) -> pa.DataType:
    return pa.int64() if is_number(kind) else arrow_type(kind.simpleString())


def rescale(vector: Vector, scale: int) -> pa.Array:
    """A number's integers for another number of digits behind the point. Raises TooLargeError."""
    more = scale - scale_of(vector.type)
    if more < 0:
        raise UnsupportedError("rounding")
    if more == 0:
        return vector.values
    if more >= _WIDE:
        raise TooLargeError
    return checked(pc.multiply_checked, vector.values, pa.scalar(10**more, pa.int64()))


def _doubles(vector: Vector) -> pa.Array:
    """Numbers as DOUBLE, rounded as Java rounds. Raises UnsupportedError, TooLargeError."""
    scale = scale_of(vector.type)
    if not is_number(vector.type) or scale > _EXACT_POWERS:
        raise UnsupportedError(f"{vector.type.simpleString()} as double")
    values = vector.values.cast(pa.float64(), safe=False)
    if not scale:
        return values
    numbers = integers(vector.values)
    if len(numbers) and max(int(numbers.max()), -int(numbers.min())) >= EXACT:
        raise TooLargeError("a decimal of more digits than DOUBLE has")
    return pc.divide(values, pa.scalar(10.0**scale))


def checked(function: object, *arguments: object) -> pa.Array:
    """What a function of Arrow that notices overflow gives. Raises TooLargeError."""
    try:
        return function(*arguments)  # type: ignore[operator]
    except pa.ArrowInvalid as error:
        raise TooLargeError(str(error)) from error


# ------------------------------------------------------------------------------------------------ values


def constant(value: object, kind: t.DataType, count: int) -> Vector:
    """A column of one value."""
    return Vector(kind, pa.repeat(pa.scalar(value, _physical(kind)), count))


def integers(values: pa.Array, fill: int = 0) -> Numbers:
    """Integers as NumPy has them; `fill` stands for NULL."""
    filled = pc.fill_null(values, fill) if values.null_count else values
    return np.asarray(filled, dtype=np.int64)


def with_nulls(values: Numbers, nulls: Flags | None = None) -> pa.Array:
    """Integers as Arrow has them."""
    return pa.array(values, pa.int64(), mask=nulls if nulls is not None and nulls.any() else None)


def concat(parts: Sequence[Vector]) -> Vector:
    """Several columns one after the other, in their common type. Raises UnsupportedError, TooLargeError."""
    kind = common_type(part.type for part in parts)
    return Vector(kind, pa.concat_arrays([retype(part, kind).values for part in parts]))


def _unscaled(values: pa.Array) -> pa.Array:
    """The integers of decimals. Raises TooLargeError where one has more than 64 bits."""
    count = len(values)
    nulls = np.asarray(values.is_null()) if values.null_count else None
    halves = np.frombuffer(values.buffers()[1], dtype=np.int64)
    halves = halves[2 * values.offset : 2 * (values.offset + count)].reshape(count, 2)
    low, high = halves[:, 0], halves[:, 1]
    wide = high != low >> 63
    if (wide if nulls is None else wide & ~nulls).any():
        raise TooLargeError("a decimal of more than 64 bits")
    return with_nulls(np.ascontiguousarray(low), nulls)


def _decimals(values: pa.Array, kind: t.DecimalType) -> pa.Array:
    """Decimals of unscaled integers. Raises TooLargeError where one has more digits than the type."""
    numbers = integers(values)
    if kind.precision < _WIDE and len(numbers):
        bound = 10**kind.precision
        if int(numbers.max()) >= bound or int(numbers.min()) <= -bound:
            raise TooLargeError(kind.simpleString())
    halves = np.empty((len(numbers), 2), dtype=np.int64)
    halves[:, 0] = numbers
    halves[:, 1] = numbers >> 63
    valid = None
    if values.null_count:
        valid = pa.array(~np.asarray(values.is_null())).buffers()[1]
    arrow = pa.decimal128(kind.precision, kind.scale)
    return pa.Array.from_buffers(arrow, len(numbers), [valid, pa.py_buffer(halves)])
