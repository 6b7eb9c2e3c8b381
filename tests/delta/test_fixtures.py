"""Each rule's fixture pairs: a query and the tables that changed, and the delta plan; compared and executed.

`fixtures/<rule>.txt` holds them. `CQ_UPDATE_SNAPSHOTS=1 pytest tests/delta` writes the plans again; a new pair needs
its `query:` and `changed:` lines only. Executed means: a fixed history of commits is replayed commit by commit, as one
batch and compressed, and compared with the query's result from scratch.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import pytest

from cq_engine.algebra.show import explain
from cq_engine.delta.images import changes_sql, history_sql, net_sql
from cq_engine.delta.rules import RULES
from cq_engine.planner.delta_plan import plan_delta
from tests.oracle.generate import History, TableSpec
from tests.oracle.plans import Plans
from tests.oracle.recorded import record
from tests.oracle.test_delta_rules import run

FIXTURES = Path(__file__).parent / "fixtures"
NOT_REGISTERED = {"stored", "images"}
"""Rules that are no operator of their own: aggregates with a state, and the leaves."""
TABLES = (
    TableSpec("orders", (("o", "INT"), ("cust", "INT"), ("amt", "INT")), ("o",)),
    TableSpec("customers", (("c", "INT"), ("city", "STRING")), ("c",)),
)
INITIAL = ("INSERT INTO orders VALUES (1, 1, 5), (2, 1, 3)", "INSERT INTO customers VALUES (1, 'Rome')")
TRANSACTIONS = (
    ("INSERT INTO orders VALUES (3, 2, 4), (4, NULL, 7)", "INSERT INTO customers VALUES (2, 'Bonn')"),
    ("UPDATE orders SET amt = amt + 1 WHERE o = 3", "UPDATE customers SET city = NULL WHERE c = 1"),
    ("UPDATE orders SET cust = 2 WHERE o = 1",),
    ("DELETE FROM customers WHERE c = 2",),
    ("DELETE FROM orders WHERE cust = 1 OR cust IS NULL", "INSERT INTO customers VALUES (3, 'Bonn')"),
    ("UPDATE orders SET cust = 3, amt = 4",),
    ("INSERT INTO orders VALUES (5, 3, 4), (6, 9, 1)",),
    ("UPDATE orders SET o = o + 10 WHERE o < 5", "UPDATE customers SET c = 9 WHERE c = 1"),
    ("DELETE FROM orders",),
)


def pairs(path: Path) -> list[tuple[str, str, str]]:
    """(query, tables that changed, plan) of a fixture file."""
    found = []
    for part in path.read_text(encoding="utf-8").split("query: ")[1:]:
        query, changed, *plan = part.strip().splitlines()
        found.append((query, changed.removeprefix("changed: "), "\n".join(plan)))
    return found


def planned(query: str, changed: str) -> str:
    """The delta plan for an interval in which the tables `changed` have changes ("inserts into" them: only these; "at once!": as a
    driver that has the rows does)."""
    plans = Plans(record(History(TABLES, (), (), (query,), 0)))
    compiled = plans.compile(0)
    assert compiled.node is not None, compiled.reasons
    inserts = changed.startswith("inserts into ")
    names, _, at_once = changed.removeprefix("inserts into ").partition(" at once")
    plan = plan_delta(compiled, frozenset(names.split(", ")), inserts, at_once=at_once == "!")
    assert plan is not None
    lines = [f"verdict: {compiled.verdict}"]
    for stage in plan.stages:
        lines += [f"{stage.node.name}:", explain(stage.root)]
        if stage.repair is not None:
            lines += [f"{stage.node.name}, groups that went wrong:", explain(stage.repair)]
    return "\n".join([*lines, "delta:", explain(plan.root)])


def leaves(changed: str) -> str:
    """What stands for a table's changes and history over (a, b] = (3, 5]."""
    assert changed == "orders"
    columns, key = ["o", "cust", "amt"], ["o"]
    return "\n".join(
        [
            "net:", net_sql("log", columns, key, 3, 5, compressed=False),
            "net, compressed:", net_sql("log", columns, key, 3, 5, compressed=True),
            "changes:", changes_sql("net", columns, 3),
            "history:", history_sql("base", "net", columns, key, 3, insert_only=False),
            "history, inserts only:", history_sql("base", "net", columns, key, 3, insert_only=True),
        ]
    )  # fmt: skip


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("*.txt")), ids=lambda p: p.stem)
def test_plans(path: Path) -> None:
    known = pairs(path)
    got = [(q, c, leaves(c) if path.stem == "images" else planned(q, c)) for q, c, _ in known]
    if os.environ.get("CQ_UPDATE_SNAPSHOTS"):
        text = "\n\n".join(f"query: {q}\nchanged: {c}\n{plan}" for q, c, plan in got)
        path.write_text(text + "\n", encoding="utf-8")
        known = got
    assert got == known


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("*.txt")), ids=lambda p: p.stem)
def test_plans_give_what_the_query_gives(path: Path) -> None:
    queries = tuple(dict.fromkeys(query for query, _, _ in pairs(path)))
    assert queries
    verdicts = run(History(TABLES, INITIAL, TRANSACTIONS, queries, 0b1010010))
    assert sum(verdicts.values()) == len(queries)
    assert not any(verdict.startswith("FULL") for verdict in verdicts)


def test_every_rule_has_fixtures() -> None:
    kinds = {path.stem for path in FIXTURES.glob("*.txt")} - NOT_REGISTERED
    modules = [importlib.import_module(f"cq_engine.delta.{each}") for each in kinds]
    rules = [rule for each in modules for rule in getattr(each, "RULES", None) or [each.RULE]]
    assert {rule.kind: rule for rule in rules} == RULES
