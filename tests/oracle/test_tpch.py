"""TPC-H's queries as continuous queries: the delta law at every commit, in all modes, on delta plans in DuckDB."""

from __future__ import annotations

import os

import pytest

from tests.oracle.test_delta_rules import run
from tests.oracle.tpch import QUERIES, tpch_history

HISTORIES = int(os.environ.get("CQ_ORACLE_TPCH", "1"))
"""How many histories per query."""


@pytest.mark.parametrize("query", QUERIES)
def test_tpch(query: int) -> None:
    for seed in range(HISTORIES):
        assert "FULL" not in run(tpch_history(100 * query + seed, (query,), commits=3))
