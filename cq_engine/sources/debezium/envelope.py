"""Debezium's envelopes: what one line says, and its values in the types of our columns.

Debezium's documentation, "Change event values" and "Data types" of its connectors: `op` is c (create), r (read by a
snapshot), u, d or t (truncate); values are as JSON has them, or as a schema beside them says (`io.debezium.time.*`,
`org.apache.kafka.connect.data.*`).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

from cq_engine.core.columns import Column

__all__ = ["Event", "NoEnvelope", "read_line", "value_of"]

_UNAVAILABLE = "__debezium_unavailable_value"
"""What stands for a large value of PostgreSQL that an update has left alone."""
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_UNITS = {
    "io.debezium.time.Timestamp": 1_000,
    "org.apache.kafka.connect.data.Timestamp": 1_000,
    "io.debezium.time.MicroTimestamp": 1,
    "io.debezium.time.NanoTimestamp": -1_000,
}
"""Microseconds per unit of an integer; below 0: units per microsecond."""


class NoEnvelope(ValueError):
    """A line that is none, or that does not say what it has to; the text says why."""


@dataclass(frozen=True)
class Event:
    """A change of one row. `op` is c, r, u, d or t; `names` are the semantic types of its fields, where it has a schema."""

    op: str
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None
    tables: frozenset[str]
    """The names by which its table may be called."""
    transaction: str | None
    milliseconds: int | None
    """When it was committed, since 1970."""
    names: Mapping[str, tuple[str, int]]


def read_line(line: bytes) -> Event | None:
    """The event of a line; None for a tombstone and for what marks the ends of transactions. Raises NoEnvelope."""
    try:
        given = json.loads(line)
    except ValueError as error:
        raise NoEnvelope(f"it is no JSON: {error}") from None
    if given is None:
        return None
    if not isinstance(given, dict):
        raise NoEnvelope("it is no object")
    payload: Any = given
    names: dict[str, tuple[str, int]] = {}
    if "payload" in given and "op" not in given:
        payload, names = given["payload"], _semantic_types(given.get("schema"))
    if payload is None or ("status" in payload and "op" not in payload):
        return None
    op = payload.get("op")
    if op not in ("c", "r", "u", "d", "t"):
        raise NoEnvelope(f"its op is {op!r}" if "op" in payload else "it has no op")
    before, after = payload.get("before"), payload.get("after")
    if op in ("c", "r", "u") and not isinstance(after, dict):
        raise NoEnvelope(f"it has op {op!r} and no row after it")
    if op == "d" and not isinstance(before, dict):
        raise NoEnvelope("it is a deletion and has no row before it")
    source = payload.get("source") or {}
    return Event(
        op, before, after, _tables(source), _transaction(payload, source),
        source.get("ts_ms") or payload.get("ts_ms"), names,
    )  # fmt: skip


def _tables(source: Mapping[str, Any]) -> frozenset[str]:
    table = source.get("table")
    if table is None:
        return frozenset()
    owners = [source[each] for each in ("schema", "db") if source.get(each)]
    found = {str(table), *(f"{owner}.{table}" for owner in owners), ".".join([*reversed(owners), str(table)])}
    return frozenset(name.lower() for name in found)


def _transaction(payload: Mapping[str, Any], source: Mapping[str, Any]) -> str | None:
    named = (payload.get("transaction") or {}).get("id")
    known = next((source[each] for each in ("txId", "gtid", "pos", "lsn") if source.get(each)), None)
    return str(named) if named is not None else None if known is None else f"{source.get('file', '')} {known}"


def _semantic_types(schema: Any) -> dict[str, tuple[str, int]]:
    """By field its semantic type, and of a decimal its scale."""
    found = {}
    for side in (schema or {}).get("fields", ()):
        for field in side.get("fields", ()) if side.get("field") in ("before", "after") else ():
            if field.get("name"):
                scale = int((field.get("parameters") or {}).get("scale", 0))
                found[field["field"]] = field["name"], scale
    return found


def value_of(row: Mapping[str, Any], name: str, column: Column, names: Mapping[str, tuple[str, int]]) -> Any:
    """The value that `row` has in `name`, as one of `column`. Raises NoEnvelope."""
    if name not in row:
        raise NoEnvelope(f"its row has no {name}")
    value = row[name]
    if value is None:
        return None
    if value == _UNAVAILABLE:
        raise NoEnvelope(
            f"it does not say what {name} is: the source logs large values only where they change;"
            " ALTER TABLE ... REPLICA IDENTITY FULL at the source makes it log them"
        )
    kind, (semantic, scale) = column.type.lower(), names.get(name, ("", 0))
    try:
        return _converted(value, kind, semantic, scale)
    except (ArithmeticError, KeyError, OverflowError, TypeError, ValueError):
        raise NoEnvelope(f"its {name} is {value!r}, which is no {column.type}") from None


def _converted(value: Any, kind: str, semantic: str, scale: int) -> Any:
    if kind.startswith("decimal"):
        return _decimal(value, semantic, scale)
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
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if kind in ("tinyint", "byte", "smallint", "short", "int", "integer", "bigint", "long"):
        if isinstance(value, float) or int(value) != value:
            raise ValueError
        return int(value)
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
