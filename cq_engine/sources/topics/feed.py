"""USING LOG over a topic of JSON rows: each message a new row, or by its key an upsert, and a tombstone a deletion."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar

from cq_engine.catalog.model import Capture, DeclaredSource, Table
from cq_engine.core.columns import Column
from cq_engine.core.errors import AnalysisError
from cq_engine.sources.json_values import Unreadable, converted, object_of, value_of
from cq_engine.sources.methods.base import Place, check_key_filled
from cq_engine.sources.poison import Layout
from cq_engine.sources.records.changes import Changes
from cq_engine.sources.records.feed import RecordFeed
from cq_engine.sources.records.record import Record, Records
from cq_engine.sources.tick import DELETE, INSERT, UPSERT, Tick
from cq_engine.sources.topics.topic import Topic

__all__ = ["TopicFeed"]

_PIECE = "piece"
"""All messages of a piece are one commit."""


class TopicFeed(RecordFeed[Record]):
    """Positions are the offsets up to which each partition was read."""

    needs_key = False
    letters: ClassVar[Layout] = (
        ("partition", "INT"),
        ("start", "BIGINT"),
        ("reason", "STRING"),
        ("key", "STRING"),
        ("message", "STRING"),
    )

    def check(
        self, declared: DeclaredSource, capture: Capture, table: Table, place: Place
    ) -> tuple[Capture, list[str]]:
        if capture.relation is not None:
            raise AnalysisError(
                "TABLE is not for sources of type kafka",
                detail="the topic is an option of the source",
                hint="leave it out, or create a source for another topic",
                location=place("TABLE"),
            )
        check_key_filled(capture, table, "name a field of the messages for it")
        return super().check(declared, capture, table, place)

    def records(self, declared: DeclaredSource) -> Records:
        return Topic(declared)

    def letter(self, shown: str, record: Record, reason: str) -> tuple[Any, ...]:
        del shown
        key, text = (
            None if each is None else each.decode("utf-8", "replace") for each in (record.key, record.text)
        )
        return int(record.place), record.start, reason, key, text

    def event(self, tick: Tick, record: Record) -> Record | None:
        del tick
        return record

    def change(self, changes: Changes, event: Record) -> None:
        is_keyed = bool(changes.tick.key)
        if event.text is None and not is_keyed:
            raise Unreadable(
                "it has no value, and the table has no primary key by which a row could be found"
            )
        if event.text is None:
            operation, row = DELETE, _key(changes, event)
        else:
            operation, row = UPSERT if is_keyed else INSERT, _row(changes, event, object_of(event.text))
        changes.check_filled(row, whole=event.text is not None)
        changes.add(operation, row, changes.number(_PIECE), event.milliseconds)


def _row(changes: Changes, event: Record, given: Mapping[str, Any]) -> list[Any]:
    """The row that a value is; of its key, what only the message's key says."""
    row = [value_of(given, name, column) for name, column, _ in changes.columns]
    if any(found is None and is_key for found, (_, _, is_key) in zip(row, changes.columns)):
        key = _key(changes, event) if event.key is not None else row
        row = [other if found is None else found for found, other in zip(row, key)]
    return row


def _key(changes: Changes, event: Record) -> list[Any]:
    """A row with what the message's key says: an object, or the value of the only key column."""
    if event.key is None:
        raise Unreadable("it has neither value nor key")
    given = _parsed(event.key)
    if isinstance(given, dict):
        given = given["payload"] if set(given) == {"schema", "payload"} else given
    keys = [name for name, _, is_key in changes.columns if is_key]
    if not isinstance(given, dict):
        if len(keys) > 1:
            raise Unreadable(f"its key is no object that has {', '.join(keys)}")
        given = {keys[0]: given}
    return [
        _key_value(given, name, column, event.key) if is_key else None
        for name, column, is_key in changes.columns
    ]


def _key_value(given: Mapping[str, Any], name: str, column: Column, text: bytes) -> Any:
    """A value of a key; a number that is the whole key of a column of text is taken as it is written."""
    found = given.get(name)
    if column.type.lower().startswith("string") and isinstance(found, (int, float)) and list(given) == [name]:
        whole = text.decode("utf-8", "replace")
        return converted(whole if not whole.lstrip().startswith("{") else found, name, column)
    return value_of(given, name, column)


def _parsed(key: bytes) -> Any:
    try:
        text = key.decode()
    except UnicodeDecodeError:
        raise Unreadable("its key is no text") from None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
