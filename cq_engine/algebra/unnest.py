"""The part of the lowering that joins subqueries to the query around them (see `subqueries` for the method)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from sqlglot import exp

from cq_engine.algebra.functions import aggregate_calls, conjuncts
from cq_engine.algebra.names import Names
from cq_engine.algebra.nodes import Filter, Join, Node, OuterJoin, Project, column, references
from cq_engine.algebra.subqueries import (
    Domain,
    Pending,
    Sources,
    domain_of,
    in_conditions,
    is_condition,
    marked,
    null_safe,
    only_row,
    outer_columns,
    reads,
    semi,
)

if TYPE_CHECKING:
    from cq_engine.algebra.lowered import Ctes, From, Lowered

__all__ = ["NotLowered", "Unnesting"]


class NotLowered(Exception):
    """The query has a construct without an algebra; the text says which."""


class Unnesting:
    """Mixed into the lowering, which lowers the subqueries themselves."""

    names: Names
    pending: dict[str, Pending]
    scopes: dict[str, Ctes]

    if TYPE_CHECKING:

        def query(self, query: exp.Expr, ctes: Ctes, domain: Domain | None = None) -> Lowered: ...

        def from_clause(self, select: exp.Select, ctes: Ctes) -> From: ...

        def expression(self, expression: exp.Expr, sources: Sources, ctes: Ctes) -> exp.Expr: ...

        def _with(self, query: exp.Expr, ctes: Ctes) -> Ctes: ...

    # ---------------------------------------------------------------- conditions

    def restricted(self, node: Node, conditions: Sequence[exp.Expr]) -> Node:
        """`node` where all conditions hold, subqueries among them."""
        for condition in conditions:
            found = is_condition(condition, self.pending)
            if found is not None:
                node = self._semi_join(node, *found)
            else:
                before = node.columns
                node, (plain,) = self.attached(node, [condition])
                node = Filter(node, plain)
                if node.columns != before:
                    node = Project(node, tuple((n, column(n)) for n in before))
        return node

    def _semi_join(self, node: Node, pending: Pending, anti: bool) -> Node:
        simple = self._simple(node, pending, anti)
        if simple is not None:
            return simple
        domain, values = self._domain(node, pending)
        lowered = self.query(pending.query, self.scopes[pending.name], domain)
        conditions = [*null_safe(values, lowered.domain)]
        if pending.kind == "IN":
            conditions += in_conditions(pending.left, lowered.outputs, anti)
        return semi(node, lowered.node, conditions, anti)

    def _simple(self, node: Node, pending: Pending, anti: bool) -> Node | None:
        """EXISTS and IN over a plain SELECT whose only outer columns stand in WHERE: a semi join on its conditions."""
        query = pending.query
        if not isinstance(query, exp.Select) or not _is_plain(query):
            return None
        ctes = self._with(query, self.scopes[pending.name])
        try:
            source = self.from_clause(query, ctes)
            sources = {**pending.sources, **source.sources}
            where = query.args.get("where")
            conditions = conjuncts(self.expression(where.this, sources, ctes)) if where else []
            wanted = (
                [self.expression(s.unalias(), source.sources, ctes) for s in query.selects]
                if pending.kind == "IN"
                else []
            )
        except NotLowered:
            return None
        inner: list[exp.Expr] = []
        across: list[exp.Expr] = []
        known = {name for each in source.inputs for name in each.columns}
        for condition in conditions:
            if references(condition) & set(self.pending):
                return None
            (inner if references(condition) <= known else across).append(condition)
        source.conditions += inner
        rows = source.node()
        outputs = [self.names.fresh("in") for _ in wanted]
        if wanted:
            rows = Project(rows, (*((n, column(n)) for n in rows.columns), *zip(outputs, wanted)))
        if any(not references(c) <= set(rows.columns) | set(node.columns) for c in across):
            return None
        return semi(node, rows, [*across, *in_conditions(pending.left, outputs, anti)], anti)

    # ---------------------------------------------------------------- values

    def attached(self, node: Node, expressions: Sequence[exp.Expr]) -> tuple[Node, list[exp.Expr]]:
        """`node` joined with the subqueries in `expressions`, and the expressions over the joined columns."""
        values: dict[str, exp.Expr] = {}
        for each in reads(expressions, self.pending):
            node, values[each.name] = self._joined(node, each)

        def replaced(part: exp.Expr) -> exp.Expr:
            if isinstance(part, exp.Column) and part.name in values:
                return exp.Paren(this=values[part.name].copy())
            return part

        return node, [e.copy().transform(replaced) for e in expressions] if values else list(expressions)

    def _domain(self, node: Node, pending: Pending) -> tuple[Domain | None, tuple[exp.Expr, ...]]:
        outer = outer_columns(pending.query, pending.sources)
        if not outer:
            return None, ()
        for alias, name in outer:
            if not references(pending.sources[alias][name]) <= set(node.columns):
                raise NotLowered(
                    f"the subquery reads {alias}.{name}, which is neither grouped nor aggregated"
                )
        return domain_of(node, outer, pending.sources, self.names)

    def _joined(self, node: Node, pending: Pending) -> tuple[Node, exp.Expr]:
        """`node` with the subquery's value as an expression over it."""
        domain, values = self._domain(node, pending)
        lowered = self.query(pending.query, self.scopes[pending.name], domain)
        if pending.kind == "SCALAR":
            return self._scalar(node, lowered, values)
        flagged, flag = marked(node, values, lowered.node, lowered.domain, self.names)
        some = exp.Not(this=exp.Is(this=column(flag), expression=exp.Null()))
        if pending.kind == "EXISTS":
            return flagged, some
        if len(pending.left) > 1:
            raise NotLowered("IN over several columns inside an expression is recomputed")
        keys = (*lowered.domain, *lowered.outputs)
        flagged, hit = marked(flagged, (*values, *pending.left), lowered.node, keys, self.names)
        nulls = Filter(lowered.node, exp.Is(this=column(lowered.outputs[0]), expression=exp.Null()))
        flagged, null = marked(flagged, values, nulls, lowered.domain, self.names)
        left = pending.left[0]
        is_null = exp.Is(this=exp.Paren(this=left.copy()), expression=exp.Null())
        unknown = exp.or_(
            exp.and_(is_null, some.copy()), exp.Not(this=exp.Is(this=column(null), expression=exp.Null()))
        )
        found = exp.and_(
            exp.Not(this=exp.Is(this=column(hit), expression=exp.Null())), exp.Not(this=is_null.copy())
        )
        return flagged, exp.Case(
            ifs=[exp.If(this=found, true=exp.true()), exp.If(this=unknown, true=exp.Null())],
            default=exp.false(),
        )

    def _scalar(self, node: Node, lowered: Lowered, values: tuple[exp.Expr, ...]) -> tuple[Node, exp.Expr]:
        conditions = null_safe(values, lowered.domain)
        if lowered.one_row:
            return Join((node, lowered.node), conditions), column(lowered.outputs[0])
        rows, value = only_row(lowered.node, lowered.domain, lowered.outputs[0], self.names)
        if not lowered.domain:
            return Join((node, rows), ()), column(value)
        return OuterJoin(node, rows, "LEFT", conditions), column(value)

    def lateral(
        self, left: Node, sources: Sources, query: exp.Expr, ctes: Ctes, outer: bool
    ) -> tuple[Node, Lowered]:
        """`left` joined with a LATERAL subquery over its columns."""
        pending = Pending(self.names.fresh("lateral"), "LATERAL", query, (), sources)
        domain, values = self._domain(left, pending)
        lowered = self.query(query, ctes, domain)
        conditions = null_safe(values, lowered.domain)
        if outer:
            return OuterJoin(left, lowered.node, "LEFT", conditions), lowered
        return Join((left, lowered.node), conditions), lowered

    # ---------------------------------------------------------------- after GROUP BY

    def regrouped(self, expressions: Sequence[exp.Expr], rewrite: Callable[[exp.Expr], exp.Expr]) -> None:
        """Subqueries in `expressions`, which now stand above a GROUP BY, see its columns instead of its input's."""
        for each in reads(expressions, self.pending):
            sources = {
                alias: {name: rewrite(value) for name, value in fields.items()}
                for alias, fields in each.sources.items()
            }
            left = tuple(rewrite(value) for value in each.left)
            self.pending[each.name] = replace(each, left=left, sources=sources)


def _is_plain(select: exp.Select) -> bool:
    clauses = ("group", "having", "qualify", "limit", "offset", "laterals", "windows")
    if any(select.args.get(clause) for clause in clauses):
        return False
    return not any(aggregate_calls(each) or each.find(exp.Window) for each in select.selects)
