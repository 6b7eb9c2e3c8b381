"""A world: tables, a history of them that is made in advance, and queries that it has something to say to."""

from __future__ import annotations

import random
import re
from collections.abc import Collection
from dataclasses import dataclass, field

from tests.adversary.grammar import Grammar, other_constants
from tests.adversary.history import Addition, Batch, HistoryMaker, Transaction
from tests.adversary.kinds import KINDS
from tests.adversary.oracles import Copies
from tests.adversary.tables import Model, Table, random_tables
from tests.adversary.twists import (
    SOURCE,
    expanded,
    named,
    needed,
    referring_to_themselves,
    some_additions,
    some_twists,
)
from tests.oracle.expressions import Ref

__all__ = ["World", "make_world"]

TRIES = 16
LONGEST = 2_500
"""Characters of a query: longer ones take Spark many seconds, and give more of the same."""
_STARRED = re.compile(r"SELECT (s\d+)\.\* FROM (t\d) \1( WHERE (.*))?")


@dataclass
class World:
    """`steps` lead from image to image; each query may have others that differ from it, most often in constants only.

    `stages` are the tables after so many additions of columns. The images and copies have all columns from the
    beginning. A query may read others, by their numbers (`twists.SOURCE`), and may need additions (`twists.needed`).
    """

    seed: str
    stages: list[tuple[Table, ...]]
    steps: list[Transaction | Batch | Addition] = field(default_factory=list)
    images: list[Model] = field(default_factory=list)
    copies: Copies = field(default_factory=Copies)
    queries: list[tuple[str, ...]] = field(default_factory=list)
    columns: list[tuple[Ref, ...]] = field(default_factory=list)
    """Of the queries."""

    @property
    def tables(self) -> tuple[Table, ...]:
        return self.stages[-1]

    def whole(self, text: str) -> str:
        """The query over tables alone, where those that it reads are as they are first."""
        text = expanded(text, self.stages[needed(text)])
        return named(text, lambda number: f"({self.whole(self.queries[number][0])})")


def make_world(
    seed: str,
    queries: int,
    versions: int,
    kinds: Collection[str] = KINDS,
    twists: Collection[str] | None = None,
) -> World:
    """The same world for the same seed: `images[0]` is the first load, and at least `versions` more follow.

    `twists` are what makes it special, if the seed is not to say that.
    """
    twists = some_twists(seed) if twists is None else twists
    chosen, apart = random.Random(seed), random.Random(f"{seed}/apart")
    tables = random_tables(chosen, kinds)
    if "itself" in twists:
        tables = referring_to_themselves(apart, tables)
    additions = some_additions(apart, tables, kinds, "itself" in twists) if "columns" in twists else []
    at = sorted(apart.randint(1, max(1, versions // 2)) for _ in additions)
    world = World(seed, [tables])
    history = HistoryMaker(f"{seed}/history", tables)
    world.steps.append(history.first())
    world.images.append(history.model.copy())
    batches = chosen.choice((0.1, 0.4))
    while len(world.images) <= versions:
        if len(world.stages) <= len(additions) and len(world.images) >= at[len(world.stages) - 1]:
            _widen(world, history, additions[len(world.stages) - 1])
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
        text = _query(world, number, apart, twists)
        others = {other_constants(text, chosen) for _ in range(2)} - {text}
        world.queries.append((text, *sorted(others), *_with_what_came(world, text)))
    return world


def _widen(world: World, history: HistoryMaker, addition: Addition) -> None:
    """The table has a column more; what was there before has NULL in it."""
    history.add(addition)
    world.steps.append(addition)
    world.stages.append(history.tables)
    models = [*world.images, *(step.after for step in world.steps if isinstance(step, Transaction))]
    for model in {id(model): model for model in models}.values():
        model.widen(addition.table)


def _query(world: World, number: int, apart: random.Random, twists: Collection[str]) -> str:
    """The first of a few whose result changes in this history."""
    tables = apart.choice(world.stages) if "columns" in twists else world.tables
    star = "columns" in twists and apart.random() < 0.3
    below: list[int] = []
    if "queries" in twists and number and not star and apart.random() < 0.6:
        below = apart.sample(range(number), min(number, apart.choice((1, 1, 2))))
    results = [(f"b{each}", world.columns[each]) for each in below]
    text, columns = "", tuple[Ref, ...]()
    for attempt in range(TRIES):
        grammar = Grammar(f"{world.seed}/{number}/{attempt}", tables, results)
        made = grammar.star(tables) if star else grammar.query()
        if below and not SOURCE.search(made) and attempt < TRIES - 1:
            continue
        text, columns = made, grammar.columns
        whole = world.whole(text)
        if len(whole) > LONGEST * (1 + bool(below)):
            continue
        last = len(world.images) - 1
        found = [world.copies.result(whole, at) for at in (0, last // 3, 2 * last // 3, last)]
        wanted = 3 if attempt < TRIES // 2 else 2
        if any(rows is None for rows in found) or len({repr(rows) for rows in found}) >= wanted:
            break
    world.columns.append(tuple(c for c in columns if not (star and needed(f"s0.{c.sql}"))))
    return text


def _with_what_came(world: World, text: str) -> list[str]:
    """The query as it can be redefined when its table has got a column."""
    found = _STARRED.fullmatch(text)
    table = next((t for t in world.tables if found and t.name == found[2]), None)
    if found is None or table is None or not table.added:
        return []
    before = f"({found[4]}) AND " if found[4] else ""
    return [
        f"SELECT {found[1]}.* FROM {found[2]} {found[1]} WHERE {before}{found[1]}.{table.added[0]} IS NULL"
    ]
