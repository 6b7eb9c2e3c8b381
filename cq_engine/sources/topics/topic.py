"""A topic as a log: every partition from its offset on, up to its end when the reading began.

Offsets are kept in the catalog with what they have changed, and never at the brokers. Partitions are read side by side,
their messages in the order of their times.
"""

from __future__ import annotations

import heapq
import importlib
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from cq_engine.catalog.model import Capture, DeclaredSource
from cq_engine.core.errors import SourceError, SourceUnavailableError
from cq_engine.destinations.brokers.kafka import silent
from cq_engine.sources.records.record import Record, Records
from cq_engine.sources.topics.address import Address

__all__ = ["Topic"]

_AT_A_TIME = 500
_PAUSED, _RESUMED = 5_000, 1_000
"""Messages that wait for those of other partitions: with so many a partition pauses, with so few it goes on."""


class Topic(Records):
    """The topic of a source."""

    def __init__(self, declared: DeclaredSource) -> None:
        self.address = Address.of(declared)
        try:
            self._kafka = importlib.import_module("confluent_kafka")
        except ModuleNotFoundError as error:
            raise SourceError(
                "confluent_kafka, the client library for kafka, is not installed",
                hint="pip install 'cq-engine[kafka]'",
            ) from error
        self._refused: Any = None

    def check(self) -> None:
        with self._consumer() as consumer:
            self._partitions(consumer)

    def reached(self, position: Mapping[str, Any]) -> dict[str, int]:
        if position.get("topic") != self.address.topic:
            raise SourceError(
                f"source {self.address.name} was {position.get('topic', 'files')} when it was read before",
                detail=f"it is {self.address.shown} now, to which these offsets do not belong",
                hint="create the capture anew",
            )
        return dict(position["offsets"])

    def position(self, reached: Mapping[str, int]) -> dict[str, Any]:
        return {"topic": self.address.topic, "offsets": dict(reached)}

    def ends(self) -> dict[str, int]:
        with self._consumer() as consumer:
            return {str(n): self._watermarks(consumer, n)[1] for n in self._partitions(consumer)}

    def shown(self, record: Record) -> str:
        return f"{self.address.topic}/{record.place}"

    def refused(self, capture: Capture, record: Record, reason: str) -> SourceError:
        return SourceError(
            f"a message of topic {self.address.topic} cannot be read by capture {capture.name}",
            detail=f"partition {record.place}, offset {record.start}: {reason}",
            hint="with ALTER CAPTURE ... SET WITH (on_poison = 'dead_letter') and RESUME such messages are put aside",
        )

    def read(self, reached: Mapping[str, int]) -> Iterator[Record]:
        with self._consumer() as consumer:
            there = self._partitions(consumer)
            gone = sorted(set(map(int, reached)) - set(there))
            if gone:
                raise self._other(f"it has no partition {gone[0]} any more")
            begin, end = {}, {}
            for n in there:
                low, end[n] = self._watermarks(consumer, n)
                begin[n] = reached.get(str(n), 0 if reached else low)
                if begin[n] < low:
                    raise self._truncated(n, begin[n], low)
                if begin[n] > end[n]:
                    raise self._other(f"partition {n} was read up to offset {begin[n]} and ends at {end[n]}")
            yield from _Merged(self, consumer, begin, end).records()

    # ------------------------------------------------------------ errors

    def _truncated(self, partition: int, begin: int, low: int | None = None) -> SourceError:
        began = "" if low is None else f", and begins at {low}"
        return SourceError(
            f"{self.address.shown} does not have messages any more that were not read",
            detail=f"partition {partition} was read up to offset {begin}{began}",
            hint="its retention is shorter than the capture was away: create the table and its capture anew from a whole log",
        )

    def _other(self, why: str) -> SourceError:
        return SourceError(
            f"{self.address.shown} is not the one that was read before",
            detail=why,
            hint="a topic that was made again is read from its beginning by a capture that is created anew",
        )

    def failure(self, error: Any, partition: int = -1, offset: int = -1) -> SourceError:
        """What a client's error means."""
        of = self._kafka.KafkaError
        if error.code() in (of._AUTO_OFFSET_RESET, of.OFFSET_OUT_OF_RANGE):  # noqa: SLF001 - public names
            return self._truncated(partition, offset)
        if self._refused is not None:
            error = self._refused
        refused = (
            of._AUTHENTICATION, of._SSL, of.TOPIC_AUTHORIZATION_FAILED, of.GROUP_AUTHORIZATION_FAILED,  # noqa: SLF001
            of._INVALID_ARG,  # noqa: SLF001
        )  # fmt: skip
        kind = SourceError if error.code() in refused else SourceUnavailableError
        return kind(
            f"{self.address.shown} cannot be read",
            detail=self.address.without_secrets(" ".join(str(error).split())),
        )

    def _said(self, error: Any) -> None:
        of = self._kafka.KafkaError
        if error.code() in (of._AUTHENTICATION, of._SSL):  # noqa: SLF001
            self._refused = error

    # ------------------------------------------------------------ the client

    @contextmanager
    def _consumer(self) -> Iterator[Any]:
        try:
            consumer = self._kafka.Consumer(
                {**self.address.settings(), "error_cb": self._said}, logger=silent
            )
        except self._kafka.KafkaException as error:
            raise self.failure(error.args[0]) from None
        try:
            yield consumer
        except self._kafka.KafkaException as error:
            raise self.failure(error.args[0]) from None
        finally:
            consumer.close()

    def _partitions(self, consumer: Any) -> list[int]:
        topic = self.address.topic
        found = consumer.list_topics(topic, timeout=self.address.timeout).topics[topic]
        if found.error is not None and found.error.code() != self._kafka.KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise self.failure(found.error)
        if found.error is not None or not found.partitions:
            raise SourceError(f"there is no {self.address.shown}", hint="make it first")
        return sorted(found.partitions)

    def _watermarks(self, consumer: Any, partition: int) -> tuple[int, int]:
        """The first offset that is there, and the one after the last."""
        place = self._kafka.TopicPartition(self.address.topic, partition)
        low, high = consumer.get_watermark_offsets(place, timeout=self.address.timeout, cached=False)
        return int(low), int(high)

    def places(self, offsets: Mapping[int, int]) -> list[Any]:
        """Partitions at their offsets, as the client has them."""
        return [self._kafka.TopicPartition(self.address.topic, n, offset) for n, offset in offsets.items()]

    def is_end(self, error: Any) -> bool:
        """Whether an error says that a partition has no more messages now."""
        return bool(error.code() == self._kafka.KafkaError._PARTITION_EOF)  # noqa: SLF001


class _Merged:
    """The messages of partitions, the oldest first of those that come next. Of each partition a mark is last, which says
    how far it was read: the end of a partition need not be a message."""

    def __init__(self, topic: Topic, consumer: Any, begin: Mapping[int, int], end: Mapping[int, int]) -> None:
        self._topic = topic
        self._consumer = consumer
        self._begin = begin
        self._end = end
        self._waiting: dict[int, deque[Record]] = {n: deque() for n in begin}
        self._open = {n for n in begin if begin[n] < end[n]}
        self._paused: set[int] = set()

    def records(self) -> Iterator[Record]:
        for n in set(self._begin) - self._open:
            yield Record(str(n), self._begin[n], self._begin[n], b"")
        if self._open:
            self._consumer.assign(self._topic.places({n: self._begin[n] for n in self._open}))
        heads: list[tuple[int, int]] = []
        missing = set(self._open)
        while missing or heads:
            while any(not self._waiting[n] for n in missing):
                self._poll()
            for n in missing:
                heapq.heappush(heads, (self._waiting[n][0].milliseconds or 0, n))
            _, n = heapq.heappop(heads)
            record = self._waiting[n].popleft()
            missing = set() if record.is_mark else {n}
            yield record

    def _poll(self) -> None:
        """Waits until something has come. Raises SourceError."""
        self._balance()
        until = time.monotonic() + self._topic.address.timeout
        while True:
            came = self._consumer.consume(_AT_A_TIME, 0.2)
            for message in came:
                self._put(message)
            if came:
                return
            if time.monotonic() > until:
                raise SourceUnavailableError(
                    f"{self._topic.address.shown} does not answer",
                    detail=f"nothing came for {self._topic.address.timeout:g} seconds",
                )

    def _put(self, message: Any) -> None:
        n, offset, error = message.partition(), message.offset(), message.error()
        if n not in self._open:
            return
        if error is not None and not self._topic.is_end(error):
            raise self._topic.failure(error, n, offset)
        waiting = self._waiting[n]
        if error is None and offset < self._end[n]:
            known, moment = message.timestamp()
            waiting.append(
                Record(str(n), offset, offset + 1, message.value(), message.key(), moment if known else None)
            )
            if offset + 1 < self._end[n]:
                return
        self._open.discard(n)
        self._consumer.incremental_unassign(self._topic.places({n: 0}))
        reached = max(offset, self._begin[n]) if error is not None else self._end[n]
        waiting.append(
            Record(str(n), reached, reached, b"", None, waiting[-1].milliseconds if waiting else 0)
        )

    def _balance(self) -> None:
        """So that no partition fills the memory while another one is waited for."""
        full = {n for n in self._open - self._paused if len(self._waiting[n]) > _PAUSED}
        free = {n for n in self._open & self._paused if len(self._waiting[n]) < _RESUMED}
        if full:
            self._consumer.pause(self._topic.places(dict.fromkeys(full, 0)))
        if free:
            self._consumer.resume(self._topic.places(dict.fromkeys(free, 0)))
        self._paused = (self._paused | full) - free
