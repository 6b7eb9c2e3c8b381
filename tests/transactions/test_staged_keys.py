"""Keys that staged files have several times, against counting them one by one."""

from __future__ import annotations

import random
from collections import Counter
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


def _found(rows: pa.Table, identity: tuple[str, ...], most: int = 1000, shown: int = 3) -> Any:
    table = VersionedTable(1, "base", "t", COLUMNS, identity)

    def read_files(_: VersionedTable, files: list[Any], columns: tuple[Column, ...]) -> pa.Table:
        assert files
        return rows.select([c.name for c in columns])

    reader: Any = SimpleNamespace(limits=Limits(staged_keys=most), read_files=read_files)
    files: Any = [SimpleNamespace(rows=rows.num_rows)]
    found = repeated_keys(reader, table, files, shown)
    return None if found is None else [tuple(row.values()) for row in found.to_pylist()]


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
    found = _found(rows, identity)
    assert set(found) <= several
    assert len(found) == min(3, len(several))


def test_what_only_spark_can_say() -> None:
    day = pa.array([0, 1], pa.int32()).cast(pa.date32())
    rows = pa.table([pa.array([-(2**62), 2**62]), day, pa.array(["x", "x"])], schema=arrow_schema(COLUMNS))
    assert _found(rows, ("a",)) is None
    assert _found(rows, ("s",)) is None
    assert _found(rows, ("d",)) == []
    assert _found(rows, ("d",), most=1) is None


def test_nulls() -> None:
    nothing = (pa.nulls(2, pa.date32()), pa.nulls(2, pa.string()))
    rows = pa.table([pa.array([1, 1]), *nothing], schema=arrow_schema(COLUMNS))
    assert _found(rows, ("a",)) == [(1,)]
    assert _found(rows, ("d",)) is None
