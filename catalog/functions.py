"""SQL functions in the catalog, as pure functions from one CatalogState to the next."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from cq_engine.catalog.model import CatalogState, SqlFunction
from cq_engine.core.errors import CatalogError, did_you_mean

__all__ = ["closure", "drop_function", "put_function", "users"]


def put_function(state: CatalogState, function: SqlFunction, *, or_replace: bool) -> CatalogState:
    """Adds `function`, or replaces the one of its name.

    Raises CatalogError where the name is taken, or where a continuous query calls what is to be replaced by another.
    """
    name = function.name.lower()
    known = state.functions.get(name)
    if known is not None and not or_replace:
        raise CatalogError(
            f"function {known.name} exists already", hint="choose another name, or CREATE OR REPLACE FUNCTION"
        )
    if known is not None and known.definition != function.definition:
        queries = [q.name for q in state.queries.values() if name in q.functions]
        if queries:
            raise CatalogError(
                f"function {known.name} cannot be replaced",
                detail=f"{', '.join(queries)} would take rows back with other values than it gave",
                hint="create one of another name, and ALTER CONTINUOUS QUERY ... AS to call it",
            )
    if name in closure(state, function.uses):
        raise CatalogError(f"function {function.name} would call itself")
    return replace(state, functions={**state.functions, name: function})


def drop_function(state: CatalogState, name: str) -> CatalogState:
    """Removes the function. Raises CatalogError where there is none, or where something calls it."""
    known = state.functions.get(name.lower())
    if known is None:
        names = [function.name for function in state.functions.values()]
        raise CatalogError(
            f"there is no SQL function {name}", hint=did_you_mean(name, names, "SHOW FUNCTIONS lists them")
        )
    using = users(state, name)
    if using:
        raise CatalogError(
            f"function {known.name} cannot be dropped",
            detail=f"it is called by {', '.join(using)}",
            hint="drop these first",
        )
    return replace(state, functions={n: f for n, f in state.functions.items() if n != name.lower()})


def users(state: CatalogState, name: str) -> list[str]:
    """The continuous queries and functions that call the function `name`."""
    wanted = name.lower()
    queries = [q.name for q in state.queries.values() if wanted in q.functions]
    return [*queries, *(f.name for f in state.functions.values() if wanted in f.uses)]


def closure(state: CatalogState, names: Iterable[str]) -> tuple[str, ...]:
    """`names` and the functions that the SQL functions among them call, lower case, in order of their names."""
    found: set[str] = set()
    waiting = [name.lower() for name in names]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += state.functions[name].uses if name in state.functions else ()
    return tuple(sorted(found))
