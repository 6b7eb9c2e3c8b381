"""The delta rules and the stored tables against the adversary: a few worlds, the same in every run.

CQ_ADVERSARY_SEED=7 gives other worlds, CQ_ADVERSARY_WORLDS=50 more of them; `planned.py` and `stored.py` are the long runs.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path

import pytest

from tests.adversary.history import HistoryMaker, Transaction
from tests.adversary.planned import check_world
from tests.adversary.stored import check_tables
from tests.adversary.tables import Model, Reference, Table
from tests.oracle import plans

SEED = os.environ.get("CQ_ADVERSARY_SEED", "ci")
WORLDS = int(os.environ.get("CQ_ADVERSARY_WORLDS", "1"))
SPECIAL = (("itself", "queries"), (), ("itself", "columns"))
"""What the first worlds have, whatever their seeds say."""


def twists(world: int) -> tuple[str, ...] | None:
    return SPECIAL[world] if world < len(SPECIAL) else None


@pytest.mark.parametrize("world", range(2 * WORLDS))
def test_delta_rules(world: int) -> None:
    """The same kind of worlds, for the delta rules alone."""
    counts: Counter[str] = Counter()
    faults = check_world(f"{SEED}/{world}", counts, queries=3, versions=5, twists=twists(world))
    assert not faults, "\n\n".join(faults)
    assert counts["checks"]


@pytest.mark.parametrize("world", range(3 * WORLDS))
def test_tables(world: int, tmp_path: Path) -> None:
    """What `apply_changes` and merging leave, at every version, without Spark."""
    assert check_tables(f"{SEED}/{world}", tmp_path / "warehouse", twists=twists(world))


def test_wrong_deltas_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where every refresh loses the last of its deltas, a world shows it."""
    whole = plans.PlannedQuery._changes
    monkeypatch.setattr(plans.PlannedQuery, "_changes", lambda self, log: whole(self, log)[:-1])
    assert check_world("ci/0", Counter(), queries=2, versions=4, twists=())


def test_the_model_knows_what_a_commit_breaks() -> None:
    parent = Table("t1", (("k1", "DOUBLE"),), ("k1",))
    child = Table("t2", (("k1", "DOUBLE"), ("a", "INT")), (), (Reference(("k1",), "t1", "ENFORCED"),))
    model = Model(
        (parent, child), {"t1": [(0.0,), (float("nan"),)], "t2": [(-0.0, 1), (None, 2), (float("nan"), 3)]}
    )
    assert not set(model.violations())
    model.rows["t1"].append((-0.0,))
    assert set(model.violations()) == {"ENFORCED"}
    model.rows["t1"] = [(0.0,)]
    assert set(model.violations()) == {"ENFORCED"}


def test_the_model_knows_a_table_that_refers_to_itself() -> None:
    to_itself = Reference(("k1", "q1"), "t1", "ENFORCED", ("k1", "m1"))
    table = Table("t1", (("k1", "INT"), ("m1", "INT"), ("q1", "INT")), ("k1", "m1"), (to_itself,))
    model = Model((table,), {"t1": [(1, 1, 1), (1, 2, 1), (2, 1, None)]})
    assert not set(model.violations())
    model.rows["t1"].append((2, 3, 2))
    assert set(model.violations()) == {"ENFORCED"}
    model.widen(Table("t1", (*table.columns, ("n1", "DATE")), table.key, added=("n1",)))
    assert model.rows["t1"][-1] == (2, 3, 2, None)


def test_histories_are_those_of_their_seed() -> None:
    def made() -> list[Transaction]:
        table = Table("t1", (("k1", "INT"), ("a", "STRING")), ("k1",))
        history = HistoryMaker("seed", (table,))
        history.random = random.Random(1)
        return [history.first(), *(history.transaction() for _ in range(20))]

    assert repr(made()) == repr(made())
    assert {step.outcome for step in made()} >= {"commit"}
