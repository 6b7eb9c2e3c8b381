"""What a Delta commit of ours consists of: schemas, add and remove actions, and copies of insert-only files.

delta-rs validates nothing of this: a missing file or a wrong schema would be committed. Paths are relative to the
Delta table, plain ASCII by construction (catalog/attempts.py).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import Schema
from deltalake.transaction import AddAction, RemoveAction

from cq_engine.catalog.change_rows import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION, INSERT
from cq_engine.catalog.flush import log_columns
from cq_engine.catalog.model import ChangeSet, DataFile, VersionedTable
from cq_engine.catalog.storage.base import Store
from cq_engine.catalog.store import Catalog
from cq_engine.catalog.tables import CODEC, batches, data_file, reading
from cq_engine.core import faults
from cq_engine.core.columns import Column
from cq_engine.core.disk import RESTORE, disk_error
from cq_engine.core.errors import AnalysisError, StorageError
from cq_engine.core.types import arrow_schema

__all__ = ["add_action", "complete", "copy_inserts", "delta_schema", "relative", "remove_action"]

_SKIPPING = frozenset({"tinyint", "smallint", "int", "bigint", "string", "date"})
"""Types whose statistics mean the same in a Delta log. Timestamps would have to be rounded to milliseconds."""


def delta_schema(columns: Iterable[Column]) -> Schema | None:
    """The columns as a Delta schema, all nullable; None where Delta Lake has no such type (day-time
    intervals, TIME, VOID)."""
    try:
        arrow = arrow_schema(columns)
    except AnalysisError:
        return None
    return None if any(_foreign(field.type) for field in arrow) else Schema.from_arrow(arrow)


def _foreign(kind: pa.DataType) -> bool:
    if pa.types.is_duration(kind) or pa.types.is_time(kind) or pa.types.is_null(kind):
        return True
    return any(_foreign(kind.field(i).type) for i in range(kind.num_fields))


def relative(file: DataFile, root: str) -> str:
    """The path of a file below the Delta table at `root`; both are relative to the warehouse."""
    if not file.path.startswith(f"{root}/"):
        raise StorageError(
            f"{file.path} cannot be published", detail=f"it does not lie below the Delta table {root}"
        )
    return file.path.removeprefix(f"{root}/")


def add_action(
    store: Store, root: str, file: DataFile, columns: Iterable[Column], *, news: bool = True
) -> AddAction:
    """Adds `file`, whose rows are `news` or were there before. Raises StorageError where it is missing or has another size than the catalog says."""
    try:
        found = store.stat(file.path)
    except OSError as error:
        raise disk_error(f"publish {file.path}", error, store.location, hint=RESTORE) from error
    if found.size != file.bytes:
        raise StorageError(
            f"{file.path} cannot be published",
            detail=f"it has {found.size} bytes, the catalog says {file.bytes}",
        )
    stats = json.dumps(_stats(file, {c.name: c.type for c in columns}))
    return AddAction(relative(file, root), file.bytes, {}, found.modified, news, stats)


def remove_action(path: str, *, news: bool = True) -> RemoveAction:
    """Removes the file at `path`, relative to the Delta table; without `news` its rows stay in another one."""
    return RemoveAction(path, news, int(time.time() * 1000))


def _stats(file: DataFile, types: Mapping[str, str]) -> dict[str, object]:
    usable = {name: bounds for name, bounds in file.stats.items() if types.get(name) in _SKIPPING}
    return {
        "numRecords": file.rows,
        "minValues": {name: low for name, (low, _) in usable.items()},
        "maxValues": {name: high for name, (_, high) in usable.items()},
    }


def copy_inserts(catalog: Catalog, table: VersionedTable, changes: ChangeSet, root: str) -> list[DataFile]:
    """Copies of the files of an insert-only change set with the columns of the change log, in bounded memory.

    Their paths follow from the change set: a copy that a crash left behind is written over, and one that was
    committed to Delta is never written again.
    """
    columns, store = log_columns(table), catalog.store
    schema = arrow_schema(columns)
    extra = {
        CHANGE_TYPE: INSERT,
        COMMIT_VERSION: changes.low,
        COMMIT_TIMESTAMP: catalog.timestamps(changes.low, changes.low).get(changes.low),
    }
    stats = {*table.identity, *table.cluster_by, COMMIT_VERSION}
    copies = []
    for number, file in enumerate(changes.files):
        target = f"{root}/inserts-{changes.low}-{changes.id}/part-{number:05d}.parquet"
        with reading(f"copy {file.path} for the change log of {table.name}", store, [file]):
            faults.point("file.begin", store.file(target))
            with store.replacing(target) as sink, pq.ParquetWriter(sink, schema, compression=CODEC) as writer:
                for batch in batches(store, file.path, catalog.limits.publish_batch_rows):
                    writer.write_batch(complete(batch, schema, extra))
        copies.append(data_file(target, store, stats))
    return copies


def complete(batch: pa.RecordBatch, schema: pa.Schema, extra: Mapping[str, object]) -> pa.RecordBatch:
    """The rows in the columns of `schema`: those of `extra` are constant, those that the rows do not have NULL."""
    rows = batch.num_rows
    columns = []
    for field in schema:
        if field.name in extra:
            columns.append(pa.repeat(pa.scalar(extra[field.name], field.type), rows))
        elif field.name in batch.schema.names:
            columns.append(batch.column(field.name).cast(field.type))
        else:
            columns.append(pa.nulls(rows, field.type))
    return pa.record_batch(columns, schema=schema)
