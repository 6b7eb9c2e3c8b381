"""Deterministic ordering: where rows are equal by an ORDER BY, or have no order, the input's row identity decides.

    LIMIT n, row_number, lag, ROWS frames   ORDER BY o  →  ORDER BY o, identity
    first_value, collect_list, ... over RANGE frames    →  by the row_number of (o, identity) within the frame
    first, collect_list, min_by, mode, ... of a group   →  see `ordered_calls`

Without this Spark may take other rows in a refresh than in the one before, and the delta law would not hold.
rank, cume_dist and RANGE frames keep their peers: they give the same to all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import singledispatchmethod

from sqlglot import exp

from cq_engine.algebra import nodes
from cq_engine.algebra.analysis.identity import Comparable, Identity, Types, row_identity
from cq_engine.algebra.analysis.keys import TableKeys
from cq_engine.algebra.functions import call_name
from cq_engine.algebra.names import Names
from cq_engine.algebra.nodes import Named, Node, PlanError, column
from cq_engine.algebra.rebuild import rebuild
from cq_engine.algebra.rewrite.ordered_calls import (
    FIRST,
    LAST,
    Call,
    OrderedCall,
    approximate,
    collect,
    extreme,
    is_numbering,
    is_positional,
    is_set,
    ordered_call,
    unwrap,
)

__all__ = ["make_deterministic", "ordering_notes"]

_RANKING = (exp.Rank, exp.DenseRank, exp.PercentRank, exp.CumeDist)
_TIED = (exp.GroupConcat, exp.Mode, exp.ArgMin, exp.ArgMax, exp.ArrayUniqueAgg)


def make_deterministic(
    node: Node, table_keys: TableKeys, types: Types, form: Comparable, names: Names
) -> tuple[Node, tuple[str, ...]]:
    """The plan with a deterministic ordering, and a note on each order that cannot be made so.

    Args:
        node: a defining query's plan; it is returned as it is where nothing depends on the order of equal rows.
        table_keys: primary keys of the tables, and types of the plan's columns.
        types: Spark's types of expressions over a node's columns.
        form: how Spark orders values of types that it has no order for.
        names: of the plan.
    """
    ordering = _Ordering(table_keys, types, form, names, [])
    return rebuild(node, ordering.order), tuple(dict.fromkeys(ordering.notes))


def ordering_notes(query: exp.Expr) -> tuple[str, ...]:
    """A note on what in a query, which is not rewritten, may depend on the order of rows that are equal by its orders."""
    found: dict[str, None] = {}
    for part in query.walk():
        call = unwrap(part)
        if isinstance(part, (exp.Limit, exp.Offset)):
            found["LIMIT"] = None
        elif (
            isinstance(part, _TIED)
            or is_numbering(part)
            or (part is call.core and (is_positional(call) or is_set(call)))
        ):
            found[_name(part)] = None
    if not found:
        return ()
    what = ", ".join(sorted(found))
    return (
        f"{what}: of rows that are equal in the order, any may be taken, and another one by each computation",
    )


@dataclass(frozen=True)
class _Ordering:
    keys: TableKeys
    types: Types
    form: Comparable
    names: Names
    notes: list[str]

    @singledispatchmethod
    def order(self, node: Node) -> Node:
        """One node, its inputs done."""
        raise PlanError(f"nothing says whether {type(node).__name__} depends on an order")

    @order.register(nodes.Scan)
    @order.register(nodes.Values)
    @order.register(nodes.Filter)
    @order.register(nodes.Project)
    @order.register(nodes.Generate)
    @order.register(nodes.UnionAll)
    @order.register(nodes.Join)
    @order.register(nodes.OuterJoin)
    @order.register(nodes.SemiJoin)
    @order.register(nodes.Mark)
    @order.register(nodes.Distinct)
    @order.register(nodes.SetOperation)
    def _itself(self, node: Node) -> Node:
        """The result does not depend on an order of the input's rows."""
        return node

    def _identity(self, what: str, node: Node, given: Sequence[exp.Expr]) -> Identity:
        found = row_identity(node, given, self.keys, self.types, self.form)
        if found.missing:
            self.notes.append(
                f"{what}: {', '.join(found.missing)} cannot be ordered, so that of rows that differ in nothing else"
                " any may be taken"
            )
        return found

    def _calls(self, node: Node, given: Sequence[exp.Expr], call: exp.Expr) -> OrderedCall | None:
        """An aggregate call over `node`, among rows that agree in `given`."""
        opening = unwrap(call)
        name = _name(opening.core)
        if approximate(call):
            self.notes.append(f"{name}: approximate, may differ from one computation to the next")
        rewrite = ordered_call(
            opening,
            lambda more: self._identity(name, node, [*given, *more]),
            lambda e: self.types(node, [e])[0],
        )
        if rewrite is None and is_set(opening):
            self.notes.append(f"{name}: its values cannot be ordered, so that their order may change")
        return rewrite

    # ---------------------------------------------------------------- LIMIT and GROUP BY

    @order.register
    def _limit(self, node: nodes.Limit) -> Node:
        if node.count is None and not node.offset:
            return node
        given = [*(column(k) for k in node.keys), *(o.this for o in node.order)]
        identity = self._identity("LIMIT", node.input, given)
        return replace(node, order=(*node.order, *identity.order())) if identity.expressions else node

    @order.register
    def _aggregate(self, node: nodes.Aggregate) -> Node:
        keys = [e for _, e in node.keys]
        rewrites = [self._calls(node.input, keys, call) for _, call in node.functions]
        if not any(rewrites):
            return node
        functions, items = self._show(node.functions, rewrites)
        result = replace(node, functions=functions)
        kept = tuple((name, column(name)) for name, _ in node.keys)
        return nodes.Project(result, (*kept, *items)) if any(t and t.shown for t in rewrites) else result

    def _show(self, functions: Named, rewrites: Sequence[OrderedCall | None]) -> tuple[Named, Named]:
        """The functions with their rewritten calls, and what stands for each of them in a projection above."""
        calls, items = [], []
        for (name, call), rewrite in zip(functions, rewrites):
            raw = name
            if rewrite is not None and rewrite.shown is not None:
                raw = self.names.fresh("raw")
                items.append((name, rewrite.shown(column(raw))))
            else:
                items.append((name, column(name)))
            calls.append((raw, call if rewrite is None else rewrite.call))
        return tuple(calls), tuple(items)

    # ---------------------------------------------------------------- windows

    @order.register
    def _window(self, node: nodes.Window) -> Node:
        """Rows that are equal in all columns get their numbers of all orders in one way: one order after the other."""
        ranks: list[tuple[str, exp.Window]] = []
        rewrites = [self._function(node.input, call, ranks) for _, call in node.functions]
        if not any(rewrites):
            return node
        orders = [t.numbers if t is not None else "" for t in rewrites]
        first = next((order for order in orders if order), "")
        rest = tuple(f for f, order in zip(node.functions, orders) if order not in ("", first))
        if rest:
            now = tuple(f for f in node.functions if f not in rest)
            return self._window(nodes.Window(self._window(replace(node, functions=now)), rest, node.keys))
        functions, items = self._show(node.functions, rewrites)
        source = nodes.Window(node.input, tuple(ranks), node.keys) if ranks else node.input
        result = nodes.Window(source, functions, node.keys)
        if not ranks and not any(t and t.shown for t in rewrites):
            return result
        return nodes.Project(result, (*((n, column(n)) for n in node.input.columns), *items))

    def _function(
        self, source: Node, call: exp.Expr, ranks: list[tuple[str, exp.Window]]
    ) -> OrderedCall | None:
        """A window function over `source`; adds to `ranks` what it needs to be numbered before."""
        if not isinstance(call, exp.Window) or isinstance(call.this, _RANKING):
            return None
        partition = list(call.args.get("partition_by") or [])
        inner = unwrap(call.this)
        frame = _Frame.of(call)
        positional = is_positional(inner)
        rewrite = None if positional else self._calls(source, partition, call.this)

        def ordered(whole: bool = False) -> OrderedCall | None:
            identity = self._identity(_name(inner.core), source, [*partition, *_keys(call)])
            if not identity.expressions:
                return None
            made = call.copy()
            made.set("order", exp.Order(expressions=[*(o.copy() for o in _orders(call)), *identity.order()]))
            if whole:
                made.set("spec", _WHOLE.copy())
            numbers = "" if identity.unique else made.args["order"].sql(dialect="spark")
            return OrderedCall(made, numbers=numbers)

        if is_numbering(inner.core):
            return ordered()
        if positional and frame.whole:
            return ordered(whole=True)
        if frame.rows and not frame.whole:
            return _inside(ordered(), call, rewrite)
        if positional and frame.begins_with(inner):
            return ordered()
        if positional:
            return self._rank(source, call, inner, ranks)
        return _inside(None, call, rewrite)

    def _rank(
        self, source: Node, call: exp.Window, inner: Call, ranks: list[tuple[str, exp.Window]]
    ) -> OrderedCall | None:
        """A positional function over a frame with peers, by the rows' numbers."""
        partition = list(call.args.get("partition_by") or [])
        identity = self._identity(_name(inner.core), source, [*partition, *_keys(call)])
        if not identity.expressions:
            return None
        order = exp.Order(expressions=[*(o.copy() for o in _orders(call)), *identity.order()])
        number = exp.Window(this=exp.RowNumber(), partition_by=[p.copy() for p in partition], order=order)
        known = next((name for name, each in ranks if each == number), None)
        if known is None:
            known = self.names.fresh("rank")
            ranks.append((known, number))
        if isinstance(inner.core, (*FIRST, *LAST)):
            return _inside(None, call, OrderedCall(extreme(inner, column(known))))
        kind = self.types(source, [inner.core.this])[0]
        nth = inner.core.args.get("offset") if isinstance(inner.core, exp.NthValue) else None
        keeps_nulls = inner.respect_nulls or (nth is not None and not inner.ignore_nulls)
        return _inside(None, call, collect(inner, [column(known)], kind, keeps_nulls, nth))


_WHOLE = exp.WindowSpec(
    kind="ROWS", start="UNBOUNDED", start_side="PRECEDING", end="UNBOUNDED", end_side="FOLLOWING"
)


@dataclass(frozen=True)
class _Frame:
    """`start` and `end` are those of the frame clause, upper case; `rows`: counted in rows, without peers."""

    rows: bool
    start: str
    end: str

    @classmethod
    def of(cls, window: exp.Window) -> _Frame:
        spec = window.args.get("spec")
        if spec is None:
            end = "CURRENT ROW" if _orders(window) else "UNBOUNDED FOLLOWING"
            return cls(False, "UNBOUNDED PRECEDING", end)

        def bound(name: str) -> str:
            value = spec.args.get(name)
            text = value.sql(dialect="spark") if isinstance(value, exp.Expr) else str(value or "CURRENT ROW")
            return f"{text} {spec.args.get(f'{name}_side') or ''}".strip().upper()

        return cls(str(spec.args.get("kind")).upper() == "ROWS", bound("start"), bound("end"))

    @property
    def whole(self) -> bool:
        return self.start == "UNBOUNDED PRECEDING" and self.end == "UNBOUNDED FOLLOWING"

    def begins_with(self, call: Call) -> bool:
        """Is the wanted row the same whether or not peers of the current row are in the frame?"""
        if call.ignore_nulls or call.where is not None:
            return False
        if isinstance(call.core, FIRST):
            return self.start == "UNBOUNDED PRECEDING" and self.end == "CURRENT ROW"
        return (
            isinstance(call.core, LAST) and self.start == "CURRENT ROW" and self.end == "UNBOUNDED FOLLOWING"
        )


def _inside(
    ordered: OrderedCall | None, window: exp.Window, rewrite: OrderedCall | None
) -> OrderedCall | None:
    """The window with the function `rewrite` in the place of its own, and the order of `ordered`."""
    if rewrite is None:
        return ordered
    result = (ordered.call if ordered is not None else window).copy()
    result.set("this", rewrite.call)
    return OrderedCall(result, rewrite.shown, ordered.numbers if ordered is not None else "")


def _orders(window: exp.Window) -> list[exp.Expr]:
    order = window.args.get("order")
    return list(order.expressions) if order is not None else []


def _keys(window: exp.Window) -> list[exp.Expr]:
    return [each.this for each in _orders(window)]


def _name(call: exp.Expr) -> str:
    """The function as Spark calls it."""
    return call_name(call) or type(call).__name__.lower()
