"""The delta rules for partial deltas: projection (§5.4), selection (§5.5) and join (§5.6) of Jörg & Dessloch.

A node's delta is one relation of signed rows with a type flag (`model`). The preserved rows So of a node, which the
join needs, are those row versions of it that are valid before and after the commit in question; how they get there is
the matter of the history rules, which are those of complete deltas.

    ∆σp(S) = σp(∆S)          ∇σp(S) = σ(p ∨ flag ≠ comp)(π..,s(flag)(∇S))
    ∆πA(S) = πA(∆S)          ∇πA(S) = πA,flag(∇S)
    ∆(S ⋈ T) = (∆S ⋈ Tnew) ∪ (So ⋈ ∆T)
    ∇(S ⋈ T) = (So ⋈ ∇T) ∪ π..,j(comp,T.flag)(σflag=comp(∇S) ⋈ Told) ∪ π..,NULL,s(flag)(σflag≠comp(∇S))

The parts of a join are disjoint, so that UNION ALL does. The effectiveness test of the projection, which may be omitted
here (§5.4), is made once, where signed rows become changes again (`model.to_change_rows`).

>>> from cq_engine.algebra.nodes import Scan
>>> from cq_engine.algebra.show import explain
>>> from cq_engine.delta.rules import RULES
>>> from sqlglot import parse_one
>>> addresses = Scan("addr", (("aid", "aid"), ("country", "country")))
>>> german = Filter(addresses, parse_one("country = 'DE'"))
>>> context = PartialContext(Context(RULES, Names(), frozenset({"addr"})), frozenset({"addr"}), {})
>>> print(explain(signed(german, context)))
Filter CASE WHEN _flag <> 'comp' THEN TRUE ELSE country = 'DE' END
  Project aid, country, _v, _w, CASE WHEN _flag = 'up' THEN 'ups' ELSE _flag END AS _flag
    Given partial_changes_of_addr (aid, country, _v, _w, _flag)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import singledispatch

from sqlglot import exp

from cq_engine.algebra.names import Names
from cq_engine.algebra.nodes import (
    FROM,
    TO,
    VERSION,
    WEIGHT,
    Changes,
    Empty,
    Filter,
    Given,
    Join,
    Node,
    PlanError,
    Project,
    Scan,
    column,
)
from cq_engine.delta.context import Context, has_changes, history
from cq_engine.delta.linear import rename_validity, union, valid_after
from cq_engine.delta.partial.dimension import Step, View
from cq_engine.delta.partial.model import COMPLETE, FLAG, FLAGS, translate_selection

__all__ = ["PartialContext", "signed"]

_SIGNS = (VERSION, WEIGHT, FLAG)


@dataclass
class PartialContext:
    """One planning run: `context` for the histories, `partial` the tables (lower case) whose changes may be partial,
    `views` how each join is put together, by the id of its node, and `scans` what the leaves stand for."""

    context: Context
    partial: frozenset[str]
    views: dict[int, View]
    scans: dict[str, Scan] = field(default_factory=dict)

    @property
    def names(self) -> Names:
        return self.context.names


def signed(node: Node, context: PartialContext) -> Node:
    """The signed rows of `node`: its columns, `_v`, `_w`, `_flag`."""
    if not has_changes(node, context.context):
        return Empty((*node.columns, *_SIGNS))
    found = _signed(node, context)
    context.context.kept += [node, found]
    return found


@singledispatch
def _signed(node: Node, context: PartialContext) -> Node:
    raise PlanError(f"no rule for partial deltas of {type(node).__name__}")


@_signed.register
def _scan(node: Scan, context: PartialContext) -> Node:
    if node.table not in context.partial:
        changes = Changes(node)
        return Project(
            changes, (*((n, column(n)) for n in changes.columns), (FLAG, exp.Literal.string(COMPLETE)))
        )
    leaf = Given(f"partial_changes_of_{node.table}", (*node.columns, *_SIGNS))
    while context.scans.setdefault(leaf.name, node) is not node:  # the table is there twice
        leaf = Given(context.names.fresh(leaf.name), leaf.names)
    return leaf


@_signed.register
def _filter(node: Filter, context: PartialContext) -> Node:
    return select(signed(node.input, context), node.condition)


def select(rows: Node, condition: exp.Expr) -> Node:
    """Signed rows that satisfy the condition, and those of which nobody knows whether they did."""
    kept = [(name, column(name)) for name in rows.columns if name != FLAG]
    passed = Project(rows, (*kept, (FLAG, _less_certain())))
    unknown = exp.NEQ(this=column(FLAG), expression=exp.Literal.string(COMPLETE))
    return Filter(passed, exp.Case().when(unknown, exp.true()).else_(condition.copy()))


@_signed.register
def _project(node: Project, context: PartialContext) -> Node:
    rows = signed(node.input, context)
    items = [(name, each if isinstance(each, exp.Column) else _if_known(each)) for name, each in node.items]
    return Project(rows, (*items, *((name, column(name)) for name in _SIGNS)))


@_signed.register
def _join(node: Join, context: PartialContext) -> Node:
    view = context.views[id(node)]
    left = node.inputs[view.root]
    pair = Pair(left.columns, signed(left, context), history(left, context.context))
    for step in view.steps:
        pair = _joined(pair, node.inputs[step.place], step, context)
        for condition in step.others:
            rows = pair.rows if isinstance(pair.rows, Empty) else select(pair.rows, condition)
            pair = Pair(pair.columns, rows, Filter(pair.versions, condition))
    return _shown(pair.rows, (*node.columns, *_SIGNS))


@dataclass(frozen=True)
class Pair:
    """A relation's `columns`, signed rows and row versions."""

    columns: tuple[str, ...]
    rows: Node
    versions: Node


def _joined(left: Pair, other: Node, step: Step, context: PartialContext) -> Pair:
    """The join of `left` with a relation that it refers to by its key."""
    right = Pair(other.columns, signed(other, context), history(other, context.context))
    columns = (*left.columns, *right.columns)
    parts: list[Node] = []
    if not isinstance(left.rows, Empty):
        parts += _by_left(left, right, step, context)
    if not isinstance(right.rows, Empty):
        before, start, end = rename_validity(left.versions, context.context)
        conditions = (*step.conditions, *_unchanged(start, end))
        parts.append(_shown(Join((right.rows, before), conditions), (*columns, *_SIGNS)))
    own, start, end = rename_validity(left.versions, context.context)
    theirs, other_start, other_end = rename_validity(right.versions, context.context)
    first = exp.Greatest(this=column(start), expressions=[column(other_start)], ignore_nulls=True)
    last = exp.Least(this=column(end), expressions=[column(other_end)], ignore_nulls=True)
    overlap = exp.LT(this=first.copy(), expression=last.copy())
    kept = tuple((name, column(name)) for name in columns)
    versions = Project(Join((own, theirs), (*step.conditions, overlap)), (*kept, (FROM, first), (TO, last)))
    return Pair(columns, union(parts, (*columns, *_SIGNS)), versions)


def _by_left(left: Pair, right: Pair, step: Step, context: PartialContext) -> list[Node]:
    """What changes on the left brings: rows of ∆S with T as it is, known rows of ∇S with T as it was, and the other
    rows of ∇S alone."""
    signs = (*left.columns, *right.columns, *_SIGNS)
    coming, gone = Filter(left.rows, _has_sign(1)), Filter(left.rows, _has_sign(-1))
    known, unknown = Filter(gone, _has_flag(COMPLETE)), Filter(gone, exp.not_(_has_flag(COMPLETE)))
    after, start, end = rename_validity(right.versions, context.context)
    valid = valid_after(column(VERSION), start, end)
    parts: list[Node] = [_shown(Join((coming, after), (*step.conditions, *valid)), signs)]
    before, start, end = rename_validity(right.versions, context.context)
    parts.append(_shown(Join((known, before), (*step.conditions, *_unchanged(start, end))), signs))
    if not isinstance(right.rows, Empty):
        theirs, version, flag = _renamed(Filter(right.rows, _has_sign(-1)), context.names)
        same = exp.EQ(this=column(VERSION), expression=column(version))
        kept = [(name, column(name)) for name in signs if name != FLAG]
        parts.append(Project(Join((known, theirs), (*step.conditions, same)), (*kept, (FLAG, column(flag)))))
    padded: list[tuple[str, exp.Expr]] = [
        (name, exp.null() if name in right.columns else column(name)) for name in signs if name != FLAG
    ]
    parts.append(Project(unknown, (*padded, (FLAG, _less_certain()))))
    return parts


def _shown(node: Node, names: Sequence[str]) -> Node:
    return Project(node, tuple((name, column(name)) for name in names))


def _renamed(rows: Node, names: Names) -> tuple[Node, str, str]:
    """Signed rows whose version and flag have other names, which are given, too; without their weight."""
    version, flag = names.fresh("version"), names.fresh("flag")
    kept = [(name, column(name)) for name in rows.columns if name not in (VERSION, WEIGHT, FLAG)]
    return Project(rows, (*kept, (version, column(VERSION)), (flag, column(FLAG)))), version, flag


def _unchanged(start: str, end: str) -> list[exp.Expr]:
    """The version [start, end) is valid before and after the commit `_v`."""
    return [
        exp.LT(this=column(start), expression=column(VERSION)),
        exp.LT(this=column(VERSION), expression=column(end)),
    ]


def _has_sign(weight: int) -> exp.Expr:
    compared = exp.GT if weight > 0 else exp.LT
    return compared(this=column(WEIGHT), expression=exp.Literal.number(0))


def _has_flag(flag: str) -> exp.Expr:
    return exp.EQ(this=column(FLAG), expression=exp.Literal.string(flag))


def _if_known(expression: exp.Expr) -> exp.Expr:
    """NULL for rows of which only the key is known: an expression may fail over what is not."""
    return exp.Case().when(_has_flag(COMPLETE), expression.copy())


def _less_certain() -> exp.Expr:
    """The function s (`model.translate_selection`) of the flag."""
    case = exp.Case()
    for flag in FLAGS:
        if translate_selection(flag) != flag:
            case = case.when(_has_flag(flag), exp.Literal.string(translate_selection(flag)))
    return case.else_(column(FLAG))
