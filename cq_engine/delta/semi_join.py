"""Semi and anti join: the left rows with, or without, a partner. See `matching` for the formula.

NOT IN is an anti join whose condition is also true where a side is NULL, so that a NULL that comes or goes on the
right side touches every left row.

>>> from cq_engine.algebra.names import Names
>>> from cq_engine.algebra.nodes import Scan, SemiJoin
>>> from cq_engine.algebra.show import explain
>>> from cq_engine.delta.context import Context, delta
>>> from cq_engine.delta.rules import RULES
>>> from sqlglot import parse_one
>>> orders = Scan("orders", (("o", "o"), ("cust", "cust")))
>>> customers = Scan("customers", (("c", "c"),))
>>> without = SemiJoin(orders, customers, True, (parse_one("cust = c"),))
>>> context = Context(RULES, Names(), frozenset({"customers"}))
>>> print(explain(delta(without, context)))
Project o, cust, s_1 AS _v, w_2 AS _w
  AntiJoin ON cust = c AND (w_2 = 1 AND from_6 <= s_1 AND s_1 < to_7) OR (NOT (w_2 = 1) AND from_6 < s_1 AND s_1 <= to_7)
    Join
      Project o, cust, s_1
        Join ON (cust) = pk_3
          Distinct
            Filter NOT pk_3 IS NULL
              Project c AS pk_3, _v AS s_1
                Changes customers (c, _v, _w)
          Project o, cust, _from AS from_4, _to AS to_5
            History orders (o, cust, _from, _to) WHERE cust AMONG pk_3
      Values (1), (-1) AS (w_2)
    Project c, _from AS from_6, _to AS to_7
      History customers (c, _from, _to) WHERE c AMONG pk_3
"""

from __future__ import annotations

from cq_engine.algebra.nodes import SemiJoin
from cq_engine.delta.context import Rule
from cq_engine.delta.matching import matched_delta, matched_history

__all__ = ["RULE"]

RULE = Rule(SemiJoin, matched_delta, matched_history)
