"""The queries that a new definition reads: up to date, at rest, and with their results kept as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from cq_engine.catalog import apply
from cq_engine.catalog.graph import upstreams
from cq_engine.catalog.model import ContinuousQuery
from cq_engine.core.errors import AnalysisError
from cq_engine.definition.analysis import define
from cq_engine.definition.rules import add_own_commit
from cq_engine.definition.start import Start, keep_relation
from cq_engine.grammar import CreateContinuousQuery
from cq_engine.lifecycle.drop import tidy
from cq_engine.lifecycle.queries import Queries
from cq_engine.query.references import find_references
from cq_engine.spark.settings import meaning

__all__ = ["hold_sources", "keep_own_result"]


@contextmanager
def hold_sources(
    queries: Queries, statement: CreateContinuousQuery, known: ContinuousQuery | None
) -> Iterator[None]:
    """The queries that `statement` reads stand still, up to date, and their results are kept as tables; so does `known`,
    whose result is kept where the statement has a destination that is the result.

    What is kept and then read by nobody goes again.
    """
    catalog, registry = queries.services.catalog, queries.registry
    names = [reference.name for reference in find_references(statement.query)]
    queries.refreshes.refresh_sources(names, statement.start.version)
    above = [query.name for query in upstreams(catalog.state, names)]
    for name in above:
        queries.groups.detach(registry.find(name))
    with registry.hold([*above, *([known.name] if known else [])]):
        try:
            own = [known.name] if known and queries.delivery.includes_result(statement.destinations) else []
            _keep_results(queries, statement, [*above, *own])
            yield
        except BaseException:
            tidy(registry)
            raise


@contextmanager
def keep_own_result(queries: Queries, name: str) -> Iterator[None]:
    """Gives the query, which is held, a table of its result; it goes again where the block does not make use of it."""
    try:
        _keep_results(queries, None, [name])
        yield
    except BaseException:
        tidy(queries.registry)
        raise


def _keep_results(queries: Queries, statement: CreateContinuousQuery | None, names: Sequence[str]) -> None:
    """Gives the queries `names` their tables, with the results at their positions, which `statement` will read."""
    services, registry = queries.services, queries.registry
    catalog = services.catalog
    missing = [name for name in names if registry.find(name).relation is None]
    if not missing:
        return
    with ExitStack() as held:
        if catalog.newest_version == 0:  # a result needs a commit to stand at, which nobody else must take
            held.enter_context(catalog.lock)
        first = catalog.newest_version == 0
        positions = {name: 1 if first else catalog.status(name).position for name in missing}
        for name, position in positions.items():
            if position == 0:
                raise AnalysisError(
                    f"{name} is {catalog.status(name).state} and has processed nothing yet",
                    hint=f"ALTER CONTINUOUS QUERY {name} RESUME and REFRESH it first",
                )
        known = catalog.state
        for name, position in positions.items():
            known = apply.with_relation(known, apply.find_query(known, name), position)
        if statement is not None:
            define(services, known, statement)  # what is wrong is said before anything is stored
        for name, position in positions.items():
            _keep_result(queries, name, position)


def _keep_result(queries: Queries, name: str, position: int) -> None:
    """Writes the table of a result with its rows: who sees the one sees the others."""
    services, catalog = queries.services, queries.services.catalog
    state = apply.with_relation(catalog.state, queries.find(name), position)
    query, start = apply.find_query(state, name), Start(position)
    new_version = position > catalog.newest_version
    with meaning(services.spark(), dict(query.session)):
        keep_relation(services, start, query, queries.registry.compiled(query))
    with catalog.lock, catalog.write(start.attempt) as unit:
        if new_version:
            add_own_commit(services, unit, position)
        unit.set_state(state)
        unit.set_status(name, replace(catalog.status(name), position=position))
        start.write(unit)
