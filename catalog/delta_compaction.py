"""Published logs of few files, though every publication adds one to each table with news.

Small files that follow each other are written again as one, in a Delta commit that changes no data: who streams the
table does not see it. The small ones stay as long as others may read them as of an older version of the Delta table, or
the engine reads its own history from them (`superseded`). One whose Delta commit did not come, because the process was
killed or the publication interrupted, stays as long, and an hour at least; it is told by its name.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from cq_engine.catalog.attempts import attempt_of, roots
from cq_engine.catalog.change_rows import COMMIT_VERSION
from cq_engine.catalog.delta_durable import flush_log
from cq_engine.catalog.delta_files import complete
from cq_engine.catalog.flush import log_columns
from cq_engine.catalog.model import DataFile, VersionedTable
from cq_engine.catalog.storage.base import Store
from cq_engine.catalog.store import Catalog
from cq_engine.catalog.tables import CODEC, batches, data_file, writing
from cq_engine.core import faults
from cq_engine.core.disk import disk_error
from cq_engine.core.limits import Limits
from cq_engine.core.types import arrow_schema

__all__ = [
    "SmallFile",
    "cut_log",
    "discard",
    "open_log",
    "small_files",
    "strays",
    "superseded",
    "write_merged",
]

_MERGED = "merged-"
_WRITE_HOURS = 1
"""Longer than `write_merged` and the Delta commit after it take."""
_RETENTION = "delta.logRetentionDuration"


@dataclass(frozen=True)
class SmallFile:
    """A data file of a Delta table: its path below the table, its size, and the first commit version in it."""

    path: str
    size: int
    low: int


def small_files(handle: DeltaTable, limits: Limits) -> list[SmallFile]:
    """The oldest files, one after the other by their versions, that are to become one; none where they are few, or where
    somebody has marked rows of the table as deleted, which only Delta Lake's own writers take along."""
    if "deletionVectors" in (handle.protocol().reader_features or ()):
        return []
    there = pa.table(handle.get_add_actions(flatten=True))
    first = f"min.{COMMIT_VERSION}"
    if len(there) < limits.published_files or first not in there.column_names:
        return []
    lows = there.column(first).to_pylist()
    paths, sizes = there.column("path").to_pylist(), there.column("size_bytes").to_pylist()
    files = [SmallFile(path, size, low) for path, size, low in zip(paths, sizes, lows) if low is not None]
    run: list[SmallFile] = []
    for file in sorted(files, key=lambda each: (each.low, each.path)):
        run = [*run, file] if file.size < limits.published_file_bytes else []
        if len(run) == limits.published_files:
            break
    else:
        return []
    totals = accumulate(file.size for file in run)
    return run[: 1 + sum(total < limits.published_file_bytes for total in totals)]


def write_merged(catalog: Catalog, table: VersionedTable, root: str, files: Sequence[SmallFile]) -> DataFile:
    """One durable file with the rows of `files`, in their order and in bounded memory; it has a name that is given once."""
    store, schema = catalog.store, arrow_schema(log_columns(table))
    size = catalog.limits.publish_batch_rows
    target = f"{root}/{_MERGED}{secrets.token_hex(8)}/part-00000.parquet"
    try:
        with writing(target, store):
            faults.point("file.begin", store.file(target))
            with store.writing(target) as sink, pq.ParquetWriter(sink, schema, compression=CODEC) as writer:
                for rows in _blocks(store, [f"{root}/{file.path}" for file in files], schema, size):
                    writer.write_table(rows, row_group_size=size)
        return data_file(target, store, {*table.identity, *table.cluster_by, COMMIT_VERSION})
    except BaseException:
        discard(store, target)
        raise


def discard(store: Store, target: str) -> None:
    """Takes away a file of `write_merged` that no Delta commit names."""
    with suppress(OSError):
        store.delete(target, parents=1)


def _blocks(store: Store, paths: Sequence[str], schema: pa.Schema, size: int) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    for path in paths:
        for batch in batches(store, path, size):
            held.append(complete(batch, schema, {}))
            if sum(each.num_rows for each in held) >= size:
                yield pa.Table.from_batches(held, schema)
                held = []
    if held:
        yield pa.Table.from_batches(held, schema)


# ---------------------------------------------------------------- what may go


def open_log(store: Store, root: str) -> DeltaTable | None:
    """The Delta table at `root` of the warehouse; None where there is none. Raises StorageError where it cannot be read."""
    try:
        return DeltaTable(store.uri(root), storage_options=store.delta_options)
    except TableNotFoundError:  # the next publication makes it anew
        return None
    except (DeltaError, OSError) as error:
        raise disk_error(f"read the Delta table {root}", error, store.location) from error


def superseded(handle: DeltaTable, store: Store, root: str, hours: int) -> list[str]:
    """Files below the Delta table at `root` that it has not named for so many hours, relative to it; with them those of `write_merged`
    that it has never named, unless somebody may be about to. What others have put there stays."""
    try:
        gone = handle.vacuum(hours, dry_run=True, enforce_retention_duration=False)
        old = max(hours, _WRITE_HOURS)
        unnamed = handle.vacuum(old, dry_run=True, enforce_retention_duration=False, full=True)
    except DeltaError:  # somebody has given it what only Delta Lake's own writers can do
        return []
    found = {*gone, *(path for path in unnamed if path.startswith(_MERGED))}
    return sorted(path for path in found if store.has(f"{root}/{path}"))


def strays(catalog: Catalog) -> list[str]:
    """Files of an object store, relative to the warehouse, that tasks of Spark's may have written without telling the driver,
    which has another try's: they lie in the directory of an attempt, have been there for hours, and no Delta table names
    them. Those that the catalog names are among them (`Catalog.disown`). Spark itself removes those of a directory."""
    store, hours = catalog.store, catalog.limits.stray_hours
    if store.is_local:
        return []
    found: list[str] = []
    with catalog.view.lock:
        storages = list(catalog.view.storage.values())
    for root in sorted({root for storage in storages for root in roots(storage)}):
        handle = None if root.startswith("data/") else open_log(store, root)
        if handle is not None:
            with suppress(DeltaError):
                unnamed = handle.vacuum(hours, dry_run=True, enforce_retention_duration=False, full=True)
                found += [f"{root}/{path}" for path in unnamed]
        else:
            latest = (time.time() - 3600 * hours) * 1000
            found += [each.path for each in store.list(root) if each.modified <= latest]
    return [path for path in found if path.endswith(".parquet") and attempt_of(path) is not None]


def cut_log(handle: DeltaTable, store: Store, root: str, hours: int) -> None:
    """Takes away what of the Delta table's own log is older than so many hours and below its newest checkpoint."""
    with suppress(DeltaError):
        wanted = f"interval {hours} hours"
        if handle.metadata().configuration.get(_RETENTION) != wanted:
            handle.alter.set_table_properties({_RETENTION: wanted})
            flush_log(store, root, handle.version())
        handle.cleanup_metadata()
