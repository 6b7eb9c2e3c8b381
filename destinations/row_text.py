"""The JSON text of deltas and rows, byte for byte that of `json_bytes(json_row(...))`: what the types decide is decided once,
and columns are written before rows are put together.

With 100 000 rows, making dictionaries and encoding them takes most of the time that a delivery to a broker takes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import Any

import pyarrow as pa

from cq_engine.core.values import json_value
from cq_engine.destinations.envelope import OPS, Delta

__all__ = ["delta_texts", "row_texts", "steps"]

Text = Callable[[Any], str]
Texts = Callable[[Sequence[Any]], list[str]]
_Types = pa.types
_STEP = 500
"""Deltas that are Python objects at a time: with ten thousand, the garbage collector takes as long as all the rest."""


def steps(deltas: Iterable[Delta]) -> Iterator[list[Delta]]:
    """The deltas in lists of as many as are best written at a time."""
    left = iter(deltas)
    while step := list(islice(left, _STEP)):
        yield step


def row_texts(columns: Sequence[tuple[str, pa.DataType]], *, ascii_only: bool = False) -> Texts:
    """What gives the texts of rows, `null` for None.

    >>> row_texts([("id", pa.int32()), ("name", pa.string())])([(1, "ü"), None])
    ['{"id":1,"name":"ü"}', 'null']
    """
    quoted = encode_basestring_ascii if ascii_only else encode_basestring
    last = {name: place for place, (name, _) in enumerate(columns)}  # as in a dictionary
    parts = [(place, _column_texts(columns[place][1], quoted)) for place in last.values()]
    names = [quoted(name).replace("%", "%%") for name in last]
    form = "{" + ",".join(f"{name}:%s" for name in names) + "}"

    def texts(rows: Sequence[Sequence[Any] | None]) -> list[str]:
        present = [row for row in rows if row is not None]
        if not present or not parts:
            return ["null" if row is None else form for row in rows]
        values = list(zip(*present))
        made = map(form.__mod__, zip(*(of(values[n]) for n, of in parts)))
        return (
            list(made)
            if len(present) == len(rows)
            else ["null" if row is None else next(made) for row in rows]
        )

    return texts


def delta_texts(
    schema: pa.Schema, keys: Sequence[tuple[str, pa.DataType]] | None
) -> Callable[[Sequence[Delta]], list[str]]:
    """What gives the texts of deltas: `op` (c, u or d), `key`, `before`, `after` and `sequence`, with no brackets around them.
    `keys` are the columns of the key; None of a multiset."""
    image, key = row_texts(list(zip(schema.names, schema.types))), row_texts(keys or ())

    def texts(deltas: Sequence[Delta]) -> list[str]:
        before, after = image([delta.old for delta in deltas]), image([delta.new for delta in deltas])
        return [
            f'"op":"{OPS[delta.marker]}","key":{k},"before":{old},"after":{new},"sequence":{delta.sequence}'
            for delta, k, old, new in zip(deltas, key([delta.key for delta in deltas]), before, after)
        ]

    return texts


def _column_texts(kind: pa.DataType, quoted: Text) -> Texts:
    """What gives the texts of a column's values."""
    of = _value_text(kind, quoted)

    def texts(values: Sequence[Any]) -> list[str]:
        if None in values:
            return ["null" if value is None else of(value) for value in values]
        if _Types.is_floating(kind) and all(map(math.isfinite, values)):
            return list(map(repr, values))
        return list(map(of, values))

    return texts


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
