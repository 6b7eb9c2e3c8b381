"""Debezium's envelopes: what one line says, and its values in the types of our columns.

Debezium's documentation, "Change event values" and "Data types" of its connectors: `op` is c (create), r (read by a
snapshot), u, d or t (truncate); values are as JSON has them, or as a schema beside them says (`io.debezium.time.*`,
`org.apache.kafka.connect.data.*`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cq_engine.core.columns import Column
from cq_engine.sources.json_values import Unreadable, converted

__all__ = ["Event", "read_line", "value_of"]

_UNAVAILABLE = "__debezium_unavailable_value"
"""What stands for a large value of PostgreSQL that an update has left alone."""


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
    """The event of a line; None for a tombstone and for what marks the ends of transactions. Raises Unreadable."""
    try:
        given = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"it is no JSON: {error}") from None
    try:
        return _event(given)
    except (AttributeError, KeyError, TypeError) as error:
        raise Unreadable(f"a part of it is not what an envelope has there: {error}") from None


def _event(given: Any) -> Event | None:
    if given is None:
        return None
    if not isinstance(given, dict):
        raise Unreadable("it is no object")
    payload: Any = given
    names: dict[str, tuple[str, int]] = {}
    if "payload" in given and "op" not in given:
        payload, names = given["payload"], _semantic_types(given.get("schema"))
    if payload is None or ("status" in payload and "op" not in payload):
        return None
    op = payload.get("op")
    if op not in ("c", "r", "u", "d", "t"):
        raise Unreadable(f"its op is {op!r}" if "op" in payload else "it has no op")
    before, after = payload.get("before"), payload.get("after")
    if op in ("c", "r", "u") and not isinstance(after, dict):
        raise Unreadable(f"it has op {op!r} and no row after it")
    if op == "d" and not isinstance(before, dict):
        raise Unreadable("it is a deletion and has no row before it")
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
    """The value that `row` has in `name`, as one of `column`. Raises Unreadable."""
    if name not in row:
        raise Unreadable(f"its row has no {name}")
    value = row[name]
    if value == _UNAVAILABLE:
        raise Unreadable(
            f"it does not say what {name} is: the source logs large values only where they change;"
            " ALTER TABLE ... REPLICA IDENTITY FULL at the source makes it log them"
        )
    return converted(value, name, column, *names.get(name, ("", 0)))
