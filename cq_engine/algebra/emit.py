"""Algebra to Spark SQL text. A node that is used more than once becomes a CTE."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from functools import singledispatchmethod

from sqlglot import exp

from cq_engine.algebra import nodes
from cq_engine.algebra.dialect import write
from cq_engine.algebra.nodes import (
    BEFORE,
    FOREVER,
    FROM,
    TO,
    VERSION,
    WEIGHT,
    Node,
    PlanError,
    children,
    references,
)
from cq_engine.core.columns import quote

__all__ = ["Emitter", "quote"]

_COLUMN_LIST = re.compile(r"\(\s*(`[^`]*`|\w+)\s*\)")
LeafNames = Callable[[Node], str]
"""Gives the relation (a view or a CTE) that a leaf reads; its columns are the leaf's columns."""


def sql_of(expression: exp.Expr) -> str:
    """An expression as Spark SQL text."""
    return write(expression)


class Emitter:
    """Emits one statement. `leaf_names` maps leaves to relations, `prelude` are CTEs to put first (name → SQL)."""

    def __init__(
        self,
        leaf_names: LeafNames,
        prelude: Mapping[str, str] | None = None,
        types: Callable[[str], str] | None = None,
    ) -> None:
        self.leaf_names = leaf_names
        self.types = types
        self.ctes: dict[str, str] = dict(prelude or {})
        self.uses: Counter[int] = Counter()
        self.shared: dict[int, str] = {}
        self.aliases = 0
        self.one_partition = False
        """Unions and joins of inputs that have one partition each are said to have one, which saves a shuffle."""

    def bodies(self, *roots: Node) -> list[str]:
        """The relation of each root (a name or a subquery). What they share stands in `ctes` afterwards."""
        for root in roots:
            self._count(root)
        return [self.relation(root) for root in roots]

    def statement(self, text: str, *roots: Node) -> str:
        """`text` with `{0}`, `{1}` ... replaced by the relations of the roots, behind the WITH clause that they need."""
        body = text
        for number, relation in enumerate(self.bodies(*roots)):
            body = body.replace(f"{{{number}}}", relation)
        if not self.ctes:
            return body
        with_clause = ",\n".join(f"{name} AS (\n{sql}\n)" for name, sql in self.ctes.items())
        return f"WITH {with_clause}\n{body}"

    def _count(self, node: Node) -> None:
        self.uses[id(node)] += 1
        if self.uses[id(node)] == 1:
            for child in children(node):
                self._count(child)

    def relation(self, node: Node) -> str:
        """What may stand in FROM for `node`: a name, or a subquery in parentheses."""
        if isinstance(node, (nodes.Scan, nodes.Changes, nodes.History, nodes.StateRows, nodes.Given)):
            return self.leaf_names(node)
        if id(node) in self.shared:
            return self.shared[id(node)]
        sql = self.select(node)
        if self.uses[id(node)] > 1:
            name = f"shared_{len(self.shared) + 1}"
            self.shared[id(node)] = name
            self.ctes[name] = sql
            return name
        return f"({sql})"

    def alias(self) -> str:
        self.aliases += 1
        return f"t{self.aliases}"

    @singledispatchmethod
    def select(self, node: Node) -> str:
        """`node` as a SELECT statement."""
        raise PlanError(f"no SQL for {type(node).__name__}")

    @select.register(nodes.Scan)
    @select.register(nodes.Changes)
    @select.register(nodes.History)
    @select.register(nodes.StateRows)
    @select.register(nodes.Given)
    def _leaf(self, node: Node) -> str:
        return f"SELECT {_list(node.columns)} FROM {self.leaf_names(node)}"

    @select.register
    def _empty(self, node: nodes.Empty) -> str:
        def typed(name: str) -> str:
            kind = "bigint" if name in (VERSION, FROM, TO) else "int" if name == WEIGHT else ""
            kind = kind or (self.types(name) if self.types else "") or "void"
            return f"CAST(NULL AS {kind}) AS {quote(name)}"

        return f"SELECT {', '.join(map(typed, node.columns))} WHERE false"

    @select.register
    def _values(self, node: nodes.Values) -> str:
        rows = ", ".join("(" + ", ".join(map(sql_of, row)) + ")" for row in node.rows)
        return f"SELECT * FROM VALUES {rows} AS {self.alias()}({_list(node.names)})"

    @select.register
    def _filter(self, node: nodes.Filter) -> str:
        source = self.relation(node.input)
        return f"SELECT {_list(node.columns)} FROM {source} {_where(sql_of(node.condition))}"

    @select.register
    def _project(self, node: nodes.Project) -> str:
        items = ", ".join(_item(name, expression) for name, expression in node.items)
        if isinstance(node.input, nodes.Filter) and self.uses[id(node.input)] == 1:
            inner = node.input
            return f"SELECT {items} FROM {self.relation(inner.input)} {_where(sql_of(inner.condition))}"
        return f"SELECT {items} FROM {self.relation(node.input)}"

    @select.register
    def _generate(self, node: nodes.Generate) -> str:
        alias = self.alias()
        kept = [quote(name) for name in node.input.columns]
        made = [f"{alias}.{quote(name)}" for name in node.names]
        word = "LATERAL VIEW OUTER" if node.outer else "LATERAL VIEW"
        source = f"(SELECT * FROM {self.relation(node.input)})"
        return f"SELECT {', '.join(kept + made)} FROM {source} {word} {sql_of(node.call)} {alias} AS {_list(node.names)}"

    @select.register
    def _union(self, node: nodes.UnionAll) -> str:
        first, *rest = node.inputs
        head = ", ".join(
            quote(a) if a == b else f"{quote(a)} AS {quote(b)}" for a, b in zip(first.columns, node.names)
        )
        parts = [f"SELECT {head} FROM {self.relation(first)}"]
        parts += [f"SELECT {_list(each.columns)} FROM {self.relation(each)}" for each in rest]
        return self._together(node.names, parts)

    def _together(self, columns: tuple[str, ...], parts: list[str]) -> str:
        text = "\nUNION ALL\n".join(parts)
        return f"{self._select_one(columns)} FROM ({text})" if self.one_partition else text

    @select.register
    def _join(self, node: nodes.Join) -> str:
        """Inputs in the order given; each condition stands at the first join where all its columns are known."""
        waiting = list(node.conditions)
        known = list(node.inputs[0].columns)
        source = self.relation(node.inputs[0])
        first = [c for c in waiting if references(c) <= set(known)]
        waiting = [c for c in waiting if c not in first]
        for number, each in enumerate(node.inputs[1:]):
            if number and self.one_partition:
                source = f"(SELECT /*+ COALESCE(1) */ {_list(tuple(known))} FROM {source})"
            known += each.columns
            ready = [c for c in waiting if references(c) <= set(known)]
            waiting = [c for c in waiting if not references(c) <= set(known)]
            source += (
                f"\nJOIN {self.relation(each)} ON {_and(ready)}"
                if ready
                else f"\nCROSS JOIN {self.relation(each)}"
            )
        text = f"{self._select_one(node.columns)} FROM {source}"
        return f"{text} {_where(_and(first))}" if first else text

    def _select_one(self, columns: tuple[str, ...]) -> str:
        """SELECT of the result of an operator after which Spark may forget that there is one partition."""
        return f"SELECT {'/*+ COALESCE(1) */ ' if self.one_partition else ''}{_list(columns)}"

    @select.register
    def _outer(self, node: nodes.OuterJoin) -> str:
        on = _and(node.conditions) if node.conditions else "true"
        left, right = self.relation(node.left), self.relation(node.right)
        return f"{self._select_one(node.columns)} FROM {left}\n{node.kind} OUTER JOIN {right} ON {on}"

    @select.register
    def _semi(self, node: nodes.SemiJoin) -> str:
        on = _and(node.conditions) if node.conditions else "true"
        kind = "ANTI" if node.anti else "SEMI"
        left, right = self.relation(node.left), self.relation(node.right)
        return f"SELECT {_list(node.columns)} FROM {left}\nLEFT {kind} JOIN {right} ON {on}"

    @select.register
    def _mark(self, node: nodes.Mark) -> str:
        """The rows with a match and those without.

        EXISTS in a SELECT list says it in one pass, but Spark moves such an expression through a UNION ALL, as a
        projection or a constraint, and loses its outer columns there ("key not found", PushProjectionThroughUnion).
        """
        on = _and(node.conditions) if node.conditions else "true"
        left, right = self.relation(node.left), self.relation(node.right)
        shown, flag = _list(node.left.columns), quote(node.name)
        parts = [
            f"SELECT {shown}, true AS {flag} FROM {left}\nLEFT SEMI JOIN {right} ON {on}",
            f"SELECT {shown}, false AS {flag} FROM {left}\nLEFT ANTI JOIN {right} ON {on}",
        ]
        return self._together(node.columns, parts)

    @select.register
    def _aggregate(self, node: nodes.Aggregate) -> str:
        items = ", ".join(_item(name, expression) for name, expression in node.keys + node.functions)
        text = f"SELECT {items} FROM {self.relation(node.input)}"
        if node.keys:
            text += " GROUP BY " + ", ".join(sql_of(expression) for _, expression in node.keys)
        return text

    @select.register
    def _distinct(self, node: nodes.Distinct) -> str:
        return f"SELECT DISTINCT {_list(node.columns)} FROM {self.relation(node.input)}"

    @select.register
    def _set_operation(self, node: nodes.SetOperation) -> str:
        left = ", ".join(f"{quote(a)} AS {quote(b)}" for a, b in zip(node.left.columns, node.names))
        right = f"SELECT {_list(node.right.columns)} FROM {self.relation(node.right)}"
        word = f"{node.kind} ALL" if node.all else node.kind
        return f"SELECT {left} FROM {self.relation(node.left)}\n{word}\n{right}"

    @select.register
    def _window(self, node: nodes.Window) -> str:
        added = ", ".join(f"{sql_of(expression)} AS {quote(name)}" for name, expression in node.functions)
        return f"SELECT {_list(node.input.columns)}, {added} FROM {self.relation(node.input)}"

    @select.register
    def _limit(self, node: nodes.Limit) -> str:
        partition = f"PARTITION BY {_list(node.keys)} " if node.keys else ""
        order = "ORDER BY " + (", ".join(map(sql_of, node.order)) if node.order else "NULL")
        number = f"row_number() OVER ({partition}{order})"
        inner = f"SELECT {_list(node.columns)}, {number} AS _n FROM {self.relation(node.input)}"
        upper = "" if node.count is None else f" AND _n <= {node.offset + node.count}"
        return f"SELECT {_list(node.columns)} FROM ({inner}) WHERE _n > {node.offset}{upper}"

    @select.register
    def _edges(self, node: nodes.Edges) -> str:
        kept = _list(tuple(name for name in node.columns if name not in (VERSION, WEIGHT)))
        pair = f"named_struct('v', {FROM}, 'w', 1), named_struct('v', {TO}, 'w', -1)"
        alias = self.alias()
        return (
            f"SELECT {kept + ', ' if kept else ''}{alias}.e.v AS {VERSION}, {alias}.e.w AS {WEIGHT}"
            f" FROM {self.relation(node.input)} LATERAL VIEW explode(array({pair})) {alias} AS e"
            f" WHERE {alias}.e.v > {BEFORE} AND {alias}.e.v < {FOREVER}"
        )


def _where(condition: str) -> str:
    """WHERE behind a relation. Spark reads `WHERE (c)` as an alias with a column list."""
    return f"WHERE {'true AND ' if _COLUMN_LIST.match(condition) else ''}{condition}"


def _list(names: tuple[str, ...]) -> str:
    return ", ".join(map(quote, names))


def _item(name: str, expression: exp.Expr) -> str:
    if isinstance(expression, exp.Column) and expression.name == name:
        return quote(name)
    return f"{sql_of(expression)} AS {quote(name)}"


def _and(conditions: tuple[exp.Expr, ...] | list[exp.Expr]) -> str:
    return " AND ".join(f"({sql_of(condition)})" for condition in conditions)
