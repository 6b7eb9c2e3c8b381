"""EXPLAIN's delta plans are snapshots: one file per query shape.

`CQ_UPDATE_SNAPSHOTS=1 pytest tests/planner` writes them again.
"""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import pytest

from cq_engine.api.explain import plan_text
from cq_engine.api.explanation import Explanation
from tests.oracle.generate import History, TableSpec
from tests.oracle.plans import Plans
from tests.oracle.recorded import record

SNAPSHOTS = Path(__file__).parent / "snapshots"
ORDERS = TableSpec("orders", (("o", "INT"), ("cust", "INT"), ("amt", "DECIMAL(10,2)")), ("o",))
CUSTOMERS = TableSpec("customers", (("c", "INT"), ("city", "STRING")), ("c",))
QUERIES = {
    "filter": "SELECT o, amt + 1 AS more FROM orders WHERE amt > 5",
    "join": "SELECT o, city FROM orders JOIN customers ON cust = c",
    "union_all": "SELECT cust FROM orders UNION ALL SELECT c FROM customers",
    "having": "SELECT cust, sum(amt) AS total FROM orders GROUP BY cust HAVING sum(amt) < 0",
    "extremum": "SELECT cust, max(amt) AS top FROM orders GROUP BY cust",
    "scalar": "SELECT count(*) AS n FROM orders",
    "left_join": "SELECT o, city FROM orders LEFT JOIN customers ON cust = c",
    "top": "SELECT o, amt FROM orders ORDER BY amt DESC, o LIMIT 3",
}


@pytest.mark.parametrize("name", QUERIES)
def test_plan(name: str) -> None:
    query = QUERIES[name]
    plans = Plans(record(History((ORDERS, CUSTOMERS), (), (), (query,), 0)))
    compiled = plans.compile(0)
    head = [
        f"-- {query}",
        f"-- {compiled.verdict}, key {compiled.key}",
        *(f"-- {r}" for r in compiled.reasons),
    ]
    text = "\n".join([*head, plan_text(compiled), ""])
    path = SNAPSHOTS / f"{name}.sql"
    if os.environ.get("CQ_UPDATE_SNAPSHOTS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def explanation() -> Explanation:
    """Of the join, with some of what an engine knows."""
    compiled = Plans(record(History((ORDERS, CUSTOMERS), (), (), (QUERIES["join"],), 0))).compile(0)
    facts = {"blocks": ["join: INCREMENTAL"], "states": {}, "base tables": {"orders": "all", "c": 'by "c"'}}
    return Explanation(
        "q", "INCREMENTAL", "TRANSACTIONAL", "continuous query q", facts, "delta:", "SELECT 1", compiled.node
    )


def test_an_explanation_as_text() -> None:
    assert explanation().text().splitlines() == [
        "continuous query q",
        "├─ blocks",
        "│  └─ join: INCREMENTAL",
        "└─ base tables",
        "   ├─ orders: all",
        '   └─ c: by "c"',
        "",
        "delta:",
        "SELECT 1",
    ]


def test_an_explanation_as_json() -> None:
    assert json.loads(explanation().render("JSON")) == {
        "query": "q",
        "verdict": "INCREMENTAL",
        "mode": "TRANSACTIONAL",
        "blocks": ["join: INCREMENTAL"],
        "states": {},
        "base_tables": {"orders": "all", "c": 'by "c"'},
        "sql": "SELECT 1",
    }


def test_an_explanation_as_a_picture() -> None:
    lines = explanation().render("MERMAID").splitlines()
    assert lines[0] == "flowchart BT"
    assert '  n0[("orders")]' in lines
    assert '  n1[("customers")]' in lines
    assert "  n0 --> n2" in lines
    assert "  n1 --> n2" in lines
    assert '  result(["q: INCREMENTAL"])' in lines
    assert any("Join ON cust = c" in line for line in lines)
    full = dataclasses.replace(explanation(), plan=None, verdict="FULL", sources=("orders",))
    assert full.mermaid().splitlines()[1:] == ['  result(["q: FULL"])', "  orders --> result"]
