"""What a delivery is made of: one delta, and the batch of deltas that a callback gets."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa

from cq_engine.catalog.model import ContinuousQuery, Cursor
from cq_engine.context.services import Services
from cq_engine.core.types import arrow_schema
from cq_engine.core.values import json_value, python_values
from cq_engine.destinations.layout import output_rows, shown_columns
from cq_engine.destinations.log import commit_times, read_pairs
from cq_engine.destinations.pairs import GONE, MARKERS, WITH_OLD, new_column, old_column

__all__ = [
    "OPS",
    "Delta",
    "DeltaBatch",
    "deltas_of",
    "json_bytes",
    "json_form",
    "json_row",
    "key_columns",
    "key_places",
    "key_rows",
    "read_deltas",
    "result_columns",
    "result_schema",
    "shown_values",
]

OPS = {"I": "c", "U": "u", "D": "d", "P": "u", "S": "r", "K": "d"}
"""What Debezium calls the markers. Its r is a row as it is, whether it was there before or not."""
Row = tuple[Any, ...]

_STEP = 10_000
"""Deltas that are turned into Python values at a time."""


@dataclass(frozen=True, slots=True)
class Delta:
    """One change of a query's result.

    `marker` is I, D or U; of a query that is maintained from partial changes also P, an update whose
    old row is not known, S, an upsert, or K, a deletion of which the key is known. These have no old row.

    `new` and `old` hold the result columns of the defining query (delta functions left out) in SELECT order: an I has
    no old row, a D no new one and in `old` the values that left. `key` holds the result key's values; it is None for
    a multiset and () for a result of at most one row. Timestamps are aware (UTC), TIMESTAMP_NTZ naive.
    """

    marker: str
    key: Row | None
    new: Row | None
    old: Row | None
    commit_version: int
    commit_time: datetime
    sequence: int


@dataclass(frozen=True, eq=False)
class DeltaBatch:
    """The deltas of one commit version, or a chunk of them; iterate it for `Delta`, or take the rows by `to_arrow`.

    `columns` names the values of `Delta.new` and `Delta.old`. `last` is False on every chunk of a large commit but
    the last one. With `batch = 'refresh'` they are those of all commits of a refresh; `commit_version` and `commit_time`
    are the last one's then.
    """

    query: str
    commit_version: int
    commit_time: datetime
    columns: tuple[str, ...]
    last: bool
    _definition: ContinuousQuery = field(repr=False)
    _wide: pa.Table = field(repr=False)
    _times: Mapping[int, datetime] = field(repr=False)

    @classmethod
    def of(
        cls,
        query: ContinuousQuery,
        wide: pa.Table,
        commit_time: datetime,
        last: bool,
        times: Mapping[int, datetime] | None = None,
    ) -> DeltaBatch:
        """A batch of deltas in the wide layout (destinations/pairs.py): at least one, all of one version, or with the
        `times` of all of theirs."""
        version = wide.column("version")[-1].as_py()
        known = {version: commit_time} if times is None else times
        return cls(query.name, version, commit_time, result_columns(query), last, query, wide, known)

    @property
    def sequence(self) -> int:
        """The sequence number of the last delta."""
        return self._wide.column("sequence")[-1].as_py()  # type: ignore[no-any-return]

    @property
    def idempotency_key(self) -> tuple[str, int, int]:
        """(query, commit version, sequence of the last delta): a batch that comes again has the same one."""
        return (self.query, self.commit_version, self.sequence)

    @property
    def query_id(self) -> int:
        """The number of the query, which no other one of the warehouse had or gets."""
        return self._definition.id

    @property
    def schema(self) -> pa.Schema:
        """The names and the Arrow types of the values of `Delta.new` and `Delta.old`."""
        return result_schema(self._definition)

    @property
    def key_columns(self) -> Sequence[tuple[str, pa.DataType]] | None:
        """The names and types of the values of `Delta.key`; None for a multiset."""
        return key_columns(self._definition)

    def __iter__(self) -> Iterator[Delta]:
        return deltas_of(self._definition, self._wide, self._times)

    def __len__(self) -> int:
        return int(self._wide.num_rows)

    def to_arrow(self) -> pa.Table:
        """One row per delta in the layout of the SELECT list, delta functions included; a D shows its old row."""
        return output_rows(self._definition, self._wide, self._times)


def read_deltas(
    services: Services,
    query: ContinuousQuery,
    after_version: int,
    to_version: int,
    all_markers: bool = False,
) -> Iterator[Delta]:
    """The delta log of (after_version, to_version] by version and sequence.

    Args:
        services: the engine's parts.
        query: the query whose log is read.
        after_version: the last version that is not wanted.
        to_version: the last version that is.
        all_markers: give every delta, not only those that the query selects.

    Raises:
        StorageError: `after_version` lies below what is kept.
    """
    markers = MARKERS if all_markers else query.markers
    start = Cursor(query.name, "", after_version)
    for wide in read_pairs(services, query, start, to_version, markers):
        versions = wide.column("version")
        times = commit_times(services, versions[0].as_py(), versions[-1].as_py())
        yield from deltas_of(query, wide, times)


def deltas_of(query: ContinuousQuery, wide: pa.Table, times: Mapping[int, datetime]) -> Iterator[Delta]:
    """Deltas in the wide layout as Python objects."""
    key = key_places(query)
    for start in range(0, wide.num_rows, _STEP):
        part = wide.slice(start, _STEP)
        heads = zip(*(part.column(name).to_pylist() for name in ("marker", "version", "sequence")))
        for (marker, version, sequence), new, old in zip(
            heads, _rows(part, query, new_column), _rows(part, query, old_column)
        ):
            values = None if key is None else shown_values(key, marker, new, old)
            yield Delta(
                marker,
                values,
                None if marker in GONE else new,
                old if marker in WITH_OLD else None,
                version,
                times[version],
                sequence,
            )


def shown_values(places: Sequence[int], marker: str, new: Row | None, old: Row | None) -> Row:
    """Of the row that a delta shows, a D or K the old one, the values at `places`."""
    row = (old if marker in GONE else new) or ()
    return tuple(row[n] for n in places)


def result_columns(query: ContinuousQuery) -> tuple[str, ...]:
    """The names of the result columns, without hidden expressions and delta functions."""
    return tuple(c.name for c in query.result.columns[: query.width])


def result_schema(query: ContinuousQuery) -> pa.Schema:
    """The result columns as an Arrow schema."""
    return arrow_schema(query.result.columns[: query.width])


Named = Sequence[tuple[str, pa.DataType]]


def key_columns(query: ContinuousQuery) -> Named | None:
    """The names and types of the result key's columns; None for a multiset."""
    places, types = key_places(query), result_schema(query).types
    return None if places is None else list(zip(query.key or (), (types[n] for n in places)))


def json_row(columns: Named, row: Row | None) -> dict[str, Any] | None:
    """A row by column, as values that JSON has."""
    return None if row is None else {name: json_value(v, kind) for (name, kind), v in zip(columns, row)}


def json_form(schema: pa.Schema, keys: Named | None) -> Callable[[Delta], dict[str, Any]]:
    """What gives of a delta `op` (c, u or d), `key`, `before`, `after` and `sequence`, rows by column, as values that JSON has.
    `keys` are the columns of the key."""
    columns = list(zip(schema.names, schema.types))
    return lambda delta: {
        "op": OPS[delta.marker], "key": json_row(keys or (), delta.key), "before": json_row(columns, delta.old),
        "after": json_row(columns, delta.new), "sequence": delta.sequence,
    }  # fmt: skip


def key_rows(query: ContinuousQuery, wide: pa.Table) -> pa.Table:
    """The values of the result key of deltas in the wide layout, of a multiset their rows; the columns have their places
    among the result's as names. Without columns where the result has at most one row."""
    places = key_places(query)
    places = tuple(range(query.width)) if places is None else places
    return pa.table(shown_columns(wide, places), names=[str(n) for n in places])


def json_bytes(content: Mapping[str, Any]) -> bytes:
    """What goes out, as JSON without spaces."""
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _rows(part: pa.Table, query: ContinuousQuery, name: Any) -> Iterator[Row]:
    if query.width == 0:
        return iter([()] * part.num_rows)
    return zip(*(python_values(part.column(name(n))) for n in range(query.width)))


def key_places(query: ContinuousQuery) -> tuple[int, ...] | None:
    """The places of the result key's columns among the result's; None for a multiset."""
    if query.key is None:
        return None
    places = {c.name.lower(): n for n, c in reversed(list(enumerate(query.result.columns)))}
    return tuple(places[name.lower()] for name in query.key)
