"""A defining query (sqlglot) to algebra.

Every column gets its unique name, names are resolved as Spark does (`scope`), inner joins are flattened into one n-way
Join, predicates go to the inputs they read, and derived tables and CTEs are opened up. What has no algebra raises
`NotLowered`, with the reason; the planner then recomputes the query in full.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sqlglot import exp

from cq_engine.algebra.coercion import Types
from cq_engine.algebra.functions import aggregate_calls, conjuncts, is_aggregate
from cq_engine.algebra.lowering.grouping import Grouping, GroupingSets, grouping_sets
from cq_engine.algebra.lowering.lower_from import FromClause
from cq_engine.algebra.lowering.lowered import Closure, Ctes, Environment, From, Lowered
from cq_engine.algebra.lowering.ordering import cut, is_limited, order_keys
from cq_engine.algebra.lowering.scope import Scope, parts_of
from cq_engine.algebra.lowering.select_items import Parts, SelectItems, with_windows
from cq_engine.algebra.lowering.subqueries import Pending, reads
from cq_engine.algebra.lowering.unnest import Unnesting
from cq_engine.algebra.names import Names, NotLowered
from cq_engine.algebra.nodes import (
    Distinct,
    Generate,
    Node,
    Project,
    SetOperation,
    UnionAll,
    Values,
    Window,
    column,
    references,
)

__all__ = ["Lowered", "lower"]


def lower(
    query: exp.Expr, tables: Mapping[str, Sequence[str]], names: Names, types: Types | None = None
) -> Lowered:
    """Lowers `query` over `tables` (table name in lower case → its column names).

    `types` gives Spark's types of expressions over a node, for what is not the same for all types.
    Raises NotLowered.
    """
    return _Lowering(tables, names, types).query(query, Environment())


class _Lowering(FromClause, SelectItems, Unnesting):
    def __init__(self, tables: Mapping[str, Sequence[str]], names: Names, types: Types | None) -> None:
        self.tables = tables
        self.names = names
        self.types = types
        self.pending: dict[str, Pending] = {}
        self.known: dict[tuple[int, str], str] = {}
        self.kept: list[Scope] = []

    # ---------------------------------------------------------------- queries

    def query(self, query: exp.Expr, environment: Environment) -> Lowered:
        environment = self.with_ctes(query, environment)
        if isinstance(query, exp.Subquery):
            return self._cut(query, self.query(query.this, environment))
        if isinstance(query, exp.Select):
            return self.select(query, environment)
        if isinstance(query, exp.SetOperation):
            return self.set_operation(query, environment)
        if isinstance(query, exp.Values):
            return self._cut(query, self._values(query))
        if isinstance(query, exp.Table):
            star = exp.Select(expressions=[exp.Star()]).from_(query.copy())
            return self.select(star, environment)
        raise NotLowered(f"{type(query).__name__} as a query has no algebra")

    def with_ctes(self, query: exp.Expr, environment: Environment) -> Environment:
        """The environment with the query's WITH clause."""
        clause = query.args.get("with_")
        if clause is None:
            return environment
        if clause.args.get("recursive"):
            raise NotLowered("a recursive CTE: how often it goes round depends on the data")
        known: Ctes = environment.ctes
        for cte in clause.expressions:
            seen = Environment(known, environment.outer, environment.domain)
            renamed = tuple(c.name for c in cte.args["alias"].columns)
            known = {**known, cte.alias.lower(): Closure(cte.this, seen, renamed)}
        return Environment(known, environment.outer, environment.domain)

    def _values(self, query: exp.Values) -> Lowered:
        rows = [e.expressions if isinstance(e, exp.Tuple) else [e] for e in query.expressions]
        visible = tuple(f"col{i + 1}" for i in range(len(rows[0])))
        outputs = tuple(self.names.fresh(name) for name in visible)
        empty = Scope({})
        resolved = tuple(tuple(self.expression(e, empty, Environment()) for e in row) for row in rows)
        return Lowered(Values(outputs, resolved), outputs, visible)

    def set_operation(self, query: exp.SetOperation, environment: Environment) -> Lowered:
        if query.args.get("by_name"):
            raise NotLowered("set operations BY NAME are not Spark SQL")
        left, right = self.query(query.left, environment), self.query(query.right, environment)
        if environment.domain is not None:
            if isinstance(query, exp.Except) and right.domain and self.reads_outer(query.right, environment):
                raise NotLowered(
                    "an EXCEPT whose right side reads outer columns, which Spark evaluates otherwise"
                )
            left, right = self._with_keys(left, environment), self._with_keys(right, environment)
        distinct = bool(query.args.get("distinct"))
        output = tuple(self.names.fresh(name) for name in left.visible)
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
        return self._cut(query, Lowered(node, output, left.visible, keys))

    def _with_keys(self, side: Lowered, environment: Environment) -> Lowered:
        """A side that reads no outer columns (VALUES), for each value of the domain."""
        if side.domain:
            return side
        part = From([side.node], [], {}, [])
        self.add_domain(part, environment)
        return Lowered(part.node(), side.outputs, side.visible, environment.keys)

    def _cut(self, query: exp.Expr, lowered: Lowered) -> Lowered:
        """ORDER BY and LIMIT of a set operation (or a query in parentheses), over its own columns."""
        if not is_limited(query):
            return lowered
        scope = Scope({"": lowered.fields()})
        order = order_keys(
            query,
            len(lowered.outputs),
            lambda i: column(lowered.outputs[i]),
            lambda key: self.expression(key, scope, Environment()),
        )
        if reads(order, self.pending):
            raise NotLowered("a subquery in ORDER BY of a set operation")
        node = cut(lowered.node, lowered.domain, order, query, self.names)
        return Lowered(node, lowered.outputs, lowered.visible, lowered.domain)

    def select(self, select: exp.Select, environment: Environment) -> Lowered:
        for clause in ("pivots", "sample", "connect", "match"):
            if select.args.get(clause):
                raise NotLowered(f"{clause.upper()} has no algebra")
        select = with_windows(select)
        source = self.from_clause(select, environment)
        scope = source.scope(environment.outer)
        subqueries: list[exp.Expr] = []
        if where := select.args.get("where"):
            source.conditions += conjuncts(self.expression(where.this, scope, environment))
        subqueries = [c for c in source.conditions if references(c) & set(self.pending)]
        source.conditions = [c for c in source.conditions if not references(c) & set(self.pending)]
        if environment.domain is not None:
            self.add_domain(source, environment)
        node = self.restrict(source.node(), subqueries)
        parts = self.parts(select, node, source, scope, environment)
        group = select.args.get("group")
        aggregated = group is not None or bool(parts.having) or any(aggregate_calls(e) for e in parts.all())
        one_row = aggregated and group is None and not parts.having and not is_limited(select)
        one_row = one_row and not parts.generators
        if aggregated:
            node, parts = self._aggregate(node, group, scope, parts, environment)
        node = self.restrict(node, [c for each in parts.having for c in conjuncts(each)])
        node, expressions = self.attach(node, parts.all())
        parts = parts.substitute(expressions)
        node, expressions = self.windows(node, parts.all(), environment.keys)
        parts = parts.substitute(expressions)
        node = self.restrict(node, [c for each in parts.qualify for c in conjuncts(each)])
        return self._finish(select, node, parts, environment.keys, one_row)

    # ---------------------------------------------------------------- GROUP BY

    def _aggregate(
        self, node: Node, group: exp.Group | None, scope: Scope, parts: Parts, environment: Environment
    ) -> tuple[Node, Parts]:
        """The Aggregate above `node`; subqueries inside aggregate calls and keys are joined below it, others above."""
        expressions = parts.all()
        sets = grouping_sets(group) if group is not None else None
        inside = [call for e in expressions for call in aggregate_calls(e)]
        if sets is not None:
            resolved = [[parts.key(k, self, scope, environment)[0] for k in each] for each in sets]
            below = reads([*inside, *(k for each in resolved for k in each)], self.pending)
            node, values = self.values(node, below)
            grouping: Grouping | GroupingSets = GroupingSets(self.names, node, resolved, environment.keys)
        else:
            keys = parts.keys(group, self, scope, environment)
            below = reads([*inside, *(key for key, _ in keys)], self.pending)
            node, values = self.values(node, below)
            domain = environment.domain if group is None else None
            grouping = Grouping(self.names, node, keys, environment.keys, domain)
        rewritten = [grouping.rewrite(each) for each in expressions]
        self.regroup(rewritten, grouping.rewrite)
        node = grouping.node(values)
        made = {name for names, _ in parts.generators for name in names}
        for each in rewritten:
            missing = references(each) - set(node.columns) - set(self.pending) - made
            if missing:
                raise NotLowered(f"{each.sql(dialect='spark')} is neither grouped nor aggregated")
        return node, parts.substitute(rewritten)

    # ---------------------------------------------------------------- the result

    def _finish(
        self, select: exp.Select, node: Node, parts: Parts, keys: tuple[str, ...], one_row: bool
    ) -> Lowered:
        for names, call in parts.generators:
            node = Generate(node, call, names)
        visible = tuple(parts.names)
        output = tuple(self.names.fresh(name) for name in visible)
        shown = (*zip(output, parts.items), *((k, column(k)) for k in keys))
        limited = is_limited(select)
        if select.args.get("distinct"):
            if select.args["distinct"].args.get("on"):
                raise NotLowered("DISTINCT ON is not Spark SQL")
            node = Distinct(Project(node, shown))
            order = [self._over_outputs(o, parts.items, output) for o in parts.order] if limited else []
        else:
            by_item = [next((n for n, e in zip(output, parts.items) if e == o.this), "") for o in parts.order]
            extra = [(name or self.names.fresh("ord"), o) for name, o in zip(by_item, parts.order)]
            order = []
            if limited:
                added = [(name, o.this) for name, o in extra if name not in output]
                shown = (*shown, *added)
                order = [_order_item(o, column(name)) for name, o in extra]
            node = Project(node, shown)
        return Lowered(cut(node, keys, order, select, self.names), output, visible, keys, one_row)

    def _over_outputs(
        self, ordered: exp.Expr, items: Sequence[exp.Expr], output: tuple[str, ...]
    ) -> exp.Expr:
        """An ORDER BY key of SELECT DISTINCT over the selected columns."""

        def substitute(part: exp.Expr) -> exp.Expr:
            for item, name in zip(items, output):
                if part == item:
                    return column(name)
            return part

        key = ordered.this.copy().transform(substitute)
        if not references(key) <= set(output):
            raise NotLowered("DISTINCT with LIMIT, ordered by what is not selected")
        return _order_item(ordered, key)

    # ---------------------------------------------------------------- expressions

    def expression(
        self,
        expression: exp.Expr,
        scope: Scope,
        environment: Environment,
        aliases_before: Callable[[exp.Expr | None], bool] | None = None,
    ) -> exp.Expr:
        """`expression` with every column substitute by what it is in the plan; subqueries wait as columns.

        `aliases_before` says whether an alias of the SELECT list comes before the column of FROM that the name has
        (or None); in aggregate functions it never does.
        """

        def resolver(first: bool) -> Callable[[exp.Expr], exp.Expr]:
            def substitute(node: exp.Expr) -> exp.Expr:
                if first and is_aggregate(node):
                    return node.copy().transform(resolver(False))
                if scope.outer is not None and is_aggregate(node):
                    over = self.outer_aggregate(node, scope.outer.scope, environment)
                    if over is not None and all(scope.own(p) is None for p in _names(node)):
                        return scope.outer.column(over)
                waiting = self.waiting(node, scope, environment)
                if waiting is not None:
                    return waiting
                if not isinstance(node, exp.Column) or isinstance(node.this, exp.Star):
                    return node
                parts = parts_of(node)
                ahead = first and aliases_before is not None and aliases_before(scope.own(parts))
                found = scope.find(parts, ahead)
                if found is None:
                    raise NotLowered(f"column {node.sql(dialect='spark')} could not be resolved")
                return found if isinstance(found, (exp.Column, exp.Literal)) else exp.Paren(this=found)

            return substitute

        return _negations_inside(expression.copy()).transform(resolver(aliases_before is not None))

    def windows(
        self, node: Node, expressions: Sequence[exp.Expr], extra: tuple[str, ...]
    ) -> tuple[Node, list[exp.Expr]]:
        """Window nodes for the window functions in `expressions`, one node for each list of partition keys.

        `extra` are columns that every partition is divided by too.
        """
        groups: dict[tuple[str, ...], list[tuple[str, exp.Expr]]] = {}
        partitions: dict[tuple[str, ...], tuple[exp.Expr, ...]] = {}

        def substitute(part: exp.Expr) -> exp.Expr:
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

        rewritten = [e.copy().transform(substitute) for e in expressions]
        for label, functions in groups.items():
            node = Window(node, tuple(functions), partitions[label])
        return node, rewritten


def _names(node: exp.Expr) -> list[list[str]]:
    return [parts_of(each) for each in node.find_all(exp.Column) if not isinstance(each.this, exp.Star)]


def _negations_inside(expression: exp.Expr) -> exp.Expr:
    """NOT pushed through AND, OR and NOT, where an IN with a subquery is below: Spark's NOT IN differs from NOT (IN)."""
    if not any(each.args.get("query") is not None for each in expression.find_all(exp.In)):
        return expression

    def pushed(node: exp.Expr) -> exp.Expr:
        if not isinstance(node, exp.Not):
            return node
        bare = node.this.unnest()
        if isinstance(bare, exp.Not):
            return pushed(bare.this.unnest())
        if isinstance(bare, (exp.And, exp.Or)):
            kind = exp.Or if isinstance(bare, exp.And) else exp.And
            sides = [exp.Not(this=exp.Paren(this=side.copy())) for side in (bare.left, bare.right)]
            return exp.Paren(this=kind(this=pushed(sides[0]), expression=pushed(sides[1])))
        return node

    return expression.transform(pushed)


def _narrow(lowered: Lowered) -> Node:
    """The plan with just its result columns and its domain's, in order."""
    wanted = lowered.outputs + lowered.domain
    if lowered.node.columns == wanted:
        return lowered.node
    return Project(lowered.node, tuple((name, column(name)) for name in wanted))


def _order_item(ordered: exp.Expr, key: exp.Expr) -> exp.Expr:
    result = ordered.copy()
    result.set("this", key)
    return result
