"""What a replication slot has of the tables of a view: transactions, with the rows before and after each change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from cq_engine.core.errors import SourceError
from cq_engine.sources.decoding.pgoutput import (
    Begin,
    Commit,
    Delete,
    Insert,
    MalformedMessage,
    Relation,
    Truncate,
    Unchanged,
    Update,
    Values,
    decode,
)
from cq_engine.sources.decoding.table import LoggedTable
from cq_engine.sources.decoding.values import Load
from cq_engine.sources.remote.log import GapError, Logged
from cq_engine.sources.sql.selection import Selection

__all__ = ["Followed", "transactions"]


@dataclass(frozen=True)
class Followed:
    """A table of the view: as it is now, the columns that are wanted of it, and how the log's text of each is read."""

    table: LoggedTable
    selection: Selection
    loads: Sequence[Load]


def transactions(
    messages: Iterable[bytes],
    tables: Sequence[Followed],
    encoding: str,
    wanted: Callable[[Begin], bool],
    most: int,
) -> Iterator[tuple[Begin, list[Logged]]]:
    """The transactions that are wanted and have changed something, in the order of their commits.

    Raises GapError where the log does not tell what has become of the rows, or they have more than `most` changes, SourceError
    for what is no message.
    """
    count = 0
    places = {each.table.oid: place for place, each in enumerate(tables)}
    relations: dict[int, Relation] = {}
    layouts: dict[int, _Layout] = {}
    current: Begin | None = None
    changes: list[Logged] = []
    for data in messages:
        message = _decoded(data, encoding)
        if isinstance(message, Relation):
            relations[message.oid] = message
            layouts.pop(message.oid, None)
        elif isinstance(message, Begin):
            current, changes = (message if wanted(message) else None), []
        elif current is None:
            continue
        elif isinstance(message, Commit):
            if changes:
                yield current, changes
        elif isinstance(message, Truncate):
            if not places.keys().isdisjoint(message.relations):
                raise GapError
        elif isinstance(message, Insert | Update | Delete) and message.relation in places:
            oid = message.relation
            if oid not in layouts:
                layouts[oid] = _Layout(places[oid], relations[oid], tables[places[oid]])
            changes.append(layouts[oid].change(message))
            count += 1
            if count > most:
                raise GapError


def _decoded(data: bytes, encoding: str) -> object:
    try:
        return decode(data, encoding)
    except MalformedMessage as error:
        raise SourceError(
            "what the server's log has cannot be read",
            detail=str(error),
            hint="report it, with the server's version",
        ) from error


class _Layout:
    """Where the rows of a relation, as it was when they were written, have the wanted columns."""

    def __init__(self, place: int, relation: Relation, followed: Followed) -> None:
        known = {column.name: at for at, column in enumerate(relation.columns)}
        self._place = place
        self._loads = followed.loads
        self._at: list[int] = []
        for wanted in followed.selection.columns:
            at = known.get(wanted.name)
            now = followed.table.attributes.get(wanted.name)
            if at is None or now is None:
                raise GapError  # the table was altered since
            column = relation.columns[at]
            if (column.type_oid, column.modifier) != (now.type_oid, now.modifier):
                raise GapError
            self._at.append(at)
        self._is_known = relation.identity == "f" or all(relation.columns[at].in_identity for at in self._at)

    def change(self, message: Insert | Update | Delete) -> Logged:
        """The change, with the values as a query would have given them."""
        if isinstance(message, Insert):
            return Logged(self._place, None, self._row(message.new))
        if not self._is_known:
            raise GapError  # REPLICA IDENTITY was another one then
        before = message.key if message.old is None else message.old
        if isinstance(message, Delete):
            assert before is not None
            return Logged(self._place, self._row(before), None)
        before = message.new if before is None else before  # its identity has stayed as it was
        after = [old if new is Unchanged.VALUE else new for old, new in zip(before, message.new)]
        return Logged(self._place, self._row(before), self._row(after))

    def _row(self, values: Values) -> tuple[object, ...]:
        found = []
        for at, load in zip(self._at, self._loads):
            value = values[at]
            if isinstance(value, Unchanged):
                raise GapError
            found.append(None if value is None else load(value))
        return tuple(found)
