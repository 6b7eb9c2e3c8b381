"""How much versioned tables have, as the catalog knows it, without reading a row."""

from __future__ import annotations

from collections.abc import Iterable

from cq_engine.catalog.model import VersionedTable
from cq_engine.catalog.store import Catalog
from cq_engine.spark.widths import Size, size_of_files, size_of_rows

__all__ = ["size_at"]


def size_at(catalog: Catalog, tables: Iterable[VersionedTable], version: int) -> Size:
    """What is read for the images of all the tables after commit `version`: snapshots, and the changes since.

    Raises StorageError where `version` lies below what is kept.
    """
    found = Size()
    for table in tables:
        layout = catalog.layout(table.id, version)
        found += size_of_files(layout.snapshot)
        for each in layout.changes:
            if each.low <= version:
                known = size_of_files(each.files)
                found += known if each.files else size_of_rows(each.rows, table.physical_columns)
    return found
