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
from cq_engine.sources.paths import path_of, path_option

try:
    from pyiceberg.expressions import AlwaysTrue, BooleanExpression
    from pyiceberg.expressions.parser import parse
    from pyiceberg.table import StaticTable, Table
    from pyiceberg.table.snapshots import Operation, Snapshot
except ImportError as missing:
    raise SourceUnavailableError(
        "sources of type iceberg need the package pyiceberg",
        detail=str(missing),
        hint="pip install 'cq-engine[iceberg]'",
    ) from missing

__all__ = ["OPTIONS", "appended", "appends_since", "columns_of", "image", "open_table"]

OPTIONS: Mapping[str, Option] = {
    "path": path_option(
        "write the directory of a table, or its newest metadata file, as in path = '/lake/shop/orders'"
    )
}
_VERSION = re.compile(r"^v?(\d+)")


def open_table(declared: DeclaredSource, relation: str | None) -> Table:
    """The table with its newest metadata. Raises SourceError, SourceUnavailableError."""
    path = path_of(declared)
    uri = path if relation is None else f"{path.rstrip('/')}/{relation}"
    with _errors(uri):
        return StaticTable.from_metadata(_metadata(declared, uri))


def _metadata(declared: DeclaredSource, uri: str) -> str:
    """The newest metadata file of a directory; what is elsewhere has a version hint, or is named itself."""
    if uri.endswith(".metadata.json") or re.match(r"^(?!file:)\w[\w+.-]*://", uri):
        return uri
    directory = Path(uri.removeprefix("file://")).expanduser() / "metadata"
    try:
        found = [each for each in directory.iterdir() if each.name.endswith(".metadata.json")]
    except OSError:
        found = []
    if not found:
        raise SourceUnavailableError(
            f"source {declared.name} has no Iceberg table at {uri}",
            hint="the option path names the directory that has metadata/ in it, or one above it with TABLE 'name'",
        )
    return str(max(found, key=_age))


def _age(file: Path) -> tuple[int, int]:
    version = _VERSION.match(file.name)
    return (int(version[1]) if version else -1, file.stat().st_mtime_ns)


@contextmanager
def _errors(uri: str) -> Iterator[None]:
    try:
        yield
    except SourceError:
        raise
    except (FileNotFoundError, PermissionError) as error:
        raise SourceUnavailableError(f"the Iceberg table {uri} cannot be read", detail=str(error)) from error
    except Exception as error:
        raise SourceError(
            f"the Iceberg table {uri} cannot be read", detail=str(error).strip() or type(error).__name__
        ) from error


def columns_of(table: Table) -> tuple[str, ...]:
    """The names of its columns."""
    return tuple(field.name for field in table.schema().fields)


def image(table: Table, capture: Capture, snapshot: int | None) -> Iterator[pa.RecordBatch]:
    """All captured rows of a snapshot under the names of the capture's table; rows that were deleted are left out.

    Raises SourceError for a WHERE that Iceberg does not understand.
    """
    if snapshot is None:
        return
    with _errors(table.location()):
        names = tuple(each.name for each in capture.columns)
        found = table.scan(row_filter=_filter(capture), selected_fields=names, snapshot_id=snapshot)
        for batch in found.to_arrow_batch_reader():
            yield _renamed(batch, capture)


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


def appended(table: Table, capture: Capture, snapshot: Snapshot) -> Iterator[pa.RecordBatch]:
    """The captured rows that a snapshot has appended."""
    with _errors(table.location()):
        found = table.incremental_append_scan(
            from_snapshot_id_exclusive=snapshot.parent_snapshot_id,
            to_snapshot_id_inclusive=snapshot.snapshot_id,
            row_filter=_filter(capture),
            selected_fields=tuple(each.name for each in capture.columns),
        )
        for batch in found.to_arrow_batch_reader():
            yield _renamed(batch, capture)


def _filter(capture: Capture) -> BooleanExpression:
    return AlwaysTrue() if capture.where is None else parse(capture.where)


def _renamed(batch: pa.RecordBatch, capture: Capture) -> pa.RecordBatch:
    picked = batch.select([each.name for each in capture.columns])
    return picked.rename_columns([each.target for each in capture.columns])
