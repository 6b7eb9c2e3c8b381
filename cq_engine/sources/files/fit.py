"""Columns as files have them, in the types of ours; and which rows do not fit."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cq_engine.core.arrays import one_array
from cq_engine.core.columns import Column
from cq_engine.core.types import arrow_type

__all__ = ["can_hold", "fit"]

_ZONED = r"\d:\d\d.*(Z|[+-]\d\d(:?\d\d)?)$"
"""A time of day that ends with its zone."""


def fit(
    rows: pa.Table, columns: Sequence[Column], required: Collection[str], zone: str = "UTC"
) -> tuple[pa.Table, dict[int, str]]:
    """The rows that fit, in the types of the columns, and why each of the others does not, by its place.

    `rows` has a column of any type for each of `columns`, in their order. `required` may not be NULL. Text without a time
    zone is a time of `zone`.
    """
    why: dict[int, str] = {}
    arrays = []
    for column, given in zip(columns, rows.columns):
        kind = arrow_type(column.type)
        whole = one_array(given)
        made, bad = _fitting(whole, kind, zone)
        for place in bad:
            why.setdefault(place, f"its {column.name} is {_shown(whole[place])}, which is no {column.type}")
        if column.name in required and made.null_count:
            for place in np.flatnonzero(np.asarray(pc.is_null(made))).tolist():
                why.setdefault(place, f"its {column.name} is NULL")
        arrays.append(made)
    schema = pa.schema([pa.field(c.name, arrow_type(c.type)) for c in columns])
    made = pa.Table.from_arrays(arrays, schema=schema)
    if why:
        good = np.ones(rows.num_rows, np.bool_)
        good[list(why)] = False
        made = made.filter(pa.array(good))
    return made, why


def can_hold(column: Column) -> bool:
    """Whether text can be a value of the column."""
    try:
        _cast(pa.array([], pa.string()), arrow_type(column.type), "UTC")
    except (pa.ArrowException, TypeError):
        return False
    return True


def _fitting(values: pa.Array, kind: pa.DataType, zone: str) -> tuple[pa.Array, list[int]]:
    """The values in the type, NULL where they do not fit, and the places of these."""
    try:
        return _cast(values, kind, zone), []
    except pa.ArrowNotImplementedError:
        return pa.nulls(len(values), kind), np.flatnonzero(np.asarray(pc.is_valid(values))).tolist()
    except (pa.ArrowException, ValueError, OverflowError):
        if len(values) == 1:
            return pa.nulls(1, kind), [0]
    half = len(values) // 2
    (left, mine), (right, theirs) = (
        _fitting(each, kind, zone) for each in (values.slice(0, half), values.slice(half))
    )
    return pa.concat_arrays([left, right]), [*mine, *(half + each for each in theirs)]


def _cast(values: pa.Array, kind: pa.DataType, zone: str) -> pa.Array:
    given = values.type
    if given.equals(kind):
        return values
    if pa.types.is_binary(given) and not pa.types.is_binary(kind):
        return _cast(values.cast(pa.string()), kind, zone)
    if pa.types.is_large_string(given) or pa.types.is_dictionary(given):
        return _cast(values.cast(pa.string()), kind, zone)
    if pa.types.is_string(given) and not (pa.types.is_string(kind) or pa.types.is_binary(kind)):
        values = pc.utf8_trim_whitespace(values)
        if pa.types.is_timestamp(kind) and kind.tz is not None:
            return _moments(values, kind, zone)
    if pa.types.is_decimal(kind) and pa.types.is_integer(given):
        values = values.cast(pa.string())
    truncated = pa.types.is_timestamp(given) and pa.types.is_timestamp(kind)  # nanoseconds
    return pc.cast(values, options=pc.CastOptions(kind, allow_time_truncate=truncated))


def _moments(values: pa.Array, kind: pa.DataType, zone: str) -> pa.Array:
    zoned = pc.match_substring_regex(values, _ZONED)
    nothing = pa.scalar(None, pa.string())
    plain = pc.if_else(zoned, nothing, values).cast(pa.timestamp(kind.unit))
    local = pc.assume_timezone(plain, zone, ambiguous="earliest", nonexistent="latest")
    return pc.coalesce(pc.if_else(zoned, values, nothing).cast(kind), local.cast(kind))


def _shown(value: pa.Scalar) -> str:
    found = value.as_py()
    return repr(found.decode("utf-8", "backslashreplace") if isinstance(found, bytes) else found)
