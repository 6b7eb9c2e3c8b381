"""What statements about destinations do, and how destinations are shown."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from functools import partial

import pyarrow as pa

from cq_engine.api.locating import word_place
from cq_engine.api.show import facts, typed_rows
from cq_engine.api.warehouse import Warehouse
from cq_engine.catalog import queues
from cq_engine.catalog.destinations import MERGE, deliverers, find_destination, reference
from cq_engine.catalog.model import ContinuousQuery, Cursor, DeclaredDestination
from cq_engine.catalog.queues import Place, Standing
from cq_engine.catalog.store import Catalog
from cq_engine.core.errors import CQError, location_at
from cq_engine.destinations import cursor_name, needed_from, policy_of
from cq_engine.grammar import AlterDestination, CreateDestination, DestinationRef, DropDestination
from cq_engine.lifecycle import destinations
from cq_engine.query.result import Result

__all__ = ["describe", "run", "show"]

_COLUMNS = {
    "query": pa.string(), "destination": pa.string(), "type": pa.string(), "state": pa.string(),
    "delivered": pa.int64(), "lag_versions": pa.int64(), "lag_seconds": pa.float64(), "rows": pa.int64(),
    "failures": pa.int64(), "dead": pa.int64(), "error": pa.string(),
}  # fmt: skip


def run(
    statement: CreateDestination | AlterDestination | DropDestination, engine: Warehouse, sql: str
) -> str:
    """Runs the statement, whose text is `sql`; the message for a person."""
    place = word_place(sql)
    try:
        if isinstance(statement, CreateDestination):
            return destinations.create(engine.queries, statement, place, partial(location_at, sql))
        if isinstance(statement, AlterDestination):
            return destinations.alter(engine.queries, statement, place)
        return destinations.drop(engine.queries, statement)
    except CQError as error:
        query = statement.query if isinstance(statement, AlterDestination) else None
        if error.location is None:
            error.location = place(query) if query and query in error.message else place(statement.name, 0)
        raise


def show(engine: Warehouse) -> Result:
    """SHOW DESTINATIONS: one row for each query and destination, and for each that no query delivers to."""
    state = engine.catalog.state
    rows: list[tuple[object, ...]] = []
    used: set[str] = set()
    for query in sorted(state.queries.values(), key=lambda each: each.name):
        for ref in query.destinations:
            used.add(ref.name.lower())
            rows.append(_row(engine, query, ref))
    for name, declared in sorted(state.destinations.items()):
        if name not in used:
            shown = "PAUSED" if declared.paused else "UNUSED"
            rows.append((None, declared.name, declared.type.lower(), shown, *[None] * 6, ""))
    return typed_rows(_COLUMNS, rows)


def _row(engine: Warehouse, query: ContinuousQuery, ref: DestinationRef) -> tuple[object, ...]:
    catalog = engine.catalog
    status = catalog.status(query.name)
    if ref.kind == MERGE:
        standing = (status.state, status.position, 0, 0.0, None, 0, 0, status.error)
        return (query.name, ref.name, "table", *standing)
    if ref.kind == "QUEUE":
        return _queue_row(engine, query, ref)
    name = cursor_name(ref.kind or "TABLE", ref.name)
    cursor = engine.queries.delivery.told(catalog.cursor(query.name, name) or Cursor(query.name, name, 0))
    shown = "RETRYING" if cursor.failures else "ACTIVE"
    shown = "PAUSED" if policy_of(catalog.state, ref).at_rest(cursor) else shown
    versions, seconds = _lag(engine, query, cursor, status.position)
    return (
        query.name, ref.name, (ref.kind or "TABLE").lower(), shown, cursor.version, versions, seconds, cursor.rows,
        cursor.failures, cursor.dead, cursor.error,
    )  # fmt: skip


def _queue_row(engine: Warehouse, query: ContinuousQuery, ref: DestinationRef) -> tuple[object, ...]:
    """Of a queue: the lag is that of the group that is furthest behind, the numbers of messages are those of all groups."""
    catalog, key = engine.catalog, query.name.lower()
    with catalog.reading() as connection:
        groups = queues.standings(connection, cursor_name("QUEUE", ref.name))
    at = min(_finished(engine, query, ref, each) for each in (groups or {"": queues.Standing()}).values())
    versions, seconds = _lag(engine, query, Cursor(query.name, "", *at), catalog.status(query.name).position)
    known = [each.positions[key] for each in groups.values() if key in each.positions]
    shown = "PAUSED" if policy_of(catalog.state, ref).paused else "ACTIVE"
    finished, dead = sum(each.finished for each in known), sum(each.dead for each in known)
    return (
        query.name,
        ref.name,
        "queue",
        shown,
        needed_from(Cursor("", "", *at)),
        versions,
        seconds,
        finished,
        0,
        dead,
        "",
    )


def _finished(engine: Warehouse, query: ContinuousQuery, ref: DestinationRef, standing: Standing) -> Place:
    """Up to where a group has finished the messages of a query, as a cursor has it."""
    catalog, key = engine.catalog, query.name.lower()
    cursor = catalog.cursor(query.name, cursor_name("QUEUE", ref.name))
    known = standing.positions.get(key)
    version, sequence = (
        (0 if cursor is None else cursor.version, queues.END) if known is None else known.place
    )
    version, sequence = max((version, sequence), (catalog.floor(query.result.id), queues.END))
    first = min((each.place for each in standing.given if each.query == key), default=None)
    if first is not None and first <= (version, sequence):
        version, sequence = first[0], first[1] - 1
        return (version, sequence) if sequence > 0 else (version - 1, 0)
    return version, 0 if sequence == queues.END else sequence


def _lag(engine: Warehouse, query: ContinuousQuery, cursor: Cursor, position: int) -> tuple[int, float]:
    """Versions from the first delta that waits up to the query's position, and how old that delta is; 0 where none waits."""
    catalog, after = engine.catalog, needed_from(cursor)
    if not engine.queries.delivery.has_rows(query, after, position):
        return 0, 0.0
    sets = catalog.changes(query.result.id, after + 1, position)
    first = max(after + 1, min(each.low for each in sets))
    return position - first + 1, _age(catalog, first, position, engine.now)


def _age(catalog: Catalog, first: int, last: int, now: datetime) -> float:
    times = catalog.timestamps(first, last)
    return round(max(0.0, (now - times[min(times)]).total_seconds()), 3) if times else 0.0


def describe(engine: Warehouse, name: str) -> Result:
    """DESCRIBE DESTINATION: what was declared, and for each query where it stands."""
    state = engine.catalog.state
    found = find_destination(state, name)
    known = [
        ("name", found.name),
        ("type", found.type.lower()),
        ("declared", "yes" if found.name.lower() in state.destinations else "no, by DESTINATION clauses"),
        ("state", "PAUSED" if found.paused else "ACTIVE"),
        *_script(found),
        *(("option", f"{option} = {value}") for option, value in found.options),
        *(("query", text) for text in _standings(engine, found.name)),
        *_groups(engine, found),
    ]
    return facts(known)


def _groups(engine: Warehouse, found: DeclaredDestination) -> Iterator[tuple[str, str]]:
    """Of a queue its groups of consumers, each with what it has and has done."""
    if found.type != "QUEUE":
        return
    with engine.catalog.reading() as connection:
        groups = queues.standings(connection, cursor_name("QUEUE", found.name))
        now = engine.catalog.database_time(connection)
    for name, standing in groups.items():
        flying = sum(each.due > now for each in standing.given)
        finished = sum(each.finished for each in standing.positions.values())
        dead = sum(each.dead for each in standing.positions.values())
        said = f"{name}, acknowledged {finished}, in flight {flying}, to be given again {len(standing.given) - flying}"
        yield "group", said + (f", dead {dead}" if dead else "")


def _script(found: DeclaredDestination) -> Iterator[tuple[str, str]]:
    if found.script is not None:
        yield "script", found.script.text
        yield "for each", "row" if found.script.each_row else "transaction"
        if found.script.condition:
            yield "when", found.script.condition


_AT = ("delivered", "lag_versions", "lag_seconds", "rows", "failures", "dead", "error")


def _standings(engine: Warehouse, name: str) -> Iterator[str]:
    for query in deliverers(engine.catalog.state, name):
        ref = reference(query, name)
        assert ref is not None
        row = dict(zip(_COLUMNS, _row(engine, query, ref)))
        yield ", ".join([query.name, str(row["state"]), *(f"{key} {row[key]}" for key in _AT if row[key])])
