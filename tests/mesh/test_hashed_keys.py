"""H: a row is wanted exactly where some batch in the window has its key."""

from __future__ import annotations

import random
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cq_engine.mesh.hashed_keys import HashedKeys
from cq_engine.mesh.packed_keys import BYTES_PER_KEY, Keys, in_order

NOON = datetime(2024, 2, 29, 12, tzinfo=timezone.utc)
DOMAINS: dict[pa.DataType, list[Any]] = {
    pa.int64(): [0, 1, -1, 2**63 - 1, -(2**63), 7, 2**40, 2**40 + 1, 12],
    pa.int32(): [0, 1, -1, 2**31 - 1, -(2**31), 5, 6],
    pa.int8(): list(range(-4, 5)),
    pa.date32(): [date(1970, 1, 1) + timedelta(days=n) for n in (-800_00, -1, 0, 1, 20_000)],
    pa.timestamp("us", tz="UTC"): [NOON + timedelta(microseconds=n) for n in (-1, 0, 1, 10**12)],
    pa.timestamp("us"): [NOON.replace(tzinfo=None) + timedelta(days=n) for n in (-1, 0, 1)],
    pa.time64("us"): [(NOON + timedelta(hours=n)).time() for n in (-1, 0, 1)],
    pa.duration("us"): [timedelta(seconds=n) for n in (-1, 0, 1)],
    pa.string(): ["", "a", "A", "aa", "ä", "\u0000", "long" * 50],
    pa.binary(): [b"", b"a", b"\x00"],
    pa.decimal128(9, 2): [Decimal("0.00"), Decimal("0.01"), Decimal("-1.50"), Decimal("9999999.99")],
    pa.decimal128(38, 0): [Decimal(0), Decimal(10**37), Decimal(1)],
    pa.bool_(): [True, False],
}


@pytest.mark.parametrize("kind", DOMAINS, ids=str)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32))
def test_wanted_are_the_keys_of_the_batches(kind: pa.DataType, seed: int) -> None:
    chance = random.Random(seed)
    domain = [*DOMAINS[kind], None]
    hashed = HashedKeys(kind)
    batches: list[tuple[pa.Array, Keys]] = []
    for _ in range(12):
        if batches and chance.random() < 0.4:
            gone = batches.pop(chance.randrange(len(batches)))
            hashed.remove(gone[1])
        else:
            came = in_order(pa.array(chance.choices(domain, k=chance.randint(0, len(domain))), kind))
            batches.append((came, Keys.of(came)))
            hashed.add(batches[-1][1])
        column = pa.array(chance.choices(domain, k=20), kind)
        wanted = {value for batch, _ in batches for value in batch.to_pylist()}
        assert hashed.probe(column).tolist() == [value in wanted for value in column.to_pylist()]


def test_a_slice_of_a_column_is_itself() -> None:
    hashed = HashedKeys(pa.int64())
    hashed.add(Keys.of(in_order(pa.array([6, 5, 4, 3]).slice(1, 2))))
    assert hashed.probe(pa.array([3, 4, 5, 6, None]).slice(1)).tolist() == [True, True, False, False]


@pytest.mark.parametrize("step", [1, 7, 10**6, 10**13])
@pytest.mark.parametrize("count", [1, 2, 1_000, 1_025, 100_000])
def test_a_key_takes_no_more_than_is_said(count: int, step: int) -> None:
    hashed = HashedKeys(pa.int64())
    batches = [
        Keys.of(pa.array(np.arange(start * count, (start + 1) * count) * step, pa.int64()))
        for start in range(4)
    ]
    for number, batch in enumerate(batches, 1):
        hashed.add(batch)
        there = batches[:number]
        taken = hashed.nbytes + sum(each.nbytes for each in there)
        assert taken <= sum(each.room for each in there) <= (BYTES_PER_KEY * count + 1) * number
    for batch in batches:
        hashed.remove(batch)
    assert hashed.nbytes == 0
