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

from cq_engine.algebra.functions import aggregate_calls
from cq_engine.algebra.grouping import Grouping, GroupingSets, grouping_sets
from cq_engine.algebra.names import Names
from cq_engine.algebra.nodes import (
    Distinct,
    Filter,
    Generate,
    Join,
    Limit,
    Node,
    OuterJoin,
    Project,
    Scan,
    SetOperation,
    UnionAll,
    Values,
    Window,
    column,
    references,
)
from cq_engine.algebra.subqueries import Domain, Pending, as_pending, reads
from cq_engine.algebra.unnest import NotLowered, Unnesting, conjuncts

__all__ = ["Lowered", "NotLowered", "lower"]


@dataclass(frozen=True)
class Lowered:
    """A lowered query: the plan, and for each result column its name in the plan.

    A subquery that reads outer columns also has the columns of their `domain`; with `one_row` it has exactly one row
    for each of the domain's values.
    """

    node: Node
    outputs: tuple[str, ...]
    domain: tuple[str, ...] = ()
    one_row: bool = False


@dataclass(frozen=True)
class _Closure:
    """A CTE's body, the CTEs that it sees, and the names of its column list."""

    body: exp.Expr
    scope: Mapping[str, _Closure]
    renamed: tuple[str, ...]


Ctes = Mapping[str, _Closure]
Fields = dict[str, exp.Expr]
"""Column name (lower case) → expression over the plan's columns."""


@dataclass
class _From:
    """The FROM clause so far: inputs of one inner join, its conditions, and what each alias's columns are."""

    inputs: list[Node]
    conditions: list[exp.Expr]
    sources: dict[str, Fields]

    def node(self) -> Node:
        """The join of all inputs; predicates on one input become filters on it."""
        inputs = list(self.inputs)
        joined = []
        for condition in self.conditions:
            used = references(condition)
            owner = [i for i, each in enumerate(inputs) if used and used <= set(each.columns)]
            if owner:
                inputs[owner[0]] = Filter(inputs[owner[0]], condition)
            else:
                joined.append(condition)
        if len(inputs) == 1:
            return Filter(inputs[0], exp.and_(*joined)) if joined else inputs[0]
        return Join(tuple(inputs), tuple(joined))


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


class _Lowering(Unnesting):
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
            known[cte.alias.lower()] = _Closure(body, outer, tuple(c.name for c in cte.args["alias"].columns))
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
            source = _From(
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

    # ---------------------------------------------------------------- FROM

    def from_clause(self, select: exp.Select, ctes: Ctes) -> _From:
        clause = select.args.get("from_")
        if clause is None:
            one = self.names.fresh("one")
            return _From([Values((one,), ((exp.Literal.number(1),),))], [], {})
        result = self.source(clause.this, ctes)
        for join in (*(clause.this.args.get("joins") or []), *(select.args.get("joins") or [])):
            result = self.join(result, join, ctes)
        for lateral in select.args.get("laterals") or []:
            result = self._lateral_join(result, lateral, "", ctes)
        return result

    def join(self, left: _From, join: exp.Join, ctes: Ctes) -> _From:
        side, kind, method = (
            str(join.args.get(each, "") or "").upper() for each in ("side", "kind", "method")
        )
        if isinstance(join.this, exp.Lateral):
            return self._lateral_join(left, join.this, side, ctes)
        right = self.source(join.this, ctes)
        for nested in join.this.args.get("joins") or []:
            right = self.join(right, nested, ctes)
        if method == "ASOF" or join.args.get("using"):
            raise NotLowered(f"{method or 'USING'} joins are recomputed")
        sources = {**left.sources, **right.sources}
        on = join.args.get("on")
        conditions = conjuncts(self.expression(on, sources, ctes)) if on is not None else []
        if any(references(c) & set(self.pending) for c in conditions):
            raise NotLowered("a subquery in ON is recomputed")
        if not side and kind in ("", "INNER", "CROSS"):
            return _From(left.inputs + right.inputs, left.conditions + right.conditions + conditions, sources)
        if side in ("LEFT", "RIGHT", "FULL") and kind in ("", "OUTER"):
            node = OuterJoin(self._fixed(left), self._fixed(right), side, tuple(conditions))
            return _From([node], [], sources)
        raise NotLowered(f"a {side} {kind} JOIN is not maintained incrementally yet".replace("  ", " "))

    def _lateral_join(self, left: _From, lateral: exp.Lateral, side: str, ctes: Ctes) -> _From:
        """LATERAL (SELECT ...), which reads the columns of what stands before it; or a generator."""
        inner = lateral.this
        if not isinstance(inner, exp.Subquery):
            return self._generated(left, lateral, ctes)
        node = self._fixed(left)
        joined, lowered = self.lateral(node, left.sources, inner.this, ctes, side == "LEFT")
        alias = lateral.alias_or_name.lower()
        renamed = [c.name for c in lateral.args["alias"].columns] if lateral.args.get("alias") else []
        visible = renamed or _visible_names(inner)
        fields: Fields = {v.lower(): column(o) for v, o in zip(visible, lowered.outputs)}
        return _From([joined], [], {**left.sources, alias: fields})

    def _generated(self, left: _From, lateral: exp.Lateral, ctes: Ctes) -> _From:
        """LATERAL VIEW explode(...) and its kin: rows made from each row."""
        alias = lateral.args.get("alias")
        names = [c.name for c in alias.columns] if alias is not None else []
        if alias is None or not names:
            raise NotLowered("a generator without column names is recomputed")
        outputs = tuple(self.names.fresh(n) for n in names)
        call = self.expression(lateral.this, left.sources, ctes)
        node = Generate(left.node(), call, outputs, bool(lateral.args.get("outer")))
        fields: Fields = {n.lower(): column(o) for n, o in zip(names, outputs)}
        return _From([node], [], {**left.sources, alias.name.lower(): fields})

    def _fixed(self, part: _From) -> Node:
        """One side of an outer join. Expressions of a derived table become columns, so that they turn NULL with it."""
        node = part.node()
        items: list[tuple[str, exp.Expr]] = [(name, column(name)) for name in node.columns]
        for fields in part.sources.values():
            for name, expression in list(fields.items()):
                if not isinstance(expression, exp.Column):
                    fresh = self.names.fresh(name)
                    items.append((fresh, expression))
                    fields[name] = column(fresh)
        return Project(node, tuple(items)) if len(items) > len(node.columns) else node

    def source(self, source: exp.Expr, ctes: Ctes) -> _From:
        if source.args.get("pivots") or source.args.get("sample"):
            raise NotLowered("PIVOT and TABLESAMPLE are not maintained incrementally yet")
        alias = source.alias_or_name.lower()
        if isinstance(source, exp.Table):
            return self.table(source, alias, ctes)
        if isinstance(source, exp.Subquery) and isinstance(source.this, (exp.Query, exp.Subquery)):
            inner = source.this
            scope = self._with(source, ctes)
            renamed = [c.name for c in source.args["alias"].columns] if source.args.get("alias") else []
            visible = renamed or _visible_names(inner)
            return self.opened(self.query(inner, scope), alias, visible)
        raise NotLowered(f"{type(source).__name__.upper()} in FROM is not maintained incrementally yet")

    def table(self, table: exp.Table, alias: str, ctes: Ctes) -> _From:
        name = table.name.lower()
        if not table.args.get("db") and name in ctes:
            closure = ctes[name]
            visible = closure.renamed or _visible_names(closure.body)
            return self.opened(self.query(closure.body, closure.scope), alias, visible)
        if name not in self.tables:
            raise NotLowered(f"{table.sql(dialect='spark')} is not a table of this warehouse")
        fields = tuple((self.names.fresh(each), each) for each in self.tables[name])
        scan = Scan(name, fields)
        return _From([scan], [], {alias: {each.lower(): column(unique) for unique, each in fields}})

    def opened(self, lowered: Lowered, alias: str, visible: Sequence[str]) -> _From:
        """A derived table as part of the FROM clause: a join inside it is merged with the one around it."""
        node = lowered.node
        if isinstance(node, Project) and isinstance(node.input, (Join, Scan, Filter)):
            items = dict(node.items)
            fields = {name.lower(): items[out] for name, out in zip(visible, lowered.outputs)}
            inputs, conditions = _unjoined(node.input)
            return _From(inputs, conditions, {alias: fields})
        return _From([node], [], {alias: {v.lower(): column(o) for v, o in zip(visible, lowered.outputs)}})

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


def _visible_names(query: exp.Expr) -> list[str]:
    assert isinstance(query, (exp.Query, exp.Subquery))
    return [name or f"c{i}" for i, name in enumerate(query.named_selects)]


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


def _unjoined(node: Node) -> tuple[list[Node], list[exp.Expr]]:
    """The inputs and conditions of a join (or of a filter over one), to be merged into another join."""
    if isinstance(node, Join):
        return list(node.inputs), list(node.conditions)
    if isinstance(node, Filter):
        inputs, conditions = _unjoined(node.input)
        return inputs, [*conditions, *conjuncts(node.condition)]
    return [node], []


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
