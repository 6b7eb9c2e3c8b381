"""What `cq serve` prints: one line per refresh, and one when a query fails, is paused or recovers."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress

from cq_engine.catalog.model import QueryStatus, RefreshRecord
from cq_engine.catalog.overview import Overview
from cq_engine.repl.ports import EngineLike

__all__ = ["Stop", "refresh_line", "serve"]

_MOST = 1000
"""Refreshes told at one look; where there are more, the oldest are left out."""


class Stop:
    """Says that serving is to end. A signal handler may call `set` at any moment: it takes no lock. That of an Event may be
    held by the very code that the signal interrupts, which then goes on never."""

    def __init__(self) -> None:
        self._here, self._there = socket.socketpair()
        self._there.setblocking(False)

    def __enter__(self) -> Stop:
        return self

    def __exit__(self, *_: object) -> None:
        self._here.close()
        self._there.close()

    def set(self) -> None:
        """From now on `wait` gives True."""
        with suppress(OSError):  # it was said often enough, or all is over
            self._there.send(b".")

    def wait(self, seconds: float) -> bool:
        """Waits for so long at most; whether `set` was called."""
        self._here.settimeout(seconds)
        try:
            return bool(self._here.recv(1, socket.MSG_PEEK))
        except (TimeoutError, BlockingIOError):
            return False


def serve(
    engine: EngineLike,
    stop: Stop,
    say: Callable[[str], None],
    *,
    seconds: float,
    note: Callable[[Overview], None] | None = None,
) -> None:
    """Tells what the engine's scheduler does until `stop` is set, looking every `seconds`; `note` gets what is seen."""
    catalog = engine.catalog

    def look() -> Mapping[str, QueryStatus]:
        overview = Overview.of(catalog)
        if note is not None:
            note(overview)
        return overview.status

    last = next(iter(catalog.refreshes(limit=1)), None)
    states = _tell_states({}, look(), say)
    while not stop.wait(seconds):
        fresh = _since(last, catalog.refreshes(limit=_MOST))
        for record in reversed(fresh):
            say(refresh_line(record))
        last = fresh[0] if fresh else last
        states = _tell_states(states, look(), say)


def _since(last: RefreshRecord | None, newest_first: list[RefreshRecord]) -> list[RefreshRecord]:
    return list(itertools.takewhile(lambda record: record != last, newest_first))


def refresh_line(record: RefreshRecord) -> str:
    """One refresh: when it finished, its query, the interval, the delta and how it was computed."""
    delta = f"+{record.inserted} -{record.deleted} ~{record.updated}"
    when = f"{record.finished:%Y-%m-%d %H:%M:%SZ}"
    interval = f"({record.from_version}, {record.to_version}]"
    return f"{when} {record.query} {interval} {delta} {record.plan} {record.seconds:.2f} s"


def _tell_states(
    before: Mapping[str, str], status: Mapping[str, QueryStatus], say: Callable[[str], None]
) -> dict[str, str]:
    """Tells every query that is not in the state that it was in; what is active at the start goes without saying."""
    now = {query: moving.state for query, moving in status.items()}
    for query, state in now.items():
        if state != before.get(query, "ACTIVE"):
            error = status[query].error
            say(f"{query} is {state}" + (f": {error}" if error else ""))
    return now
