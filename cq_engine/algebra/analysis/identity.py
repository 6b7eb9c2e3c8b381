"""What tells the rows of a node apart: an order of them that is total, up to rows that are equal in every column.

    key(R) given G  =  K − G   for the shortest key K of R, or all columns of R − G where R has no key

`G` are columns that hold one value among the rows to be told apart: a group's keys, or columns already ordered by.
Rows that are equal in all columns are interchangeable: whichever is taken, the result is a function of the contents.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from sqlglot import exp

from cq_engine.algebra.analysis.keys import Facts, TableKeys, facts
from cq_engine.algebra.dialect import parse_expression
from cq_engine.algebra.nodes import Node, column

__all__ = ["Comparable", "Identity", "Types", "is_ordered", "row_identity"]

Types = Callable[[Node, Sequence[exp.Expr]], Sequence[str]]
"""Spark's types of expressions over a node's columns."""

Comparable = Callable[[str, str], str]
"""(an expression, its Spark type) → an expression that Spark can order, equal exactly where the values are the same."""

_INCOMPARABLE = re.compile(r"(?<![\w`])((geometry|geography)\b(?!:)|interval(?=\s*(?:[,>]|$)))")
_UNORDERED = re.compile(r"(?<![\w`])(map<|variant\b(?!:))")
_COLLATION = re.compile(r" collate \w+", re.IGNORECASE)


@dataclass(frozen=True)
class Identity:
    """Expressions whose values, together, tell rows apart.

    Empty where nothing has to be told apart. `unique`: no two rows have the same. `present`: the expressions are never
    NULL. `missing` are columns (with their types) that tell rows apart but cannot be ordered, so that the order is not
    total.
    """

    expressions: tuple[exp.Expr, ...]
    unique: bool = False
    present: bool = False
    missing: tuple[str, ...] = ()

    def order(self) -> list[exp.Expr]:
        """As ORDER BY keys."""
        return [exp.Ordered(this=e.copy(), nulls_first=True) for e in self.expressions]


def is_ordered(kind: str) -> bool:
    """Can Spark order values of the type?"""
    return _UNORDERED.search(kind) is None and _INCOMPARABLE.search(kind) is None


def row_identity(
    node: Node, given: Iterable[exp.Expr], table_keys: TableKeys, types: Types, form: Comparable
) -> Identity:
    """The identity of the rows of `node` among rows that agree in the columns of `given` (other expressions count not)."""
    found = facts(node, table_keys)
    kinds = _Kinds(node, table_keys, types)
    fixed = set(found.constant)
    for each in given:
        bare = each.unnest()
        if isinstance(bare, exp.Column) and not _COLLATION.search(kinds.of(bare.name)):
            fixed.add(found.class_of(bare.name))
    shown: dict[str, str] = {}
    for name in node.columns:
        shown.setdefault(found.class_of(name), name)
    wanted = _keys(found, fixed, shown, node.columns)
    for key in wanted:
        if not any(_INCOMPARABLE.search(kinds.of(name)) for name in key):
            present = all(name in found.present for name in key)
            return Identity(tuple(_exact(name, kinds.of(name), form) for name in key), True, present)
    names = [name for own, name in shown.items() if own not in fixed]
    missing = tuple(f"{_stem(n)} ({kinds.of(n)})" for n in names if _INCOMPARABLE.search(kinds.of(n)))
    rest = [n for n in names if not _INCOMPARABLE.search(kinds.of(n))]
    return Identity(tuple(_exact(n, kinds.of(n), form) for n in rest), missing=missing)


def _keys(
    found: Facts, fixed: set[str], shown: dict[str, str], columns: tuple[str, ...]
) -> list[tuple[str, ...]]:
    """What each key still has to tell apart, the shortest first."""
    keys = []
    for key in found.keys:
        parts = {found.class_of(part) for part in key} - fixed
        if parts <= set(shown):
            keys.append(tuple(sorted((shown[part] for part in parts), key=columns.index)))
    return sorted(keys, key=lambda key: (len(key), [columns.index(name) for name in key]))


class _Kinds:
    """The types of a node's columns; Spark is asked only for those that do not come from a table."""

    def __init__(self, node: Node, table_keys: TableKeys, types: Types) -> None:
        self.node, self.types = node, types
        self.known = dict(table_keys.types)

    def of(self, name: str) -> str:
        if name not in self.known:
            names = [n for n in self.node.columns if n not in self.known]
            self.known.update(zip(names, self.types(self.node, [column(n) for n in names])))
        return self.known[name]


def _exact(name: str, kind: str, form: Comparable) -> exp.Expr:
    """The column, in a form that Spark orders."""
    if is_ordered(kind) and not _COLLATION.search(kind):
        return column(name)
    return parse_expression(form(name, kind))


def _stem(name: str) -> str:
    """A plan's column as the user knows it."""
    return name.rsplit("_", 1)[0]
