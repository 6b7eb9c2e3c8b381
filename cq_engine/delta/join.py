"""The n-way inner join (Witkowski et al., VLDB 2007, slides 18-19, forms 1 and 2 for n tables).

    Δ(T₁ ⋈ … ⋈ Tₙ) at commit s  =  Σᵢ  T₁@s ⋈ … ⋈ Tᵢ₋₁@s ⋈ Δₛ(Tᵢ) ⋈ Tᵢ₊₁@s⁻ ⋈ … ⋈ Tₙ@s⁻

For j < i the versions of Tⱼ with `_from` <= s < `_to` take part, for j > i those with `_from` < s <= `_to`. Terms
whose Δ is empty are dropped; an occurrence of a self-joined table is a Tᵢ of its own. Each term starts from its Δ and
goes on to inputs that are connected with what it has, so that a small delta never meets a cross product.

*At once.* Where several inputs change and all are tables, the terms read each of them again. The same rows come from one
join of row versions, each valid where all of its parts are: it changes where one begins or ends. Of each table it has the
rows that change, and those that some term would look up; combinations of which no part changes have no edge. It is the
smaller plan (n leaves, not n²), for intervals whose rows the driver has.

>>> from cq_engine.algebra.names import Names
>>> from cq_engine.algebra.nodes import Join, Scan
>>> from cq_engine.algebra.show import explain
>>> from cq_engine.delta.context import Context, delta
>>> from cq_engine.delta.rules import RULES
>>> from sqlglot import parse_one
>>> orders = Scan("orders", (("o", "o"), ("cust", "cust")))
>>> customers = Scan("customers", (("c", "c"),))
>>> joined = Join((orders, customers), (parse_one("cust = c"),))
>>> context = Context(RULES, Names(), frozenset({"orders"}))
>>> print(explain(delta(joined, context)))
Project o, cust, c, _v, _w
  Join ON cust = c
    Changes orders (o, cust, _v, _w)
    Project c, _from AS from_1, _to AS to_2
      History customers (c, _from, _to) WHERE c AMONG cust
"""

from __future__ import annotations

from sqlglot import exp

from cq_engine.algebra.nodes import (
    FROM,
    TO,
    VERSION,
    WEIGHT,
    Edges,
    Empty,
    Filter,
    Join,
    Node,
    Project,
    RuntimeFilter,
    Scan,
    column,
    references,
)
from cq_engine.delta.context import Context, Rule, delta, has_changes, history
from cq_engine.delta.linear import rename_validity, union, valid_after, valid_before
from cq_engine.delta.runtime_filters import Reducer, RuntimeFilters, join_filters, meetings

__all__ = ["RULE"]


def _join_delta(node: Join, context: Context) -> Node:
    columns = (*node.columns, VERSION, WEIGHT)
    whole = _at_once(node, context) if context.at_once else None
    if whole is not None:
        return whole
    terms = [_term(node, i, context) for i, each in enumerate(node.inputs) if has_changes(each, context)]
    return union(terms, columns)


def _term(node: Join, i: int, context: Context) -> Node:
    """The term in which input `i` brings its delta."""
    own = delta(node.inputs[i], context)
    columns = (*node.columns, VERSION, WEIGHT)
    if isinstance(own, Empty):
        return own if own.columns == columns else Empty(columns)
    order, filters = _order_inputs(node, i, own)
    parts: dict[int, Node] = {}
    conditions = list(node.conditions)
    for j, each in enumerate(node.inputs):
        if j == i:
            continue
        meets = meetings(each, filters[j], own, node.inputs[i].columns, node.conditions)
        versions = history(each, context.with_filters(filters[j], meets))
        if isinstance(versions, Empty):
            return Empty(columns)
        parts[j], start, end = rename_validity(versions, context)
        if has_changes(each, context):
            valid = valid_before if j > i else valid_after
            conditions += valid(column(VERSION), start, end)
    inputs = tuple(own if j == i else parts[j] for j in order)
    joined = Join(inputs, tuple(conditions))
    return Project(joined, tuple((name, column(name)) for name in columns))


def _order_inputs(node: Join, i: int, own: Node) -> tuple[list[int], dict[int, RuntimeFilters]]:
    """The inputs in the order in which the delta `own` of input `i` leads to them, and what of them it needs."""
    order = _join_order(i, node)
    known = {name: Reducer(own, name) for name in node.inputs[i].columns}
    return order, join_filters(node.inputs, node.conditions, known, order[1:])


def _at_once(node: Join, context: Context) -> Node | None:
    """All terms as the edges of one join; None where there is one term only, or one that needs all of a table."""
    changing = [i for i, each in enumerate(node.inputs) if has_changes(each, context)]
    if len(changing) < 2 or not all(map(_is_table, node.inputs)):
        return None
    among: dict[int, list[tuple[RuntimeFilter, ...]]] = {}
    for i in changing:
        own = delta(node.inputs[i], context)
        if isinstance(own, Empty):
            return None
        for found in _order_inputs(node, i, own)[1].values():
            for scan, filters in found.items():
                if not filters:
                    return None
                among.setdefault(scan, []).append(filters)
    versions = history(node, context.with_any_of({scan: tuple(each) for scan, each in among.items()}))
    return None if isinstance(versions, Empty) else Edges(versions)


def _is_table(node: Node) -> bool:
    """A table, filtered and projected."""
    return isinstance(node, Scan) or (isinstance(node, (Filter, Project)) and _is_table(node.input))


def _join_order(start: int, node: Join) -> list[int]:
    """The inputs in an order in which each is joined by an equality with those before it, as far as there is one."""
    order = [start]
    known = set(node.inputs[start].columns)
    rest = [j for j in range(len(node.inputs)) if j != start]
    while rest:
        linked = [
            j for j in rest if any(_links(c, known, set(node.inputs[j].columns)) for c in node.conditions)
        ]
        following = (linked or rest)[0]
        order.append(following)
        known |= set(node.inputs[following].columns)
        rest.remove(following)
    return order


def _links(condition: exp.Expr, known: set[str], other: set[str]) -> bool:
    if not isinstance(condition, (exp.EQ, exp.NullSafeEQ)):
        return False
    left, right = references(condition.left), references(condition.right)
    return bool(left and right) and ((left <= known and right <= other) or (left <= other and right <= known))


# ------------------------------------------------------------------------------------------------ history


def _join_history(node: Join, context: Context) -> Node:
    """Combinations of row versions whose validities overlap, valid where all are."""
    inputs, starts, ends = [], [], []
    for each in node.inputs:
        versions = history(each, context)
        if isinstance(versions, Empty):
            return Empty((*node.columns, FROM, TO))
        rows, start, end = rename_validity(versions, context)
        inputs.append(rows)
        starts.append(column(start))
        ends.append(column(end))
    first = exp.Greatest(this=starts[0], expressions=list(starts[1:]), ignore_nulls=True)
    last = exp.Least(this=ends[0], expressions=list(ends[1:]), ignore_nulls=True)
    conditions = [*node.conditions]
    if any(has_changes(each, context) for each in node.inputs):
        conditions.append(exp.LT(this=first.copy(), expression=last.copy()))
    joined = Join(tuple(inputs), tuple(conditions))
    items = [(name, column(name)) for name in node.columns]
    return Project(joined, (*items, (FROM, first), (TO, last)))


RULE = Rule(Join, _join_delta, _join_history)
