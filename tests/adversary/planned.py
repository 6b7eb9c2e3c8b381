"""Worlds for the delta rules alone: their plans run in DuckDB, without Spark. A hundred times as many in the same time.

python tests/adversary/planned.py --seed 1 --worlds 200
"""

from __future__ import annotations

import random
import sys
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Collection
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import duckdb

from tests.adversary.kinds import KINDS, canonical
from tests.adversary.options import worlds_to_play
from tests.adversary.oracles import translated
from tests.adversary.tables import Row, Table
from tests.adversary.twists import SOURCE, expanded, needed
from tests.adversary.world import World, make_world
from tests.oracle.generate import History
from tests.oracle.law import row_of, unique_columns
from tests.oracle.plans import Plans, spark_type
from tests.oracle.recorded import Image, Recorded
from tests.oracle.test_delta_rules import check_query

__all__ = ["check_world", "recorded"]

WITHOUT = frozenset(("TIMESTAMP", "TIMESTAMP_NTZ", "BINARY"))
"""Types whose literals DuckDB writes otherwise than the plans do."""


class Result(Table):
    """What a query gives, for those that read it."""

    kind = "result"


def recorded(world: World) -> Recorded:
    """The world as a history that has been replayed; the first image is version 1. Queries read others as tables."""
    texts = tuple(
        expanded(text, world.stages[needed(text)]) for text, *_ in world.queries if _readable(world, text)
    )
    read = sorted({int(found[1]) for text in texts for found in SOURCE.finditer(text)})
    results = {result.name: (result, rows) for result, rows in (_result(world, number) for number in read)}
    tables = (*world.tables, *(result for result, _ in results.values()))
    history = History(
        tables, (), ((),) * (len(world.images) - 1), texts, random.Random(world.seed).getrandbits(30)
    )
    made = Recorded(
        history,
        [()] * len(world.images),
        [{t.name: Image() for t in tables}],
        [[]],
        defaultdict(list),
        [],
    )
    for number, model in enumerate(world.images):
        rows = model.rows | {name: by_image[number] for name, (_, by_image) in results.items()}
        made.images.append({t.name: Image(_identified(made, t, rows[t.name], number + 1)) for t in tables})
        made.results.append([world.copies.result(world.whole(text), number) or [] for text in texts])
    base = world.copies.base
    base.execute("USE v0")
    for text in texts:
        described = base.execute(f"DESCRIBE {translated(world.whole(text))}").fetchall()
        made.columns.append([(d[0], str(d[1])) for d in described])
    return made


def _readable(world: World, text: str) -> bool:
    """Whether DuckDB can tell what the query and those that it reads give."""
    below = [world.queries[int(found[1])][0] for found in SOURCE.finditer(text)]
    results = (world.copies.result(world.whole(text), image) for image in range(len(world.images)))
    return all(_readable(world, each) for each in below) and all(rows is not None for rows in results)


def _result(world: World, number: int) -> tuple[Result, list[list[Row]]]:
    """A query's result as a table with its rows at every image. What is always unique is its key."""
    base, text = world.copies.base, translated(world.whole(world.queries[number][0]))
    by_image = []
    for image in range(len(world.images)):
        base.execute(f"USE v{image}")
        by_image.append(base.execute(text).fetchall())
    columns = tuple((d[0], spark_type(str(d[1]))) for d in base.execute(f"DESCRIBE {text}").fetchall())
    plain = [[_plain(row) for row in rows] for rows in by_image]
    keys = unique_columns([[row_of(row) for row in rows] for rows in plain], len(columns))
    key = tuple(columns[place][0] for place in keys[0]) if keys else ()
    return Result(f"b{number}", columns, key), by_image


def _identified(made: Recorded, table: Table, rows: list[Row], version: int) -> dict[Any, Row]:
    """The rows by identity; the difference to the image before goes to the change log."""
    before = made.images[-1][table.name].rows
    after: dict[Any, Row] = {}
    if table.key:
        after = {table.values(row, table.key): row for row in rows}
    else:
        left = [(identity, _plain(row)) for identity, row in before.items()]
        fresh = 1000 * version
        for row in rows:
            same = next((pair for pair in left if pair[1] == _plain(row)), None)
            if same is not None:
                left.remove(same)
            fresh += 1
            after[fresh if same is None else same[0]] = row
    log = made.changes[table.name]
    for identity in sorted(before.keys() | after.keys(), key=repr):
        old, new = before.get(identity), after.get(identity)
        if old is not None and new is not None and _plain(old) == _plain(new):
            after[identity] = old
            continue
        kinds = (
            ("delete", "insert") if old is None or new is None else ("update_preimage", "update_postimage")
        )
        log += [(row, identity, kind, version) for row, kind in zip((old, new), kinds) if row is not None]
    return after


def _plain(row: Row) -> Row:
    return tuple(map(canonical, row))


def check_world(
    seed: str,
    counts: Counter[str],
    queries: int = 8,
    versions: int = 12,
    twists: Collection[str] | None = None,
) -> list[str]:
    """What is wrong with the plans of the world's queries."""
    world = make_world(seed, queries, versions, frozenset(KINDS) - WITHOUT, twists)
    found = recorded(world)
    plans = Plans(found)
    faults = []
    for number, text in enumerate(found.history.queries):
        try:
            counts[check_query(plans, number).split(" (")[0]] += 1
            counts["checks"] += _checks(found)
        except (
            duckdb.ConversionException,
            duckdb.OutOfRangeException,
            duckdb.NotImplementedException,
        ) as error:
            counts[f"not in DuckDB: {str(error)[:80]}"] += 1
        except Exception as problem:  # noqa: BLE001 - a fault to be shown
            trace = "" if isinstance(problem, AssertionError) else traceback.format_exc()
            faults.append(
                f"seed {seed}, query {number}: {type(problem).__name__}: {problem}\n{text}\n{trace}"
            )
    plans.base.close()
    world.copies.close()
    return faults


def _checks(found: Recorded) -> int:
    """Comparisons of an accumulated result: refreshed at each commit, in one batch, and compressed at some commits."""
    points = sum((found.history.seed >> version) & 1 for version in range(2, found.newest)) + 1
    return 2 * (found.newest - 1) + points


def main() -> int:
    counts: Counter[str] = Counter()
    number, begun = 0, time.monotonic()
    for world, seed, twists in worlds_to_play(__doc__):
        for fault in check_world(seed, counts, twists=twists):
            number += 1
            print(f"FAULT {fault}", flush=True)
        print(f"world {world}: {counts['checks']} checks, {number} faults", flush=True)
    print(f"{number} faults in {time.monotonic() - begun:.0f} s; {dict(counts)}")
    return 1 if number else 0


if __name__ == "__main__":
    sys.exit(main())
