"""What is said of sources that are logs themselves, and are never asked in SQL: tables of Delta Lake and Iceberg,
Debezium's envelopes, topics, and directories of files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from cq_engine.catalog.model import DeclaredSource
from cq_engine.grammar.clauses import CaptureMethod
from cq_engine.sources.advice import formulas
from cq_engine.sources.advice.formulas import ASSUMED
from cq_engine.sources.advice.verdicts import BETWEEN, Verdict, family
from cq_engine.sources.kinds import shown_method

__all__ = ["BY_TYPE", "METHODS"]

_RANGES = (("rows", str(formulas.RANGE)),)
METHODS = (
    CaptureMethod("TIMESTAMP", "ts"),
    CaptureMethod("TIMESTAMP", "ts", "flag"),
    CaptureMethod("TIMESTAMP", "ts", "flag", options=(("index", "covering"),)),
    CaptureMethod("CHECKSUM"),
    CaptureMethod("COPY"),
    CaptureMethod("RANGES", options=_RANGES),
    CaptureMethod("RANGES", checksum=True, options=_RANGES),
    CaptureMethod("VIEW", query="SELECT ..."),
    CaptureMethod("LOG"),
)
"""In the order that those of databases have."""


def _debezium(declared: DeclaredSource, relation: str) -> tuple[list[Verdict], str]:
    """The verdicts, and what they rest on. Raises SourceError where there are no envelopes."""
    from cq_engine.sources.debezium.feed import records_of

    records_of(declared).check()
    envelopes = Verdict(
        "LOG", "LOG", None, "envelopes that say of which table and transaction they are", "nothing"
    )
    why_not = "envelopes of Debezium are a log, and cannot be asked what a table has"
    return _verdicts([envelopes], why_not), f"{relation}: how many envelopes come with a tick is not known"


def _kafka(declared: DeclaredSource, relation: str) -> tuple[list[Verdict], str]:
    """The verdicts, and what they rest on. Raises SourceError where there is no such topic."""
    from cq_engine.sources.topics.topic import Topic

    Topic(declared).check()
    needs = "messages that are whole rows, and for deletions tombstones with a key"
    log = Verdict("LOG", "LOG", None, needs, "what retention removes before it was read")
    why_not = "a topic is a log, and cannot be asked what a table has"
    return _verdicts([log], why_not), f"{relation}: how many messages come with a tick is not known"


def _files(declared: DeclaredSource, relation: str) -> tuple[list[Verdict], str]:
    """The verdicts for a directory of files, and what they rest on. Raises SourceError where it is not there."""
    from cq_engine.sources.files.directory import Directory

    place = Directory(declared, relation)
    found = place.files()
    rows = place.rows(found)
    log = Verdict(
        "LOG", "LOG", None, "files that are written once, whole, and not again", "rows that go with a file"
    )
    needs = "files that are all of the table, each time"
    copy = Verdict("COPY", "MDS", None, needs, BETWEEN, None if rows is None else formulas.copy(rows))
    size = sum(each.size for each in found)
    said = f"{relation}: {len(found)} files of {size} bytes; how many come with a tick is not known"
    return _verdicts([copy, log], "files are read whole, and are not asked in SQL"), said


def _delta(declared: DeclaredSource, relation: str) -> tuple[list[Verdict], str]:
    """The verdicts, and what they rest on. Raises SourceError where there is no such Delta table."""
    from cq_engine.sources.delta.table import feed_is_on, open_table

    table = open_table(declared, relation)
    files = pa.table(table.get_add_actions(flatten=True))
    rows, size = (sum(_numbers(files, name)) for name in ("num_records", "size_bytes"))
    copy = Verdict("COPY", "MDS", None, "leave to read the table", BETWEEN, formulas.copy(rows))
    if feed_is_on(table):
        needs, misses, cost = "its change data feed, which is on", "nothing", formulas.log(rows * ASSUMED)
    else:
        needs = "delta.enableChangeDataFeed, which is off: each tick with a new version reads all rows"
        misses, cost = copy.misses, formulas.copy(rows)
    log = Verdict("LOG", "LOG", None, needs, misses, cost)
    width = f" of {size / rows:.0f} bytes" if rows else ""
    said = f"{relation}: {rows} rows{width}; how many rows change is not known: {ASSUMED:.0%} per tick was assumed"
    return _verdicts([copy, log], "a Delta table tells its changes itself, and is not asked in SQL"), said


def _iceberg(declared: DeclaredSource, relation: str) -> tuple[list[Verdict], str]:
    """The verdicts, and what they rest on. Raises SourceError where there is no such Iceberg table."""
    from cq_engine.sources.iceberg.table import open_table

    snapshot = open_table(declared, relation).current_snapshot()
    summary = {} if snapshot is None or snapshot.summary is None else snapshot.summary.additional_properties
    rows = int(summary.get("total-records", 0))
    copy = Verdict("COPY", "MDS", None, "leave to read the table", BETWEEN, formulas.copy(rows))
    log = Verdict(
        "LOG", "LOG", None, "snapshots that append: after any other, a tick reads all rows", "nothing",
        formulas.log(rows * ASSUMED),
    )  # fmt: skip
    said = f"{relation}: {rows} rows; how many rows change is not known: {ASSUMED:.0%} per tick was assumed"
    return _verdicts([copy, log], "an Iceberg table has its snapshots, and is not asked in SQL"), said


def _numbers(files: pa.Table, name: str) -> list[Any]:
    values = files.column(name).to_pylist() if name in files.column_names else []
    return [value for value in values if value is not None]


def _verdicts(possible: Sequence[Verdict], why_not: str) -> list[Verdict]:
    """Those that are possible among the others; a log is recommended."""
    known = {each.family: replace(each, recommended=each.family == "LOG") for each in possible}
    return [
        known.get(family(method))
        or Verdict(shown_method(method), family(method), why_not, "what the source does not have", "")
        for method in METHODS
    ]


BY_TYPE: Mapping[str, Callable[[DeclaredSource, str], tuple[list[Verdict], str]]] = {
    "delta": _delta,
    "iceberg": _iceberg,
    "debezium": _debezium,
    "kafka": _kafka,
    "csv": _files,
    "json": _files,
    "parquet": _files,
}
"""What gives the verdicts, and what they rest on, by the type of the source."""
