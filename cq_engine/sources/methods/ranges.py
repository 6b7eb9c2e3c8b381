"""USING RANGES (Carnes & Hanson §3.5 ID and §3.6 ID/RCS): the table is compared range of keys by range of keys.

Each step reads one bounded range in a transaction of its own, and nothing is locked for longer. Rows that move from one range
to another while the ranges are read end up where they are at the next tick, at the latest. With CHECKSUM a range is read only
where its checksum, which the source computes, is not that of the last time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cq_engine.catalog.model import Capture, DeclaredSource, Table
from cq_engine.core.errors import AnalysisError, SourceError
from cq_engine.grammar.statements import CreateTable
from cq_engine.sources.methods.base import Place
from cq_engine.sources.methods.range_checksums import RangeChecksums, side_name, side_table
from cq_engine.sources.methods.range_rows import RangeRows
from cq_engine.sources.methods.relational import Asked, Relational, opened
from cq_engine.sources.options import option
from cq_engine.sources.sql.keys import from_text, to_text
from cq_engine.sources.sql.model import is_number
from cq_engine.sources.sql.select import next_keys, without_key
from cq_engine.sources.tick import Tick

__all__ = ["Ranges"]


class Ranges(Relational):
    """Positions are the key (`after`) that the ranges were read up to; None between two passes."""

    def check(
        self, declared: DeclaredSource, capture: Capture, table: Table, place: Place
    ) -> tuple[Capture, list[str]]:
        with opened(declared, capture, table) as asked:
            _check_key(asked, table, place)
            return capture, self.examine(asked, capture, place)

    def examine(self, asked: Asked, capture: Capture, place: Place) -> list[str]:
        del capture
        if not asked.selection.is_ordered:
            named = [c.name for c in asked.selection.key_columns if not c.ordered]
            raise AnalysisError(
                f"{asked.selection.relation.shown} orders {named[0]} in a way that ranges cannot follow",
                detail="its collation compares text otherwise than byte by byte",
                hint="use CHECKSUM or COPY, or give the column a binary collation at the source",
                location=place("RANGES"),
            )
        return []

    def side_tables(self, capture: Capture, table: Table) -> Sequence[CreateTable]:
        """`<capture>_ranges`, with CHECKSUM."""
        del table
        return [side_table(capture)] if capture.method.checksum else ()

    def ask(self, tick: Tick, asked: Asked) -> None:
        _check_key(asked, tick.table)
        _check_known(asked)
        position = tick.position or {"after": None}
        rows, size = RangeRows(tick, asked), int(option(tick.capture, "rows"))
        sums = RangeChecksums(tick, asked, size, rows) if tick.capture.method.checksum else None
        limits = tick.services.limits
        most = min(limits.pending_rows, limits.apply_rows) // 2
        after = position["after"]
        for reached in _by_keys(asked, size, after, rows) if sums is None else sums.steps(after):
            if rows.count >= most or (sums is not None and sums.count >= most):
                _write(tick, rows, sums, {"after": reached})
        _write(tick, rows, sums, {"after": None})


def _write(tick: Tick, found: RangeRows, sums: RangeChecksums | None, position: Mapping[str, Any]) -> None:
    """What was found in the ranges that were read, as one commit."""
    given = {}
    rows, most = found.changes(), tick.services.limits.apply_rows
    if rows is not None:
        while rows.num_rows > most:  # a part says nothing of where the others are: it may come again
            tick.apply({tick.table.name: rows.slice(0, most)}, tick.position or {"after": None})
            rows = rows.slice(most)
        given[tick.table.name] = rows
    changed = None if sums is None else sums.changed()
    if changed is not None:
        given[side_name(tick.capture)] = changed
    tick.apply(given, position)


def _check_key(asked: Asked, table: Table, place: Place = lambda _: None) -> None:
    """Raises AnalysisError where the warehouse orders the key otherwise than the source, as text and numbers are."""
    types = {column.name.lower(): column.type for column in table.columns}
    for column, where in zip(asked.selection.key_columns, asked.selection.key_places):
        name = asked.selection.names[where]
        ours = types[name.lower()]
        if _family(column.type) != _family(ours):
            raise AnalysisError(
                f"{name} is {ours} here and {column.type} at the source, which orders it otherwise",
                hint=f"declare it as {column.type.upper()}, or use CHECKSUM or COPY",
                location=place("RANGES"),
            )


def _check_known(asked: Asked) -> None:
    """Raises SourceError where a row has NULL in its key: it is in no range."""
    statement = without_key(asked.selection)
    if statement is None:
        return
    with asked.database.connect() as session:
        found = session.one(statement)
    if found is not None:
        raise SourceError(
            f"{asked.selection.relation.shown} has rows with NULL in their key",
            detail="they are in no range of keys, and the table cannot have them",
            hint=f"leave them out: WHERE '{asked.selection.key[0]} IS NOT NULL'",
        )


def _family(kind: str) -> str:
    """Types of one family are ordered alike."""
    plain = kind.lower().split("(")[0].strip()
    if is_number(kind):
        return "number"
    if plain.startswith("timestamp"):
        return "timestamp"
    return "string" if plain in ("char", "varchar") else plain


def _by_keys(asked: Asked, size: int, after: str | None, rows: RangeRows) -> Iterator[str | None]:
    """Reads range after range; the ends of those that were read."""
    while True:
        low = None if after is None else from_text(after)
        with asked.database.connect() as session:
            high = session.one(next_keys(asked.selection, low, size))
            rows.read(session, (low, high))
        if high is None:
            return
        after = to_text(high)
        yield after
