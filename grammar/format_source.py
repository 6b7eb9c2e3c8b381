"""Canonical text of the statements about sources and captures; `format_statement` gives it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cq_engine.grammar import statements
from cq_engine.grammar.clauses import CapturedColumn, CaptureMethod
from cq_engine.grammar.format_parts import drop, format_when, kind_name, options
from cq_engine.grammar.names import quote_name, string_literal

__all__ = ["FORMATS", "format_method"]


def _create_source(statement: statements.CreateSource) -> str:
    exists = "IF NOT EXISTS " if statement.if_not_exists else ""
    text = f"CREATE SOURCE {exists}{quote_name(statement.name)} TYPE {kind_name(statement.type)}"
    return text if not statement.options else f"{text} WITH {options(statement.options)}"


def _alter_source(statement: statements.AlterSource) -> str:
    return f"ALTER SOURCE {quote_name(statement.name)} SET WITH {options(statement.options)}"


def _drop_source(statement: statements.DropSource) -> str:
    return f"DROP SOURCE {drop(statement)}"


def _create_capture(statement: statements.CreateCapture) -> str:
    exists = "IF NOT EXISTS " if statement.if_not_exists else ""
    place = f"  FROM {quote_name(statement.source)}"
    if statement.relation is not None:
        place += f" TABLE {string_literal(statement.relation)}"
    if statement.columns:
        place += f" ({', '.join(map(_column, statement.columns))})"
    if statement.where is not None:
        place += f" WHERE {string_literal(statement.where)}"
    lines = [
        f"CREATE CAPTURE {exists}{quote_name(statement.name)}",
        f"  INTO {quote_name(statement.table)}",
        place,
        f"  USING {format_method(statement.method)}",
        f"  {format_when(statement.when)}",  # always: options before it would be the method's
    ]
    if statement.options:
        lines.append(f"  WITH {options(statement.options)}")
    return "\n".join(lines)


def _column(column: CapturedColumn) -> str:
    target = "" if column.target == column.name else f" AS {quote_name(column.target)}"
    return f"{quote_name(column.name)}{target}"


def format_method(method: CaptureMethod) -> str:
    """The text of a method, as it stands after USING."""
    given = method.options
    inside = [] if method.column is None else [quote_name(method.column)]
    if method.deleted is not None:
        inside.append(f"DELETED {quote_name(method.deleted)}")
    if method.kind == "RANGES" and given and given[0][0] == "rows":
        inside.append(options(given[:1])[1:-1])
        given = given[1:]
    if method.checksum:
        inside.append("CHECKSUM")
    text = method.kind if method.query is None else f"{method.kind} {string_literal(method.query)}"
    text += f" ({', '.join(inside)})" if inside else ""
    return f"{text} WITH {options(given)}" if given else text


def _alter_capture(statement: statements.AlterCapture) -> str:
    text = f"ALTER CAPTURE {quote_name(statement.name)} {statement.action}"
    if statement.when is not None:
        text += f" {format_when(statement.when)}"
    return text if not statement.options else f"{text} WITH {options(statement.options)}"


def _refresh_capture(statement: statements.RefreshCapture) -> str:
    return f"REFRESH CAPTURE {quote_name(statement.name)}"


def _drop_capture(statement: statements.DropCapture) -> str:
    return f"DROP CAPTURE {'IF EXISTS ' if statement.if_exists else ''}{quote_name(statement.name)}"


def _advise_capture(statement: statements.AdviseCapture) -> str:
    verbose = "VERBOSE " if statement.verbose else ""
    relation = string_literal(statement.relation)
    return f"ADVISE {verbose}CAPTURE FROM {quote_name(statement.source)} TABLE {relation}"


FORMATS: tuple[Callable[[Any], str], ...] = (
    _create_source,
    _alter_source,
    _drop_source,
    _create_capture,
    _alter_capture,
    _refresh_capture,
    _drop_capture,
    _advise_capture,
)
"""By the annotation of its argument, what prints each kind of statement."""
