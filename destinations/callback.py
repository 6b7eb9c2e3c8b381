"""A Python function as a destination: called once per commit, row or refresh, in order, at least once."""

from __future__ import annotations

import inspect
import logging
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from typing import ClassVar

from cq_engine.catalog.model import ContinuousQuery, Cursor
from cq_engine.context.services import Services
from cq_engine.core import faults
from cq_engine.core.errors import CQError, DestinationError, LeaseError, did_you_mean
from cq_engine.core.interrupts import is_interrupt
from cq_engine.core.retry import Retry
from cq_engine.destinations.base import Delivered, Destination
from cq_engine.destinations.callbacks import Callback, Callbacks, OutOfOrder
from cq_engine.destinations.calls import Call, Several, keys_of
from cq_engine.destinations.envelope import DeltaBatch
from cq_engine.destinations.event_loop import Cancelled
from cq_engine.destinations.kind_parts import Kind, Wanted
from cq_engine.destinations.log import commit_times, needed_from
from cq_engine.destinations.options import COMMON, Option, count, one_of

__all__ = ["KIND", "CallbackDestination"]

_log = logging.getLogger(__name__)

_REFRESHES = 100
"""So many of the last refreshes are read first, to see where they ended."""


class CallbackDestination(Destination):
    """Calls `function` with one DeltaBatch per commit version, a very large one in chunks of `Limits.batch_deltas`; with
    `batch` row for each delta, with refresh for all commits of a refresh.

    The cursor is durable after each batch. A function that raises, be it SystemExit, is called again with the same
    batch, after a pause; when `retry` is exhausted the delivery fails, and the next one starts with that batch. Only
    Ctrl-C passes through. The function runs in the thread of the delivery, and no lock of the engine is held meanwhile;
    one that is `async` runs on the event loop of `callbacks`, and the thread waits. Once `stopped` says so, no further batch
    begins, and what is on the event loop is cancelled after `Limits.callback_seconds`.

    With a `concurrency` above 1 so many batches are given away at once, each in a thread: those that have no key in common.
    The cursor stands before the first that is not accepted; what was accepted behind it is not given again by this process.
    """

    kind: ClassVar[str] = "CALLBACK"
    exactly_once: ClassVar[bool] = False
    background: ClassVar[bool] = True
    registered: ClassVar[bool] = True

    def __init__(
        self,
        services: Services,
        query: ContinuousQuery,
        name: str,
        function: Callback,
        *,
        retry: Retry | None = None,
        sleep: Callable[[float], None] = time.sleep,
        stopped: Callable[[], bool] = lambda: False,
        batch: str = "transaction",
        concurrency: int = 1,
        callbacks: Callbacks | None = None,
    ) -> None:
        super().__init__(services, query, name)
        self.function = function
        self.retry = retry or Retry()
        self.batch = batch
        self.concurrency = concurrency
        self.callbacks = callbacks or Callbacks()
        self._sleep = sleep
        self._stopped = stopped
        self._left = False
        """Whether the delivery has ended before its end."""
        self._interrupted = threading.Event()

    @property
    def batch_deltas(self) -> int:
        return 1 if self.batch == "row" else super().batch_deltas

    def _batch_ends(self, cursor: Cursor) -> list[int] | None:
        """Where refreshes have ended, of which what a batch holds does not depend on when it is given."""
        if self.batch != "refresh":
            return None
        after = needed_from(cursor)
        count = _REFRESHES
        while True:
            found = self.services.catalog.refreshes(self.query.name, count)
            if len(found) < count or found[-1].to_version <= after:
                break
            count *= 10
        return sorted({self.query.created_version, *(each.to_version for each in found)})

    def _deliver(self, cursor: Cursor, upto: int) -> Delivered:
        self._left = False
        self._interrupted.clear()
        calls = self._calls(cursor, upto)
        several = self.concurrency > 1
        count = 0
        with closing(self._several(cursor, calls) if several else self._one_by_one(calls)) as steps:
            for accepted in steps:
                deltas = sum(len(call.batch) for call in accepted)
                count += deltas
                cursor = self._store(cursor, self._move(cursor, *accepted[-1].end, deltas))
                faults.point("deliver.after_cursor")
        if not self._left and (cursor.version, cursor.sequence) != (upto, 0):
            cursor = self._store(cursor, self._move(cursor, upto))
        return Delivered(cursor, count)

    def _calls(self, cursor: Cursor, upto: int) -> Iterator[Call[DeltaBatch]]:
        for wide, last in self.batches(cursor, upto):
            low, high = (wide.column("version")[n].as_py() for n in (0, -1))
            times = commit_times(self.services, low, high)
            batch = DeltaBatch.of(self.query, wide, times[high], last, times)
            keys = keys_of(self.query, wide) if self.concurrency > 1 else frozenset()
            yield Call(batch, (high, 0 if last else batch.sequence), keys)

    def _one_by_one(self, calls: Iterator[Call[DeltaBatch]]) -> Generator[list[Call[DeltaBatch]], None, None]:
        for call in calls:
            with suppress(Cancelled):
                if not self._stopped():
                    self._give(call.batch)
                    yield [call]
                    continue
            self._left = True
            return

    def _several(
        self, cursor: Cursor, calls: Iterator[Call[DeltaBatch]]
    ) -> Generator[list[Call[DeltaBatch]], None, None]:
        job = (self.query.id, self.name.lower())
        known = self.callbacks.out_of_order.pop(job, None)
        ends = known.at(cursor, self.batch) if known is not None else frozenset()
        chosen = (replace(call, done=call.end in ends) for call in calls)
        several = Several(self.concurrency, self._give, chosen)
        try:
            yield from several.run(lambda: not self._stopped())
            self._left = self._stopped()
        except BaseException:
            self._interrupted.set()
            raise
        finally:
            several.close()
            if left := several.out_of_order():
                self.callbacks.out_of_order[job] = OutOfOrder(self.cursor, self.batch, left)

    def _give(self, batch: DeltaBatch) -> None:
        self._check_turn()
        faults.point("deliver.begin")
        self._call(batch)

    def _check_turn(self) -> None:
        """Raises LeaseError where a successor may have given the batch, and what follows."""
        if self.registered:
            self.services.catalog.check_callback(self.name)
        else:
            self.services.catalog.check_lease()

    def _call(self, batch: DeltaBatch) -> None:
        for attempt in range(1, self.retry.attempts + 1):
            try:
                result = self.function(batch)
                if inspect.isawaitable(result):
                    self.callbacks.loop.run(result, self._ending())
                return
            except BaseException as error:
                if is_interrupt(error) or isinstance(error, Cancelled):
                    raise
                if isinstance(error, LeaseError) and not self.registered:
                    raise
                failure = self._refusal(batch, error)
                if attempt == self.retry.attempts:
                    raise failure from error
                _log.warning("%s; trying again", failure.message)
                self._count_failure(failure.message)
                self._sleep(self.retry.pause(attempt))

    def _ending(self) -> Callable[[], bool]:
        """Whether a call on the event loop, which begins now, is to be cancelled."""
        since: float | None = None

        def ending() -> bool:
            nonlocal since
            if since is None and self._stopped():
                since = time.monotonic()
            late = since is not None and time.monotonic() - since >= self.services.limits.callback_seconds
            return late or self._interrupted.is_set()

        return ending

    def _refusal(self, batch: DeltaBatch, error: BaseException) -> DestinationError:
        kind = self.kind.lower()
        said = error.message if isinstance(error, CQError) else f"{type(error).__name__}: {error}"
        refusal = DestinationError(
            f"{kind} {self.name} failed on commit {batch.commit_version} of continuous query {self.query.name}: {said}",
            detail=f"the batch holds {len(batch)} deltas, up to sequence {batch.sequence}",
            hint=f"the batch comes again with the next delivery, until the {kind} accepts it",
        )
        refusal.wait_seconds = error.wait_seconds if isinstance(error, DestinationError) else 0.0
        return refusal


# ---------------------------------------------------------------- how one is made


def _make(wanted: Wanted) -> CallbackDestination:
    name, callbacks = wanted.reference.name, wanted.callbacks
    function = callbacks.get(name)
    if function is None:
        raise DestinationError(
            f"callback {name} of continuous query {wanted.query.name} is not registered in this process",
            detail="its deltas wait in the delta log",
            hint=did_you_mean(name, callbacks.names()) or f'register it: @engine.callback("{name}")',
        )
    options = {**callbacks.options(name), **dict(wanted.declared.options)}
    return CallbackDestination(
        wanted.services, wanted.query, name, function,
        retry=wanted.retry, stopped=wanted.stopped, batch=options.get("batch", "transaction").lower(),
        concurrency=_concurrency(options.get("concurrency", "1")), callbacks=callbacks,
    )  # fmt: skip


def _concurrency(value: str) -> int:
    if count(value) > _MOST_OPTIONS:
        raise ValueError
    return count(value)


_MOST_OPTIONS = 256
"""Each has a thread while it runs."""
_OPTIONS = {
    "batch": one_of("transaction", "row", "refresh"),
    "concurrency": Option(
        "1", _concurrency, f"write how many calls at once, 1 to {_MOST_OPTIONS}, as in concurrency = 4"
    ),
}

KIND = Kind(CallbackDestination, {**_OPTIONS, **COMMON}, _make)
