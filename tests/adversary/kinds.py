"""The types of columns, with the values that are apt to go wrong: as Python values, Arrow types and SQL literals."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

from tests.oracle.expressions import BIGINT, BOOLEAN, DATE, DECIMAL, DOUBLE, FLOAT, INT, STRING

__all__ = ["KEY_KINDS", "KINDS", "LONG", "PLAIN", "SPECIAL", "Kind", "canonical", "literal", "text_of"]

LONG = "LONG"
"""A BIGINT up to its limits. The grammar computes with BIGINT, which therefore has small values only."""


@dataclass(frozen=True)
class Kind:
    """A type: its values in Arrow, and how a value is written in SQL."""

    arrow: Any
    values: tuple[Any, ...]
    write: Callable[[Any], str]


def _float(kind: str) -> Callable[[float], str]:
    def write(value: float) -> str:
        if math.isnan(value) or math.isinf(value):
            return f"CAST('{'NaN' if math.isnan(value) else 'Infinity' if value > 0 else '-Infinity'}' AS {kind})"
        return f"CAST('{value!r}' AS {kind})"

    return write


def _cast(kind: str) -> Callable[[Any], str]:
    return lambda value: f"CAST('{value}' AS {kind})"


def _moment(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text)


_DAYS = ("2024-02-29", "2024-03-01", "0001-01-01", "9999-12-31", "1969-12-31", "1582-10-15")
_MOMENTS = (
    "2024-02-29 12:00:00.000001", "2024-02-29 00:00:00", "9999-12-31 23:59:59.999999", "0001-01-01 00:00:00",
    "1969-12-31 23:59:59.999999", "1970-01-01 00:00:00",
)  # fmt: skip
_DOUBLES = (0.25, -0.0, 0.0, math.nan, 0.1, 2.0, -1.5, math.inf, -math.inf, 5e-324)
_FLOATS = (3.25, 0.0, -0.0, math.nan, -1.5, 16777216.0, math.inf)

KINDS: dict[str, Kind] = {
    INT: Kind(pa.int32(), (1, 2, 0, 3, -2, 4, 5), str),
    BIGINT: Kind(pa.int64(), (1, 2, 0, -1, 3_000_000_000), _cast(BIGINT)),
    LONG: Kind(pa.int64(), (2**63 - 1, 1, 2**53 + 1, -(2**63), 2**53, 0, -1), _cast(BIGINT)),
    "SMALLINT": Kind(pa.int16(), (1, 2**15 - 1, 0, -(2**15), -1), _cast("SMALLINT")),
    "TINYINT": Kind(pa.int8(), (1, 127, 0, -128), _cast("TINYINT")),
    DOUBLE: Kind(pa.float64(), _DOUBLES, _float(DOUBLE)),
    FLOAT: Kind(pa.float32(), _FLOATS, _float(FLOAT)),
    DECIMAL: Kind(pa.decimal128(10, 2), tuple(map(Decimal, ("-1.25", "0.00", "0.10", "2.00", "99.99"))), _cast(DECIMAL)),
    "DECIMAL(38,0)": Kind(
        pa.decimal128(38, 0), tuple(map(Decimal, ("9" * 38, "-" + "9" * 38, "0", "1", "12345678901234567890"))),
        _cast("DECIMAL(38,0)"),
    ),
    "DECIMAL(38,18)": Kind(
        pa.decimal128(38, 18), tuple(map(Decimal, ("9" * 20 + "." + "9" * 18, "0." + "0" * 17 + "1", "-0.5", "0"))),
        _cast("DECIMAL(38,18)"),
    ),
    STRING: Kind(pa.string(), ("a", "b", "", "a ", "B", " a", "é", "1"), lambda v: f"'{v}'"),
    BOOLEAN: Kind(pa.bool_(), (True, False), lambda v: str(v).upper()),
    DATE: Kind(pa.date32(), tuple(map(dt.date.fromisoformat, _DAYS)), lambda v: f"DATE '{v}'"),
    "TIMESTAMP": Kind(pa.timestamp("us", "UTC"), tuple(map(_moment, _MOMENTS)), lambda v: f"TIMESTAMP '{v}'"),
    "TIMESTAMP_NTZ": Kind(pa.timestamp("us"), tuple(map(_moment, _MOMENTS)), lambda v: f"TIMESTAMP_NTZ '{v}'"),
    "BINARY": Kind(pa.binary(), (b"", b"\x00", b"a", b"a\x00", b"\xff"), lambda v: f"X'{v.hex()}'"),
}  # fmt: skip
PLAIN = (INT, INT, STRING, STRING, DECIMAL, DOUBLE, DATE, BIGINT, BOOLEAN, FLOAT)
SPECIAL = (LONG, "SMALLINT", "TINYINT", DOUBLE, FLOAT, "DECIMAL(38,0)", "DECIMAL(38,18)", DATE, "TIMESTAMP",
           "TIMESTAMP_NTZ", "BINARY", STRING)  # fmt: skip
KEY_KINDS = (INT, INT, INT, STRING, LONG, DATE, DOUBLE, "DECIMAL(38,0)", "TIMESTAMP", "BINARY", "SMALLINT")


def literal(kind: str, value: Any) -> str:
    return "NULL" if value is None else KINDS[kind].write(value)


def text_of(kind: str, value: Any) -> str:
    """A literal of its type, for NULL too."""
    return f"CAST(NULL AS {kind})" if value is None else literal(kind, value)


def canonical(value: Any) -> Any:
    """Equal for values that are one value as a key, and as a row's: NaN, −0.0."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return value
