"""The options in WITH (...) of CREATE DESTINATION: how one is checked, and those that every destination has."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cq_engine.catalog.model import CatalogState, Cursor
from cq_engine.core.errors import AnalysisError, Location, did_you_mean
from cq_engine.core.retry import Retry
from cq_engine.grammar.clauses import DestinationRef

__all__ = [
    "COMMON",
    "Option",
    "Policy",
    "check_options",
    "count",
    "dead_letters_of",
    "one_of",
    "policy_of",
    "seconds",
]

_LENGTH = re.compile(r"(\d+(?:\.\d+)?)\s*(millisecond|second|minute|hour)s?", re.IGNORECASE)
_SECONDS = {"millisecond": 0.001, "second": 1.0, "minute": 60.0, "hour": 3600.0}


@dataclass(frozen=True)
class Option:
    """One of a type's options in WITH (...): `Option("5", count, "write how often at most, as in max_attempts = 5")`.

    `check` raises ValueError for a value that is not possible, of which the error gives the `hint`. One whose default is
    None has to be said. Of a `Sink`, one that is `secret` has to be written as `${NAME}`, a variable of the environment.
    """

    default: str | None
    check: Callable[[str], object]
    hint: str
    secret: bool = False


def one_of(*values: str) -> Option:
    """An option with one of these values, the first by default."""

    def check(value: str) -> None:
        if value.lower() not in values:
            raise ValueError

    return Option(values[0], check, f"it is {', '.join(values[:-1])} or {values[-1]}")


def count(value: str) -> int:
    """A whole number above 0."""
    if not re.fullmatch("[0-9]{1,9}", value) or int(value) == 0:
        raise ValueError
    return int(value)


def seconds(value: str) -> float:
    """A length of time as options have it, in seconds. Raises ValueError."""
    found = _LENGTH.fullmatch(value.strip())
    if found is None:
        raise ValueError
    return float(found[1]) * _SECONDS[found[2].lower()]


def check_options(
    given: Mapping[str, str], known: Mapping[str, Option], what: str, place: Callable[[str], Location | None]
) -> None:
    """Raises AnalysisError for an option that `what`, such as 'a destination of type webhook', does not have or take,
    and for one that is missing. `place` says where a word stands."""
    for name, value in given.items():
        if name not in known:
            raise AnalysisError(
                f"there is no option {name} of {what}",
                hint=did_you_mean(
                    name, known, f"the options are {', '.join(known)}" if known else "it has none"
                ),
                location=place(name),
            )
        try:
            known[name].check(value)
        except ValueError:
            raise AnalysisError(
                f"{name} = '{value}' is not possible", hint=known[name].hint, location=place(name)
            ) from None
    for name, option in known.items():
        if option.default is None and name not in given:
            raise AnalysisError(
                f"{what} needs the option {name}",
                hint=option.hint,
                location=place(what.rsplit(maxsplit=1)[-1]),
            )


COMMON: Mapping[str, Option] = {
    "on_failure": one_of("retry", "dead_letter", "pause"),
    "max_attempts": Option("5", count, "write how often at most, as in max_attempts = 5"),
    "backoff": Option("250 milliseconds", seconds, "write a length of time, as in backoff = '2 seconds'"),
}


def dead_letters_of(name: str) -> str:
    """The name of the table that takes the dead letters of the destination `name`."""
    return f"{name}_dead"


@dataclass(frozen=True)
class Policy:
    """What is to be done where a destination refuses."""

    paused: bool = False
    on_failure: str = "retry"
    max_attempts: int = 5
    backoff: float | None = None
    """Seconds before the second try, where they are said."""

    def exhausted(self, cursor: Cursor | None) -> bool:
        """Whether what comes next has failed as often as it may."""
        return self.on_failure != "retry" and cursor is not None and cursor.failures >= self.max_attempts

    def at_rest(self, cursor: Cursor | None) -> bool:
        """Whether nothing is delivered until somebody says RESUME."""
        return self.paused or (self.on_failure == "pause" and self.exhausted(cursor))

    def retry(self, known: Retry) -> Retry:
        """`known`, with the pauses that were asked for."""
        return (
            known
            if self.backoff is None
            else Retry(known.attempts, self.backoff, max(known.cap, self.backoff))
        )


_DEFAULT = Policy()


def policy_of(state: CatalogState, ref: DestinationRef) -> Policy:
    """What was declared for a destination; without a declaration it is tried again without end."""
    found = state.destinations.get(ref.name.lower())
    if found is None:
        return _DEFAULT
    given = dict(found.options)
    return Policy(
        found.paused,
        given.get("on_failure", _DEFAULT.on_failure).lower(),
        count(given.get("max_attempts", str(_DEFAULT.max_attempts))),
        seconds(given["backoff"]) if "backoff" in given else None,
    )
