"""How many examples the oracle tests try.

By default a few, the same in every run. A large run is one command:

    CQ_ORACLE_SEED=1 CQ_ORACLE_EXAMPLES=200 CQ_ORACLE_PLAN_EXAMPLES=5000 pytest tests/oracle -s

Another seed gives other histories. CQ_ORACLE_SHRINK=1 lets hypothesis look for a smaller example after a failure,
which takes long with Spark; without it the failure prints the script of the first one found.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, seed, settings

__all__ = ["LARGE_RUN", "budget"]

_SEED = os.environ.get("CQ_ORACLE_SEED")
LARGE_RUN = "CQ_ORACLE_EXAMPLES" in os.environ
"""Tests cross all modes with all subjects then; by default each subject and each mode is there, in fewer pairs."""
_SHRINK = os.environ.get("CQ_ORACLE_SHRINK") == "1"


def budget(variable: str, default: int) -> Callable[[Any], Any]:
    """A decorator above `given`: as many examples as the environment's `variable` says."""
    chosen = settings(
        max_examples=int(os.environ.get(variable, str(default))),
        deadline=None,
        derandomize=_SEED is None,
        database=None,
        phases=[Phase.generate, Phase.shrink] if _SHRINK else [Phase.generate],
        suppress_health_check=list(HealthCheck),
    )

    def decorate(test: Any) -> Any:
        return seed(int(_SEED))(chosen(test)) if _SEED is not None else chosen(test)

    return decorate
