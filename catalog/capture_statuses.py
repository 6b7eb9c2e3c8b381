"""The statuses of captures: what a write says of them, as rows of the database and as text of the journal.

A status is compared by how often it has been written (`CaptureStatus.ticks`): who has read another one writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from cq_engine.catalog import schema
from cq_engine.catalog.commits import from_micros, to_micros
from cq_engine.catalog.model import CaptureStatus
from cq_engine.catalog.rows import insert, swap
from cq_engine.catalog.schema import stale
from cq_engine.catalog.sources import find_capture
from cq_engine.catalog.view import View, WriteSet

__all__ = ["from_values", "read", "resolve", "to_values", "write"]

Statuses = Mapping[str, CaptureStatus]


def resolve(view: View, writes: WriteSet) -> None:
    """Gives new captures a status, and counts on those of others. Raises CatalogError where there is no such capture,
    ConflictError where one has another status than the writer says."""
    state = view.state if writes.state is None else writes.state
    put = writes.diff.put_captures if writes.diff is not None else ()
    for name, after in writes.captured_after.items():
        known = view.captures.get(name)
        if known is not None and known.ticks != after.ticks:
            raise stale(f"the status of capture {name}")
    for name, status in writes.captures.items():
        find_capture(state, name)
        known = view.captures.get(name)
        if known is not None:
            writes.captures[name] = replace(status, ticks=max(status.ticks, known.ticks + 1))
    for capture in put:
        if capture.name.lower() not in view.captures:
            writes.captures.setdefault(capture.name.lower(), CaptureStatus())


def write(connection: Connection, statuses: Statuses, known: Statuses) -> None:
    """Writes `statuses` where the database has what is `known`; else ConflictError."""
    for name, status in statuses.items():
        values = {**vars(status), "last": _micros(status.last)}
        if name in known:
            stands = {"capture": name, "ticks": known[name].ticks}
            swap(connection, schema.captures, stands, values, f"the status of capture {name}")
        else:
            insert(connection, schema.captures, [{"capture": name, **values}])


def read(connection: Connection) -> dict[str, CaptureStatus]:
    """All statuses, by lower-case name."""
    rows = connection.execute(sa.select(schema.captures)).mappings()
    return {row["capture"]: from_values([row[name] for name in _FIELDS]) for row in rows}


def to_values(status: CaptureStatus) -> list[object]:
    """A status as JSON values."""
    return [_micros(status.last) if name == "last" else getattr(status, name) for name in _FIELDS]


def from_values(values: Sequence[Any]) -> CaptureStatus:
    """The status that `to_values` has made them of."""
    found = dict(zip(_FIELDS, values))
    moment = found["last"]
    return CaptureStatus(**{**found, "last": None if moment is None else from_micros(moment)})


_FIELDS = tuple(CaptureStatus.__dataclass_fields__)


def _micros(moment: datetime | None) -> int | None:
    return None if moment is None else to_micros(moment)
