"""What every pass over a query needs: column names that are unique in one plan, and a way to say no."""

from __future__ import annotations

import re

__all__ = ["Names", "NotLowered"]


class Names:
    """Makes names: `fresh("acct")` gives `acct_1`, then `acct_2`."""

    def __init__(self) -> None:
        self._count = 0

    def fresh(self, stem: str) -> str:
        """A name that this object has not given before, made of `stem` and a number."""
        self._count += 1
        safe = re.sub(r"\W", "_", stem, flags=re.ASCII).lower()[:40].strip("_") or "c"
        return f"{'c_' if safe[0].isdigit() else ''}{safe}_{self._count}"


class NotLowered(Exception):
    """The query has a construct without an algebra; the text says which."""
