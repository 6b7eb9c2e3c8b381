"""PIVOT and UNPIVOT, as Spark defines them.

    PIVOT (agg(v) FOR c IN (a, b))   =  SELECT g, agg(v) FILTER (WHERE c <=> a), agg(v) FILTER (WHERE c <=> b) GROUP BY g
    UNPIVOT (v FOR n IN (a, b))      =  explode of [('a', a), ('b', b)] for each row

g are all columns that neither the aggregates nor FOR read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sqlglot import exp

from cq_engine.algebra.coercion import Types, cast
from cq_engine.algebra.functions import aggregate_calls, only_where
from cq_engine.algebra.lowering.lowered import Environment, From
from cq_engine.algebra.lowering.scope import Fields, Scope
from cq_engine.algebra.lowering.subqueries import Pending, stands_in
from cq_engine.algebra.names import Names, NotLowered
from cq_engine.algebra.nodes import Aggregate, Generate, Node, Project, column, references

__all__ = ["Pivots"]


class Pivots:
    """Mixed into the lowering."""

    names: Names
    pending: dict[str, Pending]
    types: Types | None

    if TYPE_CHECKING:

        def expression(self, expression: exp.Expr, scope: Scope, environment: Environment) -> exp.Expr: ...

        def join_node(self, part: From) -> Node: ...

        def nameless(self) -> str: ...

    def pivot(self, part: From, pivot: exp.Pivot, environment: Environment) -> From:
        """`part` with PIVOT or UNPIVOT behind it."""
        if environment.domain is not None and part.carried:
            raise NotLowered("PIVOT over columns of the query around it")
        result = self._unpivot(part, pivot) if pivot.args.get("unpivot") else self._pivot(part, pivot)
        alias = pivot.args.get("alias")
        if alias is None or not alias.name:
            return result
        fields: Fields = {}
        names = [c.name.lower() for c in alias.columns] or [name for _, name in result.shown]
        for name, shown in zip(names, result.shown):
            fields.setdefault(name, result.expression_of(shown))
        label = alias.name.lower()
        return From(result.inputs, result.conditions, {label: fields}, [(label, n) for n in fields])

    def _pivot(self, part: From, pivot: exp.Pivot) -> From:
        node, scope, environment = self.join_node(part), part.scope(None), Environment()
        if len(pivot.args["fields"]) != 1 or not isinstance(pivot.args["fields"][0], exp.In):
            raise NotLowered("PIVOT with several FOR clauses")
        chosen = pivot.args["fields"][0]
        of = [self.expression(e, scope, environment) for e in _parts(chosen.this)]
        calls = [(self.expression(e.unalias(), scope, environment), e) for e in pivot.expressions]
        read = frozenset[str]().union(*(references(e) for e in (*of, *(call for call, _ in calls))))
        keys = [(name, part.expression_of((alias, name))) for alias, name in part.shown]
        keys = [(name, e) for name, e in keys if not references(e) & read]
        grouped = [(self.names.fresh(name), name, e) for name, e in keys]
        items = [(unique, e) for unique, _, e in grouped]
        functions: list[tuple[str, exp.Expr]] = []
        shown: Fields = {name.lower(): column(unique) for unique, name, _ in grouped}
        tops: list[tuple[str, exp.Expr]] = [(unique, column(unique)) for unique, _, _ in grouped]
        kinds = self.types(node, of) if self.types is not None and not stands_in(node) else []
        for value in chosen.expressions:
            wanted = [self.expression(e, scope, environment) for e in _parts(value.unalias())]
            wanted = [cast(e, kind) for e, kind in zip(wanted, kinds)] or wanted
            here = exp.and_(
                *(exp.NullSafeEQ(this=_bracket(o), expression=_bracket(w)) for o, w in zip(of, wanted))
            )
            for call, source in calls:
                label = _pivot_name(value, source, len(calls) > 1)
                unique = self.names.fresh(label)
                tops.append((unique, self._filter(call, here, functions)))
                shown[label.lower()] = column(unique)
        kept = [(name, column(name)) for name in node.columns]
        rows = Project(node, (*items, *kept)) if items else node
        by = tuple((unique, column(unique)) for unique, _ in items)
        result = Project(Aggregate(rows, by, tuple(functions), scalar=not by), tuple(tops))
        return From.of(result, self._alias(part), shown)

    def _filter(self, call: exp.Expr, condition: exp.Expr, functions: list[tuple[str, exp.Expr]]) -> exp.Expr:
        """The expression over aggregate calls, each only where `condition` holds; the calls go to `functions`.

        Without such a row it is NULL, also for COUNT.
        """
        copy = call.copy()
        for each in aggregate_calls(copy):
            name = self.names.fresh("pivot")
            functions.append((name, only_where(each, condition)))
            if each is copy:
                copy = column(name)
            else:
                each.replace(column(name))
        if isinstance(call, (exp.Sum, exp.Min, exp.Max, exp.Avg)):
            return copy
        there = self.names.fresh("there")
        functions.append((there, only_where(exp.Count(this=exp.Star()), condition)))
        some = exp.GT(this=column(there), expression=exp.Literal.number(0))
        return exp.Case(ifs=[exp.If(this=some, true=copy)])

    def _alias(self, part: From) -> str:
        return next(iter(part.sources)) if len(part.sources) == 1 else self.nameless()

    # ---------------------------------------------------------------- UNPIVOT

    def _unpivot(self, part: From, pivot: exp.Pivot) -> From:
        node, scope = self.join_node(part), part.scope(None)
        values = [e.name.lower() for e in _parts(pivot.expressions[0])]
        field = pivot.args["fields"][0]
        name = field.this.name.lower()
        taken: set[str] = set()
        structs = []
        for each in field.expressions:
            columns = _parts(each.unalias())
            resolved = [self.expression(e, scope, Environment()) for e in columns]
            taken |= {e.name.lower() for e in columns}
            label = each.alias if isinstance(each, (exp.PivotAlias, exp.Alias)) else ""
            label = label or "_".join(e.name for e in columns)
            structs.append([exp.Literal.string(label), *resolved])
        outputs = tuple(self.names.fresh(n) for n in (name, *values))
        rows = exp.Inline(this=exp.Array(expressions=[_struct(each) for each in structs]))
        made: Node = Generate(node, rows, outputs, False)
        kept = [(alias, n) for alias, n in part.shown if n not in taken]
        fields: Fields = {n: part.expression_of((alias, n)) for alias, n in kept}
        fields |= {n: column(o) for n, o in zip((name, *values), outputs)}
        result = From.of(made, self._alias(part), fields)
        if not pivot.args.get("include_nulls"):
            missing = exp.and_(*(exp.Is(this=column(o), expression=exp.Null()) for o in outputs[1:]))
            result.conditions.append(exp.Not(this=exp.Paren(this=missing)))
        return result


def _parts(node: exp.Expr) -> Sequence[exp.Expr]:
    bare = node.unnest()
    return bare.expressions if isinstance(bare, exp.Tuple) else [bare]


def _struct(values: Sequence[exp.Expr]) -> exp.Expr:
    named = [part for i, value in enumerate(values) for part in (exp.Literal.string(f"c{i}"), value)]
    return exp.Anonymous(this="named_struct", expressions=named)


def _bracket(value: exp.Expr) -> exp.Expr:
    return value.copy() if isinstance(value, (exp.Column, exp.Literal)) else exp.Paren(this=value.copy())


def _pivot_name(value: exp.Expr, call: exp.Expr, several: bool) -> str:
    """Spark's name of a pivoted column: the value (or its alias), with several aggregates also the aggregate's."""
    if isinstance(value, (exp.PivotAlias, exp.Alias)):
        label = value.alias
    else:
        texts = [_text(e) for e in _parts(value)]
        label = texts[0] if len(texts) == 1 else "{" + ", ".join(texts) + "}"
    if not several:
        return label
    own = call.alias if isinstance(call, exp.Alias) else call.sql(dialect="spark").lower()
    return f"{label}_{own}"


def _text(value: exp.Expr) -> str:
    if isinstance(value, exp.Null):
        return "null"
    return value.name if isinstance(value, exp.Literal) else value.sql(dialect="spark")
