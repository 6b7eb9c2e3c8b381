"""What goes to a broker: one message for each delta, with a key, a body in one of three formats, and headers.

The headers are the attributes of CloudEvents with `ce_` before their names, and those of the engine with `cq_`. A message that
comes again is the same, byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import quote

import pyarrow as pa

from cq_engine.core.errors import DestinationError, did_you_mean
from cq_engine.destinations.brokers.avro import Row, single_object
from cq_engine.destinations.envelope import OPS, Delta, DeltaBatch, json_bytes, shown_values
from cq_engine.destinations.row_text import delta_texts, row_texts, steps

__all__ = ["FORMATS", "Message", "key_names", "messages", "runs"]

FORMATS = ("json", "debezium-json", "avro")
_TYPES = {marker: f"cq.delta.{op}" for marker, op in OPS.items()}


class Message(NamedTuple):
    """`key` is None where the result has none; `id` is the same whenever it comes again."""

    id: str
    key: str | None
    body: bytes
    headers: Mapping[str, str]
    content_type: str


def key_names(option: str, columns: pa.Schema) -> tuple[str, ...]:
    """The columns that the option `key` names. Raises DestinationError for one that the result has not."""
    known = {name.lower(): name for name in reversed(columns.names)}
    wanted = [name.strip() for name in option.split(",") if name.strip()]
    for name in wanted:
        if name.lower() not in known:
            raise DestinationError(
                f"the result has no column {name}, which the option key names",
                hint=did_you_mean(name, columns.names, f"the columns are {', '.join(columns.names)}"),
            )
    return tuple(known[name.lower()] for name in wanted)


def messages(batch: DeltaBatch, destination: str, token: str, form: str, key: str) -> list[Message]:
    """The messages of a batch, in its order.

    Args:
        batch: the deltas.
        destination: its name.
        token: what tells it from others of this name.
        form: one of FORMATS.
        key: the option; empty for the key of the result.
    """
    columns = list(zip(batch.schema.names, batch.schema.types))
    names = key_names(key, batch.schema)
    places = [batch.schema.names.index(name) for name in names]
    keys = [columns[n] for n in places] if names else batch.key_columns
    body, content_type, more = _body(form, batch, destination)
    when, milliseconds = batch.commit_time.isoformat(), int(batch.commit_time.timestamp() * 1000)
    common = {
        "ce_specversion": "1.0", "ce_source": f"/cq/{quote(destination)}/{quote(batch.query, safe='')}",
        "ce_time": when, "cq_query": quote(batch.query), "cq_commit_version": str(batch.commit_version),
        "cq_commit_time_ms": str(milliseconds), **more,
    }  # fmt: skip
    key_texts = row_texts(keys or (), ascii_only=True)
    place, made = f"{token}/{batch.query_id}/{batch.commit_version}", []
    for step in steps(batch):
        values = [_key_values(places, d, batch) if names else d.key for d in step]
        for delta, text, content in zip(step, key_texts(values), body(step)):
            mark = f"{place}/{delta.sequence}"
            headers = {"ce_id": mark, "ce_type": _TYPES[delta.marker], **common}
            if keys is not None:
                headers["ce_partitionkey"] = text
            made.append(Message(mark, None if keys is None else text, content, headers, content_type))
    return made


def _key_values(places: Sequence[int], delta: Delta, batch: DeltaBatch) -> tuple[object, ...]:
    """The values of a message's key; of a K those that are not of the result's key are not known."""
    if delta.marker != "K":
        return shown_values(places, delta.marker, delta.new, delta.old)
    known = dict(zip((name for name, _ in batch.key_columns or ()), delta.key or ()))
    return tuple(known.get(batch.schema.names[n]) for n in places)


def runs(made: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """Messages in pieces that have no key twice: those of one piece may be on their way together.

    Where one is refused and a later one of its piece is not, the order of no key is broken.
    """
    start, seen = 0, set[str]()
    for n, each in enumerate(made):
        if each.key is not None and each.key in seen:
            yield made[start:n]
            start, seen = n, set[str]()
        seen.add(each.key or "")
    if start < len(made):
        yield made[start:]


def _body(
    form: str, batch: DeltaBatch, destination: str
) -> tuple[Callable[[Sequence[Delta]], list[bytes]], str, dict[str, str]]:
    """What makes the bodies, the content type, and headers of the format."""
    commit = {"query": batch.query, "commit_version": batch.commit_version}
    when = {"commit_time": batch.commit_time.isoformat()}
    milliseconds = int(batch.commit_time.timestamp() * 1000)
    image = row_texts(list(zip(batch.schema.names, batch.schema.types)))
    whole = delta_texts(batch.schema, batch.key_columns)
    head = json_bytes({**commit, **when}).decode().removesuffix("}")
    source = {"connector": "cq", "name": destination, "ts_ms": milliseconds, **commit, **when}
    middle = json_bytes(source).decode().removesuffix("}")

    def as_json(deltas: Sequence[Delta]) -> list[bytes]:
        return [f"{head},{text}}}".encode() for text in whole(deltas)]

    def as_debezium(deltas: Sequence[Delta]) -> list[bytes]:
        before, after = image([delta.old for delta in deltas]), image([delta.new for delta in deltas])
        return [
            f'{{"op":"{OPS[delta.marker]}","before":{old},"after":{new},"source":{middle},'
            f'"sequence":{delta.sequence}}},"ts_ms":{milliseconds}}}'.encode()
            for delta, old, new in zip(deltas, before, after)
        ]

    if form != "avro":
        return as_debezium if form == "debezium-json" else as_json, "application/json", {}
    kept = Row(batch.schema)
    encode, schema = single_object(kept.record)

    def as_avro(deltas: Sequence[Delta]) -> list[bytes]:
        records = (
            {
                **commit, "op": OPS[delta.marker], "commit_time": batch.commit_time, "sequence": delta.sequence,
                "before": kept.value(delta.old), "after": kept.value(delta.new),
            }
            for delta in deltas
        )  # fmt: skip
        return [encode(record) for record in records]

    return as_avro, "application/vnd.apache.avro+binary", {"avro_schema": schema}
