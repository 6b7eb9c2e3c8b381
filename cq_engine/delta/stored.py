"""A stored aggregate: its state, and the state's versions over an interval.

The accumulators of a group after commit s are those before the interval plus the sums of the weighted terms of all its
delta rows up to s: one window over (group, commit). A hidden row count tells when a group is empty.

What cannot be taken back (MIN, MAX, FLOAT and DOUBLE sums; see `accumulators`) is carried on all the same, and rows say
by `_hit` for which groups that went wrong. Those are computed from their rows (`repaired_versions`); mostly there are none.

>>> from sqlglot import parse_one
>>> from cq_engine.algebra.names import Names
>>> from cq_engine.algebra.nodes import Aggregate, Scan, column
>>> from cq_engine.algebra.show import explain
>>> from cq_engine.delta.context import Context
>>> from cq_engine.delta.rules import RULES
>>> orders = Scan("orders", (("cust", "cust"), ("amt", "amt")))
>>> total = Aggregate(orders, (("g", column("cust")),), (("total", parse_one("sum(amt)")),))
>>> state = state_of(total, "block_1", lambda expression: "int", {"total": "bigint"})
>>> print(explain(initial_state(total, state)))
Aggregate BY (cust AS k0) COUNT(*) AS _n, CAST((COALESCE(SUM(CAST((CASE WHEN NOT (amt) IS NULL THEN 1 END) AS BIGINT)), 0)) AS BIGINT) AS a0, CAST((COALESCE(SUM(CAST(((amt)) AS BIGINT)), 0)) AS BIGINT) AS a1
  Scan orders (cust, amt)
>>> context = Context(RULES, Names(), frozenset({"orders"}), {id(total): state})
>>> print([line.split()[0] for line in explain(accumulator_versions(total, context)).splitlines()])
['Project', 'Window', 'UnionAll', 'Aggregate', '#1', 'Project', 'SemiJoin', 'State', 'Distinct', 'Project', '#1']
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sqlglot import exp

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
    Generate,
    Given,
    Join,
    Node,
    Project,
    RuntimeFilter,
    Scan,
    SemiJoin,
    StateRows,
    UnionAll,
    Values,
    Window,
    children,
    column,
)
from cq_engine.delta.accumulators import COUNT, Accumulator, State, TypeOf, kept_function
from cq_engine.delta.context import Context, delta
from cq_engine.delta.linear import number
from cq_engine.delta.partition import same
from cq_engine.delta.regroup import at_points, group_points

__all__ = [
    "HIT",
    "accumulator_versions",
    "initial_state",
    "repaired_versions",
    "state_names",
    "state_of",
    "state_rows",
]

HIT = "_hit"
"""1 in the rows of groups whose accumulators have to be computed again, else 0."""


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
    return tuple((f"a{i}", _over_rows(a)) for i, a in enumerate(state.accumulators))


def _over_rows(each: Accumulator) -> exp.Expr:
    """The accumulator of plain rows."""
    term = _cast(each.term, each.type)
    return _cast(_total(term), each.type) if each.kind == "sum" else _extreme(each.kind, term)


def _extreme(kind: str, term: exp.Expr) -> exp.Expr:
    return exp.Min(this=term) if kind == "min" else exp.Max(this=term)


def _total(term: exp.Expr) -> exp.Expr:
    """SUM with 0 for nothing."""
    return exp.Coalesce(this=exp.Sum(this=term), expressions=[exp.Literal.number(0)])


def _cast(term: exp.Expr, kind: str) -> exp.Expr:
    return exp.Cast(this=exp.Paren(this=term.copy()), to=exp.DataType.build(kind, dialect="spark"))


def state_names(node: Aggregate, state: State) -> tuple[str, ...]:
    """The plan's names of the state's columns: the node's keys, then names made from the node's first column."""
    stem = node.columns[0] if node.columns else "rows"
    keys = tuple(name for name, _ in node.keys)
    return (*keys, f"{stem}_n", *(f"{stem}_a{i}" for i in range(len(state.accumulators))))


def state_rows(node: Aggregate, state: State, context: Context) -> Node:
    """The stored groups, or those that the context's filters let through."""
    return StateRows(state.label, state_names(node, state), context.filters.get(id(node), ()))


# ------------------------------------------------------------------------------------------------ versions


def accumulator_versions(node: Aggregate, context: Context) -> Node:
    """The accumulators of a stored aggregate's affected groups as versions.

    Columns: the state's in the plan's names, `_from`, `_to`, and `_hit` where rows leave that cannot be taken back.
    Groups that have become empty are there with a row count of 0.
    """
    if id(node) not in context.accumulated:
        result = _carry(node, context.stored[id(node)], context)
        context.kept.append(result)
        context.accumulated[id(node)] = result
    return context.accumulated[id(node)]


def repaired_versions(node: Aggregate, hit: Given, context: Context) -> Node:
    """The same versions (without `_hit`) of just the groups in `hit`, from their rows."""
    state = context.stored[id(node)]
    count, *names = state_names(node, state)[len(node.keys) :]
    sums = tuple((name, e) for name, (_, e) in zip(names, _plain_sums(state)))
    return group_points(node, at_points(node, context, hit), count, sums)


def _carry(node: Aggregate, state: State, context: Context) -> Node:
    """Stored accumulators plus the running sums of the delta's weighted terms."""
    names = state_names(node, state)
    keys, sums = names[: len(node.keys)], names[len(node.keys) :]
    only_more = context.insert_only and _is_monotone(node.input)
    watched = [] if state.exact or only_more else _watch(state, sums, context)
    group = tuple((name, e) for name, (_, e) in zip(keys, node.keys))
    terms = (*_signed_sums(state, sums), *((name, lost) for name, lost, _ in watched))
    changes = Aggregate(delta(node.input, context), (*group, (FROM, column(VERSION))), terms)
    kept = [(s, column(s)) for s in sums]
    nothing: list[tuple[str, exp.Expr]] = [(name, exp.Null()) for name, _, _ in watched]
    before = Project(
        _stored_before(node, state, keys, context),
        (*((k, column(k)) for k in keys), (FROM, number(BEFORE)), *kept, *nothing),
    )
    both = UnionAll((changes, before), changes.columns)
    running = dict(zip(sums, (context.names.fresh(name) for name in sums)))
    kinds = ["sum", *(each.kind for each in state.accumulators)]
    functions = [
        (r, _over(exp.Sum(this=column(s)) if kind == "sum" else _extreme(kind, column(s)), keys, "run"))
        for (s, r), kind in zip(running.items(), kinds)
    ]
    until = context.names.fresh("until")
    following = _over(exp.Lead(this=column(FROM)), keys, "order")
    functions.append((until, exp.Coalesce(this=following, expressions=[number(FOREVER)])))
    shown: Node = Window(both, tuple(functions), ())
    types = ["bigint", *(each.type for each in state.accumulators)]
    items: list[tuple[str, exp.Expr]] = [(k, column(k)) for k in keys]
    items += [(s, _cast(column(r), kind)) for (s, r), kind in zip(running.items(), types)]
    items += [(FROM, column(FROM)), (TO, column(until))]
    if watched:
        tests = [test(column(name), running) for name, _, test in watched]
        one, zero = exp.Literal.number(1), exp.Literal.number(0)
        wrong = exp.Case(ifs=[exp.If(this=exp.or_(*tests), true=one)], default=zero)
        shown = Project(shown, (*((c, column(c)) for c in shown.columns), (HIT, wrong)))
        of_group = context.names.fresh("hit")
        shown = Window(shown, ((of_group, _over(exp.Max(this=column(HIT)), keys, "all")),), ())
        items.append((HIT, column(of_group)))
    return Project(shown, tuple(items))


def _is_monotone(node: Node) -> bool:
    """True if rows that are inserted into tables only bring rows to `node`."""
    if isinstance(node, SemiJoin) and node.anti:
        return False
    monotone = (Scan, Values, Filter, Project, Generate, UnionAll, Join, SemiJoin, Distinct)
    return isinstance(node, monotone) and all(map(_is_monotone, children(node)))


def _stored_before(node: Aggregate, state: State, keys: tuple[str, ...], context: Context) -> Node:
    """The affected groups as they are stored."""
    changes = delta(node.input, context)
    filters = tuple(
        RuntimeFilter(k, changes, e.name) for k, (_, e) in zip(keys, node.keys) if isinstance(e, exp.Column)
    )
    stored: Node = StateRows(state.label, state_names(node, state), filters)
    if not keys:
        return stored
    names = tuple(context.names.fresh("k") for _ in keys)
    affected = Distinct(Project(changes, tuple(zip(names, (e.copy() for _, e in node.keys)))))
    return SemiJoin(stored, affected, False, tuple(same(a, b) for a, b in zip(keys, names)))


_Test = Callable[[exp.Expr, Mapping[str, str]], exp.Expr]


def _watch(state: State, sums: Sequence[str], context: Context) -> list[tuple[str, exp.Expr, _Test]]:
    """For each accumulator that cannot take rows back: what leaves at a commit, and when that is too much.

    The test is over the column of what left and the running accumulators. A minimum that goes on without what left is
    at most the true one: where less or as much leaves, the group is read again; else it was right all the time.
    """
    left = exp.LT(this=column(WEIGHT), expression=exp.Literal.number(0))
    found: list[tuple[str, exp.Expr, _Test]] = []
    for name, each in zip(sums[1:], state.accumulators):
        gone = exp.Case(ifs=[exp.If(this=left.copy(), true=_cast(each.term, each.type))])
        lost = context.names.fresh("lost")
        if each.kind == "sum" and not each.exact:
            found.append((lost, exp.Count(this=gone), _any_left))
        elif each.kind != "sum":
            found.append((lost, _extreme(each.kind, gone), _reaches(each.kind, name)))
    return found


def _any_left(lost: exp.Expr, running: Mapping[str, str]) -> exp.Expr:
    return exp.GT(this=lost, expression=exp.Literal.number(0))


def _reaches(kind: str, name: str) -> _Test:
    test = exp.LTE if kind == "min" else exp.GTE
    return lambda lost, running: test(this=lost, expression=column(running[name]))


def _signed_sums(state: State, names: tuple[str, ...]) -> tuple[tuple[str, exp.Expr], ...]:
    weight = column(WEIGHT)
    terms: list[tuple[str, exp.Expr]] = [(names[0], exp.Sum(this=_cast(weight, "bigint")))]
    for name, each in zip(names[1:], state.accumulators):
        term = _cast(each.term, each.type)
        positive = exp.If(this=exp.GT(this=weight.copy(), expression=exp.Literal.number(0)), true=term)
        if each.kind != "sum":
            terms.append((name, _extreme(each.kind, exp.Case(ifs=[positive]))))
            continue
        signed = exp.Case(ifs=[positive], default=exp.Neg(this=exp.Paren(this=term.copy())))
        terms.append((name, _cast(_total(signed), each.type)))
    return tuple(terms)


def _over(function: exp.Expr, keys: tuple[str, ...], rows: str) -> exp.Expr:
    """`function` over the versions of a group: "all" of them, in "order", or a "run" of all up to the present one."""
    spec = exp.WindowSpec(kind="ROWS", start="UNBOUNDED", start_side="PRECEDING", end="CURRENT ROW")
    order = exp.Order(expressions=[exp.Ordered(this=column(FROM), nulls_first=True)])
    return exp.Window(
        this=function,
        partition_by=[column(k) for k in keys],
        order=None if rows == "all" else order,
        spec=spec if rows == "run" else None,
    )
