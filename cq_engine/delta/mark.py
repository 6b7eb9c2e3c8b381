"""Mark join: every left row with the answer to EXISTS, for a subquery inside an expression. See `matching`.

Δ(L ⟕∃ R) as Δ(L ⟕ R); a change of R that leaves the answer as it was cancels when the delta is consolidated.

>>> from cq_engine.algebra.names import Names
>>> from cq_engine.algebra.nodes import Mark, Scan
>>> from cq_engine.algebra.show import explain
>>> from cq_engine.delta.context import Context, delta
>>> from cq_engine.delta.rules import RULES
>>> from sqlglot import parse_one
>>> orders = Scan("orders", (("o", "o"), ("cust", "cust")))
>>> customers = Scan("customers", (("c", "c"),))
>>> marked = Mark(orders, customers, (parse_one("cust = c"),), "known")
>>> context = Context(RULES, Names(), frozenset({"orders"}))
>>> print(explain(delta(marked, context)))
Project o, cust, known, _v, _w
  Mark known ON cust = c
    Changes orders (o, cust, _v, _w)
    Project c, _from AS from_1, _to AS to_2
      History customers (c, _from, _to) WHERE c AMONG cust
"""

from __future__ import annotations

from cq_engine.algebra.nodes import Mark
from cq_engine.delta.context import Rule
from cq_engine.delta.matching import matched_delta, matched_history

__all__ = ["RULE"]

RULE = Rule(Mark, matched_delta, matched_history)
