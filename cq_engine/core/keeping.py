"""What a process remembers of things that may go: it is forgotten when they are gone."""

from __future__ import annotations

from collections.abc import Container, MutableMapping
from typing import TypeVar

__all__ = ["keep"]

K = TypeVar("K")
V = TypeVar("V")


def keep(remembered: MutableMapping[K, V], there: Container[K]) -> list[V]:
    """Takes what is remembered under keys that are not `there` out, and gives it. Other threads may add keys meanwhile.

    >>> known = {"a": 1, "b": 2}
    >>> keep(known, {"b"}), known
    ([1], {'b': 2})
    """
    gone = [key for key in list(remembered) if key not in there]
    return [remembered.pop(key) for key in gone if key in remembered]
