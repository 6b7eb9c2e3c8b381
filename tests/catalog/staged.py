"""Files that a test of the catalog stages and commits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from cq_engine.catalog.model import DataFile, VersionedTable
from cq_engine.catalog.store import Catalog
from cq_engine.catalog.tables import write_parquet

Open = Callable[..., Catalog]


def stage(
    catalog: Catalog, attempt: Any, table: VersionedTable, rows: pa.Table, role: str = "snapshot"
) -> DataFile:
    """One Parquet file of an attempt."""
    path = f"{attempt.directory(table, role)}/part-0.parquet"
    return write_parquet(rows, path, catalog.store, ["k"])


def bulk(catalog: Catalog, sample: Any, keys: list[int]) -> DataFile:
    """One insert-only bulk commit to `orders`."""
    attempt = catalog.attempt("copy")
    file = stage(catalog, attempt, sample.orders, sample.plain(keys))
    with catalog.lock, catalog.write(attempt) as unit:
        version = catalog.newest_version + 1
        unit.add_commit(version, sample.when(version))
        unit.add_change_files(
            sample.orders, version, version, [file], frozenset({"INSERT"}), insert_only=True
        )
    return file


def files_below(warehouse: Path) -> list[str]:
    return sorted(p.relative_to(warehouse).as_posix() for p in warehouse.rglob("*.parquet"))
