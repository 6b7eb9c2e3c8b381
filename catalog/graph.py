"""Which continuous queries read which: the graph of a CatalogState, as pure functions.

A query reads tables, and the results of other queries by their names, or by those of destinations that are their results;
where a table and a query have one name, it means the table. Nothing here follows destination tables except
`origins`, since a table has a version of its own for every delivery.
"""

from __future__ import annotations

from collections.abc import Iterable

from cq_engine.catalog.destinations import merged_by, merged_names
from cq_engine.catalog.model import CatalogState, ContinuousQuery
from cq_engine.core.options import SHED

__all__ = [
    "ancestors",
    "names_of",
    "origins",
    "readers",
    "sheds",
    "source_query",
    "table_readers",
    "upstreams",
]


def sheds(query: ContinuousQuery) -> bool:
    """May rows be left out of its result? Then nothing but the table that is kept of it has its rows."""
    return SHED in dict(query.options)


def source_query(state: CatalogState, name: str) -> ContinuousQuery | None:
    """The query whose result `name` means in a query, or None."""
    if name.lower() in state.tables:
        return None
    return state.queries.get(name.lower()) or merged_by(state, name)


def upstreams(state: CatalogState, sources: Iterable[str]) -> list[ContinuousQuery]:
    """The queries among the names `sources`."""
    found = (source_query(state, name) for name in dict.fromkeys(s.lower() for s in sources))
    return [query for query in found if query is not None]


def ancestors(state: CatalogState, sources: Iterable[str]) -> list[ContinuousQuery]:
    """All queries whose results reach `sources`, each after those that it reads itself."""
    found: dict[str, ContinuousQuery] = {}

    def visit(names: Iterable[str]) -> None:
        for query in upstreams(state, names):
            if query.name not in found:
                visit(query.sources)
                found[query.name] = query

    visit(sources)
    return list(found.values())


def readers(state: CatalogState, name: str) -> list[ContinuousQuery]:
    """The queries that read the query `name` themselves."""
    return [] if name.lower() in state.tables else table_readers(state, name)


def table_readers(state: CatalogState, name: str) -> list[ContinuousQuery]:
    """The queries that read what `name` means."""
    query = source_query(state, name)
    names = {name.lower()} if query is None else names_of(query)
    return [q for q in state.queries.values() if not names.isdisjoint(s.lower() for s in q.sources)]


def names_of(query: ContinuousQuery) -> set[str]:
    """The lower-case names under which the query's result can be read."""
    return {query.name.lower(), *(name.lower() for name in merged_names(query))}


def origins(state: CatalogState, query: ContinuousQuery) -> set[str]:
    """The lower-case names of all tables and queries whose changes reach `query`, destination tables followed, too.

    An older definition of the same name in `state` is not looked at.
    """
    found: set[str] = set()
    waiting = [source.lower() for source in query.sources]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        if name == query.name.lower():
            continue
        above = source_query(state, name)
        if above is not None:
            found.add(above.name.lower())
            waiting += [source.lower() for source in above.sources]
        waiting += [
            q.name.lower() for q in state.queries.values() if _delivers(q, name) and q.name != query.name
        ]
    return found


def _delivers(query: ContinuousQuery, table: str) -> bool:
    return any(d.name.lower() == table and d.kind in (None, "TABLE") for d in query.destinations)
