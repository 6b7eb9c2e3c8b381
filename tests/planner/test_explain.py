"""EXPLAIN's delta plans are snapshots: one file per query shape.

`CQ_UPDATE_SNAPSHOTS=1 pytest tests/planner` writes them again.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cq_engine.api.explain import plan_text
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
