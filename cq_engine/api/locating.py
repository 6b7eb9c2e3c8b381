"""Where an error stands: places inside a part of a statement become places in the script."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cq_engine.core.errors import CQError, Location
from cq_engine.grammar.statements import (
    AlterContinuousQuery,
    CreateContinuousQuery,
    CreateTable,
    Dml,
    Explain,
    Query,
    Statement,
)

__all__ = ["locate_errors"]


@contextmanager
def locate_errors(
    sql: str, statement: Statement, source: str, line: int, column: int
) -> Iterator[Callable[[CQError], CQError]]:
    """Errors that name a place in a part of `sql` name it in `source`, where `sql` starts at `line` and `column`.

    In a script, those without a place get that of the statement. The block gets what does it to a later error.
    """

    def place(error: CQError) -> CQError:
        if error.location is None and source != "<input>":
            error.location = Location(source, line, column, " " * (column - 1) + sql.split("\n", 1)[0])
        elif error.location is not None and error.location.source in ("<input>", "<query>"):
            error.location = _move(error.location, sql, _offset(sql, statement), source, line, column)
        return error

    try:
        yield place
    except CQError as error:
        place(error)
        raise


def _offset(sql: str, statement: Statement) -> int:
    """Where the part that other rooms see starts in the statement's text."""
    if isinstance(statement, (AlterContinuousQuery, CreateContinuousQuery, CreateTable)):
        return statement.query_offset
    if isinstance(statement, (Dml, Query)):
        return max(0, sql.find(statement.text))
    if isinstance(statement, Explain) and statement.text:
        return max(0, sql.find(statement.text))
    return 0


def _move(place: Location, sql: str, start: int, source: str, line: int, column: int) -> Location:
    lines = sql[start:].split("\n")
    index = min(place.line - 1, len(lines) - 1)
    offset = start + sum(len(each) + 1 for each in lines[:index]) + place.column - 1
    before = sql[:offset]
    row = before.count("\n")
    col = offset - (before.rfind("\n") + 1)
    text = sql.split("\n")[row] if row < len(sql.split("\n")) else ""
    if row == 0:
        return Location(source, line, column + col, " " * (column - 1) + text)
    return Location(source, line + row, col + 1, text)
