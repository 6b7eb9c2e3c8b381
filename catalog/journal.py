"""The journal: what each write changed of what processes keep in memory, as text, so that other processes follow it.

Row n of the journal leads from generation n − 1 to n. A process that is behind reads the rows after its own generation
and applies them in order; only one that is further behind than the journal goes back reads the whole catalog again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from cq_engine.catalog import capture_statuses, documents, schema
from cq_engine.catalog.commits import from_micros, to_micros
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
    SqlFunction,
    Table,
)
from cq_engine.catalog.view import (
    Advance,
    Published,
    Replaced,
    Retired,
    Staged,
    StateDiff,
    Storage,
    View,
    WriteSet,
    tables_of,
)

__all__ = ["add", "from_text", "has", "newest", "read_after"]

KEPT = 10_000
"""Rows of the journal. A process that was suspended for longer than so many writes reads the whole catalog again."""
_TRIM = 500
"""Rows that are removed at a time."""

_KINDS = ("table", "query", schema.GROUP, "function", "destination", "source", "capture")
_Named = TypeVar("_Named")


def add(connection: Connection, generation: int, writes: WriteSet, number: int) -> None:
    """Records `writes`, resolved, as the step to `generation`, by process `number`."""
    document = _to_text(writes, number)
    connection.execute(schema.journal.insert().values(generation=generation, document=document))
    if generation % _TRIM == 0:
        old = schema.journal.c.generation <= generation - KEPT
        connection.execute(schema.journal.delete().where(old))


def has(connection: Connection, generation: int, writes: WriteSet, number: int) -> bool:
    """Whether the step to `generation` is `writes`, by process `number`."""
    found = sa.select(schema.journal.c.document).where(schema.journal.c.generation == generation)
    return bool(connection.execute(found).scalar() == _to_text(writes, number))


def newest(connection: Connection) -> int:
    """The generation of the catalog: how many write transactions there have been."""
    return int(connection.execute(sa.select(sa.func.max(schema.journal.c.generation))).scalar_one() or 0)


def read_after(connection: Connection, generation: int) -> list[tuple[int, str]]:
    """The rows after `generation`, in order."""
    table = schema.journal
    chosen = sa.select(table).where(table.c.generation > generation).order_by(table.c.generation)
    return [(row.generation, row.document) for row in connection.execute(chosen)]


# ---------------------------------------------------------------- there


def _to_text(writes: WriteSet, number: int) -> str:
    said: dict[str, object] = {"by": number}
    if writes.commits:
        said["commits"] = writes.commits
    if writes.staged:
        said["staged"] = [_changes(staged.changes) for staged in writes.staged]
    if writes.advances:
        said["advances"] = [
            [a.table_id, a.version, documents.to_text(a.add), a.remove] for a in writes.advances
        ]
    if writes.replaced:
        said["replaced"] = [[r.table_id, [c.id for c in r.old], _changes(r.new)] for r in writes.replaced]
    if writes.retired:
        said["retired"] = [[r.table_id, r.floor, r.files, r.changes] for r in writes.retired]
    if writes.forgotten:
        said["forgotten"] = writes.forgotten
    if writes.published:
        said["published"] = [[p.table_id, p.face, p.version] for p in writes.published]
    if writes.state is not None and writes.diff is not None:
        said["state"] = _definitions(writes.state, writes.diff)
    return _encode({**said, **_moved(writes), **_stored(writes)})


def _moved(writes: WriteSet) -> dict[str, object]:
    """What is said of where queries, destinations, captures and callbacks are."""
    said: dict[str, object] = {}
    if writes.statuses:
        said["statuses"] = [[query, *_status(status)] for query, status in writes.statuses.items()]
    if writes.cursors:
        said["cursors"] = [[*key, None if c is None else asdict(c)] for key, c in writes.cursors.items()]
    if writes.captures:
        said["captures"] = [[n, *capture_statuses.to_values(each)] for n, each in writes.captures.items()]
    if writes.callbacks:
        said["callbacks"] = writes.callbacks
    return said


def _stored(writes: WriteSet) -> dict[str, object]:
    """What is said of the storage of tables."""
    if not (writes.storage or writes.erased or writes.row_ids or writes.next_id):
        return {}
    return {
        "next_id": writes.next_id,
        "storage": [asdict(storage) for storage in writes.storage],
        "erased": [storage.table_id for storage in writes.erased],
        "row_ids": list(writes.row_ids.items()),
    }


_encode = json.JSONEncoder(separators=(",", ":")).encode


def _changes(changes: ChangeSet) -> list[object]:
    files = documents.to_text(changes.files) if changes.files else ""
    numbers = [changes.table_id, changes.low, changes.high, changes.rows]
    inline = changes.inline_id is not None
    return [*numbers, ",".join(sorted(changes.kinds)), inline, files, changes.insert_only, changes.id]


def _status(status: QueryStatus) -> list[object]:
    moment = None if status.last_refresh is None else to_micros(status.last_refresh)
    return [status.position, status.state, status.error, moment]


def _definitions(state: CatalogState, diff: StateDiff) -> dict[str, object]:
    put = (
        diff.put_tables, diff.put_queries, diff.put_groups, diff.put_functions, diff.put_destinations,
        diff.put_sources, diff.put_captures,
    )  # fmt: skip
    removed = (
        diff.removed_tables, diff.removed_queries, diff.removed_groups, diff.removed_functions,
        diff.removed_destinations, diff.removed_sources, diff.removed_captures,
    )  # fmt: skip
    return {
        "put": {kind: [documents.to_text(each) for each in some] for kind, some in zip(_KINDS, put)},
        "removed": dict(zip(_KINDS, removed)),
        "forgotten": diff.forgotten_queries,
        "gone": sorted(diff.gone),
        "next_id": state.next_id,
    }


# ---------------------------------------------------------------- and back


def from_text(text: str, view: View) -> WriteSet:
    """What `text` records, to be applied to `view`; without the rows."""
    said = json.loads(text)
    writes = WriteSet(
        commits=[(version, micros) for version, micros in said.get("commits", ())],
        staged=[Staged("", _read_changes(each)) for each in said.get("staged", ())],
        replaced=[
            Replaced(table, view.change_sets(table, old), _read_changes(new))
            for table, old, new in said.get("replaced", ())
        ],
        advances=[
            Advance(table, version, documents.from_text(tuple[DataFile, ...], add), tuple(remove))
            for table, version, add, remove in said.get("advances", ())
        ],
        retired=[Retired(t, floor, tuple(f), tuple(c)) for t, floor, f, c in said.get("retired", ())],
        forgotten=said.get("forgotten", []),
        published=[Published(*each) for each in said.get("published", ())],
        next_id=said.get("next_id", 0),
        storage=[Storage(**each) for each in said.get("storage", ())],
        erased=[Storage(table, "", "") for table in said.get("erased", ())],
        row_ids=dict(said.get("row_ids", ())),
        statuses={query: _read_status(*rest) for query, *rest in said.get("statuses", ())},
        callbacks=said.get("callbacks", {}),
        captures={name: capture_statuses.from_values(rest) for name, *rest in said.get("captures", ())},
        cursors={(q, d): None if c is None else Cursor(**c) for q, d, c in said.get("cursors", ())},
    )
    if "state" in said:
        writes.state, writes.diff = _read_definitions(said["state"], view.state)
    return writes


def _read_changes(found: list[Any]) -> ChangeSet:
    table, low, high, rows, kinds, inline, files, insert_only, number = found
    return ChangeSet(
        table, low, high, rows, frozenset(kinds.split(",")) if kinds else frozenset(),
        inline_id=number if inline else None, files=documents.from_text(tuple[DataFile, ...], files) if files else (),
        insert_only=insert_only, id=number,
    )  # fmt: skip


def _read_status(position: int, state: str, error: str, moment: int | None) -> QueryStatus:
    return QueryStatus(position, state, error, None if moment is None else from_micros(moment))


def _read_definitions(found: dict[str, Any], state: CatalogState) -> tuple[CatalogState, StateDiff]:
    put, removed = found["put"], found["removed"]
    tables = [documents.from_text(Table, each) for each in put["table"]]
    queries = [documents.from_text(ContinuousQuery, each) for each in put["query"]]
    groups = [documents.from_text(QueryGroup, each) for each in put[schema.GROUP]]
    functions = [documents.from_text(SqlFunction, each) for each in put["function"]]
    destinations = [documents.from_text(DeclaredDestination, each) for each in put.get("destination", ())]
    sources = [documents.from_text(DeclaredSource, each) for each in put.get("source", ())]
    captures = [documents.from_text(Capture, each) for each in put.get("capture", ())]
    dropped = removed.get("destination", ())
    after = replace(
        state,
        tables=_merged(state.tables, tables, removed["table"], lambda each: each.storage.id),
        queries=_merged(state.queries, queries, removed["query"], lambda each: each.id),
        groups=_merged(state.groups, groups, removed[schema.GROUP]),
        functions=_merged(state.functions, functions, removed["function"]),
        destinations=_merged(state.destinations, destinations, dropped),
        sources=_merged(state.sources, sources, removed.get("source", ())),
        captures=_merged(state.captures, captures, removed.get("capture", ())),
        next_id=found["next_id"],
    )
    diff = StateDiff(
        tuple(tables), tuple(queries), tuple(removed["table"]), tuple(removed["query"]), tuple(found["forgotten"]),
        frozenset(found["gone"]), tuple(functions), tuple(removed["function"]), tuple(groups),
        tuple(removed[schema.GROUP]),
        tuple(stored for several in (tables, queries, groups) for each in several for stored in tables_of(each)),
        tuple(destinations), tuple(dropped), tuple(sources), tuple(removed.get("source", ())), tuple(captures),
        tuple(removed.get("capture", ())),
    )  # fmt: skip
    return after, diff


def _merged(
    before: Mapping[str, _Named],
    put: Iterable[_Named],
    removed: Iterable[str],
    order: Callable[[_Named], int] | None = None,
) -> Mapping[str, _Named]:
    """Definitions by lower-case name; those that did not change stay the same objects."""
    put, removed = list(put), list(removed)
    if not put and not removed:
        return before
    gone = {name.lower() for name in removed}
    found = {name: each for name, each in before.items() if name not in gone}
    found.update((each.name.lower(), each) for each in put)  # type: ignore[attr-defined]
    return found if order is None else dict(sorted(found.items(), key=lambda item: order(item[1])))
