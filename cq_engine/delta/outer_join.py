"""LEFT OUTER JOIN: every left row with its partners, or once with NULLs. See `matching` for the formula.

RIGHT and FULL joins are written with LEFT and anti joins before (`algebra.rewrite.normal`).

>>> from cq_engine.algebra.names import Names
>>> from cq_engine.algebra.nodes import OuterJoin, Scan
>>> from cq_engine.algebra.show import explain
>>> from cq_engine.delta.context import Context, delta
>>> from cq_engine.delta.rules import RULES
>>> from sqlglot import parse_one
>>> orders = Scan("orders", (("o", "o"), ("cust", "cust")))
>>> customers = Scan("customers", (("c", "c"),))
>>> joined = OuterJoin(orders, customers, "LEFT", (parse_one("cust = c"),))
>>> context = Context(RULES, Names(), frozenset({"orders"}))
>>> print(explain(delta(joined, context)))
Project o, cust, c, _v, _w
  OuterJoin LEFT ON cust = c
    Changes orders (o, cust, _v, _w)
    Project c, _from AS from_1, _to AS to_2
      History customers (c, _from, _to) WHERE c AMONG cust
"""

from __future__ import annotations

from cq_engine.algebra.nodes import Node, OuterJoin
from cq_engine.delta.context import Context, Rule
from cq_engine.delta.matching import matched_delta, matched_history

__all__ = ["RULE"]


def _outer_join_delta(node: OuterJoin, context: Context) -> Node:
    assert node.kind == "LEFT"  # the others are rewritten
    return matched_delta(node, context)


def _outer_join_history(node: OuterJoin, context: Context) -> Node:
    assert node.kind == "LEFT"
    return matched_history(node, context)


RULE = Rule(OuterJoin, _outer_join_delta, _outer_join_history)
