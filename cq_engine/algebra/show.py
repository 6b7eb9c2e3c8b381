"""Plans as text: one line per node, its inputs indented below it.

>>> from cq_engine.algebra.nodes import Filter, Scan
>>> import sqlglot
>>> orders = Scan("orders", (("o_1", "o"), ("amt_2", "amt")))
>>> print(explain(Filter(orders, sqlglot.parse_one("amt_2 > 5"))))
Filter amt_2 > 5
  Scan orders (o AS o_1, amt AS amt_2)

A node that is used more than once is shown where it is met first, under a number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import singledispatch

from sqlglot import exp

from cq_engine.algebra import nodes
from cq_engine.algebra.emit import sql_of
from cq_engine.algebra.nodes import Named, Node, PlanError, RuntimeFilter, children

__all__ = ["explain", "line"]


def explain(*roots: Node) -> str:
    """The plans of `roots`, one after the other; nodes that they share have one number."""
    uses: Counter[int] = Counter()

    def count(node: Node) -> None:
        uses[id(node)] += 1
        if uses[id(node)] == 1:
            for each in children(node):
                count(each)

    numbers: dict[int, int] = {}
    lines: list[str] = []

    def show(node: Node, depth: int) -> None:
        indent = "  " * depth
        if id(node) in numbers:
            lines.append(f"{indent}#{numbers[id(node)]}")
            return
        mark = ""
        if uses[id(node)] > 1:
            numbers[id(node)] = len(numbers) + 1
            mark = f"#{numbers[id(node)]} "
        lines.append(f"{indent}{mark}{line(node)}".rstrip())
        for each in children(node):
            show(each, depth + 1)

    for root in roots:
        count(root)
    for root in roots:
        show(root, 0)
    return "\n".join(lines)


@singledispatch
def line(node: Node) -> str:
    raise PlanError(f"nothing says how {type(node).__name__} is shown")


@line.register(nodes.Empty)
@line.register(nodes.Distinct)
@line.register(nodes.Edges)
def _kind(node: Node) -> str:
    return type(node).__name__


line.register(
    nodes.Scan, lambda n: f"Scan {n.table} ({_list(_as(source, name) for name, source in n.fields)})"
)
line.register(nodes.Changes, lambda n: f"Changes {n.scan.table} ({_list(n.columns)})")
line.register(
    nodes.History,
    lambda n: f"History {n.scan.table} ({_list(n.columns)}){_filters(n.filters)}{_among(n.among)}",
)
line.register(nodes.StateRows, lambda n: f"State {n.label} ({_list(n.names)}){_filters(n.filters)}")
line.register(nodes.Given, lambda n: f"Given {n.name} ({_list(n.names)})")
line.register(
    nodes.Values, lambda n: f"Values {_list(f'({_exprs(row)})' for row in n.rows)} AS ({_list(n.names)})"
)
line.register(nodes.Filter, lambda n: f"Filter {sql_of(n.condition)}")
line.register(nodes.Project, lambda n: f"Project {_show_items(n.items)}")
line.register(nodes.UnionAll, lambda n: f"UnionAll ({_list(n.names)})")
line.register(
    nodes.Generate, lambda n: f"Generate {'OUTER ' if n.outer else ''}{sql_of(n.call)} AS ({_list(n.names)})"
)
line.register(nodes.Join, lambda n: f"Join{_on(n.conditions)}")
line.register(nodes.OuterJoin, lambda n: f"OuterJoin {n.kind}{_on(n.conditions)}")
line.register(nodes.SemiJoin, lambda n: f"{'AntiJoin' if n.anti else 'SemiJoin'}{_on(n.conditions)}")
line.register(nodes.Mark, lambda n: f"Mark {n.name}{_on(n.conditions)}")
line.register(nodes.SetOperation, lambda n: f"{n.kind}{' ALL' if n.all else ''} ({_list(n.names)})")
line.register(nodes.Window, lambda n: f"Window {_show_items(n.functions)}")


@line.register
def _aggregate(node: nodes.Aggregate) -> str:
    functions = _show_items(node.functions)
    return f"Aggregate BY ({_show_items(node.keys)})" + (f" {functions}" if functions else "")


@line.register
def _limit(node: nodes.Limit) -> str:
    keys = f" PER ({_list(node.keys)})" if node.keys else ""
    return f"Limit {node.count} OFFSET {node.offset}{keys} ORDER BY {_exprs(node.order)}"


def _list(parts: Iterable[str]) -> str:
    return ", ".join(parts)


def _exprs(parts: Sequence[exp.Expr]) -> str:
    return _list(map(sql_of, parts))


def _as(source: str, name: str) -> str:
    return name if source == name else f"{source} AS {name}"


def _show_items(items: Named) -> str:
    return _list(_as(sql_of(expression), name) for name, expression in items)


def _on(conditions: Sequence[exp.Expr]) -> str:
    return " ON " + " AND ".join(map(sql_of, conditions)) if conditions else ""


def _filters(filters: Sequence[RuntimeFilter]) -> str:
    return f" WHERE {_conditions(filters)}" if filters else ""


def _conditions(filters: Sequence[RuntimeFilter]) -> str:
    return " AND ".join(f"{h.column} AMONG {h.of_column}" for h in filters)


def _among(groups: Sequence[Sequence[RuntimeFilter]]) -> str:
    return " WHERE " + " OR ".join(["CHANGED", *map(_conditions, groups)]) if groups else ""
