"""ORDER BY … LIMIT … OFFSET, of everything or per key: a partition is evaluated anew when one of its rows changes.

Δλ(R) at commit s  =  λ(R ⋉ P)@s − λ(R ⋉ P)@s⁻,   P = partitions of Δ(R)ₛ

>>> from cq_engine.algebra.names import Names
>>> from cq_engine.algebra.nodes import Limit, Scan
>>> from cq_engine.algebra.show import explain
>>> from cq_engine.delta.context import Context, delta
>>> from cq_engine.delta.rules import RULES
>>> from sqlglot import exp, parse_one
>>> orders = Scan("orders", (("o", "o"), ("cust", "cust")))
>>> first = Limit(orders, (), (parse_one("o ASC", into=exp.Ordered),), 3)
>>> context = Context(RULES, Names(), frozenset({"orders"}))
>>> print(explain(delta(first, context)))
Edges
  Project o, cust, p_1 AS _from, until_2 AS _to
    Limit 3 OFFSET 0 PER (p_1) ORDER BY o ASC
      Join ON _from <= p_1 AND p_1 < _to
        Window COALESCE(LEAD(p_1) OVER (ORDER BY p_1), CAST(9223372036854775807 AS BIGINT)) AS until_2
          UnionAll (p_1)
            Distinct
              Project _v AS p_1
                Changes orders (o, cust, _v, _w)
            Values (CAST(-1 AS BIGINT)) AS (p_1)
        Project o, cust, _from, _to
          History orders (o, cust, _from, _to)
"""

from __future__ import annotations

from cq_engine.algebra.nodes import Limit, Node, column
from cq_engine.delta.context import Context, Rule
from cq_engine.delta.partition import Build, edges, partition_history, partition_versions

__all__ = ["RULE"]


def _build(node: Limit) -> Build:
    def build(rows: Node, more: tuple[str, ...]) -> Node:
        return Limit(rows, (*node.keys, *more), node.order, node.count, node.offset)

    return build


def _limit_delta(node: Limit, context: Context) -> Node:
    keys = tuple(column(k) for k in node.keys)
    return edges(partition_versions(node, node.input, keys, _build(node), context)[0])


def _limit_history(node: Limit, context: Context) -> Node:
    return partition_history(node, node.input, tuple(column(k) for k in node.keys), _build(node), context)


RULE = Rule(Limit, _limit_delta, _limit_history)
