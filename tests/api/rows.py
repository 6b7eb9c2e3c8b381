"""The rows of a table as a process sees them."""

from __future__ import annotations

from cq_engine.api.engine import Engine

__all__ = ["ids"]


def ids(engine: Engine, table: str) -> list[int]:
    """The values of column `id`, sorted, at the newest version."""
    engine.catalog.follow()
    storage = engine.catalog.state.tables[table].storage
    rows = engine.reader.small_image(storage, engine.catalog.newest_version)
    assert rows is not None
    return sorted(rows.column("id").to_pylist())
