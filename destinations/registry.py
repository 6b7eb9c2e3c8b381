"""Which destination a DESTINATION clause means."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from cq_engine.catalog.destinations import MERGE, is_merge
from cq_engine.catalog.model import CatalogState, ContinuousQuery, DeclaredDestination
from cq_engine.context.services import Services
from cq_engine.core.errors import DestinationError, did_you_mean
from cq_engine.destinations.base import Destination
from cq_engine.destinations.callback import Callback, CallbackDestination, Retry
from cq_engine.destinations.options import LATER
from cq_engine.destinations.table import TableDestination
from cq_engine.grammar.statements import DestinationRef

__all__ = ["Callbacks", "kind_of", "resolve"]


class Callbacks:
    """The functions that DESTINATION CALLBACK can name, by name regardless of case. Thread-safe."""

    def __init__(self) -> None:
        self._functions: dict[str, tuple[str, Callback]] = {}
        self._lock = threading.Lock()

    def register(self, name: str, function: Callback) -> None:
        """Makes `function` the callback `name`; it takes the place of an earlier one."""
        with self._lock:
            self._functions[name.lower()] = (name, function)

    def get(self, name: str) -> Callback | None:
        """The callback `name`, or None."""
        with self._lock:
            found = self._functions.get(name.lower())
        return None if found is None else found[1]

    def names(self) -> tuple[str, ...]:
        """All names, as they were registered."""
        with self._lock:
            return tuple(name for name, _ in self._functions.values())


def kind_of(
    reference: DestinationRef,
    callbacks: Callbacks,
    declared: Mapping[str, DeclaredDestination] | None = None,
) -> DestinationRef:
    """`reference` with its kind: that of the declared destination of its name; for a bare name without one CALLBACK where
    one is registered, else TABLE. MERGE is a table that was declared with `mode = 'merge'`.

    Raises DestinationError for a kind that is not available yet, or that is not the declared one.
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
    if reference.kind in LATER:
        raise DestinationError(
            f"destination {reference.kind} {reference.name} is not available yet",
            detail="this version delivers to tables and callbacks",
            hint="deliver to a CALLBACK, a Python function that passes the batches on",
        )
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
        state: where tables are looked up; the catalog's state by default.
        retry: how often a callback is tried within one delivery.
        stopped: whether a callback gets no further batch in this delivery.

    Raises:
        DestinationError: there is no such table or callback, or its kind is not available yet.
    """
    typed = kind_of(reference, callbacks, declared)
    if typed.kind == "CALLBACK":
        function = callbacks.get(typed.name)
        if function is None:
            raise _unknown_callback(typed.name, query, callbacks)
        return CallbackDestination(services, query, typed.name, function, retry=retry, stopped=stopped)
    tables = (state or services.catalog.state).tables
    table = tables.get(typed.name.lower())
    if table is None:
        names = [t.name for t in tables.values()] + list(callbacks.names())
        raise DestinationError(
            f"continuous query {query.name} delivers to {typed.name}, which is no table"
            + ("" if reference.kind else " and no registered callback"),
            hint=did_you_mean(typed.name, names) or f"create table {typed.name}, or register the callback",
        )
    return TableDestination(services, query, table)


def _unknown_callback(name: str, query: ContinuousQuery, callbacks: Callbacks) -> DestinationError:
    return DestinationError(
        f"callback {name} of continuous query {query.name} is not registered in this process",
        detail="its deltas wait in the delta log",
        hint=did_you_mean(name, callbacks.names()) or f'register it: @engine.callback("{name}")',
    )
