"""Any interleaving that hypothesis can think of: commits, runs, ends of the process, and what happens while a run asks."""

from __future__ import annotations

from random import Random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cq_engine.sources.sweep.model import Bounds, Consistency
from tests.sources.sweep.checkers import History
from tests.sources.sweep.network import Habits, Lost
from tests.sources.sweep.warehouse import CHECKERS, Warehouse
from tests.sources.sweep.worlds import world

SMALL = st.sampled_from((1, 2, 1_000))


class Interleavings(RuleBasedStateMachine):
    """The world is of a seed, so that it does not shrink away; what happens in it is chosen by hypothesis."""

    @initialize(
        seed=st.integers(0, 10_000),
        rng=st.randoms(use_true_random=False),
        consistency=st.sampled_from(Consistency),
        bounds=st.builds(
            Bounds, together=SMALL, absorbed=SMALL, rows=SMALL, keys=SMALL, history=SMALL, tries=st.just(100)
        ),
        habits=st.builds(
            Habits, writes=st.sampled_from((0.2, 0.5)), stale=st.sampled_from((0, 0.3)), lost=st.just(0.01)
        ),
    )
    def begin(self, seed: int, rng: Random, consistency: Consistency, bounds: Bounds, habits: Habits) -> None:
        self.network = world(Random(seed), habits, budget=12)
        self.network._rng = rng
        self.warehouse = Warehouse(self.network, consistency, bounds, rng)

    @rule(place=st.integers(0, 4))
    def a_source_commits(self, place: int) -> None:
        self.network.commit(sorted(self.network.sources)[place % len(self.network.sources)])

    @rule()
    def the_warehouse_runs(self) -> None:
        try:
            self.warehouse.run()
        except Lost:
            self.warehouse.start()

    @rule()
    def the_process_ends(self) -> None:
        self.warehouse.start()

    @invariant()
    def the_view_is_one_of_its_states(self) -> None:
        if hasattr(self, "warehouse"):
            history = History(self.network)
            positions, view = self.warehouse.states[-1]
            assert view == history.at(history.vector(positions))

    def teardown(self) -> None:
        if hasattr(self, "warehouse"):
            self.network._rng = self.warehouse._rng = Random(0)
            self.warehouse.settle()
            CHECKERS[self.warehouse.consistency](History(self.network), self.warehouse.states)


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(
    max_examples=60,
    stateful_step_count=15,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
