"""What the façade's methods have in common: each is one call, which Ctrl-C ends."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from cq_engine.core.calls import call

__all__ = ["entry"]

P = ParamSpec("P")
R = TypeVar("R")


class Interruptible(Protocol):
    def _catch_up(self) -> None:
        """Wakes whatever has not processed what is durable."""


Self = TypeVar("Self", bound=Interruptible)


def entry(method: Callable[Concatenate[Self, P], R]) -> Callable[Concatenate[Self, P], R]:
    """The method, of which every run is one call (`core.calls`). After an interrupt the engine catches up: a commit may
    have become durable just before, and nobody been told of it."""

    @functools.wraps(method)
    def run(self: Self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with call() as under_way:
            under_way.if_cancelled[id(self)] = self._catch_up
            return method(self, *args, **kwargs)

    return run
