"""Which transactions a snapshot of PostgreSQL sees, of whose numbers the log has 32 bits."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Snapshot", "is_visible"]


class Snapshot(NamedTuple):
    """What `pg_current_snapshot` gives: all transactions below `low` have ended, none from `high` on, and of those between `running`
    have not."""

    low: int
    high: int
    running: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> Snapshot:
        """A snapshot as PostgreSQL writes it."""
        low, high, running = text.split(":")
        return cls(int(low), int(high), frozenset(int(each) for each in running.split(",") if each))

    def number(self, xid: int) -> int:
        """The number of a transaction, of which 32 bits are known: the one that is nearest to the snapshot's.

        >>> Snapshot.parse("4294967290:4294967298:").number(1), Snapshot.parse("4294967290:4294967298:").number(2**32 - 1)
        (4294967297, 4294967295)
        """
        return self.high + (xid - self.high + 2**31) % 2**32 - 2**31

    def sees(self, number: int) -> bool:
        """Whether the snapshot sees what the transaction has done."""
        return number < self.low or (number < self.high and number not in self.running)


def is_visible(xid: int, snapshot: str) -> bool:
    """Whether a transaction, of whose number 32 bits are known, is one that the snapshot sees, as `pg_current_snapshot` gives it.

    >>> [is_visible(xid, "10:14:11,13") for xid in (9, 10, 11, 12, 13, 14)]
    [True, True, False, True, False, False]
    """
    known = Snapshot.parse(snapshot)
    return known.sees(known.number(xid))
