"""Delta rows in pairs: one row per delta, with its marker, the new row and the old row, all in Arrow.

The *wide* layout that `pair` gives, and on which everything here is built:

| column | type | |
|---|---|---|
| `marker` | string | I, D or U; of a query that is maintained from partial changes also P, S or K |
| `version`, `sequence` | bigint | the delta's place in the log |
| `time` | timestamp | when the refresh ran |
| `new_0`, `new_1`, .. | the log's columns | the new row; NULL on D and K |
| `old_0`, `old_1`, .. | the log's columns | the old row; NULL on I, P and S; on K nothing but the key |

P is a partial update (the old row is not known), S an upsert (whether there was an old row is not known), K a deletion by
key (what the old row was, or whether there was one, is not known).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cq_engine.catalog.change_rows import (
    CHANGE_TYPE,
    COMMIT_VERSION,
    DELETE,
    DELETES,
    INSERT,
    PARTIAL_DELETE,
    PARTIAL_UPDATE,
    SEQUENCE,
    UPDATE_PAIR,
    UPDATE_POSTIMAGE,
    UPDATE_PREIMAGE,
    UPSERT,
)
from cq_engine.core.columns import Column
from cq_engine.core.errors import StorageError

__all__ = [
    "CHANGE_TYPES",
    "GONE",
    "MARKERS",
    "MARKERS_FOR",
    "MARKER_OF",
    "REFRESH_TIME",
    "WITH_OLD",
    "new_column",
    "old_column",
    "pair",
    "select_markers",
]

MARKERS = ("I", "D", "U")
"""What a query can be asked for. A delta that may be of several kinds is given to those who want one of them."""
CHANGE_TYPES = {
    "I": (INSERT, UPSERT),
    "D": DELETES,
    "U": (*UPDATE_PAIR, PARTIAL_UPDATE, UPSERT),
}
"""The change types of the rows that make up the deltas of each."""
MARKER_OF = {
    INSERT: "I",
    DELETE: "D",
    UPDATE_PREIMAGE: "U",
    UPDATE_POSTIMAGE: "U",
    PARTIAL_UPDATE: "P",
    UPSERT: "S",
    PARTIAL_DELETE: "K",
}
MARKERS_FOR = {
    asked: tuple(dict.fromkeys(MARKER_OF[kind] for kind in kinds)) for asked, kinds in CHANGE_TYPES.items()
}
"""The markers of the deltas that each gives."""
GONE = MARKERS_FOR["D"]
"""The markers of deltas after which there is no row."""
WITH_OLD = ("D", "U")
"""The markers of deltas whose old row is known."""
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
    types = list(MARKER_OF)
    number = np.asarray(pc.index_in(kinds, pa.array(types)), np.int64)
    before, after = number == types.index(UPDATE_PREIMAGE), number == types.index(UPDATE_POSTIMAGE)
    version, sequence = _numbers(changes, COMMIT_VERSION), _numbers(changes, SEQUENCE)
    _check_pairs(before, after, version, sequence)
    places = np.flatnonzero(~before)
    after, number = after[places], number[places]
    deleted = np.isin(number, [n for n, kind in enumerate(types) if MARKER_OF[kind] in GONE])
    earlier = np.where(after, places - 1, places)
    wide = {
        "marker": pa.array(MARKER_OF.values(), pa.string()).take(pa.array(number)),
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
    wanted = sorted({each for marker in markers for each in MARKERS_FOR[marker]})
    return wide.filter(pc.is_in(wide.column("marker"), pa.array(wanted, pa.string())))


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
