"""The oracle is worth what it catches: each rule is broken on purpose, and the delta law must notice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlglot import exp

from cq_engine.algebra.nodes import VERSION, WEIGHT, Aggregate, Empty, Filter, Node, OuterJoin, RuntimeFilter
from cq_engine.delta import aggregate, images, join, linear, matching, partition, stored
from cq_engine.delta import runtime_filters as filters
from cq_engine.delta.context import Context, delta, has_changes
from cq_engine.delta.runtime_filters import Reducer, Reducers, RuntimeFilters
from cq_engine.planner import consolidate as consolidation
from cq_engine.planner import delta_plan
from tests.oracle import plans
from tests.oracle.generate import History, TableSpec
from tests.oracle.law import Broken
from tests.oracle.test_delta_rules import run

ORDERS = TableSpec("orders", (("o", "INT"), ("cust", "INT"), ("amt", "INT")), ("o",))
CUSTOMERS = TableSpec("customers", (("c", "INT"), ("city", "STRING")), ("c",))
QUERIES = {
    "join": "SELECT s1.o, s2.city FROM orders s1 JOIN customers s2 ON s1.cust = s2.c",
    "having": "SELECT s1.cust, sum(s1.amt) AS total FROM orders s1 GROUP BY s1.cust HAVING sum(s1.amt) > 5",
    "highest": "SELECT s1.cust, max(s1.amt) AS top, count(*) AS n FROM orders s1 GROUP BY s1.cust",
    "kinds": "SELECT s1.cust, count(DISTINCT s1.amt) AS n FROM orders s1 GROUP BY s1.cust",
    "outer": "SELECT s1.o, s2.city FROM orders s1 LEFT JOIN customers s2 ON s1.cust = s2.c",
    "absent": "SELECT s2.c FROM customers s2 WHERE NOT EXISTS (SELECT 1 FROM orders s1 WHERE s1.cust = s2.c)",
    "ranked": "SELECT s1.o, row_number() OVER (PARTITION BY s1.cust ORDER BY s1.o) AS n FROM orders s1",
    "bag": "SELECT s1.cust FROM orders s1 UNION ALL SELECT s2.c FROM customers s2",
}
TRANSACTIONS = (
    ("INSERT INTO orders VALUES (3, 2, 4), (4, NULL, 7)", "INSERT INTO customers VALUES (2, 'Bonn')"),
    ("UPDATE orders SET amt = amt + 1 WHERE o = 3", "UPDATE customers SET city = 'Bari' WHERE c = 1"),
    ("UPDATE orders SET amt = amt + 3 WHERE o = 1", "UPDATE customers SET city = 'Kiel' WHERE c = 1"),
    ("UPDATE orders SET cust = 2 WHERE o = 1",),
    ("DELETE FROM orders WHERE cust = 1 OR cust IS NULL", "DELETE FROM customers WHERE c = 2"),
    ("UPDATE orders SET cust = 1, amt = amt - 20",),
    ("INSERT INTO customers VALUES (2, 'Ulm')", "DELETE FROM orders WHERE o = 3"),
    ("INSERT INTO orders VALUES (5, 2, 9)",),
    ("DELETE FROM orders WHERE o = 5",),
)


def history(query: str) -> History:
    initial = ("INSERT INTO orders VALUES (1, 1, 5), (2, 1, 3)", "INSERT INTO customers VALUES (1, 'Rome')")
    return History((ORDERS, CUSTOMERS), initial, TRANSACTIONS, (QUERIES[query],), 0b101000)


def always_after(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(join, "valid_before", join.valid_after)


def first_partners_only(patch: pytest.MonkeyPatch) -> None:
    """What the changes of inputs but the first look up is forgotten."""
    right = join._order_inputs

    def nothing(wanted: tuple[RuntimeFilter, ...]) -> tuple[RuntimeFilter, ...]:
        return tuple(RuntimeFilter(h.column, Filter(h.leaf, exp.false()), h.of_column) for h in wanted)

    def wrong(node: Any, i: int, own: Node) -> Any:
        order, found = right(node, i, own)
        if i:
            found = {j: {scan: nothing(wanted) for scan, wanted in each.items()} for j, each in found.items()}
        return order, found

    patch.setattr(join, "_order_inputs", wrong)


def versions_that_never_met(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        join, "has_changes", lambda node, context: False if context.among else has_changes(node, context)
    )


def dropped_having(patch: pytest.MonkeyPatch) -> None:
    right = linear._filter

    def wrong(rows: Node, node: Filter) -> Node:
        return rows if isinstance(node.input, Aggregate) else right(rows, node)

    patch.setattr(linear, "_filter", wrong)


def unsigned_sums(patch: pytest.MonkeyPatch) -> None:
    right = stored._signed_sums

    def wrong(state: stored.State, names: tuple[str, ...]) -> tuple[tuple[str, exp.Expr], ...]:
        count, *_ = right(state, names)
        sums = zip(names[1:], state.accumulators)
        return (count, *((n, stored._cast(stored._total(a.term), a.type)) for n, a in sums))

    patch.setattr(stored, "_signed_sums", wrong)


def empty_groups_stay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(aggregate, "Filter", lambda rows, condition: rows)


def state_not_advanced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(plans.PlannedQuery, "_advance", lambda self, stored, rows: None)


def null_group_lost(patch: pytest.MonkeyPatch) -> None:
    def wrong(left: str, right: str) -> exp.Expr:
        return exp.EQ(this=exp.column(left), expression=exp.column(right))

    patch.setattr(stored, "same", wrong)


def extremum_stays(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(stored, "_reaches", lambda kind, name: lambda lost, running: exp.false())


def repair_in_vain(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        plans.PlannedQuery, "_repaired", lambda self, stage, rows, leaves: [row[:-1] for row in rows]
    )


def not_netted(patch: pytest.MonkeyPatch) -> None:
    right = images.net_sql
    patch.setattr(
        plans, "net_sql", lambda log, columns, identity, a, b, _: right(log, columns, identity, a, b, False)
    )


def partner_always_after(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(matching, "valid_before", matching.valid_after)


def changed_partners_forgotten(patch: pytest.MonkeyPatch) -> None:
    def wrong(node: OuterJoin, context: Context) -> Node:
        return Empty((*node.columns, VERSION, WEIGHT))

    patch.setattr(matching, "_partner_changes", wrong)


def keys_of_one_side(patch: pytest.MonkeyPatch) -> None:
    """Found by the property test once: with both sides changed, each was read by its own changed keys only."""

    def wrong(node: Node, wanted: Reducers) -> RuntimeFilters:
        own = delta(node, context[0])
        return filters.push_filters(
            node, {n: Reducer(own, n, o.nulls) for n, o in wanted.items() if n in own.columns}
        )

    context: list[Context] = []
    right = matching._by_key

    def remembering(*given: Any) -> object:
        context[:] = [given[-1]]
        return right(*given)

    patch.setattr(matching, "_by_key", remembering)
    patch.setattr(matching, "push_filters", wrong)


def null_partition_lost(patch: pytest.MonkeyPatch) -> None:
    right = partition.not_null
    patch.setattr(partition, "not_null", lambda node, names, nulls: right(node, names, (False,) * len(names)))


def repeated_rows_once(patch: pytest.MonkeyPatch) -> None:
    right = consolidation.consolidate
    patch.setattr(
        delta_plan, "consolidate", lambda *given: right(*given).replace("CAST(abs(_w) AS int)", "1")
    )


BUGS: tuple[tuple[Callable[[pytest.MonkeyPatch], None], str], ...] = (
    (always_after, "join"),
    (first_partners_only, "join"),
    (versions_that_never_met, "join"),
    (dropped_having, "having"),
    (unsigned_sums, "having"),
    (empty_groups_stay, "kinds"),
    (state_not_advanced, "having"),
    (null_group_lost, "highest"),
    (extremum_stays, "highest"),
    (repair_in_vain, "highest"),
    (not_netted, "join"),
    (partner_always_after, "outer"),
    (partner_always_after, "absent"),
    (changed_partners_forgotten, "outer"),
    (changed_partners_forgotten, "absent"),
    (keys_of_one_side, "outer"),
    (null_partition_lost, "ranked"),
    (repeated_rows_once, "bag"),
)


@pytest.mark.parametrize("query", QUERIES)
def test_law_holds_without_a_bug(query: str) -> None:
    run(history(query))


@pytest.mark.parametrize(("bug", "query"), BUGS, ids=lambda each: getattr(each, "__name__", str(each)))
def test_bug_is_caught(bug: Callable[[pytest.MonkeyPatch], None], query: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        bug(patch)
        with pytest.raises(Broken):
            run(history(query))
