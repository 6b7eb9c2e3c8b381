"""Keys that staged rows have several times, found by the driver: a key of numbers is decoded, sorted and compared in less
time than Spark takes to plan for it, and no row is shuffled.

Files that executors have written are mostly in the order of the key, one after the other: then the driver reads them in parts, and needs
memory for no more. Otherwise it has the keys of all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from cq_engine.catalog.model import DataFile, VersionedTable
from cq_engine.core.arrays import distinct, is_in
from cq_engine.core.columns import Column
from cq_engine.core.types import arrow_type
from cq_engine.storage.identities import Numbers
from cq_engine.storage.reader import Reader
from cq_engine.storage.rows import empty, identity_columns

__all__ = ["repeated_keys"]

_MOST = 2**62
"""Numbers of keys that fit into 64 bits."""


def repeated_keys(
    reader: Reader, table: VersionedTable, files: Sequence[DataFile], shown: int
) -> pa.Table | None:
    """Up to `shown` of the keys that rows of plain files have several times; None where only Spark can say: the key is
    not of integers and dates, or the rows are too many."""
    columns = identity_columns(table)
    kinds = [arrow_type(c.type) for c in columns]
    known = all(pa.types.is_signed_integer(kind) or pa.types.is_date32(kind) for kind in kinds)
    if not known or sum(file.rows for file in files) > reader.limits.staged_keys:
        return None
    if _in_order(reader, table, files, columns):
        return empty(columns)
    rows = reader.read_files(table, files, columns)
    numbers = _numbers(rows)
    if numbers is None:
        return None
    if not np.all(numbers[:-1] < numbers[1:]):
        ordered = np.sort(numbers)
        twice = distinct(ordered[1:][ordered[1:] == ordered[:-1]])[:shown]
        if len(twice):
            found = rows.filter(pa.array(is_in(numbers, twice)))
            return found.group_by(found.column_names).aggregate([])
    return rows.slice(0, 0)


def _in_order(
    reader: Reader, table: VersionedTable, files: Sequence[DataFile], columns: Sequence[Column]
) -> bool:
    """Whether each key of the files, one after the other, is greater than the one before it, so that none stands twice."""
    if not files:
        return True
    last: list[int] = []  # which is less than every key
    for part in reader.read_in_parts(table, files, columns):
        rows = pa.Table.from_batches([part])
        numbers = _numbers(rows)
        if numbers is None or not np.all(numbers[:-1] < numbers[1:]):
            return False
        if rows.num_rows:
            first, after = (
                [_integers(column.slice(at, 1))[0].item() for column in rows.columns]
                for at in (0, rows.num_rows - 1)
            )
            if not last < first:
                return False
            last = after
    return True


def _integers(column: pa.ChunkedArray) -> Numbers:
    return np.asarray(column.cast(pa.int32()) if pa.types.is_date32(column.type) else column, np.int64)


def _numbers(rows: pa.Table) -> Numbers | None:
    """A number for every key; None where there are more of them than numbers, or a NULL."""
    found = np.zeros(rows.num_rows, np.int64)
    if not rows.num_rows:
        return found
    keys = 1
    for column in rows.columns:
        if column.null_count:
            return None
        values = _integers(column)
        low, high = int(values.min()), int(values.max())
        keys *= high - low + 1
        if keys > _MOST:
            return None
        found *= high - low + 1
        found += values - low
    return found
