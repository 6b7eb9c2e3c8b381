"""SWEEP is complete, Nested SWEEP strong, a pass per batch convergent, whatever the order of events is.

By default a few hundred runs of each, the same ones every time. More of them, and others:

    CQ_SWEEP_RUNS=40000 CQ_SWEEP_SEED=2 pytest tests/sources/sweep/test_sweep_consistency.py
"""

from __future__ import annotations

import os

import pytest

from cq_engine.sources.sweep.model import Consistency
from tests.sources.sweep.checkers import History, ordered, strong
from tests.sources.sweep.warehouse import random_run

RUNS = int(os.environ.get("CQ_SWEEP_RUNS", "150"))
SEED = int(os.environ.get("CQ_SWEEP_SEED", "1"))


@pytest.mark.parametrize("consistency", Consistency)
def test_every_run_keeps_its_consistency(consistency: Consistency) -> None:
    total = {"messages": 0, "compensations": 0, "absorbed": 0, "waits": 0, "asked_again": 0, "forced": 0}
    for number in range(RUNS):
        counts = random_run(SEED * 1_000_000 + number, consistency).counts
        for name in total:
            total[name] += getattr(counts, name)
    print(consistency.value, RUNS, "runs", total)
    expected = set(total) - ({"forced"} if consistency is Consistency.CONVERGENT else set())
    assert all(total[name] for name in expected), "the runs do not try what they should"


@pytest.mark.parametrize("consistency", [Consistency.COMPLETE, Consistency.STRONG])
def test_some_order_of_the_updates_explains_the_states(consistency: Consistency) -> None:
    for number in range(RUNS // 5):
        run = random_run(SEED * 2_000_000 + number, consistency)
        states = [view for _, view in run.states]
        ordered(History(run.network), states, one_by_one=consistency is Consistency.COMPLETE)


def test_a_pass_per_batch_has_states_of_the_sources_too() -> None:
    for number in range(RUNS // 5):
        run = random_run(SEED * 3_000_000 + number, Consistency.CONVERGENT)
        strong(History(run.network), run.states)
