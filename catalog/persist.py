"""WriteSet to database rows, and the whole database to a View.

Every write is a compare-and-set: what was resolved against a view is written only where the database holds what the
view does of it (versions, positions, cursors, files, marks), so that nothing that is computed from the past is stored,
whoever else writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row
from sqlalchemy.exc import IntegrityError

from cq_engine.catalog import capture_statuses, journal, queues, schema
from cq_engine.catalog.attempts import roots
from cq_engine.catalog.commits import from_micros, to_micros
from cq_engine.catalog.documents import from_text, to_text
from cq_engine.catalog.layouts import SnapshotFile, TableLayout
from cq_engine.catalog.model import (
    Capture,
    CatalogState,
    ChangeSet,
    ContinuousQuery,
    Cursor,
    DataFile,
    DeclaredDestination,
    DeclaredSource,
    QueryGroup,
    QueryStatus,
    RefreshRecord,
    SqlFunction,
    Table,
)
from cq_engine.catalog.rows import delete, delete_in, in_parts, insert, swap, upsert
from cq_engine.catalog.schema import stale
from cq_engine.catalog.view import Storage, View, WriteSet

__all__ = ["REFRESHES", "doom", "load", "read_depths", "read_inline", "read_refreshes", "write"]

_Defined = Table | ContinuousQuery | SqlFunction | DeclaredDestination | DeclaredSource | Capture | QueryGroup
REFRESHES = 100
"""How many refreshes of a query are kept at least: as many as are shown."""


def write(connection: Connection, writes: WriteSet, view: View, now: int) -> None:
    """Writes `writes`, resolved against `view`, in the transaction of `connection`, at `now` by the database's clock
    (microseconds). Raises ConflictError where the database holds something else than `view` where it is changed."""
    if writes.state is not None:
        _write_state(connection, writes, view)
    next_id = writes.next_id if writes.state is None else writes.state.next_id
    if next_id > view.state.next_id:
        known = {"key": "next_id", "value": str(view.state.next_id)}
        swap(connection, schema.meta, known, {"value": str(next_id)}, "the next id")
    _write_storage(connection, writes, view)
    _write_tables(connection, writes)
    doomed = [path for retired in writes.retired for path in retired.files]
    doomed += [f"{root}/" for storage in writes.erased for root in roots(storage)]
    doom(connection, doomed, now)
    forgotten = writes.diff.forgotten_queries if writes.diff is not None else ()
    for query, status in writes.statuses.items():
        _write_status(connection, query, status, None if query in forgotten else view.statuses.get(query))
    for key, cursor in writes.cursors.items():
        _write_cursor(connection, key, cursor, None if key[0] in forgotten else view.cursors.get(key))
    capture_statuses.write(connection, writes.captures, view.captures)
    for name, process in writes.callbacks.items():
        delete(connection, schema.callbacks, name=name)
        if process:
            insert(connection, schema.callbacks, [{"name": name, "process": process}])
    insert(connection, schema.refreshes, (_refresh_row(record) for record in writes.refreshes))
    _forget_refreshes(connection, writes.read_from)
    delete_in(connection, schema.commits.c.version, writes.forgotten, "the commits")
    delete_in(connection, schema.cascades.c.version, writes.forgotten)
    insert(connection, schema.cascades, ({"version": v, "depth": d} for v, d in writes.depths.items()))
    try:
        insert(
            connection, schema.commits, ({"version": v, "committed": micros} for v, micros in writes.commits)
        )
    except IntegrityError as error:
        raise stale("the newest commit version") from error


def doom(connection: Connection, paths: Iterable[str], since: int) -> None:
    """Lists files, and directories with a / at the end, that nothing will refer to from now on."""
    insert(connection, schema.doomed, ({"path": path, "since": since} for path in paths))


def _write_state(connection: Connection, writes: WriteSet, view: View) -> None:
    diff = writes.diff
    if diff is None:
        raise AssertionError("writes with a state are resolved before they are written")
    known = {"key": "definitions", "value": str(view.definitions)}
    swap(connection, schema.meta, known, {"value": str(view.definitions + 1)}, "what is defined")
    put: dict[str, Sequence[_Defined]] = {
        "table": diff.put_tables,
        "query": diff.put_queries,
        "function": diff.put_functions,
        "destination": diff.put_destinations,
        "source": diff.put_sources,
        "capture": diff.put_captures,
        schema.GROUP: diff.put_groups,
    }
    for kind, some in put.items():
        for each in some:
            _put_definition(connection, kind, each.name, to_text(each))
    removed = {
        schema.GROUP: diff.removed_groups,
        "table": diff.removed_tables,
        "query": diff.removed_queries,
        "function": diff.removed_functions,
        "destination": diff.removed_destinations,
        "source": diff.removed_sources,
        "capture": diff.removed_captures,
    }
    for kind, names in removed.items():
        for name in names:
            delete(connection, schema.definitions, kind=kind, name=name.lower())
    for query_name in diff.forgotten_queries:
        for owned in (schema.statuses, schema.cursors, schema.refreshes, *queues.TABLES):
            delete(connection, owned, query=query_name.lower())
    for capture_name in diff.removed_captures:
        delete(connection, schema.captures, capture=capture_name.lower())
    for table_id in sorted(diff.gone):
        for owned in (schema.snapshots, schema.files, schema.change_sets):
            delete(connection, owned, table_id=table_id)
        connection.execute(
            schema.storage.update().where(schema.storage.c.table_id == table_id).values(dropped=True)
        )


def _put_definition(connection: Connection, kind: str, name: str, document: str) -> None:
    upsert(connection, schema.definitions, {"kind": kind, "name": name.lower()}, {"document": document})


def _write_storage(connection: Connection, writes: WriteSet, view: View) -> None:
    known = {**view.storage, **{storage.table_id: storage for storage in writes.storage}}
    insert(connection, schema.storage, (vars(storage) for storage in writes.storage))
    names = [{"kind": s.kind, "name": s.directory.lower()} for s in writes.storage if s.named]
    insert(connection, schema.directories, names)
    changes = [(table_id, "next_row_id", row_id) for table_id, row_id in writes.row_ids.items()]
    changes += [(p.table_id, f"published_{p.face}", p.version) for p in writes.published]
    changes += [(r.table_id, "floor", r.floor) for r in writes.retired if r.table_id in known]
    for table_id, column, value in changes:
        key = {"table_id": table_id, column: getattr(known[table_id], column)}
        swap(connection, schema.storage, key, {column: value}, f"{column} of versioned table {table_id}")
    gone = [storage.table_id for storage in writes.erased]
    delete_in(connection, schema.storage.c.table_id, gone, "the dropped tables")


def _write_tables(connection: Connection, writes: WriteSet) -> None:
    insert(connection, schema.change_sets, (_change_row(s.changes) for s in writes.staged))
    insert(
        connection,
        schema.inline,
        ({"id": s.changes.id, "data": s.data} for s in writes.staged if s.data is not None),
    )
    for replaced in writes.replaced:
        old = [c.id for c in replaced.old]
        delete_in(connection, schema.change_sets.c.id, old, f"what is stored of table {replaced.table_id}")
        insert(connection, schema.change_sets, [_change_row(replaced.new)])
    for advance in writes.advances:
        for some in in_parts(advance.remove):
            listed = schema.files.c.path.in_(some) & schema.files.c.removed_version.is_(None)
            done = schema.files.update().where(listed).values(removed_version=advance.version)
            if connection.execute(done).rowcount != len(some):
                raise stale(f"the file list of table {advance.table_id}")
        upsert(connection, schema.snapshots, {"table_id": advance.table_id, "version": advance.version}, {})
        insert(
            connection,
            schema.files,
            (
                {
                    "path": file.path,
                    "table_id": advance.table_id,
                    "document": to_text((file,)),
                    "added_version": advance.version,
                    "removed_version": None,
                }
                for file in advance.add
            ),
        )
    for retired in writes.retired:
        delete_in(connection, schema.files.c.path, list(retired.files))
        changes = list(retired.changes)
        delete_in(connection, schema.change_sets.c.id, changes, f"the log of table {retired.table_id}")
        connection.execute(
            schema.snapshots.delete().where(
                schema.snapshots.c.table_id == retired.table_id, schema.snapshots.c.version < retired.floor
            )
        )


def _change_row(changes: ChangeSet) -> dict[str, Any]:
    return {
        "id": changes.id,
        "table_id": changes.table_id,
        "low": changes.low,
        "high": changes.high,
        "rows": changes.rows,
        "kinds": ",".join(sorted(changes.kinds)),
        "insert_only": changes.insert_only,
        "inline": changes.inline_id is not None,
        "files": to_text(changes.files),
    }


def _write_status(connection: Connection, query: str, status: QueryStatus, known: QueryStatus | None) -> None:
    values = {**vars(status), "last_refresh": _micros(status.last_refresh)}
    if known is None:
        insert(connection, schema.statuses, [{"query": query, **values}])
        return
    key = {"query": query, "position": known.position, "state": known.state}
    swap(connection, schema.statuses, key, values, f"the position of {query}")


def _write_cursor(
    connection: Connection, place: tuple[str, str], cursor: Cursor | None, known: Cursor | None
) -> None:
    key = {"query": place[0], "destination": place[1]}
    if cursor is None:
        for owned in (schema.cursors, *queues.TABLES):
            delete(connection, owned, **key)
    elif known is None:
        insert(connection, schema.cursors, [{**vars(cursor), **key}])
    else:
        stands = {**key, "version": known.version, "sequence": known.sequence}
        swap(connection, schema.cursors, stands, {**vars(cursor), **key}, f"the cursor of {place[1]}")


def _forget_refreshes(connection: Connection, below: int) -> None:
    """Deletes the refreshes of versions below `below`, but for the newest of each query."""
    table = schema.refreshes
    count = sa.select(table.c.query).group_by(table.c.query).having(sa.func.count() > REFRESHES)
    for query in connection.execute(count).scalars().all() if below else ():
        newest = sa.select(table.c.id).where(table.c.query == query).order_by(table.c.id.desc())
        last = newest.offset(REFRESHES).limit(1).scalar_subquery()
        old = (table.c.query == query, table.c.to_version < below, table.c.id <= last)
        connection.execute(table.delete().where(*old))


def _refresh_row(record: RefreshRecord) -> dict[str, Any]:
    return {**vars(record), "query": record.query.lower(), "finished": to_micros(record.finished)}


# ---------------------------------------------------------------- reading


def load(connection: Connection) -> View:
    """Everything but change rows and the history of refreshes."""
    view = View()
    view.generation = journal.newest(connection)
    view.state = _load_state(connection)
    view.definitions = view.state.edition or 0
    for row in connection.execute(sa.select(schema.commits).order_by(schema.commits.c.version)):
        view.commits.add(row.version, row.committed)
    for row in connection.execute(sa.select(schema.statuses)):
        view.statuses[row.query] = QueryStatus(row.position, row.state, row.error, _moment(row.last_refresh))
    for row in connection.execute(sa.select(schema.cursors)):
        cursor = Cursor(**row._asdict())
        view.put_cursor((row.query, row.destination), cursor)
    view.captures = capture_statuses.read(connection)
    for row in connection.execute(sa.select(schema.storage)):
        view.storage[row.table_id] = Storage(**row._asdict())
        view.layouts[row.table_id] = TableLayout(
            row.table_id, row.floor, snapshots=[0] if row.floor == 0 else []
        )
    view.callbacks = {row.name: row.process for row in connection.execute(sa.select(schema.callbacks))}
    view.directories = {(row.kind, row.name) for row in connection.execute(sa.select(schema.directories))}
    _load_layouts(connection, view)
    for layout in view.layouts.values():
        layout.snapshots = layout.snapshots or [layout.floor]
    return view


def _load_state(connection: Connection) -> CatalogState:
    """The definitions; their edition is how often they have changed."""
    tables: dict[str, Table] = {}
    queries: dict[str, ContinuousQuery] = {}
    functions: dict[str, SqlFunction] = {}
    groups: dict[str, QueryGroup] = {}
    destinations: dict[str, DeclaredDestination] = {}
    sources: dict[str, DeclaredSource] = {}
    captures: dict[str, Capture] = {}
    for row in connection.execute(sa.select(schema.definitions)):
        if row.kind == "table":
            tables[row.name] = from_text(Table, row.document)
        elif row.kind == "query":
            queries[row.name] = from_text(ContinuousQuery, row.document)
        elif row.kind == schema.GROUP:
            groups[row.name] = from_text(QueryGroup, row.document)
        elif row.kind == "destination":
            destinations[row.name] = from_text(DeclaredDestination, row.document)
        elif row.kind == "source":
            sources[row.name] = from_text(DeclaredSource, row.document)
        elif row.kind == "capture":
            captures[row.name] = from_text(Capture, row.document)
        else:
            functions[row.name] = from_text(SqlFunction, row.document)
    numbers: dict[str, str] = {row.key: row.value for row in connection.execute(sa.select(schema.meta))}
    in_order_of_id = sorted(tables.items(), key=lambda item: item[1].storage.id)
    return CatalogState(
        dict(in_order_of_id),
        dict(sorted(queries.items(), key=lambda item: item[1].id)),
        int(numbers["next_id"]),
        functions,
        groups,
        destinations,
        sources,
        captures,
        edition=int(numbers["definitions"]),
    )


def _load_layouts(connection: Connection, view: View) -> None:
    snapshots = sa.select(schema.snapshots).order_by(schema.snapshots.c.version)
    for row in connection.execute(snapshots):
        if row.version > 0 or view.layout(row.table_id).floor > 0:
            view.layout(row.table_id).snapshots.append(row.version)
    for row in connection.execute(sa.select(schema.files)):
        (file,) = from_text(tuple[DataFile, ...], row.document)
        view.layout(row.table_id).files[row.path] = SnapshotFile(file, row.added_version, row.removed_version)
    for row in connection.execute(sa.select(schema.change_sets)):
        view.layout(row.table_id).changes.append(_change_set(row))
    for layout in view.layouts.values():
        layout.changes.sort(key=lambda c: (c.high, c.low, c.id))


def _change_set(row: Row[Any]) -> ChangeSet:
    return ChangeSet(
        row.table_id,
        row.low,
        row.high,
        row.rows,
        frozenset(row.kinds.split(",")) if row.kinds else frozenset(),
        inline_id=row.id if row.inline else None,
        files=from_text(tuple[DataFile, ...], row.files),
        insert_only=bool(row.insert_only),
        id=row.id,
    )


def read_inline(connection: Connection, ids: Iterable[int]) -> dict[int, bytes]:
    """The Arrow IPC streams of inline change sets by id; those that are gone are missing."""
    found: dict[int, bytes] = {}
    for some in in_parts(list(ids)):
        for row in connection.execute(sa.select(schema.inline).where(schema.inline.c.id.in_(some))):
            found[row.id] = bytes(row.data)
    return found


def read_refreshes(
    connection: Connection, query: str | None, limit: int, around: int | None = None
) -> list[RefreshRecord]:
    """The newest `limit` refreshes, newest first; with `around` those that began before this version and ended after it."""
    table = schema.refreshes
    fields = [column for column in table.c if column is not table.c.id]
    chosen = sa.select(*fields).order_by(table.c.id.desc()).limit(limit)
    if query is not None:
        chosen = chosen.where(table.c.query == query.lower())
    if around is not None:
        chosen = chosen.where(table.c.from_version < around, table.c.to_version > around)
    rows = connection.execute(chosen).mappings()
    return [RefreshRecord(**{**row, "finished": from_micros(row["finished"])}) for row in rows]


def read_depths(connection: Connection, low: int, high: int) -> dict[int, int]:
    """The commits from `low` to `high` that triggers have led to, and how many."""
    table = schema.cascades
    chosen = sa.select(table.c.version, table.c.depth).where(table.c.version.between(low, high))
    return {row.version: row.depth for row in connection.execute(chosen)}


# ---------------------------------------------------------------- small things


def _micros(moment: datetime | None) -> int | None:
    return None if moment is None else to_micros(moment)


def _moment(micros: int | None) -> datetime | None:
    return None if micros is None else from_micros(micros)
