"""An Iceberg table as a source: where its metadata is, what a snapshot of it holds, and what its snapshots have appended."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from cq_engine.catalog.model import Capture, DeclaredSource
from cq_engine.core.errors import SourceError, SourceUnavailableError
from cq_engine.destinations.options import Option
from cq_engine.sources.methods.base import as_named
from cq_engine.sources.paths import as_declared, below, path_of, path_option

try:
    from pyiceberg.expressions import AlwaysTrue, BooleanExpression
    from pyiceberg.expressions.parser import parse
    from pyiceberg.io.pyarrow import ArrowScan, schema_to_pyarrow
    from pyiceberg.table import DataScan, IncrementalAppendScan, StaticTable, Table
    from pyiceberg.table.snapshots import Operation, Snapshot
except ImportError as missing:
    raise SourceUnavailableError(
        "sources of type iceberg need the package pyiceberg",
        detail=str(missing),
        hint="pip install 'cq-engine[iceberg]'",
    ) from missing

__all__ = ["OPTIONS", "appended", "appends_since", "columns_of", "condition_of", "image", "open_table"]

OPTIONS: Mapping[str, Option] = {
    "path": path_option(
        "write the directory of a table, or its newest metadata file, as in path = '/lake/shop/orders'"
    )
}
_VERSION = re.compile(r"^v?(\d+)")


def open_table(declared: DeclaredSource, relation: str | None) -> Table:
    """The table with its newest metadata. Raises SourceError, SourceUnavailableError: metadata that cannot be read may be
    just being written."""
    uri, shown = (below(each, relation) for each in (path_of(declared), dict(declared.options)["path"]))
    with _errors(declared, f"the Iceberg table {shown}", unavailable=True):
        return StaticTable.from_metadata(_metadata(declared, uri, shown))


def _metadata(declared: DeclaredSource, uri: str, shown: str) -> str:
    """The newest metadata file of a directory: the one that its version hint names, else that with the highest version.
    What is elsewhere has a version hint, or is named itself."""
    local = uri.removeprefix("file://").removeprefix("file:")
    if uri.endswith(".metadata.json") or "://" in local:
        return uri
    directory = Path(local).expanduser() / "metadata"
    if (directory / "version-hint.text").is_file():
        return str(directory.parent)
    try:
        found = [each for each in directory.iterdir() if each.name.endswith(".metadata.json")]
    except OSError:
        found = []
    if not found:
        raise SourceUnavailableError(
            f"source {declared.name} has no Iceberg table at {shown}",
            hint="the option path names the directory that has metadata/ in it, or one above it with TABLE 'name'",
        )
    return str(max(found, key=_age))


def _age(file: Path) -> tuple[int, int]:
    version = _VERSION.match(file.name)
    return (int(version[1]) if version else -1, file.stat().st_mtime_ns)


@contextmanager
def _errors(declared: DeclaredSource, what: str, *, unavailable: bool = False) -> Iterator[None]:
    """What reading fails with, as SourceError; as SourceUnavailableError, which is tried again, what the system or the
    network says, and where that is asked for everything. What variables stand for is not shown."""
    try:
        yield
    except SourceError:
        raise
    except Exception as error:  # noqa: BLE001 - pyiceberg raises what its readers and parsers raise
        said = str(error).strip() or type(error).__name__
        detail = as_declared(declared, said.splitlines()[0])
        kind = SourceUnavailableError if unavailable or isinstance(error, OSError) else SourceError
        raise kind(f"{what} cannot be read", detail=detail) from None


def columns_of(table: Table) -> tuple[str, ...]:
    """The names of its columns."""
    return tuple(field.name for field in table.schema().fields)


def image(declared: DeclaredSource, table: Table, capture: Capture) -> Iterator[pa.RecordBatch]:
    """All captured rows of the newest snapshot under the names of the capture's table; rows that were deleted are left
    out."""
    with _errors(declared, f"source {declared.name}"):
        names = tuple(each.name for each in capture.columns)
        yield from _batches(
            table, table.scan(row_filter=condition_of(capture), selected_fields=names), capture
        )


def _batches(
    table: Table, scan: DataScan | IncrementalAppendScan, capture: Capture
) -> Iterator[pa.RecordBatch]:
    """The rows of a scan, file by file: of several, pyiceberg would have all in memory at once."""
    schema = schema_to_pyarrow(scan.projection(), include_field_ids=False)
    reader = ArrowScan(table.metadata, table.io, scan.projection(), scan.row_filter)
    for task in scan.plan_files():
        for batch in reader.to_record_batches([task]):
            cast = pa.Table.from_batches([batch]).select(schema.names).cast(schema)
            for each in cast.to_batches():
                yield as_named(each, capture)


def appends_since(table: Table, after: int | None) -> list[Snapshot] | None:
    """The snapshots after the one with the id `after`, oldest first, where all of them have but appended rows; None where
    they have not, or where their line does not lead back to it."""
    found: list[Snapshot] = []
    known = {each.snapshot_id: each for each in table.snapshots()}
    at = table.current_snapshot()
    while at is not None and at.snapshot_id != after:
        if at.summary is None or at.summary.operation is not Operation.APPEND:
            return None
        found.append(at)
        if at.parent_snapshot_id is not None and at.parent_snapshot_id not in known:
            return found[::-1] if at.parent_snapshot_id == after else None
        at = None if at.parent_snapshot_id is None else known[at.parent_snapshot_id]
    if at is None and after is not None:
        return None
    return found[::-1]


def appended(
    declared: DeclaredSource, table: Table, capture: Capture, snapshot: Snapshot
) -> Iterator[pa.RecordBatch]:
    """The captured rows that a snapshot has appended."""
    with _errors(declared, f"source {declared.name}"):
        found = table.incremental_append_scan(
            from_snapshot_id_exclusive=snapshot.parent_snapshot_id,
            to_snapshot_id_inclusive=snapshot.snapshot_id,
            row_filter=condition_of(capture),
            selected_fields=tuple(each.name for each in capture.columns),
        )
        yield from _batches(table, found, capture)


def condition_of(capture: Capture) -> BooleanExpression:
    """The WHERE of a capture. Raises SourceError for what pyiceberg does not understand."""
    if capture.where is None:
        return AlwaysTrue()
    try:
        return parse(capture.where)
    except Exception:  # noqa: BLE001 - its grammar raises what its parts raise
        raise SourceError(
            f"WHERE of capture {capture.name} is no condition that pyiceberg understands",
            detail=capture.where,
            hint="write comparisons of columns with values, as in 'k >= 3 and k < 6'",
        ) from None
