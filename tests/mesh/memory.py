"""Pages in memory for tests of the mesh, their rows, and which of them are wanted."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cq_engine.core.columns import Column
from cq_engine.mesh.window import Page

COLUMNS = (Column("k", "bigint"), Column("g", "int"), Column("note", "string"))
DOMAIN = (*range(15), *range(-(2**63), -(2**63) + 90, 30), 2**40, 2**50, *range(20, 25))
"""Keys that are dense, far apart, and few of those that are."""
SCHEMA = pa.schema([("k", pa.int64()), ("g", pa.int32()), ("note", pa.string())])


def make(chance: random.Random, rows: int) -> pa.Table:
    return pa.table(
        {
            "k": pa.array([chance.choice([None, *DOMAIN[:20]]) for _ in range(rows)], pa.int64()),
            "g": pa.array([chance.randint(0, 4) for _ in range(rows)], pa.int32()),
            "note": pa.array([chance.choice([None, "a", "b" * 9]) for _ in range(rows)]),
        },
        SCHEMA,
    )


class Memory:
    """Pages in memory, and which of them were read."""

    def __init__(self, pages: dict[Page, pa.Table]) -> None:
        self.pages = pages
        self.log: list[Page] = []
        self.parts: list[tuple[tuple[str, ...], int]] = []
        """Of which columns what was decoded, and its bytes."""
        self.closed = 0

    def rows(self, page: Page, columns: Sequence[Column]) -> int:
        return int(self.pages[page].num_rows)

    def row_bytes(self, page: Page, columns: Sequence[Column]) -> float:
        return 20.0

    def read(self, pages: Sequence[Page], columns: Sequence[Column], rows: int) -> Iterator[pa.Table]:
        self.log += pages
        whole = pa.concat_tables([self.pages[page] for page in pages]).select([c.name for c in columns])
        for start in range(0, whole.num_rows, rows):  # across the pages, as Parquet's reader does
            part = whole.slice(start, rows)
            self.parts.append((tuple(c.name for c in columns), part.nbytes))
            yield part

    def close(self) -> None:
        self.closed += 1


def bag(rows: pa.Table) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row.values()) for row in rows.to_pylist())


def chosen(rows: Sequence[pa.Table], restrict: dict[str, pa.Array]) -> Counter[tuple[Any, ...]]:
    whole = pa.concat_tables([*rows, SCHEMA.empty_table()])
    for name, values in restrict.items():
        whole = whole.filter(pc.is_in(whole.column(name), value_set=values))
    return bag(whole)


def restriction(chance: random.Random) -> dict[str, pa.Array]:
    found = {"k": pa.array(chance.sample([None, *DOMAIN], chance.randint(1, 12)), pa.int64())}
    if chance.random() < 0.3:
        found["g"] = pa.array(chance.sample(range(5), 2), pa.int32())
    if chance.random() < 0.2:
        found = {"note": pa.array(["a", None])}
    return found
