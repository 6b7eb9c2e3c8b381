"""Random faults at every durable step (tests/faults/trials.py): about 70 here, 5 000 with `python -m tests.faults.run`."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cq_engine.core import faults
from cq_engine.destinations.callback import CallbackDestination
from tests.faults import run, trials
from tests.faults.campaign import CELLS, campaign, quick_place
from tests.faults.kinds import KINDS, why_not
from tests.faults.trials import World

PIECES = 3
HERE = [cell for cell in CELLS if cell[1] != "lost"]
THIRDS = [HERE[::3], *(pytest.param(HERE[n::3], marks=pytest.mark.long) for n in (1, 2))]


@pytest.fixture
def place() -> Iterator[Path]:
    with quick_place() as made:
        yield made


@pytest.mark.parametrize("piece", range(PIECES))
@pytest.mark.parametrize("third", THIRDS, ids=["first", "second", "last"])
def test_every_kind_at_every_point(third: list[tuple[str, str]], piece: int, place: Path) -> None:
    """Every third cell of the table is tried once in all pieces together, and in the long run the others."""
    cells = third[piece::PIECES]
    met = campaign(place, piece, len(cells), cells=cells)
    assert sum(met.values()) >= len(cells)


@pytest.mark.postgres
def test_every_point_without_postgresql(place: Path, fresh_postgres: Callable[[], str]) -> None:
    cells = [cell for cell in CELLS if cell[1] == "lost"][::3]
    made = campaign(place, 0, len(cells), cells=cells, postgres=lambda: run.with_cut(fresh_postgres()))
    assert sum(made.values()) >= len(cells)


def test_every_point_is_aimed_at() -> None:
    assert {point for point, _ in HERE[::3]} == {point for point, _ in HERE}
    assert {kind for _, kind in HERE[::3]} == {kind for _, kind in HERE}
    missing = [
        p for p in faults.POINTS if p.partition(".")[0] not in trials._AIMS and not why_not(p, "SIGKILL")
    ]
    assert missing == []
    assert {kind for _, kind in CELLS} == set(KINDS)


# ---------------------------------------------------------------- the trials can fail


def some(world: World, point: str, kind: str) -> None:
    for _ in range(6):
        world.trial(point, kind)


def test_files_that_are_not_flushed_are_missed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cut = trials.power_cut
    monkeypatch.setattr(trials, "power_cut", lambda *told: cut(*told[:2], place / "nothing", told[3]))
    world = World(place, random.Random(1))
    with pytest.raises(Exception, match=r"Parquet|cannot|damaged|is not there"):
        some(world, "commit.after_catalog", "torn")


def test_a_batch_that_is_lost_is_noticed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call, numbers = CallbackDestination._call, itertools.count(1)

    def lose(self: CallbackDestination, batch: Any) -> None:
        if next(numbers) % 3:
            call(self, batch)

    world = World(place, random.Random(1))
    monkeypatch.setattr(CallbackDestination, "_call", lose)
    with pytest.raises(AssertionError, match=r"callback|cursor"):
        some(world, "refresh.computed", "delay")


# ---------------------------------------------------------------- the page


def test_the_page_has_every_point_and_kind() -> None:
    """`python -m tests.faults.run --trials 0` writes it anew."""
    page = run.PAGE.read_text(encoding="utf-8")
    shown = page.partition(run.BEGIN)[2].partition(run.END)[0]
    for text in (run.points(), run.kinds()):
        assert text in shown, "python -m tests.faults.run --trials 0"
    rows = [line.strip("| ").split(" | ") for line in shown.splitlines() if line.startswith("| `")]
    cells = {
        (row[0].strip("`"), kind): cell.strip()
        for row in rows
        if len(row) > 2
        for kind, cell in zip(KINDS, row[1:])
    }
    assert set(cells) == {(p, k) for p in faults.POINTS for k in KINDS if not why_not(p, "SIGKILL")}
    for (point, kind), cell in cells.items():
        assert (cell == "—") == bool(why_not(point, kind)), (point, kind)
        assert cell != "0", f"{kind} at {point} was never met"
    assert Counter(cell for cell in cells.values())["—"] < 30
