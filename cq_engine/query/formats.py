"""Results for programs: CSV, JSON and JSON lines.

Values stand in JSON as in Spark's `to_json`: decimals are numbers with all their digits, dates and timestamps ISO 8601
(a TIMESTAMP in UTC with a Z), structs and maps objects. NaN and the infinities are strings, binary is hexadecimal. CSV
has the same words; NULL is an empty field there, and an empty text is a quoted one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from cq_engine.core.values import is_variant
from cq_engine.query.rendering import render_float, render_timestamp, values_of

__all__ = ["WRITERS", "render_csv", "render_json", "render_jsonl"]


def render_csv(table: pa.Table, *, header: bool = True) -> str:
    """A header, unless there was one, and the rows, separated by commas; texts are quoted where they must be."""
    columns = [
        [_field(value, field.type) for value in values_of(column)]
        for field, column in zip(table.schema, table.columns)
    ]
    names = [",".join(_quote(name) for name in table.column_names)] if header else []
    return "\n".join([*names, *map(",".join, zip(*columns))])


def render_jsonl(table: pa.Table) -> str:
    """One JSON object per row and line."""
    return "\n".join(_objects(table))


def render_json(table: pa.Table) -> str:
    """One JSON array with an object per row."""
    rows = _objects(table)
    return "[\n" + ",\n".join(rows) + "\n]" if rows else "[]"


def _objects(table: pa.Table) -> list[str]:
    columns = [
        [f"{_text(name)}: {_json(value, field.type)}" for value in values_of(column)]
        for name, field, column in zip(table.column_names, table.schema, table.columns)
    ]
    return ["{" + ", ".join(row) + "}" for row in zip(*columns)]


def _field(value: Any, kind: pa.DataType) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return _quote(value)
    text = _json(value, kind)
    return _quote(str(json.loads(text)) if text.startswith('"') else text)


def _quote(text: str) -> str:
    plain = text and not any(mark in text for mark in ',"\r\n') and text == text.strip()
    return text if plain else '"' + text.replace('"', '""') + '"'


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _json(value: Any, kind: pa.DataType) -> str:
    """A value of an Arrow column as JSON; `kind` tells an empty map from an empty array."""
    if value is None:
        return "null"
    if is_variant(kind):
        return json.dumps(value, ensure_ascii=False, default=str)
    if pa.types.is_map(kind):
        return _object([(_key(key, kind.key_type), _json(item, kind.item_type)) for key, item in value])
    if pa.types.is_struct(kind):
        return _object([(each.name, _json(value[each.name], each.type)) for each in kind])
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_json(item, kind.value_type) for item in value)}]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, (bool, int)):
        return json.dumps(value)
    if isinstance(value, float):
        return str(value) if math.isfinite(value) else _text(render_float(value))
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, datetime):
        return _text(render_timestamp(value, "T"))
    return _text(value.hex() if isinstance(value, (bytes, bytearray)) else str(value))


def _key(value: Any, kind: pa.DataType) -> str:
    """A map's key as the name of a member."""
    if isinstance(value, str):
        return value
    text = _json(value, kind)
    return str(json.loads(text)) if text.startswith('"') else text


def _object(members: Sequence[tuple[str, str]]) -> str:
    return "{" + ", ".join(f"{_text(name)}: {value}" for name, value in members) + "}"


WRITERS: dict[str, Callable[[pa.Table], str]] = {
    "csv": render_csv,
    "json": render_json,
    "jsonl": render_jsonl,
}
"""The formats that are not a person's table."""
