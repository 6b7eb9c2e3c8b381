"""Rows of a delta plan's leaves on the driver: the versions that a log and base rows amount to, and no more than wanted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from cq_engine.algebra.nodes import BEFORE, FOREVER
from cq_engine.catalog.model import VersionedTable
from cq_engine.core.arrays import repeated
from cq_engine.core.beside import Beside
from cq_engine.core.columns import ROW_FROM, ROW_TO, ROW_VERSION, ROW_WEIGHT, Column
from cq_engine.refresh.key_combinations import ALL_ROWS, KeyCombinations
from cq_engine.storage.file_look_ups import Restrict, filter_rows, value_count
from cq_engine.storage.identities import Identities
from cq_engine.storage.reader import Reader, relevant_changes
from cq_engine.storage.rows import identity_columns
from cq_engine.storage.uncompacted_log import UncompactedLog

__all__ = [
    "SourceRows",
    "image_rows",
    "narrow",
    "number_columns",
    "row_versions",
    "select_rows",
    "state_rows",
    "unite",
]


@dataclass(frozen=True)
class SourceRows:
    """The rows of a leaf, its columns by position as `c0`, `c1`, ..."""

    rows: pa.Table
    columns: tuple[Column, ...]


_FIELDS = {
    ROW_VERSION: Column(ROW_VERSION, "bigint"),
    ROW_WEIGHT: Column(ROW_WEIGHT, "int"),
    ROW_FROM: Column(ROW_FROM, "bigint"),
    ROW_TO: Column(ROW_TO, "bigint"),
}


def narrow(log: UncompactedLog, base: pa.Table, wanted: Restrict, most: int) -> UncompactedLog:
    """The change rows of (base, b] without what changed only before the interval and cannot be wanted; as it is where that is at
    most `most` rows, or little beside the interval's. What comes of it is right for rows with wanted values."""
    before, recent = log.parts
    if not wanted or before.num_rows <= most or before.num_rows < recent.num_rows // 4:
        return log
    kept = [relevant_changes(log.table, before, lambda: base, wanted, most), recent.table]
    return UncompactedLog.of(log.table, pa.concat_tables(kept), log.a, log.b, log.compressed)


def select_rows(
    rows: pa.Table | None, table: VersionedTable, sources: Sequence[str], *extra: str
) -> SourceRows | None:
    """The columns `sources` of a table's rows, and `extra`."""
    if rows is None:
        return None
    known = {c.name: c for c in table.physical_columns} | _FIELDS
    names = [*sources, *extra]
    return number_columns(rows.select(names), [known[name] for name in names])


def number_columns(rows: pa.Table, columns: Sequence[Column]) -> SourceRows:
    named = tuple(replace(c, name=f"c{n}") for n, c in enumerate(columns))
    return SourceRows(rows.rename_columns([c.name for c in named]), named)


def image_rows(
    log: UncompactedLog, base: Callable[[], pa.Table | None], wanted: Restrict, most: int
) -> pa.Table | None:
    """The wanted rows at the interval's begin, whose image goes on from `base`; at least the columns of the log's table. None without
    a base."""
    before, recent = log.parts
    narrowed = wanted and before.parts and before.num_rows >= recent.num_rows // 4
    changes = relevant_changes(log.table, before, base, wanted, most) if narrowed else before.table
    rows = base()
    if rows is None:
        return None
    if before.parts:
        rows = UncompactedLog.of(log.table, changes, log.a, log.a, compressed=False).image(rows)
    return filter_rows(rows, wanted)


def unite(log: UncompactedLog, images: Sequence[pa.Table], moving: Callable[[], pa.Table]) -> pa.Table:
    """The row versions that begin or end in the interval, as `moving` gives them of the log, and of the rows at its begin (`images`,
    which may have rows in common) those that it leaves as they are, each once."""
    versions = moving()
    names = [name for name in versions.column_names if name not in (ROW_FROM, ROW_TO)]
    resting = log.recent.untouched(pa.concat_tables([image.select(names) for image in images]))
    if len(images) > 1:
        resting = resting.take(pa.array(Identities(resting, identity_columns(log.table)).first_places()))
    return pa.concat_tables([_always(resting).select(versions.column_names), versions])


def _always(rows: pa.Table) -> pa.Table:
    """As versions that are valid before the interval and after it."""
    rows = rows.append_column(ROW_FROM, repeated(BEFORE, pa.int64(), rows.num_rows))
    return rows.append_column(ROW_TO, repeated(FOREVER, pa.int64(), rows.num_rows))


def row_versions(log: UncompactedLog, base: pa.Table, undo: bool) -> pa.Table:
    """The row versions of a table: those that its changes imply, and `base` where there is no change.

    What a changed row was before the interval comes from its before-image, or without `undo` from `base`.
    """
    rest = _always(log.untouched(base))
    changed = log.versions(undo)
    parts = [rest.select(changed.column_names), changed]
    if not undo:
        parts.append(log.before_images(base).select(changed.column_names))
    return pa.concat_tables(parts, promote_options="permissive")


def state_rows(
    reader: Reader,
    table: VersionedTable,
    version: int,
    restrict: Restrict,
    together: KeyCombinations = ALL_ROWS,
) -> pa.Table | None:
    """At least the wanted rows of a state, where the driver can have them. Its filters are on its identity, so that its changes can be
    narrowed, too."""
    small = reader.small_image(table, version)
    if small is not None:
        return filter_rows(small, restrict)
    if not restrict:
        return None
    layout = reader.catalog.layout(table.id, version)
    changes = reader.change_runs(table, layout.base, version, reader.limits.state_changes)
    if changes is None:
        return None

    def log() -> UncompactedLog:
        rows = changes.having(restrict)
        if together.choose is not None:
            rows = rows.filter(pa.array(together.choose(rows)))
        found = UncompactedLog.of(table, rows, version, version, compressed=False)
        found.versions()
        return found

    with Beside(log, min(changes.num_rows, value_count(restrict))) as later:
        # Not in the other thread: Ctrl-C ends the waiting for a store here.
        base = reader.base_arrow(table, layout, restrict, choose=together.choose)
        return None if base is None else later().image(base)
