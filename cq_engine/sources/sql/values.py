"""Values as the drivers of databases have them, in the types of the warehouse's table.

A value that its column cannot have is a SourceError that names it: nothing is rounded, cut off or left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import tzinfo
from typing import Any

import pyarrow as pa

from cq_engine.core.columns import Column
from cq_engine.core.errors import SourceError
from cq_engine.core.types import arrow_type, spark_type
from cq_engine.core.values import encode_values
from cq_engine.sources.sql import keys
from cq_engine.sources.sql.conversions import Misfit, rule_of
from cq_engine.sources.sql.model import CHECKSUM, DELETED, TIMESTAMP

__all__ = ["Place", "to_batch"]

_SHOWN = 200
_OWN = {
    DELETED: Column(DELETED, "boolean"),
    CHECKSUM: Column(CHECKSUM, "string"),
    TIMESTAMP: Column(TIMESTAMP, "string"),
}
_REFUSED = (pa.ArrowException, ValueError, TypeError, OverflowError, ArithmeticError)


@dataclass(frozen=True)
class Place:
    """Where rows come from, for errors, and the zone of their timestamps without one."""

    shown: str
    key: tuple[int, ...]
    """The places of the columns that identify a row."""
    zone: tzinfo


def to_batch(
    rows: Sequence[Sequence[Any]], names: Sequence[str], columns: Sequence[Column], place: Place
) -> pa.RecordBatch:
    """The rows, whose values are called `names`, in the types that `columns` have for the names.

    `_cq_deleted` is BOOLEAN, `_cq_checksum` a STRING, and `_cq_timestamp` the STRING that `keys.to_text` makes of one value.
    Raises SourceError with the table, column, key and value of what does not fit.
    """
    known = {**{column.name: column for column in columns}, **_OWN}
    by_place = list(zip(*rows)) if rows else [()] * len(names)
    arrays = []
    for name, values in zip(names, by_place):
        if name == TIMESTAMP:
            arrays.append(pa.array([keys.to_text([value]) for value in values], pa.string()))
            continue
        try:
            arrays.append(_array(values, known[name], place.zone))
        except _REFUSED:
            raise _misfit(rows, names, values, known[name], place) from None
    return pa.RecordBatch.from_arrays(
        arrays, schema=pa.schema([pa.field(name, array.type) for name, array in zip(names, arrays)])
    )


def _array(values: Sequence[Any], column: Column, zone: tzinfo) -> pa.Array:
    kind = spark_type(column.type)
    plain, convert = rule_of(kind, zone)
    if not set(map(type, values)) <= plain | {type(None)}:
        values = [None if value is None else convert(value) for value in values]
    return pa.array(encode_values(values, kind), arrow_type(column.type))


def _misfit(
    rows: Sequence[Sequence[Any]], names: Sequence[str], values: Sequence[Any], column: Column, place: Place
) -> SourceError:
    """The error for the first of the values that does not fit."""
    for row, value in zip(rows, values):
        try:
            _array([value], column, place.zone)
        except _REFUSED as error:
            key = ", ".join(f"{names[n]} = {_cut(row[n])}" for n in place.key)
            why = str(error) if isinstance(error, Misfit) and str(error) else ""
            return SourceError(
                f"column {column.name} of {place.shown} has {_cut(value)}, which is no {column.type.upper()}",
                detail="; ".join(part for part in (why, f"the row with {key}" if key else "") if part),
                hint="correct it at the source, declare the column otherwise, or leave such rows out by WHERE",
            )
    return SourceError(
        f"column {column.name} of {place.shown} has values that are together no {column.type.upper()}"
    )


def _cut(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
