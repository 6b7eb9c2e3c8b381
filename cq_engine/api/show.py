"""SHOW and DESCRIBE: the catalog as rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, fields, replace

import pyarrow as pa

from cq_engine.catalog import apply
from cq_engine.catalog.destinations import merged_by, merged_names
from cq_engine.catalog.graph import readers
from cq_engine.catalog.model import CatalogState, ContinuousQuery, QueryStatus, RefreshRecord, Table
from cq_engine.catalog.overview import Overview
from cq_engine.catalog.store import Catalog
from cq_engine.grammar import Describe, Show
from cq_engine.grammar.format import format_when
from cq_engine.query.result import Result
from cq_engine.refresh.frontier import waiting_for
from cq_engine.schedule.entries import Waiting

__all__ = ["describe", "facts", "functions", "processes", "show", "typed_rows"]


def _rows(names: Sequence[str], rows: Sequence[Sequence[object]]) -> Result:
    columns: list[Sequence[object]] = list(zip(*rows)) if rows else [() for _ in names]
    arrays = {n: pa.array(list(c)) if len(c) else pa.array([], pa.string()) for n, c in zip(names, columns)}
    return Result(arrow=pa.table(arrays))


def typed_rows(columns: Mapping[str, pa.DataType], rows: Sequence[Sequence[object]]) -> Result:
    """Rows as a result with columns of these types, also where there are none."""
    values = zip(*rows) if rows else [()] * len(columns)
    arrays = [pa.array(some, kind) for some, kind in zip(values, columns.values())]
    return Result(arrow=pa.table(arrays, names=list(columns)))


def facts(known: Sequence[tuple[str, str]]) -> Result:
    """What DESCRIBE says of an object, a line each."""
    names, values = zip(*known)
    return Result(arrow=pa.table({"property": names, "value": values}), whole=True)


def show(
    overview: Overview, catalog: Catalog, statement: Show, waiting: Callable[[str], Waiting | None]
) -> Result:
    """SHOW TABLES | CONTINUOUS QUERIES | REFRESHES [FOR query]; `waiting` is the scheduler's."""
    state = overview.state
    if statement.what == "TABLES":
        merged = [
            replace(query.relation, name=name)
            for query in state.queries.values()
            for name in merged_names(query)
            if query.relation is not None
        ]
        shown = [table for table in state.tables.values() if table.part_of is None]
        tables = sorted([*shown, *merged], key=lambda t: t.name)
        return _rows(
            ("name", "columns", "primary_key", "snapshot", "source"),
            [(t.name, len(t.columns), _names(t.primary_key), t.has_snapshot, _source(t)) for t in tables],
        )
    if statement.what == "CONTINUOUS QUERIES":
        return _rows(
            ("name", "state", "position", "verdict", "reasons", "mode", "when", "key", "error"),
            [_query(q, overview, catalog) for q in sorted(state.queries.values(), key=lambda q: q.name)],
        )
    name = None if statement.name is None else apply.find_query(state, statement.name).name
    records = (replace(record, seconds=round(record.seconds, 3)) for record in catalog.refreshes(name))
    done = [(*astuple(record), "") for record in records]
    columns = [*(field.name for field in fields(RefreshRecord)), "error"]
    return _rows(columns, [*_failed(state, catalog, name, waiting), *done])


def _source(table: Table) -> str:
    return "" if table.remote is None else f"{table.remote.source}: {table.remote.relation}"


def _failed(
    state: CatalogState, catalog: Catalog, name: str | None, waiting: Callable[[str], Waiting | None]
) -> Iterator[tuple[object, ...]]:
    """The refreshes that have failed and are tried again: they have moved nothing."""
    chosen = state.queries.values() if name is None else [state.queries[name.lower()]]
    for owner in dict.fromkeys(query.group or query.name for query in chosen):
        failure, status = waiting(owner), catalog.status(owner)
        if failure is not None and status.state == "ACTIVE":
            at = status.position
            yield (owner, at, at, 0, 0, 0, "", 0.0, failure.failed, str(failure))


def processes(catalog: Catalog) -> Result:
    """SHOW PROCESSES: who has the warehouse open to write."""
    now, holder, found = catalog.processes()
    callbacks: dict[int, list[str]] = {}
    for name, number in sorted(catalog.view.callbacks.items()):
        callbacks.setdefault(number, []).append(name)
    rows = [
        (
            each.holder.host, each.holder.pid, each.holder.since, each.number == catalog.number,
            each.number == holder, each.transactions, each.held, ", ".join(callbacks.get(each.number, ())),
            max(0, now - each.heartbeat) / 1_000_000,
        )
        for each in found
    ]  # fmt: skip
    names = ("host", "pid", "since", "this", "duties", "transactions", "reads_from", "callbacks", "silent")
    return _rows(names, rows)


def functions(rows: Sequence[Sequence[object]]) -> Result:
    """SHOW FUNCTIONS: `Functions.rows`."""
    return _rows(("name", "language", "definition", "deterministic", "queries"), rows)


def _names(columns: Sequence[str] | None) -> str:
    return "" if columns is None else f"({', '.join(columns)})"


def _query(query: ContinuousQuery, overview: Overview, catalog: Catalog) -> tuple[object, ...]:
    status = overview.status.get(query.name, QueryStatus(0))
    return (
        query.name, status.state, status.position, query.verdict, "; ".join(query.reasons), query.mode,
        format_when(query.when), _names(query.key), status.error or waiting_for(catalog, query),
    )  # fmt: skip


def describe(overview: Overview, catalog: Catalog, statement: Describe) -> Result:
    """DESCRIBE [TABLE | CONTINUOUS QUERY] name: one row per column, or per fact of a query."""
    state = overview.state
    query = state.queries.get(statement.name.lower())
    if statement.kind == "CONTINUOUS QUERY" or (query is not None and statement.kind is None):
        return _describe_query(apply.find_query(state, statement.name), overview, catalog)
    merged = merged_by(state, statement.name)
    if merged is not None and merged.relation is not None:
        return _describe_table(merged.relation)
    return _describe_table(apply.find_table(state, statement.name))


def _sharing(query: ContinuousQuery, overview: Overview) -> list[tuple[str, str]]:
    """With how many others a query is refreshed, and what makes it differ from them."""
    if query.group is None:
        return []
    count = sum(other.group == query.group for other in overview.state.queries.values())
    return [("query group", f"{query.group}, of {count} queries; constants {', '.join(query.constants)}")]


def _describe_table(table: Table) -> Result:
    key = [name.lower() for name in table.primary_key or ()]
    rows = [(c.name, c.type, c.nullable, c.name.lower() in key, c.comment or "") for c in table.columns]
    result = _rows(("column", "type", "nullable", "primary_key", "comment"), rows)
    if table.remote is not None:
        log = "; continuous queries install a log there" if table.remote.log else ""
        result.message = (
            f"its rows stay at source {table.remote.source}, TABLE '{table.remote.relation}'{log}"
        )
    return result


def _describe_query(query: ContinuousQuery, overview: Overview, catalog: Catalog) -> Result:
    status = overview.status.get(query.name, QueryStatus(0))
    key = "none (a multiset)" if query.key is None else _names(query.key)
    facts = [
        ("name", query.name),
        ("state", status.state),
        ("error", status.error or waiting_for(catalog, query)),
        ("verdict", query.verdict),
        *(("block", block) for block in query.reasons),
        ("result key", key),
        ("mode", query.mode),
        ("markers", ", ".join(query.markers)),
        ("when", format_when(query.when)),
        ("position", str(status.position)),
        *(("option", f"{name} = {value}") for name, value in query.options),
        *(("last plan", record.plan) for record in catalog.refreshes(query.name, 1)),
        ("sources", ", ".join(query.sources)),
        ("read by", ", ".join(reader.name for reader in readers(overview.state, query.name))),
        ("columns", ", ".join(f"{c.name} {c.type}" for c in query.result.columns[: query.width])),
        *(("destination", f"{d.kind or ''} {d.name}".strip()) for d in query.destinations),
        *_sharing(query, overview),
        ("statement", query.statement),
    ]
    result = _rows(("property", "value"), facts)
    result.whole = True
    return result
