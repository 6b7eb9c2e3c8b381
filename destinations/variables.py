"""Variables of the environment in declarations, which are stored and shown: `${NAME}`."""

from __future__ import annotations

import os
import re

from cq_engine.core.errors import DestinationError

__all__ = ["VARIABLE", "expand"]

VARIABLE = re.compile(r"\$\{(\w+)\}")


def expand(value: str) -> str:
    """`value` with variables of the environment in the place of `${NAME}`. Raises DestinationError for one that is not set."""

    def found(match: re.Match[str]) -> str:
        if match[1] not in os.environ:
            raise DestinationError(
                f"the environment variable {match[1]} is not set",
                detail="it is read by the process that refreshes and delivers, whenever it delivers",
                hint=f"set {match[1]} where this process is started",
            )
        return os.environ[match[1]]

    return VARIABLE.sub(found, value)
