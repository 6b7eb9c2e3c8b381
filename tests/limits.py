"""Other limits for an engine that is open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

from cq_engine.catalog.store import Catalog

__all__ = ["limit", "limited"]


class _Owner(Protocol):
    """An engine, or what stands for one in a test."""

    catalog: Catalog


def limit(engine: _Owner, **bounds: Any) -> None:
    """From now on the engine works within other bounds; those that its parts take when they are made stay."""
    engine.catalog.limits = replace(engine.catalog.limits, **bounds)


@contextmanager
def limited(engine: _Owner, **bounds: Any) -> Iterator[None]:
    """Likewise for a while."""
    before = engine.catalog.limits
    limit(engine, **bounds)
    try:
        yield
    finally:
        engine.catalog.limits = before
