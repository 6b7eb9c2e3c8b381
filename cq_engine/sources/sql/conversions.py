"""One value of a driver as one of a type of Spark, exactly or not at all."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from functools import lru_cache
from typing import Any
from uuid import UUID

from pyspark.sql import types as t

__all__ = ["Misfit", "Rule", "parsed", "rule_of"]

Convert = Callable[[Any], Any]
Rule = tuple[frozenset[type], Convert]
"""The types of values that Arrow takes as they are, checking them itself; and what converts any other one."""

_WHOLE = re.compile(r"\s*[+-]?\d+\s*")
_TIME = r"(\d\d):(\d\d)(?::(\d\d)(?:\.(\d+))?)?"
_MOMENT = re.compile(rf"(\d{{4}})-(\d\d)-(\d\d)(?:[ T]{_TIME})?\s*(Z|UTC|[+-]\d\d(?::?\d\d)?)?")
_CLOCK = re.compile(_TIME)
_TRUE = ("1", "t", "true", "y", "yes", "on")
_FALSE = ("0", "f", "false", "n", "no", "off")
_FLOAT_MAX = 3.4028235677973366e38
"""From here on a number is infinite in four bytes."""


class Misfit(ValueError):
    """A type does not have the value; the text says why, where there is more to say."""


@lru_cache(maxsize=1024)
def rule_of(kind: t.DataType, zone: tzinfo) -> Rule:
    """How values of a driver become values of type `kind`; `zone` is that of timestamps without one."""
    if isinstance(kind, (t.ArrayType, t.MapType, t.StructType)):
        return frozenset(), _nested(kind, zone)
    if isinstance(kind, (t.TimestampType, t.TimestampNTZType)):
        instant = isinstance(kind, t.TimestampType)
        is_utc = zone.utcoffset(None) == timedelta(0) or str(zone) == "UTC"
        return (
            frozenset({datetime}) if is_utc else frozenset(),  # Arrow takes what has no zone for UTC
            lambda value: _timestamp(value, zone, instant=instant),
        )
    for of, plain, convert in _RULES:
        if isinstance(kind, of):
            return frozenset(plain), convert
    raise Misfit(f"values of type {kind.simpleString()} cannot be captured")


def _integer(value: Any) -> int:
    if isinstance(value, str):
        if not _WHOLE.fullmatch(value):
            raise Misfit
        return int(value)
    if not isinstance(value, int | float | Decimal) or not math.isfinite(value) or value != int(value):
        raise Misfit
    return int(value)


def _decimal(value: Any) -> Decimal:
    if isinstance(value, float):
        value = repr(value)
    if isinstance(value, str):
        value = Decimal(value.strip())
    if isinstance(value, int):
        value = Decimal(value)
    if not isinstance(value, Decimal) or not value.is_finite():
        raise Misfit
    return value


def _double(value: Any) -> float:
    if isinstance(value, str | Decimal | float):
        return float(value)
    if not isinstance(value, int) or int(float(value)) != value:
        raise Misfit
    return float(value)


def _float(value: Any) -> float:
    found = _double(value)
    if math.isfinite(found) and abs(found) >= _FLOAT_MAX:
        raise Misfit
    return found


def _boolean(value: Any) -> bool:
    if isinstance(value, bytes) and len(value) == 1:
        value = value[0]
    if isinstance(value, str):
        value = value.strip().lower()
        value = 1 if value in _TRUE else 0 if value in _FALSE else value
    if not isinstance(value, bool | int | float | Decimal) or value not in {0, 1}:
        raise Misfit
    return bool(value)


def _string(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode()
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, date | time):
        return value.isoformat(" ") if isinstance(value, datetime) else value.isoformat()
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, default=_string)
    if isinstance(value, timedelta):
        return _clock(value)
    if isinstance(value, str | int | float | UUID):
        return str(value)
    raise Misfit


def _clock(value: timedelta) -> str:
    """A TIME of MariaDB, which has up to 838 hours, of either sign."""
    seconds, micro = divmod(abs(value) // timedelta(microseconds=1), 1_000_000)
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return ("-" if value < timedelta(0) else "") + text + (f".{micro:06}" if micro else "")


def _binary(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, UUID):
        return value.bytes
    if not isinstance(value, bytes | bytearray | memoryview):
        raise Misfit
    return bytes(value)


def _date(value: Any) -> date:
    if isinstance(value, str):
        value = parsed(value)
    if isinstance(value, datetime):
        if value.time() != time() or value.tzinfo is not None:
            raise Misfit
        return value.date()
    if not isinstance(value, date):
        raise Misfit
    return value


def _time(value: Any) -> time:
    if isinstance(value, str):
        found = _CLOCK.fullmatch(value.strip())
        if found is None:
            raise Misfit
        return time(int(found[1]), int(found[2]), int(found[3] or 0), _micro(found[4]))
    if isinstance(value, timedelta) and timedelta(0) <= value < timedelta(days=1):
        return (datetime(1, 1, 1) + value).time()  # noqa: DTZ001 - the day is none
    if not isinstance(value, time) or value.tzinfo is not None:
        raise Misfit
    return value


def _timestamp(value: Any, zone: tzinfo, *, instant: bool) -> datetime:
    """An instant, or the time that a clock in `zone` shows. What has no zone is in `zone`; of an hour that comes twice it is
    the first."""
    if isinstance(value, str):
        value = parsed(value)
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)  # noqa: DTZ001 - the zone comes next
    if not isinstance(value, datetime):
        raise Misfit("a number may count seconds or milliseconds" if isinstance(value, int | float) else "")
    if instant:
        return (value if value.tzinfo else value.replace(tzinfo=zone)).astimezone(timezone.utc)
    return value.astimezone(zone).replace(tzinfo=None) if value.tzinfo else value


def parsed(text: str) -> datetime:
    """ISO 8601 as databases write it, with or without a time and a zone."""
    found = _MOMENT.fullmatch(text.strip())
    if found is None:
        raise Misfit
    year, month, day, hour, minute, second, fraction, offset = found.groups()
    made = datetime(  # noqa: DTZ001 - the zone comes next
        int(year), int(month), int(day), int(hour or 0), int(minute or 0), int(second or 0), _micro(fraction)
    )
    if offset is None:
        return made
    if offset in ("Z", "UTC"):
        return made.replace(tzinfo=timezone.utc)
    digits = offset[1:].replace(":", "")
    ahead = timedelta(hours=int(digits[:2]), minutes=int(digits[2:] or 0))
    return made.replace(tzinfo=timezone(-ahead if offset[0] == "-" else ahead))


def _micro(fraction: str | None) -> int:
    digits = (fraction or "0").rstrip("0")
    if len(digits) > 6:
        raise Misfit("it has more than six digits after the second")
    return int(digits.ljust(6, "0"))


def _variant(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


def _nested(kind: t.DataType, zone: tzinfo) -> Convert:
    """Arrays of PostgreSQL, and JSON text of any source."""

    def inner(of: t.DataType) -> Convert:
        convert = rule_of(of, zone)[1]
        return lambda value: None if value is None else convert(value)

    if isinstance(kind, t.ArrayType):
        element = inner(kind.elementType)
        return lambda value: [element(item) for item in _json(value, list)]
    if isinstance(kind, t.MapType):
        key, item = inner(kind.keyType), inner(kind.valueType)
        return lambda value: [(key(name), item(of)) for name, of in _json(value, dict).items()]
    assert isinstance(kind, t.StructType)
    fields = {field.name: inner(field.dataType) for field in kind.fields}

    def struct(value: Any) -> Mapping[str, Any]:
        found = _json(value, dict)
        if not set(found) <= set(fields):
            raise Misfit(
                f"it has fields that the type has not: {', '.join(sorted(set(found) - set(fields)))}"
            )
        return {name: convert(found.get(name)) for name, convert in fields.items()}

    return struct


def _json(value: Any, wanted: type) -> Any:
    found = json.loads(value, parse_float=Decimal) if isinstance(value, str | bytes) else value
    if not isinstance(found, wanted):
        raise Misfit
    return found


_RULES: tuple[tuple[type[t.DataType] | tuple[type[t.DataType], ...], tuple[type, ...], Convert], ...] = (
    (t.IntegralType, (int,), _integer),
    (t.DecimalType, (), _decimal),
    (t.DoubleType, (float,), _double),
    (t.FloatType, (), _float),
    (t.BooleanType, (bool,), _boolean),
    (t.StringType, (str,), _string),
    (t.BinaryType, (bytes,), _binary),
    (t.DateType, (date,), _date),
    (t.TimeType, (time,), _time),
    (t.VariantType, (), _variant),
    (t.NullType, (), lambda _: None),
)
