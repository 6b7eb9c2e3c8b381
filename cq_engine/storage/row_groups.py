"""Look-ups by key in Parquet files that decode only the row groups which may hold a key.

Arrow compares a filter's ranges with the statistics of row groups, but not the values of an IN list. So the driver does:
the smallest and largest values of each row group stay in memory per file, because data files never change.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
from cachetools import LRUCache

from cq_engine.catalog.tables import least_and_most
from cq_engine.core.arrays import distinct

if TYPE_CHECKING:
    import pyarrow.dataset as ds
    import pyarrow.parquet as pq

__all__ = ["RowGroups", "Wanted", "in_order"]


Wanted = Mapping[str, "tuple[Sequence[Any], bool]"]
"""Column → wanted values in order, and whether NULL is wanted; of columns whose statistics say something."""


class _Bounds(NamedTuple):
    """A column's smallest and largest value by row group (None: not known), and whether there may be NULLs."""

    low: tuple[Any, ...]
    high: tuple[Any, ...]
    nulls: tuple[bool, ...]


class RowGroups:
    """The row groups of at most `most` files that were looked into. Thread-safe."""

    def __init__(self, most: int) -> None:
        self._files: LRUCache[str, tuple[ds.ParquetFileFragment, dict[str, _Bounds]]] = LRUCache(most)
        self._guard = threading.Lock()

    def prune(self, dataset: ds.Dataset, restrict: Mapping[str, pa.Array]) -> tuple[ds.Dataset, list[float]]:
        """The dataset of Parquet files without row groups that have no wanted value in some column, and the share of
        each file that is left."""
        import pyarrow.dataset as ds

        known = in_order(restrict)
        if not known:
            return dataset, [1.0] * len(dataset.files)
        kept, shares = [], []
        for fragment in dataset.get_fragments():
            complete, bounds = self._of(fragment)
            groups = _matching(complete, bounds, known)
            shares.append(len(groups) / max(1, complete.num_row_groups))
            if len(groups) == complete.num_row_groups:
                kept.append(complete)
            elif groups:
                kept.append(complete.subset(row_group_ids=list(groups)))
        return ds.FileSystemDataset(kept, dataset.schema, dataset.format, dataset.filesystem), shares

    def metadata(self, fragment: ds.ParquetFileFragment) -> pq.FileMetaData:
        """The footer of a file."""
        return self._of(fragment)[0].metadata

    def groups(self, fragment: ds.ParquetFileFragment, wanted: Wanted) -> Sequence[int]:
        """The row groups of a file that may have a wanted value in every column."""
        complete, bounds = self._of(fragment)
        return _matching(complete, bounds, wanted)

    def _of(self, fragment: ds.ParquetFileFragment) -> tuple[ds.ParquetFileFragment, Mapping[str, _Bounds]]:
        with self._guard:
            found = self._files.get(fragment.path)
        if found is not None:
            return found
        fragment.ensure_complete_metadata()
        read = fragment, _bounds(fragment)
        with self._guard:
            self._files[fragment.path] = read
        return read


def in_order(restrict: Mapping[str, pa.Array]) -> Wanted:
    """Wanted values as `RowGroups.groups` compares them: sorted once for all files."""
    wanted = {name: (_sorted_values(values), values.null_count > 0) for name, values in restrict.items()}
    return {name: (values, nulls) for name, (values, nulls) in wanted.items() if values is not None}


def _matching(
    fragment: ds.ParquetFileFragment, bounds: Mapping[str, _Bounds], known: Wanted
) -> Sequence[int]:
    groups: Sequence[int] = range(fragment.num_row_groups)
    for name, (values, nulls) in known.items():
        if name in bounds:
            groups = [g for g in groups if _may_hold(bounds[name], g, values, nulls)]
    return groups


def _bounds(fragment: ds.ParquetFileFragment) -> dict[str, _Bounds]:
    """By column, of those that have statistics."""
    metadata = fragment.metadata
    found = {}
    for place in range(metadata.num_columns):
        name = metadata.schema.column(place).path
        if "." in name:
            continue
        chunks = [metadata.row_group(g).column(place).statistics for g in range(metadata.num_row_groups)]
        ranges = [least_and_most(s) or (None, None) for s in chunks]
        if any(low is not None for low, _ in ranges):
            nulls = tuple(s is None or not s.has_null_count or s.null_count > 0 for s in chunks)
            found[name] = _Bounds(tuple(low for low, _ in ranges), tuple(high for _, high in ranges), nulls)
    return found


def _sorted_values(values: pa.Array) -> Sequence[Any] | None:
    """The values in order; None for types whose statistics may be in another order, or cut."""
    kind = values.type
    if not (pa.types.is_integer(kind) or pa.types.is_date(kind) or pa.types.is_string(kind)):
        return None
    if pa.types.is_integer(kind):
        return cast("Sequence[int]", distinct(np.asarray(values.drop_null())))
    try:
        return sorted(value for value in values.to_pylist() if value is not None)
    except OverflowError:
        return None


def _may_hold(bounds: _Bounds, group: int, values: Sequence[Any], nulls: bool) -> bool:
    low, high = bounds.low[group], bounds.high[group]
    if low is None or high is None or (nulls and bounds.nulls[group]):
        return True
    place = bisect_left(values, low)
    return place < len(values) and bool(values[place] <= high)
