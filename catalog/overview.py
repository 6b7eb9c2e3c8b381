"""The catalog at one moment, for those who show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from cq_engine.catalog.model import CatalogState, Cursor, QueryStatus, RefreshRecord

__all__ = ["CatalogLike", "Overview"]


class CatalogLike(Protocol):
    """The part of `cq_engine.catalog.store.Catalog` that the prompt reads."""

    @property
    def state(self) -> CatalogState: ...

    @property
    def newest_version(self) -> int: ...

    def status(self, query: str) -> QueryStatus: ...

    def cursors(self, query: str) -> list[Cursor]: ...

    def refreshes(self, query: str | None = None, limit: int = ...) -> list[RefreshRecord]:
        """The last `limit` refreshes, newest first."""


@dataclass(frozen=True)
class Overview:
    """The catalog at one moment, as `\\d` shows it. `newest` is the newest commit version."""

    state: CatalogState
    status: Mapping[str, QueryStatus]
    cursors: tuple[Cursor, ...]
    newest: int

    @classmethod
    def of(cls, catalog: CatalogLike) -> Overview:
        """What the catalog says now."""
        state = catalog.state
        names = [query.name for query in state.queries.values()]
        cursors = tuple(cursor for name in names for cursor in catalog.cursors(name))
        return cls(state, {name: catalog.status(name) for name in names}, cursors, catalog.newest_version)
