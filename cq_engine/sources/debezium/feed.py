"""USING LOG over envelopes of Debezium: the source's transactions become ours, with their times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from cq_engine.catalog.model import DeclaredSource
from cq_engine.sources.debezium.envelope import Event, read_line, value_of
from cq_engine.sources.debezium.files import EnvelopeFiles
from cq_engine.sources.poison import Layout
from cq_engine.sources.records.changes import Changes
from cq_engine.sources.records.feed import RecordFeed
from cq_engine.sources.records.record import Record, Records
from cq_engine.sources.tick import DELETE, UPSERT, Tick

__all__ = ["DebeziumFeed", "records_of"]


def records_of(declared: DeclaredSource) -> Records:
    """The source's lines: of its files, or of its topic. Raises SourceError."""
    if "path" in dict(declared.options):
        return EnvelopeFiles(declared)
    from cq_engine.sources.topics.topic import Topic

    return Topic(declared)


class DebeziumFeed(RecordFeed[Event]):
    """Positions are how many bytes of each file were read, or how far each partition of the topic."""

    letters: ClassVar[Layout] = (
        ("file", "STRING"),
        ("start", "BIGINT"),
        ("reason", "STRING"),
        ("envelope", "STRING"),
    )

    def records(self, declared: DeclaredSource) -> Records:
        return records_of(declared)

    def letter(self, shown: str, record: Record, reason: str) -> tuple[Any, ...]:
        text = (record.text or b"").decode("utf-8", "replace").rstrip("\n")
        return shown, record.start, reason, text

    def event(self, tick: Tick, record: Record) -> Event | None:
        event = None if record.text is None else read_line(record.text)
        wanted = tick.capture.relation
        return event if event is None or wanted is None or wanted.lower() in event.tables else None

    def transaction(self, event: Event) -> str | None:
        return event.transaction

    def empties(self, event: Event) -> bool:
        return event.op == "t"

    def change(self, changes: Changes, event: Event) -> None:
        row = None if event.op == "d" else _row(changes, event, event.after or {})
        old = None if event.before is None else _key(changes, event, event.before, whole=event.op == "d")
        new = None if old is None or event.op == "d" else _key(changes, event, event.after or {}, whole=True)
        for each, whole in ((row, True), (old, False)):
            if each is not None:
                changes.check_filled(each, whole=whole)
        number = changes.number(event.transaction)
        if old is not None and old != new:
            changes.add(DELETE, old, number, event.milliseconds)
        if row is not None:
            changes.add(UPSERT, row, number, event.milliseconds)


def _row(changes: Changes, event: Event, row: Mapping[str, Any]) -> list[Any]:
    return [value_of(row, name, column, event.names) for name, column, _ in changes.columns]


def _key(changes: Changes, event: Event, row: Mapping[str, Any], *, whole: bool) -> list[Any] | None:
    """A row with the key alone; None where the row does not have it and need not."""
    if not whole and any(name not in row for name, _, is_key in changes.columns if is_key):
        return None
    return [
        value_of(row, name, column, event.names) if is_key else None
        for name, column, is_key in changes.columns
    ]
