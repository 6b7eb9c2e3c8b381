"""Retention: which versions of a table must stay, and forgetting the rest.

A version stays where somebody may still ask for it:

- the position of every query that reads the table, whatever its state, since its next refresh begins there;
- the cursors of a query's destinations, for its delta log, and of a queue what its own retention says; those of all
  members of a query group for the log that they share;
- the versions that open transactions read, and queries that are being created;
- everything that was committed within the declared retention, and the image at its beginning;
- of what is published as Delta Lake, what is not published yet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from cq_engine.catalog.attempts import root_of
from cq_engine.catalog.flush import log_columns
from cq_engine.catalog.graph import readers, table_readers
from cq_engine.catalog.groups import members
from cq_engine.catalog.model import ContinuousQuery, QueryGroup, Table, VersionedTable
from cq_engine.context.services import Services
from cq_engine.core import faults
from cq_engine.core.errors import CatalogError, StorageError
from cq_engine.core.options import RETENTION, option_value, parse_retention
from cq_engine.core.troubles import Troubles
from cq_engine.destinations.queues.queue import needed_by

__all__ = ["Vacuumed", "outlived", "vacuum"]


@dataclass(frozen=True)
class Vacuumed:
    """What a vacuum did: files that nothing refers to any more, and files that were removed."""

    forgotten: int
    removed: int


def vacuum(
    services: Services,
    conf: Mapping[str, str],
    name: str | None = None,
    retain: timedelta | None = None,
    *,
    grace: float | None = None,
) -> Vacuumed:
    """Forgets the versions of one table or continuous query, or of all, that nobody can ask for any more.

    Args:
        services: the engine's parts.
        conf: the engine's options.
        name: of a table or continuous query; all where it is not given.
        retain: in the place of every declared retention.
        grace: seconds that the files of what is forgotten stay; by default those of the engine's limits.

    Raises:
        CatalogError: there is no such table or query.
        AnalysisError: a declared retention is no length of time.
    """
    catalog = services.catalog
    if name is not None and name.lower() not in {*catalog.state.tables, *catalog.state.queries}:
        raise CatalogError(f"there is no table or continuous query {name}")
    troubles = Troubles()
    forgotten = catalog.forget(lambda: _holds(services, conf, name, retain, troubles), logs=True)
    forgotten += catalog.disown(_superseded(services, conf, name, retain, troubles))
    if name is None and not catalog.store.is_local:
        from cq_engine.catalog.delta_compaction import strays  # which commits do without

        with troubles.of("files that nobody told of"):
            forgotten += catalog.disown(strays(catalog))
    faults.point("vacuum.after_catalog")
    removed = catalog.sweep(services.limits.grace_seconds if grace is None else grace)
    troubles.check("VACUUM")
    return Vacuumed(forgotten, removed)


@dataclass(frozen=True)
class _Subject:
    """What has versions: a table, a query that is refreshed by itself, or a query group."""

    name: str
    log: VersionedTable
    """What is published of it as a log."""
    options: Sequence[tuple[str, str]]
    retain: timedelta | None
    """In the place of the declared retention."""
    holds: Callable[[Services, int], Iterator[tuple[int, int]]]
    """From the version that reads and the retention keep: the id of each of its versioned tables, and the lowest version of
    that which may be asked for."""


def _subjects(services: Services, name: str | None, retain: timedelta | None) -> Iterator[_Subject]:
    """All, or those that a table or continuous query called `name` is a part of; a query group keeps its own retention
    unless all of its members are meant."""
    state, wanted = services.catalog.state, name and name.lower()
    for key, table in state.tables.items():
        if wanted in (None, key):
            yield _Subject(table.name, table.storage, table.options, retain, partial(_table_holds, table))
    for key, query in state.queries.items():
        if query.group is None and wanted in (None, key):
            yield _Subject(query.name, query.result, query.options, retain, partial(_query_holds, query))
    one = None if wanted is None else state.queries.get(wanted)
    for group in state.groups.values():
        if wanted is None or (one is not None and one.group == group.name):
            own, log, options = None if wanted else retain, group.query.result, group.query.options
            yield _Subject(group.name, log, options, own, partial(_group_holds, group))


def _superseded(
    services: Services,
    conf: Mapping[str, str],
    name: str | None,
    retain: timedelta | None,
    troubles: Troubles,
) -> list[str]:
    """The files of published logs that became parts of larger ones before the retention; what Delta Lake keeps of its own
    log is cut to as much. Without those that are in trouble."""
    found: list[str] = []
    for subject in _subjects(services, name, retain):
        with troubles.of(subject.name):
            found += _cut(services, conf, subject)
    return found


def _cut(services: Services, conf: Mapping[str, str], subject: _Subject) -> list[str]:
    """Of one of them; StorageError where the Delta table cannot be read."""
    from cq_engine.catalog.delta_compaction import cut_log, open_log, superseded  # which commits do without

    store, storage = services.catalog.store, services.catalog.view.storage.get(subject.log.id)
    declared, length = (_retention(conf, subject.options, each) for each in (None, subject.retain))
    if storage is None or not storage.published_log or (declared is None and length is None):
        return []
    root = root_of(storage, "log")
    handle = open_log(store, root)
    if handle is None:
        return []
    if declared is not None:
        cut_log(handle, store, root, _hours(declared))
    if length is None:
        return []
    return [f"{root}/{path}" for path in superseded(handle, store, root, _hours(length))]


def _hours(length: timedelta) -> int:
    return math.ceil(length / timedelta(hours=1))


def outlived(services: Services, conf: Mapping[str, str]) -> set[int]:
    """By id, the versioned tables of which changes stay that nobody may ask for, since no snapshot was made after them.

    Merging these changes lets the next vacuum but the retention forget them, however seldom the table is changed.
    """
    holds = _holds(services, conf, None, None, Troubles())
    declared = _retention_start(services, conf, (), None)
    view = services.catalog.view
    kinds = {number: table.kind for number, table in view.tables().items()}
    found: set[int] = set()
    with view.lock:
        for number, hold in holds.items():
            kind = kinds.get(number, "delta")
            if kind == "delta":  # its log needs no snapshot to be forgotten
                continue
            layout, end = view.layout(number), min(hold, declared) if kind == "state" else hold
            if any(layout.newest_snapshot < changes.high <= end for changes in layout.changes):
                found.add(number)
    return found


def _holds(
    services: Services,
    conf: Mapping[str, str],
    name: str | None,
    retain: timedelta | None,
    troubles: Troubles,
) -> dict[int, int]:
    """By id of a versioned table, the lowest version of it that may be asked for; without those that are in trouble."""
    held = services.read_holds.lowest(services.catalog.newest_version)
    found: dict[int, int] = {}
    for subject in _subjects(services, name, retain):
        with troubles.of(subject.name):
            declared = _retention_start(services, conf, subject.options, subject.retain)
            found.update(dict(subject.holds(services, min(held, declared))))
    return found


def _table_holds(table: Table, services: Services, low: int) -> Iterator[tuple[int, int]]:
    reading = _positions(services, table_readers(services.catalog.state, table.name.lower()))
    yield table.storage.id, min([low, *reading, *_publishing_from(services, table.storage)])


def _query_holds(query: ContinuousQuery, services: Services, low: int) -> Iterator[tuple[int, int]]:
    catalog = services.catalog
    position = catalog.status(query.name).position
    cursors = [needed_by(services, cursor) for cursor in catalog.cursors(query.name)]
    yield query.result.id, min([low, position, *cursors, *_publishing_from(services, query.result)])
    for _, table in query.states:
        yield table.id, position
    if query.relation is not None:
        above = _positions(services, readers(catalog.state, query.name))
        yield query.relation.storage.id, min([low, position, *above])


def _group_holds(group: QueryGroup, services: Services, low: int) -> Iterator[tuple[int, int]]:
    """The shared log stays above the position's predecessor: a new member's first snapshot stands at the position."""
    catalog, log = services.catalog, group.query.result
    position = catalog.status(group.name).position
    found = members(catalog.state, group)
    cursors = [needed_by(services, cursor) for query in found for cursor in catalog.cursors(query.name)]
    yield log.id, max(0, min([low, position - 1, *cursors, *_publishing_from(services, log)]))
    for _, table in group.query.states:
        yield table.id, position


def _positions(services: Services, queries: Sequence[ContinuousQuery]) -> list[int]:
    return [services.catalog.status(query.name).position for query in queries]


def _retention_start(
    services: Services, conf: Mapping[str, str], options: Sequence[tuple[str, str]], retain: timedelta | None
) -> int:
    """The version at the beginning of the retention: the newest commit that is at least as old."""
    length = _retention(conf, options, retain)
    if length is None:
        return 0
    try:
        return services.catalog.version_at(services.now() - length)
    except (StorageError, OverflowError):  # before the first commit
        return 0


def _retention(
    conf: Mapping[str, str], options: Sequence[tuple[str, str]], retain: timedelta | None
) -> timedelta | None:
    """None where versions are kept for ever."""
    if retain is not None:
        return retain
    own = {name.lower(): value for name, value in options}.get(RETENTION)
    return parse_retention(own or option_value(RETENTION, conf))


def _publishing_from(services: Services, table: VersionedTable) -> list[int]:
    """The version before the first change that is not published and is to be."""
    from cq_engine.catalog.delta_files import delta_schema  # which commits do without

    if delta_schema(log_columns(table)) is None:
        return []
    view = services.catalog.view
    storage = view.storage.get(table.id)
    with view.lock:
        waiting = view.layout(table.id).changes_after(0 if storage is None else storage.published_log)
    return [min(changes.low for changes in waiting) - 1] if waiting else []
