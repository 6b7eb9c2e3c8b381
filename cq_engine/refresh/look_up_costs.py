"""What look-ups in a table have cost, for the choice between them and a scan that changes share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Asking", "LookUpCosts"]

_KEY = 2e-5
"""Seconds that a key is taken to cost that is looked up in copies of columns, before one has been measured."""
_LEARNT = 0.3
"""The weight of a new measurement."""
_MOST = 0.99
"""A table whose columns have copies for such a share of its rows counts as copied, below the rest of it as not."""


class Asking(NamedTuple):
    """What a refresh wants of a table: so many keys, which so many pages of so many files may have."""

    keys: int
    pages: int
    files: int


@dataclass
class LookUpCosts:
    """Of one table: seconds for a key where columns have copies, and for a page that is decoded where not; None before one was measured."""

    key: float = _KEY
    page: float | None = None

    def seconds(self, asking: Asking, copied: float, page: float) -> float:
        """What the look-up would take, where columns of a share of the rows have copies; `page` counts until a page was measured.

        >>> LookUpCosts(key=0.5).seconds(Asking(4, 8, 1), copied=0.5, page=0.25)
        2.0
        """
        decoded = page if self.page is None else self.page
        return copied * asking.keys * self.key + (1 - copied) * asking.pages * decoded

    def learn(self, keys: int, pages: int, copied: float, seconds: float) -> None:
        """A look-up took so long."""
        if copied >= _MOST and keys:
            self.key += _LEARNT * (seconds / keys - self.key)
        elif copied <= 1 - _MOST and pages:
            known = seconds / pages if self.page is None else self.page
            self.page = known + _LEARNT * (seconds / pages - known)
