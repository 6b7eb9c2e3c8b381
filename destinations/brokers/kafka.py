"""Topics of Kafka: an idempotent producer, which waits for all replicas, and with `transactional` one transaction per batch.

A transaction has the mark, too: which delta of which commit is its last one, as an offset of a consumer group that is called
like the transactional id. It is read after `init_transactions`, when what was open before is committed or aborted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar
from urllib.parse import parse_qsl, urlsplit

from cq_engine.core.errors import DestinationError
from cq_engine.destinations.brokers.broker import BrokerSink, broker_options, named
from cq_engine.destinations.brokers.messages import Message, runs
from cq_engine.destinations.options import one_of
from cq_engine.destinations.sink import sink_kind
from cq_engine.destinations.urls import account_of, check_url

__all__ = ["KIND", "KafkaSink", "TransactionMark", "cluster_settings", "silent"]

silent = logging.getLogger(f"{__name__}.library")
silent.addHandler(logging.NullHandler())
silent.propagate = False  # what matters is an error of the delivery


_SLACK = 10_000
"""Milliseconds that a transaction may take beyond the messages' own time."""


@dataclass(frozen=True)
class TransactionMark:
    """The last delta of a transaction. The time tells its commit from one of a warehouse that was restored."""

    version: int
    sequence: int
    time: str

    @classmethod
    def of(cls, message: Message) -> TransactionMark:
        *_, version, sequence = message.id.split("/")
        return cls(int(version), int(sequence), message.headers["cq_commit_time_ms"])

    @classmethod
    def read(cls, version: int, text: str) -> TransactionMark:
        sequence, time = text.split()
        return cls(version, int(sequence), time)

    @property
    def text(self) -> str:
        return f"{self.sequence} {self.time}"

    def has(self, message: Message) -> bool:
        """Whether the message was in the transaction, or in an earlier one of the same commit."""
        other = TransactionMark.of(message)
        return (other.version, other.time) == (self.version, self.time) and other.sequence <= self.sequence


def cluster_settings(url: str, milliseconds: int) -> dict[str, Any]:
    """What librdkafka is told of a cluster: its brokers, the account, and the settings that are the URL's parameters."""
    parts = urlsplit(url)
    user, password = account_of(url)
    return {
        "socket.timeout.ms": max(10, milliseconds),
        **({"sasl.username": user, "sasl.password": password} if user else {}),
        **dict(parse_qsl(parts.query)),
        "bootstrap.servers": parts.netloc.rpartition("@")[2],
    }


class KafkaSink(BrokerSink):
    """Produces to `topic`. The URL has the brokers, the account, and further settings of librdkafka as parameters."""

    package: ClassVar[str] = "confluent_kafka"
    extra: ClassVar[str] = "kafka"
    OPTIONS: ClassVar = broker_options(
        "kafka", topic=named("topic", "orders"), transactional=one_of("false", "true")
    )

    partition: ClassVar[int] = -1
    """-1: that of the key."""
    _producer: Any = None
    _marks: Any = None
    """The consumer that stands for the group whose offset is the mark; None before the first transaction."""
    _mark: TransactionMark | None = None

    def connect(self) -> None:
        kafka = self.library()
        milliseconds = max(1, round(self.timeout * 1000))
        self._cluster: dict[str, Any] = {**cluster_settings(self.url, milliseconds), "error_cb": self._said}
        self._settings: dict[str, Any] = {
            "request.timeout.ms": milliseconds,
            **self._cluster,
            "acks": "all",
            "enable.idempotence": True,
            "delivery.report.only.error": True,
            "message.timeout.ms": milliseconds,
            "partitioner": "murmur2_random",  # a key has the partition that Java's clients give it
        }
        self._refused: Any = None
        self._errors = kafka.KafkaError
        if not self._is_transactional:
            self._producer = self._new_producer()

    def _new_producer(self, **more: Any) -> Any:
        return self.library().Producer({**self._settings, **more}, logger=silent)

    @property
    def _is_transactional(self) -> bool:
        return bool(self.options["transactional"].lower() == "true")

    def _said(self, error: Any) -> None:
        if error.code() in (self._errors._AUTHENTICATION, self._errors._SSL):  # noqa: SLF001 - public names
            self._refused = error

    def verify(self) -> None:
        topic, kafka = self.options["topic"], self.library()
        if self._producer is None:
            self._producer = self._new_producer()
        try:
            known = self._producer.list_topics(timeout=self.timeout).topics
        except kafka.KafkaException as error:
            self._producer.poll(0)
            raise kafka.KafkaException(self._refused or error.args[0]) from None
        if topic not in known:
            raise DestinationError(f"{self.shown}: there is no topic {topic}", hint="make it first")

    def send(self, made: Sequence[Message]) -> None:
        if self._is_transactional:
            self._transact(made)
            return
        for piece in runs(made):
            self._produce(piece)

    def _transact(self, made: Sequence[Message]) -> None:
        """Sends what the mark has not, and the mark, or nothing."""
        if self._marks is None:
            self._begin(made[0].id.rpartition("/")[0].rpartition("/")[0])
            self.check_turn()  # else this one would have ended its successor, and would send what that has sent
        left = [each for each in made if self._mark is None or not self._mark.has(each)]
        if not left:
            return
        kafka, mark = self.library(), TransactionMark.of(left[-1])
        self._producer.begin_transaction()
        self._produce(left)
        place = kafka.TopicPartition(self.options["topic"], 0, mark.version, metadata=mark.text)
        group = self._marks.consumer_group_metadata()
        self._producer.send_offsets_to_transaction([place], group, self.timeout)
        self._producer.commit_transaction(self.timeout)
        self._mark = mark

    def _begin(self, of: str) -> None:
        """Ends what another producer of this query and destination has open, whom nothing is taken from any more."""
        kafka, name = self.library(), f"cq/{of}"
        more = {"transactional.id": name, "transaction.timeout.ms": round(self.timeout * 1000) + _SLACK}
        self._producer = self._new_producer(**more)
        self._producer.init_transactions(self.timeout)
        reader = {"group.id": name, "enable.auto.commit": False, "isolation.level": "read_committed"}
        self._marks = kafka.Consumer({**self._cluster, **reader}, logger=silent)
        self._mark = self.read_mark()

    def read_mark(self) -> TransactionMark | None:
        """The one of the last transaction that was committed."""
        place = self.library().TopicPartition(self.options["topic"], 0)
        (found,) = self._marks.committed([place], timeout=self.timeout)
        if found.error is not None:
            raise self.library().KafkaException(found.error)
        return (
            None
            if found.offset < 0 or not found.metadata
            else TransactionMark.read(found.offset, found.metadata)
        )

    def _produce(self, made: Sequence[Message]) -> None:
        kafka, failed = self.library(), []
        end = time.monotonic() + self.timeout + 1

        def report(error: Any, _: Any) -> None:
            if error is not None:
                failed.append(error)

        for each in made:
            headers = [("content-type", each.content_type), *each.headers.items()]
            while not failed:
                try:
                    self._producer.produce(
                        self.options["topic"], each.body, each.key, self.partition, report, headers=headers
                    )
                    break
                except BufferError:  # what the library may hold is full
                    if time.monotonic() > end:
                        raise
                    self._producer.poll(0.1)
        left = self._producer.flush(max(0.1, end - time.monotonic()))
        if failed or left:
            late = kafka.KafkaError(self._errors._TIMED_OUT)  # noqa: SLF001
            raise kafka.KafkaException(self._refused or next(iter(failed), late))

    def disconnect(self) -> None:
        producer, self._producer = self._producer, None
        marks, self._marks, self._mark = self._marks, None, None
        if producer is not None:
            producer.purge()
            producer.flush(0)
        if marks is not None:
            with suppress(Exception):  # none is open, or the next producer ends it
                producer.abort_transaction(min(5.0, self.timeout))
            marks.close()

    def is_away(self, error: Exception) -> bool:
        kafka = self.library()
        if not isinstance(error, kafka.KafkaException):
            return False
        of = kafka.KafkaError
        away = (of._TRANSPORT, of._ALL_BROKERS_DOWN, of._TIMED_OUT, of._MSG_TIMED_OUT, of._RESOLVE)  # noqa: SLF001
        return error.args[0].code() in away


KIND = replace(sink_kind("KAFKA", KafkaSink), check=check_url)
