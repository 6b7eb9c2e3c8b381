"""The destinations of a query: which they are, who serves them, and whether they rest."""

from __future__ import annotations

from collections.abc import Iterable

from cq_engine.catalog.destinations import MERGE, deliverers, merges
from cq_engine.catalog.model import PARTIAL, CatalogState, ContinuousQuery, Cursor
from cq_engine.catalog.unit import UnitOfWork
from cq_engine.context.services import Services
from cq_engine.core.errors import DestinationError
from cq_engine.destinations import (
    Callbacks,
    Policy,
    class_of,
    cursor_name,
    kind_of,
    policy_of,
    resolve,
)
from cq_engine.grammar import DestinationRef

__all__ = ["DestinationsOfQueries", "cursor_of"]


class DestinationsOfQueries:
    """What the catalog and this process's callbacks say of them."""

    def __init__(self, services: Services, callbacks: Callbacks) -> None:
        self.services = services
        self.callbacks = callbacks

    def serves(self, ref: DestinationRef) -> bool:
        """Whether this process serves the destination: a callback where it is registered, others with the duties."""
        registered = class_of(ref).registered
        if registered and self.callbacks.get(ref.name) is not None:
            return True
        catalog = self.services.catalog
        elsewhere = registered and ref.name.lower() in catalog.view.callbacks
        return catalog.has_duties and not elsewhere

    def at_rest(self, query: ContinuousQuery, ref: DestinationRef) -> bool:
        """Whether the destination is paused, by a statement or because it has failed too often."""
        return self.policy(ref).at_rest(self.services.catalog.cursor(query.name, cursor_of(ref)))

    def policy(self, ref: DestinationRef) -> Policy:
        return policy_of(self.services.catalog.state, ref)

    def given_up_after(self, query: ContinuousQuery) -> int:
        """After how many failures what fails is put aside, and the rest goes on."""
        policies = map(self.policy, self.served(query))
        return max((each.max_attempts for each in policies if each.on_failure != "retry"), default=0)

    def kind_of(self, ref: DestinationRef) -> str:
        """One of `KINDS`, or MERGE, for a reference of a DESTINATION clause; a bare name is what was declared, else a
        callback where one of that name is registered. Raises DestinationError for kinds that are not available."""
        catalog, name = self.services.catalog, ref.name.lower()
        declared = catalog.state.destinations
        if ref.kind is None and name not in declared and name in catalog.view.callbacks:
            return "CALLBACK"
        return kind_of(ref, self.callbacks, declared).kind or "TABLE"

    def includes_result(self, destinations: Iterable[DestinationRef]) -> bool:
        """Whether one of a query's destinations is its current result."""
        return any(self.kind_of(ref) == MERGE for ref in destinations)

    def keeps_rows(self, query: ContinuousQuery, state: CatalogState) -> bool:
        """Whether the rows of a query that is maintained from partial changes are kept: where a destination has them."""
        declared = (state.destinations.get(ref.name.lower()) for ref in query.destinations)
        return query.verdict == PARTIAL and any(each is not None and merges(each) for each in declared)

    def check(self, query: ContinuousQuery, ref: DestinationRef, state: CatalogState) -> None:
        """Raises DestinationError where the query cannot deliver to a destination that is no table of the warehouse."""
        if ref.kind != MERGE and not class_of(ref).registered:
            others = [
                each.name for each in deliverers(state, ref.name) if each.name.lower() != query.name.lower()
            ]
            found = resolve(self.services, query, ref, self.callbacks, state=state)
            found.check()
            if others and found.merges:
                raise DestinationError(
                    f"destination {ref.name} is the result of {others[0]}",
                    detail="with mode = 'merge' it cannot be that of another query, too",
                    hint="create another destination",
                )

    def begin(self, unit: UnitOfWork, query: ContinuousQuery, version: int) -> None:
        """The destinations of a new query receive what its log will hold after `version`."""
        for ref in self.refs(query):
            unit.set_cursor(class_of(ref).placed(Cursor(query.name, cursor_of(ref), 0), version))

    def change(
        self, unit: UnitOfWork, before: ContinuousQuery, after: ContinuousQuery, position: int
    ) -> None:
        """Destinations that were added start at `position`; those that were taken away are forgotten."""
        old = {cursor_of(ref): ref for ref in self.refs(before)}
        new = {cursor_of(ref): ref for ref in self.refs(after)}
        for name in new.keys() - old.keys():
            unit.set_cursor(class_of(new[name]).placed(Cursor(after.name, name, 0), position))
        for name in old.keys() - new.keys():
            unit.drop_cursor(after.name, name)

    def refs(self, query: ContinuousQuery) -> list[DestinationRef]:
        """The query's destinations that have cursors, each with its kind."""
        refs = [DestinationRef(ref.name, self.kind_of(ref)) for ref in query.destinations]
        return [ref for ref in refs if ref.kind != MERGE]

    def now(self, query: ContinuousQuery) -> ContinuousQuery | None:
        """The query as it is defined now; None where it is dropped, also where another one has its name by now."""
        found = self.services.catalog.state.queries.get(query.name.lower())
        return found if found is not None and found.id == query.id else None

    def is_wanted(self, query: ContinuousQuery, ref: DestinationRef) -> bool:
        """Whether the query is there and has the destination: a callback may have said otherwise since."""
        now = self.now(query)
        return now is not None and ref in self.served(now)

    def served(self, query: ContinuousQuery) -> list[DestinationRef]:
        """Those that are delivered to."""
        return [ref for ref in self.refs(query) if not class_of(ref).pulled]

    def is_missing(self, ref: DestinationRef) -> bool:
        return class_of(ref).registered and self.callbacks.get(ref.name) is None


def cursor_of(ref: DestinationRef) -> str:
    return cursor_name(ref.kind or "TABLE", ref.name)
