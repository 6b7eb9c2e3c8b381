"""Two databases that are written to, and the join of their tables, which nobody copies."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
from pyspark.sql import SparkSession


def test_the_deltas_are_what_the_databases_say(
    load_program: Callable[[str], ModuleType], once: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    assert load_program("examples/09_remote.py").main(["--changes", "12"], spark=once) == 0
    said = capsys.readouterr().out
    assert "large orders; as the databases say" in said
    assert "pieces for" in said
    assert " questions to the sources" in said
