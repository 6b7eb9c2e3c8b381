"""Files and directories that nothing refers to any more, and whose names are given to nothing else.

What goes is decided in a catalog transaction, which lists it; then it is removed from the disk, then from the list. So
it can be removed at any time, also by a process that has lost the warehouse meanwhile, or a second time after a crash.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from cq_engine.catalog import schema
from cq_engine.catalog.attempts import ROLES
from cq_engine.catalog.storage.base import Store
from cq_engine.core import faults
from cq_engine.core.disk import disk_error

__all__ = ["doomed_paths", "forget", "remove"]


def doomed_paths(connection: Connection, latest: int) -> list[str]:
    """What was listed at `latest` (database clock, microseconds) or before, relative to the warehouse."""
    listed = schema.doomed.c
    return list(connection.execute(sa.select(listed.path).where(listed.since <= latest)).scalars())


def remove(store: Store, paths: Iterable[str]) -> tuple[list[str], list[str]]:
    """Removes what is there; what is gone now, and why the rest is not."""
    gone: list[str] = []
    problems: list[str] = []

    def remove_one(path: str) -> None:
        try:
            faults.point("vacuum.remove")
            if path.endswith("/"):
                store.delete_directory(path)
            else:
                _remove_file(store, path)
            gone.append(path)
        except OSError as error:
            problems.append(disk_error(f"remove {path}", error, store.location).message)

    store.together(remove_one, paths)
    return gone, problems


def _remove_file(store: Store, path: str) -> None:
    """With the directory of the attempt that wrote it, where that is empty then: no other one has its name."""
    store.delete(path, parents=2 if PurePosixPath(path).parent.name in ROLES else 1)


def forget(connection: Connection, paths: Sequence[str]) -> None:
    """Takes what was removed off the list."""
    for start in range(0, len(paths), 500):
        some = schema.doomed.c.path.in_(paths[start : start + 500])
        connection.execute(schema.doomed.delete().where(some))
