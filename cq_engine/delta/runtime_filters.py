"""Which rows of which table a delta can need: the keys of the delta, pushed down to the leaves.

An operator evaluated anew for some keys needs of its inputs only the rows with these keys, and so do the operators
below it, as far as their result for a key depends on rows with that key only: semi-join reduction (Bernstein & Chiu,
JACM 1981) with the delta as the first reducer. A hint never changes a plan's result: rows that a leaf gives beyond it
find no partner, and where the keys are too many or not known to the driver, the leaf is read in full.

>>> from cq_engine.algebra.nodes import Project, Scan, column
>>> orders = Scan("orders", (("oid_1", "oid"), ("cust_2", "cust")))
>>> changes = Scan("changes", (("c_3", "c"),))
>>> shown = Project(orders, (("customer_4", column("cust_2")),))
>>> wanted = {"customer_4": Origin(changes, "c_3")}
>>> [(h.column, h.of_column) for h in restricted(shown, wanted)[id(orders)]]
[('cust_2', 'c_3')]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import singledispatch
from typing import NamedTuple

from sqlglot import exp

from cq_engine.algebra.analysis.lineage import equal_columns, path
from cq_engine.algebra.nodes import (
    Aggregate,
    Distinct,
    Filter,
    Generate,
    History,
    Join,
    KeyHint,
    Limit,
    Mark,
    Node,
    OuterJoin,
    PlanError,
    Project,
    Scan,
    SemiJoin,
    SetOperation,
    UnionAll,
    Values,
    Window,
    references,
)

__all__ = ["Hints", "Origin", "Wanted", "partners", "restricted", "wanted_by"]


class Origin(NamedTuple):
    """A node of the delta plan and its column: at least the values that are wanted; NULL only if `nulls`."""

    node: Node
    column: str
    nulls: bool = False


Wanted = Mapping[str, Origin]
"""Column of a node → which of its values are needed. Rows with another value in any of them are not."""
Hints = dict[int, tuple[KeyHint, ...]]
"""Scan or Aggregate (by id) → what of its rows, or of its stored groups, is needed."""


def restricted(node: Node, wanted: Wanted) -> Hints:
    """The hints for all scans and aggregates below `node`; empty tuples where everything is needed.

    A subplan that is used twice gets a hint only where both uses agree on it.
    """
    return _push(node, dict(wanted), {})


def wanted_by(keys: Sequence[exp.Expr], of: Node, names: Sequence[str], nulls: bool) -> dict[str, Origin]:
    """The plain columns among `keys`, each wanted with the values of the column of `of` beside it."""
    found: dict[str, Origin] = {}
    for key, name in zip(keys, names):
        bare = key.unnest()
        if isinstance(bare, exp.Column):
            found.setdefault(bare.name, Origin(of, name, nulls))
    return found


def partners(
    inputs: Sequence[Node], conditions: Sequence[exp.Expr], known: Wanted, order: Iterable[int]
) -> dict[int, Hints]:
    """The hints for the inputs of an inner join, in `order`, of which other columns are `known`.

    What an input is reduced to reduces the inputs that are joined with it.
    """
    pairs = equal_columns(conditions)
    reached = _closed(known, pairs)
    found: dict[int, Hints] = {}
    for i in order:
        found[i] = restricted(inputs[i], _among(reached, inputs[i].columns))
        reached = _closed(_reduced(inputs[i], found[i], reached), pairs)
    return found


# ------------------------------------------------------------------------------------------------ per node

_Memo = dict[tuple[int, tuple[tuple[str, int, str], ...]], Hints]


def _push(node: Node, wanted: dict[str, Origin], memo: _Memo) -> Hints:
    key = (id(node), tuple(sorted((name, id(o.node), o.column) for name, o in wanted.items())))
    if key not in memo:
        memo[key] = push(node, wanted, memo)
    return memo[key]


@singledispatch
def push(node: Node, wanted: dict[str, Origin], memo: _Memo) -> Hints:
    """The hints for `node` and all below it."""
    raise PlanError(f"no runtime filters for {type(node).__name__}")


@push.register(Values)
@push.register(SetOperation)
def _push_nothing(node: Node, wanted: dict[str, Origin], memo: _Memo) -> Hints:
    return {}


@push.register
def _push_scan(node: Scan, wanted: dict[str, Origin], memo: _Memo) -> Hints:
    return {id(node): _hints(wanted, node.columns)}


@push.register(Filter)
@push.register(Generate)
@push.register(Distinct)
def _push_rows(node: Filter | Generate | Distinct, wanted: dict[str, Origin], memo: _Memo) -> Hints:
    return _push(node.input, _among(wanted, node.input.columns), memo)


@push.register
def _push_project(node: Project, wanted: dict[str, Origin], memo: _Memo) -> Hints:
    below = _renamed(wanted, node.items)
    return {} if below is None else _push(node.input, below, memo)


@push.register
def _push_union(node: UnionAll, wanted: dict[str, Origin], memo: _Memo) -> Hints:
    places = ({m: wanted[n] for n, m in zip(node.names, e.columns) if n in wanted} for e in node.inputs)
    return _merged([_push(e, below, memo) for e, below in zip(node.inputs, places)])


@push.register(Window)
@push.register(Limit)
def _push_partitions(node: Window | Limit, wanted: dict[str, Origin], memo: _Memo) -> Hints:
    keys = node.keys if isinstance(node, Limit) else _names(node.keys)
    return _push(node.input, _among(wanted, keys), memo)


@push.register
def _push_groups(node: Aggregate, wanted: dict[str, Origin], memo: _Memo) -> Hints:
    keyed = _renamed(wanted, node.keys) or {}
    return {**_push(node.input, keyed, memo), id(node): _hints(wanted, [name for name, _ in node.keys])}


@push.register
def _push_join(node: Join, wanted: dict[str, Origin], memo: _Memo) -> Hints:
    return _inner(node.inputs, node.conditions, wanted, memo)


def _inner(inputs: Sequence[Node], conditions: Sequence[exp.Expr], wanted: Wanted, memo: _Memo) -> Hints:
    """Inputs with a known column first; what they are reduced to reduces the others."""
    pairs = equal_columns(conditions)
    known = _closed(wanted, pairs)
    rest = list(inputs)
    parts = []
    while rest:
        each = next((e for e in rest if any(name in known for name in e.columns)), rest[0])
        rest.remove(each)
        parts.append(_push(each, _among(known, each.columns), memo))
        known = _closed(_reduced(each, parts[-1], known), pairs)
    return _merged(parts)


@push.register(OuterJoin)
@push.register(SemiJoin)
@push.register(Mark)
def _push_sides(node: OuterJoin | SemiJoin | Mark, wanted: dict[str, Origin], memo: _Memo) -> Hints:
    """Rows of the left side by its own columns, of the right side by what the join equates them with.

    Where a right column is wanted with values that are not NULL, an outer join is as good as an inner one.
    """
    if isinstance(node, OuterJoin) and node.kind != "LEFT":
        return _merged([_push(node.left, {}, memo), _push(node.right, {}, memo)])
    if any(name in node.right.columns and not origin.nulls for name, origin in wanted.items()):
        return _inner((node.left, node.right), node.conditions, wanted, memo)
    ours = _among(wanted, node.left.columns)
    left = _push(node.left, ours, memo)
    known = _closed(_reduced(node.left, left, ours), equal_columns(node.conditions))
    return _merged([left, _push(node.right, _among(known, node.right.columns), memo)])


# ------------------------------------------------------------------------------------------------ columns


def _closed(wanted: Wanted, pairs: Sequence[tuple[str, str, bool]]) -> dict[str, Origin]:
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


def _reduced(node: Node, hints: Hints, known: Wanted) -> dict[str, Origin]:
    """`known` with the columns of `node` that come from a scan with hints: they hold no more than its rows do."""
    found = dict(known)
    for name in node.columns:
        if name in found:
            continue
        *above, (scan, source) = path(node, name)
        simple = all(isinstance(each, (Filter, Project, Join)) for each, _ in above)
        if simple and isinstance(scan, Scan) and hints.get(id(scan)):
            versions: Node = History(scan, hints[id(scan)])
            for each, _ in reversed(above):
                if isinstance(each, Filter) and references(each.condition) <= set(scan.columns):
                    versions = Filter(versions, each.condition)
            found[name] = Origin(versions, source, nulls=True)
    return found


def _names(keys: Iterable[exp.Expr]) -> list[str]:
    return [bare.name for bare in (key.unnest() for key in keys) if isinstance(bare, exp.Column)]


def _hints(wanted: Wanted, columns: Sequence[str]) -> tuple[KeyHint, ...]:
    return tuple(KeyHint(name, wanted[name].node, wanted[name].column) for name in columns if name in wanted)


def _among(wanted: Wanted, columns: Iterable[str]) -> dict[str, Origin]:
    present = set(columns)
    return {name: origin for name, origin in wanted.items() if name in present}


def _renamed(wanted: Wanted, items: Sequence[tuple[str, exp.Expr]]) -> dict[str, Origin] | None:
    """What is wanted of the input; None where no row is, because a wanted value is always NULL."""
    found: dict[str, Origin] = {}
    for name, expression in items:
        bare = expression.unnest()
        if name in wanted and isinstance(bare, exp.Null) and not wanted[name].nulls:
            return None
        if name in wanted and isinstance(bare, exp.Column):
            found.setdefault(bare.name, wanted[name])
    return found


def _merged(parts: Sequence[Hints]) -> Hints:
    """Every subplan with the hints that all its uses agree on."""
    found: Hints = {}
    for part in parts:
        for name, hints in part.items():
            if name not in found:
                found[name] = hints
            elif not _alike(found[name], hints):
                found[name] = ()
    return found


def _alike(a: tuple[KeyHint, ...], b: tuple[KeyHint, ...]) -> bool:
    return [(h.column, id(h.leaf), h.of_column) for h in a] == [
        (h.column, id(h.leaf), h.of_column) for h in b
    ]
