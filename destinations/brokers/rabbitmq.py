"""Exchanges of RabbitMQ: messages are persistent, have to be routed, and are confirmed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar

from cq_engine.core.errors import DestinationError
from cq_engine.destinations.brokers.broker import BrokerSink, broker_options, named
from cq_engine.destinations.brokers.messages import Message, runs
from cq_engine.destinations.sink import sink_kind
from cq_engine.destinations.urls import check_url

__all__ = ["KIND", "RabbitSink"]

_REFUSED = (403, 530)
"""Codes of AMQP for who is not let in, and for what is not allowed."""


class RabbitSink(BrokerSink):
    """Publishes to `exchange` with `routing_key`, by default the name of the query; one that no queue takes is a failure."""

    package: ClassVar[str] = "pika"
    extra: ClassVar[str] = "rabbitmq"
    OPTIONS: ClassVar = broker_options(
        "amqp", "amqps",
        exchange=named("exchange", "shop"),
        routing_key=named("routing_key", "orders", ""),
    )  # fmt: skip

    _connection: Any = None
    _channel: Any = None
    _failure: Exception | None = None

    def connect(self) -> None:
        pika = self.library()
        parameters = pika.URLParameters(self.url)
        parameters.connection_attempts = 1
        parameters.socket_timeout = parameters.stack_timeout = self.timeout
        parameters.blocked_connection_timeout = self.timeout
        self._failure, self._sent, self._open = None, 0, set[int]()
        self._connection = pika.SelectConnection(
            parameters,
            lambda _: self._stop(),
            lambda _, error: self._fail(error),
            lambda _, error: self._fail(error),
        )
        self._wait("no connection")
        self._channel = self._connection.channel(on_open_callback=lambda _: self._stop())
        self._channel.add_on_close_callback(lambda _, error: self._fail(error))
        self._channel.add_on_return_callback(self._returned)
        self._wait("no channel")
        self._channel.confirm_delivery(self._confirmed, callback=lambda _: self._stop())
        self._wait("no confirmations")

    def verify(self) -> None:
        exchange = self.options["exchange"]
        try:
            self._channel.exchange_declare(exchange, passive=True, callback=lambda _: self._stop())
            self._wait("no answer")
        except self.library("pika.exceptions").ChannelClosedByBroker as error:
            said = f"{self.shown}: {error.reply_text}"
            raise DestinationError(said, hint=f"declare the exchange {exchange} first") from None

    def send(self, made: Sequence[Message]) -> None:
        for piece in runs(made):
            self._publish(piece)

    def _publish(self, made: Sequence[Message]) -> None:
        pika = self.library()
        for each in made:
            properties = pika.BasicProperties(
                content_type=each.content_type,
                delivery_mode=2,
                message_id=each.id,
                headers=dict(each.headers),
            )
            routing_key = self.options["routing_key"] or each.headers["cq_query"]
            self._channel.basic_publish(
                self.options["exchange"], routing_key, each.body, properties, mandatory=True
            )
            self._sent += 1
            self._open.add(self._sent)
        self._wait("not everything was confirmed")

    def _confirmed(self, frame: Any) -> None:
        tag = frame.method.delivery_tag
        if frame.method.multiple:
            self._open = {each for each in self._open if each > tag}
        else:
            self._open.discard(tag)
        if frame.method.NAME == "Basic.Nack" and self._failure is None:
            self._failure = DestinationError(f"{self.shown}: the broker could not take a message")
        if not self._open:
            self._stop()

    def _returned(self, _: Any, method: Any, __: Any, ___: Any) -> None:
        self._failure = DestinationError(
            f"{self.shown}: exchange {method.exchange} has no queue for routing key {method.routing_key}",
            hint="bind a queue to it",
        )

    # ------------------------------------------------------------ the client's loop

    def _wait(self, late: str) -> None:
        """Serves the connection until `_stop`. Raises what has failed meanwhile."""
        loop = self._connection.ioloop
        timer = loop.call_later(
            self.timeout, lambda: self._fail(TimeoutError(f"{late} within {self.timeout:g} s"))
        )
        loop.start()
        loop.remove_timeout(timer)
        if self._failure is not None:
            raise self._failure

    def _stop(self) -> None:
        self._connection.ioloop.stop()

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error
        self._stop()

    def disconnect(self) -> None:
        connection, self._failure = self._connection, None
        if connection is None:
            return
        try:
            if connection.is_open:
                connection.close()
                with suppress(Exception):
                    self._wait("not closed")
        finally:
            self._connection = None
            connection.ioloop.close()

    def is_away(self, error: Exception) -> bool:
        errors = self.library("pika.exceptions")
        refused = (
            errors.AuthenticationError,
            errors.ProbableAuthenticationError,
            errors.ProbableAccessDeniedError,
        )
        if isinstance(error, refused) or getattr(error, "reply_code", None) in _REFUSED:
            return False
        return isinstance(error, OSError | errors.AMQPConnectionError)


KIND = replace(sink_kind("RABBITMQ", RabbitSink), check=check_url)
