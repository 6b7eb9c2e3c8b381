"""Many trials, at every fault point with every kind of fault."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from cq_engine.core import faults
from tests.faults.kinds import KINDS, why_not
from tests.faults.trials import SPAN, World


@contextmanager
def quick_place() -> Iterator[Path]:
    """A directory in memory, where the system has one: thousands of commits wait for the disk otherwise."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(
        prefix="cq-faults-", dir=memory if os.access(memory, os.W_OK) else None
    ) as made:
        yield Path(made)


CELLS = [(point, kind) for point in faults.POINTS for kind in KINDS if not why_not(point, kind)]


def campaign(
    place: Path,
    seed: int,
    most: int,
    *,
    seconds: float = float("inf"),
    cells: Sequence[tuple[str, str]] = CELLS,
    first: Sequence[tuple[str, str]] = (),
    postgres: Callable[[], tuple[str, Callable[[], None]]] | None = None,
) -> Counter[tuple[str, str]]:
    """How often each fault was met, in `most` trials or as many as fit into the time. The cells come in a random order,
    again and again, after those that are to be `first`; `lost` has warehouses over PostgreSQL of its own."""
    chance = random.Random(seed)
    met: Counter[tuple[str, str]] = Counter()
    wanted = [c for c in cells if postgres is not None or c[1] != "lost"]
    queue = [c for c in first if c in wanted]
    number, end = 0, time.monotonic() + seconds
    while sum(met.values()) < most and time.monotonic() < end:
        if not queue:
            queue += chance.sample(wanted, len(wanted))
        lost = queue[0][1] == "lost"
        span = [c for c in queue if (c[1] == "lost") == lost][:SPAN]
        for cell in span:
            queue.remove(cell)
        number += 1
        directory = place / f"{number}"
        directory.mkdir(parents=True)
        url, cut = postgres() if lost and postgres is not None else (None, None)
        inner = chance.randrange(1 << 30)
        world = World(directory, random.Random(inner), url, cut)
        try:
            for cell in span:
                met[cell] += any(world.trial(*cell, later=number == 0) for number in range(3))
            world.last = "the end"
            world.finish()
        except BaseException as error:
            if hasattr(error, "add_note"):  # from Python 3.11 on
                error.add_note(f"seed {seed}, warehouse {number}: {world.last}")
            raise
        shutil.rmtree(directory)
    return +met
