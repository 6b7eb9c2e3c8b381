"""The façade's part about following queries: their deltas as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakSet

import pyarrow as pa

from cq_engine.api.entry import entry
from cq_engine.context.services import Services
from cq_engine.spark.failures import plain_errors

if TYPE_CHECKING:  # commits do without
    from cq_engine.destinations.envelope import Delta
    from cq_engine.destinations.follow import Follower, Piece, Progress
    from cq_engine.query.stream import StreamingResult

__all__ = ["PATIENCE", "Follow", "Following"]

PATIENCE = 1.0
"""Seconds that a call waits for a commit of this process, to see what others have committed meanwhile."""

Event: TypeAlias = "Delta | Progress"


class Follow(Iterator["Event"], AsyncIterator["Event"]):
    """The deltas of a query as they come, each `Delta` in the order of the log, and `Progress` where a commit ends.

    Iterate it with `for` or with `async for`; it waits for what comes next, and ends when it is closed. What the reader
    has not asked for is not read. `position` is the version up to which everything has been given: another `follow` goes
    on from there. Not for several threads or tasks at once, but for `close`.
    """

    def __init__(self, follower: Follower, step: Callable[[bool], Piece | None]) -> None:
        self._follower = follower
        self._step = step
        self._events: Iterator[Event] = iter(())
        self._news: asyncio.Event | None = None
        self.position: int | None = None

    def __iter__(self) -> Follow:
        return self

    def __next__(self) -> Event:
        while (event := self._given()) is None:
            piece = self._step(True)
            if piece is None:
                raise StopIteration
            self._events = piece.events()
        return event

    def __aiter__(self) -> Follow:
        return self

    async def __anext__(self) -> Event:
        news = self._listen()
        while (event := self._given()) is None:
            news.clear()
            piece = await asyncio.to_thread(self._step, False)
            if piece is not None:
                self._events = piece.events()
            elif self._follower.is_closed:
                raise StopAsyncIteration
            else:
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(news.wait(), self._follower.services.limits.follow_seconds)
        return event

    def close(self) -> None:
        """Ends it; may be called in any thread."""
        self._follower.close()

    def __enter__(self) -> Follow:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _given(self) -> Event | None:
        """The next event of what has been read."""
        from cq_engine.destinations.follow import Progress

        event = None if self._follower.is_closed else next(self._events, None)
        if isinstance(event, Progress):
            self.position = event.version
        return event

    def _listen(self) -> asyncio.Event:
        """An event of the running loop that is set when there may be news."""
        if self._news is None:
            loop, self._news = asyncio.get_running_loop(), asyncio.Event()
            wake = self._news.set

            def tell() -> None:
                with suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(wake)

            self._follower.on_news = tell
        return self._news


class Following:
    """What an engine does for those who follow its queries; a base of `Engine`, which has the parts."""

    services: Services
    _followers: WeakSet[Follower]
    _catch_up: Callable[[], None]
    _check_open: Callable[[], None]

    def follow(self, query: str, from_version: int | None = None, *, snapshot: bool = False) -> Follow:
        """The deltas of a query as they come: an iterator, also asynchronous, of `Delta`, and of `Progress` where a
        commit ends. It gives the deltas that `deltas` gives.

        Args:
            query: the query. It may be refreshed here or by another process.
            from_version: begin with what comes after this version, such as `Progress.version` of an earlier reader; by
                default with what comes from now on.
            snapshot: begin with the present result as I deltas.

        Raises:
            CatalogError: there is no such query; while iterating, it was dropped or replaced.
            AnalysisError: there is no such version.
            StorageError: while iterating, the log does not reach back so far any more.
        """
        follower = self._follower(query, from_version, snapshot)
        return Follow(follower, lambda wait: self._follow_step(follower, wait))

    def follow_rows(self, query: str, from_version: int | None, snapshot: bool) -> StreamingResult:
        """FOLLOW: the same as rows of a change data feed."""
        from cq_engine.destinations.follow import followed_columns
        from cq_engine.query.stream import StreamingResult

        follower = self._follower(query, from_version, snapshot)

        def following() -> pa.Table | None:
            piece = self._follow_step(follower, True)
            return None if piece is None else piece.rows()

        return StreamingResult(followed_columns(follower.query), following, follower.close)

    def _follower(self, query: str, from_version: int | None, snapshot: bool) -> Follower:
        from cq_engine.destinations.follow import Follower

        self._check_open()
        self.services.catalog.follow(wait=PATIENCE)
        follower = Follower(self.services, query, from_version, snapshot=snapshot)
        self._followers.add(follower)
        return follower

    @entry
    def _follow_step(self, follower: Follower, wait: bool) -> Piece | None:
        try:
            with plain_errors(f"follow {follower.query.name}", self.services.catalog.warehouse):
                return follower.next(wait=wait)
        except Exception:
            if follower.is_closed:  # with the engine, in the middle of reading
                return None
            raise

    def _end_following(self) -> None:
        for follower in list(self._followers):
            follower.close()
