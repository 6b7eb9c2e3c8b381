"""Attempts: files are written under an attempt's id, which is registered first and done when a transaction uses it.

An attempt that is still registered when a process opens the warehouse ended without its transaction: its files are
garbage. Where files lie, below the warehouse:

| kind, role | directory |
|---|---|
| base, snapshot | `tables/<name>/<attempt>`: inside the published Delta table |
| base, log | `changes/<name>/<attempt>` |
| delta, log | `deltas/<name>/<attempt>` |
| state | `data/state-<id>/<attempt>` |
| result | `data/result-<id>/<attempt>` |

`<name>` is the table's, or `<name>-<id>` where that is long, not plain ASCII, or was given before.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable

from cq_engine.catalog.model import VersionedTable
from cq_engine.catalog.storage.base import Store
from cq_engine.catalog.view import Storage
from cq_engine.core.disk import disk_error
from cq_engine.core.errors import StorageError

__all__ = ["ROLES", "TOPS", "Attempt", "attempt_directories", "attempt_of", "new_attempt_id", "roots"]

_ROOTS: dict[tuple[str, str], str] = {
    ("base", "snapshot"): "tables",
    ("base", "log"): "changes",
    ("changes", "log"): "changes",
    ("delta", "log"): "deltas",
    ("delta", "snapshot"): "data",
    ("state", "log"): "data",
    ("state", "snapshot"): "data",
    ("result", "log"): "data",
    ("result", "snapshot"): "data",
}
_ID = re.compile(r"[a-z0-9]+-\d+-[0-9a-f]{16}")
ROLES = frozenset(role for _, role in _ROOTS)
"""The directories in that of an attempt, where it has such."""
TOPS = tuple(sorted(set(_ROOTS.values())))
"""What a warehouse consists of, beside the catalog."""


class Attempt:
    """A registered attempt to write files. `directory` may be asked for from any thread."""

    def __init__(
        self,
        attempt_id: str,
        storage_of: Callable[[VersionedTable], Storage],
        abandon: Callable[[Attempt], None],
        epoch: int = 0,
    ) -> None:
        self.id = attempt_id
        self.epoch = epoch
        """Of the duties that it belongs to; 0 where any process may make it."""
        self._storage_of = storage_of
        self._abandon = abandon

    def directory(self, table: VersionedTable, role: str) -> str:
        """A directory of its own, relative to the warehouse and not yet made, for files of `table`.

        `role` is snapshot (plain rows) or log (change rows).
        """
        root = root_of(self._storage_of(table), role)
        tail = f"{self.id}/{role}" if root.startswith("data/") else self.id
        return f"{root}/{tail}"

    def abandon(self) -> None:
        """Removes the files and forgets the attempt. Where that fails, it is done later, and whatever was the reason to give up is
        what is raised; but as a part of a transaction, where its end would make the half of it durable."""
        self._abandon(self)


def root_of(storage: Storage, role: str) -> str:
    """The directory, relative to the warehouse, below which files of a table lie; it is also where the Delta table
    is that shows them."""
    top = _ROOTS.get((storage.kind, role))
    if top is None:
        raise StorageError(f"a versioned table of kind {storage.kind} has no {role!r} files")
    return f"{top}/{storage.directory}"


def roots(storage: Storage) -> tuple[str, ...]:
    """All directories of a table, relative to the warehouse."""
    return tuple(sorted({root_of(storage, role) for kind, role in _ROOTS if kind == storage.kind}))


def attempt_of(path: str) -> str | None:
    """The id of the attempt that wrote the file at `path`; None where none did."""
    return next((part for part in path.split("/")[:-1] if _ID.fullmatch(part)), None)


def new_attempt_id(kind: str, epoch: int) -> str:
    """ASCII, unique, and without the leading `_` or `.` that would hide files from Spark."""
    plain = re.sub(r"[^a-z0-9]", "", kind.lower()) or "attempt"
    return f"{plain}-{epoch}-{secrets.token_hex(8)}"


def attempt_directories(store: Store, storages: list[Storage], attempt_id: str) -> list[str]:
    """The directories that an attempt has made, relative to the warehouse. Raises StorageError where the store does not say so."""
    found = [f"{root}/{attempt_id}" for storage in storages for root in roots(storage)]
    try:
        return store.having(found)
    except OSError as error:
        raise disk_error("look for the files of an attempt", error, store.location) from error
