"""DROP CONTINUOUS QUERY and DROP TABLE, with what depends on them; and what nobody reads any more."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

from cq_engine.catalog import apply
from cq_engine.catalog.groups import without_empty
from cq_engine.catalog.model import Capture, CatalogState
from cq_engine.catalog.sources import captures_into, without_parts
from cq_engine.grammar import DropContinuousQuery, DropTable

if TYPE_CHECKING:
    from cq_engine.definition.registry import Registry

__all__ = ["drop_query", "drop_table", "tidy", "tidy_parts"]


def drop_query(registry: Registry, statement: DropContinuousQuery) -> str:
    """DROP CONTINUOUS QUERY [RESTRICT | CASCADE]. Raises CatalogError where others read it and CASCADE is not said."""
    if statement.if_exists and statement.name.lower() not in registry.services.catalog.state.queries:
        return f"there is no continuous query {statement.name}"
    name = registry.find(statement.name).name
    gone, left = _remove(registry, lambda state: apply.drop_query(state, name, statement.cascade))
    return f"continuous query {name} dropped{_with_it(g for g in gone if g != name)}{left}"


def drop_table(registry: Registry, statement: DropTable) -> str:
    """DROP TABLE [RESTRICT | CASCADE]. Raises CatalogError where it is used and CASCADE is not said."""
    state = registry.services.catalog.state
    if statement.if_exists and statement.name.lower() not in state.tables:
        return f"there is no table {statement.name}"
    name = apply.find_table(state, statement.name).name
    gone, left = _remove(registry, lambda state: _without_table(state, statement))
    return f"table {name} dropped{_with_it(gone)}{left}"


def _without_table(state: CatalogState, statement: DropTable) -> CatalogState:
    """The state without the table, and with CASCADE without the capture that fills it and what only that has."""
    for capture in captures_into(state, statement.name) if statement.cascade else ():
        from cq_engine.lifecycle.captures import without  # who has none does without what it imports

        state = without(state, capture)
    return apply.drop_table(state, statement)


def tidy_parts(registry: Registry) -> None:
    """Takes the parts of queries away that are not there: a process may have ended while it created one."""
    catalog = registry.services.catalog
    with registry.ddl:
        state = catalog.state
        parts = (table.part_of for table in state.tables.values() if table.part_of is not None)
        for query in {part for part in parts if part.lower() not in state.queries}:
            _remove(registry, partial(without_parts, query=query))


def tidy(registry: Registry) -> None:
    """Takes results away that are kept for nobody: a process may have ended while it created a query."""
    catalog = registry.services.catalog
    with registry.ddl, catalog.lock:
        state = apply.without_unread(catalog.state)
        if state is not catalog.state:
            with catalog.write() as unit:
                unit.set_state(state)


def _remove(registry: Registry, change: Callable[[CatalogState], CatalogState]) -> tuple[list[str], str]:
    """Puts a smaller state into effect; the names of the queries that are gone, and what captures that go with them leave at
    their sources, for a person."""
    catalog = registry.services.catalog
    with registry.ddl:
        rest = change(catalog.state)
        gone = [query for name, query in catalog.state.queries.items() if name not in rest.queries]
        captures = [each for name, each in catalog.state.captures.items() if name not in rest.captures]
        ending = _released(registry, captures) if captures else nullcontext("")
        held = registry.hold(query.name for query in gone)
        with ending as left, held, catalog.lock, catalog.write() as unit:
            unit.set_state(without_empty(change(catalog.state)))
    registry.forget(gone)
    return [query.name for query in gone], left


def _released(registry: Registry, captures: Sequence[Capture]) -> AbstractContextManager[str]:
    from cq_engine.lifecycle.captures import released  # who has none does without what it imports

    return released(registry, captures)


def _with_it(names: Iterable[str]) -> str:
    shown = ", ".join(names)
    return f", and with it {shown}" if shown else ""
