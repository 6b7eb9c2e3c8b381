"""GROUP BY in the lowering: the Aggregate node, and the expressions above it rewritten over its columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, product

from sqlglot import exp

from cq_engine.algebra.functions import is_aggregate, only_where
from cq_engine.algebra.lowering.lowered import Domain
from cq_engine.algebra.lowering.scope import place_column
from cq_engine.algebra.names import Names
from cq_engine.algebra.nodes import Aggregate, Node, OuterJoin, Project, UnionAll, column

__all__ = ["Grouping", "GroupingSets", "grouping_sets"]


Values = Mapping[str, exp.Expr]


class Grouping:
    """One GROUP BY. `keys` are (expression over `input`, name stem); `extra` are further key columns of the input.

    With `domain` there is no GROUP BY: a scalar aggregate of a subquery, one row for each of the domain's values.
    """

    def __init__(
        self,
        names: Names,
        node: Node,
        keys: Sequence[tuple[exp.Expr, str]],
        extra: tuple[str, ...] = (),
        domain: Domain | None = None,
    ) -> None:
        self.names = names
        self.input = node
        self.extra = extra
        self.domain = domain
        self.keys: list[tuple[exp.Expr, str]] = []
        for expression, stem in keys:
            if not any(expression == known for known, _ in self.keys):
                self.keys.append((expression, names.fresh(stem or "key")))
        self.functions: list[tuple[exp.Expr, str]] = []

    def rewrite(self, expression: exp.Expr) -> exp.Expr:
        """The expression over the aggregate's columns; collects its functions."""
        return expression.copy().transform(self._substitute)

    def _substitute(self, part: exp.Expr) -> exp.Expr:
        bare = part.unnest()
        for known, name in self.keys:
            if bare == known.unnest():
                return column(name)
        if isinstance(part, exp.Window):
            return self._window(part)
        if is_aggregate(part):
            for known, name in self.functions:
                if part == known:
                    return column(name)
            stem = part.sql_name() if isinstance(part, exp.Func) else "agg"
            self.functions.append((part.copy(), self.names.fresh(stem)))
            return column(self.functions[-1][1])
        return part

    def _window(self, window: exp.Window) -> exp.Expr:
        """A window function over aggregates: what it reads is rewritten, the function itself stays a window's."""
        result = window.copy()
        inner = result.this
        while isinstance(inner, (exp.Filter, exp.IgnoreNulls, exp.RespectNulls)):
            inner = inner.this
        for place in (inner, result):
            for key, value in list(place.args.items()):
                if place is result and key in ("this", "spec"):
                    continue
                if isinstance(value, list):
                    place.set(
                        key, [v.transform(self._substitute) if isinstance(v, exp.Expr) else v for v in value]
                    )
                elif isinstance(value, exp.Expr):
                    place.set(key, value.transform(self._substitute))
        return result

    def node(self, values: Values) -> Node:
        """The Aggregate; `values` are subqueries in keys and functions, joined to the input."""
        self.keys = [(place_column(e, values), name) for e, name in self.keys]
        self.functions = [(place_column(e, values), name) for e, name in self.functions]
        named = {name for _, name in self.keys}
        kept = tuple((name, column(name)) for name in self.input.columns if name not in named)
        rows: Node = Project(self.input, (*((name, e) for e, name in self.keys), *kept))
        keys = [name for _, name in self.keys] + list(self.extra)
        functions = tuple((name, e) for e, name in self.functions)
        if self.domain is not None:
            return self._per_value(rows, functions)
        return Aggregate(rows, tuple((k, column(k)) for k in keys), functions, scalar=not keys)

    def _per_value(self, rows: Node, functions: tuple[tuple[str, exp.Expr], ...]) -> Node:
        """A scalar aggregate for each value of the domain, also for those without rows."""
        assert self.domain is not None
        there = self.names.fresh("there")
        inner = tuple(self.names.fresh("d") for _ in self.extra)
        kept = [(name, column(name)) for name in rows.columns if name not in self.extra]
        renamed = Project(
            rows,
            (*kept, *((i, column(e)) for i, e in zip(inner, self.extra)), (there, exp.Literal.number(1))),
        )
        on = tuple(exp.NullSafeEQ(this=column(e), expression=column(i)) for e, i in zip(self.extra, inner))
        padded = OuterJoin(self.domain.node, renamed, "LEFT", on)
        present = exp.Not(this=exp.Is(this=column(there), expression=exp.Null()))
        keys = tuple((e, column(e)) for e in self.extra)
        return Aggregate(padded, keys, tuple((n, only_where(call, present)) for n, call in functions))


class GroupingSets:
    """GROUPING SETS, ROLLUP, CUBE: an aggregate for each set, united; `sets` are expressions over `input`.

    As in Spark, the empty set has no row where the input has none.
    """

    def __init__(
        self, names: Names, node: Node, sets: Sequence[Sequence[exp.Expr]], extra: tuple[str, ...]
    ) -> None:
        self.names = names
        self.sets = sets
        self.extra = extra
        self.all: list[exp.Expr] = []
        for each in sets:
            self.all += [key for key in each if key not in self.all]
        self.inner = Grouping(names, node, [(key, "key") for key in self.all], extra)
        self.bits = {name: names.fresh("grouping") for _, name in self.inner.keys}
        self.input = node
        self.values: Values = {}

    def rewrite(self, expression: exp.Expr) -> exp.Expr:
        def grouping(part: exp.Expr) -> exp.Expr:
            name = part.sql_name().lower() if isinstance(part, exp.Func) else ""
            if isinstance(part, exp.Anonymous):
                name = str(part.this).lower()
            if name not in ("grouping", "grouping_id"):
                return part
            arguments = list(part.expressions) or ([part.this] if isinstance(part.this, exp.Expr) else [])
            wanted = [self._bit(a) for a in arguments] or list(self.bits.values())
            total: exp.Expr = exp.Literal.number(0)
            for bit in wanted:
                doubled = exp.Mul(this=exp.Paren(this=total), expression=exp.Literal.number(2))
                total = exp.Add(this=doubled, expression=column(bit))
            kind = "tinyint" if name == "grouping" else "bigint"
            return exp.Cast(this=exp.Paren(this=total), to=exp.DataType.build(kind, dialect="spark"))

        return self.inner.rewrite(expression.copy().transform(grouping))

    def _bit(self, argument: exp.Expr) -> str:
        found = next(name for key, name in self.inner.keys if key == argument)
        return self.bits[found]

    def node(self, values: Values) -> Node:
        """The union of the aggregates; `values` as of `Grouping.node`."""
        self.inner.functions = [(place_column(e, values), name) for e, name in self.inner.functions]
        self.values = values
        names = [name for _, name in self.inner.keys]
        functions = tuple((name, e) for e, name in self.inner.functions)
        columns = (*names, *self.bits.values(), *self.extra, *(name for name, _ in functions))
        parts = [self._one(each, functions) for each in self.sets]
        return UnionAll(tuple(parts), columns) if len(parts) > 1 else parts[0]

    def _one(self, chosen: Sequence[exp.Expr], functions: tuple[tuple[str, exp.Expr], ...]) -> Node:
        own = [
            (self.names.fresh("key"), place_column(key, self.values), name)
            for key, name in self.inner.keys
            if key in chosen
        ]
        always = self.names.fresh("all")
        kept = tuple((name, column(name)) for name in self.input.columns)
        rows = Project(self.input, (*kept, *((n, key) for n, key, _ in own), (always, exp.Literal.number(1))))
        keys = [n for n, _, _ in own] + list(self.extra) or [always]
        grouped = Aggregate(rows, tuple((k, column(k)) for k in keys), functions)
        by_name = {name: n for n, _, name in own}
        items: list[tuple[str, exp.Expr]] = []
        for _, name in self.inner.keys:
            items.append((name, column(by_name[name]) if name in by_name else exp.Null()))
        for name, bit in self.bits.items():
            items.append((bit, exp.Literal.number(0 if name in by_name else 1)))
        items += [(e, column(e)) for e in self.extra] + [(name, column(name)) for name, _ in functions]
        return Project(grouped, tuple(items))


def grouping_sets(group: exp.Group) -> list[list[exp.Expr]] | None:
    """The key lists of GROUPING SETS, ROLLUP and CUBE, or None for a plain GROUP BY."""
    plain: list[exp.Expr] = []
    factors: list[list[list[exp.Expr]]] = []
    for each in group.expressions:
        sets = _sets(each)
        if sets is None:
            plain.append(each)
        else:
            factors.append(sets)
    for key, kind in (("rollup", exp.Rollup), ("cube", exp.Cube), ("grouping_sets", exp.GroupingSets)):
        for each in group.args.get(key) or []:
            if isinstance(each, kind) and not each.expressions:  # GROUP BY a, b WITH ROLLUP
                factors.append(_sets(kind(expressions=[p.copy() for p in plain])) or [])
                plain = []
            elif key == "grouping_sets":  # GROUP BY a, b GROUPING SETS (...): the list says nothing more
                plain = []
                factors.append(_sets(each) or [])
            else:
                factors.append(_sets(each) or [])
    if not factors:
        return None
    return [plain + [key for part in chosen for key in part] for chosen in product(*factors)]


def _sets(node: exp.Expr) -> list[list[exp.Expr]] | None:
    if isinstance(node, exp.GroupingSets):
        found: list[list[exp.Expr]] = []
        for each in node.expressions:
            inner = _sets(each)
            found += inner if inner is not None else [_columns(each)]
        return found
    parts = [_columns(each) for each in node.expressions] if isinstance(node, (exp.Rollup, exp.Cube)) else []
    if isinstance(node, exp.Rollup):
        return [[k for part in parts[:n] for k in part] for n in range(len(parts), -1, -1)]
    if isinstance(node, exp.Cube):
        sizes = range(len(parts), -1, -1)
        return [[k for part in chosen for k in part] for n in sizes for chosen in combinations(parts, n)]
    return None


def _columns(node: exp.Expr) -> list[exp.Expr]:
    return list(node.expressions) if isinstance(node, exp.Tuple) else [node.unnest()]
