"""Several calls of a callback's function at once: of batches that have no key in common."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import pyarrow as pa

from cq_engine.catalog.model import ContinuousQuery
from cq_engine.destinations.envelope import key_rows
from cq_engine.destinations.event_loop import CALLER, Cancelled, caller
from cq_engine.storage.rows import identity_keys

__all__ = ["Call", "Several", "keys_of"]

_Batch = TypeVar("_Batch")
_AHEAD = 4
"""So many times as many calls are looked at as run at once, for one whose keys are free."""


def keys_of(query: ContinuousQuery, wide: pa.Table) -> frozenset[Hashable]:
    """The keys of deltas in the wide layout (destinations/pairs.py); of a multiset their rows."""
    rows = key_rows(query, wide)
    columns = [replace(query.result.columns[int(place)], name=place) for place in rows.column_names]
    return frozenset(identity_keys(rows, columns) if columns else [()])


@dataclass(eq=False)
class Call(Generic[_Batch]):
    """A batch to be given away. `end` is where a cursor behind it stands; `done`: it was accepted."""

    batch: _Batch
    end: tuple[int, int]
    keys: frozenset[Hashable]
    done: bool = False
    running: bool = False


class Several(Generic[_Batch]):
    """Calls of `function`, up to `most` at once. One begins when none before it that has a key in common with it is open.

    Args:
        most: how many at once, each in a thread.
        function: what is called with each batch.
        calls: in their order.
    """

    def __init__(self, most: int, function: Callable[[_Batch], None], calls: Iterator[Call[_Batch]]) -> None:
        self._most = most
        self._function = function
        self._calls = calls
        self._window: deque[Call[_Batch]] = deque()
        self._running: dict[Future[None], Call[_Batch]] = {}
        self._pool = ThreadPoolExecutor(most, "cq-callback")

    def run(self, may_begin: Callable[[], bool]) -> Iterator[list[Call[_Batch]]]:
        """Makes the calls; gives those that are accepted and have none before them that is not, in order. When a call
        raises, or `may_begin` says no, none begins any more; those that run are waited for, and then the first error is
        raised."""
        failure: BaseException | None = None
        while True:
            begins = failure is None and may_begin()
            full = begins and self._fill()
            if begins:
                self._begin()
            if self._running:
                finished, _ = wait(self._running, return_when=FIRST_COMPLETED)
                for future in finished:
                    call = self._running.pop(future)
                    error = future.exception()
                    call.running, call.done = False, error is None
                    failure = failure or (None if isinstance(error, Cancelled) else error)
            if accepted := self._accepted():
                yield accepted
            elif not self._running and not full:
                break
        if failure is not None:
            raise failure

    def out_of_order(self) -> frozenset[tuple[int, int]]:
        """The ends of accepted calls before which one is open."""
        return frozenset(call.end for call in self._window if call.done)

    def close(self) -> None:
        """Waits for what runs."""
        self._pool.shutdown(wait=True)
        for future, call in self._running.items():
            call.done = future.exception() is None

    def _fill(self) -> bool:
        """Whether there is something to be done."""
        while len(self._window) < _AHEAD * self._most:
            call = next(self._calls, None)
            if call is None:
                break
            self._window.append(call)
        return bool(self._window)

    def _begin(self) -> None:
        taken: set[Hashable] = set()
        for call in self._window:
            if call.done:
                continue
            if not call.running and len(self._running) < self._most and taken.isdisjoint(call.keys):
                call.running = True
                self._running[self._pool.submit(self._context(), call.batch)] = call
            taken |= call.keys

    def _context(self) -> Callable[[_Batch], None]:
        me, context, function = caller(), copy_context(), self._function

        def run(batch: _Batch) -> None:
            context.run(CALLER.set, me)
            context.run(function, batch)

        return run

    def _accepted(self) -> list[Call[_Batch]]:
        found = []
        while self._window and self._window[0].done:
            found.append(self._window.popleft())
        return found
