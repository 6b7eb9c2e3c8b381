"""Reading what a queue's consumers have not been given: parts of a delta log, bounded and kept while they are used."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as f

from cq_engine.catalog.change_rows import SEQUENCE
from cq_engine.catalog.model import ContinuousQuery, Cursor
from cq_engine.catalog.queues import END, Place
from cq_engine.context.services import Services
from cq_engine.core.keeping import keep
from cq_engine.core.values import json_value, python_values
from cq_engine.destinations.envelope import key_rows
from cq_engine.destinations.log import needed_from, read_frame, read_pairs, read_small
from cq_engine.destinations.pairs import pair, select_markers
from cq_engine.spark.arrow_io import to_arrow
from cq_engine.storage.rows import change_columns, conform

__all__ = ["Logs", "Window", "read_places"]

_NONE = pa.table({})


@dataclass(frozen=True)
class Window:
    """The messages of one query in (after, upto], all of them, with the hashes of their keys."""

    query: ContinuousQuery
    after: Place
    upto: Place
    wide: pa.Table
    places: Sequence[Place] = ()
    keys: Sequence[int] = ()
    skips: bool = False
    """Whether the log has rows there that are no messages."""
    last: bool = True
    """Whether the log ends there."""

    def behind(self, index: int) -> Place:
        """Where a group stands that has been given everything up to this message."""
        if index + 1 == len(self.places):
            return self.upto
        following = self.places[index + 1][0]
        return self.places[index] if following == self.places[index][0] else (following - 1, END)

    @property
    def is_over(self) -> bool:
        """Whether a group that has looked at all of it stands behind it, though it was given none of it."""
        return not self.last or (self.skips and not self.places)


class _Reading:
    """A window, and where it was cut out of a larger interval, what comes after it."""

    def __init__(self, window: Window, more: Iterator[Window] | None = None) -> None:
        self.window = window
        self.more = more

    def serves(self, query: ContinuousQuery, after: Place) -> bool:
        """Whether the window, or the next one, has what comes after a place. It goes to the next one where it has to."""
        mine = self.window.query
        same = (mine.id, mine.result.id, mine.markers) == (query.id, query.result.id, query.markers)
        if not same or after < self.window.after:
            return False
        if after == self.window.upto and self.more is not None:
            self.window = next(self.more, self.window)
        return self.window.after <= after < self.window.upto

    def close(self) -> None:
        close = getattr(self.more, "close", None)
        if close is not None:
            with suppress(Exception):  # of a session that has ended
                close()


class Logs:
    """Windows of the logs that an engine's consumers read; those used last stay."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._kept: OrderedDict[tuple[str, int], _Reading] = OrderedDict()
        self._lock = threading.Lock()

    def after(self, who: str, query: ContinuousQuery, place: Place) -> Window:
        """The messages that come next after a place; `who` reads on from there."""
        with self._lock:
            known = self._kept.pop((who, query.id), None)
        if known is None or not known.serves(query, place):
            if known is not None:
                known.close()
            known = _load(self._services, query, place)
        end = (self._services.catalog.status(query.name).position, END)
        while not known.window.places and known.window.upto < end:
            known.close()
            known = _load(self._services, query, known.window.upto)
            known.window = replace(known.window, after=place, skips=True)
        with self._lock:
            self._kept[who, query.id] = known
            many = len(self._kept) > self._services.limits.queue_windows
            old = self._kept.popitem(last=False)[1] if many else None
        if old is not None:
            old.close()
        return replace(known.window, last=known.window.upto >= end)

    def forget_gone(self) -> None:
        """Forgets the windows of queries that are gone."""
        numbers = {query.id for query in self._services.catalog.state.queries.values()}
        with self._lock:
            gone = keep(self._kept, {key for key in self._kept if key[1] in numbers})
        for each in gone:
            each.close()

    def close(self) -> None:
        """Forgets everything."""
        with self._lock:
            kept, self._kept = list(self._kept.values()), OrderedDict()
        for each in kept:
            each.close()


def _load(services: Services, query: ContinuousQuery, after: Place) -> _Reading:
    position, cursor = services.catalog.status(query.name).position, _cursor(query, after)
    rows, upto = 0, position
    for changes in services.catalog.changes(query.result.id, needed_from(cursor) + 1, position):
        rows += changes.rows
        if rows >= services.limits.queue_rows:
            upto = min(changes.high, position)
            break
    end = (max(upto, after[0]), END)
    if rows == 0:
        return _Reading(Window(query, after, end, _NONE))
    small = read_small(services, query, cursor, upto)
    if small is not None:
        window = _window(query, after, end, select_markers(small, query.markers))
        return _Reading(replace(window, skips=query.group is None))
    more = _windows(services, query, after, end)
    return _Reading(next(more), more)


def _cursor(query: ContinuousQuery, place: Place) -> Cursor:
    version, sequence = place
    return Cursor(query.name, "", version, 0 if sequence == END else sequence)


def _windows(services: Services, query: ContinuousQuery, after: Place, end: Place) -> Iterator[Window]:
    """Of an interval that is too large for the driver."""
    step = services.limits.queue_rows
    for block in read_pairs(services, query, _cursor(query, after), end[0], query.markers):
        for start in range(0, block.num_rows, step):
            wide = block.slice(start, step)
            upto = (wide.column("version")[-1].as_py(), wide.column("sequence")[-1].as_py())
            yield _window(query, after, upto, wide)
            after = upto
    yield Window(query, after, end, _NONE, skips=True)


def _window(query: ContinuousQuery, after: Place, upto: Place, wide: pa.Table) -> Window:
    places = list(zip(wide.column("version").to_pylist(), wide.column("sequence").to_pylist()))
    return Window(query, after, upto, wide, places, list(_keys(query, wide)))


def _keys(query: ContinuousQuery, wide: pa.Table) -> Iterator[int]:
    """A hash of each delta's key, the same in every process; of a multiset, of the whole row."""
    rows = key_rows(query, wide)
    if not rows.num_columns:
        yield from (0 for _ in range(wide.num_rows))
        return
    for row in zip(*map(python_values, rows.columns)):
        text = json.dumps([json_value(value, kind) for value, kind in zip(row, rows.schema.types)])
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        yield int.from_bytes(digest, "big", signed=True)


def read_places(services: Services, query: ContinuousQuery, places: Sequence[Place]) -> dict[Place, pa.Table]:
    """The deltas at these places, one row each in the wide layout; those that are not kept any more are missing."""
    wanted: dict[int, list[int]] = {}
    for version, sequence in places:
        wanted.setdefault(version, []).append(sequence)
    floor = services.catalog.floor(query.result.id)
    found: dict[Place, pa.Table] = {}
    for version, sequences in wanted.items():
        if version <= floor:
            continue
        before = Cursor(query.name, "", version - 1)
        wide = read_small(services, query, before, version)
        if wide is None:
            rows = read_frame(services, query, before, version).where(f.col(SEQUENCE).isin(sequences))
            wide = pair(conform(to_arrow(rows), change_columns(query.result)), query.result.columns)
        wide = wide.filter(pc.is_in(wide.column("sequence"), pa.array(sequences, pa.int64())))
        for n, sequence in enumerate(wide.column("sequence").to_pylist()):
            found[version, sequence] = wide.slice(n, 1)
    return found
