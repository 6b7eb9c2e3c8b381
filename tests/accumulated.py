"""What a query gives, and what its deltas add up to."""

from __future__ import annotations

from typing import Any

from cq_engine.api.engine import Engine


def rows(engine: Engine, text: str) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, engine.execute(text).fetchall()), key=repr)


def accumulated(engine: Engine, name: str) -> list[tuple[Any, ...]]:
    """The result, of the deltas alone; ValueError for an old row that is not there."""
    found: list[tuple[Any, ...]] = []
    for delta in engine.deltas(name):
        if delta.old is not None:
            found.remove(tuple(delta.old))
        if delta.new is not None:
            found.append(tuple(delta.new))
    return sorted(found, key=repr)
