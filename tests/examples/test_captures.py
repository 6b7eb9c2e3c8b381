"""A bank's database and its Delta Lake table, captured."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
from pyspark.sql import SparkSession


def test_the_alerts_are_what_the_bank_says(
    load_program: Callable[[str], ModuleType], once: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    assert load_program("examples/07_captures.py").main(["--transfers", "12"], spark=once) == 0
    said = capsys.readouterr().out
    assert "13 transfers" in said
    assert "as the bank says" in said
    assert " is at -" in said
