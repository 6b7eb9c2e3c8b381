"""Parts of canonical texts that statements of several kinds have."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import singledispatch

from cq_engine.grammar import statements
from cq_engine.grammar.clauses import (
    Cron,
    EveryInterval,
    OnCommit,
    OnDemand,
    OnDml,
    Options,
    StartWithPeriod,
    When,
)
from cq_engine.grammar.names import quote_name, string_literal

__all__ = ["PLAIN_OPTION", "columns", "drop", "format_when", "kind_name", "options"]

PLAIN_OPTION = re.compile(r"[a-z_][a-z0-9_]*")
_Drop = (
    statements.DropTable | statements.DropContinuousQuery | statements.DropDestination | statements.DropSource
)


def columns(names: Iterable[str]) -> str:
    """A list of names in brackets."""
    return f"({', '.join(map(quote_name, names))})"


def options(given: Options) -> str:
    """`options` in brackets, as they follow WITH."""
    parts = []
    for name, value in given:
        plain = all(PLAIN_OPTION.fullmatch(part) for part in name.split("."))
        parts.append(f"{name if plain else string_literal(name)} = {string_literal(value)}")
    return f"({', '.join(parts)})"


def drop(statement: _Drop) -> str:
    """What follows the kind of object in a DROP statement."""
    exists = "IF EXISTS " if statement.if_exists else ""
    return f"{exists}{quote_name(statement.name)}{' CASCADE' if statement.cascade else ''}"


def kind_name(name: str) -> str:
    """What follows TYPE."""
    return name if PLAIN_OPTION.fullmatch(name) else quote_name(name)


@singledispatch
def format_when(when: When) -> str:
    """The text of a frequency, as it stands after COMPUTE."""
    raise TypeError(f"no format for {type(when).__name__}")


@format_when.register
def _on_commit(_: OnCommit) -> str:
    return "ON COMMIT"


@format_when.register
def _on_demand(_: OnDemand) -> str:
    return "ON DEMAND"


@format_when.register
def _every(when: EveryInterval) -> str:
    return f"EVERY INTERVAL '{when.count}' {when.unit}"


@format_when.register
def _start_with_period(when: StartWithPeriod) -> str:
    return f"START {string_literal(when.start)} WITH PERIOD {when.count} {when.unit}"


@format_when.register
def _cron(when: Cron) -> str:
    return f"CRON {string_literal(when.expression)}"


@format_when.register
def _on_dml(when: OnDml) -> str:
    return f"ON {' OR '.join(when.events)} TO {', '.join(map(quote_name, when.tables))}"
