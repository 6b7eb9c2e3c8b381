"""The benchmark runs at toy scales and checks its own deltas on the way."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import ModuleType

import pytest
from pyspark.sql import SparkSession


def test_benchmark_prints_its_figures(
    load_program: Callable[[str], ModuleType], spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    program = load_program("benchmarks/estore_refresh.py")
    assert program.main(["--scales", "0.001", "0.002", "--rounds", "1"], spark=spark) == 0
    figures = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [figure["figure"] for figure in figures] == [
        *(2 * ["load", "commit", *3 * ["refresh against recompute"]]),
        *(3 * ["growth"]),
    ]
    assert all(figure["benchmark"] == "estore_refresh" for figure in figures)


def test_shapes_benchmark_checks_its_deltas(
    load_program: Callable[[str], ModuleType], spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    program = load_program("benchmarks/shapes_refresh.py")
    chosen = ["left_join", "anti_join", "top_n"]
    arguments = ["--scales", "0.001", "0.006", "--rounds", "1", "--queries", *chosen]
    assert program.main(arguments, spark=spark) == 0
    figures = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [f["figure"] for f in figures] == [*(2 * ["load", *3 * ["refresh"]]), *(3 * ["growth"])]
    refreshes = [f for f in figures if f["figure"] == "refresh"]
    assert [f["query"] for f in refreshes] == 2 * chosen
    assert all(f["delta_rows"] > 0 for f in refreshes)
    # The lines of scale 0.006 are not in memory: of 60 000 a refresh reads those of the changed orders.
    assert 0 < refreshes[-1]["rows_read"] < 1000


def test_many_queries_benchmark_checks_its_deltas(
    load_program: Callable[[str], ModuleType], spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    program = load_program("benchmarks/many_queries.py")
    arguments = ["--queries", "1", "6", "--rows", "50", "--customers", "6", "--orders", "5", "--rounds", "1"]
    assert program.main(arguments, spark=spark) == 0
    figures = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(f["figure"], f["queries"]) for f in figures] == [
        *((name, count) for count in (1, 6) for name in ("create", "refresh")),
        ("growth", [1, 6]),
    ]
    assert all(f["queries_with_deltas"] > 0 for f in figures if f["figure"] == "refresh")
