"""Nested SWEEP: updates that a sweep meets on its way join it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field

from cq_engine.sources.sweep.asking import Asker, Term
from cq_engine.sources.sweep.model import Link, Update
from cq_engine.sources.sweep.queue import Version
from cq_engine.sources.sweep.sweeping import alive, terms_of

__all__ = ["Nested", "nested_sweep"]


@dataclass
class Nested:
    """The state of a nested sweep: what it has absorbed, and terms of relations that it has not come to yet."""

    asker: Asker
    version: Version
    """The state of the sources that the view will have."""
    updates: list[Update] = field(default_factory=list)
    """In the order in which they were absorbed, which is that of each source."""
    later: dict[str, list[Term]] = field(default_factory=dict)
    ended: bool = False
    """Whether a bound was reached. From then on updates are compensated, and wait for the next run: SWEEP."""

    def absorb(self, source: str) -> None:
        """Takes all updates of a source out of the queue, as one change of each relation that they touch.

        Each group is joined with what was absorbed before it, and what was absorbed before is joined with the state before the
        group. So the changes of all groups add up to that of the view, in this order.
        """
        queue, number = self.asker.queue, self.version[source]
        room = 0 if self.asker.full else self.asker.bounds.absorbed - len(self.updates)
        high = min(queue.end(source), number + room)
        if high < queue.end(source) and not self.ended:
            self.ended = True
            self.asker.counts.forced += 1
        if high <= number:
            return
        low, self.version = self.version, {**self.version, source: high}
        self.updates += [queue.update(source, each) for each in range(number + 1, high + 1)]
        for term in terms_of(queue, 0, low, self.version):
            self.later.setdefault(term.origin, []).append(term)


def nested_sweep(asker: Asker) -> tuple[Nested, list[Term]]:
    """Maintains the first update in the queue, and all that the sweep meets: at every relation that answers, the updates of its
    source that are in the queue by then.

    The bounds (`Bounds.absorbed`, `Bounds.rows`) end the recursion under updates that never cease, which then oscillates between two sources.
    """
    queue = asker.queue
    state = Nested(asker, queue.done)
    source, _ = next(queue.waiting())
    state.absorb(source)
    first = next((r.name for r in queue.view.relations if r.name in state.later), None)
    if first is None:
        return state, []
    names = frozenset(queue.view.by_name)
    terms = _extend(state, state.later.pop(first), first, names)
    asker.counts.absorbed += len(state.updates) - 1
    return state, terms + _catch_up(state, names)


def _extend(state: Nested, terms: Sequence[Term], start: str, over: Set[str]) -> list[Term]:
    """The paper's ViewChange: extends the changes of one relation over a connected set of relations, by a left and a right
    sweep. What is absorbed on the way is extended over what the sweep has covered, and then goes along with it."""
    covered = {start}
    for link in _links(state, start, over):
        terms = alive(terms)
        if terms:
            state.asker.extend([(link, terms)])
            state.absorb(state.asker.queue.view.by_name[link.far].source)
        covered.add(link.far)
        if covered != over:
            terms = [*terms, *_catch_up(state, covered)]
    return alive(terms)


def _catch_up(state: Nested, covered: Set[str]) -> list[Term]:
    """Extends what was absorbed over all that is covered. An update that comes on the way is absorbed, too; where the sweep
    ends, that is a loop here rather than one more recursion, whose depth is so at most the number of relations."""
    found: list[Term] = []
    while (name := next((name for name in sorted(covered) if name in state.later), None)) is not None:
        found += _extend(state, state.later.pop(name), name, frozenset(covered))
    return found


def _links(state: Nested, start: str, over: Set[str]) -> Iterator[Link]:
    """One branch after the other: on a chain, the left sweep and then the right."""
    reached, todo = {start}, list(reversed(state.asker.queue.view.links[start]))
    while todo:
        link = todo.pop()
        if link.far in over and link.far not in reached:
            reached.add(link.far)
            yield link
            todo.extend(reversed(state.asker.queue.view.links[link.far]))
