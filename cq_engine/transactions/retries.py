"""Doing again what met the commits of others."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from cq_engine.core.errors import ConflictError

__all__ = ["retried"]

_Given = TypeVar("_Given")


def retried(do: Callable[[], _Given], tries: int) -> _Given:
    """What `do` gives; it is called again, after a short pause, where it raises ConflictError, `tries` times at most."""
    for number in range(1, tries):
        try:
            return do()
        except ConflictError:
            time.sleep(random.uniform(0, 0.002 * 2 ** min(number, 6)))  # noqa: S311 - so that others get on
    return do()
