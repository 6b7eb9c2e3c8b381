"""Delta rows in pairs: one row per delta, with its marker, the new row and the old row, all in Arrow.

The *wide* layout that `pair` gives, and on which everything here is built:

| column | type | |
|---|---|---|
| `marker` | string | I, D or U |
| `version`, `sequence` | bigint | the delta's place in the log |
| `time` | timestamp | when the refresh ran |
| `new_0`, `new_1`, .. | the log's columns | the new row; NULL on D |
| `old_0`, `old_1`, .. | the log's columns | the old row; NULL on I |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cq_engine.catalog.model import (
    CHANGE_TYPE,
    COMMIT_VERSION,
    DELETE,
    INSERT,
    SEQUENCE,
    UPDATE_POSTIMAGE,
    UPDATE_PREIMAGE,
)
from cq_engine.core.columns import Column
from cq_engine.core.errors import StorageError

__all__ = ["CHANGE_TYPES", "MARKERS", "REFRESH_TIME", "new_column", "old_column", "pair", "select_markers"]

MARKERS = ("I", "D", "U")
CHANGE_TYPES = {"I": (INSERT,), "D": (DELETE,), "U": (UPDATE_PREIMAGE, UPDATE_POSTIMAGE)}
"""The change types of the rows that make up a delta of each marker."""
REFRESH_TIME = "_refresh_time"


def new_column(index: int) -> str:
    """The wide column of the new row's column `index`."""
    return f"new_{index}"


def old_column(index: int) -> str:
    """The wide column of the old row's column `index`."""
    return f"old_{index}"


def pair(changes: pa.Table, columns: Sequence[Column]) -> pa.Table:
    """The deltas of a log's change rows (in any order) in the wide layout, by version and sequence.

    Raises StorageError where an update lacks one of its two rows.
    """
    changes = _sort(changes)
    kinds = changes.column(CHANGE_TYPE)
    before, after, deleted = (_is(kinds, kind) for kind in (UPDATE_PREIMAGE, UPDATE_POSTIMAGE, DELETE))
    version, sequence = _numbers(changes, COMMIT_VERSION), _numbers(changes, SEQUENCE)
    _check_pairs(before, after, version, sequence)
    places = np.flatnonzero(~before)
    after, deleted = after[places], deleted[places]
    markers = np.where(deleted, MARKERS.index("D"), np.where(after, MARKERS.index("U"), MARKERS.index("I")))
    earlier = np.where(after, places - 1, places)
    wide = {
        "marker": pa.array(MARKERS, pa.string()).take(pa.array(markers)),
        "version": pa.array(version[places], pa.int64()),
        "sequence": pa.array(sequence[places], pa.int64()),
        "time": _taken(changes.column(REFRESH_TIME), places, np.zeros_like(deleted)),
    }
    for n, column in enumerate(columns):
        wide[new_column(n)] = _taken(changes.column(column.name), places, deleted)
    for n, column in enumerate(columns):
        wide[old_column(n)] = _taken(changes.column(column.name), earlier, ~(after | deleted))
    return pa.table(wide)


def select_markers(wide: pa.Table, markers: Sequence[str]) -> pa.Table:
    """The deltas with one of `markers`."""
    if set(markers) >= set(MARKERS):
        return wide
    return wide.filter(pc.is_in(wide.column("marker"), pa.array(sorted(markers), pa.string())))


def _sort(changes: pa.Table) -> pa.Table:
    """By version and sequence, a pre-image before its post-image."""
    version, sequence = _numbers(changes, COMMIT_VERSION), _numbers(changes, SEQUENCE)
    rank = ~_is(changes.column(CHANGE_TYPE), UPDATE_PREIMAGE)
    after = np.diff(rank.astype(np.int8)) >= 0  # compared from the last key to the first
    for key in (sequence, version):
        step = np.diff(key)
        after = (step > 0) | ((step == 0) & after)
    if not after.all():
        changes = changes.take(pa.array(np.lexsort((rank, sequence, version))))
    return changes.combine_chunks()


def _taken(
    column: pa.ChunkedArray, places: npt.NDArray[np.int64], missing: npt.NDArray[np.bool_]
) -> pa.ChunkedArray | pa.Array:
    """The values at `places`, NULL where one is `missing`; mostly all of them, or none, and nothing is copied."""
    if missing.all():
        return pa.nulls(len(places), column.type)
    if len(places) == len(column) and not missing.any() and np.array_equal(places, np.arange(len(places))):
        return column
    return column.take(pa.array(places, pa.int64(), mask=missing))


def _is(kinds: pa.ChunkedArray, kind: str) -> npt.NDArray[np.bool_]:
    return np.asarray(pc.equal(kinds, kind).to_numpy(), dtype=np.bool_)


def _numbers(changes: pa.Table, name: str) -> npt.NDArray[np.int64]:
    return np.asarray(changes.column(name).to_numpy(), dtype=np.int64)


def _check_pairs(before: Any, after: Any, version: Any, sequence: Any) -> None:
    one = (version[1:] == version[:-1]) & (sequence[1:] == sequence[:-1])
    matched = np.zeros(len(before), dtype=np.bool_)
    matched[:-1] = before[:-1] & after[1:] & one
    matched[1:] |= matched[:-1] & after[1:]
    odd = np.flatnonzero((before | after) & ~matched)
    if not len(odd):
        return
    place = int(odd[0])
    raise StorageError(
        f"delta {int(sequence[place])} of version {int(version[place])} lacks its pre-image or its post-image",
        detail="an update has two rows in the delta log, with one sequence number",
    )
