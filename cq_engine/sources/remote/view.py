"""The part of a query over tables that stay at their sources: a join of them, with its equalities, conditions and columns.

It is stored as SQL of one form, `SELECT a.c AS name, ... FROM t AS a, ... WHERE ... AND ...`, from which everything else follows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from sqlglot import exp

from cq_engine.algebra.dialect import parse_expression, write
from cq_engine.catalog.model import CatalogState, Table
from cq_engine.catalog.names import find_table
from cq_engine.core.columns import Column
from cq_engine.sources.remote.place import family
from cq_engine.sources.sweep.model import Edge, Relation, View

__all__ = ["JOINED", "RemoteView", "conjuncts", "edge_of"]

JOINED = {"integer", "string", "decimal", "date"}
"""Families of types whose values can be sent to a source as keys."""


@dataclass(frozen=True)
class RemoteView:
    """The part, over the tables as they are declared."""

    sql: str
    tables: Mapping[str, Table]
    """By alias, in the order of FROM."""

    @classmethod
    def read(cls, state: CatalogState, sql: str) -> RemoteView:
        """What was stored. Raises CatalogError where a table is gone."""
        tree = parse_expression(sql)
        found = {table.alias: find_table(state, table.name) for table in tree.find_all(exp.Table)}
        places = {table.alias: table.this.meta.get("start", 0) for table in tree.find_all(exp.Table)}
        return cls(sql, {alias: found[alias] for alias in sorted(found, key=lambda each: places[each])})

    @cached_property
    def _tree(self) -> exp.Select:
        tree = parse_expression(self.sql)
        assert isinstance(tree, exp.Select)
        return tree

    @cached_property
    def columns(self) -> Mapping[str, tuple[Column, ...]]:
        """By alias the columns that take part: those of the key, of conditions, and of the result."""
        named: dict[str, set[str]] = {
            alias: {name.lower() for name in table.primary_key or ()} for alias, table in self.tables.items()
        }
        for column in self._tree.find_all(exp.Column):
            named[column.table].add(column.name.lower())
        return {
            alias: tuple(c for c in table.columns if c.name.lower() in named[alias])
            for alias, table in self.tables.items()
        }

    @cached_property
    def view(self) -> View:
        """What the sweeps work on; relations are called by their aliases. Raises ValueError where they are not connected."""
        relations = tuple(
            Relation(
                alias,
                table.remote.source.lower() if table.remote is not None else "",
                tuple(table.primary_key or ()),
                tuple(column.name for column in self.columns[alias]),
            )
            for alias, table in self.tables.items()
        )
        edges = [
            edge for edge in (edge_of(each, self.tables) for each in self._conditions()) if edge is not None
        ]
        return View(relations, tuple(edges))

    def _conditions(self) -> Iterator[exp.Expr]:
        where = self._tree.args.get("where")
        return iter(()) if where is None else conjuncts(where.this)

    def statement(self, names: Mapping[str, str]) -> str:
        """The part over other relations, by alias, in SQL of the engine."""
        tree = self._tree.copy()
        for table in tree.find_all(exp.Table):
            table.set("this", exp.to_identifier(names[table.alias], quoted=True))
        return write(tree)

    def signed(self, names: Mapping[str, str], term: str, sign: str) -> str:
        """The part over signed rows of each relation, term by term: the result with `term`, and with the product of the signs."""
        tree = parse_expression(self.statement(names))
        assert isinstance(tree, exp.Select)
        first, *others = self.tables
        signs = [exp.column(sign, table=alias, quoted=True) for alias in self.tables]
        product: exp.Expr = signs[0]
        for each in signs[1:]:
            product = exp.Mul(this=product, expression=each)
        same = [
            exp.EQ(
                this=exp.column(term, table=first, quoted=True),
                expression=exp.column(term, table=alias, quoted=True),
            )
            for alias in others
        ]
        tree.select(exp.alias_(exp.column(term, table=first, quoted=True), term, quoted=True), copy=False)
        tree.select(exp.alias_(product, sign, quoted=True), copy=False)
        for condition in same:
            tree.where(condition, copy=False, dialect="spark")
        return write(tree)


def conjuncts(condition: exp.Expr) -> Iterator[exp.Expr]:
    """The parts of a condition that all have to hold."""
    while isinstance(condition, exp.Paren):
        condition = condition.this
    if isinstance(condition, exp.And):
        yield from conjuncts(condition.left)
        yield from conjuncts(condition.right)
    else:
        yield condition


def edge_of(condition: exp.Expr, tables: Mapping[str, Table]) -> Edge | None:
    """The equality of two columns of different relations by which sources can be asked; None where the condition is none."""
    if not isinstance(condition, exp.EQ):
        return None
    sides = []
    for side in (condition.this, condition.expression):
        if not isinstance(side, exp.Column) or side.table not in tables:
            return None
        column = next((c for c in tables[side.table].columns if c.name.lower() == side.name.lower()), None)
        if column is None or family(column.type) not in JOINED:
            return None
        sides.append((side.table, column))
    (left, one), (right, other) = sides
    if left == right or family(one.type) != family(other.type):
        return None
    return Edge((left, one.name), (right, other.name))
