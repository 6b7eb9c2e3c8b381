"""What look-ups are taken to cost: near what they do, whatever number of keys was measured."""

from __future__ import annotations

import random

import pytest

from cq_engine.refresh.look_up_costs import Asking, LookUpCosts


@pytest.mark.parametrize("usual", [20, 2_000, 200_000])
@pytest.mark.parametrize(("call", "key"), [(0.002, 1e-7), (0.02, 3e-6), (0.1, 1e-4)])
def test_few_keys_do_not_make_many_dear(usual: int, call: float, key: float) -> None:
    """A scan would be chosen then, and the guess never corrected."""
    chance, costs = random.Random(usual), LookUpCosts()
    for _ in range(40):
        keys = int(usual * chance.uniform(0.5, 2))
        costs.learn(keys, 350, 1.0, (call + keys * key) * chance.uniform(0.8, 1.3))
    for keys in (20, 2_000, 200_000):
        asking, right = Asking(keys, 350, 7), call + keys * key
        predicted, guessed = costs.seconds(asking, 1.0, 1.0), LookUpCosts().seconds(asking, 1.0, 1.0)
        assert predicted < 2 * right + guessed or usual > keys, "never taken to be much dearer than it is"
        assert keys != usual or predicted > right / 2


def test_a_table_whose_columns_have_no_copies_costs_by_the_page() -> None:
    costs = LookUpCosts()
    assert costs.seconds(Asking(10, 100, 7), 0.0, 0.25) == 25.0
    for _ in range(20):
        costs.learn(10, 50, 0.0, 5.0)
    assert costs.seconds(Asking(10, 100, 7), 0.0, 0.25) == pytest.approx(10.0)
