"""What a definition must meet and where it begins: options, start version, destinations, no cycle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NoReturn

from cq_engine.algebra.nodes import Filter, Project, Scan
from cq_engine.catalog import apply
from cq_engine.catalog.destinations import MERGE, check_unread, merged_by
from cq_engine.catalog.graph import names_of, origins, readers, sheds, upstreams
from cq_engine.catalog.model import PARTIAL, CatalogState, ContinuousQuery
from cq_engine.catalog.schema import stale
from cq_engine.catalog.unit import UnitOfWork
from cq_engine.context.services import Services
from cq_engine.core.errors import AnalysisError, CatalogError, did_you_mean
from cq_engine.core.options import JOIN, MEMORY, ORDER, SHED, option_names, option_value
from cq_engine.delivery.delivery import Delivery
from cq_engine.destinations import class_of
from cq_engine.grammar import DestinationRef, StartFrom
from cq_engine.planner.compiled import Compiled
from cq_engine.refresh.frontier import frontier, waiting_for

__all__ = [
    "add_own_commit",
    "check_current",
    "check_options",
    "check_shed",
    "check_targets",
    "notes",
    "start_version",
    "with_destinations",
    "without",
]


def check_options(query: ContinuousQuery) -> None:
    """Raises AnalysisError for WITH options that are unknown or that the query does not meet."""
    options, known = dict(query.options), option_names("query")
    for name in options:
        if name not in known:
            raise AnalysisError(
                f"there is no option {name} of a continuous query",
                hint=did_you_mean(name, known, f"the options are {', '.join(known)}"),
            )
    values = {name: option_value(name, options).lower() for name in known}
    wanted, form = values["refresh"], values["form"]
    if form == "recompute" and wanted == "incremental":
        raise AnalysisError(
            "refresh = incremental and form = recompute contradict each other", hint="leave one of them out"
        )
    if form == "recompute" and query.mode != "COMPRESSED":
        raise AnalysisError(
            "form = recompute is for compressed deltas",
            detail="a transactional delta says what every single commit changed",
            hint="COMPUTE COMPRESSED, or WITH (refresh = 'full') to run the query before and after each commit",
        )
    if values["complete"] == "lookup" and query.verdict == PARTIAL:
        raise AnalysisError(
            f"the changes that {query.name} reads cannot be completed",
            detail="complete = 'lookup' looks up old rows in snapshots, and one of its tables was created WITHOUT SNAPSHOT",
            hint="create the table with a snapshot, or leave the option out",
        )
    _check_join(query, options, values)
    if wanted == "incremental" and query.verdict == "FULL":
        raise AnalysisError(
            f"{query.name} cannot be maintained incrementally", detail="; ".join(query.reasons),
            hint="leave out refresh = 'incremental' to have it recomputed in full",
        )  # fmt: skip


def _check_join(query: ContinuousQuery, options: Mapping[str, str], values: Mapping[str, str]) -> None:
    """Raises AnalysisError for options of a mesh join where there is none."""
    if values[JOIN] == "look_up":  # said after 'mesh' was, it leaves the others as they are
        idle = next((name for name in (MEMORY, ORDER) if name in options and JOIN not in options), None)
        if idle is not None:
            raise AnalysisError(
                f"{idle} is an option of a mesh join, and {query.name} has none",
                hint=f"WITH ({JOIN} = 'mesh', {idle} = '{options[idle]}'), or leave it out",
            )
    elif query.verdict in ("FULL", PARTIAL):
        raise AnalysisError(
            f"{JOIN} = '{values[JOIN]}' is for queries that look rows up, and {query.name} is {query.verdict}",
            detail="; ".join(query.reasons),
            hint="leave the option out",
        )
    elif values["form"] == "recompute":
        raise AnalysisError(
            f"{JOIN} = '{values[JOIN]}' and form = recompute contradict each other",
            detail="a result that is computed anew looks no rows up",
            hint="leave one of them out",
        )


def check_shed(query: ContinuousQuery, compiled: Compiled) -> None:
    """Raises AnalysisError for load shedding by a query that does not show rows of one table by their key."""
    node = compiled.node
    while isinstance(node, Filter | Project):
        node = node.input
    if sheds(query) and not (isinstance(node, Scan) and query.key and not query.states):
        raise AnalysisError(
            f"{SHED} is for queries that select rows of one table, with its key",
            detail=f"of what {query.name} gives, it could not be said which changes are about rows that were left out",
            hint="create a query AS SELECT * FROM the stream WITH (shed = …), and let this one read its result",
        )


def start_version(
    services: Services, start: StartFrom, query: ContinuousQuery, compiled: Compiled, *, kept: bool = False
) -> int:
    """The version the query starts from; 1 more than there is where its first state, or its result that is to be `kept`,
    needs a commit to stand at."""
    newest = services.catalog.newest_version
    end = frontier(services.catalog, query.sources)
    if start.point == "VERSION":
        assert start.version is not None
        if start.version > end:
            raise AnalysisError(
                f"START FROM VERSION {start.version}: there is no such commit yet",
                hint=f"the newest commit version is {newest}"
                + (f"; what {query.name} reads has got to {end}" if end < newest else ""),
            )
        version = start.version
        if frontier(services.catalog, query.sources, version) < version:
            raise AnalysisError(
                f"START FROM VERSION {version} lies inside a refresh of a compressed query that {query.name} reads"
            )
    else:
        scalar = any(not each.keys for each in compiled.states)  # its state has a row even over empty tables
        needs_row = start.point == "SNAPSHOT" or scalar or kept
        version = 1 if newest == 0 and needs_row else end
    for table in compiled.sources.values():
        if version < table.created_version:
            _too_early(query.name, table.name, version, table.created_version, table.storage.kind)
    return version


def check_targets(delivery: Delivery, query: ContinuousQuery, state: CatalogState) -> None:
    """Raises DestinationError for a destination that the query's rows do not fit, other than a table of the warehouse;
    where that is outside of it, it is asked."""
    for ref in query.destinations:
        settled = DestinationRef(ref.name, delivery.kind_of(ref))
        if settled.kind not in ("TABLE", MERGE):
            delivery.check(query, settled, state)


def with_destinations(
    delivery: Delivery, query: ContinuousQuery, state: CatalogState, *, checked: bool = False
) -> tuple[ContinuousQuery, CatalogState, list[str]]:
    """Destinations with their kinds settled; tables that do not exist are added to the state. `checked`: `check_targets` was
    called before, when nothing was held."""
    if not checked:
        check_targets(delivery, query, state)
    settled, made = [], []
    for ref in query.destinations:
        kind = delivery.kind_of(ref)
        settled.append(DestinationRef(ref.name, kind))
        other = merged_by(state, ref.name) if kind == MERGE else None
        if other is not None and other.name.lower() != query.name.lower():
            raise CatalogError(
                f"destination {ref.name} is the result of {other.name}",
                detail="with mode = 'merge' it cannot be that of another query, too",
                hint="create another destination",
            )
        if kind == MERGE:
            continue
        known, state = state, class_of(settled[-1]).admit(delivery.services, query, state, ref.name)
        if ref.name.lower() in state.tables and ref.name.lower() not in known.tables:
            made.append(ref.name)
    query = replace(query, destinations=tuple(settled))
    _no_cycle(state, query)
    _still_read(state, query)
    return query, state, made


def check_current(services: Services, query: ContinuousQuery) -> None:
    """Raises AnalysisError where something that `query` reads is behind: a version of its own would pass it over."""
    catalog = services.catalog
    if frontier(catalog, query.sources) == catalog.newest_version:
        return
    raise AnalysisError(
        f"{query.name} cannot go on at a new version: what it reads is not up to date",
        detail=f"{query.name} {waiting_for(catalog, query)}",
        hint="RESUME or REFRESH that first",
    )


def notes(services: Services, query: ContinuousQuery, made: Sequence[str]) -> list[str]:
    """What a person is told of a new definition, besides its reasons; `made` are the tables created for it."""
    said = [f"destination table {name} created" for name in made]
    if query.verdict == "FULL":
        said.append(
            "warning: every refresh runs the whole query, once for each commit that touches its tables"
        )
    if query.mode == "COMPRESSED":
        said.append("compressed: what comes and goes between two refreshes is not seen")
    catalog = services.catalog
    above = upstreams(catalog.state, query.sources)
    packed = [each.name for each in above if each.mode == "COMPRESSED"]
    if packed and query.mode == "TRANSACTIONAL":
        said.append(f"compressed, so that it changes only when it is refreshed: {', '.join(packed)}")
    waits = waiting_for(catalog, query)
    return [*said, waits] if waits else said


def add_own_commit(services: Services, unit: UnitOfWork, version: int) -> None:
    """Makes `version`, which was the next one when the work began, a commit of the engine's own: at the clock's time, or
    at that of the newest commit where it is later. Raises what makes the work begin again where another process has
    committed meanwhile."""
    catalog = services.catalog
    if catalog.newest_version >= version:
        raise stale("the newest commit version")
    newest, now = catalog.newest_timestamp, services.clock.now()
    unit.add_commit(version, now if newest is None or now >= newest else newest)


def without(state: CatalogState, query: ContinuousQuery, why: str) -> CatalogState:
    """The state without a query that is to be replaced; what it read is still kept."""
    users = readers(state, query.name)
    if users:
        raise CatalogError(
            f"continuous query {query.name} is in use and cannot start anew",
            detail=f"read by {', '.join(user.name for user in users)}" + (f"; {why}" if why else ""),
            hint="keep the result's columns and key and leave START FROM out, or drop those first",
        )
    dropped = apply.drop_query(state, query.name)
    return replace(dropped, queries={name: state.queries[name] for name in dropped.queries})


def _still_read(state: CatalogState, query: ContinuousQuery) -> None:
    """Raises CatalogError where a name of the result would go under which another query reads it."""
    known = state.queries.get(query.name.lower())
    gone = names_of(known) - names_of(query) if known is not None else set()
    for name in sorted(gone):
        check_unread(state, name, query.name)


def _no_cycle(state: CatalogState, query: ContinuousQuery) -> None:
    """Raises AnalysisError where the query's own changes would reach it again."""
    if not upstreams(state, query.sources) and not any(ref.kind == "TABLE" for ref in query.destinations):
        return
    before = origins(state, query)
    if query.name.lower() in before and query.name.lower() not in state.tables:
        raise AnalysisError(
            f"{query.name} would read its own result",
            detail=f"it reads {', '.join(query.sources)}",
            hint="a continuous query can only read what does not depend on it",
        )
    for ref in query.destinations:
        if ref.kind == "TABLE" and ref.name.lower() in before:
            through = "" if ref.name.lower() in query.sources else " through other queries"
            raise AnalysisError(
                f"{query.name} would deliver into {ref.name}, which it reads{through}",
                hint="choose another destination; every delivery would cause another",
            )


def _too_early(name: str, source: str, version: int, first: int, kind: str) -> NoReturn:
    if kind == "result":
        raise AnalysisError(
            f"{name} cannot start from version {version}: the result of {source} is kept from version {first} on",
            detail="it is kept from the moment that a first query reads it",
            hint=f"start from {first} or later",
        )
    raise AnalysisError(
        f"START FROM VERSION {version}: table {source} did not exist",
        hint=f"it was created at version {first}",
    )
