"""CREATE CONTINUOUS QUERY: from the statement to a compiled definition, and to the state it starts from."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from sqlglot import exp
from sqlglot.errors import SqlglotError

from cq_engine.algebra.coercion import Types
from cq_engine.algebra.dialect import parse_expression
from cq_engine.algebra.emit import Emitter, quote, sql_of
from cq_engine.algebra.nodes import Node, Scan, StateRows
from cq_engine.catalog.apply import allocate_id
from cq_engine.catalog.change_rows import SEQUENCE
from cq_engine.catalog.graph import source_query
from cq_engine.catalog.model import (
    PARTIAL,
    CatalogState,
    ContinuousQuery,
    OutputColumn,
    Table,
    VersionedTable,
)
from cq_engine.context.services import Services
from cq_engine.core.columns import Column
from cq_engine.core.errors import AnalysisError, CQError, Location, location_at
from cq_engine.core.types import canonical_type, columns_of
from cq_engine.definition.answers import Answers, described
from cq_engine.definition.outputs import output_columns
from cq_engine.definition.volatile import check_constant, is_plain, mask_brackets
from cq_engine.grammar import CreateContinuousQuery, format_statement
from cq_engine.planner.compiled import Compiled, compile_query, recompute_in_full
from cq_engine.planner.partial import as_dimension_view
from cq_engine.planner.select_list import safe_name, select_list
from cq_engine.query.query import Resolver, unknown_table
from cq_engine.query.references import find_references
from cq_engine.refresh.images import ImageBinder, select_fields
from cq_engine.spark.sql import analysed_plan, run_sql, translate_errors
from cq_engine.storage.rows import empty

__all__ = [
    "Shape",
    "allocate_states",
    "compile_definition",
    "define",
    "session_settings",
    "shape_of",
    "types_over",
]

SESSION_SETTINGS = (
    "spark.sql.session.timeZone",
    "spark.sql.ansi.enabled",
    "spark.sql.caseSensitive",
    "spark.sql.storeAssignmentPolicy",
    "spark.sql.timestampType",
    "spark.sql.decimalOperations.allowPrecisionLoss",
)
"""Spark settings that change what a query means; refreshes run with their values at CREATE."""


@dataclass(frozen=True)
class Shape:
    """What analysis found: the text to plan, the log's columns (`width` of them the result's), the SELECT list."""

    text: str
    columns: tuple[Column, ...]
    width: int
    outputs: tuple[OutputColumn, ...]
    sources: Mapping[str, Table]


class _Empty(Resolver):
    """Resolves tables to no rows, for analysis."""

    def __init__(self, services: Services, state: CatalogState) -> None:
        super().__init__(services)
        self.state = state
        self.frames: dict[str, DataFrame] = {}
        self.analyses = True

    def _check_rows(self, table: Table, location: Location | None) -> None:
        """A defining query may read any table: its changes are what counts."""

    def physical(self, table: Table, restrict: Mapping[str, Any] | None = None) -> DataFrame:
        if table.name not in self.frames:
            columns = table.storage.physical_columns
            self.frames[table.name] = self.services.reader.frame(empty(columns), columns)
        return self.frames[table.name]


def shape_of(
    services: Services,
    state: CatalogState,
    text: str,
    known: Mapping[str, tuple[str, ...]] | None = None,
    answers: Answers | None = None,
) -> Shape:
    """Analyses a defining query. `known` are the columns of its tables at CREATE, so that a `*` keeps its meaning;
    `answers` what Spark has said before.

    Raises CQSyntaxError, AnalysisError.
    """
    answers = Answers() if answers is None else answers
    listed = select_list(text)
    sources = {
        name: _with_columns(table, (known or {}).get(name))
        for name, table in _sources(state, listed.stripped).items()
    }
    nothing = _Empty(services, replace(state, tables={**state.tables, **sources}))
    nothing.trusted = known is not None

    def analyse(query: str) -> tuple[Column, ...]:
        return answers.columns(
            f"{described(sources)}\n{query}", lambda: columns_of(nothing.frame(query).schema)
        )

    analysed = analyse(listed.stripped)
    if known is None:
        _check_constant(services, nothing, sources, listed.stripped)
    columns = _result_columns(analysed)
    width = len(columns)
    outputs, hidden = output_columns(listed, columns)
    planned = listed.stripped
    if hidden:
        names = ", ".join(quote(c.name) for c in columns)
        more = ", ".join(f"({e}) AS `_old_{i}`" for i, e in enumerate(hidden))
        planned = f"SELECT r.*, {more} FROM ({listed.stripped}) AS r({names})"
        kinds = [canonical_type(c.type) for c in analyse(planned)[width:]]
        columns = (*columns, *(Column(f"_old_{i}", kind) for i, kind in enumerate(kinds)))
    typed = tuple(
        OutputColumn(o.name, columns[o.index].type if o.index >= 0 else o.type, o.kind, o.index)
        for o in outputs
    )
    return Shape(planned, columns, width, typed, sources)


def _check_constant(services: Services, nothing: _Empty, sources: Mapping[str, Table], text: str) -> None:
    """Raises AnalysisError where the query is not a function of its tables."""
    try:
        tree = parse_expression(text)
    except SqlglotError:
        return

    def texts(constants: list[exp.Expr]) -> list[str]:
        items = ", ".join(f"CAST({sql_of(each)} AS STRING)" for each in constants)
        try:
            row = services.spark().sql(f"SELECT {items}").first() if items else None
        except PySparkException:
            return []
        return [value for value in row or () if value is not None]

    if is_plain(tree):
        return
    kinds: dict[str, str] = {}
    for each in (c for table in sources.values() for c in table.columns):
        kinds[each.name] = max(
            kinds.get(each.name, ""), each.type, key=lambda kind: kind.startswith(("date", "time"))
        )
    check_constant(tree, _plan_without_brackets(nothing, tree, text), kinds, texts)


def _plan_without_brackets(nothing: _Empty, tree: exp.Expr, text: str) -> str:
    """Spark's analysed plan, with no brackets in its strings where the query is one without them, too."""
    masked = mask_brackets(tree)
    if masked is not None:
        with suppress(CQError):  # such as a type in a string: from_json(s, 'n DECIMAL(9,2)')
            return nothing.plan(sql_of(masked))
    return nothing.plan(text)


def _with_columns(table: Table, names: tuple[str, ...] | None) -> Table:
    """The table with just the columns that the query's definition knows."""
    if names is None:
        return table
    columns = tuple(c for c in table.columns if c.name in names)
    return replace(table, storage=replace(table.storage, columns=columns))


def _sources(state: CatalogState, text: str) -> dict[str, Table]:
    found: dict[str, Table] = {}
    for reference in find_references(text):
        if reference.clause is not None:
            raise AnalysisError(
                f"{reference.name} stands with a version in a continuous query",
                detail="a continuous query follows its tables; a fixed version never changes",
                hint=f"write just {reference.name}",
            )
        name = reference.name.lower()
        query = source_query(state, name)
        table = state.tables.get(name) if query is None else query.relation
        if query is not None and query.verdict == PARTIAL:
            raise AnalysisError(
                f"a continuous query cannot read {query.name}",
                detail=f"{query.name} is maintained from partial changes: not all of its rows are known here",
                hint="write a query over its tables",
            )
        if table is None:
            raise unknown_table(state, reference.name)
        if table.remote is not None:
            raise AnalysisError(
                f"a continuous query over {table.name} needs CONSISTENCY",
                detail=f"the rows of {table.name} stay at source {table.remote.source}, which does not wait for the query",
                hint="write CREATE CONTINUOUS QUERY name CONSISTENCY COMPLETE (or STRONG, or CONVERGENT) ... AS SELECT ...",
                location=location_at(text, reference.start),
            )
        found[name] = table
    return found


def _result_columns(analysed: Sequence[Column]) -> tuple[Column, ...]:
    columns = tuple(Column(safe_name(c.name), c.type) for c in analysed)
    seen: set[str] = set()
    for column in columns:
        if column.name.lower() in seen:
            raise AnalysisError(
                f"two result columns are called {column.name}",
                hint=f"give one of them another name: ... AS {column.name}_2",
            )
        seen.add(column.name.lower())
        if column.name.startswith("_"):
            raise AnalysisError(
                f"result column {column.name} begins with _", hint="names with _ are the engine's"
            )
    return columns


# ------------------------------------------------------------------------------------------------ compiling


def compile_definition(
    services: Services,
    shape: Shape,
    declared: tuple[str, ...] | None,
    *,
    full: bool = False,
    answers: Answers | None = None,
) -> Compiled:
    """The compiled query for an analysed one; with `full` it is to be recomputed whatever it is."""
    types = types_over(services, shape.sources, answers)
    compiled = compile_query(shape.text, shape.columns, shape.sources, declared, types)
    without = [table for table in shape.sources.values() if not table.has_snapshot]
    if without and full:
        raise AnalysisError(
            f"WITH (refresh = 'full') is not for table {without[0].name}",
            detail="it was created WITHOUT SNAPSHOT, so that there are no rows to compute the query from",
        )
    if without:
        return as_dimension_view(compiled, declared)
    return recompute_in_full(compiled, "WITH (refresh = 'full') asks for it") if full else compiled


def types_over(services: Services, sources: Mapping[str, Table], answers: Answers | None = None) -> Types:
    """Spark's types of expressions over plans that read these tables, or a query group's constants."""
    storages = {name: table.storage for name, table in sources.items()}
    binder = ImageBinder(services.reader, storages, None)
    return _SparkTypes(services, binder, described(sources), Answers() if answers is None else answers)


@dataclass(frozen=True)
class _SparkTypes:
    services: Services
    binder: ImageBinder
    sources: str
    answers: Answers

    def __call__(self, node: Node, expressions: Sequence[exp.Expr]) -> Sequence[str]:
        items = ", ".join(f"{sql_of(e)} AS c{i}" for i, e in enumerate(expressions))

        def text(relations: Callable[[Node], str]) -> str:
            return Emitter(relations).statement("SELECT @items FROM {0}", node).replace("@items", items)

        def ask() -> Sequence[Column]:
            bound = text(self.binder)
            relations = {name: frame for name, frame in self.binder.relations.items() if name in bound}
            with translate_errors():
                return columns_of(run_sql(self.services.spark(), bound, relations).schema)

        return [c.type for c in self.answers.columns(f"{self.sources}\n{text(_by_name)}", ask)]

    def comparison_type(self, left: str, right: str) -> str | None:
        def ask() -> str | None:
            text = f"SELECT l = r AS c FROM (SELECT CAST(NULL AS {left}) AS l, CAST(NULL AS {right}) AS r)"
            sides = _COMPARED.search(analysed_plan(self.services.spark(), text, {}))
            if sides is None:
                return None
            found = [_CAST.search(side) for side in sides.groups()]
            kinds = {canonical_type(cast[1]) if cast else own for cast, own in zip(found, (left, right))}
            return kinds.pop() if len(kinds) == 1 else None

        return self.answers.type(f"{left} = {right}", ask)


def _by_name(leaf: Node) -> str:
    """A leaf's relation as a question names it."""
    if isinstance(leaf, Scan):
        return select_fields(leaf.fields, f"TABLE {leaf.table}")
    assert isinstance(leaf, StateRows)
    return f"(STATE {leaf.label} {leaf.names})"


_COMPARED = re.compile(r"Project \[\((.*?) = (.*?)\) AS c#")
_CAST = re.compile(r"^cast\(.* as (.*)\)$")
"""An expression with a cast around it, as Spark shows it, and to which type."""


def session_settings(spark: SparkSession) -> tuple[tuple[str, str], ...]:
    """The settings of the session that change what a query means."""
    found = ((name, spark.conf.get(name, None)) for name in SESSION_SETTINGS)
    return tuple((name, value) for name, value in found if value is not None)


def allocate_states(
    state: CatalogState, compiled: Compiled, name: str
) -> tuple[CatalogState, tuple[tuple[str, VersionedTable], ...]]:
    """The tables of a query's stored aggregates, by label; the state with the ids that they use."""
    tables = []
    for each in compiled.states:
        state, number = allocate_id(state)
        label = each.state.label
        table = VersionedTable(number, "state", f"{name}_{label}", each.columns, each.keys)
        tables.append((label, table))
    return state, tuple(tables)


def define(
    services: Services, state: CatalogState, statement: CreateContinuousQuery
) -> tuple[CatalogState, ContinuousQuery, Compiled]:
    """The definition that the statement asks for; the state is as before but for the numbers it used."""
    functions = services.functions.calls_in(statement.query, state)
    answers = Answers()
    shape = shape_of(services, state, statement.query, answers=answers)
    full = dict(statement.options).get("refresh", "").lower() == "full"
    compiled = compile_definition(services, shape, statement.primary_key, full=full, answers=answers)
    state, query_id = allocate_id(state)
    state, log_id = allocate_id(state)
    state, states = allocate_states(state, compiled, statement.name)
    query = ContinuousQuery(
        name=statement.name,
        id=query_id,
        statement=format_statement(statement),
        query=statement.query,
        result=VersionedTable(log_id, "delta", statement.name, shape.columns, (SEQUENCE,)),
        key=compiled.key,
        mode=statement.mode,
        markers=statement.markers,
        when=statement.when,
        destinations=statement.destinations,
        options=statement.options,
        sources=tuple(sorted(compiled.sources)),
        states=states,
        session=session_settings(services.spark()),
        verdict=compiled.verdict,
        reasons=compiled.reasons,
        key_checked=compiled.key_checked,
        source_columns=tuple(
            (name, tuple(c.name for c in t.columns)) for name, t in sorted(shape.sources.items())
        ),
        outputs=shape.outputs,
        width=shape.width,
        declared=statement.primary_key is not None,
        functions=functions,
        analysed=() if functions else answers.given,
    )
    return state, query, compiled
