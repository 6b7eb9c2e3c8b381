"""The continuous queries that are there: found by name, compiled, and held by whoever works with them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TypeAlias

from cq_engine.catalog import apply
from cq_engine.catalog.groups import owner
from cq_engine.catalog.model import ContinuousQuery, QueryStatus
from cq_engine.context.services import Services
from cq_engine.core.keeping import keep
from cq_engine.definition.analysis import compile_definition, shape_of
from cq_engine.definition.answers import Answers
from cq_engine.planner.compiled import Compiled

__all__ = ["Registry"]

_Definition: TypeAlias = tuple[int, "str | None"]


class Registry:
    """What everybody knows of the queries of an engine. Refreshes of one query never overlap; others may run at once.

    Locks are taken in this order: definitions (`ddl`), queries by their ids (`hold`), the catalog.
    """

    def __init__(self, services: Services) -> None:
        self.services = services
        self.ddl = threading.RLock()
        """Held by whoever changes definitions."""
        self._compiled: dict[int, tuple[_Definition, Compiled]] = {}
        self._locks: dict[int, threading.RLock] = {}
        self._guard = threading.Lock()

    def find(self, name: str) -> ContinuousQuery:
        """The definition. Raises CatalogError."""
        return apply.find_query(self.services.catalog.state, name)

    def set_status(self, query: ContinuousQuery, status: QueryStatus) -> None:
        """What state the query is in; nothing where it stands elsewhere by now, or is gone."""
        catalog = self.services.catalog
        with catalog.write() as unit:
            now = catalog.view.status(query.name)
            if now is not None and now.position == status.position:
                unit.set_status(query.name, status)

    @contextmanager
    def hold(self, names: Iterable[str]) -> Iterator[None]:
        """Holds queries: nobody else refreshes, alters or drops them meanwhile. Names of no query are left out.

        Of a member of a query group, the group is held."""
        state = self.services.catalog.state
        owners = {owner(state, name) for name in names}
        numbers = {state.queries[name].id for name in owners if name in state.queries}
        numbers |= {state.groups[name].query.id for name in owners if name in state.groups}
        with self._guard:
            locks = [self._locks.setdefault(number, threading.RLock()) for number in sorted(numbers)]
        with ExitStack() as held:
            for lock in locks:
                held.enter_context(lock)
            yield

    # ------------------------------------------------------------ compiled definitions

    def compiled(self, query: ContinuousQuery) -> Compiled:
        """The compiled definition, from memory or made again."""

        def compile_again() -> Compiled:
            state = self.services.catalog.state
            answers = Answers(query.analysed)
            shape = shape_of(self.services, state, query.query, dict(query.source_columns), answers)
            declared = query.key if query.declared else None
            full = dict(query.options).get("refresh") == "full"
            return compile_definition(self.services, shape, declared, full=full, answers=answers)

        return self.recall(query, compile_again)

    def recall(self, query: ContinuousQuery, compile_again: Callable[[], Compiled]) -> Compiled:
        """What is remembered of a query, or else what `compile_again` gives."""
        known = self._compiled.get(query.id)
        if known is None or known[0] != _definition(query):  # another process may have changed it
            known = self._compiled[query.id] = (_definition(query), compile_again())
        return known[1]

    def remember(self, query: ContinuousQuery, compiled: Compiled) -> None:
        """What `compiled` gives from now on."""
        self._compiled[query.id] = (_definition(query), compiled)

    def forget_all(self) -> None:
        """Takes all compiled definitions out of memory."""
        self._compiled.clear()

    def forget(self, queries: Iterable[ContinuousQuery]) -> None:
        """Takes queries that are gone out of memory."""
        for query in queries:
            self._compiled.pop(query.id, None)

    def forget_gone(self) -> list[Compiled]:
        """Takes what the catalog does not have any more out of memory, and gives what stays. No number of a query comes twice."""
        state = self.services.catalog.state
        there = {query.id for query in state.queries.values()} | {g.query.id for g in state.groups.values()}
        keep(self._compiled, there)
        with self._guard:
            keep(self._locks, there)
        return [compiled for _, compiled in list(self._compiled.values())]


def _definition(query: ContinuousQuery) -> _Definition:
    """What is another one where a query of the same number is to be compiled in another way."""
    return query.defined_version, query.group
