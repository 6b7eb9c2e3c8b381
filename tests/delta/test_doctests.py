"""The examples in the rules' docstrings are true, and every rule has one."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

FIXTURES = Path(__file__).parent / "fixtures"
RULES = [f"cq_engine.delta.{path.stem}" for path in sorted(FIXTURES.glob("*.txt"))]
MORE = [
    "cq_engine.algebra.analysis.lineage",
    "cq_engine.algebra.rewrite.normal",
    "cq_engine.algebra.rewrite.pruning",
    "cq_engine.algebra.show",
    "cq_engine.delta.runtime_filters",
]


@pytest.mark.parametrize("name", [*RULES, *MORE])
def test_examples(name: str) -> None:
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted > 0
    assert found.failed == 0
