"""Which rows of which table a delta can need: the keys of the delta, pushed down to the leaves.

An operator evaluated anew for some keys needs of its inputs only the rows with these keys, and so do the operators
below it, as far as their result for a key depends on rows with that key only: semi-join reduction (Bernstein & Chiu,
JACM 1981) with the delta as the first reducer. A runtime filter never changes a plan's result: rows that a leaf gives beyond it
find no partner, and where the keys are too many or not known to the driver, the leaf is read in full.

>>> from cq_engine.algebra.nodes import Project, Scan, column
>>> orders = Scan("orders", (("oid_1", "oid"), ("cust_2", "cust")))
>>> changes = Scan("changes", (("c_3", "c"),))
>>> shown = Project(orders, (("customer_4", column("cust_2")),))
>>> wanted = {"customer_4": Reducer(changes, "c_3")}
>>> [(h.column, h.of_column) for h in push_filters(shown, wanted)[id(orders)]]
[('cust_2', 'c_3')]
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import singledispatch
from typing import NamedTuple

from sqlglot import exp

from cq_engine.algebra import nodes
from cq_engine.algebra.analysis.lineage import equal_columns, path
from cq_engine.algebra.nodes import Meeting, Node, PlanError, RuntimeFilter, references

__all__ = ["Reducer", "Reducers", "RuntimeFilters", "join_filters", "meetings", "push_filters", "reducers_of"]


class Reducer(NamedTuple):
    """A node of the delta plan and its column: at least the values that are wanted; NULL only if `nulls`."""

    node: Node
    column: str
    nulls: bool = False


Reducers = Mapping[str, Reducer]
"""Column of a node → which of its values are needed. Rows with another value in any of them are not."""
RuntimeFilters = dict[int, tuple[RuntimeFilter, ...]]
"""Scan or Aggregate (by id) → what of its rows, or of its stored groups, is needed."""


def push_filters(node: Node, wanted: Reducers) -> RuntimeFilters:
    """The filters for all scans and aggregates below `node`; empty tuples where everything is needed.

    A subplan that is used twice gets a filter only where both uses agree on it.
    """
    return _push(node, dict(wanted), {})


def reducers_of(keys: Sequence[exp.Expr], of: Node, names: Sequence[str], nulls: bool) -> dict[str, Reducer]:
    """The plain columns among `keys`, each wanted with the values of the column of `of` beside it."""
    found: dict[str, Reducer] = {}
    for key, name in zip(keys, names):
        bare = key.unnest()
        if isinstance(bare, exp.Column):
            found.setdefault(bare.name, Reducer(of, name, nulls))
    return found


def meetings(
    node: Node, filters: RuntimeFilters, own: Node, known: Collection[str], conditions: Sequence[exp.Expr]
) -> dict[int, Meeting]:
    """What an input of a join needs that is a table, filtered or not, and that no key reduces: the rows that meet a row of `own`, whose
    columns `known` are, under the conditions between the two."""
    scan = node
    while isinstance(scan, nodes.Filter):
        scan = scan.input
    if not isinstance(scan, nodes.Scan) or filters.get(id(scan)):
        return {}
    ours, theirs = set(scan.columns), set(known)
    between = [
        condition
        for condition in conditions
        if (names := references(condition)) <= ours | theirs and names & ours and names & theirs
    ]
    return {id(scan): Meeting(own, tuple(between))} if between else {}


def join_filters(
    inputs: Sequence[Node], conditions: Sequence[exp.Expr], known: Reducers, order: Iterable[int]
) -> dict[int, RuntimeFilters]:
    """The filters for the inputs of an inner join, in `order`, of which other columns are `known`.

    What an input is reduced to reduces the inputs that are joined with it.
    """
    pairs = equal_columns(conditions)
    reached = _close(known, pairs)
    found: dict[int, RuntimeFilters] = {}
    for i in order:
        found[i] = push_filters(inputs[i], _of_columns(reached, inputs[i].columns))
        reached = _close(_reduce(inputs[i], found[i], reached), pairs)
    return found


# ------------------------------------------------------------------------------------------------ per node

_Memo = dict[tuple[int, tuple[tuple[str, int, str], ...]], RuntimeFilters]


def _push(node: Node, wanted: dict[str, Reducer], memo: _Memo) -> RuntimeFilters:
    key = (id(node), tuple(sorted((name, id(o.node), o.column) for name, o in wanted.items())))
    if key not in memo:
        memo[key] = push(node, wanted, memo)
    return memo[key]


@singledispatch
def push(node: Node, wanted: dict[str, Reducer], memo: _Memo) -> RuntimeFilters:
    """The filters for `node` and all below it."""
    raise PlanError(f"no runtime filters for {type(node).__name__}")


@push.register(nodes.Values)
@push.register(nodes.SetOperation)
def _push_nothing(node: Node, wanted: dict[str, Reducer], memo: _Memo) -> RuntimeFilters:
    return {}


@push.register
def _push_scan(node: nodes.Scan, wanted: dict[str, Reducer], memo: _Memo) -> RuntimeFilters:
    return {id(node): _filters(wanted, node.columns)}


@push.register(nodes.Filter)
@push.register(nodes.Generate)
@push.register(nodes.Distinct)
def _push_rows(
    node: nodes.Filter | nodes.Generate | nodes.Distinct, wanted: dict[str, Reducer], memo: _Memo
) -> RuntimeFilters:
    return _push(node.input, _of_columns(wanted, node.input.columns), memo)


@push.register
def _push_project(node: nodes.Project, wanted: dict[str, Reducer], memo: _Memo) -> RuntimeFilters:
    below = _rename(wanted, node.items)
    return {} if below is None else _push(node.input, below, memo)


@push.register
def _push_union(node: nodes.UnionAll, wanted: dict[str, Reducer], memo: _Memo) -> RuntimeFilters:
    places = ({m: wanted[n] for n, m in zip(node.names, e.columns) if n in wanted} for e in node.inputs)
    return _merge([_push(e, below, memo) for e, below in zip(node.inputs, places)])


@push.register(nodes.Window)
@push.register(nodes.Limit)
def _push_partitions(
    node: nodes.Window | nodes.Limit, wanted: dict[str, Reducer], memo: _Memo
) -> RuntimeFilters:
    keys = node.keys if isinstance(node, nodes.Limit) else _names(node.keys)
    return _push(node.input, _of_columns(wanted, keys), memo)


@push.register
def _push_groups(node: nodes.Aggregate, wanted: dict[str, Reducer], memo: _Memo) -> RuntimeFilters:
    keyed = _rename(wanted, node.keys) or {}
    return {**_push(node.input, keyed, memo), id(node): _filters(wanted, [name for name, _ in node.keys])}


@push.register
def _push_join(node: nodes.Join, wanted: dict[str, Reducer], memo: _Memo) -> RuntimeFilters:
    return _inner(node.inputs, node.conditions, wanted, memo)


def _inner(
    inputs: Sequence[Node], conditions: Sequence[exp.Expr], wanted: Reducers, memo: _Memo
) -> RuntimeFilters:
    """Inputs with a known column first; what they are reduced to reduces the others."""
    pairs = equal_columns(conditions)
    known = _close(wanted, pairs)
    rest = list(inputs)
    parts = []
    while rest:
        each = next((e for e in rest if any(name in known for name in e.columns)), rest[0])
        rest.remove(each)
        parts.append(_push(each, _of_columns(known, each.columns), memo))
        known = _close(_reduce(each, parts[-1], known), pairs)
    return _merge(parts)


@push.register(nodes.OuterJoin)
@push.register(nodes.SemiJoin)
@push.register(nodes.Mark)
def _push_sides(
    node: nodes.OuterJoin | nodes.SemiJoin | nodes.Mark, wanted: dict[str, Reducer], memo: _Memo
) -> RuntimeFilters:
    """Rows of the left side by its own columns, of the right side by what the join equates them with.

    Where a right column is wanted with values that are not NULL, an outer join is as good as an inner one.
    """
    if isinstance(node, nodes.OuterJoin) and node.kind != "LEFT":
        return _merge([_push(node.left, {}, memo), _push(node.right, {}, memo)])
    if any(name in node.right.columns and not reducer.nulls for name, reducer in wanted.items()):
        return _inner((node.left, node.right), node.conditions, wanted, memo)
    ours = _of_columns(wanted, node.left.columns)
    left = _push(node.left, ours, memo)
    known = _close(_reduce(node.left, left, ours), equal_columns(node.conditions))
    return _merge([left, _push(node.right, _of_columns(known, node.right.columns), memo)])


# ------------------------------------------------------------------------------------------------ columns


def _close(wanted: Reducers, pairs: Sequence[tuple[str, str, bool]]) -> dict[str, Reducer]:
    """`wanted` with the columns that are equal to a wanted one."""
    known = dict(wanted)
    changed = True
    while changed:
        changed = False
        for a, b, nulls in pairs:
            for one, other in ((a, b), (b, a)):
                if one in known and other not in known:
                    known[other] = known[one] if nulls else known[one]._replace(nulls=False)
                    changed = True
    return known


def _reduce(node: Node, filters: RuntimeFilters, known: Reducers) -> dict[str, Reducer]:
    """`known` with the columns of `node` that come from a scan with filters: they hold no more than its rows do.

    Columns of the same rows have the same node as their reducer.
    """
    found = dict(known)
    reducers: dict[tuple[int, ...], Node] = {}
    for name in node.columns:
        if name in found:
            continue
        *above, (scan, source) = path(node, name)
        simple = all(isinstance(each, (nodes.Filter, nodes.Project, nodes.Join)) for each, _ in above)
        if simple and isinstance(scan, nodes.Scan) and filters.get(id(scan)):
            way = (id(scan), *(id(each) for each, _ in above))
            if way not in reducers:
                versions: Node = nodes.History(scan, filters[id(scan)])
                for each, _ in reversed(above):
                    if isinstance(each, nodes.Filter) and references(each.condition) <= set(scan.columns):
                        versions = nodes.Filter(versions, each.condition)
                reducers[way] = versions
            found[name] = Reducer(reducers[way], source, nulls=True)
    return found


def _names(keys: Iterable[exp.Expr]) -> list[str]:
    return [bare.name for bare in (key.unnest() for key in keys) if isinstance(bare, exp.Column)]


def _filters(wanted: Reducers, columns: Sequence[str]) -> tuple[RuntimeFilter, ...]:
    return tuple(
        RuntimeFilter(name, wanted[name].node, wanted[name].column) for name in columns if name in wanted
    )


def _of_columns(wanted: Reducers, columns: Iterable[str]) -> dict[str, Reducer]:
    present = set(columns)
    return {name: reducer for name, reducer in wanted.items() if name in present}


def _rename(wanted: Reducers, items: Sequence[tuple[str, exp.Expr]]) -> dict[str, Reducer] | None:
    """What is wanted of the input; None where no row is, because a wanted value is always NULL."""
    found: dict[str, Reducer] = {}
    for name, expression in items:
        bare = expression.unnest()
        if name in wanted and isinstance(bare, exp.Null) and not wanted[name].nulls:
            return None
        if name in wanted and isinstance(bare, exp.Column):
            found.setdefault(bare.name, wanted[name])
    return found


def _merge(parts: Sequence[RuntimeFilters]) -> RuntimeFilters:
    """Every subplan with the filters that all its uses agree on."""
    found: RuntimeFilters = {}
    for part in parts:
        for name, filters in part.items():
            if name not in found:
                found[name] = filters
            elif not _agree(found[name], filters):
                found[name] = ()
    return found


def _agree(a: tuple[RuntimeFilter, ...], b: tuple[RuntimeFilter, ...]) -> bool:
    return [(h.column, id(h.leaf), h.of_column) for h in a] == [
        (h.column, id(h.leaf), h.of_column) for h in b
    ]
