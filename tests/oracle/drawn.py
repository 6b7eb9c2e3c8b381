"""One generated history, for tests that take a server or a cluster for it."""

from __future__ import annotations

from hypothesis import given
from hypothesis.strategies import SearchStrategy

from tests.oracle.budget import budget
from tests.oracle.generate import History
from tests.oracle.recorded import Recorded, record

__all__ = ["longest"]


def longest(histories: SearchStrategy[History], variable: str, examples: int) -> Recorded:
    """The longest of so many random ones, or as many as the environment says by `variable`; by `CQ_ORACLE_SEED` another one."""
    found: list[Recorded] = []

    @budget(variable, examples)
    @given(history=histories)
    def draw(history: History) -> None:
        found.append(record(history))

    draw()
    return max(found, key=lambda each: (each.newest, sum(map(len, each.transactions))))
