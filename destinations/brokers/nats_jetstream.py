"""Subjects of NATS that a stream of JetStream keeps: messages are confirmed when the stream has them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, TypeVar
from urllib.parse import urlsplit

from cq_engine.core.errors import DestinationError
from cq_engine.destinations.brokers.broker import BrokerSink, broker_options, named
from cq_engine.destinations.brokers.messages import Message, runs
from cq_engine.destinations.sink import sink_kind
from cq_engine.destinations.urls import account_of, check_url

__all__ = ["KIND", "NatsSink"]

_FLIGHT = 512
"""So many messages are on their way at a time."""
_T = TypeVar("_T")


class NatsSink(BrokerSink):
    """Publishes to `subject`, with the message's id as `Nats-Msg-Id`, by which the stream drops what comes twice."""

    package: ClassVar[str] = "nats"
    extra: ClassVar[str] = "nats"
    OPTIONS: ClassVar = broker_options("nats", "tls", subject=named("subject", "shop.orders"))

    _loop: Any = None
    _client: Any = None
    _stream: Any = None
    _last: Exception | None = None
    """What the client said last of the connection."""

    def connect(self) -> None:
        nats = self.library()
        user, password = account_of(self.url)
        account = {"user": user, "password": password} if password else {"token": user} if user else {}
        secure = {"tls": ssl.create_default_context()} if urlsplit(self.url).scheme == "tls" else {}

        async def said(error: Exception) -> None:
            self._last = error

        self._loop, self._last = asyncio.new_event_loop(), None
        self._client = nats.NATS()
        self._run(
            self._client.connect(
                [self.shown], error_cb=said, allow_reconnect=False, max_reconnect_attempts=1,
                reconnect_time_wait=0, connect_timeout=self.timeout, **account, **secure,
            )
        )  # fmt: skip
        self._stream = self._client.jetstream(timeout=self.timeout)

    def verify(self) -> None:
        subject = self.options["subject"]
        try:
            self._run(self._stream.find_stream_name_by_subject(subject))
        except self.library("nats.js.errors").NotFoundError:
            raise DestinationError(
                f"{self.shown}: no stream of JetStream keeps subject {subject}",
                hint=f"make one first: nats stream add --subjects {subject}",
            ) from None

    def send(self, made: Sequence[Message]) -> None:
        for piece in runs(made):
            for start in range(0, len(piece), _FLIGHT):
                self._run(self._publish(piece[start : start + _FLIGHT]))

    async def _publish(self, made: Sequence[Message]) -> None:
        """Returns when all are confirmed; raises the first error when nothing is on its way any more."""
        answers = await asyncio.gather(
            *(
                self._stream.publish(
                    self.options["subject"],
                    each.body,
                    timeout=self.timeout,
                    headers={"Nats-Msg-Id": each.id, "Content-Type": each.content_type, **each.headers},
                )
                for each in made
            ),
            return_exceptions=True,
        )
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer

    def disconnect(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            try:
                loop.run_until_complete(self._end())
            finally:
                loop.close()

    async def _end(self) -> None:
        with suppress(Exception):
            await asyncio.wait_for(self._client.close(), self.timeout)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def is_away(self, error: Exception) -> bool:
        errors = self.library("nats.errors")
        if isinstance(error, errors.AuthorizationError) or "authorization" in str(error).lower():
            return False
        away = (errors.NoServersError, errors.ConnectionClosedError, errors.StaleConnectionError)
        return isinstance(error, (OSError, asyncio.TimeoutError, errors.TimeoutError, *away))

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        try:
            done: _T = self._loop.run_until_complete(asyncio.wait_for(work, self.timeout + 1))
            return done
        except Exception as error:
            if self._last is not None and self.is_away(error):
                raise self._last from error
            raise


KIND = replace(sink_kind("NATS", NatsSink), check=partial(check_url, user=True))
