"""What ADVISE CAPTURE looks at in a database: all of it is read, and only a bounded number of rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from cq_engine.catalog.model import Capture, CatalogState, DeclaredSource
from cq_engine.core.errors import CQError, SourceError
from cq_engine.grammar.clauses import CaptureMethod, OnDemand
from cq_engine.sources.advice.columns import flag_of, is_indexed, key_of, timestamps_of
from cq_engine.sources.advice.formulas import ASSUMED, RANGE, TICK
from cq_engine.sources.advice.statistics import Statistics, statistics
from cq_engine.sources.kinds import check_capture, method_of, methods_of, shown_method
from cq_engine.sources.methods.relational import Asked, Relational
from cq_engine.sources.sql.database import Database, Session
from cq_engine.sources.sql.model import Relation, Statement
from cq_engine.sources.sql.overlap import before
from cq_engine.sources.sql.relation import describe
from cq_engine.sources.sql.select import clock, count, selection, since
from cq_engine.sources.sql.text import Text

__all__ = ["Facts", "candidates", "look"]

_COUNTED = 100_000
"""So many rows are counted; more are what the server's statistics say."""
_SAMPLE = 100
"""So many rows say how long a row is where the server does not."""
_NAMED = ("ts", "flag")
"""What stands for a timestamp and a flag that are not there."""


@dataclass(frozen=True)
class Facts:
    """What is known of a relation, and how."""

    relation: Relation
    key: tuple[str, ...] = ()
    rows: int = 0
    row_bytes: float = 0.0
    changed: float = 0.0
    """Rows per tick."""
    known_by: str = ""
    """How `changed` is known, or that it was assumed."""
    timestamp: str | None = None
    flag: str | None = None
    statistics: Statistics = field(default_factory=Statistics)
    methods: tuple[str, ...] = ()
    """Kinds of methods that the source has."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """By the text of a method, why a capture by it cannot be created."""

    @property
    def indexed(self) -> bool:
        """Whether an index finds rows by the timestamp."""
        return self.timestamp is not None and is_indexed(self.relation, self.timestamp)

    @property
    def kept(self) -> bool:
        """Whether the server itself sets the timestamp with every write."""
        return self.timestamp in self.statistics.kept

    @property
    def table_bytes(self) -> float:
        """The size of all rows."""
        return self.rows * self.row_bytes


def candidates(relation: Relation, timestamp: str | None, flag: str | None) -> tuple[CaptureMethod, ...]:
    """The methods, always in this order, with the columns that they would use."""
    ts, mark = timestamp or _NAMED[0], flag or _NAMED[1]
    rows = (("rows", str(RANGE)),)
    return (
        CaptureMethod("TIMESTAMP", ts),
        CaptureMethod("TIMESTAMP", ts, mark),
        CaptureMethod("TIMESTAMP", ts, mark, options=(("index", "covering"),)),
        CaptureMethod("CHECKSUM"),
        CaptureMethod("COPY"),
        CaptureMethod("RANGES", options=rows),
        CaptureMethod("RANGES", checksum=True, options=rows),
        CaptureMethod("VIEW", query=_query(relation)),
        CaptureMethod("LOG", options=(("install", "true"),)),
    )


def _query(relation: Relation) -> str:
    quoted = _quoting(relation)
    names = ", ".join(quoted(column.name) for column in relation.columns)
    return f"SELECT {names} FROM {'.'.join(map(quoted, filter(None, (relation.schema, relation.name))))}"


def _quoting(relation: Relation) -> Callable[[str], str]:
    return selection(_capture(relation, CaptureMethod("COPY")), relation).server.quoted


def _capture(relation: Relation, method: CaptureMethod) -> Capture:
    """The capture that somebody would create by the method."""
    return Capture(
        "advice", "advice", "advice", replace(method, options=()), OnDemand(), relation.name, options=method.options
    )  # fmt: skip


def look(declared: DeclaredSource, name: str, seconds: float) -> Facts:
    """What there is to know of the table `name`; where the source has counters, they are read twice, so many seconds apart.

    Raises SourceError where the source cannot be reached or has no such table.
    """
    with Database.open(declared) as database:
        relation = describe(database, name)
        key = key_of(relation)
        facts = Facts(relation, key, methods=methods_of(declared))
        asked = Asked(database, selection(_capture(relation, CaptureMethod("COPY")), relation, key))
        try:
            facts = _measured(facts, asked)
        except SourceError as error:  # such as of an account that may not read the table
            return replace(facts, refused=_all(facts, error.message))
        facts = _changing(facts, asked, seconds)
        return replace(facts, refused=_refusals(declared, facts, asked))


def _all(facts: Facts, reason: str) -> Mapping[str, str]:
    methods = candidates(facts.relation, facts.timestamp, facts.flag)
    return {shown_method(method): reason for method in methods}


def _measured(facts: Facts, asked: Asked) -> Facts:
    """Its size, and the columns that tell of changes. Raises SourceError where the columns cannot be read."""
    relation, text = facts.relation, Text(asked.selection)
    with asked.database.connect() as session:
        known = statistics(asked.database.server, session, relation)
    with asked.database.connect() as session:
        sample = session.rows(text.select(text.captured(), limit=_SAMPLE))
        rows = _counted(session, asked, known.rows)
    widths = [sum(len(str(value)) for value in row if value is not None) for row in sample]
    found, flag = timestamps_of(relation, known.kept), flag_of(relation)
    return replace(
        facts,
        rows=rows,
        row_bytes=known.row_bytes or (sum(widths) / len(widths) if widths else 0.0),
        timestamp=found[0].name if found else None,
        flag=flag.name if flag is not None else None,
        statistics=known,
    )


def _counted(session: Session, asked: Asked, estimate: int | None) -> int:
    """The number of rows; from `_COUNTED` on about what the server says."""
    rows = count(session, asked.selection, _COUNTED + 1)
    return rows if rows <= _COUNTED else max(rows, estimate or 0)


def _changing(facts: Facts, asked: Asked, seconds: float) -> Facts:
    """How many rows change between two ticks: by what the server counts, else by a timestamp that an index finds."""
    counted = facts.statistics.written is not None
    newest = _newest(asked, facts.timestamp) if facts.indexed and not counted else None
    if not counted and newest is None:
        assumed = f"how many rows change is not known: {ASSUMED:.0%} per tick was assumed"
        return replace(facts, changed=facts.rows * ASSUMED, known_by=assumed)
    began = time.monotonic()
    time.sleep(seconds)
    with asked.database.connect() as session:
        if counted:
            later = statistics(asked.database.server, session, facts.relation)
            seen = (later.written or 0) - (facts.statistics.written or 0)
        else:
            seen = _written_since(session, asked, facts.timestamp or "", newest)
    passed = time.monotonic() - began
    if seen <= 0:
        said = f"no row has changed in {passed:.1f} seconds: {ASSUMED:.0%} per tick was assumed"
        return replace(facts, changed=facts.rows * ASSUMED, known_by=said)
    changed = seen / passed * TICK
    said = f"{seen} rows have changed in {passed:.1f} seconds, which makes {changed:.0f} per tick"
    return replace(facts, changed=min(changed, max(facts.rows, seen)), known_by=said)


def _newest(asked: Asked, column: str | None) -> Any:
    with asked.database.connect() as session:
        return (session.one(clock(asked.selection, column)) or (None,))[0] if column is not None else None


def _written_since(session: Session, asked: Asked, column: str, newest: Any) -> int:
    written = since(asked.selection, column, newest)
    (count,) = session.one(Statement(f"SELECT COUNT(*) FROM ({written.sql}) AS c", written.parameters)) or (
        0,
    )
    return int(count)


def _refusals(declared: DeclaredSource, facts: Facts, asked: Asked) -> Mapping[str, str]:
    """What CREATE CAPTURE would say to each method; a log, which would be installed, is not tried."""
    refused: dict[str, str] = {}
    for method in candidates(facts.relation, facts.timestamp, facts.flag):
        capture = _capture(facts.relation, method)
        named = {method.column: facts.timestamp, method.deleted: facts.flag}
        if method.kind in ("LOG", "VIEW") or method.kind not in facts.methods or not facts.key:
            continue
        if any(word is not None and found is None for word, found in named.items()):
            continue
        try:
            check_capture(declared, capture)
            if method.kind == "TIMESTAMP":
                _check_values(facts, asked)
            made = method_of(declared, capture, CatalogState())
            if isinstance(made, Relational):
                made.examine(asked, capture, lambda _: None)
        except CQError as error:
            refused[shown_method(method)] = error.message.replace(f"capture {capture.name}", "such a capture")
    return refused


def _check_values(facts: Facts, asked: Asked) -> None:
    """Raises SourceError where the timestamp's values are none."""
    column = facts.relation.column(facts.timestamp or "")
    newest = _newest(asked, column.name)
    if newest is None and facts.rows:
        raise SourceError(f"{column.name} is NULL in every row: no write sets it")
    if newest is not None and not column.type.startswith(("tinyint", "smallint", "int", "bigint", "decimal")):
        before(newest, timedelta(minutes=1), column)
