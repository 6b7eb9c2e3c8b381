"""Keys of a plan: which sets of columns identify a row, up to columns that are always equal.

A plan's `Facts` are its minimal keys, the classes of columns that hold one value in every row, and the columns that
are constant. UNION ALL has no key; joining a table on its full unique key adds nothing to the key of the other side.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import singledispatch

from sqlglot import exp

from cq_engine.algebra import nodes
from cq_engine.algebra.analysis.closure import TableKey, reduce_columns
from cq_engine.algebra.analysis.equality import Equality
from cq_engine.algebra.nodes import Node, PlanError

__all__ = ["Facts", "TableKeys", "covers", "facts", "result_key"]

Keys = frozenset[frozenset[str]]


@dataclass(frozen=True)
class TableKeys:
    """A TableKey that also knows the Spark types of the plan's columns; without it all compared columns are of one.

    `nullable` names the tables whose key may hold NULL, which is one value then: results of continuous queries.
    """

    key: TableKey
    types: Mapping[str, str]
    nullable: frozenset[str] = frozenset()

    def __call__(self, table: str) -> tuple[str, ...] | None:
        return self.key(table)


_MOST_KEYS = 16
"""So many keys of a node are known: joins multiply them, and the shortest ones are those that are used."""


@dataclass(frozen=True)
class Facts:
    """`keys` over class representatives; `same` maps a column to its class; `constant` are classes of one value.

    `present` are columns that are never NULL.
    """

    keys: Keys
    same: dict[str, str]
    constant: frozenset[str] = frozenset()
    present: frozenset[str] = frozenset()

    def class_of(self, name: str) -> str:
        while name in self.same and self.same[name] != name:
            name = self.same[name]
        return name


def result_key(node: Node, outputs: tuple[str, ...], table_key: TableKey) -> tuple[str, ...] | None:
    """The derived result key as columns of `outputs`, in their order: the shortest one, or None."""
    found = facts(node, table_key)
    visible: dict[str, str] = {}
    for name in outputs:
        visible.setdefault(found.class_of(name), name)
    candidates = []
    for key in found.keys:
        if all(part in visible or part in found.constant for part in key):
            columns = [visible[part] for part in key if part not in found.constant]
            candidates.append(tuple(sorted(columns, key=outputs.index)))
    return (
        min(candidates, key=lambda key: (len(key), [outputs.index(c) for c in key])) if candidates else None
    )


def covers(node: Node, declared: Iterable[str], outputs: tuple[str, ...], table_key: TableKey) -> bool:
    """True if the columns `declared` contain a derived key, so that they need no check."""
    found = facts(node, table_key)
    given = {found.class_of(name) for name in declared} | set(found.constant)
    return any(key <= given for key in found.keys)


def _minimal(keys: Iterable[frozenset[str]]) -> Keys:
    ordered = sorted(set(keys), key=lambda key: (len(key), sorted(key)))
    kept: list[frozenset[str]] = []
    for key in ordered:
        if not any(other <= key for other in kept):
            kept.append(key)
    return frozenset(kept[:_MOST_KEYS])


@singledispatch
def facts(node: Node, table_key: TableKey) -> Facts:
    """The facts about `node`."""
    raise PlanError(f"no keys for {type(node).__name__}")


@facts.register
def _scan(node: nodes.Scan, table_key: TableKey) -> Facts:
    key = table_key(node.table)
    if key is None:
        return Facts(frozenset(), {})
    names = {source.lower(): name for name, source in node.fields}
    columns = frozenset(names[part.lower()] for part in key)
    nullable = isinstance(table_key, TableKeys) and node.table in table_key.nullable
    return Facts(frozenset({columns}), {}, present=frozenset() if nullable else columns)


@facts.register
def _values(node: nodes.Values, table_key: TableKey) -> Facts:
    return Facts(frozenset({frozenset()}) if len(node.rows) == 1 else frozenset(), {})


@facts.register
def _filter(node: nodes.Filter, table_key: TableKey) -> Facts:
    return _equate(facts(node.input, table_key), [node.condition], table_key)


@facts.register
def _project(node: nodes.Project, table_key: TableKey) -> Facts:
    inner = facts(node.input, table_key)
    by_class: dict[str, str] = {}
    same: dict[str, str] = {}
    constant = set()
    for name, expression in node.items:
        bare = expression.unnest()
        if isinstance(bare, exp.Column):
            own = inner.class_of(bare.name)
            if own in by_class:
                same[name] = by_class[own]
            else:
                by_class[own] = name
            if own in inner.constant:
                constant.add(by_class[own])
        elif isinstance(bare, exp.Literal):
            constant.add(name)
    keys = []
    for key in inner.keys:
        parts = {part for part in key if part not in inner.constant}
        if parts <= set(by_class):
            keys.append(frozenset(by_class[part] for part in parts))
    present = frozenset(name for name, e in node.items if _is_present(e.unnest(), inner))
    return Facts(_minimal(keys), same, frozenset(constant), present)


def _is_present(expression: exp.Expr, inner: Facts) -> bool:
    return isinstance(expression, exp.Column) and expression.name in inner.present


@facts.register
def _join(node: nodes.Join, table_key: TableKey) -> Facts:
    inner = [facts(each, table_key) for each in node.inputs]
    same: dict[str, str] = {}
    constant: set[str] = set()
    for each in inner:
        same.update(each.same)
        constant |= each.constant
    present = frozenset[str]().union(*(each.present for each in inner))
    merged = _equate(Facts(frozenset(), same, frozenset(constant), present), node.conditions, table_key)
    per_input = [
        [frozenset(map(merged.class_of, key)) - merged.constant for key in each.keys] for each in inner
    ]
    if any(not keys for keys in per_input):
        return Facts(frozenset(), merged.same, merged.constant, merged.present)
    owned = [frozenset(map(merged.class_of, each.columns)) for each in node.inputs]
    keys: set[frozenset[str]] = set()
    for start in _combinations(per_input):
        keys.add(_reduce(start, per_input, owned))
    return Facts(_minimal(keys), merged.same, merged.constant, merged.present)


def _combinations(per_input: list[list[frozenset[str]]]) -> list[list[frozenset[str]]]:
    found: list[list[frozenset[str]]] = [[]]
    for keys in per_input:
        found = [[*chosen, key] for chosen in found for key in keys][:_MOST_KEYS]
    return found


def _reduce(
    chosen: list[frozenset[str]], per_input: list[list[frozenset[str]]], owned: list[frozenset[str]]
) -> frozenset[str]:
    """The union of one key per input, without inputs that the rest determines (joined on their full key)."""
    needed = set(range(len(chosen)))
    for candidate in range(len(chosen)):
        rest = needed - {candidate}
        if not rest:
            continue
        known: set[str] = set().union(*(owned[i] for i in rest))
        if _determines(set().union(*(chosen[i] for i in rest)), rest, candidate, per_input, owned, known):
            needed = rest
    return frozenset().union(*(chosen[i] for i in needed))


def _determines(
    start: set[str],
    rest: set[int],
    candidate: int,
    per_input: list[list[frozenset[str]]],
    owned: list[frozenset[str]],
    known: set[str],
) -> bool:
    """Does fixing the key columns `start` (of the inputs `rest`) fix the row of `candidate`?"""
    fixed = set(start)
    changed = True
    while changed:
        changed = False
        for i in range(len(owned)):
            if not owned[i] <= fixed and any(key <= fixed for key in per_input[i]):
                fixed |= owned[i]
                changed = True
    return owned[candidate] <= fixed


def _equate(inner: Facts, conditions: Iterable[exp.Expr], table_key: TableKey) -> Facts:
    """`inner` after `conditions` hold: column = column makes one class, column = literal a constant.

    Only where no conversion stands between the sides: '1' and '01' are both equal to the number 1.
    """
    equality = _equality(table_key)
    merged = Facts(inner.keys, dict(inner.same), inner.constant)
    constant = set(inner.constant)
    present = set(inner.present)
    for condition in conditions:
        for part in condition.unnest().flatten() if isinstance(condition.unnest(), exp.And) else [condition]:
            bare = part.unnest()
            if not isinstance(bare, (exp.EQ, exp.NullSafeEQ)):
                continue
            left, right = bare.left.unnest(), bare.right.unnest()
            if isinstance(bare, exp.EQ):
                present |= {side.name for side in (left, right) if isinstance(side, exp.Column)}
            if isinstance(left, exp.Column) and isinstance(right, exp.Column):
                a, b = merged.class_of(left.name), merged.class_of(right.name)
                if a != b and equality.compares(left.name, right.name):
                    merged.same[b] = a
                    if b in constant:
                        constant.add(a)
            else:
                for one, other in ((left, right), (right, left)):
                    if isinstance(one, exp.Column) and equality.fixes(one.name, other):
                        constant.add(merged.class_of(one.name))
    known = frozenset(map(merged.class_of, constant))
    keys = _minimal(frozenset(map(merged.class_of, key)) - known for key in inner.keys)
    return Facts(keys, merged.same, known, frozenset(present))


def _equality(table_key: TableKey) -> Equality:
    return Equality(table_key.types if isinstance(table_key, TableKeys) else None)


@facts.register
def _aggregate(node: nodes.Aggregate, table_key: TableKey) -> Facts:
    inner = facts(node.input, table_key)
    names = {e.name if isinstance(e, exp.Column) else name: name for name, e in node.keys}
    same = {}
    classes: dict[str, str] = {}
    for source, name in names.items():
        own = inner.class_of(source)
        if own in classes:
            same[name] = classes[own]
        classes.setdefault(own, name)
    constant = frozenset(classes[c] for c in classes if c in inner.constant)
    keys = [frozenset(set(classes.values()) - constant)]
    known = [key for key in inner.keys if key <= set(classes)]
    keys += [frozenset(classes[part] for part in key) - constant for key in known]
    sources = [e.name for _, e in node.keys if isinstance(e, exp.Column)]
    if len(sources) == len(node.keys):
        kept = reduce_columns(node.input, sources, table_key, _equality(table_key))
        keys.append(frozenset(classes[inner.class_of(name)] for name in kept) - constant)
    present = frozenset(name for name, e in node.keys if _is_present(e.unnest(), inner))
    return Facts(_minimal(keys), same, constant, present)


@facts.register
def _distinct(node: nodes.Distinct, table_key: TableKey) -> Facts:
    inner = facts(node.input, table_key)
    everything = frozenset(map(inner.class_of, node.columns)) - inner.constant
    return Facts(_minimal([*inner.keys, everything]), inner.same, inner.constant, inner.present)


@facts.register
def _set_operation(node: nodes.SetOperation, table_key: TableKey) -> Facts:
    left = facts(node.left, table_key)
    names = dict(zip(node.left.columns, node.names))
    keys = [frozenset(names[p] for p in key) for key in left.keys if all(p in names for p in key)]
    return Facts(_minimal([*keys, *([] if node.all else [frozenset(node.names)])]), {})


@facts.register
def _union(node: nodes.UnionAll, table_key: TableKey) -> Facts:
    return Facts(frozenset(), {})


@facts.register
def _generate(node: nodes.Generate, table_key: TableKey) -> Facts:
    """A row becomes several, so that no key of the input is left."""
    inner = facts(node.input, table_key)
    return Facts(frozenset(), inner.same, inner.constant, inner.present)


@facts.register
def _window(node: nodes.Window, table_key: TableKey) -> Facts:
    return facts(node.input, table_key)


@facts.register
def _mark(node: nodes.Mark, table_key: TableKey) -> Facts:
    return facts(node.left, table_key)


@facts.register
def _semi(node: nodes.SemiJoin, table_key: TableKey) -> Facts:
    return facts(node.left, table_key)


@facts.register
def _limit(node: nodes.Limit, table_key: TableKey) -> Facts:
    inner = facts(node.input, table_key)
    return Facts(frozenset({frozenset()}), inner.same) if node.count == 1 and not node.keys else inner


@facts.register
def _outer(node: nodes.OuterJoin, table_key: TableKey) -> Facts:
    """A key of both sides together; of one side alone where the other is joined on its full key.

    In a FULL join one of the two must not be all NULL, or unmatched rows of both sides could look alike. Columns of a
    side that are one value in each of its rows are so above, too, where all of them are NULL; constants and columns
    without NULL are those of the side that keeps all of its rows.
    """
    left, right = facts(node.left, table_key), facts(node.right, table_key)
    whole = {"LEFT": left, "RIGHT": right}.get(node.kind, Facts(frozenset(), {}))
    pairs = _equate(Facts(frozenset(), {}), node.conditions, table_key)
    pairs_of_keys = [(a, b) for a in left.keys for b in right.keys]
    if node.kind == "FULL":
        pairs_of_keys = [(a, b) for a, b in pairs_of_keys if a & left.present or b & right.present]
    keys = [a | b for a, b in pairs_of_keys]

    def is_matched(key: frozenset[str], other: frozenset[str]) -> bool:
        return all(
            any(o != part and pairs.class_of(o) == pairs.class_of(part) for o in other) for part in key
        )

    if node.kind == "LEFT" and any(is_matched(key, frozenset(node.left.columns)) for key in right.keys):
        keys += list(left.keys)
    if node.kind == "RIGHT" and any(is_matched(key, frozenset(node.right.columns)) for key in left.keys):
        keys += list(right.keys)
    return Facts(_minimal(keys), {**left.same, **right.same}, whole.constant, whole.present)
