"""The n-way inner join (Witkowski et al., VLDB 2007, slides 18-19, forms 1 and 2 for n tables).

    Δ(T₁ ⋈ … ⋈ Tₙ) at commit s  =  Σᵢ  T₁@s ⋈ … ⋈ Tᵢ₋₁@s ⋈ Δₛ(Tᵢ) ⋈ Tᵢ₊₁@s⁻ ⋈ … ⋈ Tₙ@s⁻

For j < i the versions of Tⱼ with `_from` <= s < `_to` take part, for j > i those with `_from` < s <= `_to`. Terms
whose Δ is empty are dropped; an occurrence of a self-joined table is a Tᵢ of its own. Each term starts from its Δ and
goes on to inputs that are connected with what it has, so that a small delta never meets a cross product.
"""

from __future__ import annotations

from sqlglot import exp

from cq_engine.algebra.nodes import (
    FROM,
    TO,
    VERSION,
    WEIGHT,
    Empty,
    History,
    Join,
    KeyHint,
    Node,
    Project,
    column,
    references,
)
from cq_engine.delta.context import Context, delta, history, register_delta, register_history, touched
from cq_engine.delta.lineage import changes_column, scan_column
from cq_engine.delta.linear import union

__all__: list[str] = []


@register_delta
def _join_delta(node: Join, context: Context) -> Node:
    columns = (*node.columns, VERSION, WEIGHT)
    terms = [_term(node, i, context) for i, each in enumerate(node.inputs) if touched(each, context)]
    return union(terms, columns)


def _term(node: Join, i: int, context: Context) -> Node:
    """The term in which input `i` brings its delta."""
    own = delta(node.inputs[i], context)
    columns = (*node.columns, VERSION, WEIGHT)
    if isinstance(own, Empty):
        return own if own.columns == columns else Empty(columns)
    hints = _hints(node, i, own)
    parts: dict[int, Node] = {}
    conditions = list(node.conditions)
    for j, each in enumerate(node.inputs):
        if j == i:
            continue
        versions = history(each, context.narrowed(hints.get(j, {})))
        if isinstance(versions, Empty):
            return Empty(columns)
        start, end = context.names.fresh("from"), context.names.fresh("to")
        parts[j] = _renamed(versions, start, end)
        if touched(each, context):
            conditions += _valid(start, end, before=j > i)
    order = _connected(i, node)
    inputs = tuple(own if j == i else parts[j] for j in order)
    joined = Join(inputs, tuple(conditions))
    return Project(joined, tuple((name, column(name)) for name in columns))


def _valid(start: str, end: str, before: bool) -> list[exp.Expr]:
    """The version [start, end) is the one before (or after) commit `_v`."""
    v = column(VERSION)
    if before:
        return [exp.LT(this=column(start), expression=v), exp.LTE(this=v.copy(), expression=column(end))]
    return [exp.LTE(this=column(start), expression=v), exp.LT(this=v.copy(), expression=column(end))]


def _renamed(versions: Node, start: str, end: str) -> Node:
    items = [(name, column(name)) for name in versions.columns if name not in (FROM, TO)]
    return Project(versions, (*items, (start, column(FROM)), (end, column(TO))))


def _connected(start: int, node: Join) -> list[int]:
    """The inputs in an order in which each is joined by an equality with those before it, as far as there is one."""
    order = [start]
    known = set(node.inputs[start].columns)
    rest = [j for j in range(len(node.inputs)) if j != start]
    while rest:
        linked = [
            j for j in rest if any(_links(c, known, set(node.inputs[j].columns)) for c in node.conditions)
        ]
        following = (linked or rest)[0]
        order.append(following)
        known |= set(node.inputs[following].columns)
        rest.remove(following)
    return order


def _links(condition: exp.Expr, known: set[str], other: set[str]) -> bool:
    if not isinstance(condition, (exp.EQ, exp.NullSafeEQ)):
        return False
    left, right = references(condition.left), references(condition.right)
    return bool(left and right) and ((left <= known and right <= other) or (left <= other and right <= known))


# ------------------------------------------------------------------------------------------------ hints


def _hints(node: Join, i: int, own: Node) -> dict[int, dict[int, tuple[KeyHint, ...]]]:
    """For each other input, which rows of its scans can join: those with a key that the delta (or a reduced input) has."""
    origins: dict[str, tuple[Node, str]] = {}
    for name in own.columns:
        source = changes_column(own, name)
        if source is not None:
            origins[name] = source
    found: dict[int, dict[int, tuple[KeyHint, ...]]] = {}
    for j in _connected(i, node)[1:]:
        for condition in node.conditions:
            pair = _column_pair(condition, set(node.inputs[j].columns), set(origins))
            if pair is None:
                continue
            mine, theirs = pair
            place = scan_column(node.inputs[j], mine)
            if place is None:
                continue
            scan, name = place
            leaf, of = origins[theirs]
            hint = KeyHint(name, leaf, of)
            found.setdefault(j, {})[id(scan)] = (hint,)
            reduced = History(scan, (hint,))
            for each in node.inputs[j].columns:
                below = scan_column(node.inputs[j], each)
                if below is not None and below[0] is scan:
                    origins.setdefault(each, (reduced, below[1]))
            break
    return found


def _column_pair(condition: exp.Expr, mine: set[str], known: set[str]) -> tuple[str, str] | None:
    if not isinstance(condition, exp.EQ):
        return None
    left, right = condition.left.unnest(), condition.right.unnest()
    if not (isinstance(left, exp.Column) and isinstance(right, exp.Column)):
        return None
    if left.name in mine and right.name in known:
        return left.name, right.name
    if right.name in mine and left.name in known:
        return right.name, left.name
    return None


# ------------------------------------------------------------------------------------------------ history


@register_history
def _join_history(node: Join, context: Context) -> Node:
    """Combinations of row versions whose validities overlap, valid where all are."""
    inputs, starts, ends = [], [], []
    for each in node.inputs:
        versions = history(each, context)
        if isinstance(versions, Empty):
            return Empty((*node.columns, FROM, TO))
        start, end = context.names.fresh("from"), context.names.fresh("to")
        inputs.append(_renamed(versions, start, end))
        starts.append(column(start))
        ends.append(column(end))
    first = exp.Greatest(this=starts[0], expressions=list(starts[1:]), ignore_nulls=True)
    last = exp.Least(this=ends[0], expressions=list(ends[1:]), ignore_nulls=True)
    conditions = [*node.conditions]
    if any(touched(each, context) for each in node.inputs):
        conditions.append(exp.LT(this=first.copy(), expression=last.copy()))
    joined = Join(tuple(inputs), tuple(conditions))
    items = [(name, column(name)) for name in node.columns]
    return Project(joined, (*items, (FROM, first), (TO, last)))
