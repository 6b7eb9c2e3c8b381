"""The thread in which a process follows what others write, gives signs of life, and takes the duties where they are free."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from cq_engine.catalog.database import Database, Notifications
from cq_engine.catalog.view import WriteSet
from cq_engine.core.errors import CQError
from cq_engine.core.limits import Limits

__all__ = ["News", "Watch", "Watched"]

_log = logging.getLogger(__name__)

News = list["WriteSet | None"]
"""What other processes have written, oldest first; None where it is not known and everything was read anew."""


class Watched(Protocol):
    """What a Watch needs of a catalog."""

    limits: Limits
    epoch: int

    def follow(self, *, wait: float = -1) -> bool: ...

    def take_news(self) -> News: ...

    def beat(self) -> None: ...

    def keep_open(self) -> None: ...

    def take_if_free(self) -> None: ...


class Watch(threading.Thread):
    """Tells `listener` of what others have written, and where the duties have come or gone; with every sign of life once
    more, so that what failed is tried again."""

    def __init__(self, catalog: Watched, database: Database) -> None:
        super().__init__(name="cq-watch", daemon=True)
        self.listener: Callable[[News], None] | None = None
        self._catalog = catalog
        self._notifications = Notifications(database) if database.notifies else None
        self._behind = True
        self._ended = threading.Event()

    def stop(self) -> None:
        """Ends the thread."""
        self._ended.set()
        if self.is_alive() and threading.current_thread() is not self:
            self.join(timeout=20)

    def run(self) -> None:
        """Looks every `follow_seconds` or when the database says so, and gives a sign of life every `heartbeat_seconds`."""
        limits = self._catalog.limits
        pause = min(limits.follow_seconds, limits.heartbeat_seconds)
        beat = time.monotonic() + limits.heartbeat_seconds
        epoch = self._catalog.epoch
        while not self._ended.is_set():
            self._behind = self._wait(pause) or self._behind
            due = time.monotonic() >= beat
            if due:
                beat = time.monotonic() + limits.heartbeat_seconds
            try:
                epoch = self._look(epoch, due)
            except CQError as error:  # the database does not answer: a statement will say so
                _log.debug("%s: %s", error.message, error.detail)
            except Exception:  # noqa: BLE001 - this thread gives the signs of life
                _log.exception("following the catalog failed")
        if self._notifications is not None:
            self._notifications.close()

    def _wait(self, seconds: float) -> bool:
        """Whether others may have written."""
        if self._notifications is not None:
            return self._notifications.wait(seconds)
        self._ended.wait(seconds)
        return True

    def _look(self, epoch: int, due: bool) -> int:
        """The epoch now; `epoch` is that at the last look."""
        catalog = self._catalog
        if due:
            catalog.keep_open()
            catalog.beat()
        if self._behind or due:
            self._behind = not catalog.follow(wait=0)
        news = catalog.take_news()
        if self.listener is not None and (news or due or epoch != catalog.epoch):
            epoch = catalog.epoch
            self.listener(news)
        if any(writes is None or not writes.commits for writes in news):
            catalog.take_if_free()  # which may fail: the news are told, and the next look tells that it has them
        return epoch
