"""The FROM clause: tables, derived tables, CTEs and VALUES, and how they are joined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sqlglot import exp

from cq_engine.algebra.functions import conjuncts
from cq_engine.algebra.lowering.generators import Generators
from cq_engine.algebra.lowering.lowered import Environment, From, Lowered, split_joins
from cq_engine.algebra.lowering.pivot import Pivots
from cq_engine.algebra.lowering.scope import Fields, Scope
from cq_engine.algebra.lowering.subqueries import null_safe
from cq_engine.algebra.names import NotLowered
from cq_engine.algebra.nodes import (
    Filter,
    Join,
    Node,
    OuterJoin,
    Project,
    Scan,
    SemiJoin,
    Values,
    column,
    references,
)

__all__ = ["FromClause"]


class FromClause(Generators, Pivots):
    """Mixed into the lowering."""

    tables: Mapping[str, Sequence[str]]

    if TYPE_CHECKING:

        def query(self, query: exp.Expr, environment: Environment) -> Lowered: ...

        def with_ctes(self, query: exp.Expr, environment: Environment) -> Environment: ...

        def restrict(self, node: Node, conditions: Sequence[exp.Expr]) -> Node: ...

        def attach(
            self, node: Node, expressions: Sequence[exp.Expr], only: str | None = None
        ) -> tuple[Node, list[exp.Expr]]: ...

        def lateral(
            self, left: Node, scope: Scope, query: exp.Expr, environment: Environment
        ) -> tuple[Lowered, tuple[exp.Expr, ...]]: ...

        def environment_of(self, query: exp.Expr, environment: Environment) -> Environment: ...

    # ---------------------------------------------------------------- FROM

    def from_clause(self, select: exp.Select, environment: Environment) -> From:
        clause = select.args.get("from_")
        if clause is None:
            one = self.names.fresh("one")
            result = From([Values((one,), ((exp.Literal.number(1),),))], [], {}, [])
        else:
            result = self.relation(clause.this, environment)
        for join in select.args.get("joins") or []:
            result = self.join(result, join, environment)
        for lateral in select.args.get("laterals") or []:
            result = self.generate(result, lateral, "", environment)
        return result

    def relation(self, source: exp.Expr, environment: Environment) -> From:
        """A source with the joins that stand inside it, as in `(a JOIN b ON ...)`."""
        result = self.source(source, environment)
        for nested in source.args.get("joins") or []:
            result = self.join(result, nested, environment)
        return result

    def source(self, source: exp.Expr, environment: Environment) -> From:
        if source.args.get("sample"):
            raise NotLowered("TABLESAMPLE picks other rows each time it is run")
        alias = source.alias_or_name.lower() or self.nameless()
        renamed = [c.name for c in source.args["alias"].columns] if source.args.get("alias") else []
        pivots = source.args.get("pivots") or []
        if isinstance(source, exp.Table) and not isinstance(source.this, exp.Identifier):
            result = self.table_function(source, alias, renamed, environment)
        elif isinstance(source, exp.Table):
            result = self.table(source, alias, renamed, environment)
        elif isinstance(source, exp.Values):
            result = self.unfold(self.query(source, environment), alias, renamed)
        elif isinstance(source, exp.Lateral):
            first = From([Values((self.names.fresh("one"),), ((exp.Literal.number(1),),))], [], {}, [])
            result = self._lateral_join(first, source, "", None, environment)
        elif isinstance(source, exp.Subquery) and isinstance(source.this, (exp.Query, exp.Values)):
            result = self.derive(source, alias, renamed, environment)
        elif isinstance(source, exp.Subquery):
            inner = self.relation(source.this, environment)
            result = self._rename(inner, alias, renamed) if source.alias else inner
        else:
            raise NotLowered(f"{type(source).__name__} in FROM has no algebra")
        for pivot in pivots:
            result = self.pivot(result, pivot, environment)
        return result

    def nameless(self) -> str:
        """The alias of a source that has none."""
        return "\0" + self.names.fresh("source")

    def table(self, table: exp.Table, alias: str, renamed: Sequence[str], environment: Environment) -> From:
        name = table.name.lower()
        if not table.args.get("db") and name in environment.ctes:
            closure = environment.ctes[name]
            own = closure.environment
            if own.domain is not None and own.domain is not environment.domain:
                raise NotLowered(f"{name} reads outer columns and stands in a deeper subquery")
            return self.unfold(
                self.query(closure.body, self.environment_of(closure.body, own)),
                alias,
                renamed or closure.renamed,
            )
        if name not in self.tables:
            raise NotLowered(f"{table.sql(dialect='spark')} is not a table of this warehouse")
        scanned = tuple((self.names.fresh(each), each) for each in self.tables[name])
        visible = renamed or self.tables[name]
        fields: Fields = {v.lower(): column(unique) for v, (unique, _) in zip(visible, scanned)}
        return From.of(Scan(name, scanned), alias, fields)

    def derive(
        self, source: exp.Subquery, alias: str, renamed: Sequence[str], environment: Environment
    ) -> From:
        scope = self.with_ctes(source, environment)
        return self.unfold(self.query(source.this, self.environment_of(source.this, scope)), alias, renamed)

    def unfold(self, lowered: Lowered, alias: str, renamed: Sequence[str]) -> From:
        """A derived table as part of the FROM clause: a join inside it is merged with the one around it."""
        node = lowered.node
        visible = renamed or lowered.visible
        carried = [tuple(self.names.fresh("d") for _ in lowered.domain)] if lowered.domain else []
        for own in carried:
            items = [(name, column(name)) for name in lowered.outputs]
            node = Project(node, (*items, *((d, column(name)) for d, name in zip(own, lowered.domain))))
        if isinstance(node, Project) and isinstance(node.input, (Join, Scan, Filter)) and not carried:
            made = dict(node.items)
            fields: Fields = {}
            for name, out in zip(visible, lowered.outputs):
                fields.setdefault(name.lower(), made[out])
            inputs, conditions = split_joins(node.input)
            return From(inputs, conditions, {alias: fields}, [(alias, name) for name in fields])
        fields = {}
        for name, out in zip(visible, lowered.outputs):
            fields.setdefault(name.lower(), column(out))
        result = From.of(node, alias, fields)
        result.carried = carried
        return result

    def _rename(self, inner: From, alias: str, renamed: Sequence[str]) -> From:
        """A parenthesised join with an alias: one source with all of its columns."""
        names = renamed or [name for _, name in inner.shown]
        fields: Fields = {}
        for name, shown in zip(names, inner.shown):
            fields.setdefault(name.lower(), inner.expression_of(shown))
        return From(
            inner.inputs, inner.conditions, {alias: fields}, [(alias, name) for name in fields], {},
            inner.carried, inner.has_domain,
        )  # fmt: skip

    # ---------------------------------------------------------------- joins

    def join(self, left: From, join: exp.Join, environment: Environment) -> From:
        side, kind, method = (
            str(join.args.get(each, "") or "").upper() for each in ("side", "kind", "method")
        )
        if isinstance(join.this, exp.Lateral):
            return self._lateral_join(left, join.this, side, join.args.get("on"), environment)
        right = self.relation(join.this, environment)
        if method not in ("", "NATURAL"):
            raise NotLowered(f"a {method} JOIN has no algebra")
        using = [each.name.lower() for each in join.args.get("using") or []]
        if method == "NATURAL":
            theirs = {name for _, name in right.shown}
            using = [name for _, name in left.shown if name in theirs]
        conditions = self._using_conditions(left, right, using)
        if join.args.get("on") is not None:
            both = left.beside(right).scope(environment.outer)
            on = conjuncts(self.expression(join.args["on"], both, environment))
            conditions += [each for each in on if each != exp.true()]
        if kind in ("SEMI", "ANTI"):
            return self._semi(left, right, kind == "ANTI", conditions, environment)
        if not side and kind in ("", "INNER", "CROSS"):
            joined = left.beside(right)
        elif side in ("LEFT", "RIGHT", "FULL") and kind in ("", "OUTER"):
            joined = self._outer(left, right, side, conditions, environment)
            conditions = []
        else:
            raise NotLowered(f"a {side} {kind} JOIN has no algebra".replace("  ", " "))
        joined.conditions += conditions
        return self._merge(joined, left, right, using, side) if using else joined

    def _using_conditions(self, left: From, right: From, using: Sequence[str]) -> list[exp.Expr]:
        found: list[exp.Expr] = []
        for name in using:
            ours, theirs = left.scope(None).find([name]), right.scope(None).find([name])
            if ours is None or theirs is None:
                raise NotLowered(f"column {name} of USING could not be resolved")
            found.append(exp.EQ(this=_operand(ours), expression=_operand(theirs)))
        return found

    def _merge(self, joined: From, left: From, right: From, using: Sequence[str], side: str) -> From:
        """USING: its columns first, with one value; both sides' own are still there under their alias."""
        for name in using:
            ours, theirs = left.scope(None).find([name]), right.scope(None).find([name])
            assert ours is not None
            assert theirs is not None
            if side == "FULL":
                joined.merged[name] = exp.Coalesce(this=ours, expressions=[theirs])
            else:
                joined.merged[name] = theirs if side == "RIGHT" else ours
        rest = [(a, n) for a, n in joined.shown if n not in using]
        joined.shown = [*((None, name) for name in using), *rest]
        return joined

    def _outer(
        self, left: From, right: From, side: str, conditions: list[exp.Expr], environment: Environment
    ) -> From:
        """A LEFT, RIGHT or FULL join; the sides' names stay theirs."""
        conditions = self._with_domain(left, right, side, conditions, environment)
        nodes = [self._fix(left, self.join_node(left)), self._fix(right, self.join_node(right))]
        nodes, on = self._on(nodes, conditions, side)
        return left.beside(right).over(OuterJoin(nodes[0], nodes[1], side, tuple(on)))

    def _on(
        self, nodes: list[Node], conditions: Sequence[exp.Expr], side: str
    ) -> tuple[list[Node], list[exp.Expr]]:
        """Subqueries in ON are joined to the side whose columns they read; what restricts the padded side, there."""
        on: list[exp.Expr] = []
        padded = {"LEFT": 1, "RIGHT": 0}.get(side, -1)
        for condition in conditions:
            waiting = references(condition) & set(self.pending)
            if not waiting:
                on.append(condition)
                continue
            used = (references(condition) - waiting).union(*(self.pending[w].references() for w in waiting))
            places = [i for i in (padded, 0, 1) if i >= 0 and used <= set(nodes[i].columns)]
            if places and places[0] == padded:
                nodes[padded] = self.restrict(nodes[padded], [condition])
                continue
            rest = condition
            for name in sorted(waiting):
                reading = self.pending[name].references()
                owner = [i for i in (padded, 0, 1) if i >= 0 and reading <= set(nodes[i].columns)]
                if not owner:
                    raise NotLowered("a subquery in ON reads columns of both sides")
                if owner[0] != padded and self.pending[name].kind == "NOT IN":
                    raise NotLowered(
                        "NOT IN with a subquery in ON of an outer join, where Spark reads NULLs otherwise"
                    )
                nodes[owner[0]], (rest,) = self.attach(nodes[owner[0]], [rest], only=name)
            on.append(rest)
        return nodes, on

    def _semi(
        self, left: From, right: From, anti: bool, conditions: list[exp.Expr], environment: Environment
    ) -> From:
        """LEFT SEMI and LEFT ANTI JOIN."""
        conditions = self._with_domain(left, right, "LEFT", conditions, environment)
        nodes, on = self._on([self.join_node(left), self.join_node(right)], conditions, "LEFT")
        joined = SemiJoin(nodes[0], nodes[1], anti, tuple(on))
        return left.over(joined)

    def _with_domain(
        self, left: From, right: From, side: str, conditions: list[exp.Expr], environment: Environment
    ) -> list[exp.Expr]:
        """Inside a correlated subquery: the preserved side has the domain where either side or ON needs it."""
        domain = environment.domain
        if domain is None:
            return conditions
        read = any(references(c) & set(domain.columns) for c in conditions)
        if not (read or left.carried or right.carried or left.has_domain or right.has_domain):
            return conditions
        kept, other = (right, left) if side == "RIGHT" else (left, right)
        if side == "FULL" or other.has_domain:
            raise NotLowered(f"a {side} JOIN inside a subquery whose sides both read outer columns")
        self.add_domain(kept, environment)
        more = [c for each in other.carried for c in null_safe([column(d) for d in domain.columns], each)]
        other.carried = []
        return [*conditions, *more]

    def add_domain(self, part: From, environment: Environment) -> None:
        """Makes the domain an input of `part`, on which inputs that carry it agree with it."""
        assert environment.domain is not None
        columns = environment.domain.columns
        if not part.has_domain:
            part.inputs.append(environment.domain.node)
            part.has_domain = True
        for carried in part.carried:
            part.conditions += null_safe([column(d) for d in columns], carried)
        part.carried = []

    def join_node(self, part: From) -> Node:
        """The join of a FROM clause, with the subqueries in its conditions."""
        hard = [c for c in part.conditions if references(c) & set(self.pending)]
        part.conditions = [c for c in part.conditions if not references(c) & set(self.pending)]
        return self.restrict(part.node(), hard)

    def _fix(self, part: From, node: Node) -> Node:
        """One side of an outer join. Expressions of a derived table become columns, so that they turn NULL with it."""
        items: list[tuple[str, exp.Expr]] = [(name, column(name)) for name in node.columns]
        for fields in (*part.sources.values(), part.merged):
            for name, expression in list(fields.items()):
                if not isinstance(expression, exp.Column):
                    fresh = self.names.fresh(name)
                    items.append((fresh, expression))
                    fields[name] = column(fresh)
        return Project(node, tuple(items)) if len(items) > len(node.columns) else node

    # ---------------------------------------------------------------- LATERAL

    def _lateral_join(
        self, left: From, lateral: exp.Lateral, side: str, on: exp.Expr | None, environment: Environment
    ) -> From:
        """LATERAL (SELECT ...), which reads the columns of what stands before it; or a generator."""
        inner = lateral.this
        if not isinstance(inner, exp.Subquery):
            return self.generate(left, lateral, side, environment, on)
        if environment.domain is not None:
            self.add_domain(left, environment)
        node = self.join_node(left)
        left = left.over(node)
        lowered, values = self.lateral(node, left.scope(environment.outer), inner, environment)
        alias = lateral.alias_or_name.lower() or self.nameless()
        renamed = [c.name for c in lateral.args["alias"].columns] if lateral.args.get("alias") else []
        right = self.unfold(lowered, alias, renamed)
        conditions = [c for own in right.carried for c in null_safe(values, own)]
        right.carried = []
        both = left.beside(right)
        if on is not None:
            conditions += conjuncts(self.expression(on, both.scope(environment.outer), environment))
        if side == "LEFT":
            nodes, rest = self._on([node, self._fix(right, self.join_node(right))], conditions, "LEFT")
            return left.beside(right).over(OuterJoin(nodes[0], nodes[1], "LEFT", tuple(rest)))
        both.conditions += conditions
        return both


def _operand(value: exp.Expr) -> exp.Expr:
    return value.copy() if isinstance(value, (exp.Column, exp.Paren)) else exp.Paren(this=value.copy())
