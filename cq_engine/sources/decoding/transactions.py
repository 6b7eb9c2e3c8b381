"""What a replication slot has, transaction by transaction: changes of the captured table, each of which finds its row by its key.

A large value that an update has left as it is is not logged (TOAST), unless the table's REPLICA IDENTITY is FULL. It is then that of the
row before: of an earlier change that was read along, else that of the row that is here (`Before`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

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
from cq_engine.sources.sql.selection import Selection

__all__ = ["Before", "Change", "Key", "Reading", "Step", "TooLarge"]

Key = tuple[bytes | None, ...]
"""The texts of a key, which identify a row inside of what is read at once."""


class Before(NamedTuple):
    """A value that the row here has that is found by this key, before any of what is read is applied."""

    key: Key


Captured = tuple["bytes | Before | None", ...]
"""The captured columns of a row."""


class Change(NamedTuple):
    """What becomes of a row."""

    is_gone: bool
    row: Captured
    """Where the row is gone, only its key."""
    whole: tuple[Relation, Values] | None
    """The row with all of its columns, where a restriction decides about it."""


@dataclass
class Step:
    """Transactions that are written at once, each of which becomes a commit; one that `empties` the table is alone, and has all
    rows that there are after it."""

    changes: list[Change] = field(default_factory=list)
    transactions: list[int] = field(default_factory=list)
    times: list[datetime] = field(default_factory=list)
    end: int = 0
    """Where the log goes on after the last of them."""
    empties: bool = False


class TooLarge(Exception):
    """A transaction has more changes than are followed."""


class _Layout:
    """Where a relation of the log has the captured columns."""

    def __init__(self, relation: Relation, table: LoggedTable, selection: Selection) -> None:
        places = {column.name: place for place, column in enumerate(relation.columns)}
        missing = [c.name for c in selection.columns if c.name not in places]
        if missing:
            raise SourceError(
                f"changes of {selection.relation.shown} in the log have no column {missing[0]}",
                detail="they were written before the table was altered",
                hint="ALTER CAPTURE ... RESUME compares all rows",
            )
        for column in relation.columns:
            now = table.attributes.get(column.name)
            captured = any(column.name == c.name for c in selection.columns)
            if (
                captured
                and now is not None
                and (now.type_oid, now.modifier) != (column.type_oid, column.modifier)
            ):
                raise SourceError(
                    f"column {column.name} of {selection.relation.shown} had another type when it was logged",
                    hint="ALTER CAPTURE ... RESUME compares all rows",
                )
        self.relation = relation
        self.captured = [places[c.name] for c in selection.columns]
        self.key = [places[name] for name in selection.key]
        self.identity = [place for place, column in enumerate(relation.columns) if column.in_identity]
        if relation.identity != "f" and not set(self.key) <= set(self.identity):
            raise SourceError(
                f"the log does not say by the key of the capture which rows of {selection.relation.shown} have changed",
                detail="its REPLICA IDENTITY was altered",
                hint="set it back at the source; ALTER CAPTURE ... RESUME compares all rows",
            )

    def key_of(self, values: Values) -> Key:
        key = [values[place] for place in self.key]
        if Unchanged.VALUE in key:
            raise MalformedMessage("a column of the key was not sent")
        return tuple(key)  # type: ignore[arg-type]


@dataclass
class Reading:
    """Takes message after message, and makes steps of them.

    Transactions for which `skips` holds are passed over. No step has more changes than `limit`; `count` is told of each change.
    """

    table: LoggedTable
    selection: Selection
    restricted: bool
    skips: Callable[[Begin], bool]
    limit: int
    count: Callable[[int], None]
    encoding: str = "utf-8"
    steps: list[Step] = field(default_factory=list)
    messages: int = 0
    end: int = 0
    """Where the log goes on after the last transaction, also where that was passed over."""
    _relations: dict[int, Relation] = field(default_factory=dict)
    _layouts: dict[int, _Layout] = field(default_factory=dict)
    _latest: dict[Key, Captured | None] = field(default_factory=dict)
    """Of rows that were changed what they are now; None for one that is gone."""
    _is_known: bool = False
    """Whether `_latest` has all rows, as the table was emptied."""
    _current: Step | None = None
    _key_places: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self._key_places = self.selection.key_places
        self._follows = bool(self.table.large([c.name for c in self.selection.columns]))

    def read(self, messages: Iterable[bytes]) -> None:
        """Takes messages. Raises SourceError for what cannot be read, TooLarge for a transaction that is not followed: the
        steps before it are whole then."""
        for data in messages:
            self.messages += 1
            try:
                self._take(data)
            except MalformedMessage as error:
                raise SourceError(
                    f"the log of {self.selection.relation.shown} has a message that cannot be read",
                    detail=str(error),
                    hint="capture the table USING LOG WITH (install = true), or CHECKSUM",
                ) from None

    def _take(self, data: bytes) -> None:
        if self._current is None and data[:1] not in b"BRC":
            return  # of a transaction that is passed over
        message = decode(data, self.encoding)
        if isinstance(message, Begin):
            self._current = None if self.skips(message) else Step(times=[message.committed])
        elif isinstance(message, Relation):
            self._layouts.pop(message.oid, None)
            self._relations[message.oid] = message
        elif isinstance(message, Commit):
            self._commit(message)
        elif isinstance(message, Truncate):
            self._truncate(message)
        elif isinstance(message, Insert | Update | Delete):
            self._change(message)

    # ------------------------------------------------------------ transactions

    def _commit(self, message: Commit) -> None:
        step, self._current = self._current, None
        self.end = message.end_lsn
        if step is None or not (step.changes or step.empties):
            return
        step.end = message.end_lsn
        last = self.steps[-1] if self.steps else None
        joins = last is not None and not last.empties and not step.empties
        if last is None or not joins or len(last.changes) + len(step.changes) > self.limit:
            step.transactions = [0] * len(step.changes)
            self.steps.append(step)
            last = step
        else:
            number = len(last.times)
            last.changes += step.changes
            last.transactions += [number] * len(step.changes)
            last.times += step.times
            last.end = step.end

    def _truncate(self, message: Truncate) -> None:
        assert self._current is not None
        if self.table.oid in message.relations:
            self._current.empties = True
            self._current.changes.clear()
            self._latest.clear()
            self._is_known = True

    # ------------------------------------------------------------ changes

    def _change(self, message: Insert | Update | Delete) -> None:
        self.count(1)
        layout = self._layout(message.relation)
        if layout is None:
            return
        if isinstance(message, Delete):
            old = message.key if message.old is None else message.old
            assert old is not None
            self._gone(layout.key_of(old))
        elif isinstance(message, Insert):
            self._there(layout, message.new, layout.key_of(message.new))
        else:
            self._update(layout, message)
        assert self._current is not None
        if len(self._current.changes) > self.limit:
            raise TooLarge

    def _update(self, layout: _Layout, message: Update) -> None:
        new = message.new
        known = message.old or message.key
        if known is not None:
            filled = range(len(new)) if message.old is not None else layout.identity
            for place in filled:
                if new[place] is Unchanged.VALUE:
                    new[place] = known[place]
        after = layout.key_of(new)
        before = after if known is None else layout.key_of(known)
        row = self._filled(layout, new, before)
        if before != after:
            self._gone(before)
        self._there(layout, new, after, row)

    def _filled(self, layout: _Layout, new: Values, before: Key) -> Captured:
        """The captured columns; what is not sent is what the row had."""
        row = [new[place] for place in layout.captured]
        if Unchanged.VALUE not in row:
            return tuple(row)  # type: ignore[arg-type]
        found = self._latest.get(before)
        if found is None and (before in self._latest or self._is_known):
            raise SourceError(
                f"the log of {self.selection.relation.shown} updates a row that is not there",
                detail=f"its key is {_shown(before)}",
                hint="ALTER CAPTURE ... RESUME compares all rows",
            )
        given = found if found is not None else (Before(before),) * len(row)
        return tuple(old if value is Unchanged.VALUE else value for value, old in zip(row, given))

    def _there(self, layout: _Layout, new: Values, key: Key, row: Captured | None = None) -> None:
        if row is None:
            row = self._filled(layout, new, key)
        whole = (layout.relation, new) if self.restricted else None
        if self._follows:
            self._latest[key] = row
        assert self._current is not None
        self._current.changes.append(Change(False, row, whole))

    def _gone(self, key: Key) -> None:
        if self._follows:
            self._latest[key] = None
        values = dict(zip(self._key_places, key))
        row = tuple(values.get(place) for place in range(len(self.selection.columns)))
        assert self._current is not None
        self._current.changes.append(Change(True, row, None))

    def _layout(self, oid: int) -> _Layout | None:
        if oid != self.table.oid:
            return None
        if oid not in self._layouts:
            self._layouts[oid] = _Layout(self._relations[oid], self.table, self.selection)
        return self._layouts[oid]


def _shown(key: Key) -> str:
    return ", ".join("NULL" if value is None else value.decode(errors="replace") for value in key)
