"""A Python function as a destination: called once per commit, in order, at least once."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np
import pyarrow as pa

from cq_engine.catalog.model import ContinuousQuery, Cursor
from cq_engine.context.services import Services
from cq_engine.core import faults
from cq_engine.core.errors import CQError, DestinationError
from cq_engine.core.interrupts import is_interrupt
from cq_engine.destinations.base import Delivered, Destination
from cq_engine.destinations.envelope import DeltaBatch
from cq_engine.destinations.log import read_pairs

__all__ = ["Callback", "CallbackDestination", "Callbacks", "Retry"]

_log = logging.getLogger(__name__)

Callback = Callable[[DeltaBatch], object]


@dataclass(frozen=True)
class Retry:
    """How often a batch is tried within one delivery, and how long to wait in between, in seconds: `base`, then
    twice as long each time, up to `cap`."""

    attempts: int = 3
    base: float = 0.2
    cap: float = 30.0

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.base < 0 or self.cap < 0:
            raise ValueError("a batch is tried at least once, and no time to wait is negative")

    def pause(self, failures: int) -> float:
        """How long to wait after the `failures`-th failure in a row.

        >>> [Retry(base=1, cap=5).pause(n) for n in (1, 2, 3, 4)]
        [1.0, 2.0, 4.0, 5]
        """
        longest: float = self.base * 2.0 ** min(failures - 1, 60)
        return min(self.cap, longest)


class Callbacks:
    """The functions that DESTINATION CALLBACK can name, by name regardless of case. Thread-safe."""

    def __init__(self) -> None:
        self._functions: dict[str, tuple[str, Callback]] = {}
        self._lock = threading.Lock()

    def register(self, name: str, function: Callback) -> None:
        """Makes `function` the callback `name`; it takes the place of an earlier one."""
        with self._lock:
            self._functions[name.lower()] = (name, function)

    def get(self, name: str) -> Callback | None:
        """The callback `name`, or None."""
        with self._lock:
            found = self._functions.get(name.lower())
        return None if found is None else found[1]

    def names(self) -> tuple[str, ...]:
        """All names, as they were registered."""
        with self._lock:
            return tuple(name for name, _ in self._functions.values())


class CallbackDestination(Destination):
    """Calls `function` with one DeltaBatch per commit version, a very large one in chunks of `Limits.batch_deltas`.

    The cursor is durable after each batch. A function that raises, be it SystemExit, is called again with the same
    batch, after a pause; when `retry` is exhausted the delivery fails, and the next one starts with that batch. Only
    Ctrl-C passes through. The function runs in the thread of the delivery, and no lock of the engine is held meanwhile.
    Once `stopped` says so, no further batch begins.
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
    ) -> None:
        super().__init__(services, query, name)
        self.function = function
        self.retry = retry or Retry()
        self._sleep = sleep
        self._stopped = stopped

    def _deliver(self, cursor: Cursor, upto: int) -> Delivered:
        blocks = read_pairs(self.services, self.query, cursor, upto, self.query.markers)
        count = 0
        for wide, last in in_batches(blocks, self.batch_deltas):
            if self._stopped():
                return Delivered(cursor, count)
            version = wide.column("version")[0].as_py()
            batch = DeltaBatch.of(self.query, wide, self.services.catalog.timestamp(version), last)
            self._check_turn()
            faults.point("deliver.begin")
            self._call(batch)
            count += len(batch)
            cursor = self._store_cursor(cursor, version, 0 if last else batch.sequence, len(batch))
            faults.point("deliver.after_cursor")
        if (cursor.version, cursor.sequence) != (upto, 0):
            cursor = self._store_cursor(cursor, upto)
        return Delivered(cursor, count)

    def _check_turn(self) -> None:
        """Raises LeaseError where a successor may have given the batch, and what follows."""
        if self.registered:
            self.services.catalog.check_callback(self.name)
        else:
            self.services.catalog.check_lease()

    def _store_cursor(self, cursor: Cursor, version: int, sequence: int = 0, rows: int = 0) -> Cursor:
        moved = self._move(cursor, version, sequence, rows)
        with self.services.catalog.write(by_any=self.registered) as unit:
            unit.set_cursor(moved, after=cursor)
            faults.point("deliver.before_cursor")
        return moved

    def _call(self, batch: DeltaBatch) -> None:
        for attempt in range(1, self.retry.attempts + 1):
            try:
                self.function(batch)
                return
            except BaseException as error:
                if is_interrupt(error):
                    raise
                failure = self._refusal(batch, error)
                if attempt == self.retry.attempts:
                    raise failure from error
                _log.warning("%s; trying again", failure.message)
                self._count_failure(failure.message)
                self._sleep(self.retry.pause(attempt))

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


def in_batches(blocks: Iterable[pa.Table], chunk: int) -> Iterator[tuple[pa.Table, bool]]:
    """Deltas in order, in any blocks, as batches of one version and at most `chunk` deltas.

    With each batch comes whether it is the last one of its version: it is held back until that is known. A batch that
    is not the last one ends at a sequence above 0, because a cursor there could not be told from a finished version.
    """
    held: pa.Table | None = None
    for block in blocks:
        for part in _by_version(block):
            if held is not None and held.column("version")[0] != part.column("version")[0]:
                yield held, True
                held = None
            held = part if held is None else pa.concat_tables([held, part])
            while held.num_rows > chunk:
                size = chunk
                while size < held.num_rows and held.column("sequence")[size - 1].as_py() <= 0:
                    size += 1
                if size == held.num_rows:
                    break
                yield held.slice(0, size), False
                held = held.slice(size)
    if held is not None:
        yield held, True


def _by_version(block: pa.Table) -> Iterator[pa.Table]:
    versions = block.column("version").to_numpy()
    edges = [0, *(np.flatnonzero(versions[1:] != versions[:-1]) + 1).tolist(), block.num_rows]
    for start, end in pairwise(edges):
        if end > start:
            yield block.slice(start, end - start)
