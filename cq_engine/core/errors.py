"""The exceptions of cq-engine: one tree, and how one is shown to a person.

    CQError
     ├── CQSyntaxError        the text is not the language
     ├── AnalysisError        the text is the language, but names, types or shapes do not fit
     ├── CatalogError         an object exists already, does not exist, or is in use
     ├── ConstraintError      PRIMARY KEY, FOREIGN KEY or NOT NULL would be violated
     ├── ConflictError        another transaction changed what this one read or wrote; retry it
     ├── TransactionError     BEGIN inside a transaction, COMMIT outside one, a commit time that goes back
     ├── RefreshError         a refresh could not compute its delta (the query goes to FAILED)
     │    └── ResultKeyError  two result rows with one result key
     ├── DestinationError     a delivery failed or a destination does not fit
     ├── SourceError          a source refuses, or has what its table cannot take
     │    └── SourceUnavailableError  it does not answer: the capture is tried again
     ├── StorageError         data files, Delta publishing, retention
     │    └── DiskError       the system refuses to read or write: no room, no permission, a device that fails
     └── LeaseError           another process has the duties of the warehouse

Each has three parts, as Materialize's style guide asks: `message` (what is wrong, with which object), `detail`
(why) and `hint` (what to do), and where there is text a `location`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

__all__ = [
    "AnalysisError",
    "CQError",
    "CQSyntaxError",
    "CatalogError",
    "ConflictError",
    "ConstraintError",
    "DestinationError",
    "DiskError",
    "LeaseError",
    "Location",
    "RefreshError",
    "ResultKeyError",
    "SourceError",
    "SourceUnavailableError",
    "StorageError",
    "TransactionError",
    "did_you_mean",
    "location_at",
    "said",
]


_LINE = 160
"""So many characters of a line are quoted."""
_MOST = 2000
"""So many characters of a message, detail or hint are shown."""


_SECRET = re.compile(
    r"(://[^:/@\s]*:)([^\s@]+)(?=@)|([?&]\w*(?:pass|pwd|secret|token)\w*=)([^&\s'\"]+)", re.IGNORECASE
)
"""Passwords of URLs, which no error shows."""


def _hidden(match: re.Match[str]) -> str:
    return (match[1] or match[3]) + "*" * len(match[2] or match[4])


@dataclass(frozen=True)
class Location:
    """A place in a text: `source` is a file name or `<input>`, `line` and `column` count from 1."""

    source: str
    line: int
    column: int
    text: str = ""
    """The whole line that `line` names, for the caret; empty where it is not known."""

    def caret(self) -> str:
        """The line, or what is around `column` of a long one, with a caret under it; or an empty string."""
        if not self.text:
            return ""
        shown, column = _SECRET.sub(_hidden, self.text.expandtabs(1)), self.column - 1
        if len(shown) > _LINE:
            start = max(0, min(column - _LINE // 2, len(shown) - _LINE))
            end = start + _LINE
            shown = ("…" if start else "") + shown[start:end] + ("…" if end < len(shown) else "")
            column -= start - (start > 0)
        return f"  {shown}\n  {' ' * column}^"


def location_at(text: str, offset: int, source: str = "<input>") -> Location:
    """The place of `offset` (from 0) in `text`."""
    offset = max(0, min(offset, len(text)))
    start = text.rfind("\n", 0, offset) + 1
    end = text.find("\n", offset)
    line = text[start : end if end >= 0 else len(text)].rstrip("\r")
    return Location(source, text.count("\n", 0, offset) + 1, offset - start + 1, line)


class CQError(Exception):
    """Base of every error that cq-engine raises on purpose."""

    def __init__(
        self, message: str, *, detail: str = "", hint: str = "", location: Location | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail
        self.hint = hint
        self.location = location

    def render(self) -> str:
        """The error as a person at a prompt sees it."""
        lines = []
        if self.location is not None:
            where = f"{self.location.source}:{self.location.line}:{self.location.column}"
            lines.append(f"{where}: error: {_cut(self.message)}")
            caret = self.location.caret()
            if caret:
                lines.append(caret)
        else:
            lines.append(f"error: {_cut(self.message)}")
        if self.detail:
            lines.append(f"detail: {_cut(self.detail)}")
        if self.hint:
            lines.append(f"hint: {_cut(self.hint)}")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.render()


def _cut(text: str) -> str:
    return text if len(text) <= _MOST else f"{text[:_MOST]}… ({len(text)} characters)"


class CQSyntaxError(CQError):
    """The text does not parse."""


class AnalysisError(CQError):
    """The text parses, but a name, a type or the query's shape does not fit."""


class CatalogError(CQError):
    """An object exists already, does not exist, or is in use."""


class ConstraintError(CQError):
    """A commit would violate PRIMARY KEY, FOREIGN KEY or NOT NULL."""


class ConflictError(CQError):
    """Another transaction committed a change to what this one read or wrote. Retry the transaction."""


class TransactionError(CQError):
    """A transaction statement in the wrong place, or a commit time that goes back."""


class RefreshError(CQError):
    """A refresh could not compute its delta."""


class ResultKeyError(RefreshError):
    """Two rows of a result have one result key."""


class DestinationError(CQError):
    """A delivery failed, or a destination does not fit its query."""

    wait_seconds: float = 0.0
    """For how long the target has asked to be left alone."""


class SourceError(CQError):
    """A source of changes refuses, or has what its table cannot take."""


class SourceUnavailableError(SourceError):
    """A source of changes does not answer: it is tried again."""


class StorageError(CQError):
    """Data files, Delta publishing or retention."""


class DiskError(StorageError):
    """The system refuses to read or write: no room, no permission, a device that fails. It can be repeated."""


class LeaseError(CQError):
    """Another process holds the warehouse."""


def did_you_mean(name: str, names: Iterable[str], otherwise: str = "") -> str:
    """The hint for a name that is not known: the nearest one of `names`, in whatever case, or `otherwise`.

    >>> did_you_mean("Ordres", ["orders", "customers"])
    'did you mean orders?'
    """
    by_lower = {known.lower(): known for known in names}
    near = get_close_matches(name.lower(), by_lower, n=1)
    return f"did you mean {by_lower[near[0]]}?" if near else otherwise


def said(error: BaseException) -> str:
    """An error in one line: what it says and why; of one that is not ours its type, too."""
    if isinstance(error, CQError):
        return f"{error.message} ({error.detail})" if error.detail else error.message
    return f"{type(error).__name__}: {error}"
