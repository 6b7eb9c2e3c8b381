"""The form of a row in the tables of known mistakes."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Message:
    """One kind of mistake; `{found}` is what stands there, `{last}` the last word before it."""

    key: str
    message: str
    hint: str
    examples: tuple[str, ...]
    pattern: str | None = None
    """Searched in the description of the failure, see diagnostics.py."""
    expects: str | None = None
    """A terminal that the parser would have taken there."""
    last: str | None = None
    """Must match the whole last word before the failure."""

    def fits(self, context: str, expected: frozenset[str], last: str) -> bool:
        """Whether this row is about the failure described by the arguments."""
        return (
            self.pattern is not None
            and (self.expects is None or self.expects in expected)
            and (self.last is None or re.fullmatch(self.last, last, re.IGNORECASE) is not None)
            and re.search(self.pattern, context) is not None
        )
