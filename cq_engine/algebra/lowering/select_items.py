"""The items of a SELECT: stars, aliases, generators; and what GROUP BY, HAVING, QUALIFY and ORDER BY refer to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sqlglot import exp

from cq_engine.algebra.functions import aggregate_calls
from cq_engine.algebra.lowering.generators import Generators, is_generator
from cq_engine.algebra.lowering.grouping import grouping_sets
from cq_engine.algebra.lowering.lowered import Environment, From
from cq_engine.algebra.lowering.ordering import is_limited, order_keys
from cq_engine.algebra.lowering.scope import Scope
from cq_engine.algebra.names import NotLowered
from cq_engine.algebra.nodes import Node, column

__all__ = ["Parts", "SelectItems", "with_windows"]

Resolved = tuple[str, exp.Expr]


@dataclass
class Parts:
    """The expressions of a SELECT above its FROM and WHERE, which go the same way through GROUP BY and windows.

    `generators` are calls that make rows, with the names of their columns in the plan, which items read.
    """

    names: list[str]
    items: list[exp.Expr]
    having: list[exp.Expr]
    qualify: list[exp.Expr]
    order: list[exp.Expr]
    generators: list[tuple[tuple[str, ...], exp.Expr]] = field(default_factory=list)

    def all(self) -> list[exp.Expr]:
        return [*self.items, *self.having, *self.qualify, *self.order, *(call for _, call in self.generators)]

    def substitute(self, expressions: Sequence[exp.Expr]) -> Parts:
        """The same parts with other expressions, in the order of `all`."""
        rest = list(expressions)
        taken = []
        for part in (self.items, self.having, self.qualify, self.order):
            taken.append(rest[: len(part)])
            rest = rest[len(part) :]
        generators = [(names, call) for (names, _), call in zip(self.generators, rest)]
        items, having, qualify, order = taken
        return Parts(self.names, items, having, qualify, order, generators)

    def keys(
        self, group: exp.Group | None, lowering: SelectItems, scope: Scope, environment: Environment
    ) -> list[tuple[exp.Expr, str]]:
        """The keys of a plain GROUP BY, each with a name."""
        if group is None:
            return []
        if group.args.get("all"):
            plain = [(n, e) for n, e in zip(self.names, self.items) if not aggregate_calls(e)]
            return [(e, name) for name, e in plain if e.find(exp.Column)]
        return [self.key(key, lowering, scope, environment) for key in group.expressions]

    def key(
        self, key: exp.Expr, lowering: SelectItems, scope: Scope, environment: Environment
    ) -> tuple[exp.Expr, str]:
        """One key: a column of FROM, else the alias or the number of an item."""
        if isinstance(key, exp.Literal) and key.is_int:
            place = int(key.name) - 1
            return self.items[place], self.names[place]
        return lowering.expression(key, scope, environment), key.alias_or_name


class SelectItems(Generators):
    """Mixed into the lowering."""

    if TYPE_CHECKING:

        def expression(
            self,
            expression: exp.Expr,
            scope: Scope,
            environment: Environment,
            aliases_before: Callable[[exp.Expr | None], bool] | None = None,
        ) -> exp.Expr: ...

    def parts(
        self, select: exp.Select, node: Node, source: From, scope: Scope, environment: Environment
    ) -> Parts:
        """The resolved expressions of `select`; the aliases of its items go to `scope`."""
        result = Parts([], [], [], [], [])
        for item in select.selects:
            for name, expression in self._item(item, result, node, source, scope, environment):
                result.names.append(name)
                result.items.append(expression)
                scope.aliases.setdefault(name.lower(), expression)

        having, qualifier = select.args.get("having"), select.args.get("qualify")
        if having:
            grouped = self._group(select, result, scope, environment)
            result.having = [self.expression(having.this, scope, environment, lambda own: own not in grouped)]
        result.qualify = [self.expression(qualifier.this, scope, environment)] if qualifier else []
        if is_limited(select):
            result.order = order_keys(
                select,
                len(result.items),
                lambda i: result.items[i],
                lambda key: self.expression(key, scope, environment, _always),
            )
        return result

    def _group(
        self, select: exp.Select, parts: Parts, scope: Scope, environment: Environment
    ) -> list[exp.Expr]:
        """The keys of GROUP BY: in HAVING their names are those of FROM, other names may be aliases."""
        group = select.args.get("group")
        sets = grouping_sets(group) if group is not None else None
        if sets is None:
            return [key for key, _ in parts.keys(group, self, scope, environment)]
        return [parts.key(key, self, scope, environment)[0] for each in sets for key in each]

    def _item(
        self, item: exp.Expr, parts: Parts, node: Node, source: From, scope: Scope, environment: Environment
    ) -> list[Resolved]:
        if isinstance(item, exp.Star) or (isinstance(item, exp.Column) and isinstance(item.this, exp.Star)):
            return self._star(item, node, source, scope)
        bare = item.this if isinstance(item, exp.Aliases) else item.unalias()
        given = [e.name for e in item.expressions] if isinstance(item, exp.Aliases) else []
        if is_generator(bare):
            if isinstance(item, exp.Alias):
                given = [item.alias]
            call = self.expression(bare, scope, environment)
            names = self.generator_names(node, call, given)
            unique = tuple(self.names.fresh(name) for name in names)
            parts.generators.append((unique, call))
            return [(name, column(u)) for name, u in zip(names, unique)]
        expression = self.expression(bare, scope, environment)
        return [(_name(item), expression)]

    def _star(self, item: exp.Expr, node: Node, source: From, scope: Scope) -> list[Resolved]:
        star = item.this if isinstance(item, exp.Column) else item
        if any(star.args.get(each) for each in ("replace", "rename", "ilike")):
            raise NotLowered("a star with REPLACE or RENAME is not Spark SQL")
        excepted = {e.name.lower() for e in star.args.get("except_") or []}
        if isinstance(item, exp.Column):
            found = self._qualified_star(item, node, source, scope)
        else:
            found = [(name, source.expression_of((alias, name))) for alias, name in source.shown]
        return [(name, e.copy()) for name, e in found if name.lower() not in excepted]

    def _qualified_star(self, item: exp.Column, node: Node, source: From, scope: Scope) -> list[Resolved]:
        """`t.*`, or the fields of a struct `s.*`."""
        parts = [p.name.lower() for p in item.parts[:-1]]
        if len(parts) == 1 and parts[0] in source.sources:
            return list(source.sources[parts[0]].items())
        whole = scope.find(parts)
        if whole is None:
            raise NotLowered(f"{item.sql(dialect='spark')} could not be resolved")
        found: list[Resolved] = []
        for name in self.struct_fields(node, whole):
            base = whole.copy() if isinstance(whole, (exp.Column, exp.Dot)) else exp.Paren(this=whole.copy())
            found.append((name, exp.Dot(this=base, expression=exp.Identifier(this=name, quoted=True))))
        return found


def _always(own: exp.Expr | None) -> bool:
    return True


def _name(item: exp.Expr) -> str:
    if isinstance(item, exp.Alias):
        return str(item.alias)
    bare = item.unnest()
    if isinstance(bare, exp.Dot):
        return str(bare.expression.name)
    return str(item.alias_or_name) or str(item.sql(dialect="spark")).lower()


def with_windows(select: exp.Select) -> exp.Select:
    """`select` with the windows of its WINDOW clause written where they are used."""
    named = {w.name.lower(): w for w in select.args.get("windows") or []}
    if not named:
        return select
    result = select.copy()
    result.set("windows", None)
    for window in list(result.find_all(exp.Window)):
        label = window.args.get("alias")
        if label is None or label.name.lower() not in named:
            continue
        definition = named[label.name.lower()]
        for key in ("partition_by", "order", "spec"):
            value = definition.args.get(key)
            if value and not window.args.get(key):
                window.set(key, [v.copy() for v in value] if isinstance(value, list) else value.copy())
        window.set("alias", None)
    return result
