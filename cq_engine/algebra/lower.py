"""A defining query (sqlglot) to algebra.

sqlglot's `qualify` has resolved names, stars and USING before; here every column gets its unique name, inner joins are
flattened into one n-way Join, predicates go to the inputs they read, and derived tables and CTEs are opened up.
What has no algebra yet raises `NotLowered`, with the reason; the planner then recomputes the query in full.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.qualify import qualify

from cq_engine.algebra.functions import aggregate_calls, conjuncts
from cq_engine.algebra.grouping import Grouping, GroupingSets, grouping_sets
from cq_engine.algebra.lower_from import FromClause
from cq_engine.algebra.lowered import Closure, Ctes, Fields, From, Lowered
from cq_engine.algebra.names import Names
from cq_engine.algebra.nodes import (
    Distinct,
    Limit,
    Node,
    Project,
    SetOperation,
    UnionAll,
    Window,
    column,
    references,
)
from cq_engine.algebra.subqueries import Domain, Pending, as_pending, reads
from cq_engine.algebra.unnest import NotLowered, Unnesting

__all__ = ["Lowered", "NotLowered", "lower"]


def lower(query: exp.Expr, tables: Mapping[str, Sequence[str]], names: Names) -> Lowered:
    """Lowers `query` over `tables` (table name in lower case → its column names).

    Raises NotLowered.
    """
    schema: dict[str, object] = {
        table: dict.fromkeys(columns, "unknown") for table, columns in tables.items()
    }
    try:
        qualified = qualify(
            query.copy(),
            schema=schema,
            dialect="spark",
            quote_identifiers=False,
            validate_qualify_columns=False,
        )
    except SqlglotError as problem:
        raise NotLowered(f"its names could not be resolved ({str(problem).splitlines()[0]})") from problem
    return _Lowering(tables, names).query(qualified, {})


class _Lowering(FromClause, Unnesting):
    def __init__(self, tables: Mapping[str, Sequence[str]], names: Names) -> None:
        self.tables = tables
        self.names = names
        self.pending: dict[str, Pending] = {}
        self.scopes: dict[str, Ctes] = {}

    # ---------------------------------------------------------------- queries

    def query(self, query: exp.Expr, ctes: Ctes, domain: Domain | None = None) -> Lowered:
        ctes = self._with(query, ctes)
        if isinstance(query, exp.Subquery):
            return self.query(query.this, ctes, domain)
        if isinstance(query, exp.Select):
            return self.select(query, ctes, domain)
        if isinstance(query, exp.SetOperation):
            return self.set_operation(query, ctes, domain)
        raise NotLowered(f"{type(query).__name__.upper()} as a query is not maintained incrementally yet")

    def _with(self, query: exp.Expr, ctes: Ctes) -> Ctes:
        clause = query.args.get("with_")
        if clause is None:
            return ctes
        if clause.args.get("recursive"):
            raise NotLowered("a recursive CTE is recomputed")
        known = dict(ctes)
        for cte in clause.expressions:
            outer = dict(known)
            body = cte.this
            known[cte.alias.lower()] = Closure(body, outer, tuple(c.name for c in cte.args["alias"].columns))
        return known

    def set_operation(self, query: exp.SetOperation, ctes: Ctes, domain: Domain | None) -> Lowered:
        left, right = self.query(query.left, ctes, domain), self.query(query.right, ctes, domain)
        distinct = bool(query.args.get("distinct"))
        if query.args.get("by_name"):
            raise NotLowered("UNION BY NAME is recomputed")
        visible = [name or f"c{i}" for i, name in enumerate(query.named_selects)]
        output = tuple(self.names.fresh(name) for name in visible)
        keys = tuple(self.names.fresh(name) for name in left.domain)
        inputs = (_narrow(left), _narrow(right))
        node: Node
        if isinstance(query, exp.Union):
            node = UnionAll(inputs, output + keys)
            if distinct:
                node = Distinct(node)
        else:
            kind = "EXCEPT" if isinstance(query, exp.Except) else "INTERSECT"
            node = SetOperation(*inputs, kind, not distinct, output + keys)
        lowered = Lowered(node, output, keys)
        return self._order_limit(query, lowered, dict(zip(map(str.lower, visible), output)))

    def select(self, select: exp.Select, ctes: Ctes, domain: Domain | None = None) -> Lowered:
        for clause in ("pivots", "sample", "connect", "match", "distribute", "cluster", "sort"):
            if select.args.get(clause):
                raise NotLowered(f"{clause.upper()} is not maintained incrementally yet")
        source = self.from_clause(select, ctes)
        if domain is not None:
            source = From(
                [*source.inputs, domain.node], source.conditions, {**domain.sources, **source.sources}
            )
        subqueries: list[exp.Expr] = []
        if where := select.args.get("where"):
            for condition in conjuncts(self.expression(where.this, source.sources, ctes)):
                hard = references(condition) & set(self.pending)
                (subqueries if hard else source.conditions).append(condition)
        node = self.restricted(source.node(), subqueries)
        parts = _Parts.of(
            select,
            lambda e: self.expression(e, source.sources, ctes),
            self._orders(select, source.sources, ctes),
        )
        group = select.args.get("group")
        aggregated = group is not None or any(aggregate_calls(e) for e in parts.all())
        one_row = aggregated and group is None and not parts.having and not select.args.get("limit")
        if aggregated:
            node, parts = self._aggregated(node, group, source.sources, ctes, parts, domain)
        node = self.restricted(node, [c for each in parts.having for c in conjuncts(each)])
        node, expressions = self.attached(node, parts.all())
        parts = parts.replaced(expressions)
        node, expressions = self.windows(node, parts.all(), domain.columns if domain else ())
        parts = parts.replaced(expressions)
        node = self.restricted(node, parts.qualify)
        return self._finish(select, node, parts, domain, one_row)

    def _aggregated(
        self,
        node: Node,
        group: exp.Group | None,
        sources: Mapping[str, Fields],
        ctes: Ctes,
        parts: _Parts,
        domain: Domain | None,
    ) -> tuple[Node, _Parts]:
        """The Aggregate above `node`; subqueries inside aggregate calls and keys are joined below it, others above."""
        inside = [call for e in parts.all() for call in aggregate_calls(e)]
        below = reads(inside, self.pending)
        if below:
            raise NotLowered("a subquery inside an aggregate function is recomputed")
        expressions = parts.all()
        extra = domain.columns if domain else ()
        sets = grouping_sets(group) if group is not None else None
        if sets is not None:
            node, rewritten, rewrite = self._grouping_sets(node, sets, sources, ctes, expressions, extra)
        else:
            keys = list(group.expressions) if group is not None else []
            resolved = [(self.expression(k, sources, ctes), k.alias_or_name) for k in keys]
            grouping = Grouping(self.names, node, resolved, extra, None if group is not None else domain)
            rewritten = grouping.rewritten(expressions)
            node, rewrite = grouping.node(), grouping.rewrite
        self.regrouped(rewritten, rewrite)
        for each in rewritten:
            missing = references(each) - set(node.columns) - set(self.pending)
            if missing:
                raise NotLowered(f"{each.sql(dialect='spark')} is neither grouped nor aggregated")
        return node, parts.replaced(rewritten)

    def _grouping_sets(
        self,
        node: Node,
        sets: list[list[exp.Expr]],
        sources: Mapping[str, Fields],
        ctes: Ctes,
        expressions: Sequence[exp.Expr],
        extra: tuple[str, ...],
    ) -> tuple[Node, list[exp.Expr], Callable[[exp.Expr], exp.Expr]]:
        """GROUPING SETS, ROLLUP and CUBE: one aggregate per set, united, the keys that are not in a set NULL."""
        resolved = [[self.expression(k, sources, ctes) for k in each] for each in sets]
        union = GroupingSets(self.names, node, resolved, extra)
        rewritten = union.rewritten(expressions)
        return union.node(), rewritten, union.rewrite

    def _finish(
        self, select: exp.Select, node: Node, parts: _Parts, domain: Domain | None, one_row: bool
    ) -> Lowered:
        output = tuple(self.names.fresh(name) for name in parts.names)
        keys = domain.columns if domain else ()
        limited = select.args.get("limit") or select.args.get("offset")
        ordered = parts.order if limited else []
        extra = [(self.names.fresh("ord"), o.this) for o in ordered]
        shown = (*zip(output, parts.items), *((k, column(k)) for k in keys))
        if select.args.get("distinct"):
            if select.args["distinct"].args.get("on"):
                raise NotLowered("DISTINCT ON is not Spark SQL")
            names = [next((o for o, e in zip(output, parts.items) if e == key), "") for _, key in extra]
            if not all(names):
                raise NotLowered("DISTINCT with LIMIT, ordered by what is not selected, is recomputed")
            node = Distinct(Project(node, tuple(shown)))
            extra = [(name, key) for name, (_, key) in zip(names, extra)]
        else:
            node = Project(node, (*shown, *extra))
        if limited:
            order = tuple(_reordered(o, column(name)) for (name, _), o in zip(extra, ordered))
            node = Limit(node, keys, order, *_limit_numbers(select))
        return Lowered(node, output, keys, one_row)

    # ---------------------------------------------------------------- expressions

    def expression(self, expression: exp.Expr, sources: Mapping[str, Fields], ctes: Ctes) -> exp.Expr:
        """`expression` with every column replaced by what it is in the plan; subqueries wait as columns."""

        def replaced(node: exp.Expr) -> exp.Expr:
            name = (
                self.names.fresh("subquery")
                if isinstance(node, (exp.Exists, exp.In, exp.Query, exp.Subquery))
                else ""
            )
            waiting = (
                as_pending(node, name, lambda e: self.expression(e, sources, ctes), sources) if name else None
            )
            if waiting is not None:
                self.pending[name], self.scopes[name] = waiting, ctes
                return column(name)
            if isinstance(node, exp.Column) and not isinstance(node.this, exp.Star):
                fields = sources.get(node.table.lower())
                if fields is None or node.name.lower() not in fields:
                    raise NotLowered(f"column {node.sql(dialect='spark')} could not be resolved")
                found = fields[node.name.lower()].copy()
                return found if isinstance(found, (exp.Column, exp.Literal)) else exp.Paren(this=found)
            return node

        return expression.copy().transform(replaced)

    def windows(
        self, node: Node, expressions: Sequence[exp.Expr], extra: tuple[str, ...]
    ) -> tuple[Node, list[exp.Expr]]:
        """Window nodes for the window functions in `expressions`, one node for each list of partition keys.

        `extra` are columns that every partition is divided by too.
        """
        groups: dict[tuple[str, ...], list[tuple[str, exp.Expr]]] = {}
        partitions: dict[tuple[str, ...], tuple[exp.Expr, ...]] = {}

        def replaced(part: exp.Expr) -> exp.Expr:
            if not isinstance(part, exp.Window):
                return part
            part = part.copy()
            part.set("partition_by", [*(part.args.get("partition_by") or []), *(column(e) for e in extra)])
            keys = tuple(part.args["partition_by"])
            label = tuple(sorted(key.sql(dialect="spark") for key in keys))
            partitions.setdefault(label, keys)
            for name, known in groups.setdefault(label, []):
                if known == part:
                    return column(name)
            name = self.names.fresh("win")
            groups[label].append((name, part.copy()))
            return column(name)

        rewritten = [e.copy().transform(replaced) for e in expressions]
        for label, functions in groups.items():
            node = Window(node, tuple(functions), partitions[label])
        return node, rewritten

    # ---------------------------------------------------------------- ORDER BY and LIMIT

    def _orders(self, select: exp.Select, sources: Mapping[str, Fields], ctes: Ctes) -> list[exp.Expr]:
        if not (select.args.get("limit") or select.args.get("offset")) or not select.args.get("order"):
            return []
        found = []
        for ordered in select.args["order"].expressions:
            key = ordered.this
            if isinstance(key, exp.Literal) and key.is_int:
                key = select.selects[int(key.name) - 1].unalias()
            elif isinstance(key, exp.Column) and not key.table:
                match = [s for s in select.selects if s.alias_or_name.lower() == key.name.lower()]
                key = match[0].unalias() if match else key
            found.append(_reordered(ordered, self.expression(key, sources, ctes)))
        return found

    def _order_limit(self, query: exp.Expr, lowered: Lowered, fields: Mapping[str, str]) -> Lowered:
        """ORDER BY and LIMIT of a set operation, over its own columns."""
        if not (query.args.get("limit") or query.args.get("offset")):
            return lowered
        order = []
        for ordered in query.args["order"].expressions if query.args.get("order") else []:
            key = ordered.this
            if isinstance(key, exp.Literal) and key.is_int:
                name = lowered.outputs[int(key.name) - 1]
            elif isinstance(key, exp.Column) and key.name.lower() in fields:
                name = fields[key.name.lower()]
            else:
                raise NotLowered("ORDER BY of a set operation by an expression is recomputed")
            order.append(_reordered(ordered, column(name)))
        limit = Limit(lowered.node, lowered.domain, tuple(order), *_limit_numbers(query))
        return Lowered(limit, lowered.outputs, lowered.domain)


@dataclass
class _Parts:
    """The expressions of a SELECT above its FROM and WHERE, which go the same way through GROUP BY and windows."""

    names: list[str]
    items: list[exp.Expr]
    having: list[exp.Expr]
    qualify: list[exp.Expr]
    order: list[exp.Expr]

    @classmethod
    def of(cls, select: exp.Select, resolve: Callable[[exp.Expr], exp.Expr], order: list[exp.Expr]) -> _Parts:
        having, qualifier = select.args.get("having"), select.args.get("qualify")
        return cls(
            [each.alias_or_name or "c" for each in select.selects],
            [resolve(each.unalias()) for each in select.selects],
            [resolve(having.this)] if having else [],
            [resolve(qualifier.this)] if qualifier else [],
            order,
        )

    def all(self) -> list[exp.Expr]:
        return [*self.items, *self.having, *self.qualify, *self.order]

    def replaced(self, expressions: Sequence[exp.Expr]) -> _Parts:
        """The same parts with other expressions, in the order of `all`."""
        rest = list(expressions)
        taken = []
        for part in (self.items, self.having, self.qualify, self.order):
            taken.append(rest[: len(part)])
            rest = rest[len(part) :]
        return _Parts(self.names, *taken)


def _narrow(lowered: Lowered) -> Node:
    """The plan with just its result columns and its domain's, in order."""
    wanted = lowered.outputs + lowered.domain
    if lowered.node.columns == wanted:
        return lowered.node
    return Project(lowered.node, tuple((name, column(name)) for name in wanted))


def _reordered(ordered: exp.Expr, key: exp.Expr) -> exp.Expr:
    result = ordered.copy()
    result.set("this", key)
    return result


def _limit_numbers(query: exp.Expr) -> tuple[int | None, int]:
    """(LIMIT or None, OFFSET)."""

    def number(clause: exp.Expr | None) -> int | None:
        if clause is None:
            return None
        value = clause.expression
        if not (isinstance(value, exp.Literal) and value.is_int):
            raise NotLowered("LIMIT and OFFSET by an expression are recomputed")
        return int(value.name)

    return number(query.args.get("limit")), number(query.args.get("offset")) or 0
