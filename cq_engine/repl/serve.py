"""What `cq serve` prints: one line per refresh, and one when a query fails, is paused or recovers."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping

from cq_engine.catalog.model import QueryStatus, RefreshRecord
from cq_engine.repl.ports import EngineLike, Overview

__all__ = ["refresh_line", "serve"]

_MOST = 1000
"""Refreshes told at one look; where there are more, the oldest are left out."""


def serve(engine: EngineLike, stop: threading.Event, say: Callable[[str], None], *, seconds: float) -> None:
    """Tells what the engine's scheduler does until `stop` is set, looking every `seconds`."""
    catalog = engine.catalog
    last = next(iter(catalog.refreshes(limit=1)), None)
    states = _tell_states({}, Overview.of(catalog).status, say)
    while not stop.wait(seconds):
        fresh = _since(last, catalog.refreshes(limit=_MOST))
        for record in reversed(fresh):
            say(refresh_line(record))
        last = fresh[0] if fresh else last
        states = _tell_states(states, Overview.of(catalog).status, say)


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
