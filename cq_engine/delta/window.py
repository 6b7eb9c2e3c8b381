"""Window functions: a partition is evaluated anew when one of its rows changes.

    Δω(R) at commit s  =  ω(R ⋉ P)@s − ω(R ⋉ P)@s⁻,   P = partitions of Δ(R)ₛ

Rows of the partition whose values stay cancel when the delta is consolidated. Functions without PARTITION BY have one
partition: everything. (Griffin & Kumar's affected groups; see `partition`.)

>>> from cq_engine.algebra.names import Names
>>> from cq_engine.algebra.nodes import Scan, Window, column
>>> from cq_engine.algebra.show import explain
>>> from cq_engine.delta.context import Context, delta
>>> from cq_engine.delta.rules import RULES
>>> from sqlglot import parse_one
>>> orders = Scan("orders", (("o", "o"), ("cust", "cust")))
>>> number = parse_one("row_number() OVER (PARTITION BY cust ORDER BY o)")
>>> numbered = Window(orders, (("n", number),), (column("cust"),))
>>> context = Context(RULES, Names(), frozenset({"orders"}))
>>> print(explain(delta(numbered, context)))
Edges
  Project o, cust, n, p_2 AS _from, until_3 AS _to
    Window ROW_NUMBER() OVER (PARTITION BY cust, p_2 ORDER BY o) AS n
      Join ON pk_1 <=> k_4 AND _from <= p_2 AND p_2 < _to
        Window COALESCE(LEAD(p_2) OVER (PARTITION BY pk_1 ORDER BY p_2), CAST(9223372036854775807 AS BIGINT)) AS until_3
          UnionAll (pk_1, p_2)
            #1 Distinct
              Project cust AS pk_1, _v AS p_2
                Changes orders (o, cust, _v, _w)
            Distinct
              Project pk_1, CAST(-1 AS BIGINT) AS p_2
                #1
        Project o, cust, _from, _to, cust AS k_4
          History orders (o, cust, _from, _to) WHERE cust AMONG pk_1
"""

from __future__ import annotations

from sqlglot import exp

from cq_engine.algebra.nodes import Node, Window, column
from cq_engine.delta.context import Context, Rule
from cq_engine.delta.partition import Build, edges, partition_history, partition_versions

__all__ = ["RULE"]


def _build(node: Window) -> Build:
    def build(rows: Node, more: tuple[str, ...]) -> Node:
        functions = []
        for name, function in node.functions:
            added: exp.Expr = function.copy()
            added.set("partition_by", [*(added.args.get("partition_by") or []), *map(column, more)])
            functions.append((name, added))
        return Window(rows, tuple(functions), node.keys)

    return build


def _window_delta(node: Window, context: Context) -> Node:
    return edges(partition_versions(node, node.input, node.keys, _build(node), context)[0])


def _window_history(node: Window, context: Context) -> Node:
    return partition_history(node, node.input, node.keys, _build(node), context)


RULE = Rule(Window, _window_delta, _window_history)
