"""Where an error stands: places inside a part of a statement become places in the script."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cq_engine.core.errors import AnalysisError, CatalogError, CQError, Location, SourceError, location_at
from cq_engine.grammar.scan import scan
from cq_engine.grammar.statements import (
    AlterContinuousQuery,
    CreateContinuousQuery,
    CreateTable,
    Dml,
    Explain,
    Query,
    Statement,
)

__all__ = ["locate_errors", "word_place"]


def word_place(sql: str) -> Callable[..., Location | None]:
    """Gives the place of a word of the statement, its last one or, as `which` says, another; None where it is not there."""

    def place(word: str, which: int = -1) -> Location | None:
        found = list(re.finditer(rf"(?<!\w){re.escape(word)}(?!\w)", scan(sql).skeleton, re.IGNORECASE))
        return location_at(sql, found[which].start()) if found else None

    return place


@contextmanager
def locate_errors(
    sql: str, statement: Statement, source: str, line: int, column: int
) -> Iterator[Callable[[CQError], CQError]]:
    """Errors that name a place in a part of `sql` name it in `source`, where `sql` starts at `line` and `column`.

    One that names no place gets that of the first word of the statement that its message speaks of; in a script it else
    gets that of the statement. The block gets what does it to a later error.
    """

    def place(error: CQError) -> CQError:
        offset = _offset_of_subject(error, sql)
        if offset is not None:
            error.location = _move(location_at(sql, offset), sql, 0, source, line, column)
        elif error.location is None and source != "<input>":
            error.location = Location(source, line, column, " " * (column - 1) + sql.split("\n", 1)[0])
        elif error.location is not None and error.location.source in ("<input>", "<query>"):
            error.location = _move(error.location, sql, _offset(sql, statement), source, line, column)
        return error

    try:
        yield place
    except CQError as error:
        place(error)
        raise


_ABOUT_WORDS = (AnalysisError, CatalogError, SourceError)
"""Errors that speak of what the statement names."""
_MOST = 500
"""So many characters of a message are looked at: one can list the columns of a wide table."""
_OURS = frozenset(
    re.findall(
        r"\w+",
        """
        a added already always an analysed and another are as at be been before begin begins by call called calls can cannot catalog
        change changed changes cluster column columns commit compressed constraint continuous copy cq create date declared
        defining delete deleted delta deltas destination destinations does drop each engine enforced error every exists
        expression file find first for foreign form from function functions gives go goes group had has have here how if in
        incremental insert inserted into is it its itself key keys kind kinds known last later list merge message messages more
        must name named names new no none not null of on one only option options or other own part primary query queue read
        reads refresh refreshed relation result results returns row rows says select set sets source stands start state
        statement string such table tables than that the their there they this time times to trigger two type types unknown
        update used user value values version view what when where which with without word would yet
        """,
    )
)
"""Words of our sentences, which are no names even where the statement has them."""


def _offset_of_subject(error: CQError, sql: str) -> int | None:
    """Where the statement has the first word that the message takes from it; None where the error has a place, is not about
    the statement's words, or has none of them."""
    if error.location is not None or not isinstance(error, _ABOUT_WORDS):
        return None
    words = re.findall(r"(columns? )?\b([^\W\d]\w*)", error.message[:_MOST].lower())
    in_order = [word for _, word in sorted(words, key=lambda each: not each[0])]  # a column before its table
    wanted = frozenset(in_order) - _OURS
    places: dict[str, int] = {}
    scanned = scan(sql) if wanted else scan("")
    for text in (scanned.skeleton, scanned.code):  # in strings last
        for found in re.finditer(r"\w+", text):
            if found[0].lower() in wanted:
                places.setdefault(found[0].lower(), found.start())
    return next((places[word] for word in in_order if word in places), None)


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
