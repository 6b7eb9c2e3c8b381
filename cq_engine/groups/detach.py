"""How a member of a query group becomes a query of its own: with its states and its rows of the shared delta log."""

from __future__ import annotations

from dataclasses import replace

import pyarrow.compute as pc

from cq_engine.catalog.apply import allocate_id, replace_query
from cq_engine.catalog.change_rows import COMMIT_VERSION, SEQUENCE
from cq_engine.catalog.groups import without_empty
from cq_engine.catalog.model import CatalogState, ContinuousQuery, QueryGroup, QueryStatus, VersionedTable
from cq_engine.context.services import Services
from cq_engine.core.errors import CQError
from cq_engine.definition.analysis import allocate_states, compile_definition, shape_of
from cq_engine.definition.registry import Registry
from cq_engine.definition.start import Start, prepare_start
from cq_engine.planner.compiled import Compiled, recompute_in_full
from cq_engine.refresh.cluster import write_log
from cq_engine.spark.settings import meaning

__all__ = ["detach"]


def detach(registry: Registry, query: ContinuousQuery, state: str, error: str) -> ContinuousQuery:
    """Makes a member a query of its own at its group's position, in this state, with its part of the log.

    What it starts from is computed while others commit; the group stands still. Holds `Registry.ddl`. Raises CQError
    where Spark cannot evaluate the query.
    """
    assert query.group is not None
    services, catalog = registry.services, registry.services.catalog
    with registry.hold([query.group]), meaning(services.spark(), dict(query.session)):
        shape = shape_of(services, catalog.state, query.query, dict(query.source_columns))
        compiled = compile_definition(services, shape, query.key if query.declared else None)
        status = catalog.status(query.name)
        group = catalog.state.groups[query.group]
        found, own, compiled, start = _own_start(services, group, query, compiled, status.position)
        after = without_empty(replace_query(found, own))
        floor = catalog.floor(query.result.id)
        with catalog.lock, catalog.write(start.attempt) as unit:
            unit.set_state(after)
            start.write(unit)
            if floor:
                unit.set_floor(own.result, floor)
            unit.set_status(own.name, QueryStatus(status.position, state, error, status.last_refresh))
    registry.remember(own, compiled)
    return own


def _own_start(
    services: Services, group: QueryGroup, query: ContinuousQuery, compiled: Compiled, position: int
) -> tuple[CatalogState, ContinuousQuery, Compiled, Start]:
    """The state with the ids that are used, the definition, how it is compiled, and what it starts from.

    Where its states cannot be computed, because of what its constants do to some row, it is recomputed in full: then a
    refresh says so, and RESUME FROM a later version is the way on.
    """
    state, log_id = allocate_id(services.catalog.state)
    state, states = allocate_states(state, compiled, query.name)
    log = VersionedTable(log_id, "delta", query.name, group.pattern.result.columns, (SEQUENCE,))
    own = replace(
        query, result=log, states=states, group=None, constants=(), verdict=compiled.verdict,
        reasons=compiled.reasons,
    )  # fmt: skip
    try:
        start = prepare_start(services, own, compiled, position, snapshot=False)
    except CQError:
        compiled = recompute_in_full(
            compiled, "its states could not be computed when it was detached from its query group"
        )
        options = tuple({**dict(own.options), "refresh": "full"}.items())
        own = replace(own, states=(), options=options, verdict=compiled.verdict, reasons=compiled.reasons)
        start = Start(position)
    _copy_log(services, start, query, own, position)
    return state, own, compiled, start


def _copy_log(
    services: Services, start: Start, query: ContinuousQuery, own: ContinuousQuery, position: int
) -> None:
    first = max(query.created_version - 1, services.catalog.floor(query.result.id), 0)
    most = services.limits.refresh_inline_bytes
    rows = services.reader.changes_arrow(query.result, first, position, limit_bytes=most)
    sets = services.catalog.changes(query.result.id, first + 1, position)
    kinds = frozenset().union(*(c.kinds for c in sets))
    if rows is None:
        start.attempt = start.attempt or services.catalog.attempt("create")
        frame = services.reader.changes(query.result, first, position)
        count = sum(
            each.rows for each in sets
        )  # of all members of the group: more than there are, rather than fewer
        files = write_log(services, start.attempt, own, frame, first, position, rows=count)
        start.logs.append((own.result, first + 1, position, files, kinds))
    elif rows.num_rows:
        bounds = pc.min_max(rows.column(COMMIT_VERSION)).as_py()
        start.logs.append((own.result, bounds["min"], bounds["max"], rows, kinds))
