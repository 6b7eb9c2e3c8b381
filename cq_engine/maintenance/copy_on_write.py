"""Copy-on-write: the change rows since a snapshot are merged into it by rewriting only the files that they touch.

A file is touched where its statistics allow one of the before-images of the changes: the values that a deleted or
updated row had in the clustering and identity columns. Other files stay as they are, and files of insert-only commits
are taken into the snapshot as they are. Small files are rewritten with the rest while together they are no larger
than it: so there are few of them, and no row is rewritten for this more than a logarithmic number of times.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from cq_engine.algebra.emit import quote
from cq_engine.catalog import tables
from cq_engine.catalog.attempts import Attempt
from cq_engine.catalog.model import (
    CHANGE_TYPE,
    COMMIT_VERSION,
    DELETE,
    UPDATE_POSTIMAGE,
    UPDATE_PREIMAGE,
    DataFile,
    Layout,
    VersionedTable,
)
from cq_engine.context.staging import row_groups
from cq_engine.core.columns import Column
from cq_engine.storage.file_look_ups import prune_files, restriction
from cq_engine.storage.reader import Reader
from cq_engine.storage.rows import conform, identity_columns, identity_keys

__all__ = ["Merge", "plan_merge", "stats_columns", "write_merge"]

_VERSION = "_cq_changed"


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
    changed: Mapping[Hashable, int]
    """Every identity that change rows name, with its last version."""
    keys: pa.Table
    """These identities as columns, with the version as `_cq_changed`."""
    restrict: Mapping[str, pa.Array]
    """Identity column → values of rows that left: what can be obsolete in a file."""

    @property
    def rows(self) -> int:
        """How many rows are written."""
        return sum(file.rows for file, _ in self.rewritten) + int(self.added.num_rows)


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
    keys = identity_keys(changes, identity)
    kinds = changes.column(CHANGE_TYPE)
    last = _last_places(keys, kinds.to_pylist())
    versions = changes.column(COMMIT_VERSION).to_pylist()
    # States have no before-images: what a row was before has the identity of its after-image.
    leaving = [DELETE, UPDATE_POSTIMAGE if table.kind == "state" else UPDATE_PREIMAGE]
    gone = changes.filter(pc.is_in(kinds, value_set=pa.array(leaving)))
    stored = [*((file, layout.base) for file in layout.snapshot), *plain]
    rewritten = _files_with(table, stored, gone)
    newest = changes.take(pa.array(last.values(), pa.int64()))
    added = conform(newest.filter(pc.not_equal(newest.column(CHANGE_TYPE), DELETE)), table.physical_columns)
    rewritten += _small(stored, rewritten, added.num_rows, limits.snapshot_file_rows // 2)
    again = {file.path for file, _ in rewritten}
    names = [c.name for c in identity]
    return Merge(
        table,
        layout.base,
        at,
        tuple(file for file, _ in plain if file.path not in again),
        tuple(rewritten),
        tuple(file.path for file in layout.snapshot if file.path in again),
        added,
        {key: versions[place] for key, place in last.items()},
        newest.select(names).append_column(_VERSION, newest.column(COMMIT_VERSION)),
        restriction(gone, identity),
    )


def _last_places(keys: Sequence[Hashable], kinds: Sequence[str]) -> dict[Hashable, int]:
    """By identity, the place of its last change row that is no before-image of an update; rows in version order."""
    found: dict[Hashable, int] = {}
    for place, (key, kind) in enumerate(zip(keys, kinds)):
        if kind != UPDATE_PREIMAGE:
            found[key] = place
    return found


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


def write_merge(reader: Reader, merge: Merge, attempt: Attempt) -> list[DataFile] | None:
    """Writes the new files of the merge; None where it reads the files of too many commits for one statement."""
    if not merge.rewritten and merge.added.num_rows == 0:
        return []
    directory = attempt.directory(merge.table, "snapshot") + f"/v{merge.at}"
    if merge.rows <= reader.limits.merge_rows:
        return _write_arrow(reader, merge, directory)
    if len({version for _, version in merge.rewritten}) > reader.limits.merge_versions:
        return None
    image = _image(reader, merge)
    keys = [quote(name) for name in (merge.table.cluster_by or merge.table.identity)]
    count = math.ceil(merge.rows / reader.limits.snapshot_file_rows)
    sorted_image = image.repartitionByRange(count, *keys).sortWithinPartitions(*keys)
    sorted_image.write.options(**row_groups(reader.limits)).parquet(directory)
    return tables.data_files(directory, reader.catalog.warehouse, stats_columns(merge.table))


def _write_arrow(reader: Reader, merge: Merge, directory: str) -> list[DataFile]:
    table = merge.table
    parts = [_rows_without_changes(reader, merge, file, version) for file, version in merge.rewritten]
    rows = pa.concat_tables([*parts, merge.added])
    with suppress(pa.ArrowException):  # a column whose type Arrow does not sort
        rows = rows.sort_by([(name, "ascending") for name in (table.cluster_by or table.identity)])
    count = math.ceil(rows.num_rows / reader.limits.snapshot_file_rows)
    size = math.ceil(rows.num_rows / count) if count else 1
    return [
        tables.write_parquet(
            rows.slice(start, size),
            f"{directory}/part-{number:05d}.parquet",
            reader.catalog.warehouse,
            stats_columns(table),
            row_group=reader.limits.row_group_rows,
        )
        for number, start in enumerate(range(0, rows.num_rows, size))
    ]


def _rows_without_changes(reader: Reader, merge: Merge, file: DataFile, version: int) -> pa.Table:
    """The rows of a file that no change after `version` names."""
    columns = merge.table.physical_columns
    rows = conform(reader.read_files(merge.table, [file], columns), columns)
    places = _suspects(rows, merge.restrict)
    keys = identity_keys(rows.take(places), identity_columns(merge.table))
    obsolete = [p for p, key in zip(places.to_pylist(), keys) if merge.changed.get(key, -1) > version]
    if not obsolete:
        return rows
    alive = pc.invert(pc.is_in(pa.array(range(rows.num_rows), pa.int64()), value_set=pa.array(obsolete)))
    return rows.filter(alive)


def _suspects(rows: pa.Table, restrict: Mapping[str, pa.Array]) -> pa.Array:
    """The places of rows with one of the values in every column: few, as a rule, whose identities are then compared."""
    masks = [
        pc.is_in(rows.column(name), value_set=values.cast(rows.schema.field(name).type))
        for name, values in restrict.items()
    ]
    if not masks:
        return pa.array(range(rows.num_rows), pa.int64())
    found = pc.indices_nonzero(reduce(pc.and_, masks))
    return found.cast(pa.int64())


def _image(reader: Reader, merge: Merge) -> DataFrame:
    """The rows of the new files, computed by Spark."""
    identity = identity_columns(merge.table)
    names = {c.name: f"_cq_k{n}" for n, c in enumerate(identity)}
    keys = reader.frame(merge.keys, [*identity, Column(_VERSION, "bigint")])
    keys = keys.select(*(f.col(quote(c)).alias(k) for c, k in names.items()), _VERSION)
    on = [f.col(quote(c)).eqNullSafe(f.col(k)) for c, k in names.items()]
    parts = [
        reader.files(files, merge.table.physical_columns).join(
            f.broadcast(keys.where(f.col(_VERSION) > version)), on, "left_anti"
        )
        for version, files in _by_version(merge)
    ]
    return reduce(DataFrame.unionAll, [*parts, reader.frame(merge.added, merge.table.physical_columns)])


def _by_version(merge: Merge) -> Iterator[tuple[int, list[DataFile]]]:
    for version in sorted({version for _, version in merge.rewritten}):
        yield version, [file for file, at in merge.rewritten if at == version]
