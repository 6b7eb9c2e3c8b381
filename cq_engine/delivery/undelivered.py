"""What destinations have not received, and the error that says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cq_engine.core.errors import DestinationError
from cq_engine.grammar import DestinationRef

__all__ = ["NAMED", "Undelivered", "refusal"]

NAMED = 4
"""How many further destinations an error names."""


@dataclass(frozen=True)
class Undelivered:
    """A destination that has received a query's deltas up to `version` only, and the error of the last try, if any."""

    query: str
    destination: DestinationRef
    version: int
    wanted: int
    error: str

    @property
    def name(self) -> str:
        return f"destination {self.destination.name} of {self.query}"


def refusal(failing: Sequence[Undelivered]) -> DestinationError:
    """The error that names these destinations and what they say."""
    first, more = failing[0], failing[1:]
    said = [first.error, *(f"{each.name}: {each.error}" for each in more[:NAMED])]
    if len(more) > NAMED:
        said.append(f"and {len(more) - NAMED} more")
    return DestinationError(
        f"{first.name} could not be served",
        detail="; ".join(said),
        hint="register the callback, or correct what its error names; nothing is lost",
    )
