"""Questions, and their answers as of the state that a term needs: the rows of one relation that join a partial delta."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from cq_engine.sources.sweep.model import (
    Answer,
    Ask,
    Bounds,
    Channels,
    Counts,
    Link,
    Row,
    TooStaleError,
)
from cq_engine.sources.sweep.queue import Queue, Version
from cq_engine.sources.sweep.rows import picking, settled, values_of

__all__ = ["Asker", "Term"]


@dataclass
class Term:
    """A partial delta: signed rows of one relation, and the rows of others that join them so far.

    The change of `origin` from `low` to `high` is joined with the relations before it (in the view's order) at `high` and
    those behind it at `low`. The terms of all relations that a step changes add up to the change of the view.
    """

    step: int
    origin: str
    low: Version
    high: Version
    rows: dict[str, Sequence[Row]]
    """By relation that has been reached. A term without rows of one of them adds nothing."""
    signs: Sequence[int] = field(default=())
    """+1 and −1 by row of the origin."""


class _Reply:
    """What a source has answered: rows whose keys no known update has touched, and keys of others with what was asked for."""

    def __init__(self, queue: Queue, link: Link, answer: Answer, seen: int) -> None:
        self._images = queue.images(link.far)
        self._index = link.far_index
        self._seen = seen
        self._fixed: dict[Row, dict[Row, Row]] = {}
        self._moving: dict[Row, list[Row]] = {}
        values_at = values_of(queue.view.by_name[link.far], self._index)
        for row in map(settled, answer.rows):
            values = values_at(row)
            if values is not None:
                key = queue.key(link.far, row)
                if self._images.touched(key):
                    self._moving.setdefault(values, []).append(key)
                else:
                    self._fixed.setdefault(values, {})[key] = row

    def rows(self, values: Row) -> Iterator[Row]:
        """The rows with these values at the version of the images."""
        yield from self._fixed.get(values, {}).values()
        for _, row in self._images.matching(self._index, values):
            yield row

    def compensated(self, values: Row, version: int) -> set[Row]:
        """The keys of rows with these values that are not as they were answered."""
        keys = {key for key, _ in self._images.matching(self._index, values)}
        keys.update(self._moving.get(values, ()))
        return {key for key in keys if self._images.changed(key, self._seen, version)}


class _Request:
    """What the terms at the near end of a link need of its far end."""

    def __init__(self, queue: Queue, link: Link, terms: Sequence[Term]) -> None:
        near = queue.view.by_name[link.near]
        raw, values_at = picking(near, link.near_columns), values_of(near, link.near_index)
        self.link = link
        self.terms: list[tuple[Term, dict[Row, None]]] = []
        self.raw: dict[Row, dict[Row, None]] = {}
        """By values that are compared, the near relation's values."""
        for term in terms:
            wanted: dict[Row, None] = {}
            for row in term.rows[link.near]:
                values = values_at(row)
                if values is not None:
                    wanted[values] = None
                    self.raw.setdefault(values, {})[raw(row)] = None
            self.terms.append((term, wanted))
        self.steps = tuple(dict.fromkeys(term.step for term in terms))

    def parts(self, size: int) -> Iterator[tuple[Row, ...]]:
        """The values that are compared, so many at a time."""
        values = iter(self.raw)
        while part := tuple(islice(values, size)):
            yield part

    def ask(self, part: Sequence[Row]) -> Ask:
        """The question for some of them."""
        keys = tuple(key for values in part for key in self.raw[values])
        return Ask(self.link.far, self.link.far_columns, keys, self.steps)


class Asker:
    """Sends questions, waits until the queue has what their answers have seen, and compensates.

    With `cuts`, terms of the last steps are given up as soon as all together have more rows than the bound; the steps from
    `end` on are not maintained then (`kept`).
    """

    def __init__(
        self, queue: Queue, channels: Channels, bounds: Bounds, counts: Counts, *, cuts: bool = False
    ) -> None:
        self.queue = queue
        self.channels = channels
        self.bounds = bounds
        self.counts = counts
        self.end: int | None = None
        self._cuts = cuts
        self._gathered: dict[int, int] = {}
        self._total = 0

    @property
    def full(self) -> bool:
        """Whether the terms have more rows than the bound."""
        return self._total > self.bounds.rows

    def kept(self, terms: Sequence[Term]) -> list[Term]:
        """The terms of steps that are not given up."""
        return [term for term in terms if self.end is None or term.step < self.end]

    def extend(self, requests: Sequence[tuple[Link, Sequence[Term]]]) -> None:
        """Gives terms the rows of the far end of a link that join what they have at its near end. All questions are open at
        the same time; one without keys is not sent."""
        wanted = [_Request(self.queue, link, terms) for link, terms in requests]
        parts = [(place, part) for place, each in enumerate(wanted) for part in each.parts(self.bounds.keys)]
        answers = self._answers([wanted[place].ask(part) for place, part in parts])
        replies: list[dict[Row, _Reply]] = [{} for _ in wanted]
        for (place, part), (answer, seen) in zip(parts, answers):
            replies[place].update(dict.fromkeys(part, _Reply(self.queue, wanted[place].link, answer, seen)))
        for request, by_values in zip(wanted, replies):
            self._fill(request, by_values)

    def _fill(self, request: _Request, replies: dict[Row, _Reply]) -> None:
        far, view = request.link.far, self.queue.view
        images, source = self.queue.images(far), view.by_name[far].source

        def version(term: Term) -> int:
            before = view.order[far] < view.order[term.origin]
            return (term.high if before else term.low)[source]

        # In the order of versions, the images move over every change once.
        for term, wanted in sorted(request.terms, key=lambda item: version(item[0])):
            if self.end is not None and term.step >= self.end:
                term.rows[far] = ()
                continue
            images.move(version(term))
            term.rows[far] = [row for values in wanted for row in replies[values].rows(values)]
            self._count(wanted, replies, version(term))
            self._gather(term.step, len(term.rows[far]))
            if self._cuts and self.full:
                self._cut()
                if self.end is not None and term.step >= self.end:
                    term.rows[far] = ()

    def _gather(self, step: int, rows: int) -> None:
        self._gathered[step] = self._gathered.get(step, 0) + rows
        self._total += rows

    def _cut(self) -> None:
        """Gives up the last steps, but not the first one."""
        while self.full and (last := max(self._gathered)) > 0:
            self.counts.forced += self.end is None
            self.end = last
            self._total -= self._gathered.pop(last)

    def _count(self, wanted: dict[Row, None], replies: dict[Row, _Reply], version: int) -> None:
        answers = set()
        for values in wanted:
            keys = replies[values].compensated(values, version)
            if keys:
                answers.add(id(replies[values]))
                self.counts.rows_compensated += len(keys)
        self.counts.compensations += len(answers)

    def _answers(self, asks: Sequence[Ask]) -> list[tuple[Answer, int]]:
        found: dict[int, tuple[Answer, int]] = {}
        for attempt in range(self.bounds.tries):
            todo = [place for place in range(len(asks)) if place not in found]
            if not todo:
                break
            self.counts.messages += len(todo)
            self.counts.asked_again += len(todo) if attempt else 0
            self.counts.keys_sent += sum(len(asks[place].keys) for place in todo)
            started = time.perf_counter()
            answers = self.channels.ask([asks[place] for place in todo])
            self.counts.seconds_asking += time.perf_counter() - started
            for place, answer in zip(todo, answers):
                self.counts.rows_received += len(answer.rows)
                seen = self.queue.reach(self.channels, self._source(asks[place]), answer.seen, self.counts)
                if seen is not None:
                    found[place] = (answer, seen)
        for place, ask in enumerate(asks):
            if place not in found:
                raise TooStaleError(self._source(ask))
        return [found[place] for place in range(len(asks))]

    def _source(self, ask: Ask) -> str:
        return self.queue.view.by_name[ask.relation].source
