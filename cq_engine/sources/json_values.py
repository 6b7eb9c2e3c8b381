"""Values of JSON in the types of our columns: as Debezium, topics and files of JSON lines have them."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa

from cq_engine.core.columns import Column
from cq_engine.core.types import arrow_type

__all__ = ["Unreadable", "converted", "object_of", "value_of"]

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_UNITS = {
    "io.debezium.time.Timestamp": 1_000,
    "org.apache.kafka.connect.data.Timestamp": 1_000,
    "io.debezium.time.MicroTimestamp": 1,
    "io.debezium.time.NanoTimestamp": -1_000,
}
"""Microseconds per unit of an integer; below 0: units per microsecond."""
_BITS = {
    "tinyint": 7, "byte": 7, "smallint": 15, "short": 15, "int": 31, "integer": 31, "bigint": 63, "long": 63,
}  # fmt: skip
"""Of whole numbers, beside the sign."""


class Unreadable(ValueError):
    """What a source has that is none of its rows, or that does not fit; the text says why."""


def object_of(text: bytes) -> dict[str, Any]:
    """The JSON object that is the text. Raises Unreadable."""
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"it is no JSON: {error}") from None
    if not isinstance(given, dict):
        raise Unreadable("it is no object")
    return given


def value_of(row: Mapping[str, Any], name: str, column: Column) -> Any:
    """The value that an object has in `name`, in whatever case, as one of `column`; None where it has none.

    Raises Unreadable.
    """
    value = row.get(name)
    if value is None and name not in row:
        value = {each.lower(): given for each, given in row.items()}.get(name.lower())
    return converted(value, name, column)


def converted(value: Any, name: str, column: Column, semantic: str = "", scale: int = 0) -> Any:
    """A value, of a semantic type of Kafka Connect or without one, as one of `column`. Raises Unreadable."""
    if value is None:
        return None
    try:
        return _converted(value, column.type, semantic, scale)
    except (ArithmeticError, KeyError, OverflowError, TypeError, ValueError, pa.ArrowException):
        raise Unreadable(f"its {name} is {value!r}, which is no {column.type}") from None


def _converted(value: Any, given: str, semantic: str, scale: int) -> Any:
    kind = given.lower()
    if kind.startswith("decimal"):
        return pa.scalar(_decimal(value, semantic, scale), arrow_type(given)).as_py()
    if kind == "date":
        return (
            date.fromisoformat(value[:10]) if isinstance(value, str) else date(1970, 1, 1) + timedelta(value)
        )
    if kind.startswith("timestamp"):
        moment = _moment(value, semantic)
        return moment.replace(tzinfo=None) if kind == "timestamp_ntz" else moment
    if kind == "binary":
        return base64.b64decode(value, validate=True)
    if kind == "boolean":
        return bool(int(value))
    if kind in ("double", "float", "real"):
        return float(value)
    if kind.startswith(("string", "varchar", "char")):
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if not text.isascii():
            text.encode()  # JSON may have halves of surrogate pairs
        return text
    if kind in _BITS:
        if (
            isinstance(value, float)
            or int(value) != value
            or not -(2 ** _BITS[kind]) <= value < 2 ** _BITS[kind]
        ):
            raise ValueError
        return int(value)
    if kind.startswith(("array<", "struct<", "map<")):
        nested = list(value.items()) if kind.startswith("map<") else value
        return pa.scalar(nested, arrow_type(given)).as_py()
    raise ValueError


def _decimal(value: Any, semantic: str, scale: int) -> Decimal:
    if isinstance(value, dict):  # io.debezium.data.VariableScaleDecimal
        return Decimal(_unscaled(value["value"])).scaleb(-int(value["scale"]))
    if semantic == "org.apache.kafka.connect.data.Decimal":
        return Decimal(_unscaled(value)).scaleb(-scale)
    found = Decimal(str(value))
    if not found.is_finite():
        raise ValueError
    return found


def _unscaled(text: str) -> int:
    return int.from_bytes(base64.b64decode(text, validate=True), "big", signed=True)


def _moment(value: Any, semantic: str) -> datetime:
    if isinstance(value, str):
        found = datetime.fromisoformat(value.replace("Z", "+00:00"))
        return found if found.tzinfo is not None else found.replace(tzinfo=timezone.utc)
    unit = _UNITS.get(semantic)
    if unit is None:  # no schema beside it: nobody counts milliseconds beyond the year 5000
        unit = 1_000 if abs(value) < 10**14 else 1 if abs(value) < 10**17 else -1_000
    micros = value * unit if unit > 0 else value // -unit
    return _EPOCH + timedelta(microseconds=micros)
