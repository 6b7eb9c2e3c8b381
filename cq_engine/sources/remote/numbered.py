"""Logs of SQLite and MariaDB: numbered changes, of which nobody says which transaction they belong to.

What is found in one look is one transaction: the state behind it is one that the source had. Numbers are given before a commit, so
that one may come late: a token remembers those that were read and are still in the log, as ranges, and the log loses them soon. For people it
has the greatest one, too (`last`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

from cq_engine.sources.remote.log import GapError, Logged, Token, Transaction, TriggeredLog
from cq_engine.sources.sql.database import Database, Session
from cq_engine.sources.sql.model import Statement
from cq_engine.sources.sql.selection import Selection
from cq_engine.sources.triggers.log import PIECE, instant

__all__ = ["NumberedLog"]

Entry = tuple[int, Any, str, tuple[Any, ...], tuple[Any, ...]]
"""Number, time, operation, and the values before and after."""


class NumberedLog(TriggeredLog):
    """A log with the columns `cq_number`, `cq_moment`, `cq_table`, `cq_operation` (I, U or D), and of each table the values before
    (`cq_0_old_0`, ...) and after (`cq_0_new_0`, ...)."""

    def image(self, place: int, which: str) -> list[str]:
        """The log's columns for the rows of a table, `old` or `new`, in SQL."""
        count = len(self.selections[place].columns)
        return [self.server.quoted(f"cq_{place}_{which}_{n}") for n in range(count)]

    def of(self, row: str, selection: Selection) -> list[str]:
        """The logged values of NEW or OLD, or of a table, in SQL."""
        return [f"{row}.{self.server.quoted(column.name)}" for column in selection.columns]

    def entry(self, place: int, operation: str, moment: str, old: str | None, new: str | None) -> str:
        """INSERT INTO the log, up to where a FROM may follow."""
        each = self.selections[place]
        columns, values = ["cq_moment", "cq_table", "cq_operation"], [moment, str(place), f"'{operation}'"]
        for which, row in (("old", old), ("new", new)):
            if row is not None:
                columns += self.image(place, which)
                values += self.of(row, each)
        return f"INSERT INTO {self.into()} ({', '.join(columns)}) SELECT {', '.join(values)}"

    def into(self) -> str:
        """What triggers call the log."""
        return self.table()

    @abstractmethod
    def resolved(self, place: int, entries: Iterable[Entry]) -> Iterator[Entry]:
        """The changes of a table that have taken place, in order."""

    @abstractmethod
    def deletion(self, numbers: Sequence[int]) -> Statement:
        """Deletes the rows of the log that have these numbers, and touches no other."""

    # ------------------------------------------------------------ reading

    def end(self, session: Session) -> Token:
        found = [number for (number,) in session.rows(self.plain(f"SELECT cq_number FROM {self.table()}"))]
        return {"read": _ranges(found), "last": max(found, default=0)}

    def read(self, session: Session, token: Token, most: int) -> tuple[list[Transaction], Token]:
        there: list[int] = []
        done = _Ranges(token["read"])
        changes: list[tuple[int, Logged]] = []
        newest: datetime | None = None
        for place in range(len(self.selections)):
            entries = self._entries(session, place, done, there)
            for number, moment, operation, old, new in self.resolved(place, entries):
                before = None if operation == "I" else old
                after = None if operation == "D" else new
                changes.append((number, Logged(place, before, after)))
                at = instant(moment)
                newest = at if newest is None or at > newest else newest
                if len(changes) > most:
                    raise GapError
        now = {"read": _ranges(there), "last": max([token.get("last", 0), *there])}
        if newest is None:
            return [], now
        changes.sort(key=lambda change: change[0])
        return [Transaction(tuple(change for _, change in changes), newest, now)], now

    def _entries(self, session: Session, place: int, done: _Ranges, there: list[int]) -> Iterator[Entry]:
        """What is new of a table; `there` gets all numbers that the log has of it."""
        each, server = self.selections[place], self.server
        count = len(each.columns)
        values = [
            server.read(each.relation.column(c.name), sql)
            for which in ("old", "new")
            for c, sql in zip(each.columns, self.image(place, which))
        ]
        sql = f"SELECT cq_number, cq_moment, cq_operation, {', '.join(values)} FROM {self.table()} WHERE cq_table = {place}"
        for block in session.blocks(self.plain(f"{sql} ORDER BY cq_number")):
            for number, moment, operation, *images in block:
                there.append(number)
                if number not in done:
                    yield number, moment, operation, tuple(images[:count]), tuple(images[count:])

    def clean(self, database: Database, token: Token) -> None:
        numbers = [number for low, high in token["read"] for number in range(low, high + 1)]
        for start in range(0, len(numbers), PIECE):
            with database.write() as session:
                session.change(self.deletion(numbers[start : start + PIECE]))


def _ranges(numbers: Iterable[int]) -> list[list[int]]:
    """Numbers as ranges, ends included.

    >>> _ranges([5, 1, 2, 3])
    [[1, 3], [5, 5]]
    """
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return found


class _Ranges:
    def __init__(self, ranges: Sequence[Sequence[int]]) -> None:
        self._ranges = ranges

    def __contains__(self, number: int) -> bool:
        low, high = 0, len(self._ranges)
        while low < high:
            middle = (low + high) // 2
            if self._ranges[middle][1] < number:
                low = middle + 1
            else:
                high = middle
        return low < len(self._ranges) and self._ranges[low][0] <= number
