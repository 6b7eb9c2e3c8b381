"""What a budget is divided into."""

from __future__ import annotations

import pytest

from cq_engine.mesh.cost import Factors, Model
from cq_engine.mesh.hashed_keys import BYTES_PER_KEY
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
    """The pages of a read, the keys of the window, and an eighth for rows that match."""
    tuner, model = tuned(memory, pages, page_rows, row_bytes)
    tuning = tuner.tune(model)
    read = min(tuner.part(page_rows, row_bytes), tuning.chunk * page_rows) * row_bytes
    assert read + tuning.window * BYTES_PER_KEY + memory / 8 <= memory + row_bytes
    assert tuning.window >= 1


def test_pages_in_parts_leave_room_for_keys() -> None:
    """Where a page takes more than a quarter, its parts take an eighth, and keys three quarters."""
    memory = 4_200_000
    tuner, model = tuned(memory, 350, 10_000, 120)
    assert tuner.tune(model).window == pytest.approx(memory * 11 / 16 / BYTES_PER_KEY)
    assert tuner.part(10_000, 120) == memory // 8 // 120
    assert tuner.part(5_000, 120) == memory // 4 // 120
