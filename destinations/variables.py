"""Variables in declarations of destinations: `${NAME}` and `${file:/path}`."""

from __future__ import annotations

from cq_engine.core import variables
from cq_engine.core.errors import DestinationError
from cq_engine.core.variables import VARIABLE

__all__ = ["VARIABLE", "expand"]


def expand(value: str) -> str:
    """`value` with what its variables stand for. Raises DestinationError for one that is not set, or cannot be read."""
    return variables.expand(
        value, DestinationError, "the process that refreshes and delivers, whenever it delivers"
    )
