"""The JSON text of deltas and rows, byte for byte that of `json_bytes(json_row(...))`: what the types decide is decided once.

With 100 000 rows, making dictionaries and encoding them takes most of the time that a delivery to a broker takes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import Any

import pyarrow as pa

from cq_engine.core.values import json_value
from cq_engine.destinations.envelope import OPS, Delta

__all__ = ["delta_text", "row_text"]

Text = Callable[[Any], str]
_Types = pa.types


def row_text(columns: Sequence[tuple[str, pa.DataType]], *, ascii_only: bool = False) -> Text:
    """What gives the text of a row, or `null` for None.

    >>> row_text([("id", pa.int32()), ("name", pa.string())])((1, "ü"))
    '{"id":1,"name":"ü"}'
    """
    quoted = encode_basestring_ascii if ascii_only else encode_basestring
    last = {name: place for place, (name, _) in enumerate(columns)}  # as in a dictionary
    parts = [
        (f"{quoted(name)}:", place, _value_text(columns[place][1], quoted)) for name, place in last.items()
    ]

    def text(row: Sequence[Any] | None) -> str:
        if row is None:
            return "null"
        return (
            "{" + ",".join([head + ("null" if row[n] is None else of(row[n])) for head, n, of in parts]) + "}"
        )

    return text


def delta_text(schema: pa.Schema, keys: Sequence[tuple[str, pa.DataType]] | None) -> Callable[[Delta], str]:
    """What gives the text of a delta's `op` (c, u or d), `key`, `before`, `after` and `sequence`, with no brackets around it.
    `keys` are the columns of the key; None of a multiset."""
    image, key = row_text(list(zip(schema.names, schema.types))), row_text(keys or ())

    def text(delta: Delta) -> str:
        rows = f'"key":{key(delta.key)},"before":{image(delta.old)},"after":{image(delta.new)}'
        return f'"op":"{OPS[delta.marker]}",{rows},"sequence":{delta.sequence}'

    return text


def _value_text(kind: pa.DataType, quoted: Text) -> Text:
    """What gives the text of a value of this type that is not None."""
    if _Types.is_integer(kind):
        return str
    if _Types.is_boolean(kind):
        return lambda value: "true" if value else "false"
    if _Types.is_string(kind):
        return quoted
    if _Types.is_decimal(kind):
        return lambda value: f'"{value}"'
    if _Types.is_floating(kind):
        return lambda value: repr(value) if math.isfinite(value) else f'"{value}"'
    encode = json.JSONEncoder(
        ensure_ascii=quoted is encode_basestring_ascii, allow_nan=False, separators=(",", ":")
    ).encode
    return lambda value: encode(json_value(value, kind))
