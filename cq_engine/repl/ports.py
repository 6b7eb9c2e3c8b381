"""What the prompt needs of an engine, and nothing more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from cq_engine.catalog.model import CatalogState, Cursor, QueryStatus, RefreshRecord

if TYPE_CHECKING:  # imports Spark
    from cq_engine.result import Result

__all__ = ["CatalogLike", "EngineLike", "Overview"]


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


class EngineLike(Protocol):
    """The part of `cq_engine.Engine` that the prompt uses."""

    @property
    def in_transaction(self) -> bool:
        """True between BEGIN and COMMIT or ROLLBACK."""

    @property
    def spark(self) -> object:
        """The Spark session; asking for it starts Spark."""

    @property
    def catalog(self) -> CatalogLike:
        """What the warehouse has."""

    def execute(self, sql: str, *, source: str = ..., line: int = ..., column: int = ...) -> Result:
        """Runs one statement whose first character stands at `line`, `column` of `source`."""

    def drain(self, timeout: float | None = None) -> None:
        """Returns when every ON COMMIT query and every destination has the newest commit."""

    def interrupt(self) -> None:
        """Cancels the statement that runs in another thread."""

    def close(self) -> None:
        """Rolls back an open transaction and lets go of the warehouse."""
