"""The update message queue: what the channels have brought, in the order of arrival, and what is known of the relations by it."""

from __future__ import annotations

import heapq
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone

from cq_engine.sources.sweep.images import Images
from cq_engine.sources.sweep.model import Change, Channels, Counts, Position, Relation, Row, Update, View
from cq_engine.sources.sweep.rows import Net, net, picking, values_of

__all__ = ["Queue", "Version"]

Version = Mapping[str, int]
"""By source, how many of its updates a state has; the first one known here is number 1."""

_EARLY = datetime.min.replace(tzinfo=timezone.utc)


class _Stream:
    """The updates of one source that are known: those after `start`, of which `gone` are forgotten and `done` maintained."""

    def __init__(self, start: Position) -> None:
        self.start = start
        self.updates: list[Update] = []
        self.nets: list[Mapping[str, Net]] = []
        self.positions: list[Position] = []
        self.gone = 0
        self.done = 0
        self.kept = 0

    @property
    def end(self) -> int:
        return self.gone + len(self.updates)

    def position(self, number: int) -> Position:
        """Where the channel is after so many updates."""
        return self.positions[number - self.gone - 1] if number > self.gone else self.start

    def size(self, number: int) -> int:
        """How many changes an update has."""
        return sum(map(len, self.nets[number - self.gone - 1].values()))

    def finish(self, number: int) -> None:
        self.kept += sum(self.size(each) for each in range(self.done + 1, number + 1))
        self.done = max(self.done, number)

    def forget(self, history: int) -> int:
        """Forgets what is done, but for about so many changes; the number of the last update that is forgotten."""
        count = 0
        while self.kept > history and self.gone + count < self.done:
            count += 1
            self.kept -= self.size(self.gone + count)
        if count:
            self.start = self.positions[count - 1]
            del self.updates[:count], self.nets[:count], self.positions[:count]
            self.gone += count
        return self.gone


class Queue:
    """Updates that are not yet maintained, in the order of arrival, and as many of those before them as answers may need.

    `positions` is where each channel has been read to, durably: the queue is rebuilt from there.
    """

    def __init__(self, view: View, positions: Mapping[str, Position]) -> None:
        self.view = view
        self._streams = {source: _Stream(positions[source]) for source in view.sources}
        self._arrivals: deque[tuple[str, int]] = deque()
        self._keys = {relation.name: picking(relation, relation.key) for relation in view.relations}
        self._images = {relation.name: self._new_images(relation) for relation in view.relations}

    @property
    def done(self) -> Version:
        """The state of the view that is committed."""
        return {source: stream.done for source, stream in self._streams.items()}

    def images(self, relation: str) -> Images:
        """What is known of the rows of a relation."""
        return self._images[relation]

    def key(self, relation: str, row: Row) -> Row:
        """The key of a row."""
        return self._keys[relation](row)

    def position(self, source: str, number: int) -> Position:
        """The position of a source's channel after so many updates."""
        return self._streams[source].position(number)

    def end(self, source: str) -> int:
        """The number of the newest update of a source."""
        return self._streams[source].end

    def waiting(self, version: Version | None = None) -> Iterator[tuple[str, int]]:
        """(source, number) of the updates that a version does not have yet, in the order of arrival."""
        version = self.done if version is None else version
        return ((source, number) for source, number in self._arrivals if number > version[source])

    def update(self, source: str, number: int) -> Update:
        """An update that is not forgotten."""
        stream = self._streams[source]
        return stream.updates[number - stream.gone - 1]

    def net(self, relation: Relation, low: int, high: int) -> Net:
        """What the updates of a relation's source after `low` up to `high` have changed of it, by key."""
        stream = self._streams[relation.source]
        if high == low + 1:
            return stream.nets[low - stream.gone].get(relation.name, {})
        found: dict[Row, tuple[Row | None, Row | None]] = {}
        for number in range(low - stream.gone, high - stream.gone):
            for key, (before, after) in stream.nets[number].get(relation.name, {}).items():
                found[key] = (found[key][0] if key in found else before, after)
        return {key: rows for key, rows in found.items() if rows[0] != rows[1]}

    def pull(self, channels: Channels) -> None:
        """Reads what the channels have now. Transactions of different sources arrive in the order of their commit times, as far
        as the order of each source allows."""
        brought = [
            [(update.committed or _EARLY, place, update) for update in self._read(channels, source, None)]
            for place, source in enumerate(self._streams)
        ]
        for _, _, update in heapq.merge(*brought, key=lambda item: item[:2]):
            self._add(update)

    def reach(self, channels: Channels, source: str, seen: Position, counts: Counts) -> int | None:
        """How many updates of the source an answer has seen, which are in the queue from then on: the channel is FIFO.

        None where the answer is older than the updates that are known.
        """
        stream = self._streams[source]
        if stream.position(stream.end) < seen:
            counts.waits += 1
            started = time.perf_counter()
            for update in self._read(channels, source, seen):
                self._add(update)
            counts.seconds_waiting += time.perf_counter() - started
        if seen < stream.start:
            return None
        return stream.gone + bisect_right(stream.positions, seen)

    def commit(self, version: Version) -> None:
        """Says that the view has these updates, durably."""
        for source, number in version.items():
            self._streams[source].finish(number)
        while self._arrivals and self._arrivals[0][1] <= self._streams[self._arrivals[0][0]].done:
            self._arrivals.popleft()

    def forget(self, history: int) -> None:
        """Forgets updates that the view has, but for about so many changes of each source."""
        for source, stream in self._streams.items():
            gone = stream.forget(history)
            for relation in self.view.relations:
                if relation.source == source:
                    self._images[relation.name].forget(gone)

    def _read(self, channels: Channels, source: str, upto: Position | None) -> Sequence[Update]:
        stream = self._streams[source]
        return channels.updates(source, stream.position(stream.end), upto)

    def _add(self, update: Update) -> None:
        stream = self._streams[update.source]
        if not stream.position(stream.end) < update.position:
            raise ValueError(f"source {update.source} has brought position {update.position} out of order")
        changes: dict[str, list[Change]] = {}
        for change in update.changes:
            changes.setdefault(change.relation, []).append(change)
        nets = {name: net(of, self._keys[name]) for name, of in changes.items()}
        for name, of in nets.items():
            key = self._images[name].contradiction(of)
            if key is not None:
                raise ValueError(
                    f"source {update.source} has brought a change of {name} {key} at position {update.position}"
                    " whose row before is not the one after the change before it"
                )
        stream.updates.append(update)
        stream.nets.append(nets)
        stream.positions.append(update.position)
        for name, of in nets.items():
            self._images[name].add(stream.end, of)
        self._arrivals.append((update.source, stream.end))

    def _new_images(self, relation: Relation) -> Images:
        columns = {link.near_index for link in self.view.links[relation.name]}
        return Images({index: values_of(relation, index) for index in columns})
