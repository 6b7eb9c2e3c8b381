"""Files and directories that nothing refers to any more: removed from the disk first, then from the catalog."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from cq_engine.catalog import schema
from cq_engine.catalog.attempts import remove_tree, roots
from cq_engine.catalog.view import Storage

__all__ = ["doomed", "forget_files", "forget_rows", "remove_directories", "remove_files"]


def doomed(connection: Connection, latest: int) -> list[str]:
    """The files, relative to the warehouse, that were forgotten at `latest` (database clock, microseconds) or before."""
    listed = schema.doomed.c
    return list(connection.execute(sa.select(listed.path).where(listed.since <= latest)).scalars())


def remove_files(warehouse: str, paths: Iterable[str]) -> None:
    """Removes files that are there."""
    for path in paths:
        Path(warehouse, path).unlink(missing_ok=True)


def forget_files(connection: Connection, paths: Sequence[str]) -> None:
    """Takes removed files off the list."""
    for start in range(0, len(paths), 500):
        some = schema.doomed.c.path.in_(paths[start : start + 500])
        connection.execute(schema.doomed.delete().where(some))


def remove_directories(warehouse: str, gone: Iterable[Storage]) -> None:
    """Removes everything that was stored of tables."""
    for storage in gone:
        for root in roots(storage):
            remove_tree(Path(warehouse, root))


def forget_rows(connection: Connection, gone: Iterable[Storage], attempts: Iterable[str]) -> None:
    """Takes tables whose directories are gone, and attempts, out of the catalog."""
    for storage in gone:
        where = schema.storage.c.table_id == storage.table_id
        connection.execute(schema.storage.delete().where(where))
    for attempt_id in attempts:
        connection.execute(schema.attempts.delete().where(schema.attempts.c.id == attempt_id))
