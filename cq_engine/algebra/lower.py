"""A defining query (sqlglot) to algebra.

sqlglot's `qualify` has resolved names, stars and USING before; here every column gets its unique name, inner joins are
flattened into one n-way Join, predicates go to the inputs they read, and derived tables and CTEs are opened up.
What has no algebra yet raises `NotLowered`, with the reason; the planner then recomputes the query in full.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.qualify import qualify

from cq_engine.algebra.functions import aggregate_calls, is_aggregate
from cq_engine.algebra.names import Names
from cq_engine.algebra.nodes import (
    Aggregate,
    Distinct,
    Filter,
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

__all__ = ["Lowered", "NotLowered", "lower"]


class NotLowered(Exception):
    """The query has a construct without an algebra; the text says which."""


@dataclass(frozen=True)
class Lowered:
    """A lowered query: the plan, and for each result column its name in the plan."""

    node: Node
    outputs: tuple[str, ...]


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
    schema = {table: {name: "unknown" for name in columns} for table, columns in tables.items()}
    try:
        qualified = qualify(
            query.copy(), schema=schema, dialect="spark", quote_identifiers=False, validate_qualify_columns=False
        )
    except SqlglotError as problem:
        raise NotLowered(f"its names could not be resolved ({str(problem).splitlines()[0]})") from problem
    return _Lowering(tables, names).query(qualified, {})


class _Lowering:
    def __init__(self, tables: Mapping[str, Sequence[str]], names: Names) -> None:
        self.tables = tables
        self.names = names

    # ---------------------------------------------------------------- queries

    def query(self, query: exp.Expr, ctes: Mapping[str, exp.Expr]) -> Lowered:
        ctes = self._with(query, ctes)
        if isinstance(query, exp.Subquery):
            return self.query(query.this, ctes)
        if isinstance(query, exp.Select):
            return self.select(query, ctes)
        if isinstance(query, exp.SetOperation):
            return self.set_operation(query, ctes)
        raise NotLowered(f"{type(query).__name__.upper()} as a query is not maintained incrementally yet")

    def _with(self, query: exp.Expr, ctes: Mapping[str, exp.Expr]) -> Mapping[str, exp.Expr]:
        clause = query.args.get("with_")
        if clause is None:
            return ctes
        if clause.args.get("recursive"):
            raise NotLowered("a recursive CTE is recomputed")
        known = dict(ctes)
        for cte in clause.expressions:
            outer = dict(known)
            body = cte.this.copy()
            body.set("cq_scope", None)
            known[cte.alias.lower()] = _Closure(body, outer, [c.name for c in cte.args["alias"].columns])
        return known

    def set_operation(self, query: exp.SetOperation, ctes: Mapping[str, exp.Expr]) -> Lowered:
        left, right = self.query(query.left, ctes), self.query(query.right, ctes)
        distinct = bool(query.args.get("distinct"))
        if query.args.get("by_name"):
            raise NotLowered("UNION BY NAME is recomputed")
        visible = [name or f"c{i}" for i, name in enumerate(query.named_selects)]
        output = tuple(self.names.fresh(name) for name in visible)
        inputs = (_narrow(left), _narrow(right))
        node: Node
        if isinstance(query, exp.Union):
            node = UnionAll(inputs, output)
            if distinct:
                node = Distinct(node)
        else:
            kind = "EXCEPT" if isinstance(query, exp.Except) else "INTERSECT"
            node = SetOperation(*inputs, kind, not distinct, output)
        return self._order_limit(query, Lowered(node, output), dict(zip(map(str.lower, visible), output)))

    def select(self, select: exp.Select, ctes: Mapping[str, exp.Expr]) -> Lowered:
        for clause in ("laterals", "pivots", "sample", "connect", "match", "distribute", "cluster", "sort"):
            if select.args.get(clause):
                raise NotLowered(f"{clause.upper()} is not maintained incrementally yet")
        source = self.from_clause(select, ctes)
        if where := select.args.get("where"):
            source.conditions += _conjuncts(self.expression(where.this, source.sources))
        node = source.node()
        items = [(self._visible(each), self.expression(each.unalias(), source.sources)) for each in select.selects]
        having = select.args.get("having")
        conditions = [self.expression(having.this, source.sources)] if having else []
        qualifier = select.args.get("qualify")
        qualify_conditions = [self.expression(qualifier.this, source.sources)] if qualifier else []
        order = self._orders(select, source.sources)
        group = select.args.get("group")
        everything = [e for _, e in items] + conditions + qualify_conditions + order
        if group is not None or any(aggregate_calls(e) for e in everything):
            node, replaced = self.aggregate(node, group, source.sources, everything)
            n = len(items)
            items = [(name, e) for (name, _), e in zip(items, replaced[:n])]
            conditions = replaced[n : n + len(conditions)]
            qualify_conditions = replaced[n + len(conditions) : n + len(conditions) + len(qualify_conditions)]
            order = replaced[len(replaced) - len(order) :] if order else []
        for condition in conditions:
            node = Filter(node, condition)
        node, windowed = self.windows(node, [e for _, e in items] + qualify_conditions)
        items = [(name, e) for (name, _), e in zip(items, windowed)]
        for condition in windowed[len(items) :]:
            node = Filter(node, condition)
        return self._finish(select, node, items, order)

    def _finish(
        self, select: exp.Select, node: Node, items: list[tuple[str, exp.Expr]], order: list[exp.Expr]
    ) -> Lowered:
        output = tuple(self.names.fresh(name) for name, _ in items)
        limited = select.args.get("limit") or select.args.get("offset")
        extra = [(self.names.fresh("ord"), o.this) for o in order] if limited else []
        node = Project(node, tuple(zip(output, (e for _, e in items))) + tuple(extra))
        if select.args.get("distinct"):
            if select.args["distinct"].args.get("on"):
                raise NotLowered("DISTINCT ON is not Spark SQL")
            node = Distinct(Project(node, tuple((o, column(o)) for o in output)))
            if extra:
                raise NotLowered("DISTINCT with LIMIT is recomputed")
        if limited:
            keys = []
            for (name, _), ordered in zip(extra, order):
                keys.append(_reordered(ordered, column(name)))
            node = Limit(node, (), tuple(keys), *_limit_numbers(select))
        return Lowered(node, output)

    # ---------------------------------------------------------------- FROM

    def from_clause(self, select: exp.Select, ctes: Mapping[str, exp.Expr]) -> _From:
        clause = select.args.get("from_")
        if clause is None:
            one = self.names.fresh("one")
            return _From([Values((one,), ((exp.Literal.number(1),),))], [], {})
        result = self.source(clause.this, ctes)
        for join in (*(clause.this.args.get("joins") or []), *(select.args.get("joins") or [])):
            result = self.join(result, join, ctes)
        return result

    def join(self, left: _From, join: exp.Join, ctes: Mapping[str, exp.Expr]) -> _From:
        right = self.source(join.this, ctes)
        for nested in join.this.args.get("joins") or []:
            right = self.join(right, nested, ctes)
        side, kind, method = (join.args.get(each, "") or "" for each in ("side", "kind", "method"))
        side, kind = str(side).upper(), str(kind).upper()
        if str(method).upper() == "ASOF" or join.args.get("using"):
            raise NotLowered(f"{method or 'USING'} joins are recomputed")
        sources = {**left.sources, **right.sources}
        on = join.args.get("on")
        conditions = _conjuncts(self.expression(on, sources)) if on is not None else []
        if not side and kind in ("", "INNER", "CROSS"):
            return _From(left.inputs + right.inputs, left.conditions + right.conditions + conditions, sources)
        if side in ("LEFT", "RIGHT", "FULL") and kind in ("", "OUTER"):
            node = OuterJoin(self._fixed(left), self._fixed(right), side, tuple(conditions))
            return _From([node], [], sources)
        raise NotLowered(f"a {side} {kind} JOIN is not maintained incrementally yet".replace("  ", " "))

    def _fixed(self, part: _From) -> Node:
        """One side of an outer join. Expressions of a derived table become columns, so that they turn NULL with it."""
        node = part.node()
        items = [(name, column(name)) for name in node.columns]
        for fields in part.sources.values():
            for name, expression in list(fields.items()):
                if not isinstance(expression, exp.Column):
                    fresh = self.names.fresh(name)
                    items.append((fresh, expression))
                    fields[name] = column(fresh)
        return Project(node, tuple(items)) if len(items) > len(node.columns) else node

    def source(self, source: exp.Expr, ctes: Mapping[str, exp.Expr]) -> _From:
        if source.args.get("pivots") or source.args.get("sample"):
            raise NotLowered("PIVOT and TABLESAMPLE are not maintained incrementally yet")
        alias = source.alias_or_name.lower()
        if isinstance(source, exp.Table):
            return self.table(source, alias, ctes)
        if isinstance(source, exp.Subquery) and isinstance(source.this, (exp.Query, exp.Subquery)):
            inner = source.this
            scope = self._with(source, ctes)
            renamed = [c.name for c in source.args["alias"].columns] if source.args.get("alias") else []
            visible = renamed or [name or f"c{i}" for i, name in enumerate(inner.named_selects)]
            return self.opened(self.query(inner, scope), alias, visible)
        raise NotLowered(f"{type(source).__name__.upper()} in FROM is not maintained incrementally yet")

    def table(self, table: exp.Table, alias: str, ctes: Mapping[str, exp.Expr]) -> _From:
        name = table.name.lower()
        if not table.args.get("db") and name in ctes:
            closure = ctes[name]
            assert isinstance(closure, _Closure)
            visible = closure.renamed or [n or f"c{i}" for i, n in enumerate(closure.body.named_selects)]
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

    def expression(self, expression: exp.Expr, sources: Mapping[str, Fields]) -> exp.Expr:
        """`expression` with every column replaced by what it is in the plan."""

        def replaced(node: exp.Expr) -> exp.Expr:
            if isinstance(node, exp.Query):
                raise NotLowered("a subquery in an expression is not maintained incrementally yet")
            if isinstance(node, exp.Column) and not isinstance(node.this, exp.Star):
                fields = sources.get(node.table.lower())
                if fields is None or node.name.lower() not in fields:
                    raise NotLowered(f"column {node.sql(dialect='spark')} could not be resolved")
                found = fields[node.name.lower()].copy()
                return found if isinstance(found, (exp.Column, exp.Literal)) else exp.Paren(this=found)
            return node

        return expression.copy().transform(replaced)

    def _visible(self, item: exp.Expr) -> str:
        return item.alias_or_name or "c"

    def aggregate(
        self,
        node: Node,
        group: exp.Group | None,
        sources: Mapping[str, Fields],
        expressions: Sequence[exp.Expr],
    ) -> tuple[Node, list[exp.Expr]]:
        """The Aggregate above `node`, and `expressions` rewritten over its columns."""
        keys: list[tuple[exp.Expr, str]] = []
        if group is not None:
            if any(group.args.get(each) for each in ("grouping_sets", "cube", "rollup", "totals", "all")):
                raise NotLowered("GROUPING SETS, CUBE and ROLLUP are not maintained incrementally yet")
            for each in group.expressions:
                resolved = self.expression(each, sources)
                if not any(resolved == known for known, _ in keys):
                    keys.append((resolved, self.names.fresh(each.alias_or_name or "key")))
        projected = Project(
            node,
            tuple((name, e) for e, name in keys)
            + tuple((name, column(name)) for name in node.columns if name not in {k for _, k in keys}),
        )
        functions: list[tuple[exp.Expr, str]] = []

        def replaced(part: exp.Expr) -> exp.Expr:
            bare = part.unnest()
            for known, name in keys:
                if bare == known.unnest():
                    return column(name)
            if isinstance(part, exp.Window):
                return self._inside_window(part, replaced)
            if is_aggregate(part):
                for known, name in functions:
                    if part == known:
                        return column(name)
                functions.append((part.copy(), self.names.fresh(part.sql_name() if isinstance(part, exp.Func) else "agg")))
                return column(functions[-1][1])
            return part

        rewritten = [e.copy().transform(replaced) for e in expressions]
        result = Aggregate(
            projected,
            tuple((name, column(name)) for _, name in keys),
            tuple((name, e) for e, name in functions),
            scalar=not keys,
        )
        for each in rewritten:
            missing = references(each) - set(result.columns)
            if missing:
                raise NotLowered(f"{each.sql(dialect='spark')} is neither grouped nor aggregated")
        return result, rewritten

    @staticmethod
    def _inside_window(window: exp.Window, replaced: object) -> exp.Expr:
        """Rewrites the arguments of a window function, not the function, which stays a window's."""
        raise NotLowered("a window over an aggregate is recomputed")

    def windows(self, node: Node, expressions: Sequence[exp.Expr]) -> tuple[Node, list[exp.Expr]]:
        """Window nodes for the window functions in `expressions`, one node for each list of partition keys."""
        groups: dict[tuple[str, ...], list[tuple[str, exp.Expr]]] = {}
        partitions: dict[tuple[str, ...], tuple[exp.Expr, ...]] = {}

        def replaced(part: exp.Expr) -> exp.Expr:
            if not isinstance(part, exp.Window):
                return part
            keys = tuple(part.args.get("partition_by") or ())
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

    def _orders(self, select: exp.Select, sources: Mapping[str, Fields]) -> list[exp.Expr]:
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
            found.append(_reordered(ordered, self.expression(key, sources)))
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
        return Lowered(Limit(lowered.node, (), tuple(order), *_limit_numbers(query)), lowered.outputs)


class _Closure(exp.Expr):
    """A CTE's body with the CTEs it sees."""

    arg_types: dict[str, bool] = {}

    def __init__(self, body: exp.Expr, scope: Mapping[str, exp.Expr], renamed: Sequence[str]) -> None:
        super().__init__()
        self.body = body
        self.scope = scope
        self.renamed = list(renamed)


def _narrow(lowered: Lowered) -> Node:
    """The plan with just its result columns, in order."""
    if lowered.node.columns == lowered.outputs:
        return lowered.node
    return Project(lowered.node, tuple((name, column(name)) for name in lowered.outputs))


def _conjuncts(condition: exp.Expr) -> list[exp.Expr]:
    bare = condition.unnest()
    if isinstance(bare, exp.And):
        return [part for side in (bare.left, bare.right) for part in _conjuncts(side)]
    return [bare]


def _unjoined(node: Node) -> tuple[list[Node], list[exp.Expr]]:
    """The inputs and conditions of a join (or of a filter over one), to be merged into another join."""
    if isinstance(node, Join):
        return list(node.inputs), list(node.conditions)
    if isinstance(node, Filter):
        inputs, conditions = _unjoined(node.input)
        return inputs, [*conditions, *_conjuncts(node.condition)]
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
