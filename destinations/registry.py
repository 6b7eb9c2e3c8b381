"""Which destination a DESTINATION clause means."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cq_engine.catalog.destinations import MERGE, is_merge
from cq_engine.catalog.model import CatalogState, ContinuousQuery, DeclaredDestination
from cq_engine.context.services import Services
from cq_engine.core.errors import DestinationError
from cq_engine.core.retry import Retry
from cq_engine.destinations.base import Destination
from cq_engine.destinations.callbacks import Callbacks
from cq_engine.destinations.kind_parts import Wanted, no_trigger
from cq_engine.destinations.kinds import kind_named
from cq_engine.grammar.clauses import DestinationRef

__all__ = ["kind_of", "resolve"]


def kind_of(
    reference: DestinationRef,
    callbacks: Callbacks,
    declared: Mapping[str, DeclaredDestination] | None = None,
) -> DestinationRef:
    """`reference` with its kind: that of the declared destination of its name; for a bare name without one CALLBACK where
    one is registered, else TABLE. MERGE is a table that was declared with `mode = 'merge'`.

    Raises DestinationError for a kind that is not the declared one.
    """
    found = (declared or {}).get(reference.name.lower())
    if found is not None and reference.kind in (None, found.type, MERGE):
        return DestinationRef(reference.name, MERGE if is_merge(found) else found.type)
    if found is not None:
        raise DestinationError(
            f"destination {found.name} is no {reference.kind}",
            detail=f"it was created with TYPE {found.type.lower()}",
            hint=f"write DESTINATION {found.name}",
        )
    if reference.kind is None:
        kind = "TABLE" if callbacks.get(reference.name) is None else "CALLBACK"
        reference = DestinationRef(reference.name, kind)
    if reference.kind == "TRIGGER" and declared is not None:
        raise no_trigger(reference.name)
    return reference


def resolve(
    services: Services,
    query: ContinuousQuery,
    reference: DestinationRef,
    callbacks: Callbacks,
    *,
    declared: Mapping[str, DeclaredDestination] | None = None,
    state: CatalogState | None = None,
    retry: Retry | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> Destination:
    """The destination that `reference` means (see `kind_of`).

    Args:
        services: the engine's parts.
        query: the query that delivers.
        reference: one entry of its DESTINATION clause.
        callbacks: the registered callbacks.
        declared: destinations that were declared by themselves, by lower-case name.
        state: where tables and declared destinations are looked up; the catalog's state by default.
        retry: how often a callback is tried within one delivery.
        stopped: whether a callback gets no further batch in this delivery.

    Raises:
        DestinationError: there is no such table or callback, or its kind is not available here.
    """
    typed, state = kind_of(reference, callbacks, declared), state or services.catalog.state
    known = (declared or state.destinations).get(typed.name.lower())
    kind = typed.kind or "TABLE"
    known = DeclaredDestination(typed.name, kind) if known is None else known
    found = kind_named(kind)
    if found is None:
        raise DestinationError(
            f"no package in this process has destinations of type {kind.lower()}",
            detail=f"the deltas for {typed.name} wait in the delta log",
            hint="install it where queries are refreshed",
        )
    return found.make(Wanted(services, query, reference, known, callbacks, state, retry, stopped))
