"""A warehouse that keeps one view by the sweeps, commits step by step, and may end at any moment."""

from __future__ import annotations

from collections import Counter
from random import Random

from cq_engine.sources.sweep.maintain import Maintainer
from cq_engine.sources.sweep.model import Bounds, Consistency, Counts, Delta
from tests.sources.sweep.checkers import History, State, complete, convergent, strong
from tests.sources.sweep.evaluated import Bag, step_deltas
from tests.sources.sweep.network import Habits, Lost, Network
from tests.sources.sweep.worlds import world

__all__ = ["CHECKERS", "Warehouse", "random_run"]

CHECKERS = {
    Consistency.COMPLETE: complete,
    Consistency.STRONG: strong,
    Consistency.CONVERGENT: convergent,
}


class Warehouse:
    """Everything but the view and its positions is lost when its process ends."""

    def __init__(
        self,
        network: Network,
        consistency: Consistency,
        bounds: Bounds | None = None,
        rng: Random | None = None,
    ) -> None:
        self.network = network
        self.consistency = consistency
        self.bounds = bounds or Bounds()
        self.counts = Counts()
        self.deltas: list[Delta] = []
        self.states: list[State] = [
            (dict.fromkeys(network.view.sources, 0), History(network).at((0,) * len(network.view.sources)))
        ]
        self._rng = rng
        self.start()

    @property
    def view(self) -> Bag:
        return self.states[-1][1]

    def start(self) -> None:
        """A new process, from what is durable."""
        self.maintainer = Maintainer(
            self.network.view, self.states[-1][0], self.network, self.consistency, self.bounds
        )

    def run(self) -> bool:
        """Maintains what there is; whether that was anything. The process may end before any commit."""
        delta = self.maintainer.run()
        if delta is None:
            return False
        self.deltas.append(delta)
        self.counts.add(delta.counts)
        for step, change in zip(delta.steps, step_deltas(self.network.view, delta)):
            if self._rng is not None and self._rng.random() < self.network.habits.lost:
                raise Lost
            view = Counter(self.view)
            view.update(change)
            self.states.append(
                (dict(step.positions), Counter({rows: count for rows, count in view.items() if count}))
            )
            self.maintainer.committed(step)
        return True

    def settle(self) -> None:
        """Runs until every channel is empty and nobody writes any more."""
        for _ in range(10_000):
            try:
                if not self.run() and self.network.budget <= 0 and self._all_there():
                    return
                self.network._meanwhile()
            except Lost:
                # Half of the time, the connection was lost but the process lives on.
                if self._rng is None or self._rng.random() < 0.5:
                    self.start()
        raise AssertionError("it does not end")

    def _all_there(self) -> bool:
        history = History(self.network)
        return history.vector(self.states[-1][0]) == history.end


def random_run(seed: int, consistency: Consistency) -> Warehouse:
    """One run that the seed tells: world, habits, bounds, interleaving. It is checked."""
    rng = Random(f"{seed} {consistency.value}")
    habits = Habits(
        writes=rng.choice((0.2, 0.5, 0.7)),
        stale=rng.choice((0, 0, 0.3)),
        late=rng.choice((0, 0.5, 0.9)),
        early=rng.choice((0, 0.5)),
        more=rng.choice((0, 0.3)),
        lost=rng.choice((0, 0, 0.03)),
    )
    network = world(rng, habits, budget=rng.randint(1, 14))
    bounds = Bounds(
        together=rng.choice((1, 2, 1_000)),
        absorbed=rng.choice((1, 3, 1_000)),
        rows=rng.choice((0, 10, 1_000)),
        keys=rng.choice((1, 2, 1_000)),
        history=rng.choice((0, 6, 1_000)),
        tries=100,
    )
    warehouse = Warehouse(network, consistency, bounds, rng)
    warehouse.settle()
    CHECKERS[consistency](History(network), warehouse.states)
    return warehouse
