"""The makers of `tests.oracle`, drawing from a seeded generator instead of hypothesis."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from tests.oracle.expressions import Maker, T

__all__ = ["Seeded"]


class Seeded(Maker):
    """Before a maker in a class's bases: the same choices, made by `self.random`."""

    random: random.Random

    def draw(self, _: Any) -> Any:  # type: ignore[override]
        raise AssertionError("a seeded maker draws with one, number and some")

    def one(self, values: Sequence[T]) -> T:
        return self.random.choice(list(values))

    def number(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    def likely(self, values: Sequence[T]) -> T:
        """One of the values, an early one most likely."""
        return values[min(int(self.random.expovariate(0.5)), len(values) - 1)]

    def some(self, values: Sequence[T], least: int, most: int) -> list[T]:
        if not values:
            return []
        count = self.random.randint(min(least, len(values)), min(most, len(values)))
        return [values[i] for i in sorted(self.random.sample(range(len(values)), count))]
