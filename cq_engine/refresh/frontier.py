"""How far a query over other queries can go, and what holds it up.

A query that reads the results of others sees them as tables, which are known up to the position of the query that
makes them, or further where nothing that it reads has changed since. Its own refresh ends where all of them are known.
A compressed query has a result
only at the ends of its refreshes, so that no reader may stop in between: else two branches of a diamond would be read
as they were at different commits. The same holds for an interval that was skipped.
"""

from __future__ import annotations

from collections.abc import Iterable

from cq_engine.catalog.graph import ancestors, source_query, upstreams
from cq_engine.catalog.model import ContinuousQuery
from cq_engine.catalog.store import Catalog

__all__ = ["REDEFINED", "SKIPPED", "frontier", "version_known", "waiting_for", "whole_version"]

SKIPPED = "SKIPPED"
REDEFINED = "REDEFINED"
_JUMPS = frozenset({SKIPPED, REDEFINED})
"""What stands for the plan in a refresh record where the result went from one version to another in one step."""


def frontier(catalog: Catalog, sources: Iterable[str], upto: int | None = None) -> int:
    """The newest version, at most `upto`, to which a query over `sources` can be refreshed."""
    names = list(sources)
    state = catalog.state
    newest = catalog.newest_version if upto is None else min(upto, catalog.newest_version)
    end = min([newest, *(version_known(catalog, q, newest) for q in upstreams(state, names))])
    above = ancestors(state, names)
    while True:
        lower = min(
            [end, *(whole_version(catalog, q, end) for q in above if catalog.status(q.name).position > end)]
        )
        if lower == end:
            return end
        end = lower


def version_known(catalog: Catalog, query: ContinuousQuery, newest: int) -> int:
    """The version up to which the query's result is known: its position, or later where nothing that it reads has
    changed since."""
    position = catalog.status(query.name).position
    state, end = catalog.state, newest
    for name in query.sources:
        if end <= position:
            return position
        above = source_query(state, name)
        if above is not None:
            end = min(end, version_known(catalog, above, newest))
        table = state.tables[name] if above is None else above.relation
        if table is not None:
            sets = catalog.changes(table.storage.id, position + 1, end)
            end = min([end, *(each.low - 1 for each in sets)])
    return max(position, end)


def whole_version(catalog: Catalog, query: ContinuousQuery, version: int) -> int:
    """The newest version up to `version` at which the query's result is that of its sources."""
    record = catalog.refresh_around(query.name, version)
    jumped = record is not None and (query.mode == "COMPRESSED" or record.plan in _JUMPS)
    return record.from_version if record is not None and jumped else version


def waiting_for(catalog: Catalog, query: ContinuousQuery) -> str:
    """Which of the queries that it reads keep `query` from going on, for a person; empty where none does."""
    newest = catalog.newest_version
    if frontier(catalog, query.sources) >= newest:
        return ""
    held = []
    for each in ancestors(catalog.state, query.sources):
        status = catalog.status(each.name)
        if status.state != "ACTIVE" and version_known(catalog, each, newest) < newest:
            held.append(f"{each.name}, which is {status.state} at version {status.position}")
    return f"waits for {'; '.join(held)}" if held else ""
