"""Following a continuous query: its deltas as they come, read from the delta log.

A follower is a place in the log and nothing else: what it has not read yet is not held for it, so a slow one costs
nobody anything. It is told when its query has moved on (`catalog.watchers`), here or in another process, which this one
follows; in one that only reads, it looks (`Limits.follow_seconds`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import pyarrow as pa

from cq_engine.catalog import apply
from cq_engine.catalog.change_rows import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    INSERT,
    SEQUENCE,
    UPDATE_POSTIMAGE,
)
from cq_engine.catalog.groups import owner
from cq_engine.catalog.model import ContinuousQuery, Cursor
from cq_engine.context.services import Services
from cq_engine.core.errors import CatalogError
from cq_engine.core.types import arrow_schema
from cq_engine.destinations.envelope import Delta, deltas_of
from cq_engine.destinations.log import read_pairs
from cq_engine.destinations.pairs import GONE, MARKER_OF, new_column, old_column, pair
from cq_engine.query.query import version_to_come
from cq_engine.query.result import Result
from cq_engine.storage.rows import change_columns, conform, empty, feed_columns

__all__ = ["PROGRESS", "Follower", "Piece", "Progress", "followed_columns"]

PROGRESS = "progress"
"""The change type of a row that says: everything up to this version has been given."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Everything up to `version` has been given; from there another follower can go on."""

    version: int


@dataclass(frozen=True)
class Piece:
    """Deltas in the wide layout (destinations/pairs.py), in order.

    `whole`: the last one is the last of its version. `upto`: the version up to which everything has been given with this
    piece, where that is so.
    """

    query: ContinuousQuery
    wide: pa.Table
    times: dict[int, datetime]
    whole: bool
    upto: int | None

    @property
    def end(self) -> Cursor | None:
        """Where the piece ends; None where it has no deltas and no version is complete."""
        if self.upto is not None:
            return Cursor(self.query.name, "", self.upto)
        version, sequence = (self.wide.column(c)[-1].as_py() for c in ("version", "sequence"))
        return Cursor(self.query.name, "", version, 0 if self.whole else sequence)

    def events(self) -> Iterator[Delta | Progress]:
        """The deltas, and behind the last one of every version how far that is."""
        version: int | None = None
        for delta in deltas_of(self.query, self.wide, self.times):
            if version not in (None, delta.commit_version):
                yield Progress(version or 0)
            version = delta.commit_version
            yield delta
        if version is not None and self.whole:
            yield Progress(version)
        if self.upto is not None and self.upto != version:
            yield Progress(self.upto)

    def rows(self) -> pa.Table:
        """The same as the rows of a change data feed, with rows of type `progress`."""
        count = self.wide.num_rows
        markers, versions = (self.wide.column(c).to_numpy() for c in ("marker", "version"))
        every = np.arange(count)
        is_update, is_delete = markers == "U", np.isin(markers, GONE)
        ends = np.flatnonzero(np.append(versions[1:] != versions[:-1], [self.whole])) if count else every
        kind_of = {marker: kind for kind, marker in MARKER_OF.items() if kind != UPDATE_POSTIMAGE}
        first = np.array([kind_of[marker] for marker in markers.tolist()], object)
        updates = np.flatnonzero(is_update)
        # Each row as: which delta, its place among the rows of that, its type, and its values' row in (new, old).
        parts = [
            (every, 0, first, np.where(is_update | is_delete, every + count, every)),
            (updates, 1, np.full(len(updates), UPDATE_POSTIMAGE), updates),
            (ends, 2, np.full(len(ends), PROGRESS), np.full(len(ends), -1)),
        ]
        order = np.argsort(np.concatenate([at * 3 + place for at, place, _, _ in parts]), kind="stable")
        kinds, values = (np.concatenate([part[n] for part in parts])[order] for n in (2, 3))
        shown = [int(v) for v in np.concatenate([versions[at] for at, _, _, _ in parts])[order]]
        if self.upto is not None and (not count or self.upto != int(versions[-1])):
            kinds, values, shown = np.append(kinds, PROGRESS), np.append(values, -1), [*shown, self.upto]
        taken = pa.array(values, pa.int64(), mask=values < 0)
        columns = {
            c.name: pa.chunked_array(
                [*self.wide.column(new_column(n)).chunks, *self.wide.column(old_column(n)).chunks],
                self.wide.schema.field(new_column(n)).type,
            ).take(taken)
            for n, c in enumerate(self.query.result.columns[: self.query.width])
        }
        columns[CHANGE_TYPE] = pa.array(kinds.tolist(), pa.string())
        columns[COMMIT_VERSION] = pa.array(shown, pa.int64())
        columns[COMMIT_TIMESTAMP] = pa.array([self.times.get(v) for v in shown], pa.timestamp("us", "UTC"))
        return pa.table(columns).cast(followed_columns(self.query))


def followed_columns(query: ContinuousQuery) -> pa.Schema:
    """The columns of `Piece.rows`."""
    return arrow_schema(feed_columns(query))


class Follower:
    """The deltas of one query from a version on. Not for several threads at once, but for `close`.

    Args:
        services: the engine's parts.
        name: the query.
        from_version: everything after this version; by default what comes from now on.
        snapshot: first the present result as inserted rows, then what comes after it.

    Raises:
        CatalogError: there is no such query.
        AnalysisError: there is no such version.
    """

    def __init__(
        self, services: Services, name: str, from_version: int | None = None, *, snapshot: bool = False
    ) -> None:
        catalog = services.catalog
        self.services = services
        self.query = apply.find_query(catalog.state, name)
        self.on_news: Callable[[], None] | None = None
        """Called in any thread when there may be news."""
        self._position = Cursor(self.query.name, "", catalog.status(self.query.name).position)
        if from_version is not None:
            if from_version > catalog.newest_version:
                raise version_to_come(from_version, catalog.newest_version)
            begun = (
                self.query.created_version - 1
            )  # START FROM SNAPSHOT has deltas at the version of its creation
            self._position = Cursor(self.query.name, "", max(from_version, begun, 0))
        self._snapshot = snapshot
        self._pieces: Iterator[Piece] | None = None
        self._news = threading.Event()
        self._owner = owner(catalog.state, self.query.name)
        self._closed = False
        catalog.watchers.add(self._tell)

    def next(self, *, wait: bool) -> Piece | None:
        """What comes next; None once it is closed, or where nothing is there and `wait` is False.

        Raises CatalogError where the query is gone, StorageError where the log does not reach back so far any more.
        """
        while not self._closed:
            self._news.clear()
            piece = self._read()
            if piece is not None or not wait:
                return piece
            self._news.wait(self.services.limits.follow_seconds)
        return None

    @property
    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Ends it; whoever waits for the next piece gets none."""
        self._closed = True
        self._pieces = None
        self.services.catalog.watchers.remove(self._tell)
        self._news.set()
        if self.on_news is not None:
            self.on_news()

    def _tell(self, moved: Collection[str] | None) -> None:
        if moved is None or self._owner in moved:
            self._news.set()
            if self.on_news is not None:
                self.on_news()

    # ------------------------------------------------------------ reading

    def _read(self) -> Piece | None:
        """A piece that is there, and the place behind it."""
        pieces, self._pieces = self._pieces, None  # one that is interrupted is begun again from the place
        pieces = self._available() if pieces is None else pieces
        with self.services.read_holds.reading():
            piece = next(pieces, None)
        if piece is None or not self._is_current(piece.query):
            return None
        end = piece.end
        if end is not None:
            self._position = end
        self._snapshot = False
        self._pieces = pieces if piece.upto is None and not self._closed else None
        return piece

    def _available(self) -> Iterator[Piece]:
        catalog = self.services.catalog
        self.query = self._find()
        self._owner = owner(catalog.state, self.query.name)
        if self._snapshot:
            yield self._result()
            return
        upto = catalog.status(self.query.name).position
        if upto <= self._position.version:
            return
        query, none = self.query, _no_deltas(self.query)
        blocks = read_pairs(self.services, query, self._position, upto, query.markers)
        block = next(blocks, None)
        while block is not None:
            following = next(blocks, None)
            last = block.column("version")[-1]
            whole = following is None or following.column("version")[0] != last
            yield self._piece(query, block, whole, upto if following is None else None)
            block = following
        if self._position.version < upto:
            yield self._piece(query, none, True, upto)

    def _find(self) -> ContinuousQuery:
        state = self.services.catalog.state
        found = state.queries.get(self.query.name.lower())
        if found is None:
            raise CatalogError(f"continuous query {self.query.name} was dropped")
        if found.id != self.query.id:
            raise CatalogError(
                f"continuous query {self.query.name} was replaced by another one",
                hint=f"FOLLOW {self.query.name} SNAPSHOT begins with the result of that one",
            )
        return found

    def _is_current(self, query: ContinuousQuery) -> bool:
        """Whether what was read is still the query's log: it may have got one of its own meanwhile."""
        found = self.services.catalog.state.queries.get(query.name.lower())
        return found is not None and found.result.id == query.result.id

    def _result(self) -> Piece:
        """The present result as inserted rows."""
        found = self.services.results(self.query.name, None, self.services.catalog.newest_version)
        rows = Result(frame=found.frame()).to_arrow() if found.small is None else found.small.rows
        rows = conform(rows, self.query.result.columns)
        count = rows.num_rows
        log = rows.append_column(CHANGE_TYPE, pa.array([INSERT] * count, pa.string()))
        log = log.append_column(COMMIT_VERSION, pa.array([found.version] * count, pa.int64()))
        log = log.append_column(SEQUENCE, pa.array(range(1, count + 1), pa.int64()))
        log = conform(log, change_columns(self.query.result))
        return self._piece(self.query, pair(log, self.query.result.columns), True, found.version)

    def _piece(self, query: ContinuousQuery, wide: pa.Table, whole: bool, upto: int | None) -> Piece:
        catalog = self.services.catalog
        versions = [wide.column("version")[n].as_py() for n in (0, -1)] if wide.num_rows else []
        versions += [] if upto is None else [upto]
        times = catalog.timestamps(min(versions), max(versions))
        if (
            wide.num_rows and versions[0] not in times
        ):  # of a result: nothing is left of the commit that made it
            before = catalog.timestamps(0, versions[0])
            times[versions[0]] = before[max(before)]
        return Piece(query, wide, times, whole, upto)


def _no_deltas(query: ContinuousQuery) -> pa.Table:
    return pair(empty(change_columns(query.result)), query.result.columns)
