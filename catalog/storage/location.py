"""Which store a warehouse's name means."""

from __future__ import annotations

from pathlib import Path

from cq_engine.catalog.storage.base import Store
from cq_engine.catalog.storage.local import LocalStore
from cq_engine.core.errors import StorageError

__all__ = ["open_store"]


def open_store(warehouse: str) -> Store:
    """The store of the warehouse at a path or URL; nothing is made. StorageError for an object store."""
    if warehouse.startswith("file://"):
        warehouse = warehouse.removeprefix("file://")
    if "://" in warehouse:
        raise StorageError(
            f"{warehouse} is not a directory",
            detail="warehouses on object stores are not supported yet",
            hint="give a path that all of Spark's processes see",
        )
    return LocalStore(str(Path(warehouse).expanduser().resolve()))
