"""Change rows in runs: what a search finds in sorted copies is what looking at each row finds."""

from __future__ import annotations

import random
from datetime import date, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cq_engine.catalog.change_rows import COMMIT_VERSION
from cq_engine.storage.change_runs import ChangeRuns, Run
from cq_engine.storage.file_look_ups import filter_rows

SCHEMA = pa.schema(
    {
        "n": pa.int64(),
        "i": pa.int32(),
        "d": pa.date32(),
        "s": pa.string(),
        "x": pa.int64(),
        COMMIT_VERSION: pa.int64(),
    }
)
VALUES: dict[str, list[Any]] = {
    "n": [-(2**63), -1, 0, 5, 2**62],
    "i": [-3, 0, 7, 2**31 - 1],
    "d": [date(1, 1, 1), date(1970, 1, 1), date(2026, 11, 27) + timedelta(days=1)],
    "s": ["", "a", "é", None],
    "x": [1, 2, None],
}


def made(chance: random.Random, count: int, begin: int, in_order: bool) -> pa.Table:
    versions = [chance.randint(begin, begin + 3) for _ in range(count)]
    rows = {name: [chance.choice(values) for _ in range(count)] for name, values in VALUES.items()}
    return pa.table({**rows, COMMIT_VERSION: sorted(versions) if in_order else versions}, SCHEMA)


def runs_of(chance: random.Random, in_order: bool) -> ChangeRuns:
    """Some of them searched, some looked through; the last one cut."""
    sizes = [chance.choice([0, 1, 3, 40]) for _ in range(chance.randint(1, 4))]
    tables = [made(chance, size, 10 * n, in_order) for n, size in enumerate(sizes)]
    runs = ChangeRuns.joined([Run(rows, chance.random() < 0.6) for rows in tables], SCHEMA)
    return runs.first(chance.randint(0, runs.num_rows))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32), in_order=st.booleans())
def test_what_is_found_is_what_a_filter_finds(seed: int, in_order: bool) -> None:
    chance = random.Random(seed)
    runs = runs_of(chance, in_order)
    assert runs.num_rows == runs.table.num_rows
    for _ in range(4):
        names = chance.sample(sorted(VALUES), chance.randint(0, 3))
        restrict = {
            name: pa.array(
                chance.sample(VALUES[name], chance.randint(0, len(VALUES[name]))), SCHEMA.field(name).type
            )
            for name in names
        }
        assert runs.having(restrict).equals(filter_rows(runs.table, restrict))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32), in_order=st.booleans())
def test_a_split_parts_the_versions(seed: int, in_order: bool) -> None:
    chance = random.Random(seed)
    runs = runs_of(chance, in_order)
    version = chance.randint(-1, 40)
    for half, kept in zip(runs.split(version), (lambda v: v <= version, lambda v: v > version)):
        rows = [row for row in runs.table.to_pylist() if kept(row[COMMIT_VERSION])]
        assert half.table.to_pylist() == rows
        restrict = {"n": pa.array(chance.sample(VALUES["n"], 2), pa.int64())}
        assert half.having(restrict).equals(filter_rows(half.table, restrict))


@pytest.mark.parametrize("wanted", [1, 2, 5_000, 100_000])
def test_few_wanted_values_are_searched(wanted: int) -> None:
    """Only columns that are asked for are sorted, once, and not for more values than there are rows."""
    numbers = pa.array(random.Random(1).sample(range(10**6), 20_000), pa.int64())
    rows = pa.table({"n": numbers, COMMIT_VERSION: pa.array([1] * len(numbers), pa.int64())})
    run = Run(rows, is_searched=True)
    runs = ChangeRuns.joined([run], rows.schema)
    values = pa.array(range(wanted), pa.int64())
    for _ in range(2):
        assert runs.having({"n": values}).equals(filter_rows(rows, {"n": values}))
    assert set(run._columns) == ({"n"} if wanted <= 20_000 else set())
