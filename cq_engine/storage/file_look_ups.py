"""Look-ups in Parquet files: which may hold wanted values, and the rows that do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from cq_engine.catalog import tables
from cq_engine.catalog.model import DataFile
from cq_engine.core.arrays import distinct_values
from cq_engine.core.capabilities import Use, can
from cq_engine.core.columns import Column
from cq_engine.core.limits import Limits
from cq_engine.storage.indexed_columns import Choose, IndexedColumns
from cq_engine.storage.row_groups import RowGroups
from cq_engine.storage.rows import empty, open_dataset
from cq_engine.storage.sorted_columns import Restrict, is_wanted

if TYPE_CHECKING:
    import pyarrow.fs as pafs

__all__ = ["Choose", "FileLookUps", "Restrict", "filter_rows", "prune_files", "restriction", "value_count"]


class FileLookUps:
    """The look-ups of an engine: in copies of columns where a file has them, else in the row groups that may have the
    values. Thread-safe."""

    def __init__(self, limits: Limits, filesystem: pafs.FileSystem | None = None) -> None:
        self.indexed = IndexedColumns(limits, filesystem)
        self._candidates = limits.look_up_candidates
        self._filesystem = filesystem
        self._row_groups = RowGroups(limits.row_group_files)

    def rows(
        self,
        table: int,
        files: Sequence[tuple[str, int]],
        columns: Sequence[Column],
        restrict: Restrict,
        limit: int,
        choose: Choose | None = None,
    ) -> pa.Table | None:
        """The rows with wanted values in files (path, number of rows) of a table, and of these the chosen ones; None where they
        are more than `limit`.

        `columns` include those of `restrict`.
        """
        known = {c.name for c in columns if can(c.type, Use.EQUAL)}
        restrict = {name: distinct_values(values) for name, values in restrict.items() if name in known}
        parts, others = [], []
        for path, count in files:
            part = self.indexed.rows(path, columns, restrict, limit, choose)
            if part is None:
                others.append((path, count))
            else:
                parts.append(part)
        if others:
            part = self._decode(table, others, columns, restrict, limit, choose)
            if part is None:
                return None
            parts.append(part)
        rows = pa.concat_tables(parts) if parts else empty(columns)
        return None if rows.num_rows > limit else rows

    def _decode(
        self,
        table: int,
        files: Sequence[tuple[str, int]],
        columns: Sequence[Column],
        restrict: Restrict,
        limit: int,
        choose: Choose | None,
    ) -> pa.Table | None:
        """From Parquet; where the rows are more than `limit`, not all of them. None where too many are to choose from."""
        dataset = open_dataset([path for path, _ in files], columns, self._filesystem)
        dataset, shares = self._row_groups.prune(dataset, restrict)
        for (path, count), share in zip(files, shares):
            if share:
                self.indexed.note_decoded(path, table, math.ceil(share * count), count, columns, restrict)
        conditions = [_is_in(dataset.schema, name, values) for name, values in restrict.items()]
        condition = reduce(lambda x, y: x & y, conditions) if conditions else None
        scanner = dataset.scanner([c.name for c in columns], filter=condition)
        if choose is None:
            return scanner.head(limit + 1)
        parts, candidates = [], max(limit, self._candidates)
        for batch in scanner.to_batches():
            candidates -= batch.num_rows
            if candidates < 0:
                return None
            part = pa.Table.from_batches([batch])
            parts.append(part.filter(pa.array(choose(part))))
            limit -= parts[-1].num_rows
            if limit < 0:
                break
        return pa.concat_tables(parts) if parts else empty(columns)


def restriction(rows: pa.Table, columns: Sequence[Column]) -> dict[str, pa.Array]:
    """The values of `columns` in `rows`, for a read that is restricted to them; without columns whose equality Arrow
    does not know."""
    return {
        c.name: distinct_values(rows.column(c.name).combine_chunks())
        for c in columns
        if can(c.type, Use.EQUAL)
    }


def filter_rows(rows: pa.Table, restrict: Restrict) -> pa.Table:
    """The rows that have a wanted value in every column of `restrict`."""
    for name, values in restrict.items():
        rows = rows.filter(is_wanted(rows.column(name), values))
    return rows


def value_count(restrict: Restrict) -> int:
    """How many values are wanted of the column of which most are: what a look-up has to do."""
    return max(map(len, restrict.values()), default=0)


def prune_files(files: Sequence[DataFile], restrict: Restrict) -> list[DataFile]:
    """The files that may hold rows with a wanted value in every column, by their statistics."""
    kept = list(files)
    for name, values in restrict.items():
        if values.null_count == 0:
            kept = list(tables.prune(kept, name, values))
    return kept


def _is_in(schema: pa.Schema, name: str, values: pa.Array) -> pc.Expression:
    kind = schema.field(name).type
    column, wanted = pc.field(name), pc.unique(values).drop_null().cast(kind)
    if pa.types.is_duration(kind):
        # Spark writes them as plain INT64. Arrow would compare the bounds of a row group, numbers, with durations.
        column, wanted = column.cast(pa.int64()), wanted.cast(pa.int64())
    condition = column.isin(wanted)
    return condition | pc.field(name).is_null() if values.null_count else condition
