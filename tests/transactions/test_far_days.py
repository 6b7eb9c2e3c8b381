"""Days that Python does not have, after the year 9999, in errors about rows; Spark has no part in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import cq_engine
from cq_engine import ConstraintError, Engine

FAR = 4_000_000
"""12921-08-18, in days."""


class NoSpark:
    """Has nothing of a session."""


@pytest.fixture
def engine(warehouse: Path) -> Iterator[Engine]:
    with cq_engine.connect(warehouse, spark=NoSpark(), scheduler=False) as opened:  # type: ignore[arg-type]
        opened.execute("CREATE TABLE t (d DATE PRIMARY KEY, n INT NOT NULL)")
        opened.execute("CREATE TABLE u (id INT PRIMARY KEY, d DATE REFERENCES t (d) ENFORCED)")
        yield opened


def rows(op: str, day: int, n: int | None) -> dict[str, pa.Table]:
    return {"t": pa.table({"op": [op], "d": pa.array([day], pa.date32()), "n": pa.array([n], pa.int32())})}


def child(day: int) -> dict[str, pa.Table]:
    return {"u": pa.table({"op": ["I"], "id": pa.array([1], pa.int32()), "d": pa.array([day], pa.date32())})}


def test_errors_name_the_day(engine: Engine) -> None:
    engine.apply_changes(rows("I", FAR, 1))
    for change in (
        rows("I", FAR, 2),
        rows("U", FAR + 1, 2),
        rows("D", FAR + 1, 2),
        rows("I", FAR + 1, None),
        child(FAR + 1),
    ):
        with pytest.raises(ConstraintError, match=r"12921-08-1|NOT NULL"):
            engine.apply_changes(change)
    engine.apply_changes(child(FAR))
    with pytest.raises(ConstraintError, match="12921-08-18"):
        engine.apply_changes(rows("D", FAR, 1))
