"""Deltas in Avro's single-object encoding: two marker bytes, the schema's CRC-64-AVRO fingerprint, the record.

The schema follows from the columns of the result. Names that Avro has not are written with `_`; every value may be null.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import pyarrow as pa

from cq_engine.core.errors import DestinationError
from cq_engine.core.values import is_variant

__all__ = ["Row", "single_object"]

Schema = Any
_Convert = Callable[[Any], Any]
_MARKER = b"\xc3\x01"

_SIMPLE: tuple[tuple[Callable[[pa.DataType], bool], Schema], ...] = (
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_int64, "long"),
    (pa.types.is_integer, "int"),
    (pa.types.is_float32, "float"),
    (pa.types.is_float64, "double"),
    (pa.types.is_string, "string"),
    (pa.types.is_binary, "bytes"),
    (pa.types.is_date32, {"type": "int", "logicalType": "date"}),
    (pa.types.is_time64, {"type": "long", "logicalType": "time-micros"}),
    (pa.types.is_duration, "long"),
)


class Row:
    """The Avro record of rows with these columns, and how a row becomes one."""

    def __init__(self, columns: pa.Schema) -> None:
        self._names: set[str] = set()
        self.record, self._convert = self._struct("row", list(columns))

    def value(self, row: Sequence[Any] | None) -> Any:
        """A row as the record's value."""
        return None if row is None else self._convert(row)

    def _struct(self, name: str, fields: Sequence[pa.Field]) -> tuple[Schema, Callable[[Sequence[Any]], Any]]:
        unique = name
        while unique in self._names:
            unique += "_"
        self._names.add(unique)
        labels: list[str] = []
        for field in fields:
            label = re.sub(r"\W|^(?=\d)|^$", "_", field.name, flags=re.ASCII)
            while label in labels:
                label += "_"
            labels.append(label)
        parts = [self._type(field.type, f"{unique}_{label}") for field, label in zip(fields, labels)]
        record = {
            "type": "record",
            "name": unique,
            "fields": [
                {"name": label, "type": _or_null(kind), "default": None}
                for label, (kind, _) in zip(labels, parts)
            ],
        }

        def convert(values: Sequence[Any]) -> Any:
            return {label: change(value) for label, (_, change), value in zip(labels, parts, values)}

        return record, convert

    def _type(self, kind: pa.DataType, name: str) -> tuple[Schema, _Convert]:
        if is_variant(kind):  # its parts are not in Python any more; it is JSON
            return "string", _unless_null(lambda value: json.dumps(value, default=str))
        if pa.types.is_null(kind):
            return "null", lambda _: None
        if pa.types.is_decimal(kind):
            sizes = {"precision": kind.precision, "scale": kind.scale}
            return {"type": "bytes", "logicalType": "decimal", **sizes}, _same
        if pa.types.is_timestamp(kind):
            local = "" if kind.tz else "local-"
            return {"type": "long", "logicalType": f"{local}timestamp-micros"}, _same
        if pa.types.is_duration(kind):
            return "long", _unless_null(lambda value: value // timedelta(microseconds=1))
        if pa.types.is_list(kind):
            item, change = self._type(kind.value_type, name)
            return {"type": "array", "items": _or_null(item)}, _unless_null(
                lambda value: [change(each) for each in value]
            )
        if pa.types.is_map(kind):
            return self._map(kind, name)
        if pa.types.is_struct(kind):
            record, whole = self._struct(name, list(kind))
            names = [field.name for field in kind]
            return record, _unless_null(lambda value: whole([value[each] for each in names]))
        for matches, schema in _SIMPLE:
            if matches(kind):
                return schema, _same
        raise DestinationError(f"there is no Avro type for {kind}", hint="cast it, or use format = 'json'")

    def _map(self, kind: pa.DataType, name: str) -> tuple[Schema, _Convert]:
        """Avro's map where the keys are strings, else an array of records with `key` and `value`."""
        if pa.types.is_string(kind.key_type):
            item, change = self._type(kind.item_type, name)
            return {"type": "map", "values": _or_null(item)}, _unless_null(
                lambda value: {key: change(each) for key, each in value}
            )
        pair, both = self._struct(name, [pa.field("key", kind.key_type), pa.field("value", kind.item_type)])
        return {"type": "array", "items": pair}, _unless_null(lambda value: [both(each) for each in value])


def single_object(row: Schema) -> tuple[Callable[[Mapping[str, Any]], bytes], str]:
    """What encodes a delta with rows of this record, and the schema as JSON.

    Raises DestinationError where fastavro is not installed.
    """
    try:
        import fastavro
        from fastavro.schema import fingerprint, to_parsing_canonical_form
    except ModuleNotFoundError as error:
        raise DestinationError(
            "fastavro, which writes Avro, is not installed", hint="pip install 'cq-engine[avro]'"
        ) from error
    schema = {
        "type": "record", "name": "delta", "namespace": "cq",
        "fields": [
            {"name": "op", "type": "string"},
            {"name": "before", "type": _or_null(row)},
            {"name": "after", "type": ["null", row["name"]]},
            {"name": "query", "type": "string"},
            {"name": "commit_version", "type": "long"},
            {"name": "commit_time", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {"name": "sequence", "type": "long"},
        ],
    }  # fmt: skip
    parsed = fastavro.parse_schema(schema)
    head = _MARKER + bytes.fromhex(fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO"))

    def encode(delta: Mapping[str, Any]) -> bytes:
        out = io.BytesIO(head)
        out.seek(0, io.SEEK_END)
        fastavro.schemaless_writer(out, parsed, delta)
        return out.getvalue()

    return encode, json.dumps(schema, separators=(",", ":"))


def _same(value: Any) -> Any:
    return value


def _or_null(kind: Schema) -> Schema:
    return "null" if kind == "null" else ["null", kind]


def _unless_null(change: _Convert) -> _Convert:
    return lambda value: None if value is None else change(value)
