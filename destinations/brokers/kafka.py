"""Topics of Kafka: an idempotent producer, which waits for all replicas."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar
from urllib.parse import parse_qsl, urlsplit

from cq_engine.core.errors import DestinationError
from cq_engine.destinations.brokers.broker import BrokerSink, broker_options, named
from cq_engine.destinations.brokers.messages import Message, runs
from cq_engine.destinations.sink import sink_kind
from cq_engine.destinations.urls import account_of, check_url

__all__ = ["KIND", "KafkaSink"]

_silent = logging.getLogger(f"{__name__}.library")
_silent.addHandler(logging.NullHandler())
_silent.propagate = False  # what matters is an error of the delivery


class KafkaSink(BrokerSink):
    """Produces to `topic`. The URL has the brokers, the account, and further settings of librdkafka as parameters."""

    package: ClassVar[str] = "confluent_kafka"
    extra: ClassVar[str] = "kafka"
    OPTIONS: ClassVar = broker_options("kafka", topic=named("topic", "orders"))

    partition: ClassVar[int] = -1
    """-1: that of the key."""
    _producer: Any = None

    def connect(self) -> None:
        kafka = self.library()
        parts = urlsplit(self.url)
        user, password = account_of(self.url)
        milliseconds = max(1, round(self.timeout * 1000))
        settings: dict[str, Any] = {
            "socket.timeout.ms": max(10, milliseconds),
            "request.timeout.ms": milliseconds,
            **({"sasl.username": user, "sasl.password": password} if user else {}),
            **dict(parse_qsl(parts.query)),
            "bootstrap.servers": parts.netloc.rpartition("@")[2],
            "acks": "all",
            "enable.idempotence": True,
            "message.timeout.ms": milliseconds,
            "partitioner": "murmur2_random",  # a key has the partition that Java's clients give it
            "error_cb": self._said,
        }
        self._refused: Any = None
        self._errors = kafka.KafkaError
        self._producer = kafka.Producer(settings, logger=_silent)

    def _said(self, error: Any) -> None:
        if error.code() in (self._errors._AUTHENTICATION, self._errors._SSL):  # noqa: SLF001 - public names
            self._refused = error

    def verify(self) -> None:
        topic, kafka = self.options["topic"], self.library()
        try:
            known = self._producer.list_topics(timeout=self.timeout).topics
        except kafka.KafkaException as error:
            self._producer.poll(0)
            raise kafka.KafkaException(self._refused or error.args[0]) from None
        if topic not in known:
            raise DestinationError(f"{self.shown}: there is no topic {topic}", hint="make it first")

    def send(self, made: Sequence[Message]) -> None:
        for piece in runs(made):
            self._produce(piece)

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
        if producer is not None:
            producer.purge()
            producer.flush(0)

    def is_away(self, error: Exception) -> bool:
        kafka = self.library()
        if not isinstance(error, kafka.KafkaException):
            return False
        of = kafka.KafkaError
        away = (of._TRANSPORT, of._ALL_BROKERS_DOWN, of._TIMED_OUT, of._MSG_TIMED_OUT, of._RESOLVE)  # noqa: SLF001
        return error.args[0].code() in away


KIND = replace(sink_kind("KAFKA", KafkaSink), check=check_url)
