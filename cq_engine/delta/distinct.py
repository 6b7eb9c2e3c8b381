"""DISTINCT is a GROUP BY of all columns without functions: a row is there while its multiplicity is above 0."""

from __future__ import annotations

from cq_engine.algebra.nodes import Aggregate, Distinct, Node, column
from cq_engine.delta.context import Context, delta, history, register_delta, register_history

__all__ = ["as_aggregate"]


def as_aggregate(node: Distinct, context: Context) -> Aggregate:
    """`node` as an aggregate with its columns as keys; the same object for every call in one planning run."""
    if id(node) not in context.rewritten:
        context.kept.append(node)
        context.rewritten[id(node)] = Aggregate(node.input, tuple((n, column(n)) for n in node.columns), ())
    result = context.rewritten[id(node)]
    assert isinstance(result, Aggregate)
    return result


@register_delta
def _distinct_delta(node: Distinct, context: Context) -> Node:
    return delta(as_aggregate(node, context), context)


@register_history
def _distinct_history(node: Distinct, context: Context) -> Node:
    return history(as_aggregate(node, context), context)
