"""Arrays that are made without `pa.array` are what it makes."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cq_engine.core.arrays import (
    distinct,
    distinct_values,
    empty_table,
    few,
    first_places,
    is_in,
    number_values,
    sort_places,
)

CHANCE = random.Random(7)
UTC = timezone.utc


def moment(zone: Any) -> datetime:
    return datetime(1700, 1, 1, tzinfo=zone) + timedelta(microseconds=CHANCE.randrange(10**16))


KINDS: dict[pa.DataType, Callable[[], object]] = {
    pa.int8(): lambda: CHANCE.randrange(-128, 128),
    pa.int16(): lambda: CHANCE.randrange(-(2**15), 2**15),
    pa.int32(): lambda: CHANCE.randrange(-(2**31), 2**31),
    pa.int64(): lambda: CHANCE.randrange(-(2**63), 2**63),
    pa.float64(): lambda: CHANCE.choice([0.0, -0.0, float("nan"), float("inf"), CHANCE.uniform(-1e9, 1e9)]),
    pa.string(): lambda: "".join(CHANCE.choices("aß漢𝒳'\0 ", k=CHANCE.randrange(5))),
    pa.date32(): lambda: date.fromordinal(CHANCE.randrange(1, 3_000_000)),
    pa.timestamp("us"): lambda: moment(None),
    pa.timestamp("us", tz="UTC"): lambda: moment(CHANCE.choice([UTC, ZoneInfo("Europe/Zurich")])),
    pa.decimal128(10, 2): lambda: Decimal(CHANCE.randrange(-(10**10) + 1, 10**10)).scaleb(-2),
    pa.decimal128(38, 0): lambda: Decimal(CHANCE.randrange(-(10**38) + 1, 10**38)),
    pa.decimal128(5, 3): lambda: Decimal(CHANCE.choice(["1", "-0.5", "12.345", "0", "1e1"])),
}


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_they_are_what_arrow_makes(kind: pa.DataType) -> None:
    for count in (0, 1, 2, 7, 8, 9, 100):
        for nulls in (0.0, 0.3, 1.0):
            values = [None if CHANCE.random() < nulls else KINDS[kind]() for _ in range(count)]
            found = few(values, kind)
            assert found is not None
            found.validate(full=True)
            wanted = pa.array(values, kind)
            assert found.null_count == wanted.null_count
            assert str(found.to_pylist()) == str(wanted.to_pylist())
            assert pa.table({"c": found}).take(pa.array(range(count), pa.int64())).num_rows == count


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (True, pa.int32()),
        (2**31, pa.int32()),
        (1, pa.float64()),
        ("\ud800", pa.string()),
        (datetime(2020, 1, 1, tzinfo=UTC), pa.date32()),
        (datetime(2020, 1, 1, tzinfo=UTC), pa.timestamp("us")),
        (datetime(2020, 1, 1, tzinfo=UTC).replace(tzinfo=None), pa.timestamp("us", tz="UTC")),
        (datetime(2020, 1, 1, tzinfo=UTC).replace(tzinfo=None), pa.timestamp("s")),
        (Decimal("0.001"), pa.decimal128(10, 2)),
        (Decimal("100"), pa.decimal128(4, 2)),
        (Decimal("NaN"), pa.decimal128(4, 2)),
        ([1], pa.list_(pa.int32())),
        (True, pa.bool_()),
    ],
)
def test_arrow_says_what_becomes_of_other_values(value: object, kind: pa.DataType) -> None:
    assert few([None, value], kind) is None


def test_a_table_without_rows() -> None:
    schema = pa.schema(
        [pa.field("a", pa.list_(pa.struct([pa.field("b", pa.int32())]))), pa.field("c", pa.string())]
    )
    assert empty_table(schema).equals(schema.empty_table())
    assert empty_table(schema).column(0).num_chunks == schema.empty_table().column(0).num_chunks


def test_pandas_is_left_alone() -> None:
    program = (
        "import sys\nimport pyarrow as pa\nfrom cq_engine.core.arrays import array, empty_table\n"
        "assert array([1, None], pa.int32()).to_pylist() == [1, None]\n"
        "empty_table(pa.schema([pa.field('a', pa.int32())]))\n"
        "assert 'pandas' not in sys.modules\n"
        "assert array([[1]], pa.list_(pa.int32())).to_pylist() == [[1]]\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@given(numbers=st.lists(st.integers(-5, 5) | st.integers(-(2**63), 2**63 - 1)))
def test_distinct_numbers_are_those_of_numpy(numbers: list[int]) -> None:
    given_numbers = np.array(numbers, np.int64)
    found = distinct(given_numbers)
    assert found.tolist() == sorted(set(numbers))
    assert distinct(found) is found


@pytest.mark.parametrize("kind", [pa.int8(), pa.int32(), pa.int64(), pa.date32(), pa.string()], ids=str)
@pytest.mark.parametrize("nulls", [False, True])
def test_distinct_values_are_those_of_arrow(kind: pa.DataType, nulls: bool) -> None:
    values = [CHANCE.randrange(-9, 9) for _ in range(40)] + [None] * nulls
    array = pa.array(values).cast(pa.int32()).cast(kind)
    for part in (array, array.slice(3, 20), array.slice(0, 0), array.slice(0, 1)):
        found = distinct_values(part)
        assert found.type == kind
        assert sorted(map(str, found.to_pylist())) == sorted(set(map(str, part.to_pylist())))
        assert distinct_values(found).equals(found)


@given(st.lists(st.one_of(st.integers(-3, 40), st.sampled_from([-(2**63), 2**63 - 1, 2**40])), max_size=60))
def test_numbers_are_given_in_the_order_of_first_appearance(values: list[int]) -> None:
    known: dict[int, int] = {}
    wanted = [known.setdefault(value, len(known)) for value in values]
    found = number_values(np.array(values, np.int64))
    assert found.tolist() == wanted
    assert first_places(found).tolist() == [values.index(value) for value in known]


WHOLE = st.one_of(st.integers(-3, 40), st.sampled_from([-(2**63), 2**63 - 1, 2**40]))


@given(st.lists(st.tuples(WHOLE, st.integers(-2, 2), st.booleans()), max_size=40))
def test_places_are_sorted_as_python_sorts_rows(rows: list[tuple[int, int, bool]]) -> None:
    """Where the numbers fit into one, and where they do not; equal rows stay in their order."""
    columns = [
        np.array([row[n] for row in rows], kind) for n, kind in enumerate((np.int64, np.int32, np.bool_))
    ]
    for count in (1, 2, 3):
        wanted = sorted(range(len(rows)), key=lambda place: rows[place][:count])
        assert sort_places(*columns[:count]).tolist() == wanted


@given(st.lists(WHOLE, max_size=40), st.lists(WHOLE, max_size=40))
def test_numbers_that_stand_among_others(numbers: list[int], among: list[int]) -> None:
    found = is_in(np.array(numbers, np.int64), np.array(among, np.int64))
    assert found.tolist() == [number in among for number in numbers]
