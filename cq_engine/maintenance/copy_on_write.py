"""Copy-on-write: the change rows since a snapshot are merged into it by rewriting only the files that they touch.

A file is touched where its statistics allow one of the before-images of the changes: the values that a deleted or
updated row had in the clustering and identity columns. Other files stay as they are, and files of insert-only commits
are taken into the snapshot as they are. Small files are rewritten with the rest while together they are no larger
than it: so there are few of them, and no row is rewritten for this more than a logarithmic number of times.

All of it is done in Arrow on the driver, but where many rows are to be rewritten (`Limits.merge_driver_rows`), in slices of the clustering order: whatever the size of the table, a merge takes the memory
of one slice, no task of Spark, and the interpreter only between calls that let others have it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from cq_engine.catalog import tables
from cq_engine.catalog.attempts import Attempt
from cq_engine.catalog.change_rows import (
    CHANGE_TYPE,
    COMMIT_VERSION,
    DELETE,
    UPDATE_POSTIMAGE,
    UPDATE_PREIMAGE,
)
from cq_engine.catalog.model import DataFile, Layout, VersionedTable
from cq_engine.core.arrays import group_starts, sort_places
from cq_engine.core.columns import Column
from cq_engine.storage.file_look_ups import prune_files, restriction
from cq_engine.storage.identities import Identities, Numbers
from cq_engine.storage.reader import Reader, join_identities
from cq_engine.storage.rows import conform, identity_columns
from cq_engine.storage.sorted_columns import is_wanted

__all__ = ["Merge", "merged_rows", "plan_merge", "stats_columns", "write_merge"]


@dataclass(frozen=True)
class Merge:
    """What is to be done for the snapshot at `at` of a table whose snapshot is at `base`."""

    table: VersionedTable
    base: int
    at: int
    kept: tuple[DataFile, ...]
    """Files of insert-only commits that become part of the snapshot as they are."""
    rewritten: tuple[tuple[DataFile, int], ...]
    """Files that are read and written anew, each with the version of its rows; `base` for files of the snapshot."""
    removed: tuple[str, ...]
    """Of these, the paths that leave the snapshot."""
    added: pa.Table
    """The newest after-images of changed rows, physical columns."""
    newest: pa.Table
    """Every identity that change rows name, with its last version: the identity's columns and `_commit_version`."""
    restrict: Mapping[str, pa.Array]
    """Identity column → values of rows that left: what can be obsolete in a file."""

    @property
    def rows(self) -> int:
        """How many rows are written."""
        return sum(file.rows for file, _ in self.rewritten) + int(self.added.num_rows)


class _Changed:
    """The identities of change rows, one row each, and the version of each."""

    def __init__(self, table: VersionedTable, newest: pa.Table) -> None:
        self._identities = Identities(newest, identity_columns(table))
        order = sort_places(self._identities.numbers)
        self._numbers = self._identities.numbers[order]
        self._versions = np.asarray(newest.column(COMMIT_VERSION), np.int64)[order]

    def versions(self, rows: pa.Table) -> Numbers:
        """When each row's identity was last changed; -1 where it was not."""
        if not len(self._numbers):
            return np.full(rows.num_rows, -1)
        wanted = self._identities.find(rows)
        places = np.minimum(np.searchsorted(self._numbers, wanted), len(self._numbers) - 1)
        return np.where(self._numbers[places] == wanted, self._versions[places], -1)


def stats_columns(table: VersionedTable) -> list[str]:
    """The columns whose bounds the catalog keeps of a snapshot file."""
    return list(dict.fromkeys([*table.cluster_by, *table.identity, *(c.name for c in table.columns[:32])]))


def plan_merge(reader: Reader, table: VersionedTable, layout: Layout, at: int) -> Merge | None:
    """How to bring the snapshot of `layout` to the version `at`; None where the driver cannot say: there are too many
    change rows, or the table has no identity. Call it again with another layout where StorageError says so."""
    limits = reader.limits
    sets = [s for s in layout.changes if s.low <= at]
    plain = [(file, s.low) for s in sets if s.insert_only for file in s.files]
    changes = reader.rows_of(
        table,
        [s for s in sets if not s.insert_only],
        layout.base,
        at,
        limits.merge_changes,
        limits.merge_files,
    )
    if changes is None or not table.identity:
        return None
    changes = changes.sort_by(COMMIT_VERSION) if changes.num_rows > 1 else changes
    identity = identity_columns(table)
    kinds = changes.column(CHANGE_TYPE)
    newest = changes.take(pa.array(_last_places(Identities(changes, identity).numbers, kinds)))
    # States have no before-images: what a row was before has the identity of its after-image.
    leaving = [DELETE, UPDATE_POSTIMAGE if table.kind == "state" else UPDATE_PREIMAGE]
    gone = changes.filter(pc.is_in(kinds, value_set=pa.array(leaving)))
    stored = [*((file, layout.base) for file in layout.snapshot), *plain]
    rewritten = _files_with(table, stored, gone)
    added = conform(newest.filter(pc.not_equal(newest.column(CHANGE_TYPE), DELETE)), table.physical_columns)
    rewritten += _small(stored, rewritten, added.num_rows, limits.snapshot_file_rows // 2)
    again = {file.path for file, _ in rewritten}
    return Merge(
        table,
        layout.base,
        at,
        tuple(file for file, _ in plain if file.path not in again),
        tuple(rewritten),
        tuple(file.path for file in layout.snapshot if file.path in again),
        added,
        newest.select([*(c.name for c in identity), COMMIT_VERSION]),
        restriction(gone, identity),
    )


def _last_places(numbers: Numbers, kinds: pa.ChunkedArray) -> Numbers:
    """By identity, the place of its last change row that is no before-image of an update; rows in version order."""
    places = np.flatnonzero(np.asarray(pc.not_equal(kinds, UPDATE_PREIMAGE)))
    order = places[sort_places(numbers[places])]
    ends = np.append(group_starts(numbers[order])[1:], True)[: len(order)]
    return np.sort(order[ends])


def _files_with(
    table: VersionedTable, stored: Sequence[tuple[DataFile, int]], gone: pa.Table
) -> list[tuple[DataFile, int]]:
    """The files that may hold rows whose before-images are `gone`."""
    if gone.num_rows == 0:
        return []
    by_name = {c.name: c for c in table.physical_columns}
    columns = [by_name[name] for name in dict.fromkeys([*table.cluster_by, *table.identity])]
    paths = {file.path for file in prune_files([file for file, _ in stored], restriction(gone, columns))}
    return [each for each in stored if each[0].path in paths]


def _small(
    stored: Sequence[tuple[DataFile, int]], rewritten: Sequence[tuple[DataFile, int]], added: int, most: int
) -> list[tuple[DataFile, int]]:
    """The small files, of fewer than `most` rows, that are rewritten with the others."""
    taken = {file.path for file, _ in rewritten}
    size = added + sum(file.rows for file, _ in rewritten)
    more = []
    for each in sorted(stored, key=lambda s: s[0].rows):
        if each[0].path in taken:
            continue
        if each[0].rows > size or each[0].rows >= most:
            break
        more.append(each)
        size += each[0].rows
    return more


# ------------------------------------------------------------------------------------------------ writing


def write_merge(reader: Reader, merge: Merge, attempt: Attempt) -> list[DataFile]:
    """Writes the new files of the merge, a slice after the other."""
    directory = attempt.directory(merge.table, "snapshot") + f"/v{merge.at}"
    changed = _Changed(merge.table, merge.newest)
    files: list[DataFile] = []
    for stored, added in _slices(merge, reader.limits.merge_rows):
        files += _write_slice(reader, merge, changed, stored, added, f"{directory}/part-{len(files):05d}")
    return files


def merged_rows(reader: Reader, merge: Merge) -> DataFrame:
    """The rows of the new files of the merge, for executors to write: those of the files without the ones that a later
    change names, and the new ones."""
    columns = merge.table.physical_columns
    by_version: dict[int, list[DataFile]] = {}
    for file, version in merge.rewritten:
        by_version.setdefault(version, []).append(file)
    identity = identity_columns(merge.table)
    newest = reader.frame(merge.newest, [*identity, Column(COMMIT_VERSION, "bigint")])
    parts = [reader.frame(merge.added, columns)]
    for version, files in by_version.items():
        later = newest.where(f.col(COMMIT_VERSION) > version)
        rows = reader.files(files, columns)
        parts.append(join_identities(rows, later, merge.table.identity, "left_anti"))
    return reduce(DataFrame.unionAll, parts)


def _slices(merge: Merge, most: int) -> list[tuple[list[tuple[DataFile, int]], pa.Table]]:
    """Files to be rewritten in the order of the clustering, of about `most` rows together, and the new rows that belong
    to them."""
    by = next(iter(merge.table.cluster_by or merge.table.identity))
    lows: dict[str, Any] = {file.path: (file.stats.get(by) or (None,))[0] for file, _ in merge.rewritten}
    slices = [[each for each in merge.rewritten if lows[each[0].path] is None]]
    known = (each for each in merge.rewritten if lows[each[0].path] is not None)
    for each in sorted(known, key=lambda each: lows[each[0].path]):
        if slices[-1] and sum(file.rows for file, _ in slices[-1]) + each[0].rows > most:
            slices.append([])
        slices[-1].append(each)
    values = merge.added.column(by)
    place = np.zeros(merge.added.num_rows, np.int64)
    with suppress(pa.ArrowException):  # a type that Arrow does not order: all of them go to the first
        for low in pa.array([lows[some[0][0].path] for some in slices[1:]]).cast(values.type):
            place += np.asarray(pc.greater_equal(values, low).fill_null(False))
    return [(some, merge.added.filter(pa.array(place == n))) for n, some in enumerate(slices)]


def _write_slice(
    reader: Reader,
    merge: Merge,
    changed: _Changed,
    stored: Sequence[tuple[DataFile, int]],
    added: pa.Table,
    prefix: str,
) -> list[DataFile]:
    table = merge.table
    parts = [_rows_without_changes(reader, merge, changed, file, version) for file, version in stored]
    rows = pa.concat_tables([*parts, added])
    with suppress(pa.ArrowException):  # a column whose type Arrow does not sort
        rows = rows.sort_by([(name, "ascending") for name in (table.cluster_by or table.identity)])
    count = math.ceil(rows.num_rows / reader.limits.snapshot_file_rows)
    size = math.ceil(rows.num_rows / count) if count else 1
    return [
        tables.write_parquet(
            rows.slice(start, size),
            f"{prefix}-{number:05d}.parquet",
            reader.catalog.store,
            stats_columns(table),
            row_group=reader.limits.row_group_rows,
        )
        for number, start in enumerate(range(0, rows.num_rows, size))
    ]


def _rows_without_changes(
    reader: Reader, merge: Merge, changed: _Changed, file: DataFile, version: int
) -> pa.Table:
    """The rows of a file that no change after `version` names."""
    columns = merge.table.physical_columns
    rows = conform(reader.read_files(merge.table, [file], columns, use_threads=False), columns)
    places = _suspects(rows, merge.restrict)
    obsolete = places[changed.versions(rows.take(pa.array(places))) > version]
    if not len(obsolete):
        return rows
    alive = np.ones(rows.num_rows, np.bool_)
    alive[obsolete] = False
    return rows.filter(pa.array(alive))


def _suspects(rows: pa.Table, restrict: Mapping[str, pa.Array]) -> Numbers:
    """The places of rows with one of the values in every column: few, as a rule, whose identities are then compared."""
    masks = [
        is_wanted(rows.column(name), values.cast(rows.schema.field(name).type))
        for name, values in restrict.items()
    ]
    if not masks:
        return np.arange(rows.num_rows)
    return np.flatnonzero(np.asarray(reduce(pc.and_, masks)))
