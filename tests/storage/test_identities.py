"""Numbers for identities are equal exactly where the identities are."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cq_engine.core.columns import Column
from cq_engine.core.types import arrow_schema
from cq_engine.storage import identities
from cq_engine.storage.identities import Identities, KeySet
from cq_engine.storage.rows import identity_keys

VALUES: dict[str, Sequence[Any]] = {
    "int": (None, -1, 0, 1, 2**31 - 1),
    "bigint": (None, -1, 0, 1, 2**62, -(2**63), 2**63 - 1, 2**63 - 2),
    "string": (None, "", "a", "A", "ä", "a "),
    "string collate UTF8_LCASE": (None, "", "a", "A", "b"),
    "boolean": (None, True, False),
    "date": (None, dt.date(1, 1, 1), dt.date(2024, 2, 29)),
    "timestamp": (
        None,
        dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc),
        dt.datetime.max.replace(tzinfo=dt.timezone.utc),
    ),
    "decimal(10,2)": (None, Decimal("0.00"), Decimal("1.10"), Decimal("-1.10")),
    "double": (None, 0.0, -0.0, 1.5, float("nan")),
    "binary": (None, b"", b"a"),
    "array<int>": (None, [], [1], [1, None]),
    "struct<f:double,s:string>": (None, {"f": -0.0, "s": None}, {"f": 0.0, "s": None}),
}


@st.composite
def tables(draw: st.DrawFn) -> tuple[tuple[Column, ...], pa.Table, pa.Table]:
    """Columns that identify rows, and two tables of them."""
    kinds = draw(st.lists(st.sampled_from(list(VALUES)), min_size=0, max_size=3))
    columns = tuple(Column(f"k{n}", kind) for n, kind in enumerate(kinds))
    schema = arrow_schema((*columns, Column("other", "int")))

    def rows() -> pa.Table:
        row = st.fixed_dictionaries({c.name: st.sampled_from(VALUES[c.type]) for c in columns})
        found = draw(st.lists(row, max_size=12))
        return pa.Table.from_pylist([{**each, "other": 0} for each in found], schema=schema)

    return columns, rows(), rows()


@pytest.mark.parametrize("most", [2**62, 3])
@given(generated=tables())
def test_numbers_are_equal_where_the_keys_are(
    most: int, generated: tuple[tuple[Column, ...], pa.Table, pa.Table]
) -> None:
    columns, known, others = generated
    with patch.object(identities, "_NEAR", identities._NEAR if most > 3 else 0):
        numbered = Identities(known, columns, most)
    found = numbered.find(others)
    keys, other_keys = identity_keys(known, columns), identity_keys(others, columns)
    assert len(set(zip(keys, numbered.numbers.tolist()))) == len(set(keys)) == len(set(numbered.numbers))
    number_of = dict(zip(keys, numbered.numbers.tolist()))
    for key, number in zip(other_keys, found.tolist()):
        assert number == number_of[key] if key in number_of else number not in number_of.values()
    members = KeySet(numbered, numbered.numbers)
    assert members.holds(others).tolist() == [key in number_of for key in other_keys]
    assert len(members.without(others)) == len(set(keys) - set(other_keys))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [("int", "bigint"), ("bigint", "int"), ("decimal(10,2)", "decimal(12,4)"), ("int", "double")],
)
def test_keys_of_other_types(ours: str, theirs: str) -> None:
    """A foreign key may have another type than the key that it refers to."""
    column = Column("k", ours)
    known = _keys(ours, [1, 2, None])
    numbered = Identities(known, [column])
    found = numbered.find(_keys(theirs, [2, 3, None, 1]))
    assert np.isin(found, numbered.numbers).tolist() == [True, False, True, True]
    assert found[0] == numbered.numbers[1]


def _keys(kind: str, values: Sequence[int | None]) -> pa.Table:
    made = {"decimal": Decimal, "double": float}.get(kind.partition("(")[0], int)
    schema = arrow_schema([Column("k", kind)])
    return pa.Table.from_pylist([{"k": None if v is None else made(v)} for v in values], schema=schema)
