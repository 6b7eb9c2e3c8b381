"""Keys, timestamps and other values of a source as text, so that a position can be stored, and be asked with once more."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

__all__ = ["from_text", "to_text"]

_TYPES: tuple[tuple[str, type, Callable[[Any], str], Callable[[str], Any]], ...] = (
    ("datetime", datetime, lambda v: v.isoformat(), datetime.fromisoformat),
    ("date", date, lambda v: v.isoformat(), date.fromisoformat),
    ("time", time, lambda v: v.isoformat(), time.fromisoformat),
    ("decimal", Decimal, str, Decimal),
    ("uuid", UUID, str, UUID),
    ("bytes", bytes, lambda v: base64.b64encode(v).decode(), base64.b64decode),
    ("interval", timedelta, lambda v: str(v // timedelta(microseconds=1)), lambda v: timedelta(0, 0, int(v))),
    ("float", float, repr, float),
)

_written = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
"""`json.dumps` makes an encoder for each key."""


def to_text(values: Sequence[Any]) -> str:
    """Values as a source has given them as JSON text; `from_text` gives back the same values, of the same types.

    >>> to_text([1, "a", Decimal("1.50"), None])
    '[1,"a",{"decimal":"1.50"},null]'
    """
    return _written([_encoded(value) for value in values])


def from_text(text: str) -> tuple[Any, ...]:
    """The values of which `to_text` has made `text`."""
    return tuple(_decoded(value) for value in json.loads(text))


def _encoded(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, memoryview | bytearray):
        value = bytes(value)
    for name, kind, encode, _ in _TYPES:
        if isinstance(value, kind):
            return {name: encode(value)}
    raise TypeError(f"a position cannot have a value of type {type(value).__name__}")


def _decoded(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    ((name, text),) = value.items()
    return next(decode for known, _, _, decode in _TYPES if known == name)(text)
