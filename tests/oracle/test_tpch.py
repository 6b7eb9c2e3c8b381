"""TPC-H's queries as continuous queries: the delta law at every commit, in all modes, on delta plans in DuckDB."""

from __future__ import annotations

import os

import pytest

from tests.oracle.test_delta_rules import run
from tests.oracle.tpch import QUERIES, tpch_history

HISTORIES = int(os.environ.get("CQ_ORACLE_TPCH", "1"))
"""How many histories per query."""


_SHORT = (1, 3, 4, 13, 15, 16, 18, 20, 22)
"""Queries that differ most in shape; the others run with the long tests."""


@pytest.mark.parametrize(
    "query", [q if q in _SHORT else pytest.param(q, marks=pytest.mark.long) for q in QUERIES]
)
def test_tpch(query: int) -> None:
    for seed in range(HISTORIES):
        assert "FULL" not in run(tpch_history(100 * query + seed, (query,), commits=3))
