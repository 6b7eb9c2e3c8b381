"""The delta law for generated histories and queries, through the engine and Spark."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import given
from pyspark.sql import SparkSession

from tests.oracle.budget import budget
from tests.oracle.generate import History, core_histories, nested_histories
from tests.oracle.recorded import record
from tests.oracle.warehouse import Tally, check_history

TALLY = Tally()


def _check(history: History, spark: SparkSession) -> None:
    recorded = record(history)
    if recorded.newest < 2:
        return
    directory = Path(tempfile.mkdtemp(prefix="cq_oracle_"))
    try:
        check_history(recorded, spark, directory, TALLY)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def test_core_shapes(spark: SparkSession) -> None:
    @budget("CQ_ORACLE_EXAMPLES", 2)
    @given(history=core_histories(queries=3, transactions=(3, 4)))
    def check(history: History) -> None:
        _check(history, spark)

    check()
    print(f"so far: {TALLY}")


def test_nested_shapes(spark: SparkSession) -> None:
    @budget("CQ_ORACLE_EXAMPLES", 2)
    @given(history=nested_histories(queries=1, transactions=(3, 3)))
    def check(history: History) -> None:
        _check(history, spark)

    check()
    print(f"so far: {TALLY}")
