"""A world: tables, a history of them that is made in advance, and queries that it has something to say to."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass, field

from tests.adversary.grammar import Grammar, other_constants
from tests.adversary.history import Batch, HistoryMaker, Transaction
from tests.adversary.kinds import KINDS
from tests.adversary.oracles import Copies
from tests.adversary.tables import Model, Table, random_tables

__all__ = ["World", "make_world"]

TRIES = 16
LONGEST = 2_500
"""Characters of a query: longer ones take Spark many seconds, and give more of the same."""


@dataclass
class World:
    """`steps` lead from image to image; each query may have others that differ from it in constants only."""

    seed: str
    tables: tuple[Table, ...]
    steps: list[Transaction | Batch] = field(default_factory=list)
    images: list[Model] = field(default_factory=list)
    copies: Copies = field(default_factory=Copies)
    queries: list[tuple[str, ...]] = field(default_factory=list)


def make_world(seed: str, queries: int, versions: int, kinds: Collection[str] = KINDS) -> World:
    """The same world for the same seed: `images[0]` is the first load, and at least `versions` more follow."""
    chosen = random.Random(seed)
    tables = random_tables(chosen, kinds)
    world = World(seed, tables)
    history = HistoryMaker(f"{seed}/history", tables)
    world.steps.append(history.first())
    world.images.append(history.model.copy())
    batches = chosen.choice((0.1, 0.4))
    while len(world.images) <= versions:
        if chosen.random() < batches:
            batch = history.batch(chosen.randint(2, 8))
            if batch.after:
                world.steps.append(batch)
                world.images += batch.after
            continue
        step = history.transaction()
        world.steps.append(step)
        if step.outcome == "commit" and not step.after.same_as(world.images[-1]):
            world.images.append(step.after)
    for number, image in enumerate(world.images):
        world.copies.add(number, image)
    for number in range(queries):
        text = _query(world, number)
        others = {other_constants(text, chosen) for _ in range(2)} - {text}
        world.queries.append((text, *sorted(others)))
    return world


def _query(world: World, number: int) -> str:
    """The first of a few whose result changes in this history."""
    text = ""
    for attempt in range(TRIES):
        text = Grammar(f"{world.seed}/{number}/{attempt}", world.tables).query()
        if len(text) > LONGEST:
            continue
        last = len(world.images) - 1
        found = [world.copies.result(text, at) for at in (0, last // 3, 2 * last // 3, last)]
        wanted = 3 if attempt < TRIES // 2 else 2
        if any(rows is None for rows in found) or len({repr(rows) for rows in found}) >= wanted:
            break
    return text
