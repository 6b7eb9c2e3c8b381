"""How often something is tried that may fail, and the pauses in between."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Retry"]


@dataclass(frozen=True)
class Retry:
    """How often a batch is tried within one delivery, and how long to wait in between, in seconds: `base`, then
    twice as long each time, up to `cap`."""

    attempts: int = 3
    base: float = 0.2
    cap: float = 30.0

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.base < 0 or self.cap < 0:
            raise ValueError("a batch is tried at least once, and no time to wait is negative")

    def pause(self, failures: int) -> float:
        """How long to wait after the `failures`-th failure in a row.

        >>> [Retry(base=1, cap=5).pause(n) for n in (1, 2, 3, 4)]
        [1.0, 2.0, 4.0, 5]
        """
        longest: float = self.base * 2.0 ** min(failures - 1, 60)
        return min(self.cap, longest)
