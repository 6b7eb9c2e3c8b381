"""What a budget is divided into."""

from __future__ import annotations

import pytest

from cq_engine.mesh.cost import Factors, Model
from cq_engine.mesh.packed_keys import BYTES_PER_KEY
from cq_engine.mesh.tuner import Tuner


def tuned(memory: int, pages: int, page_rows: float, row_bytes: float) -> tuple[Tuner, Model]:
    tuner = Tuner(memory, Factors())
    return tuner, tuner.model(pages, page_rows, row_bytes)


@pytest.mark.parametrize("memory", [64 * 2**10, 420_000, 4_200_000, 64 * 2**20, 2**30])
@pytest.mark.parametrize(
    ("pages", "page_rows", "row_bytes"), [(350, 10_000, 120), (1, 20, 17), (35_000, 10_000, 900)]
)
def test_all_parts_together_are_within_the_budget(
    memory: int, pages: int, page_rows: float, row_bytes: float
) -> None:
    """The pages of a read, the keys of the window, and an eighth for rows that match; whatever room keys take."""
    tuner, model = tuned(memory, pages, page_rows, row_bytes)
    tuning = tuner.tune(model)
    for room in (14_000, 5_000, 200):
        before = tuning
        tuner.note_keys(1_000, room)
        tuning = tuner.tune(tuner.model(pages, page_rows, row_bytes))
        read = min(tuner.part(page_rows * row_bytes), tuning.chunk * page_rows * row_bytes)
        assert read + tuning.window * tuner.key_bytes + memory / 8 <= memory + row_bytes
        inside = tuner.room(tuner.model(pages, page_rows, row_bytes))
        assert inside == pytest.approx(tuning.window * tuner.key_bytes)
        assert tuning.window >= before.window >= 1
    assert tuner.key_bytes == BYTES_PER_KEY / 4, "what a refresh gets in the end is not in the budget"
    tuner.note_keys(0, 0)
    assert tuner.key_bytes == BYTES_PER_KEY / 4


def test_pages_in_parts_leave_room_for_keys() -> None:
    """Where a page takes more than a quarter, its parts take an eighth, and keys three quarters."""
    memory = 4_200_000
    tuner, model = tuned(memory, 350, 10_000, 120)
    assert tuner.tune(model).window == pytest.approx(memory * 11 / 16 / BYTES_PER_KEY)
    assert not tuner.fits(10_000 * 120)
    assert tuner.part(10_000 * 120) == memory / 8
    assert tuner.part(5_000 * 120) == memory / 4


def test_pages_have_what_the_window_leaves() -> None:
    """While few keys wait, a page is decoded at once that takes more than a quarter."""
    tuner, _ = tuned(4_200_000, 350, 10_000, 120)
    assert tuner.fits(10_000 * 120, 3_000_000)
    assert tuner.part(10_000 * 120, 3_000_000) == 3_000_000
    assert not tuner.fits(10_000 * 120, 1_100_000)
    assert tuner.part(10_000 * 120, 1_100_000) == 1_100_000
    assert tuner.part(10_000 * 120, -5.0) == 4_200_000 / 8


def test_the_window_s_room_is_of_one_model() -> None:
    """Whatever other calls note meanwhile, and within a tenth of what was measured, for which nothing is found anew."""
    memory = 4_200_000
    for page_rows in (10_000.0, 500.0):
        tuner, sparse = tuned(memory, 350, page_rows, 120)
        most = memory * (11 / 16 if page_rows > 9_000 else 5 / 8)
        tuner.note_keys(1_000, 3_500)
        dense = tuner.model(350, page_rows, 120)
        for model in (sparse, dense, sparse):
            assert tuner.room(model) <= most * 1.000_001
            assert tuner.room(model) > most / 2
        for room in range(14_000, 3_000, -37):
            tuner.note_keys(1_000, room)
            assert tuner.room(tuner.model(350, page_rows, 120)) <= most * 1.000_001
