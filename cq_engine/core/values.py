"""Values of Arrow columns as Python values, and back where Arrow alone cannot: variants."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql import types as t

from cq_engine.core.types import contains

__all__ = [
    "Parts",
    "encode_values",
    "is_variant",
    "json_value",
    "nullable",
    "python_rows",
    "python_values",
    "variant",
    "with_variants",
]

Parts: TypeAlias = dict[str, bytes]
"""A variant in Arrow: its `value` and its `metadata`."""


def is_variant(kind: pa.DataType) -> bool:
    """True for the Arrow type of VARIANT, PySpark's or ours; a STRUCT of the user with the same fields lacks the mark."""
    if not pa.types.is_struct(kind) or [field.name for field in kind] != ["value", "metadata"]:
        return False
    return b"variant" in (kind.field(1).metadata or {})


def python_values(column: pa.ChunkedArray | pa.Array) -> list[Any]:
    """The values of a column as Python values; those of VARIANT are what their JSON is in Python (dict, list, ...).

    Days and times outside of Python's years 1 to 9999 are text.

    >>> python_values(pa.array([0, 4_000_000], pa.date32()))
    [datetime.date(1970, 1, 1), '12921-08-18']
    """
    try:
        values: list[Any] = column.to_pylist()
    except (OverflowError, ValueError):
        values = [_value_or_text(value) for value in column]
    if not _has_variant(column.type):
        return values
    return [
        _map(value, column.type, lambda parts: None if parts is None else variant(parts)) for value in values
    ]


def json_value(value: Any, kind: pa.DataType) -> Any:
    """A value as `python_values` has it as JSON has it: a map with strings for keys is an object, another one a list of
    pairs; decimals and times are text, bytes base 64, NaN and infinity text.

    >>> json_value([("k", float("nan"))], pa.map_(pa.string(), pa.float64()))
    {'k': 'nan'}
    """
    if value is None or is_variant(kind):
        return _json_scalar(value)
    if pa.types.is_map(kind):
        pairs = [(json_value(key, kind.key_type), json_value(item, kind.item_type)) for key, item in value]
        return dict(pairs) if pa.types.is_string(kind.key_type) else [list(pair) for pair in pairs]
    if pa.types.is_list(kind):
        return [json_value(item, kind.value_type) for item in value]
    if pa.types.is_struct(kind):
        return {field.name: json_value(value[field.name], field.type) for field in kind}
    return _json_scalar(value)


def _json_scalar(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _json_scalar(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_scalar(item) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def python_rows(rows: pa.Table) -> list[dict[str, Any]]:
    """The rows by column, with values as `python_values` has them."""
    columns = [python_values(column) for column in rows.columns]
    return [dict(zip(rows.column_names, values)) for values in zip(*columns)]


def _value_or_text(value: pa.Scalar) -> Any:
    if not value.is_valid:
        return None
    if isinstance(value, pa.MapScalar):
        return [tuple(map(_value_or_text, pair.values())) for pair in value.values]
    if isinstance(value, pa.ListScalar):
        return [_value_or_text(item) for item in value.values]
    if isinstance(value, pa.StructScalar):
        return {name: _value_or_text(item) for name, item in value.items()}
    try:
        return value.as_py()
    except (OverflowError, ValueError):
        return value.cast(pa.string()).as_py()


def with_variants(column: pa.ChunkedArray, change: Callable[[Parts | None], Parts | None]) -> pa.ChunkedArray:
    """The column with `change` applied to the parts of every variant in it, None standing for NULL."""
    kind = nullable(column.type)
    return pa.chunked_array([pa.array([_map(v, kind, change) for v in column.to_pylist()], kind)])


def nullable(kind: pa.DataType) -> pa.DataType:
    """`kind` with nullable parts of variants, as the engine stores them; PySpark says that they are not."""
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(nullable(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, kind.item_field.with_type(nullable(kind.item_type)))
    if pa.types.is_struct(kind):
        fields = [field.with_type(nullable(field.type)) for field in kind]
        return pa.struct([field.with_nullable(True) for field in fields] if is_variant(kind) else fields)
    return kind


def _has_variant(kind: pa.DataType) -> bool:
    return is_variant(kind) or any(_has_variant(kind.field(i).type) for i in range(kind.num_fields))


def _map(value: Any, kind: pa.DataType, change: Callable[[Parts | None], Any]) -> Any:
    if is_variant(kind):
        return change(value)
    if value is None:
        return None
    if pa.types.is_list(kind):
        return [_map(item, kind.value_type, change) for item in value]
    if pa.types.is_map(kind):
        return [(key, _map(item, kind.item_type, change)) for key, item in value]
    if pa.types.is_struct(kind):
        return {field.name: _map(value[field.name], field.type, change) for field in kind}
    return value


def variant(parts: Parts) -> Any:
    """The Python value of a variant, given its two binary parts."""
    return t.VariantVal(parts["value"], parts["metadata"]).toPython()


def encode_values(values: Sequence[Any], kind: t.DataType) -> list[Any]:
    """Python values of a column of type `kind` as Arrow takes them: variants become their two parts.

    A variant is given as PySpark's VariantVal, or as a value that JSON has. Raises TypeError for another one.
    """
    return [_encode(value, kind) for value in values] if contains(kind, t.VariantType) else list(values)


def _encode(value: Any, kind: t.DataType) -> Any:
    if value is None:
        return None
    if isinstance(kind, t.VariantType):
        parts = value if isinstance(value, t.VariantVal) else t.VariantVal.parseJson(json.dumps(value))
        return {"value": bytes(parts.value), "metadata": bytes(parts.metadata)}
    if isinstance(kind, t.ArrayType):
        return [_encode(item, kind.elementType) for item in value]
    if isinstance(kind, t.MapType):
        pairs = value.items() if isinstance(value, dict) else value
        return [(key, _encode(item, kind.valueType)) for key, item in pairs]
    if isinstance(kind, t.StructType):
        return {field.name: _encode(value.get(field.name), field.dataType) for field in kind.fields}
    return value
