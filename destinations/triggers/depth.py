"""How many triggers have led to a delta: what keeps triggers that cause one another from going on without end.

The number is stored with every commit that a trigger makes, and with those of table destinations on the way, in the
catalog transaction of the commit.
"""

from __future__ import annotations

from cq_engine.catalog.graph import ancestors
from cq_engine.catalog.model import ContinuousQuery
from cq_engine.context.services import Services

__all__ = ["depth_of"]


def depth_of(services: Services, query: ContinuousQuery, after: int, upto: int) -> int:
    """The number for the deltas of (after, upto]: 0 where a commit of a user is among those that they come from."""
    catalog, state = services.catalog, services.catalog.state
    if not any(each.type == "TRIGGER" for each in state.destinations.values()):
        return 0
    queries = [query, *ancestors(state, query.sources)]
    if all(each.mode == "TRANSACTIONAL" for each in queries):
        after = max(after, upto - 1)
    depths = catalog.depths(after + 1, upto)
    if not depths:
        return 0
    names = {source.lower() for each in queries for source in each.sources} & state.tables.keys()
    changes = [c for name in names for c in catalog.changes(state.tables[name].storage.id, after + 1, upto)]
    spans = {
        (max(c.low, after + 1), min(c.high, upto)) for c in changes
    }  # several commits where they were merged
    commits = {version for low, high in spans for version in catalog.timestamps(low, high)}
    return min((depths.get(version, 0) for version in commits), default=0)
