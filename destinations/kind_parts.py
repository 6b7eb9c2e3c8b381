"""What a destination of any kind is made from, and how a declaration's words are found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cq_engine.catalog.model import CatalogState, ContinuousQuery, DeclaredDestination
from cq_engine.context.services import Services
from cq_engine.core.errors import Location
from cq_engine.destinations.callback import Callbacks, Retry
from cq_engine.grammar.statements import DestinationRef

__all__ = ["Place", "Wanted"]

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
