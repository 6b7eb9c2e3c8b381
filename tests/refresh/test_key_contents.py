"""What tells restrictions apart."""

from __future__ import annotations

import pyarrow as pa
import pytest

from cq_engine.refresh.key_values import contents


@pytest.mark.parametrize(
    ("values", "others"),
    [
        (pa.array([3_000_000, 1], pa.date32()), pa.array([3_000_001, 1], pa.date32())),
        (pa.array([3 * 10**17], pa.timestamp("us", "UTC")), pa.array([3 * 10**17 + 1], pa.timestamp("us", "UTC"))),
        (pa.array([b"a", None]), pa.array([b"a"])),
        (pa.array(["a", ""]), pa.array(["a", None])),
    ],
)  # fmt: skip
def test_contents(values: pa.Array, others: pa.Array) -> None:
    """Also of days and times that Python does not have, after the year 9999."""
    assert contents({"k": values}) == contents({"k": values[::-1]})
    assert contents({"k": values}) != contents({"k": others})
