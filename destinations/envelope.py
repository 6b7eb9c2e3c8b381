"""What a delivery is made of: one delta, and the batch of deltas that a callback gets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa

from cq_engine.catalog.model import ContinuousQuery, Cursor
from cq_engine.context.services import Services
from cq_engine.core.values import python_values
from cq_engine.destinations.layout import output_rows
from cq_engine.destinations.log import commit_times, read_pairs
from cq_engine.destinations.pairs import MARKERS, new_column, old_column

__all__ = ["Delta", "DeltaBatch", "deltas_of", "key_places", "read_deltas", "result_columns"]

Row = tuple[Any, ...]

_STEP = 10_000
"""Deltas that are turned into Python values at a time."""


@dataclass(frozen=True, slots=True)
class Delta:
    """One change of a query's result.

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
    the last one.
    """

    query: str
    commit_version: int
    commit_time: datetime
    columns: tuple[str, ...]
    last: bool
    _definition: ContinuousQuery = field(repr=False)
    _wide: pa.Table = field(repr=False)

    @classmethod
    def of(cls, query: ContinuousQuery, wide: pa.Table, commit_time: datetime, last: bool) -> DeltaBatch:
        """A batch of deltas in the wide layout (destinations/pairs.py): at least one, all of one version."""
        version = wide.column("version")[0].as_py()
        return cls(query.name, version, commit_time, result_columns(query), last, query, wide)

    @property
    def sequence(self) -> int:
        """The sequence number of the last delta."""
        return self._wide.column("sequence")[-1].as_py()  # type: ignore[no-any-return]

    @property
    def idempotency_key(self) -> tuple[str, int, int]:
        """(query, commit version, sequence of the last delta): a batch that comes again has the same one."""
        return (self.query, self.commit_version, self.sequence)

    def __iter__(self) -> Iterator[Delta]:
        return deltas_of(self._definition, self._wide, {self.commit_version: self.commit_time})

    def __len__(self) -> int:
        return int(self._wide.num_rows)

    def to_arrow(self) -> pa.Table:
        """One row per delta in the layout of the SELECT list, delta functions included; a D shows its old row."""
        return output_rows(self._definition, self._wide, {self.commit_version: self.commit_time})


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
            row = old if marker == "D" else new
            values = None if key is None else tuple(row[n] for n in key)
            yield Delta(
                marker,
                values,
                None if marker == "D" else new,
                None if marker == "I" else old,
                version,
                times[version],
                sequence,
            )


def result_columns(query: ContinuousQuery) -> tuple[str, ...]:
    """The names of the result columns, without hidden expressions and delta functions."""
    return tuple(c.name for c in query.result.columns[: query.width])


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
