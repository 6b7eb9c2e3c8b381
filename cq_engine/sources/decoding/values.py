"""The values of the log, which are texts, in the types of the warehouse's table.

They are read by the driver's own loaders, and converted as rows are that a query gives: so a row is the same, however it has come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from cq_engine.core.errors import SourceError
from cq_engine.sources.decoding.pgoutput import Relation, Values
from cq_engine.sources.decoding.table import LoggedTable
from cq_engine.sources.decoding.transactions import Before, Key, Step
from cq_engine.sources.sql.database import BLOCK, Session
from cq_engine.sources.sql.model import SourceColumn, Statement
from cq_engine.sources.sql.selection import Selection
from cq_engine.sources.tick import DELETE, UPSERT, Tick
from cq_engine.sources.triggers.log import as_changes
from cq_engine.storage.identities import Identities, find_places
from cq_engine.storage.rows import conform, identity_columns

__all__ = ["Converter", "Load", "Ready", "complete", "encoding_of", "loads_of"]

Load = Callable[[bytes], Any]


@dataclass(frozen=True)
class Ready:
    """A step as Arrow: changes, or where it `empties` the table, all rows after it."""

    rows: pa.Table
    end: int
    empties: bool
    gaps: Mapping[str, list[tuple[int, int]]]
    """By column the places of values that the rows here have: of the row, and of its key among those that are wanted."""


def encoding_of(session: Session) -> str:
    """The encoding of what the driver gets. Raises SourceError for a driver that gives values in another way."""
    driver = _driver(session)
    if not hasattr(driver, "pgconn"):
        raise SourceError(
            "logical decoding needs the driver psycopg 3",
            hint="write the URL as postgresql://... or postgresql+psycopg://...",
        )
    return str(driver.info.encoding)


def _driver(session: Session) -> Any:
    return session.connection.connection.driver_connection


def loads_of(session: Session, table: LoggedTable, selection: Selection) -> list[Load]:
    """How the text of each captured column becomes the value that a query gives."""
    from psycopg.adapt import Transformer
    from psycopg.pq import Format

    encoding, transformer = encoding_of(session), Transformer(_driver(session))

    def text(value: bytes) -> str:
        return value.decode(encoding)

    def loader(column: SourceColumn) -> Load:
        if selection.server.read(column, "") != "":  # which a query gives as text
            return _inet(encoding) if column.declared == "inet" else text
        found: Load = transformer.get_loader(table.attributes[column.name].base_oid, Format.TEXT).load
        return found

    return [loader(selection.relation.column(c.name)) for c in selection.columns]


class Converter:
    """Makes Arrow of the steps that are read in one session, and notes the keys of the rows that they need from here."""

    def __init__(self, tick: Tick, session: Session, table: LoggedTable, selection: Selection) -> None:
        self._tick, self._session, self._table, self._selection = tick, session, table, selection
        self._encoding = encoding_of(session)
        self._loads = loads_of(session, table, selection)
        self._wanted: dict[Key, int] = {}

    def convert(self, steps: Sequence[Step]) -> list[Ready]:
        """The steps, in order. Raises SourceError for a value that its column cannot have."""
        return [self._converted(step) for step in steps]

    def _converted(self, step: Step) -> Ready:
        let_in = self._let_in(step)
        changes = []
        for change, wanted in zip(step.changes, let_in):
            changes.append((change.is_gone or not wanted, change.row))
        transactions = step.transactions
        if step.empties:
            rows = self._last(changes)
            changes, transactions = [(False, row) for row in rows], [0] * len(rows)
        gaps: dict[str, list[tuple[int, int]]] = {}
        plain = [self._plain(place, is_gone, row, gaps) for place, (is_gone, row) in enumerate(changes)]
        batch = self._session.to_batch(self._given(), self._tick.columns, self._loaded(plain))
        table = pa.Table.from_batches([batch])
        if not step.empties:
            operations = [DELETE if is_gone else UPSERT for is_gone, _ in changes]
            table = as_changes(table, operations, transactions, [step.times[n] for n in transactions])
        return Ready(table, step.end, step.empties, gaps)

    def _last(self, changes: Sequence[tuple[bool, Any]]) -> list[Any]:
        """The rows that are there after all of it."""
        latest: dict[Key, Any] = {}
        for is_gone, row in changes:
            key = self._key(row)
            latest.pop(key, None)
            if not is_gone:
                latest[key] = row
        return list(latest.values())

    def _key(self, row: Any) -> Key:
        return tuple([row[place] for place in self._selection.key_places])

    def _plain(self, place: int, is_gone: bool, row: Any, gaps: dict[str, list[tuple[int, int]]]) -> Any:
        """The row with NULL for what is noted as a gap; of one that is gone the key alone."""
        if is_gone:
            known = set(self._selection.key_places)
            return tuple([value if n in known else None for n, value in enumerate(row)])
        if not any(isinstance(value, Before) for value in row):
            return row
        for name, value in zip(self._selection.names, row):
            if isinstance(value, Before):
                number = self._wanted.setdefault(value.key, len(self._wanted))
                gaps.setdefault(name, []).append((place, number))
        return tuple([None if isinstance(value, Before) else value for value in row])

    def _loaded(self, rows: Sequence[Any]) -> list[tuple[Any, ...]]:
        columns = zip(*rows) if rows else ()
        read = [
            [None if value is None else load(value) for value in values]
            for values, load in zip(columns, self._loads)
        ]
        return list(zip(*read))

    def _given(self) -> Statement:
        selection = self._selection
        return Statement("", (), selection.names, selection.relation.shown, selection.key_places)

    def keys(self) -> pa.Table:
        """The keys of the rows whose values are wanted from here, in order, with the columns of the table's key."""
        selection = self._selection
        names = tuple(selection.names[place] for place in selection.key_places)
        loads = [self._loads[place] for place in selection.key_places]
        rows = [
            tuple(load(value) for load, value in zip(loads, key) if value is not None) for key in self._wanted
        ]
        given = Statement("", (), names, selection.relation.shown, tuple(range(len(names))))
        return pa.Table.from_batches([self._session.to_batch(given, self._tick.columns, rows)])

    # ------------------------------------------------------------ the restriction

    def _let_in(self, step: Step) -> Iterator[bool]:
        """Of each change whether the capture wants the new row."""
        asked = [change.whole for change in step.changes if change.whole is not None]
        if not asked:
            return iter([True] * len(step.changes))
        answers = iter(self.restricted(asked))
        return iter([change.whole is None or next(answers) for change in step.changes])

    def restricted(self, rows: Sequence[tuple[Relation, Values]]) -> list[bool]:
        """Of each row what the server says about the restriction."""
        found = [False] * len(rows)
        start = 0
        while start < len(rows):
            end = start
            relation = rows[start][0]
            while end < len(rows) and rows[end][0] == relation and end - start < BLOCK:
                end += 1
            some = [values for _, values in rows[start:end]]
            for (number,) in self._session.rows(self.restriction([c.name for c in relation.columns], some)):
                found[start + number] = True
            start = end
        return found

    def restriction(self, names: Sequence[str], rows: Sequence[Values]) -> Statement:
        """Which of the rows, by their numbers from 0, the capture wants."""
        server, relation = self._selection.server, self._selection.relation
        known = {column.name: column.declared for column in relation.columns}
        used = [(place, name) for place, name in enumerate(names) if name in known]
        texts = [
            [value.decode(self._encoding) if isinstance(value, bytes) else None for value in column]
            for column in ([row[place] for row in rows] for place, _ in used)
        ]
        casts = [
            f"CAST(cq_u.cq_{n} AS {known[name]}) AS {server.quoted(name)}" for n, (_, name) in enumerate(used)
        ]
        arrays = ", ".join(["CAST(%s AS int[])", *["CAST(%s AS text[])"] * len(used)])
        given = ", ".join(["cq_n", *(f"cq_{n}" for n, _ in enumerate(used))])
        inner = ", ".join(["cq_u.cq_n", *casts]).replace("%", server.percent)
        name = server.quoted(relation.name).replace("%", server.percent)
        where = (self._selection.where or "true").replace("%", server.percent)
        return Statement(
            f"SELECT cq_n FROM (SELECT {inner} FROM unnest({arrays}) AS cq_u ({given})) AS {name} WHERE ({where}\n)",
            (list(range(len(rows))), *texts),
        )


def complete(tick: Tick, ready: Sequence[Ready], wanted: pa.Table, selection: Selection) -> list[Ready]:
    """The steps, with the values that the rows here have. Raises SourceError where such a row is not here."""
    if not wanted.num_rows:
        return list(ready)
    if not tick.table.has_snapshot:
        raise SourceError(
            f"an update of {selection.relation.shown} leaves out a large value",
            detail=f"table {tick.table.name} was created WITHOUT SNAPSHOT: there is no row here that has it",
            hint="ALTER TABLE ... REPLICA IDENTITY FULL at the source, so that nothing is left out",
        )
    storage = tick.table.storage
    identity = identity_columns(storage)
    keys = conform(wanted, identity)
    ours = tick.services.reader.lookup(storage, tick.services.catalog.newest_version, keys)
    theirs = conform(ours.select(keys.column_names), identity)
    numbers = Identities(pa.concat_tables([keys, theirs]).combine_chunks(), identity).numbers
    places = find_places(numbers[: keys.num_rows], numbers[keys.num_rows :])
    if (places < 0).any():
        row = keys.slice(int(np.flatnonzero(places < 0)[0]), 1).to_pylist()[0]
        raise SourceError(
            f"an update of {selection.relation.shown} leaves out a large value of a row that is not here",
            detail=", ".join(f"{name} = {value!r}" for name, value in row.items()),
            hint=f"ALTER CAPTURE {tick.capture.name} RESUME compares all rows; with REPLICA IDENTITY FULL nothing is left out",
        )
    known = conform(ours.select([c.name for c in tick.columns]), tick.columns)
    return [_with(each, known, places) for each in ready]


def _with(ready: Ready, ours: pa.Table, places: Any) -> Ready:
    rows = ready.rows
    for name, gaps in ready.gaps.items():
        chosen = np.arange(rows.num_rows)
        chosen[[row for row, _ in gaps]] = rows.num_rows + places[[number for _, number in gaps]]
        both = pa.chunked_array([*rows.column(name).chunks, *ours.column(name).chunks])
        at = rows.column_names.index(name)
        rows = rows.set_column(at, rows.schema.field(at), both.take(pa.array(chosen)))
    return Ready(rows, ready.end, ready.empties, {})


def _inet(encoding: str) -> Load:
    """CAST AS text says how long the network is, also where it is a host."""

    def load(value: bytes) -> str:
        text = value.decode(encoding)
        return text if "/" in text else f"{text}/{128 if ':' in text else 32}"

    return load
