"""A message of a queue, and its id: (version, query, sequence), which is the same whenever it comes again."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa

from cq_engine.catalog.model import ContinuousQuery
from cq_engine.catalog.queues import Given
from cq_engine.destinations.envelope import Delta, json_form, key_columns, result_columns, result_schema

__all__ = ["Message", "MessageId", "message_id", "message_of", "read_message_id", "table_of"]

MessageId = tuple[int, int, int]
"""(commit version, id of the query, sequence)."""

_ID = re.compile(r"([a-s])(\d+)([a-s])(\d+)([a-s])(\d+)", re.ASCII)
_COLUMNS = {
    "message_id": pa.string(), "query": pa.string(), "marker": pa.string(), "key": pa.string(), "new": pa.string(),
    "old": pa.string(), "commit_version": pa.int64(), "commit_time": pa.timestamp("us", "UTC"), "attempt": pa.int64(),
}  # fmt: skip


def message_id(parts: MessageId) -> str:
    """The id as text: before each number a letter that says how many digits it has, so that ids as texts are in the order of
    the messages.

    >>> message_id((1234, 7, 15)), message_id((9, 7, 3)) < message_id((10, 7, 1))
    ('d1234a7b15', True)
    """
    return "".join(f"{chr(ord('a') + len(str(number)) - 1)}{number}" for number in parts)


def read_message_id(text: str) -> MessageId | None:
    """What an id says; None where it is none.

    >>> read_message_id("d1234a7b15"), read_message_id("d12a7b15")
    ((1234, 7, 15), None)
    """
    found = _ID.fullmatch(text)
    parts = None if found is None else (int(found[2]), int(found[4]), int(found[6]))
    return parts if parts is not None and message_id(parts) == text else None


@dataclass(frozen=True, eq=False)
class Message:
    """One change of a query's result, from a queue.

    `key`, `new` and `old` are dicts by column: the result key's values (None where the result has no key), the new row (None on D)
    and the old one (None on I), with values as those of `Delta`. `id` is the same whenever the message comes again, so that
    a consumer can know it by it, and ids are in the order of the messages; `attempt` says for which time it comes.
    `json` has key, new and old as JSON text.
    """

    id: str
    query: str
    marker: str
    key: dict[str, Any] | None
    new: dict[str, Any] | None
    old: dict[str, Any] | None
    commit_version: int
    commit_time: datetime
    attempt: int
    json: tuple[str | None, str | None, str | None] = field(repr=False)
    given: Given = field(repr=False)
    _finish: Callable[[Given, bool], bool] = field(repr=False)
    _reject: Callable[[Given, bool], bool] = field(repr=False)

    def ack(self, upto: bool = False) -> bool:
        """It is done, and does not come again; with `upto`, so is in the same transaction all that the consumer was given
        before it. False where that does not count: the visibility time-out has passed and the
        message was given to a consumer again, or it is finished already."""
        return self._finish(self.given, upto)

    def reject(self, requeue: bool = False) -> bool:
        """It goes to the dead letters, or, with `requeue`, comes again at once. False where that does not count, as of `ack`."""
        return self._reject(self.given, requeue)


def message_of(
    query: ContinuousQuery,
    delta: Delta,
    given: Given,
    finish: Callable[[Given, bool], bool],
    reject: Callable[[Given, bool], bool],
) -> Message:
    """The message that a delta is."""
    columns = result_columns(query)
    form = json_form(result_schema(query), key_columns(query))(delta)
    key, new, old = (
        None if form[part] is None else json.dumps(form[part], ensure_ascii=False)
        for part in ("key", "after", "before")
    )
    return Message(
        message_id((delta.commit_version, query.id, delta.sequence)), query.name, delta.marker,
        None if delta.key is None else dict(zip(query.key or (), delta.key)),
        None if delta.new is None else dict(zip(columns, delta.new)),
        None if delta.old is None else dict(zip(columns, delta.old)),
        delta.commit_version, delta.commit_time, given.attempt, (key, new, old), given, finish, reject,
    )  # fmt: skip


def table_of(messages: Sequence[Message]) -> pa.Table:
    """The messages as DEQUEUE gives them: key, new and old as JSON objects."""
    rows = [(m.id, m.query, m.marker, *m.json, m.commit_version, m.commit_time, m.attempt) for m in messages]
    columns = zip(*rows) if rows else [()] * len(_COLUMNS)
    arrays = [pa.array(values, kind) for values, kind in zip(columns, _COLUMNS.values())]
    return pa.table(arrays, names=list(_COLUMNS))
