"""The slides' stories deliver the slides' rows."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest
from delivered import row_of
from pyspark.sql import SparkSession

import cq_engine

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

NEGATIVE_BALANCE = [("Andy", -200, "I"), ("Joe", -100, "I"), ("Bill", -100, "I"), ("Andy", -200, "D")]
EVERY_STEP = [("Andy", -100, "I"), ("Andy", -100, "D")]
MARY = [("Shoes", 400, date(2007, 1, 2)), ("Shoes", 500, date(2007, 1, 5))]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("01_negative_balance.cql", [NEGATIVE_BALANCE]),
        ("02_transactional_vs_compressed.cql", [EVERY_STEP, []]),
        ("03_mary_shoes.cql", [MARY]),
    ],
)
def test_script_delivers_the_slides_rows(
    script: str, expected: list[list[tuple[Any, ...]]], spark: SparkSession, warehouse: Path
) -> None:
    with cq_engine.connect(str(warehouse), spark=spark) as engine:
        engine.run_script(EXAMPLES / script)
        again = engine.run_script(EXAMPLES / script)  # they start clean
        shown = [sorted(result.fetchall(), key=repr) for result in again[-len(expected) :]]
    assert shown == [sorted(rows, key=repr) for rows in expected]


def test_negative_balance_comes_in_commit_order(spark: SparkSession, warehouse: Path) -> None:
    with cq_engine.connect(str(warehouse), spark=spark) as engine:
        engine.run_script(EXAMPLES / "01_negative_balance.cql")
        deltas = list(engine.deltas("negative_balance_cq"))
    assert [(*row_of(delta), delta.marker) for delta in deltas] == NEGATIVE_BALANCE
    versions = [d.commit_version for d in deltas]
    assert versions == sorted(set(versions))
