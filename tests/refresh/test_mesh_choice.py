"""Look-ups or a scan: the choice is that of the costs, and pages are counted only where it hangs on their number."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from cq_engine.mesh.cost import Tuning
from cq_engine.refresh.look_up_costs import Asking, LookUpCosts
from cq_engine.refresh.mesh_choice import Choice


def choice(chance: random.Random, copied: float) -> Choice:
    costs = LookUpCosts(
        chance.uniform(1e-3, 0.1),
        10 ** chance.uniform(-7, -4),
        chance.choice([None, chance.uniform(1e-3, 0.1)]),
    )
    pages = chance.randint(1, 400)
    tuning = Tuning(
        1.0, 1, 1.0, 1.0, 1.0, 1.0, 1.0, cycle=chance.uniform(0.01, 20), window=chance.uniform(1, 10_000)
    )
    return Choice("r", "auto", costs, copied, 256, tuning, pages, chance.randint(0, 3), True)


@pytest.mark.parametrize("copied", [0.0, 0.4, 1.0])
def test_pages_that_are_not_counted_would_not_change_the_choice(copied: float) -> None:
    chance, told = random.Random(int(copied * 10)), {True: 0, False: 0}
    for _ in range(2_000):
        each = choice(chance, copied)
        asking = Asking(chance.randint(1, 50_000), each.pages, chance.randint(1, min(each.pages, 20)))
        by_count = {each.plan(asking._replace(pages=n)).mesh for n in range(asking.files, each.pages + 1)}
        told[each.may_mesh(asking)] += 1
        assert each.may_mesh(asking) == (True in by_count)
    assert min(told.values()) > 100


@pytest.mark.parametrize(
    ("join", "asking", "mesh", "why"),
    [
        ("mesh", Asking(5, 5, 1), True, "WITH (join = 'mesh') asks for it"),
        ("auto", None, True, "the condition is no equality, and Spark would scan the table, too"),
        ("auto", Asking(5, 5, 300), True, "300 files are too many for look-ups"),
        ("auto", Asking(5, 40, 4), False, "5 keys in 40 pages, 0.400 s by a scan, 0.101 s by look-ups"),
        (
            "auto",
            Asking(90_000, 40, 4),
            True,
            "90000 keys in 40 pages, 3.600 s by a scan, 9.100 s by look-ups",
        ),
    ],
)
def test_it_says_which_and_why(join: str, asking: Asking | None, mesh: bool, why: str) -> None:
    tuning = Tuning(1.0, 1, 1.0, 1.0, 1.0, 1.0, 1.0, cycle=1.0, window=10_000)
    plan = Choice("r", join, LookUpCosts(0.1, 1e-4), 1.0, 256, tuning, 100, 0, False).plan(asking)
    assert (plan.mesh, plan.why) == (mesh, why)
    assert str(plan).startswith(f"r: {'mesh' if mesh else 'look-ups'}, {why}; mesh of 100 pages, 1 at a time")


def test_a_look_up_that_finds_too_many_rows_says_nothing_of_its_cost() -> None:
    each = choice(random.Random(1), 1.0)
    call, key = each.costs.call, each.costs.key
    assert each.learn(lambda: None, Asking(10, 5, 1)) is None
    assert (each.costs.call, each.costs.key) == (call, key)
    assert each.learn(lambda: pa.table({"k": [1]}), Asking(10, 5, 1)).num_rows == 1
    assert (each.costs.call, each.costs.key) != (call, key)
