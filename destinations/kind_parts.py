"""What a destination of any kind is made from, and how a declaration's words are found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cq_engine.catalog.model import CatalogState, ContinuousQuery, DeclaredDestination
from cq_engine.context.services import Services
from cq_engine.core.errors import DestinationError, Location
from cq_engine.core.retry import Retry
from cq_engine.destinations.base import Destination
from cq_engine.destinations.callbacks import Callbacks
from cq_engine.destinations.options import Option
from cq_engine.grammar.clauses import DestinationRef

__all__ = ["Kind", "Place", "Wanted", "no_trigger"]

Place = Callable[[str], Location | None]
"""Where a word stands in the statement."""


@dataclass(frozen=True)
class Wanted:
    """What a destination of one query is made from; `reference` as the query's clause has it, `declared` what CREATE
    DESTINATION says, or the defaults."""

    services: Services
    query: ContinuousQuery
    reference: DestinationRef
    declared: DeclaredDestination
    callbacks: Callbacks
    state: CatalogState
    retry: Retry | None
    stopped: Callable[[], bool]


def _no_check(_: DeclaredDestination, __: Place) -> None:
    pass


@dataclass(frozen=True)
class Kind:
    """`make` raises DestinationError where there is no such destination. `check` is for what a declaration says as a
    whole, when each option is right by itself."""

    of: type[Destination]
    options: Mapping[str, Option]
    make: Callable[[Wanted], Destination]
    check: Callable[[DeclaredDestination, Place], None] = _no_check
    reach: Callable[[DeclaredDestination, Services], None] | None = None
    """Of a kind outside of the warehouse: asks what is there, and raises DestinationError where that answers and refuses."""


def no_trigger(name: str) -> DestinationError:
    """The error for a trigger that was not declared."""
    return DestinationError(
        f"there is no trigger {name}",
        hint=f"declare it first: CREATE DESTINATION {name} TYPE trigger AS BEGIN statement; ... END",
    )
