"""The shop floor: five kinds of destinations at work on one order."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
from pyspark.sql import SparkSession


def test_every_order_goes_all_the_way_once(
    load_program: Callable[[str], ModuleType], once: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    assert load_program("examples/06_shop_floor.py").main(["--orders", "4", "--pause", "0"], spark=once) == 0
    said = capsys.readouterr().out
    assert "4 orders: 4 reserved, 4 picked, 4 customers told" in said
    assert "it adds up" in said
    for number in range(1, 5):
        assert said.count(f"for order {number}\n") == 1
    assert said.count("are on the way") == 4
    assert said.count(" on hand, ") >= 4, "the first rows of the dashboard, and what has become of them"
