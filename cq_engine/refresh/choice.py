"""How an interval is run: a plan, who runs it, and why."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from cq_engine.planner.forms import Decision
from cq_engine.planner.partial import PartialPlan
from cq_engine.refresh.plan_cache import CachedPlan
from cq_engine.refresh.recompute import Recomputation

__all__ = ["Choice", "NoChange", "Place"]


class Place(Enum):
    """Who runs a plan."""

    DRIVER = "driver"
    CLUSTER = "cluster"


@dataclass(frozen=True)
class Choice:
    """A plan, who runs it, and why."""

    plan: CachedPlan | Recomputation | PartialPlan
    place: Place
    why: str
    decision: Decision = field(default_factory=Decision)
    many: bool = False
    """Are statements prepared for many rows, however few there are?"""

    def __str__(self) -> str:
        return f"{self.place.value}: {self.why}"


class NoChange(Enum):
    """Why there is nothing to run: only the position moves."""

    NO_ROWS = "no table of the query changed"
    NO_EFFECT = "no change of these tables can change the result"
