"""Dead letters: deltas that a destination has refused too often, kept as rows of a table so that the rest goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from cq_engine.catalog import apply
from cq_engine.catalog.change_rows import CHANGE_TYPE, COMMIT_VERSION, INSERT, ROW_ID
from cq_engine.catalog.model import CatalogState, ContinuousQuery, Cursor, Table
from cq_engine.context.services import Services
from cq_engine.core.errors import CatalogError, DestinationError
from cq_engine.core.types import arrow_schema
from cq_engine.destinations.base import Delivered, Destination
from cq_engine.destinations.envelope import deltas_of, result_columns
from cq_engine.destinations.log import commit_times
from cq_engine.destinations.options import dead_letters_of
from cq_engine.grammar.clauses import ColumnSpec
from cq_engine.grammar.statements import CreateTable

__all__ = ["bury", "give_up", "with_dead_letters"]

_COLUMNS = (
    ("query", "STRING"), ("marker", "STRING"), ("key", "STRING"), ("new", "STRING"), ("old", "STRING"),
    ("commit_version", "BIGINT"), ("sequence", "BIGINT"), ("commit_time", "TIMESTAMP"), ("failed", "TIMESTAMP"),
    ("attempts", "BIGINT"), ("error", "STRING"),
)  # fmt: skip


def with_dead_letters(state: CatalogState, destination: str, version: int) -> CatalogState:
    """The state with the table of a destination's dead letters; CatalogError where another table has its name."""
    name = dead_letters_of(destination)
    known = state.tables.get(name.lower())
    if known is None:
        columns = tuple(ColumnSpec(column, kind) for column, kind in _COLUMNS)
        return apply.create_table(state, CreateTable(name, columns), version)
    if not _fits(known):
        raise CatalogError(
            f"table {known.name} cannot take the dead letters of {destination}",
            detail="it has other columns",
            hint=f"rename or drop {known.name}",
        )
    return state


def give_up(destination: Destination, upto: int) -> Iterator[Delivered]:
    """Gives the deltas up to `upto` away commit by commit, as far as the first that is refused, which goes to the dead
    letters. Raises DestinationError where that is not possible."""
    attempts = destination.cursor.failures
    while (found := _next_batch(destination, destination.cursor, upto)) is not None:
        batch, last = found
        if destination.exactly_once:  # it takes many commits at once; others stand at what they refuse
            try:
                delivered = destination.deliver(batch.column("version")[0].as_py())
            except DestinationError:
                pass
            else:
                if delivered is not None:
                    yield delivered
                continue
        yield _bury(destination, batch, last, attempts)
        return


def _next_batch(destination: Destination, cursor: Cursor, upto: int) -> tuple[pa.Table, bool] | None:
    """What comes after the cursor, in the wide layout, and whether it ends with its last version."""
    return next(destination.batches(cursor, upto), None)


def bury(
    services: Services,
    name: str,
    messages: Sequence[tuple[ContinuousQuery, pa.Table, int, str]],
    forget: Callable[[sa.Connection], bool],
) -> tuple[int, str] | None:
    """Gives messages of the queue `name` to its dead letters, each a query, a delta in the wide layout, its attempts and the
    reason, in one transaction with `forget`, which says whether they are still there. The commit and the table."""
    catalog = services.catalog
    if dead_letters_of(name).lower() not in catalog.state.tables:
        with catalog.write(by_any=True) as unit:
            unit.set_state(with_dead_letters(catalog.state, name, catalog.newest_version))
    with catalog.exclusive(by_any=True) as connection:
        if not forget(connection):
            return None
        table = _table(name, catalog.state)
        committed = catalog.newest_version + 1
        several = [
            _rows(services, query, wide, table, (attempts, reason))
            for query, wide, attempts, reason in messages
        ]
        _commit(services, table, committed, several, None, by_any=True)
    return committed, table.name


def _commit(
    services: Services,
    table: Table,
    version: int,
    several: Sequence[pa.Table],
    moved: tuple[Cursor, Cursor] | None,
    *,
    by_any: bool,
) -> None:
    """The commit of dead letters, `several` tables of them, with the cursor that is `moved`: from where and to where."""
    catalog = services.catalog
    rows = pa.concat_tables(several)
    rows = rows.append_column(COMMIT_VERSION, pa.repeat(pa.scalar(version, pa.int64()), rows.num_rows))
    with catalog.write(by_any=by_any) as unit:
        now, newest = services.now(), catalog.newest_timestamp
        unit.add_commit(version, now if newest is None else max(now, newest))
        unit.add_changes(table.storage, version, version, rows)
        if moved is not None:
            unit.set_cursor(moved[1], after=moved[0])


def _bury(destination: Destination, batch: pa.Table, last: bool, attempts: int) -> Delivered:
    """Gives what comes after the cursor to the dead letters: an ordinary commit, in one transaction with the cursor."""
    services, cursor = destination.services, destination.cursor
    version, sequence = batch.column("version")[-1].as_py(), batch.column("sequence")[-1].as_py()
    catalog = services.catalog
    more = destination.whole and not last  # which follow, whatever has become of the reason
    moved = replace(
        destination.placed(cursor, version), dead=cursor.dead + batch.num_rows,
        failures=attempts if more else 0, error=cursor.error if more else "",
    )  # fmt: skip
    moved = moved if last else replace(moved, sequence=sequence)
    by_any = destination.registered
    with catalog.exclusive(by_any=by_any):
        table = _table(destination.name, catalog.state)
        rows = _rows(services, destination.query, batch, table, (attempts, cursor.error))
        committed = catalog.newest_version + 1
        _commit(services, table, committed, [rows], (cursor, moved), by_any=by_any)
    return Delivered(moved, 0, committed, {table.name: frozenset({"INSERT"})})


def _table(destination: str, state: CatalogState) -> Table:
    name = dead_letters_of(destination)
    table = state.tables.get(name.lower())
    if table is not None and _fits(table):
        return table
    raise DestinationError(
        f"there is no table {name} for the dead letters of {destination}",
        hint=f"ALTER DESTINATION {destination} SET WITH (on_failure = 'dead_letter') makes it again",
    )


def _fits(table: Table) -> bool:
    return tuple((c.name, c.type.upper()) for c in table.columns) == _COLUMNS and table.storage.has_row_id


def _rows(
    services: Services, query: ContinuousQuery, batch: pa.Table, table: Table, why: tuple[int, str]
) -> pa.Table:
    """The dead letters of a batch; `why` are how often it was tried, and the last error."""
    low, high = (batch.column("version")[n].as_py() for n in (0, -1))
    columns = result_columns(query)
    lines = [
        (
            query.name, each.marker, _json(query.key or (), each.key), _json(columns, each.new),
            _json(columns, each.old), each.commit_version, each.sequence, each.commit_time, services.now(),
            *why,
        )
        for each in deltas_of(query, batch, commit_times(services, low, high))
    ]  # fmt: skip
    first = services.catalog.reserve_row_ids(table.storage.id, len(lines))
    schema = arrow_schema(table.columns)
    rows = pa.Table.from_arrays(
        [pa.array(values, field.type) for values, field in zip(zip(*lines), schema)], schema=schema
    )
    rows = rows.append_column(ROW_ID, pa.array(range(first, first + len(lines)), pa.int64()))
    return rows.append_column(CHANGE_TYPE, pa.repeat(pa.scalar(INSERT), len(lines)))


def _json(names: Sequence[str], values: Sequence[Any] | None) -> str | None:
    if values is None:
        return None
    found: Mapping[str, Any] = dict(zip(names, values))
    return json.dumps(found, default=str, ensure_ascii=False)
