"""GROUP BY: groups as row versions, from stored accumulators where they can be carried, else from the groups' rows.

    Δγ(R) at commit s  =  γ(R)@s − γ(R)@s⁻   on the groups in π_k(ΔR)

*Stored*: the accumulators are carried on (see `stored`). *Recomputed*: the function is evaluated at every point of the
affected groups (see `partition`). A group without rows is gone; a scalar aggregate keeps its row. HAVING is a filter
over the groups' versions. (Gupta, Mumick & Subrahmanian, SIGMOD 1993; Palpanas et al., "Incremental Maintenance for
Non-Distributive Aggregate Functions", VLDB 2002.)

>>> from cq_engine.algebra.names import Names
>>> from cq_engine.algebra.nodes import Aggregate, Scan, column
>>> from cq_engine.algebra.show import explain
>>> from cq_engine.delta.context import Context, delta
>>> from cq_engine.delta.rules import RULES
>>> from sqlglot import parse_one
>>> orders = Scan("orders", (("o", "o"), ("cust", "cust")))
>>> kinds = Aggregate(orders, (("g", column("cust")),), (("n", parse_one("count(DISTINCT o)")),))
>>> context = Context(RULES, Names(), frozenset({"orders"}))
>>> print(explain(delta(kinds, context)))
Edges
  Project g, n, _from, _to
    Filter rows_1 > 0
      Project pk_2 AS g, rows_1, n, p_3 AS _from, until_4 AS _to
        Aggregate BY (pk_2, p_3, until_4) COUNT(_from) AS rows_1, COUNT(DISTINCT o) AS n
          OuterJoin LEFT ON pk_2 <=> k_5 AND _from <= p_3 AND p_3 < _to
            Window COALESCE(LEAD(p_3) OVER (PARTITION BY pk_2 ORDER BY p_3), CAST(9223372036854775807 AS BIGINT)) AS until_4
              UnionAll (pk_2, p_3)
                #1 Distinct
                  Project cust AS pk_2, _v AS p_3
                    Changes orders (o, cust, _v, _w)
                Distinct
                  Project pk_2, CAST(-1 AS BIGINT) AS p_3
                    #1
            Project o, cust, _from, _to, cust AS k_5
              History orders (o, cust, _from, _to) WHERE cust AMONG pk_2
"""

from __future__ import annotations

from sqlglot import exp

from cq_engine.algebra.dialect import parse_expression
from cq_engine.algebra.nodes import (
    FROM,
    TO,
    Aggregate,
    Distinct,
    Filter,
    Node,
    Project,
    SemiJoin,
    StateRows,
    column,
)
from cq_engine.delta.accumulators import State
from cq_engine.delta.context import Context, Rule, has_changes, history
from cq_engine.delta.linear import always, union, without_validity
from cq_engine.delta.partition import add_keys, edges, points_of, same, unaffected_rows
from cq_engine.delta.regroup import at_points, group_points
from cq_engine.delta.stored import accumulator_versions, state_names, state_rows

__all__ = ["RULE", "stored_values"]


def _aggregate_delta(node: Aggregate, context: Context) -> Node:
    return edges(_versions(node, context))


def _aggregate_history(node: Aggregate, context: Context) -> Node:
    """The affected groups' versions, and the other groups as they are."""
    state = context.stored.get(id(node))
    if not has_changes(node, context):
        if state is not None:
            return always(_values_of(node, state, state_rows(node, state, context)))
        rows = history(node.input, context)
        return always(Aggregate(without_validity(rows), node.keys, node.functions, node.scalar))
    versions = _versions(node, context)
    if node.scalar:
        return versions
    if state is not None:
        stored = state_rows(node, state, context)
        own = tuple(name for name, _ in node.keys)
        names = tuple(context.names.fresh("k") for _ in own)
        affected = Distinct(
            Project(accumulator_versions(node, context), tuple((n, column(k)) for n, k in zip(names, own)))
        )
        others = SemiJoin(stored, affected, True, tuple(same(a, b) for a, b in zip(own, names)))
        rest: Node = _values_of(node, state, others)
    else:
        rows, keys = add_keys(history(node.input, context), tuple(e for _, e in node.keys), context)
        points = points_of(node.input, tuple(e for _, e in node.keys), context)
        assert points is not None  # touched, so there are changes
        rest = Aggregate(unaffected_rows(points, rows, keys), node.keys, node.functions)
    return union([versions, always(rest)], versions.columns)


def _versions(node: Aggregate, context: Context) -> Node:
    """The versions of the affected groups: the node's columns, `_from`, `_to`."""
    if id(node) not in context.versions:
        state = context.stored.get(id(node))
        result = (
            _values_of(node, state, accumulator_versions(node, context))
            if state
            else _recompute(node, context)
        )
        context.kept.append(result)
        context.versions[id(node)] = result
    return context.versions[id(node)]


def _values_of(node: Aggregate, state: State, rows: Node) -> Node:
    """Accumulators to function values; groups without rows are left out, a scalar aggregate's row stays."""
    from_to = tuple((n, column(n)) for n in rows.columns if n in (FROM, TO))
    keys = tuple((name, column(name)) for name, _ in node.keys)
    count, *accumulators = rows.columns[len(keys) : len(rows.columns) - len(from_to)]
    items = []
    for (name, _), kept in zip(node.functions, state.kept):
        own = tuple(accumulators.pop(0) for _ in kept.accumulators)
        items.append((name, parse_expression(kept.value(own))))
    present = (
        rows if node.scalar else Filter(rows, exp.GT(this=column(count), expression=exp.Literal.number(0)))
    )
    return Project(present, (*keys, *items, *from_to))


def stored_values(node: Aggregate, state: State) -> Node:
    """The groups as they are stored: the node's columns."""
    return _values_of(node, state, StateRows(state.label, state_names(node, state)))


def _recompute(node: Aggregate, context: Context) -> Node:
    """The functions' values, from the rows of the affected groups."""
    count = context.names.fresh("rows")
    rows = group_points(node, at_points(node, context), count, node.functions)
    if not node.scalar:
        rows = Filter(rows, exp.GT(this=column(count), expression=exp.Literal.number(0)))
    return Project(rows, tuple((name, column(name)) for name in rows.columns if name != count))


RULE = Rule(Aggregate, _aggregate_delta, _aggregate_history)
