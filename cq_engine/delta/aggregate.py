"""GROUP BY: groups as row versions, from stored accumulators where they can be carried, else from the groups' rows.

    Δγ(R) at commit s  =  γ(R)@s − γ(R)@s⁻   on the groups in π_k(ΔR)

*Stored*: the accumulators of a group after commit s are those before the interval plus the sums of the weighted terms
of all its delta rows up to s: one window over (group, commit). A hidden row count tells when a group is empty; a
scalar aggregate keeps its row. *Recomputed*: the function is evaluated at every point of the affected groups
(see `partition`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import sqlglot
from sqlglot import exp

from cq_engine.algebra.functions import only_where
from cq_engine.algebra.nodes import (
    BEFORE,
    FOREVER,
    FROM,
    TO,
    VERSION,
    WEIGHT,
    Aggregate,
    Distinct,
    Filter,
    KeyHint,
    Named,
    Node,
    OuterJoin,
    Project,
    SemiJoin,
    StateRows,
    UnionAll,
    Window,
    column,
)
from cq_engine.delta.accumulators import Accumulator, Kept, TypeOf, kept_function
from cq_engine.delta.context import Context, delta, history, register_delta, register_history, touched
from cq_engine.delta.lineage import key_hints
from cq_engine.delta.linear import always, number, union
from cq_engine.delta.partition import Points, edges, keyed, points_of, same, unaffected

__all__ = ["State", "accumulated", "initial_state", "state_of"]

COUNT = "_n"


@dataclass(frozen=True)
class State:
    """How an Aggregate is stored: a table of its keys (`k0`, ...), the row count `_n` and accumulators (`a0`, ...)."""

    label: str
    kept: tuple[Kept, ...]

    @property
    def accumulators(self) -> tuple[Accumulator, ...]:
        return tuple(each for kept in self.kept for each in kept.accumulators)

    @property
    def exact(self) -> bool:
        """True if the accumulators may be carried on when rows leave."""
        return all(kept.exact for kept in self.kept)

    def columns(self, keys: int) -> tuple[str, ...]:
        numbers = range(len(self.accumulators))
        return (*(f"k{i}" for i in range(keys)), COUNT, *(f"a{i}" for i in numbers))


def state_of(node: Aggregate, label: str, type_of: TypeOf, result_types: Mapping[str, str]) -> State | None:
    """The state in which `node` can be stored, or None where a function has to be recomputed."""
    kept = []
    for name, call in node.functions:
        found = kept_function(call, type_of, result_types[name])
        if found is None:
            return None
        kept.append(found)
    return State(label, tuple(kept))


def initial_state(node: Aggregate, state: State) -> Node:
    """The state's rows for the present rows of `node.input`: columns as `State.columns`."""
    keys = tuple((f"k{i}", e) for i, (_, e) in enumerate(node.keys))
    count = exp.Count(this=exp.Star())
    return Aggregate(node.input, keys, ((COUNT, count), *_plain_sums(state)), node.scalar)


def _plain_sums(state: State) -> tuple[tuple[str, exp.Expr], ...]:
    return tuple(
        (f"a{i}", _cast(_total(_cast(a.term, a.type)), a.type)) for i, a in enumerate(state.accumulators)
    )


def _total(term: exp.Expr) -> exp.Expr:
    """SUM with 0 for nothing."""
    return exp.Coalesce(this=exp.Sum(this=term), expressions=[exp.Literal.number(0)])


def _cast(term: exp.Expr, kind: str) -> exp.Expr:
    return exp.Cast(this=exp.Paren(this=term.copy()), to=exp.DataType.build(kind, dialect="spark"))


# ------------------------------------------------------------------------------------------------ versions


@register_delta
def _aggregate_delta(node: Aggregate, context: Context) -> Node:
    return edges(_versions(node, context))


@register_history
def _aggregate_history(node: Aggregate, context: Context) -> Node:
    """The affected groups' versions, and the other groups as they are."""
    state = context.stored.get(id(node))
    if not touched(node, context):
        if state is not None:
            return always(_valued(node, state, _state_rows(node, state)))
        rows = history(node.input, context)
        return always(Aggregate(_bare(rows), node.keys, node.functions, node.scalar))
    versions = _versions(node, context)
    if node.scalar:
        return versions
    if state is not None:
        stored = _state_rows(node, state)
        affected, names = _affected(node, context)
        own = tuple(name for name, _ in node.keys)
        others = SemiJoin(stored, affected, True, tuple(same(a, b) for a, b in zip(own, names)))
        rest: Node = _valued(node, state, others)
    else:
        rows, keys = keyed(history(node.input, context), tuple(e for _, e in node.keys), context)
        points = points_of([(node.input, tuple(e for _, e in node.keys))], context)
        assert points is not None  # touched, so there are changes
        rest = Aggregate(unaffected(points, rows, keys), node.keys, node.functions)
    return union([versions, always(rest)], versions.columns)


def _bare(rows: Node) -> Node:
    return Project(rows, tuple((n, column(n)) for n in rows.columns if n not in (FROM, TO)))


def _versions(node: Aggregate, context: Context) -> Node:
    """The versions of the affected groups: the node's columns, `_from`, `_to`."""
    if id(node) not in context.versions:
        state = context.stored.get(id(node))
        result = _valued(node, state, accumulated(node, context)) if state else _recomputed(node, context)
        context.kept.append(result)
        context.versions[id(node)] = result
    return context.versions[id(node)]


def _names(node: Aggregate, state: State) -> tuple[str, ...]:
    """The plan's names of the state's columns: the node's keys, then names made from the node's first column."""
    stem = node.columns[0] if node.columns else "rows"
    keys = tuple(name for name, _ in node.keys)
    return (*keys, f"{stem}_n", *(f"{stem}_a{i}" for i in range(len(state.accumulators))))


def _state_rows(node: Aggregate, state: State) -> Node:
    return StateRows(state.label, _names(node, state))


def _valued(node: Aggregate, state: State, rows: Node) -> Node:
    """Accumulators to function values; groups without rows are left out, a scalar aggregate's row stays."""
    from_to = tuple((n, column(n)) for n in rows.columns if n in (FROM, TO))
    keys = tuple((name, column(name)) for name, _ in node.keys)
    count, *accumulators = rows.columns[len(keys) : len(rows.columns) - len(from_to)]
    items = []
    for (name, _), kept in zip(node.functions, state.kept):
        own = tuple(accumulators.pop(0) for _ in kept.accumulators)
        items.append((name, sqlglot.parse_one(kept.value(own), dialect="spark")))
    present = (
        rows if node.scalar else Filter(rows, exp.GT(this=column(count), expression=exp.Literal.number(0)))
    )
    return Project(present, (*keys, *items, *from_to))


def accumulated(node: Aggregate, context: Context) -> Node:
    """The accumulators of a stored aggregate's affected groups as versions.

    Columns: the state's in the plan's names, `_from`, `_to`. Groups that have become empty are there with a row
    count of 0.
    """
    if id(node) not in context.accumulated:
        state = context.stored[id(node)]
        carried = state.exact or context.insert_only
        result = _carried(node, state, context) if carried else _recounted(node, state, context)
        context.kept.append(result)
        context.accumulated[id(node)] = result
    return context.accumulated[id(node)]


def _affected(node: Aggregate, context: Context) -> tuple[Node, tuple[str, ...]]:
    """The distinct keys of the groups that the delta touches, under fresh names."""
    names = tuple(context.names.fresh("k") for _ in node.keys)
    items = tuple(zip(names, (e.copy() for _, e in node.keys)))
    return Distinct(Project(delta(node.input, context), items)), names


def _carried(node: Aggregate, state: State, context: Context) -> Node:
    """Stored accumulators plus the running sums of the delta's weighted terms."""
    names = _names(node, state)
    keys, sums = names[: len(node.keys)], names[len(node.keys) :]
    group = tuple((name, e) for name, (_, e) in zip(keys, node.keys))
    grouped = Aggregate(
        delta(node.input, context), (*group, (FROM, column(VERSION))), _signed_sums(state, sums)
    )
    changes = delta(node.input, context)
    hints = tuple(
        KeyHint(k, changes, e.name) for k, (_, e) in zip(keys, node.keys) if isinstance(e, exp.Column)
    )
    stored: Node = StateRows(state.label, names, hints)
    if keys:
        affected, theirs = _affected(node, context)
        stored = SemiJoin(stored, affected, False, tuple(same(a, b) for a, b in zip(keys, theirs)))
    before = Project(
        stored, (*((k, column(k)) for k in keys), (FROM, number(BEFORE)), *((s, column(s)) for s in sums))
    )
    both = UnionAll((grouped, before), grouped.columns)
    running = [context.names.fresh(name) for name in sums]
    until = context.names.fresh("until")
    functions = [(r, _over(exp.Sum(this=column(s)), keys, frame=True)) for r, s in zip(running, sums)]
    following = _over(exp.Lead(this=column(FROM)), keys, frame=False)
    functions.append((until, exp.Coalesce(this=following, expressions=[number(FOREVER)])))
    shown = Window(both, tuple(functions), ())
    types = ["bigint", *(each.type for each in state.accumulators)]
    items = [(s, _cast(column(r), kind)) for s, r, kind in zip(sums, running, types)]
    return Project(
        shown, (*((k, column(k)) for k in keys), *items, (FROM, column(FROM)), (TO, column(until)))
    )


def _signed_sums(state: State, names: tuple[str, ...]) -> tuple[tuple[str, exp.Expr], ...]:
    weight = column(WEIGHT)
    terms: list[tuple[str, exp.Expr]] = [(names[0], exp.Sum(this=_cast(weight, "bigint")))]
    for name, each in zip(names[1:], state.accumulators):
        term = _cast(each.term, each.type)
        positive = exp.If(this=exp.GT(this=weight.copy(), expression=exp.Literal.number(0)), true=term)
        signed = exp.Case(ifs=[positive], default=exp.Neg(this=exp.Paren(this=term.copy())))
        terms.append((name, _cast(_total(signed), each.type)))
    return tuple(terms)


def _over(function: exp.Expr, keys: tuple[str, ...], frame: bool) -> exp.Expr:
    """`function` over the versions of a group, in order; with `frame` over all up to the present one."""
    spec = exp.WindowSpec(kind="ROWS", start="UNBOUNDED", start_side="PRECEDING", end="CURRENT ROW")
    return exp.Window(
        this=function,
        partition_by=[column(k) for k in keys],
        order=exp.Order(expressions=[exp.Ordered(this=column(FROM), nulls_first=True)]),
        spec=spec if frame else None,
    )


# ------------------------------------------------------------------------------------------------ recomputed


@dataclass(frozen=True)
class _AtPoints:
    """The input's rows at each point of the affected groups; a point without rows has one row with NULLs."""

    node: Node
    points: Points
    present: str
    """A column that is NULL in the row of a point without rows."""


def _at_points(node: Aggregate, context: Context) -> _AtPoints:
    expressions = tuple(e for _, e in node.keys)
    hints = key_hints(node.input, expressions, delta(node.input, context), expressions)
    rows, keys = keyed(history(node.input, context.narrowed(hints)), expressions, context)
    points = points_of([(node.input, expressions)], context)
    assert points is not None  # only touched aggregates come here
    valid: list[exp.Expr] = [same(a, b) for a, b in zip(points.keys, keys)]
    valid.append(exp.LTE(this=column(FROM), expression=column(points.start)))
    valid.append(exp.LT(this=column(points.start), expression=column(TO)))
    return _AtPoints(OuterJoin(points.node, rows, "LEFT", tuple(valid)), points, FROM)


def _grouped(node: Aggregate, at: _AtPoints, count: str, functions: Named) -> Node:
    """`functions` of each affected group at each point, with the group's row count; columns in the node's names."""
    points = at.points
    is_there = exp.Not(this=exp.Is(this=column(at.present), expression=exp.Null()))
    number_of_rows = exp.Count(this=column(at.present))
    kept = tuple((name, only_where(call, is_there) if node.scalar else call) for name, call in functions)
    group = (
        *((k, column(k)) for k in points.keys),
        (points.start, column(points.start)),
        (points.end, column(points.end)),
    )
    result = Aggregate(at.node, group, ((count, number_of_rows), *kept))
    items = [(name, column(k)) for (name, _), k in zip(node.keys, points.keys)]
    items += [(name, column(name)) for name in (count, *(name for name, _ in functions))]
    return Project(result, (*items, (FROM, column(points.start)), (TO, column(points.end))))


def _recounted(node: Aggregate, state: State, context: Context) -> Node:
    """The accumulators of a stored aggregate, from the rows of the affected groups."""
    count, *names = _names(node, state)[len(node.keys) :]
    sums = tuple((name, e) for name, (_, e) in zip(names, _plain_sums(state)))
    return _grouped(node, _at_points(node, context), count, sums)


def _recomputed(node: Aggregate, context: Context) -> Node:
    """The functions' values, from the rows of the affected groups."""
    count = context.names.fresh("rows")
    rows = _grouped(node, _at_points(node, context), count, node.functions)
    if not node.scalar:
        rows = Filter(rows, exp.GT(this=column(count), expression=exp.Literal.number(0)))
    return Project(rows, tuple((name, column(name)) for name in rows.columns if name != count))
