"""The keys of a batch: the same ones, whatever form they take, in parts that take what they may."""

from __future__ import annotations

import random
from datetime import date, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cq_engine.mesh.packed_keys import BYTES_PER_KEY, Keys, PackedNumbers, in_order, numbers_of, parts

LEAST, MOST = -(2**63), 2**63 - 1


def draw(chance: random.Random) -> list[int]:
    """Dense runs, and numbers anywhere: also where distances have more than 32 or 63 bits."""
    found: set[int] = set()
    for _ in range(chance.randint(0, 4)):
        begin = chance.choice([LEAST, -40, 0, 2**31, 2**32 - 3, MOST - 4_000, chance.randint(LEAST, MOST)])
        step = chance.choice([1, 1, 2, 30, 90, 10**4, 2**30])
        count = chance.choice([1, 2, 9, 300])
        found.update(n for n in range(begin, begin + step * count, step) if n <= MOST)
    return sorted(found)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32), null=st.booleans())
def test_the_same_keys_in_any_form(seed: int, null: bool) -> None:
    chance = random.Random(seed)
    numbers = draw(chance)
    keys = Keys.of(pa.array([*numbers, *[None] * null], pa.int64()))
    near = [n + d for n in chance.choices(numbers, k=20) for d in (-1, 0, 1)] if numbers else []
    column = [None, LEAST, MOST, 0, *(n for n in near if LEAST <= n <= MOST)]
    assert keys.has(pa.array(column, pa.int64())).tolist() == [
        (n is None and null) or n in set(numbers) for n in column
    ]
    assert keys.count == len(numbers) + null


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32), null=st.booleans(), room=st.sampled_from([0.5, 15, 64, 200.7, 3_000, 10**6])
)
def test_parts_are_all_keys_and_no_larger_than_they_may(seed: int, null: bool, room: float) -> None:
    whole = [*draw(random.Random(seed)), *[None] * null]
    found = list(parts(pa.array(whole, pa.int64()), room))
    assert [n for part in found for n in part.to_pylist()] == whole
    for part in found:
        assert len(part)
        assert len(part) - part.null_count <= 1 or Keys.of(part).room <= room
    plain = -(-len(whole) * (BYTES_PER_KEY + 1) // max(BYTES_PER_KEY + 1, int(room)))
    assert len(found) <= plain + 1, "never more parts than keys of full size had"


@pytest.mark.parametrize(
    ("numbers", "form"),
    [
        (range(0, 800, 2), "bits"),
        (range(LEAST, LEAST + 800), "bits"),
        (range(0, 2**31, 10**6), "uint32"),
        (range(LEAST, LEAST + 2**40, 2**32), "uint64"),
        ([LEAST, MOST], "uint64"),
        ([7], "bits"),
        ([], "uint32"),
    ],
)
def test_forms(numbers: Any, form: str) -> None:
    packed = PackedNumbers.of(np.array(list(numbers), np.int64))
    assert ("bits" if packed.distances is None else packed.distances.dtype.name) == form
    blocks = list(packed.blocks())
    if packed.distances is not None:
        assert np.concatenate([*blocks, np.zeros(0, np.int64)]).tolist() == list(numbers)


def test_dense_keys_take_a_bit_each() -> None:
    assert Keys.of(pa.array(range(10**6), pa.int64())).nbytes == 10**6 / 8
    days = pa.array([date(2024, 1, 1) + timedelta(days=n) for n in range(80)], pa.date32())
    assert Keys.of(days).nbytes == 10


def test_text_is_kept_as_it_is() -> None:
    keys = Keys.of(pa.array(["b", "a", None]))
    assert keys.has(pa.array(["a", None, "c", "b"])).tolist() == [True, True, False, True]
    assert Keys.of(pa.array(["b"])).has(pa.array(["a", None, "b"])).tolist() == [False, False, True]
    assert [part.to_pylist() for part in parts(pa.array(["b", "a", None]), 45)] == [
        ["b", "a"],
        [None],
    ]


def test_keys_in_order() -> None:
    assert in_order(pa.array([3, None, -1, 3, None, 2])).to_pylist() == [-1, 2, 3, None]
    assert in_order(pa.array(["b", None, "a", "b"])).to_pylist() == ["b", "a", None]
    assert in_order(pa.array([], pa.int64())).to_pylist() == []
    assert numbers_of(pa.array([date(1970, 1, 3)])).tolist() == [2]
