"""A defining query, compiled: its algebra, its key, what is stored for it, and the verdict with reasons."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from pyspark.sql.types import MapType
from sqlglot import exp
from sqlglot.errors import SqlglotError

from cq_engine.algebra.analysis.keys import TableKeys, covers, facts, result_key
from cq_engine.algebra.analysis.lineage import column_types
from cq_engine.algebra.coercion import Types, write_casts
from cq_engine.algebra.dialect import parse_expression
from cq_engine.algebra.functions import nondeterministic_call
from cq_engine.algebra.lowering.lower import Lowered, lower
from cq_engine.algebra.names import Names, NotLowered
from cq_engine.algebra.nodes import (
    Aggregate,
    Node,
    column,
)
from cq_engine.algebra.rewrite.deterministic_ordering import ordering_notes
from cq_engine.algebra.rewrite.normal import normal
from cq_engine.algebra.rewrite.pruning import prune, scans
from cq_engine.catalog.model import Table
from cq_engine.core.capabilities import key_problem
from cq_engine.core.columns import Column
from cq_engine.core.errors import AnalysisError
from cq_engine.core.types import contains, spark_type
from cq_engine.delta.accumulators import State
from cq_engine.delta.context import aggregates
from cq_engine.delta.stored import state_of
from cq_engine.planner.deterministic import deterministic_query
from cq_engine.planner.union_types import union_types
from cq_engine.planner.verdict import classify, full

__all__ = [
    "Compiled",
    "StoredAggregate",
    "Types",
    "assemble",
    "compile_query",
    "lowered_query",
    "recompute_in_full",
]

KEY_STATE = "result_key"
"""Label of the state that counts result rows per declared key."""


@dataclass(frozen=True)
class StoredAggregate:
    """An aggregate with a state, and the columns of the table that holds it."""

    node: Aggregate
    state: State
    columns: tuple[Column, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(f"k{i}" for i in range(len(self.node.keys)))


@dataclass(frozen=True)
class Compiled:
    """`node` is None where the query is recomputed in full; `outputs` are the plan's names of the result columns.

    `text` gives the result from scratch: the user's query, or the plan's where its orders had to be made
    deterministic. `notes` are the reasons that say what cannot be made certain.
    """

    text: str
    columns: tuple[Column, ...]
    key: tuple[str, ...] | None
    key_checked: bool
    sources: Mapping[str, Table]
    names: Names
    node: Node | None
    outputs: tuple[str, ...]
    stored: tuple[StoredAggregate, ...]
    verdict: str
    reasons: tuple[str, ...]
    key_count: StoredAggregate | None = None
    notes: tuple[str, ...] = ()

    @property
    def key_outputs(self) -> tuple[str, ...] | None:
        """The result key in the plan's names."""
        if self.key is None:
            return None
        by_name = {c.name.lower(): o for c, o in zip(self.columns, self.outputs)}
        return tuple(by_name[k.lower()] for k in self.key)

    @cached_property
    def read(self) -> Mapping[str, frozenset[str]]:
        """By table (lower case) the columns that the plan has of it."""
        found: dict[str, frozenset[str]] = {}
        for scan in scans(self.node) if self.node is not None else ():
            found[scan.table] = found.get(scan.table, frozenset()).union(source for _, source in scan.fields)
        return found

    @property
    def states(self) -> tuple[StoredAggregate, ...]:
        """All stored aggregates, the count per result key included."""
        return (*self.stored, self.key_count) if self.key_count is not None else self.stored


def compile_query(
    text: str,
    columns: Sequence[Column],
    sources: Mapping[str, Table],
    declared: tuple[str, ...] | None,
    types: Types,
) -> Compiled:
    """Compiles the query `text` (without delta functions), of which Spark says that it gives `columns`.

    `sources` are the tables it reads, by lower-case name; `declared` is PRIMARY KEY's column list, or None.
    Raises AnalysisError for a key that is not in the result, and for a query that is not deterministic.
    """
    names = Names()
    shown = _key_names(declared, columns)
    try:
        lowered, whole_text, notes = lowered_query(text, columns, sources, types, names)
        compiled = assemble(whole_text, columns, sources, shown, types, names, lowered)
        return replace(compiled, reasons=(*compiled.reasons, *notes), notes=notes)
    except (NotLowered, SqlglotError) as reason:
        said = str(reason).splitlines()[0]
        notes = _ordering_notes(text)
        return Compiled(
            text, tuple(columns), shown, declared is not None, sources, names, None,
            tuple(c.name for c in columns), (), "FULL", (full(said), *notes), notes=notes,
        )  # fmt: skip


def lowered_query(
    text: str, columns: Sequence[Column], sources: Mapping[str, Table], types: Types, names: Names
) -> tuple[Lowered, str, tuple[str, ...]]:
    """The query in the algebra with a deterministic ordering, its text, and notes on orders that cannot be made so.

    Raises AnalysisError for a query that is not deterministic, NotLowered or sqlglot's error where there is no algebra.
    """
    tree = parse_expression(text)
    _deterministic(tree)
    lowered = lower(tree, {name: [c.name for c in t.columns] for name, t in sources.items()}, names, types)
    lowered = replace(lowered, node=union_types(lowered.node, types))
    return deterministic_query(lowered, text, columns, _table_keys(lowered.node, sources), types, names)


def recompute_in_full(compiled: Compiled, reason: str) -> Compiled:
    """The same query, recomputed in full."""
    names = tuple(c.name for c in compiled.columns)
    return replace(
        compiled, node=None, outputs=names, stored=(), key_count=None, verdict="FULL",
        reasons=(full(reason), *compiled.notes),
    )  # fmt: skip


@dataclass(frozen=True)
class Rewriting:
    """What the rules may need that rewrite a query's plan before its deltas are planned."""

    names: Names
    types: Types
    table_key: TableKeys
    outputs: tuple[str, ...]


def _write_normally(node: Node, given: Rewriting) -> Node:
    """Without operators that others express, with unions of one type."""
    result = normal(node, given.names, lambda each: facts(each, given.table_key).present)
    return result if result is node else union_types(result, given.types)


def _prune(node: Node, given: Rewriting) -> Node:
    """Without columns that the result does not depend on."""
    return prune(node, given.outputs, lambda table: given.table_key(table) or ())


RULES: tuple[Callable[[Node, Rewriting], Node], ...] = (_write_normally, _prune)


def assemble(
    text: str,
    columns: Sequence[Column],
    sources: Mapping[str, Table],
    declared: tuple[str, ...] | None,
    types: Types,
    names: Names,
    lowered: Lowered,
) -> Compiled:
    """A lowered query with its key, what is stored for it, and its verdict."""
    table_key = _table_keys(lowered.node, sources)
    lowered = replace(lowered, node=write_casts(lowered.node, types, table_key.types))
    visible = {c.name.lower(): o for c, o in zip(columns, lowered.outputs)}
    back = {o: c.name for c, o in zip(columns, lowered.outputs)}
    checked = False
    if declared is None:
        derived = result_key(lowered.node, lowered.outputs, table_key)
        key = None if derived is None else tuple(back[o] for o in derived)
    else:
        key = declared
        checked = not covers(lowered.node, [visible[k.lower()] for k in declared], lowered.outputs, table_key)
    node = lowered.node
    for rule in RULES:
        node = rule(node, Rewriting(names, types, table_key, lowered.outputs))
    stored = []
    for number, aggregate in enumerate(aggregates(node)):
        found = _store(aggregate, f"block_{number + 1}", types)
        if found is not None:
            stored.append(found)
    count = None
    if checked:
        assert key is not None
        keys = tuple((names.fresh("key"), column(visible[k.lower()])) for k in key)
        aggregate = Aggregate(node, keys, (), scalar=not keys)
        count = _store(aggregate, KEY_STATE, types)
    verdict, reasons = classify(node, {id(each.node): each.state.exact for each in stored})
    return Compiled(
        text, tuple(columns), key, checked, sources, names, node, lowered.outputs, tuple(stored), verdict, reasons, count
    )  # fmt: skip


def _table_keys(node: Node, sources: Mapping[str, Table]) -> TableKeys:
    def type_of(table: str, name: str) -> str:
        return next(c.type for c in sources[table].columns if c.name == name)

    nullable = frozenset(name for name, t in sources.items() if t.storage.kind == "result")
    return TableKeys(lambda name: sources[name].primary_key, column_types(node, type_of), nullable)


def _ordering_notes(text: str) -> tuple[str, ...]:
    try:
        return ordering_notes(parse_expression(text))
    except SqlglotError:
        return ()


def _store(node: Aggregate, label: str, types: Types) -> StoredAggregate | None:
    """`node` with its state, where all its functions can be kept."""

    def type_of(expression: exp.Expr) -> str:
        return types(node.input, [expression])[0]

    calls = [call for _, call in node.functions]
    results = dict(zip((n for n, _ in node.functions), types(node.input, calls) if calls else ()))
    state = state_of(node, label, type_of, results)
    kinds = types(node.input, [e for _, e in node.keys]) if node.keys else []
    if any(contains(spark_type(kind), MapType) for kind in kinds):
        raise NotLowered("rows are grouped by a MAP, and Spark compares maps in GROUP BY only")
    if state is None or any(map(key_problem, kinds)):
        return None
    columns = [Column(f"k{i}", kind) for i, kind in enumerate(kinds)]
    columns.append(Column("_n", "bigint"))
    columns += [Column(f"a{i}", each.type) for i, each in enumerate(state.accumulators)]
    return StoredAggregate(node, state, tuple(columns))


def _key_names(declared: tuple[str, ...] | None, columns: Sequence[Column]) -> tuple[str, ...] | None:
    if declared is None:
        return None
    by_name = {c.name.lower(): c for c in columns}
    for name in declared:
        column = by_name.get(name.lower())
        if column is None:
            raise AnalysisError(
                f"PRIMARY KEY column {name} is not a column of the result",
                hint=f"the result has {', '.join(c.name for c in columns)}",
            )
        problem = key_problem(column.type)
        if problem:
            raise AnalysisError(
                f"PRIMARY KEY column {name} is {column.type}, which no key can be", detail=problem
            )
    return tuple(by_name[name.lower()].name for name in declared)


def _deterministic(tree: exp.Expr) -> None:
    call = nondeterministic_call(tree)
    if call is not None:
        raise AnalysisError(
            f"{call.sql(dialect='spark')} cannot stand in a continuous query",
            detail="its value changes without any change of a table, so that the result would change without a delta",
            hint="keep the time of a row in a column, or compare with commit times when reading the deltas",
        )
