"""The delta law for generated histories and queries, through the engine and Spark."""

from __future__ import annotations

from hypothesis import given
from pyspark.sql import SparkSession

from tests.oracle.budget import budget
from tests.oracle.generate import History, core_histories, nested_histories
from tests.oracle.warehouse import Tally, check_in_fresh_warehouse

TALLY = Tally()


def test_core_shapes(spark: SparkSession) -> None:
    @budget("CQ_ORACLE_EXAMPLES", 2)
    @given(history=core_histories(queries=3, transactions=(3, 4)))
    def check(history: History) -> None:
        check_in_fresh_warehouse(history, spark, TALLY)

    check()
    print(f"so far: {TALLY}")


def test_nested_shapes(spark: SparkSession) -> None:
    @budget("CQ_ORACLE_EXAMPLES", 2)
    @given(history=nested_histories(queries=1, transactions=(3, 3)))
    def check(history: History) -> None:
        check_in_fresh_warehouse(history, spark, TALLY)

    check()
    print(f"so far: {TALLY}")
