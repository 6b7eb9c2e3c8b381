"""The types of destinations that CREATE DESTINATION knows, and what stands in their WITH (...)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cq_engine.catalog.destinations import is_merge
from cq_engine.catalog.model import CatalogState, Cursor, DeclaredDestination
from cq_engine.core.errors import AnalysisError, Location, did_you_mean
from cq_engine.destinations.callback import Retry
from cq_engine.grammar.statements import DestinationRef

__all__ = ["LATER", "Policy", "check_declared", "dead_letters_of", "option_of", "policy_of"]

LATER = ("QUEUE", "TRIGGER", "WEBHOOK", "DATABASE", "DELTA", "KAFKA", "NATS", "RABBITMQ", "REDIS")
"""Types that the language knows and this version has not."""
Place = Callable[[str], Location | None]
"""Where a word stands in the statement."""

_LENGTH = re.compile(r"(\d+(?:\.\d+)?)\s*(millisecond|second|minute|hour)s?", re.IGNORECASE)
_SECONDS = {"millisecond": 0.001, "second": 1.0, "minute": 60.0, "hour": 3600.0}


@dataclass(frozen=True)
class _Option:
    default: str
    check: Callable[[str], object]
    hint: str


def _one_of(*values: str) -> _Option:
    def check(value: str) -> None:
        if value.lower() not in values:
            raise ValueError

    return _Option(values[0], check, f"it is {', '.join(values[:-1])} or {values[-1]}")


def _attempts(value: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", value) or int(value) == 0:
        raise ValueError
    return int(value)


def _seconds(value: str) -> float:
    found = _LENGTH.fullmatch(value.strip())
    if found is None:
        raise ValueError
    return float(found[1]) * _SECONDS[found[2].lower()]


_COMMON: Mapping[str, _Option] = {
    "on_failure": _one_of("retry", "dead_letter", "pause"),
    "max_attempts": _Option("5", _attempts, "write how often at most, as in max_attempts = 5"),
    "backoff": _Option("250 milliseconds", _seconds, "write a length of time, as in backoff = '2 seconds'"),
}
_TYPES: Mapping[str, Mapping[str, _Option]] = {
    "TABLE": {
        "mode": _one_of("history", "merge"),
        **_COMMON,
    },
    "CALLBACK": _COMMON,
}


def check_declared(destination: DeclaredDestination, place: Place = lambda _: None) -> None:
    """Raises AnalysisError for a type that is not there, and for options that the type does not have or take."""
    options = _TYPES.get(destination.type)
    shown = destination.type.lower()
    names = [name.lower() for name in _TYPES]
    if options is None and destination.type in LATER:
        raise AnalysisError(
            f"destinations of type {shown} are not available yet",
            detail=f"this version has {' and '.join(names)}",
            hint="deliver to a CALLBACK, a Python function that passes the batches on",
            location=place(shown),
        )
    if options is None:
        raise AnalysisError(
            f"there is no type {shown} of destinations",
            hint=did_you_mean(shown, names, f"the types are {' and '.join(names)}"),
            location=place(shown),
        )
    for name, value in destination.options:
        if name not in options:
            raise AnalysisError(
                f"there is no option {name} of a destination of type {shown}",
                hint=did_you_mean(name, options, f"the options are {', '.join(options)}"),
                location=place(name),
            )
        if name in _COMMON and is_merge(destination):
            raise AnalysisError(
                f"{name} is not for mode = 'merge'",
                detail="the query's own refreshes write the table, and there is nothing that could fail by itself",
                hint="leave it out",
                location=place(name),
            )
        try:
            options[name].check(value)
        except ValueError:
            raise AnalysisError(
                f"{name} = '{value}' is not possible", hint=options[name].hint, location=place(name)
            ) from None


def option_of(destination: DeclaredDestination, name: str) -> str:
    """The value of an option, or its default."""
    return dict(destination.options).get(name, _TYPES[destination.type][name].default)


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
    if found is None or found.type not in _TYPES:
        return _DEFAULT
    given = dict(found.options)
    return Policy(
        found.paused,
        option_of(found, "on_failure").lower(),
        _attempts(option_of(found, "max_attempts")),
        _seconds(given["backoff"]) if "backoff" in given else None,
    )
