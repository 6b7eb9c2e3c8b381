"""DISTINCT is a GROUP BY of all columns without functions: a row is there while its multiplicity is above 0.

    Δδ(R) at commit s  =  δ(R)@s − δ(R)@s⁻   on the rows in Δ(R)ₛ

The query's own DISTINCTs are aggregates with a state before (`algebra.rewrite.normal`); here are those that the lowering makes,
whose rows are looked up in their input.

>>> from cq_engine.algebra.names import Names
>>> from cq_engine.algebra.nodes import Distinct, Scan
>>> from cq_engine.algebra.show import explain
>>> from cq_engine.delta.context import Context, delta
>>> from cq_engine.delta.rules import RULES
>>> orders = Scan("orders", (("o", "o"), ("cust", "cust")))
>>> once = Distinct(orders, internal=True)
>>> context = Context(RULES, Names(), frozenset({"orders"}))
>>> print(explain(as_aggregate(once, context)))
Aggregate BY (o, cust)
  Scan orders (o, cust)
>>> print(explain(delta(once, context)).splitlines()[0])
Edges
"""

from __future__ import annotations

from cq_engine.algebra.nodes import Aggregate, Distinct, Node
from cq_engine.algebra.rewrite.normal import group_by_all
from cq_engine.delta.context import Context, Rule, delta, history

__all__ = ["RULE", "as_aggregate"]


def as_aggregate(node: Distinct, context: Context) -> Aggregate:
    """`node` as an aggregate with its columns as keys; the same object for every call in one planning run."""
    if id(node) not in context.rewritten:
        context.kept.append(node)
        context.rewritten[id(node)] = group_by_all(node)
    result = context.rewritten[id(node)]
    assert isinstance(result, Aggregate)
    return result


def _distinct_delta(node: Distinct, context: Context) -> Node:
    return delta(as_aggregate(node, context), context)


def _distinct_history(node: Distinct, context: Context) -> Node:
    return history(as_aggregate(node, context), context)


RULE = Rule(Distinct, _distinct_delta, _distinct_history)
