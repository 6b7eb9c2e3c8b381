"""The FROM clause: tables, derived tables and CTEs, joins, LATERAL and generators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sqlglot import exp

from cq_engine.algebra.functions import conjuncts
from cq_engine.algebra.lowered import Ctes, Fields, From, Lowered, unjoined, visible_names
from cq_engine.algebra.names import Names
from cq_engine.algebra.nodes import (
    Filter,
    Generate,
    Join,
    Node,
    OuterJoin,
    Project,
    Scan,
    Values,
    column,
    references,
)
from cq_engine.algebra.subqueries import Domain, Pending, Sources
from cq_engine.algebra.unnest import NotLowered

__all__ = ["FromClause"]


class FromClause:
    """Mixed into the lowering."""

    tables: Mapping[str, Sequence[str]]
    names: Names
    pending: dict[str, Pending]

    if TYPE_CHECKING:

        def query(self, query: exp.Expr, ctes: Ctes, domain: Domain | None = None) -> Lowered: ...

        def expression(self, expression: exp.Expr, sources: Sources, ctes: Ctes) -> exp.Expr: ...

        def _with(self, query: exp.Expr, ctes: Ctes) -> Ctes: ...

        def lateral(
            self, left: Node, sources: Sources, query: exp.Expr, ctes: Ctes, outer: bool
        ) -> tuple[Node, Lowered]: ...

    # ---------------------------------------------------------------- FROM

    def from_clause(self, select: exp.Select, ctes: Ctes) -> From:
        clause = select.args.get("from_")
        if clause is None:
            one = self.names.fresh("one")
            return From([Values((one,), ((exp.Literal.number(1),),))], [], {})
        result = self.source(clause.this, ctes)
        for join in (*(clause.this.args.get("joins") or []), *(select.args.get("joins") or [])):
            result = self.join(result, join, ctes)
        for lateral in select.args.get("laterals") or []:
            result = self._lateral_join(result, lateral, "", ctes)
        return result

    def join(self, left: From, join: exp.Join, ctes: Ctes) -> From:
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
            return From(left.inputs + right.inputs, left.conditions + right.conditions + conditions, sources)
        if side in ("LEFT", "RIGHT", "FULL") and kind in ("", "OUTER"):
            node = OuterJoin(self._fixed(left), self._fixed(right), side, tuple(conditions))
            return From([node], [], sources)
        raise NotLowered(f"a {side} {kind} JOIN is not maintained incrementally yet".replace("  ", " "))

    def _lateral_join(self, left: From, lateral: exp.Lateral, side: str, ctes: Ctes) -> From:
        """LATERAL (SELECT ...), which reads the columns of what stands before it; or a generator."""
        inner = lateral.this
        if not isinstance(inner, exp.Subquery):
            return self._generated(left, lateral, ctes)
        node = self._fixed(left)
        joined, lowered = self.lateral(node, left.sources, inner.this, ctes, side == "LEFT")
        alias = lateral.alias_or_name.lower()
        renamed = [c.name for c in lateral.args["alias"].columns] if lateral.args.get("alias") else []
        visible = renamed or visible_names(inner)
        fields: Fields = {v.lower(): column(o) for v, o in zip(visible, lowered.outputs)}
        return From([joined], [], {**left.sources, alias: fields})

    def _generated(self, left: From, lateral: exp.Lateral, ctes: Ctes) -> From:
        """LATERAL VIEW explode(...) and its kin: rows made from each row."""
        alias = lateral.args.get("alias")
        names = [c.name for c in alias.columns] if alias is not None else []
        if alias is None or not names:
            raise NotLowered("a generator without column names is recomputed")
        outputs = tuple(self.names.fresh(n) for n in names)
        call = self.expression(lateral.this, left.sources, ctes)
        node = Generate(left.node(), call, outputs, bool(lateral.args.get("outer")))
        fields: Fields = {n.lower(): column(o) for n, o in zip(names, outputs)}
        return From([node], [], {**left.sources, alias.name.lower(): fields})

    def _fixed(self, part: From) -> Node:
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

    def source(self, source: exp.Expr, ctes: Ctes) -> From:
        if source.args.get("pivots") or source.args.get("sample"):
            raise NotLowered("PIVOT and TABLESAMPLE are not maintained incrementally yet")
        alias = source.alias_or_name.lower()
        if isinstance(source, exp.Table):
            return self.table(source, alias, ctes)
        if isinstance(source, exp.Subquery) and isinstance(source.this, (exp.Query, exp.Subquery)):
            inner = source.this
            scope = self._with(source, ctes)
            renamed = [c.name for c in source.args["alias"].columns] if source.args.get("alias") else []
            visible = renamed or visible_names(inner)
            return self.opened(self.query(inner, scope), alias, visible)
        raise NotLowered(f"{type(source).__name__.upper()} in FROM is not maintained incrementally yet")

    def table(self, table: exp.Table, alias: str, ctes: Ctes) -> From:
        name = table.name.lower()
        if not table.args.get("db") and name in ctes:
            closure = ctes[name]
            visible = closure.renamed or visible_names(closure.body)
            return self.opened(self.query(closure.body, closure.scope), alias, visible)
        if name not in self.tables:
            raise NotLowered(f"{table.sql(dialect='spark')} is not a table of this warehouse")
        fields = tuple((self.names.fresh(each), each) for each in self.tables[name])
        scan = Scan(name, fields)
        return From([scan], [], {alias: {each.lower(): column(unique) for unique, each in fields}})

    def opened(self, lowered: Lowered, alias: str, visible: Sequence[str]) -> From:
        """A derived table as part of the FROM clause: a join inside it is merged with the one around it."""
        node = lowered.node
        if isinstance(node, Project) and isinstance(node.input, (Join, Scan, Filter)):
            items = dict(node.items)
            fields = {name.lower(): items[out] for name, out in zip(visible, lowered.outputs)}
            inputs, conditions = unjoined(node.input)
            return From(inputs, conditions, {alias: fields})
        return From([node], [], {alias: {v.lower(): column(o) for v, o in zip(visible, lowered.outputs)}})
