"""Keys that staged files have several times, against counting them one by one."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from cq_engine.catalog.model import VersionedTable
from cq_engine.core.columns import Column
from cq_engine.core.limits import Limits
from cq_engine.core.types import arrow_schema
from cq_engine.transactions.staged_keys import repeated_keys

COLUMNS = (Column("a", "bigint"), Column("d", "date"), Column("s", "string"))


def _found(
    rows: pa.Table, identity: tuple[str, ...], most: int = 1000, shown: int = 3, parts: int = 1
) -> Any:
    """What is found in the rows, which are in so many files; and whether all of these were read at once."""
    table = VersionedTable(1, "base", "t", COLUMNS, identity)
    ends = [rows.num_rows * n // parts for n in range(parts + 1)]
    files: Any = [SimpleNamespace(start=a, rows=b - a) for a, b in pairwise(ends)]
    whole = []

    def read_in_parts(
        _: VersionedTable, files: list[Any], columns: tuple[Column, ...]
    ) -> Iterator[pa.RecordBatch]:
        for file in files:
            yield from rows.slice(file.start, file.rows).select([c.name for c in columns]).to_batches(7)

    def read_files(_: VersionedTable, files: list[Any], columns: tuple[Column, ...]) -> pa.Table:
        whole.append(files)
        return rows.select([c.name for c in columns])

    reader: Any = SimpleNamespace(
        limits=Limits(staged_keys=most), read_files=read_files, read_in_parts=read_in_parts
    )
    found = repeated_keys(reader, table, files, shown)
    keys = None if found is None else [tuple(row.values()) for row in found.to_pylist()]
    return keys, bool(whole)


@pytest.mark.parametrize("identity", [("a",), ("a", "d"), ("d", "a")])
@pytest.mark.parametrize("seed", range(20))
def test_random_keys(identity: tuple[str, ...], seed: int) -> None:
    rng = random.Random(seed)
    spread = rng.choice([20, 10_000])
    count = rng.randrange(60)
    numbers = [rng.randrange(-spread, spread) for _ in range(count)]
    days = [rng.randrange(-spread, spread) for _ in range(count)]
    columns = [pa.array(numbers, pa.int64()), pa.array(days, pa.int32()).cast(pa.date32()), pa.nulls(count)]
    rows = pa.table(columns, schema=arrow_schema(COLUMNS)).sort_by("a" if rng.random() < 0.5 else "d")
    keys = Counter(zip(*(rows.column(name).to_pylist() for name in identity)))
    several = {key for key, times in keys.items() if times > 1}
    if rng.random() < 0.5:
        rows = rows.sort_by([(name, "ascending") for name in identity])
    found, _ = _found(rows, identity, parts=rng.randrange(1, 5))
    assert set(found) <= several
    assert len(found) == min(3, len(several))


@pytest.mark.parametrize("seed", range(20))
def test_files_in_order_are_read_in_parts(seed: int) -> None:
    rng = random.Random(seed)
    keys = sorted(rng.sample([(a, d) for a in range(-6, 6) for d in range(-6, 6)], 40))
    if seed % 4 == 1:
        at = rng.randrange(39)
        keys[at] = keys[at + 1]
    elif seed % 4 == 2:
        rng.shuffle(keys)
    days = pa.array([d for _, d in keys], pa.int32()).cast(pa.date32())
    rows = pa.table([pa.array([a for a, _ in keys]), days, pa.nulls(40)], schema=arrow_schema(COLUMNS))
    found, whole = _found(rows, ("a", "d"), parts=rng.randrange(2, 6))
    assert whole == (seed % 4 in (1, 2))
    assert len(found) == (seed % 4 == 1)


def test_what_only_spark_can_say() -> None:
    day = pa.array([0, 1], pa.int32()).cast(pa.date32())
    rows = pa.table([pa.array([-(2**62), 2**62]), day, pa.array(["x", "x"])], schema=arrow_schema(COLUMNS))
    assert _found(rows, ("a",))[0] is None
    assert _found(rows, ("s",))[0] is None
    assert _found(rows, ("d",))[0] == []
    assert _found(rows, ("d",), most=1)[0] is None


def test_nulls() -> None:
    nothing = (pa.nulls(2, pa.date32()), pa.nulls(2, pa.string()))
    rows = pa.table([pa.array([1, 1]), *nothing], schema=arrow_schema(COLUMNS))
    assert _found(rows, ("a",))[0] == [(1,)]
    assert _found(rows, ("d",))[0] is None
