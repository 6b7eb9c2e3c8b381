"""Queries that differ in constants only: their texts recognised as one, and the plan of all of them together.

As in NiagaraCQ (Chen et al., SIGMOD 2000) and TriggerMan (Hanson et al., ICDE 1999) the constants of filters become the
rows of a table, one row per query, and the lowest filter with a constant becomes a join with it. The query's number, the
member, is carried upwards: through projections, joins and conditions as a column, through GROUP BY as one more key. So
the plan gives for member m just what m's own plan gives, beside the column `_member`.

Only literals that are compared are taken out, where Spark compares a column of the literal's type in the same way. All
other literals stay part of what makes queries alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import singledispatchmethod

from sqlglot import exp

from cq_engine.algebra import nodes
from cq_engine.algebra.functions import conjuncts, only_where
from cq_engine.algebra.lowering.lowered import Lowered
from cq_engine.algebra.names import Names
from cq_engine.algebra.nodes import Node, column
from cq_engine.catalog.change_rows import MEMBER
from cq_engine.catalog.model import Table
from cq_engine.core.columns import Column
from cq_engine.planner.compiled import Compiled, Types, assemble, lowered_query
from cq_engine.planner.deterministic import query_text
from cq_engine.planner.words import Constant

__all__ = ["NotGrouped", "compile_members", "constant_places"]


class NotGrouped(Exception):
    """Why a query is refreshed by itself."""


# ------------------------------------------------------------------------------------------------ which literals


_COMPARISONS = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ)
_WHOLE = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 20}
_TIMES = ("date", "timestamp", "timestamp_ntz")


def constant_places(lowered: Lowered, literals: Sequence[Constant], types: Types) -> tuple[int, ...]:
    """The literals of a text, by number, that can be constants of a query group for the lowered query."""
    starts = {each.start: number for number, each in enumerate(literals)}
    found: set[int] = set()
    for node, condition in _conditions(lowered.node):
        pairs = [pair for part in conjuncts(condition) for pair in _comparisons(part)]
        pairs = [(literal, other) for literal, other in pairs if _place(literal) in starts]
        if not pairs:
            continue
        sides = [side for literal, other in pairs for side in (_whole_literal(literal), other)]
        kinds = types(node, sides)
        for (literal, _), constant, other in zip(pairs, kinds[::2], kinds[1::2]):
            if _same_comparison(constant, other):
                found.add(starts[_place(literal)])
    return tuple(sorted(found))


def _conditions(node: Node) -> Iterable[tuple[Node, exp.Expr]]:
    """The conditions through which a member can be carried to the result, with the node that has their columns."""
    if isinstance(node, nodes.Filter):
        yield node.input, node.condition
        yield from _conditions(node.input)
    elif isinstance(node, nodes.Join):
        for condition in node.conditions:
            yield node, condition
        for each in node.inputs:
            yield from _conditions(each)
    elif isinstance(node, (nodes.Project, nodes.Aggregate, nodes.Distinct)):
        yield from _conditions(node.input)
    elif isinstance(node, nodes.SemiJoin) or (isinstance(node, nodes.OuterJoin) and node.kind == "LEFT"):
        yield from _conditions(node.left)


def _comparisons(condition: exp.Expr) -> list[tuple[exp.Literal, exp.Expr]]:
    """The literals that a condition compares, each with what it is compared with."""
    if isinstance(condition, (exp.And, exp.Or)):
        return [*_comparisons(condition.left), *_comparisons(condition.right)]
    if isinstance(condition, (exp.Not, exp.Paren)):
        return _comparisons(condition.this)
    if isinstance(condition, _COMPARISONS):
        sides = [(condition.left, condition.right), (condition.right, condition.left)]
    elif isinstance(condition, exp.Between):
        sides = [(condition.args["low"], condition.this), (condition.args["high"], condition.this)]
    else:
        return []
    found = [(_literal(side), other) for side, other in sides]
    return [(literal, other) for literal, other in found if literal is not None and other.find(exp.Column)]


def _literal(expression: exp.Expr) -> exp.Literal | None:
    """The literal in `7`, `-7` and `DATE '2024-01-01'`."""
    bare = expression.unnest()
    if isinstance(bare, exp.Neg):
        bare = bare.this.unnest()
        return bare if isinstance(bare, exp.Literal) and not bare.is_string else None
    if isinstance(bare, exp.Cast):
        bare = bare.this.unnest()
    return bare if isinstance(bare, exp.Literal) else None


def _whole_literal(literal: exp.Literal) -> exp.Expr:
    """The literal with its sign or its type."""
    above = literal.parent
    while isinstance(above, exp.Paren):
        above = above.parent
    return above.copy() if isinstance(above, (exp.Neg, exp.Cast)) else literal.copy()


def _same_comparison(constant: str, other: str) -> bool:
    """Whether Spark compares a column of type `constant` with `other` as it compares a literal.

    For a literal it knows how many digits a whole number needs, for a column how many the type can have; that matters
    only beside a decimal so wide that both do not fit into 38 digits.
    """
    if constant == other:
        return constant in (*_WHOLE, "float", "double", "string", "boolean", *_TIMES) or "decimal" in constant
    if constant == "string":
        return other in _TIMES
    numbers = (*_WHOLE, "float", "double")
    decimal = re.fullmatch(r"decimal\((\d+),(\d+)\)", other)
    if decimal is not None and constant in _WHOLE:
        precision, scale = int(decimal[1]), int(decimal[2])
        return max(precision - scale, _WHOLE[constant]) + scale <= 38
    is_number = other in numbers or decimal is not None
    return is_number and (constant in numbers or constant.startswith("decimal("))


# ------------------------------------------------------------------------------------------------ the plan


def compile_members(
    text: str,
    columns: Sequence[Column],
    sources: Mapping[str, Table],
    key: tuple[str, ...] | None,
    starts: Mapping[int, int],
    constants: Table,
    types: Types,
) -> Compiled:
    """The query `text` for all rows of the table `constants`; its result has `_member` beside `columns`.

    `starts` says for the place of a literal in the text which of the columns c0, c1, ... it is. `key` is the result
    key of the query itself. Raises NotGrouped where the plan cannot carry the member, or finds another key.
    """
    names = Names()
    lowered, _, _ = lowered_query(text, columns, sources, types, names)
    carrier = _Carrier(names, constants, starts)
    node, carried = carrier.carry(lowered.node, frozenset())
    if carried is None:
        raise NotGrouped("no condition has a constant")
    member = names.fresh("member")
    shown = (*((name, column(name)) for name in lowered.outputs), (member, column(carried.member)))
    whole = replace(lowered, node=nodes.Project(node, shown), outputs=(*lowered.outputs, member))
    tables = {**sources, constants.name: constants}
    wide = (*columns, Column(MEMBER, "bigint"))
    declared = None if key is None else (MEMBER, *key)
    if any(start in starts for start in _literal_places(whole.node)):
        raise NotGrouped("a constant stands elsewhere in the plan, too")
    compiled = assemble(text, wide, tables, declared, types, names, whole)
    if compiled.key_checked or (key is None) != (compiled.key is None):
        raise NotGrouped("the key of all members is not that of one")
    return replace(compiled, text=query_text(whole.node, compiled.outputs, compiled.columns))


def _place(part: exp.Expr) -> int:
    """Where a literal begins in the text; -1 for what is no literal of it."""
    start = part.meta.get("start") if isinstance(part, exp.Literal) else None
    return start if isinstance(start, int) else -1


def _literal_places(node: Node) -> Iterable[int]:
    """Where the literals of all expressions of a plan stand in the text."""
    for each in fields(node):
        yield from _places_in(getattr(node, each.name))


def _places_in(value: object) -> Iterable[int]:
    if isinstance(value, Node):
        yield from _literal_places(value)
    elif isinstance(value, exp.Expr):
        yield from map(_place, value.find_all(exp.Literal))
    elif isinstance(value, tuple):
        for part in value:
            yield from _places_in(part)


@dataclass(frozen=True)
class _Carried:
    """The columns of a node that hold the member and, by number, the constants that are used above."""

    member: str
    constants: Mapping[int, str]

    @property
    def names(self) -> tuple[str, ...]:
        return (self.member, *self.constants.values())


class _Carrier:
    """Puts the table of constants into a plan."""

    def __init__(self, names: Names, table: Table, starts: Mapping[int, int]) -> None:
        self.names = names
        self.table = table
        self.starts = starts

    def carry(self, node: Node, above: frozenset[int]) -> tuple[Node, _Carried | None]:
        """The plan with the member where a condition in it has a constant, and the constants `above` that need be."""
        return self._carry(node, above) if self.inside(node) else (node, None)

    @singledispatchmethod
    def _carry(self, node: Node, above: frozenset[int]) -> tuple[Node, _Carried]:  # noqa: ARG002 - as the rules
        raise NotGrouped(f"{type(node).__name__} above a constant")

    @_carry.register
    def _project(self, node: nodes.Project, above: frozenset[int]) -> tuple[Node, _Carried]:
        below, carried = self.below(node.input, above)
        kept = tuple((name, column(name)) for name in self.needed(carried, above))
        return nodes.Project(below, (*node.items, *kept)), carried

    @_carry.register
    def _distinct(self, node: nodes.Distinct, above: frozenset[int]) -> tuple[Node, _Carried]:
        below, carried = self.below(node.input, above)
        return replace(node, input=below), carried

    @_carry.register(nodes.SemiJoin)
    @_carry.register(nodes.OuterJoin)
    def _left(self, node: nodes.SemiJoin | nodes.OuterJoin, above: frozenset[int]) -> tuple[Node, _Carried]:
        below, carried = self.below(node.left, above)
        return replace(node, left=below), carried

    def below(self, node: Node, above: frozenset[int]) -> tuple[Node, _Carried]:
        found, carried = self.carry(node, above)
        assert carried is not None
        return found, carried

    def inside(self, node: Node) -> bool:
        """Whether a condition in `node` has a constant."""
        return any(self.used(condition) for _, condition in _conditions(node))

    def used(self, expression: exp.Expr) -> frozenset[int]:
        starts = (_place(literal) for literal in expression.find_all(exp.Literal))
        return frozenset(self.starts[start] for start in starts if start in self.starts)

    def needed(self, carried: _Carried, above: frozenset[int]) -> tuple[str, ...]:
        return (carried.member, *(carried.constants[number] for number in sorted(above)))

    @_carry.register
    def _filter(self, node: nodes.Filter, above: frozenset[int]) -> tuple[Node, _Carried]:
        own = self.used(node.condition)
        below, carried = self.carry(node.input, above | own)
        if carried is not None:
            return nodes.Filter(below, self.over(node.condition, carried)), carried
        return self.join_constants([node], [], above)

    @_carry.register
    def _join(self, node: nodes.Join, above: frozenset[int]) -> tuple[Node, _Carried]:
        return self.join_constants(list(node.inputs), list(node.conditions), above)

    def join_constants(
        self, inputs: list[Node], conditions: list[exp.Expr], above: frozenset[int]
    ) -> tuple[Node, _Carried]:
        """An inner join in which filters with constants have become conditions, with the constants as one more input."""
        bare: list[Node] = []
        for each in inputs:
            node, moved = self.strip(each)
            bare.append(node)
            conditions = [*conditions, *moved]
        own = frozenset(number for condition in conditions for number in self.used(condition))
        carriers = [place for place, each in enumerate(bare) if self.inside(each)]
        if len(carriers) > 1:
            raise NotGrouped("several inputs of a join have constants below an aggregate")
        if carriers:
            bare[carriers[0]], carried = self.below(bare[carriers[0]], above | own)
        else:
            scan_node, carried = self.scan(above | own)
            bare.append(scan_node)
        return nodes.Join(tuple(bare), tuple(self.over(c, carried) for c in conditions)), carried

    def strip(self, node: Node) -> tuple[Node, list[exp.Expr]]:
        """The input of a join without the filters on top of it that have constants, and their conditions."""
        if not isinstance(node, nodes.Filter):
            return node, []
        below, moved = self.strip(node.input)
        parts = conjuncts(node.condition)
        kept = [part for part in parts if not self.used(part)]
        moved = [*moved, *(part for part in parts if self.used(part))]
        if not kept:
            return below, moved
        whole = below is node.input and len(kept) == len(parts)
        return (node if whole else nodes.Filter(below, exp.and_(*kept))), moved

    def scan(self, used: frozenset[int]) -> tuple[nodes.Scan, _Carried]:
        """The table of constants, with the columns in `used`."""
        member = self.names.fresh("member")
        columns = {number: self.names.fresh("constant") for number in sorted(used)}
        fields = ((member, MEMBER), *((name, f"c{number}") for number, name in columns.items()))
        return nodes.Scan(self.table.name, fields), _Carried(member, columns)

    def over(self, condition: exp.Expr, carried: _Carried) -> exp.Expr:
        """The condition with the constants' columns in the place of the literals."""

        def replaced(part: exp.Expr) -> exp.Expr:
            start = _place(part)
            return column(carried.constants[self.starts[start]]) if start in self.starts else part

        return condition.copy().transform(replaced)

    @_carry.register
    def _aggregate(self, node: nodes.Aggregate, above: frozenset[int]) -> tuple[Node, _Carried]:
        below, carried = self.below(node.input, above)
        if node.scalar:
            return self.scalar(node, below, carried, above)
        member = self.names.fresh("member")
        constants = {number: self.names.fresh("constant") for number in sorted(above)}
        keys = (
            (member, column(carried.member)),
            *((name, column(carried.constants[number])) for number, name in constants.items()),
        )
        return replace(node, input=below, keys=(*keys, *node.keys)), _Carried(member, constants)

    def scalar(
        self, node: nodes.Aggregate, below: Node, carried: _Carried, above: frozenset[int]
    ) -> tuple[Node, _Carried]:
        """A scalar aggregate has one row for every member, also for those without rows."""
        everyone, outer = self.scan(above)
        there = self.names.fresh("there")
        padded = nodes.OuterJoin(
            everyone,
            nodes.Project(below, (*((n, column(n)) for n in below.columns), (there, exp.Literal.number(1)))),
            "LEFT",
            (exp.EQ(this=column(outer.member), expression=column(carried.member)),),
        )
        present = exp.Not(this=exp.Is(this=column(there), expression=exp.Null()))
        member = self.names.fresh("member")
        constants = {number: self.names.fresh("constant") for number in outer.constants}
        keys = (
            (member, column(outer.member)),
            *((name, column(outer.constants[number])) for number, name in constants.items()),
        )
        functions = tuple((name, only_where(call, present)) for name, call in node.functions)
        return nodes.Aggregate(padded, keys, functions, of=node.of), _Carried(member, constants)
