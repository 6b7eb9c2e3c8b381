"""The adversary finds what is wrong with an engine, and nothing where nothing is."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from tests.adversary.episode import Episode
from tests.adversary.stand_in import StandIn
from tests.adversary.twists import TWISTS
from tests.adversary.watched import Tally
from tests.adversary.world import make_world


def _played(directory: Path, number: int, twists: Collection[str] = (), **wrong: Any) -> Tally:
    tally = Tally()
    world = make_world(f"stand_in/{number}", 3, 12, twists=twists)
    Episode(world, None, directory / "warehouse", tally, stand_in=StandIn(world, **wrong)).run()  # type: ignore[arg-type]
    return tally


@pytest.mark.parametrize(("number", "twists"), [(0, ()), (1, ("queries",)), (2, TWISTS)])
def test_nothing_is_wrong(tmp_path: Path, number: int, twists: Collection[str]) -> None:
    tally = _played(tmp_path, number, twists)
    assert not tally.faults
    assert not tally.differences
    assert tally.checks > 12


@pytest.mark.parametrize("twists", [(), TWISTS])
def test_a_lost_delta(tmp_path: Path, twists: Collection[str]) -> None:
    assert "law" in _played(tmp_path, 0, twists, loses=3).faults[0]


def test_a_constraint_that_nobody_checks(tmp_path: Path) -> None:
    faults = [fault for number in range(3) for fault in _played(tmp_path, number, allows=True).faults]
    assert any("breaks a constraint" in fault for fault in faults)
