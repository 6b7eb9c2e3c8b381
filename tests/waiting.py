"""Waiting for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["until"]


def until(holds: Callable[[], object], seconds: float = 120.0) -> float:
    """Waits until it holds; for how many seconds."""
    started = time.monotonic()
    while not holds():
        assert time.monotonic() - started < seconds, "it does not come about"
        time.sleep(0.005)
    return time.monotonic() - started
