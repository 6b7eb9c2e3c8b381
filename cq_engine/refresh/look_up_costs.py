"""What look-ups in a table have cost, for the choice between them and a scan that changes share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Asking", "LookUpCosts"]

_CALL, _KEY = 5e-3, 1e-6
"""Seconds that a look-up in copies of columns is taken to cost, and each of its keys, before one has been measured: little, since what is
never tried is never measured."""
_LEARNT = 0.3
"""The weight of a new measurement."""
_SURPRISE = 10
"""A measurement counts as at most so many times what was expected: a single one may be of a machine that was busy."""
_MOST = 0.99
"""A table whose columns have copies for such a share of its rows counts as copied, below the rest of it as not."""


class Asking(NamedTuple):
    """What a refresh wants of a table: so many keys, which so many pages of so many files may have."""

    keys: int
    pages: int
    files: int


@dataclass
class LookUpCosts:
    """Of one table: seconds for a look-up and for each of its keys where columns have copies, and for a page that is decoded where not;
    None before one was measured."""

    call: float = _CALL
    key: float = _KEY
    page: float | None = None

    def seconds(self, asking: Asking, copied: float, page: float) -> float:
        """What the look-up would take, where columns of a share of the rows have copies; `page` counts until a page was measured.

        >>> LookUpCosts(call=1.0, key=0.5).seconds(Asking(4, 8, 1), copied=0.5, page=0.25)
        2.5
        """
        decoded = page if self.page is None else self.page
        return copied * (self.call + asking.keys * self.key) + (1 - copied) * asking.pages * decoded

    def learn(self, keys: int, pages: int, copied: float, seconds: float) -> None:
        """A look-up took so long. Of few keys that says what a look-up costs, of many what a key does."""
        if copied >= _MOST and keys:
            seconds = min(seconds, _SURPRISE * (self.call + keys * self.key))
            if keys * self.key < self.call:
                self.call += _LEARNT * (max(0.0, seconds - keys * self.key) - self.call)
            else:
                self.key += _LEARNT * (max(0.0, seconds - self.call) / keys - self.key)
        elif copied <= 1 - _MOST and pages:
            known = seconds / pages if self.page is None else self.page
            self.page = known + _LEARNT * (seconds / pages - known)
