"""What LEFT, semi, anti and mark joins share: every row of the left side, with or without its partners on the right.

    Δ(L ⟕ R) at commit s  =  Δ(L)ₛ ⟕ R@s  +  (A ⟕ R@s)  −  (A ⟕ R@s⁻),      A = L@s⁻ ⋉ Δ(R)ₛ

and the same with ⋉, ▷ or an existence mark for ⟕. A are the left rows that a changed right row can match; a left row
that changes itself goes by the first term. (Griffin & Kumar, "Algebraic Change Propagation for Semijoin and Outerjoin
Queries", SIGMOD Record 1998, with the three kinds of changed matches in one term.) The last two terms are one join: A
is taken twice, with the weights +1 and −1, and meets the right side after and before the commit.

Where the conditions have equalities, A is found by their values. NULL equals nothing there, so that a left row with a
NULL key is touched by no change of the right side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from cq_engine.algebra.nodes import (
    FROM,
    TO,
    VERSION,
    WEIGHT,
    Distinct,
    Empty,
    Join,
    Mark,
    Node,
    OuterJoin,
    Project,
    SemiJoin,
    Values,
    column,
    references,
)
from cq_engine.delta.context import Context, delta, has_changes, history
from cq_engine.delta.linear import rename_validity, union, valid_after, valid_before, without_validity
from cq_engine.delta.partition import not_null, points_of
from cq_engine.delta.runtime_filters import (
    Reducer,
    Reducers,
    RuntimeFilters,
    join_filters,
    meetings,
    push_filters,
    reducers_of,
)

__all__ = ["matched_delta", "matched_history"]

Matching = OuterJoin | SemiJoin | Mark


@dataclass(frozen=True)
class _Equalities:
    """The expressions of both sides that the conditions compare, and for each pair whether NULL equals NULL."""

    left: tuple[exp.Expr, ...]
    right: tuple[exp.Expr, ...]
    nulls: tuple[bool, ...]

    @classmethod
    def of(cls, node: Matching) -> _Equalities:
        found = []
        ours, theirs = set(node.left.columns), set(node.right.columns)
        for condition in node.conditions:
            bare = condition.unnest()
            if not isinstance(bare, (exp.EQ, exp.NullSafeEQ)):
                continue
            for a, b in ((bare.left, bare.right), (bare.right, bare.left)):
                if references(a) and references(b) and references(a) <= ours and references(b) <= theirs:
                    found.append((a, b, isinstance(bare, exp.NullSafeEQ)))
                    break
        return cls(tuple(f[0] for f in found), tuple(f[1] for f in found), tuple(f[2] for f in found))

    def match(self, names: Sequence[str]) -> list[exp.Expr]:
        """The left expressions equal the columns `names`."""
        kinds = (exp.NullSafeEQ if nulls else exp.EQ for nulls in self.nulls)
        return [
            kind(this=exp.Paren(this=e.copy()), expression=column(n))
            for kind, e, n in zip(kinds, self.left, names)
        ]

    def wanted(self, keys: Sequence[exp.Expr], of: Node, names: Sequence[str]) -> Reducers:
        found: dict[str, Reducer] = {}
        for key, name, nulls in zip(keys, names, self.nulls):
            found = {**reducers_of((key,), of, (name,), nulls), **found}
        return found


# ------------------------------------------------------------------------------------------------ delta


def matched_delta(node: Matching, context: Context) -> Node:
    """The signed rows of the join."""
    parts = [_own_changes(node, context), _partner_changes(node, context)]
    return union(parts, (*node.columns, VERSION, WEIGHT))


def _own_changes(node: Matching, context: Context) -> Node:
    """The left side's changed rows with their partners at that commit."""
    columns = (*node.columns, VERSION, WEIGHT)
    own = delta(node.left, context)
    if isinstance(own, Empty):
        return Empty(columns)
    known = {name: Reducer(own, name, nulls=True) for name in node.left.columns}
    filters = join_filters((node.left, node.right), node.conditions, known, [1])[1]
    meets = meetings(node.right, filters, own, node.left.columns, node.conditions)
    versions, start, end = rename_validity(history(node.right, context.with_filters(filters, meets)), context)
    valid = valid_after(column(VERSION), start, end) if has_changes(node.right, context) else []
    return _show(_over(node, own, versions, valid), columns)


def _partner_changes(node: Matching, context: Context) -> Node:
    """The left rows that changed right rows can match, with their partners before and after the commit."""
    columns = (*node.columns, VERSION, WEIGHT)
    changes = delta(node.right, context)
    if isinstance(changes, Empty):
        return Empty(columns)
    equal = _Equalities.of(node)
    commit, sign = context.names.fresh("s"), context.names.fresh("w")
    if equal.left:
        affected, filters = _by_key(node, equal, changes, commit, context)
    else:
        affected, filters = _by_condition(node, changes, commit, context), RuntimeFilters()
    one = exp.Literal.number(1)
    twice = Join((affected, Values((sign,), ((one,), (exp.Neg(this=one.copy()),)))), ())
    versions, start, end = rename_validity(history(node.right, context.with_filters(filters)), context)
    after = exp.EQ(this=column(sign), expression=one.copy())
    valid = exp.or_(
        exp.and_(after, *valid_after(column(commit), start, end)),
        exp.and_(exp.Not(this=exp.Paren(this=after.copy())), *valid_before(column(commit), start, end)),
    )
    both = _over(node, twice, versions, [valid])
    items = [(name, column(name)) for name in node.columns]
    return Project(both, (*items, (VERSION, column(commit)), (WEIGHT, column(sign))))


def _by_key(
    node: Matching, equal: _Equalities, changes: Node, commit: str, context: Context
) -> tuple[Node, RuntimeFilters]:
    """The left rows before each commit whose key a changed right row has; and the filters for the right side."""
    names = tuple(context.names.fresh("pk") for _ in equal.right)
    items = (*zip(names, (e.copy() for e in equal.right)), (commit, column(VERSION)))
    keys = Distinct(not_null(Project(changes, items), names, equal.nulls))
    filters = push_filters(node.left, equal.wanted(equal.left, keys, names))
    rows, start, end = rename_validity(history(node.left, context.with_filters(filters)), context)
    conditions = equal.match(names)
    if has_changes(node.left, context):
        conditions += valid_before(column(commit), start, end)
    found = Join((keys, rows), tuple(conditions))
    theirs = push_filters(node.right, equal.wanted(equal.right, keys, names))
    return _show(found, (*node.left.columns, commit)), theirs


def _by_condition(node: Matching, changes: Node, commit: str, context: Context) -> Node:
    """The left rows before each commit for which the conditions hold with a changed right row."""
    rows, start, end = rename_validity(history(node.left, context), context)
    before = valid_before(column(VERSION), start, end)
    some = SemiJoin(rows, changes, False, (*node.conditions, *before))
    commits = Distinct(Project(changes, ((commit, column(VERSION)),)))
    at = Join((commits, some), tuple(valid_before(column(commit), start, end)))
    same = exp.EQ(this=column(VERSION), expression=column(commit))
    hit = SemiJoin(at, changes, False, (*node.conditions, same))
    return _show(hit, (*node.left.columns, commit))


# ------------------------------------------------------------------------------------------------ history


def matched_history(node: Matching, context: Context) -> Node:
    """The left side's versions, cut where the right side changes for their key, each with its partners then."""
    columns = (*node.columns, FROM, TO)
    rows = history(node.left, context)
    equal = _Equalities.of(node)
    points = points_of(node.right, equal.right, context, equal.nulls)
    if points is None:
        return _show(_over(node, rows, without_validity(history(node.right, context)), ()), columns)
    overlap: list[exp.Expr] = [
        exp.LT(this=column(points.start), expression=column(TO)),
        exp.LT(this=column(FROM), expression=column(points.end)),
    ]
    cut = OuterJoin(rows, points.node, "LEFT", (*equal.match(points.keys), *overlap))
    first = exp.Greatest(this=column(FROM), expressions=[column(points.start)], ignore_nulls=True)
    last = exp.Least(this=column(TO), expressions=[column(points.end)], ignore_nulls=True)
    items = [(name, column(name)) for name in node.left.columns]
    pieces = Project(cut, (*items, (FROM, first), (TO, last)))
    versions, start, end = rename_validity(history(node.right, context), context)
    return _show(_over(node, pieces, versions, valid_after(column(FROM), start, end)), columns)


def _over(node: Matching, left: Node, right: Node, more: Sequence[exp.Expr]) -> Node:
    """The operator over two other sides, under more conditions than its own."""
    return replace(node, left=left, right=right, conditions=(*node.conditions, *more))


def _show(node: Node, columns: tuple[str, ...]) -> Node:
    return Project(node, tuple((name, column(name)) for name in columns))
