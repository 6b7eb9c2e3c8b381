"""The part of the lowering that joins subqueries to the query around them (see `subqueries` for the method)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from sqlglot import exp

from cq_engine.algebra.coercion import Types, common_types
from cq_engine.algebra.functions import aggregate_calls, conjuncts, is_aggregate
from cq_engine.algebra.lowering.decorrelate import Keyed, keyed_query
from cq_engine.algebra.lowering.lowered import Domain, Environment, From, Lowered
from cq_engine.algebra.lowering.scope import Outer, Scope, names_in, place_column
from cq_engine.algebra.lowering.subqueries import (
    STAND_IN,
    Pending,
    domain_of,
    equal,
    in_conditions,
    is_condition,
    is_there,
    mark,
    mark_matches,
    null_safe,
    only_row,
    reads,
    semi,
    stands_in,
)
from cq_engine.algebra.names import Names, NotLowered
from cq_engine.algebra.nodes import Filter, Join, Node, OuterJoin, Project, Scan, column, references

__all__ = ["Unnesting"]


class Unnesting:
    """Mixed into the lowering, which lowers the subqueries themselves."""

    names: Names
    pending: dict[str, Pending]
    known: dict[tuple[int, str], str]
    types: Types | None

    if TYPE_CHECKING:

        def query(self, query: exp.Expr, environment: Environment) -> Lowered: ...

        def from_clause(self, select: exp.Select, environment: Environment) -> From: ...

        def join_node(self, part: From) -> Node: ...

        def expression(self, expression: exp.Expr, scope: Scope, environment: Environment) -> exp.Expr: ...

        def with_ctes(self, query: exp.Expr, environment: Environment) -> Environment: ...

    # ---------------------------------------------------------------- finding

    def waiting(self, node: exp.Expr, scope: Scope, environment: Environment) -> exp.Expr | None:
        """The column that stands for `node` until it is joined, where it is a subquery; else None."""
        found = _subquery(node)
        if found is None:
            return None
        kind, query, operands = found
        label = (id(scope), node.sql(dialect="spark"))
        if label not in self.known:
            name = self.names.fresh("subquery")
            left = tuple(self.expression(each, scope, environment) for each in operands)
            closed = environment.close()
            outer, lowered = self.outer_reads(query, scope, closed)
            own = Scope({a: dict(f) for a, f in scope.sources.items()}, dict(scope.merged), scope.outer)
            own.aliases = scope.aliases
            self.pending[name] = Pending(name, kind, query, left, own, closed, outer, lowered)
            self.known[label] = name
            self.kept.append(scope)
        return column(self.known[label])

    kept: list[Scope]
    """Scopes whose identity is a label in `known`."""

    def outer_reads(
        self, query: exp.Expr, scope: Scope, environment: Environment
    ) -> tuple[dict[str, exp.Expr], Lowered | None]:
        """The expressions over `scope` that `query` reads, by their SQL; and the plan of a query that reads none.

        A first lowering finds them: over all expressions that it might read, with a leaf in the domain's place.
        """
        candidates: dict[str, exp.Expr] = {}
        for parts in names_in(query):
            found = scope.find(parts)
            if found is not None and references(found):
                candidates[found.sql(dialect="spark")] = found
        for call in filter(is_aggregate, query.walk()):
            over = self.outer_aggregate(call, scope, environment)
            if over is not None:
                candidates[over.sql(dialect="spark")] = over
        if candidates:
            columns = {text: self.names.fresh("probe") for text in candidates}
            outer = Outer(scope, columns)
            leaf = Scan(STAND_IN, tuple((name, name) for name in columns.values()))
            self.query(query, replace(environment, outer=outer, domain=Domain(leaf, leaf.columns)))
            if outer.used:
                return dict(outer.used), None
        return {}, self.query(query, replace(environment, outer=_constants(query, scope)))

    def environment_of(self, query: exp.Expr, environment: Environment) -> Environment:
        """What a derived table or CTE can see: the query around its own only where it reads that."""
        if self.reads_outer(query, environment):
            return environment
        outer = environment.outer
        return replace(environment.close(), outer=None if outer is None else _constants(query, outer.scope))

    def reads_outer(self, query: exp.Expr, environment: Environment) -> bool:
        """Does a derived table or CTE read columns of the query around its own?"""
        outer = environment.outer
        if outer is None or not any(outer.scope.find(parts) is not None for parts in names_in(query)):
            return False
        found, _ = self.outer_reads(query, outer.scope, environment.close())
        if found and environment.domain is None:
            raise NotLowered("a derived table reads columns of the query around it")
        return bool(found)

    def outer_aggregate(self, call: exp.Expr, scope: Scope, environment: Environment) -> exp.Expr | None:
        """An aggregate call whose columns are all those of `scope`, resolved there; else None."""
        names = list(names_in(call))
        if not names or any(scope.own(parts) is None for parts in names) or call.find(exp.Query):
            return None
        return self.expression(call, scope, environment)

    # ---------------------------------------------------------------- conditions

    def restrict(self, node: Node, conditions: Sequence[exp.Expr]) -> Node:
        """`node` where all conditions hold, subqueries among them."""
        for condition in conditions:
            found = is_condition(condition, self.pending)
            if found is not None:
                node = self._semi_join(node, *found)
            else:
                before = node.columns
                node, (plain,) = self.attach(node, [condition])
                node = Filter(node, plain)
                if node.columns != before:
                    node = Project(node, tuple((n, column(n)) for n in before))
        return node

    def _semi_join(self, node: Node, pending: Pending, negated: bool) -> Node:
        anti = negated != (pending.kind == "NOT IN")
        simple = self._simple(node, pending)
        if simple is not None:
            return semi(node, *simple, anti)
        rows, pairs, outputs = self._rows(node, pending)
        conditions = [c for value, name, safe in pairs for c in _matches(value, name, safe)]
        if pending.kind != "EXISTS":
            conditions += in_conditions(pending.left, outputs, pending.kind == "NOT IN")
        return semi(node, rows, conditions, anti)

    def _simple(self, node: Node, pending: Pending) -> tuple[Node, list[exp.Expr]] | None:
        """EXISTS and IN over a plain SELECT whose only outer columns stand in WHERE: its rows, and what is a match."""
        query = pending.query
        if not isinstance(query, exp.Select) or not _is_plain(query, pending.kind) or not pending.outer:
            return None
        outer = Outer(pending.scope, direct=True)
        environment = replace(self.with_ctes(query, pending.environment), outer=outer)
        try:
            source = self.from_clause(query, environment.close())
            scope = source.scope(outer)
            where = query.args.get("where")
            conditions = conjuncts(self.expression(where.this, scope, environment)) if where else []
            items = query.selects if pending.kind != "EXISTS" else []
            wanted = [self.expression(s.unalias(), source.scope(None), environment) for s in items]
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
        rows = self.join_node(source)
        outputs = [self.names.fresh("in") for _ in wanted]
        if wanted:
            rows = Project(rows, (*((n, column(n)) for n in rows.columns), *zip(outputs, wanted)))
        across = [_substitute(c, pending.outer) for c in across]
        if any(not references(c) <= set(rows.columns) | set(node.columns) for c in across):
            return None
        return rows, [*across, *in_conditions(pending.left, outputs, pending.kind == "NOT IN")]

    # ---------------------------------------------------------------- values

    def attach(
        self, node: Node, expressions: Sequence[exp.Expr], only: str | None = None
    ) -> tuple[Node, list[exp.Expr]]:
        """`node` joined with the subqueries in `expressions` (or just one), and the expressions over its columns."""
        node, values = self.values(
            node, [p for p in reads(expressions, self.pending) if only in (None, p.name)]
        )
        return node, [place_column(e, values) for e in expressions] if values else list(expressions)

    def values(self, node: Node, subqueries: Sequence[Pending]) -> tuple[Node, dict[str, exp.Expr]]:
        """`node` joined with `subqueries`, and what each of them is then."""
        values: dict[str, exp.Expr] = {}
        for each in subqueries:
            ready = replace(each, left=tuple(place_column(e, values) for e in each.left))
            node, values[each.name] = self._value(node, ready)
        return node, values

    def _value(self, node: Node, pending: Pending) -> tuple[Node, exp.Expr]:
        if not pending.references() <= set(node.columns):
            raise NotLowered("a subquery reads a column that is neither grouped nor aggregated")
        if pending.kind == "SCALAR":
            return self._scalar(node, pending)
        simple = self._simple(node, pending)
        if simple is not None:
            node, test = mark_matches(node, *simple, self.names)
            return node, exp.Not(this=exp.Paren(this=test)) if pending.kind == "NOT IN" else test
        rows, pairs, outputs = self._rows(node, pending)
        if pending.kind == "NOT IN":
            conditions = [c for value, name, safe in pairs for c in _matches(value, name, safe)]
            conditions += in_conditions(pending.left, outputs, True)
            node, test = mark_matches(node, rows, conditions, self.names)
            return node, exp.Not(this=exp.Paren(this=test))
        if pending.kind == "IN":
            pairs = [*pairs, *((value, name, False) for value, name in zip(pending.left, outputs))]
        return mark(node, rows, pairs, self.names)

    def _rows(
        self, node: Node, pending: Pending
    ) -> tuple[Node, list[tuple[exp.Expr, str, bool]], tuple[str, ...]]:
        """The subquery's rows, what of them must equal which value of `node`, and its own columns."""
        if pending.lowered is not None:
            return pending.lowered.node, [], pending.lowered.outputs
        keyed = self._key(node, pending)
        if keyed is not None:
            lowered, found = keyed
            width = len(lowered.outputs) - len(found.values)
            pairs = [(v, n, s) for v, n, s in zip(found.values, lowered.outputs[width:], found.safe)]
            return lowered.node, pairs, lowered.outputs[:width]
        lowered, values = self._over_domain(node, pending)
        return lowered.node, [(v, n, True) for v, n in zip(values, lowered.domain)], lowered.outputs

    def _over_domain(self, node: Node, pending: Pending) -> tuple[Lowered, tuple[exp.Expr, ...]]:
        values = tuple(pending.outer.values())
        if not pending.references() <= set(node.columns):
            raise NotLowered("a subquery reads a column that is neither grouped nor aggregated")
        domain = domain_of(node, values, self.names)
        outer = Outer(pending.scope, dict(zip(pending.outer, domain.columns)))
        environment = replace(pending.environment, outer=outer, domain=domain)
        return self.query(pending.query, environment), values

    def _key(self, node: Node, pending: Pending) -> tuple[Lowered, Keyed] | None:
        """The subquery without its outer columns, where these are only compared for equality."""

        def resolved(value: exp.Expr) -> exp.Expr:
            return _substitute(self.expression(value, pending.scope, pending.environment), pending.outer)

        query = pending.query
        if not isinstance(query, exp.Select):
            return None
        try:
            environment = self.with_ctes(query, pending.environment)
            inner = self.from_clause(query, environment).scope(None)
            found = keyed_query(query, pending.kind, inner, pending.scope, resolved)
            if found is None:
                return None
            lowered = self.query(found.query, pending.environment)
            compared = self._comparison_types(node, lowered, found)
            if any(compared):
                found = keyed_query(query, pending.kind, inner, pending.scope, resolved, compared)
                assert found is not None
                lowered = self.query(found.query, pending.environment)
            return lowered, found
        except NotLowered:
            return None

    def _comparison_types(self, node: Node, lowered: Lowered, found: Keyed) -> list[str | None]:
        """For each of the subquery's keys the type in which it is compared, where that is not the key's own."""
        there = all(references(v) <= set(node.columns) for v in found.values)
        if self.types is None or not there or stands_in(node) or stands_in(lowered.node):
            return []
        keys = lowered.outputs[len(lowered.outputs) - len(found.values) :]
        pairs = [(value.unnest(), column(key)) for value, key in zip(found.values, keys)]
        return common_types(Join((node, lowered.node), ()), pairs, self.types, {})

    def _scalar(self, node: Node, pending: Pending) -> tuple[Node, exp.Expr]:
        if pending.lowered is not None:
            lowered = pending.lowered
            if lowered.one_row:
                return Join((node, lowered.node), ()), column(lowered.outputs[0])
            rows, value = only_row(lowered.node, (), lowered.outputs[0], self.names)
            return Join((node, rows), ()), column(value)
        keyed = self._key(node, pending)
        if keyed is not None:
            return self._keyed_scalar(node, *keyed)
        lowered, values = self._over_domain(node, pending)
        conditions = null_safe(values, lowered.domain)
        if lowered.one_row:
            return Join((node, lowered.node), conditions), column(lowered.outputs[0])
        rows, value = only_row(lowered.node, lowered.domain, lowered.outputs[0], self.names)
        return OuterJoin(node, rows, "LEFT", conditions), column(value)

    def _keyed_scalar(self, node: Node, lowered: Lowered, found: Keyed) -> tuple[Node, exp.Expr]:
        value, *keys = lowered.outputs
        rows = lowered.node
        if not found.aggregated:
            rows, value = only_row(rows, keys, value, self.names)
        otherwise = found.empty
        conditions = [c for v, n, s in zip(found.values, keys, found.safe) for c in _matches(v, n, s)]
        if otherwise is None:
            return OuterJoin(node, rows, "LEFT", tuple(conditions)), column(value)
        flag = self.names.fresh("mark")
        rows = Project(rows, (*((n, column(n)) for n in rows.columns), (flag, exp.Literal.number(1))))
        joined = OuterJoin(node, rows, "LEFT", tuple(conditions))
        case = exp.Case(ifs=[exp.If(this=is_there(flag), true=column(value))], default=otherwise.copy())
        return joined, case

    def lateral(
        self, left: Node, scope: Scope, query: exp.Expr, environment: Environment
    ) -> tuple[Lowered, tuple[exp.Expr, ...]]:
        """A LATERAL subquery over the columns of `left`, and the values of `left` that its domain stands for."""
        closed = environment.close()
        found, lowered = self.outer_reads(query, scope, closed)
        if lowered is not None:
            return lowered, ()
        own = Scope({a: dict(f) for a, f in scope.sources.items()}, dict(scope.merged), scope.outer)
        name = self.names.fresh("lateral")
        return self._over_domain(left, Pending(name, "LATERAL", query, (), own, closed, found))

    # ---------------------------------------------------------------- after GROUP BY

    def regroup(self, expressions: Sequence[exp.Expr], rewrite: Callable[[exp.Expr], exp.Expr]) -> None:
        """Subqueries in `expressions`, which now stand above a GROUP BY, see its columns instead of its input's."""
        for each in reads(expressions, self.pending):
            outer = {text: rewrite(value) for text, value in each.outer.items()}
            left = tuple(rewrite(value) for value in each.left)
            self.pending[each.name] = replace(each, left=left, outer=outer)


def _matches(value: exp.Expr, name: str, safe: bool) -> Sequence[exp.Expr]:
    return null_safe([value], [name]) if safe else equal([value], [name])


def _substitute(expression: exp.Expr, outer: Mapping[str, exp.Expr]) -> exp.Expr:
    """`expression` over what its outer columns have become."""

    def substitute(part: exp.Expr) -> exp.Expr:
        found = outer.get(part.sql(dialect="spark"))
        return (
            part
            if found is None
            else (found.copy() if isinstance(found, exp.Column) else exp.Paren(this=found.copy()))
        )

    return expression.copy().transform(substitute)


def _subquery(node: exp.Expr) -> tuple[str, exp.Expr, list[exp.Expr]] | None:
    """(kind, query, outer operands of IN) where `node` is a subquery."""
    if isinstance(node, exp.Exists) and isinstance(node.this, (exp.Query, exp.Subquery)):
        return "EXISTS", _query(node.this), []
    kind, bare = "IN", node
    if isinstance(node, exp.Not) and isinstance(node.this.unnest(), exp.In):
        kind, bare = "NOT IN", node.this.unnest()
    if isinstance(bare, exp.In) and bare.args.get("query") is not None:
        operands = bare.this.unnest()
        left = operands.expressions if isinstance(operands, exp.Tuple) else [bare.this]
        return kind, _query(bare.args["query"]), list(left)
    if isinstance(node, (exp.Subquery, exp.Select, exp.SetOperation)):
        return "SCALAR", _query(node), []
    return None


def _query(node: exp.Expr) -> exp.Expr:
    while isinstance(node, exp.Subquery) and not any(
        node.args.get(each) for each in ("with_", "limit", "offset")
    ):
        node = node.this
    return node


def _is_plain(select: exp.Select, kind: str) -> bool:
    clauses = ("group", "having", "qualify", "limit", "offset", "laterals", "windows")
    if any(select.args.get(clause) for clause in clauses):
        return False
    hard = (exp.Window,) if kind == "EXISTS" else (exp.Window, exp.Star)
    return not any(aggregate_calls(each) or each.find(*hard) for each in select.selects)


def _constants(query: exp.Expr, scope: Scope) -> Outer | None:
    """The query around one that reads no rows of it, but may name columns of it that are constants."""
    found = (scope.find(parts) for parts in names_in(query))
    return Outer(scope) if any(e is not None and not references(e) for e in found) else None
