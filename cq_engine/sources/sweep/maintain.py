"""One run over what the channels have brought: the delta of the view, at the level of consistency that was asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

from cq_engine.sources.sweep.asking import Asker, Term
from cq_engine.sources.sweep.model import (
    Bounds,
    Channels,
    Consistency,
    Counts,
    Delta,
    Piece,
    Position,
    Step,
    Update,
    View,
)
from cq_engine.sources.sweep.nested import nested_sweep
from cq_engine.sources.sweep.queue import Queue, Version
from cq_engine.sources.sweep.sweeping import sweep, terms_of

__all__ = ["Maintainer"]


class Maintainer:
    """Maintains one view, run by run. `positions` is, by source, where the channels were read to when the view was committed.

    Each run starts from the last step that was committed (`committed`). Where something fails in between, a new Maintainer
    from the durable positions takes up the work: the channels are the log from which the queue is rebuilt.
    """

    def __init__(
        self,
        view: View,
        positions: Mapping[str, Position],
        channels: Channels,
        consistency: Consistency,
        bounds: Bounds | None = None,
    ) -> None:
        self.view = view
        self.consistency = consistency
        self.bounds = bounds or Bounds()
        self.queue = Queue(view, positions)
        self._channels = channels
        self._versions: list[Version] = []

    def run(self) -> Delta | None:
        """The delta of updates that are there, or come on the way; None where there are none.

        Raises TooStaleError where a source goes on answering from before all that is known of it, ValueError where a channel
        brings positions out of order, two rows with one key, or changes that contradict each other (something between them is
        missing), and whatever the channels raise.
        """
        self.queue.forget(self.bounds.history)
        self.queue.pull(self._channels)
        if next(self.queue.waiting(), None) is None:
            return None
        asker = Asker(
            self.queue,
            self._channels,
            self.bounds,
            Counts(),
            cuts=self.consistency is Consistency.COMPLETE,
        )
        if self.consistency is Consistency.STRONG:
            nested, terms = nested_sweep(asker)
            return self._delta(asker, [nested.updates], [nested.version], terms)
        taken = list(islice(self.queue.waiting(), self.bounds.together))
        updates = [self.queue.update(source, number) for source, number in taken]
        versions = [self.queue.done]
        for source, number in taken:
            versions.append({**versions[-1], source: number})
        if self.consistency is Consistency.CONVERGENT:
            asker.counts.absorbed = len(taken) - 1
            terms = sweep(asker, terms_of(self.queue, 0, versions[0], versions[-1]))
            return self._delta(asker, [updates], [versions[-1]], terms)
        terms = [
            term
            for step in range(len(taken))
            for term in terms_of(self.queue, step, versions[step], versions[step + 1])
        ]
        terms = sweep(asker, terms)
        done = len(taken) if asker.end is None else asker.end
        asker.counts.absorbed = done - 1
        return self._delta(asker, [[update] for update in updates[:done]], versions[1 : done + 1], terms)

    def committed(self, step: Step) -> None:
        """Says that the view has, durably, all steps of the last delta up to this one."""
        self.queue.commit(self._versions[step.number])

    def _delta(
        self,
        asker: Asker,
        updates: Sequence[Sequence[Update]],
        versions: Sequence[Version],
        terms: Sequence[Term],
    ) -> Delta:
        self._versions = list(versions)
        steps = tuple(
            Step(
                number, tuple(of), {source: self.queue.position(source, at) for source, at in version.items()}
            )
            for number, (of, version) in enumerate(zip(updates, versions))
        )
        pieces = tuple(
            Piece(number, name, rows, term.signs if name == term.origin else None)
            for number, term in enumerate(terms)
            for name, rows in term.rows.items()
        )
        more = next(self.queue.waiting(versions[-1]), None) is not None
        return Delta(steps, tuple(term.step for term in terms), pieces, asker.counts, more)
