"""What the prompt needs of an engine, and nothing more."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # imports the language and Spark, and the prompt comes before both
    from cq_engine.catalog.overview import CatalogLike, Overview
    from cq_engine.query.result import Result

__all__ = ["EngineLike"]


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

    def overview(self) -> Overview:
        """What the warehouse has, with what waits to be tried again."""

    def execute(self, sql: str, *, source: str = ..., line: int = ..., column: int = ...) -> Result:
        """Runs one statement whose first character stands at `line`, `column` of `source`."""

    def consume_rows(
        self, queue: str, group: str, count: int | None, *, wait: float | None, keep: bool
    ) -> Result:
        """Messages of a queue as rows that come."""

    def drain(self, timeout: float | None = None) -> None:
        """Returns when every ON COMMIT query and every destination has the newest commit."""

    def tell_of_duties(self, tell: Callable[[str], None]) -> None:
        """Has `tell` told where the duties of the warehouse are."""

    def close(self) -> None:
        """Rolls back an open transaction and lets go of the warehouse."""
