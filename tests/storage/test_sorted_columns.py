"""Wanted values in columns: whole numbers and dates, which NumPy looks up where they are many, and others."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from cq_engine.storage.sorted_columns import is_wanted


@pytest.mark.parametrize("count", [0, 7, 5_000])
@pytest.mark.parametrize("spread", [3, 1_000, 2**40], ids=["near", "apart", "far"])
@pytest.mark.parametrize("kind", [pa.int16(), pa.int32(), pa.int64(), pa.date32(), pa.string()], ids=str)
@pytest.mark.parametrize("nulls", ["", "column", "values", "both"])
def test_it_is_what_arrow_finds(count: int, spread: int, kind: pa.DataType, nulls: str) -> None:
    chance = np.random.default_rng(count + spread % 1000)
    bound = min(
        spread * max(count, 1),
        2**15 - 1 if kind == pa.int16() else 2**31 - 1 if kind != pa.int64() else 2**62,
    )

    def some(number: int, with_nulls: bool) -> pa.Array:
        numbers = chance.integers(-bound, bound, number)
        mask = chance.random(number) < 0.1 if with_nulls else None
        if kind == pa.string():
            return pa.array([str(each) for each in numbers], kind, mask=mask)
        whole = pa.array(
            numbers.astype(np.int32 if kind == pa.date32() else kind.to_pandas_dtype()), mask=mask
        )
        return whole.cast(kind)

    values = some(count // 2, nulls in ("values", "both"))
    column = pa.chunked_array([some(count, nulls in ("column", "both")), values.slice(count // 5)], kind)
    found = is_wanted(column, values)
    assert np.array_equal(np.asarray(found), np.asarray(pc.is_in(column, value_set=values)))
    assert len(found) == len(column)
