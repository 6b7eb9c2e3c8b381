"""Streams of Redis and Valkey: the messages of a batch are appended in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from cq_engine.core.errors import DestinationError
from cq_engine.destinations.brokers.broker import BrokerSink, broker_options, named
from cq_engine.destinations.brokers.messages import Message
from cq_engine.destinations.options import Option, count
from cq_engine.destinations.sink import sink_kind
from cq_engine.destinations.urls import check_url

__all__ = ["KIND", "RedisSink"]


def _length(value: str) -> None:
    if value:
        count(value)


class RedisSink(BrokerSink):
    """Appends entries with the fields `key`, `body`, `content_type` and the headers to `stream`."""

    package: ClassVar[str] = "redis"
    extra: ClassVar[str] = "redis"
    OPTIONS: ClassVar = broker_options(
        "redis",
        "rediss",
        stream=named("stream", "orders"),
        maxlen=Option("", _length, "write about how many entries are kept, as in maxlen = 1000000"),
    )

    _client: Any = None

    def connect(self) -> None:
        redis = self.library()
        self._client = redis.Redis.from_url(
            self.url,
            socket_timeout=self.timeout,
            socket_connect_timeout=self.timeout,
            retry=None,  # the same batch again is for us to send
            single_connection_client=False,
        )
        self._client.ping()

    def verify(self) -> None:
        stream = self.options["stream"]
        found = self._client.type(stream).decode()
        if found not in ("none", "stream"):
            raise DestinationError(f"{self.shown}: {stream} is a {found}, and no stream")

    def send(self, made: Sequence[Message]) -> None:
        limit = self.options["maxlen"]
        bounds = {"maxlen": int(limit), "approximate": True} if limit else {}
        with self._client.pipeline(transaction=True) as pipeline:
            for each in made:
                entry = {"body": each.body, "content_type": each.content_type, **each.headers}
                pipeline.xadd(
                    self.options["stream"],
                    entry if each.key is None else {"key": each.key, **entry},
                    **bounds,
                )
            pipeline.execute()

    def disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def is_away(self, error: Exception) -> bool:
        errors = self.library().exceptions
        refused = (errors.AuthenticationError, errors.AuthorizationError)
        return isinstance(error, errors.ConnectionError | errors.TimeoutError) and not isinstance(
            error, refused
        )


KIND = replace(sink_kind("REDIS", RedisSink), check=check_url)
