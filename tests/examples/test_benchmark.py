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
