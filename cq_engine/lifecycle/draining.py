"""Which queries have something to process, and waiting until none has."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from cq_engine.catalog.change_rows import EVENTS
from cq_engine.catalog.graph import source_query
from cq_engine.catalog.model import ContinuousQuery
from cq_engine.catalog.requests import LOOK_SECONDS
from cq_engine.catalog.store import Catalog
from cq_engine.core.calls import carried
from cq_engine.core.errors import CQError, RefreshError
from cq_engine.delivery.undelivered import NAMED, refusal
from cq_engine.destinations import class_of
from cq_engine.grammar import OnCommit, OnDml
from cq_engine.refresh.frontier import frontier
from cq_engine.schedule.scheduler import Scheduler

if TYPE_CHECKING:
    from cq_engine.lifecycle.queries import Queries

__all__ = ["drain", "drain_callbacks", "has_news"]


def has_news(catalog: Catalog, query: ContinuousQuery) -> bool:
    """Whether a commit after the query's position is one that its WHEN waits for."""
    when, state = query.when, catalog.state
    if not isinstance(when, OnCommit | OnDml):
        return False
    events = frozenset(when.events if isinstance(when, OnDml) else EVENTS)
    watched = [name.lower() for name in when.tables] if isinstance(when, OnDml) else query.sources
    low, high = catalog.status(query.name).position + 1, frontier(catalog, query.sources)
    above = [source_query(state, name) for name in watched]
    tables = [state.tables.get(n) if q is None else q.relation for n, q in zip(watched, above)]
    stored = [table.storage.id for table in tables if table is not None]
    return any(c.kinds & events for number in stored for c in catalog.changes(number, low, high))


def drain(queries: Queries, scheduler: Scheduler, timeout: float | None) -> None:
    """Returns when every ON COMMIT query has processed, and every destination has received, the newest commit.

    Raises RefreshError and DestinationError, see `Engine.drain`.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        queries.services.catalog.follow(wait=1.0)
        remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
        if not scheduler.drain(remaining):
            raise _restless(queries, scheduler, timeout)
        active, late = _to_drain(queries)
        if not late and not any(map(queries.delivery.waiting, active)):
            return
        if deadline is not None and time.monotonic() >= deadline:
            raise _restless(queries, scheduler, timeout)
        if len(late) > 1:
            together = queries.services.limits.drain_refreshes
            with ThreadPoolExecutor(together, thread_name_prefix="cq-drain") as pool:
                refresh = carried(queries.refreshes.refresh)
                for done in [pool.submit(refresh, query.name) for query in late]:
                    done.result()
        elif late:
            queries.refreshes.refresh(late[0].name)
        if not late and not queries.delivery.drain(active, deadline):
            raise _restless(queries, scheduler, timeout)


def drain_callbacks(queries: Queries, timeout: float | None, *, here: bool) -> None:
    """Returns when the callbacks of other processes, and `here` those of this one, have received what is refreshed.

    Raises DestinationError where one of this process refuses, RefreshError where `timeout` (seconds) has passed, or, for
    another process's without a time-out, `Limits.lease_seconds`.
    """
    services, delivery = queries.services, queries.delivery
    deadline = None if timeout is None else time.monotonic() + timeout
    chosen = [query for query in services.catalog.state.queries.values() if query.destinations]
    if here and any(map(delivery.waiting, chosen)):
        delivery.drain(chosen, deadline)
    end = time.monotonic() + (services.limits.lease_seconds if timeout is None else timeout)
    while left := delivery.undelivered(chosen, elsewhere=True):
        left = [each for each in left if class_of(each.destination).registered]
        if not left:
            return
        if time.monotonic() > end:
            names = ", ".join(each.name for each in left[:NAMED])
            raise RefreshError(
                f"not drained: {names}", detail="another process has registered the callback and is behind"
            )
        time.sleep(LOOK_SECONDS)
        services.catalog.follow()


def _restless(queries: Queries, scheduler: Scheduler, timeout: float | None) -> CQError:
    """What does not come to rest, and why: queries with commits to process, destinations that refuse or are slow."""
    catalog = queries.services.catalog
    running = scheduler.busy()
    active, late = _to_drain(queries)
    behind = dict.fromkeys([*running, *(query.name for query in late)])
    undelivered = queries.delivery.undelivered(active)
    refused = [each for each in undelivered if each.error]
    if refused and not behind:
        return refusal(refused)
    said = []
    for name in behind:
        doing = "is being refreshed" if name in running else "has commits to process"
        said.append(f"{name} {doing}: version {catalog.status(name).position} of {catalog.newest_version}")
    for each in undelivered:
        doing = f"failed: {each.error}" if each.error else "is being served"
        said.append(f"{each.name} {doing}: version {each.version} of {each.wanted}")
    more = [f"and {len(said) - NAMED} more"] if len(said) > NAMED else []
    return RefreshError(f"not drained within {timeout} seconds", detail="; ".join([*said[:NAMED], *more]))


def _to_drain(queries: Queries) -> tuple[list[ContinuousQuery], list[ContinuousQuery]]:
    """The queries that are not paused, and those of them that have commits to process."""
    catalog = queries.services.catalog
    active, late = [], []
    state = catalog.state
    for query in (*(t.query for t in state.groups.values()), *state.queries.values()):
        if query.group is not None:
            if query.destinations:
                active.append(query)
            continue
        status = catalog.status(query.name)
        if status.state == "FAILED" and isinstance(query.when, OnCommit):
            raise RefreshError(f"{query.name} has failed", detail=status.error)
        if status.state != "PAUSED":
            active.append(query)
        if status.state == "ACTIVE" and isinstance(query.when, OnCommit) and has_news(catalog, query):
            late.append(query)
    return active, late
