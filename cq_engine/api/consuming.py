"""The façade's part about queues: messages taken, acknowledged and rejected."""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING
from weakref import WeakSet

import pyarrow as pa

from cq_engine.api.entry import entry
from cq_engine.api.following import PATIENCE
from cq_engine.catalog.queues import DEFAULT_GROUP
from cq_engine.context.services import Services
from cq_engine.core.errors import AnalysisError, CQError, location_at
from cq_engine.grammar import Ack, Dequeue, Reject
from cq_engine.query.result import Result
from cq_engine.spark.failures import plain_errors

if TYPE_CHECKING:  # commits do without
    from cq_engine.destinations.queues.consumer import Consumer
    from cq_engine.destinations.queues.logs import Logs
    from cq_engine.destinations.queues.message import Message
    from cq_engine.query.stream import StreamingResult

__all__ = ["Consuming", "Messages"]

_SECONDS = {"SECOND": 1, "MINUTE": 60, "HOUR": 3600, "DAY": 86_400, "WEEK": 604_800, "MONTH": 2_592_000}


class Messages(Iterator["Message"]):
    """The messages of a queue as they come, for one consumer; it ends when it is closed, or when none comes in time.

    Each message is to be acknowledged or rejected; one that is neither comes again. Not for several threads at once, but for
    `close`; the messages themselves may go to any thread.
    """

    def __init__(
        self, consumer: Consumer, step: Callable[[float | None], list[Message]], timeout: float | None
    ) -> None:
        self._consumer = consumer
        self._step = step
        self._timeout = timeout
        self._held: deque[Message] = deque()
        self._until = 0.0

    def __iter__(self) -> Messages:
        return self

    def __next__(self) -> Message:
        while True:
            if time.monotonic() > self._until:  # others may have them
                self._held.clear()
            while self._held:
                message = self._held.popleft()
                if (message.given.query, message.given.key) not in self._consumer.requeued:
                    return message
            self._consumer.requeued.clear()
            self._held.extend(self._step(self._timeout))
            self._until = time.monotonic() + self._consumer.visibility
            if not self._held:
                raise StopIteration

    def close(self) -> None:
        """Ends it; may be called in any thread. What it holds and has not given comes again at once."""
        self._consumer.close()
        held, self._held = list(self._held), deque()
        with suppress(CQError):  # it comes again when its time has passed
            self._consumer.give_back([each.given for each in held])

    def __enter__(self) -> Messages:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextmanager
def _placed(sql: str, *words: str) -> Iterator[None]:
    """Errors without a place get that of the last of these words that they speak of, else of the first."""
    try:
        yield
    except CQError as error:
        named = next((word for word in reversed(words) if word in error.message), words[0])
        found = re.search(rf"(?<!\w){re.escape(named)}(?!\w)", sql, re.IGNORECASE)
        if error.location is None and found is not None:
            error.location = location_at(sql, found.start())
        raise


class Consuming:
    """What an engine does for consumers of queues; a base of `Engine`, which has the parts."""

    services: Services
    _consumers: WeakSet[Consumer]
    _label: str
    check_writable: Callable[[], None]
    note_commit: Callable[[int, Mapping[str, frozenset[str]]], None]
    _catch_up: Callable[[], None]

    def _begin_consuming(self) -> None:
        self._consumers = WeakSet()
        self._reading: Logs | None = None
        self._starting = threading.Lock()
        self._label = secrets.token_hex(8)

    def _end_consuming(self) -> None:
        for consumer in list(self._consumers):
            consumer.close()
        if self._reading is not None:
            self._reading.close()

    @property
    def _logs(self) -> Logs:
        from cq_engine.destinations.queues.logs import Logs

        with self._starting:
            if self._reading is None:
                self._reading = Logs(self.services)
            return self._reading

    def consume(
        self, queue: str, group: str = DEFAULT_GROUP, timeout: float | None = None, *, batch: int = 1
    ) -> Messages:
        """The messages of a queue as they come, for a new consumer: an iterator of `Message`, each to be acknowledged or
        rejected.

        Args:
            queue: the queue. Its queries may be refreshed here or by another process.
            group: the group of consumers that this one belongs to. Every group is given every message, and each message goes
                to one of the group's consumers; a new group begins with what the queue still keeps.
            timeout: the iteration ends where no message comes for so many seconds; by default it waits.
            batch: so many messages at most are taken from the queue at a time. More are faster; `visibility` is for all of them.

        Raises:
            CatalogError: there is no such queue; while iterating, it was dropped.
        """
        self.check_writable()
        self._check_count(batch)
        self.services.catalog.follow(wait=PATIENCE)
        consumer = self._consumer(queue, group)
        return Messages(consumer, partial(self._receive, consumer, batch), timeout)

    def consume_rows(
        self, queue: str, group: str, count: int | None, *, wait: float | None, keep: bool
    ) -> StreamingResult:
        """Messages as rows, `count` at most, until none comes for `wait` seconds (None: for ever). What was written is
        acknowledged when the next ones are asked for, unless it is to be `keep`: then it comes again."""
        from cq_engine.destinations.queues.message import table_of
        from cq_engine.query.stream import StreamingResult

        self.check_writable()
        self.services.catalog.follow(wait=PATIENCE)
        consumer = self._consumer(queue, group)
        given: list[Message] = []
        left = [count]

        def following() -> pa.Table | None:
            if not keep:
                consumer.finish_all([each.given for each in given])
            given.clear()
            step = self.services.limits.queue_written
            most = step if left[0] is None else min(step, left[0])
            given.extend(self._receive(consumer, most, wait) if most else ())
            left[0] = None if left[0] is None else left[0] - len(given)
            return table_of(given) if given else None

        return StreamingResult(table_of([]).schema, following, consumer.close)

    def dequeue(self, statement: Dequeue, sql: str) -> Result:
        """DEQUEUE."""
        from cq_engine.destinations.queues.message import table_of

        with _placed(sql, statement.queue, str(statement.count)):
            self._check_count(statement.count)
            seconds = (
                0.0 if statement.wait is None else float(statement.wait[0] * _SECONDS[statement.wait[1]])
            )
            consumer = self._consumer(statement.queue, statement.group, self._label)
            try:
                return Result(arrow=table_of(consumer.receive(statement.count, seconds)))
            finally:
                consumer.close()

    def settle(self, statement: Ack | Reject, sql: str) -> Result:
        """ACK and REJECT."""
        with _placed(sql, statement.queue, statement.message):
            consumer = self._consumer(statement.queue, statement.group, self._label)
            try:
                if isinstance(statement, Ack):
                    count = consumer.finish_upto(statement.message)
                    said = f"{count} message{'' if count == 1 else 's'} acknowledged"
                    return Result(message=said, rowcount=count)
                consumer.reject_one(statement.message, statement.requeue)
            finally:
                consumer.close()
            said = "comes again" if statement.requeue else "is a dead letter"
            return Result(message=f"message {statement.message} {said}", rowcount=1)

    def _consumer(self, queue: str, group: str | None, label: str = "") -> Consumer:
        """A consumer under a label of its own, or under that of all statements of this engine."""
        from cq_engine.destinations.queues.consumer import Consumer

        consumer = Consumer(
            self.services, self._logs, queue, group or DEFAULT_GROUP, committed=self.note_commit, label=label
        )
        self._consumers.add(consumer)
        return consumer

    @entry
    def _receive(self, consumer: Consumer, count: int, seconds: float | None) -> list[Message]:
        with plain_errors("take messages from a queue", self.services.catalog.warehouse):
            return consumer.receive(count, seconds)

    def _check_count(self, count: int) -> None:
        most = self.services.limits.queue_rows
        if not 1 <= count <= most:
            raise AnalysisError(f"{count} messages cannot be taken at a time", hint=f"write 1 to {most}")
