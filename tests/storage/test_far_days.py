"""Look-ups by days and times of which Python, or Java's old calendar, has no or other ones."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine.core.limits import Limits

VALUES = {
    "TIMESTAMP": ("TIMESTAMP '0001-01-01'", "TIMESTAMP '1500-01-01'", "TIMESTAMP '2020-03-08 02:30:00'", "TIMESTAMP '+12000-01-01'"),
    "TIMESTAMP_NTZ": ("TIMESTAMP_NTZ '0001-01-01'", "TIMESTAMP_NTZ '2020-03-08 02:30:00'", "TIMESTAMP_NTZ '+12000-01-01'"),
    "DATE": ("DATE '0001-01-01'", "DATE '1582-10-10'", "DATE '2020-03-08'", "DATE '+12000-01-01'"),
    "DECIMAL(38,18)": ("0", "-0.5", "99999999999999999999.999999999999999999"),
    "BINARY": ("X''", "X'00ff'"),
    "INTERVAL YEAR TO MONTH": ("INTERVAL '1-2' YEAR TO MONTH", "INTERVAL '-0-1' YEAR TO MONTH"),
    "INTERVAL DAY TO SECOND": ("INTERVAL '1 02:03:04.5' DAY TO SECOND", "INTERVAL '0 00:00:00' DAY TO SECOND"),
}  # fmt: skip


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process is in New York, where 2020-03-08 has no 2:30."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("bounds", [{"look_up_files": 0}, {}], ids=["by Spark", "by the driver"])
def test_look_ups_by_every_value(spark: SparkSession, warehouse: Path, bounds: dict[str, int]) -> None:
    limits = Limits(small_rows=-1, compact_rows=0, **bounds)
    with cq_engine.connect(warehouse, spark=spark, scheduler=False, limits=limits) as engine:
        for number, (kind, values) in enumerate(VALUES.items()):
            engine.execute(f"CREATE TABLE a{number} (k {kind} PRIMARY KEY, n INT)")
            engine.execute(f"CREATE TABLE b{number} (id INT PRIMARY KEY, k {kind})")
            rows = ", ".join(f"({value}, {n})" for n, value in enumerate(values))
            engine.execute(f"INSERT INTO a{number} VALUES {rows}")
            engine.execute(f"COMPACT TABLE a{number}")
            engine.execute(
                f"CREATE CONTINUOUS QUERY q{number} ON DEMAND AS"
                f" SELECT b.id, a.n FROM b{number} b JOIN a{number} a ON a.k = b.k"
            )
            rows = ", ".join(f"({n}, {value})" for n, value in enumerate(values))
            engine.execute(f"INSERT INTO b{number} VALUES {rows}")
            engine.refresh(f"q{number}")
            found = sorted(d.new for d in engine.deltas(f"q{number}") if d.new is not None)
            assert found == [(n, n) for n in range(len(values))], kind
