"""What `\\d` and `\\d NAME` print, from the records of the catalog."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cq_engine.catalog.model import ContinuousQuery, Cursor, QueryStatus, Table
from cq_engine.catalog.overview import Overview
from cq_engine.core.columns import Column
from cq_engine.core.errors import CatalogError
from cq_engine.grammar.clauses import DestinationRef
from cq_engine.grammar.format import format_when
from cq_engine.query.rendering import Grid, render_grid

__all__ = ["describe_name", "describe_warehouse"]


def describe_warehouse(overview: Overview) -> str:
    """Tables, continuous queries and destinations, each as a table."""
    state = overview.state
    tables = [
        (table.name, str(len(table.columns)), _names(table.primary_key), table.created_by or "")
        for _, table in sorted(state.tables.items())
        if table.part_of is None
    ]
    queries = [_query_row(query, overview) for _, query in sorted(state.queries.items())]
    destinations = [
        _destination_row(query, ref, overview)
        for _, query in sorted(state.queries.items())
        for ref in query.destinations
    ]
    sections = (
        _section("Tables", ("name", "columns", "primary key", "written by"), tables, right={1}),
        _section(
            "Continuous queries",
            ("name", "state", "position", "verdict", "mode", "when", "sources"),
            queries,
            right={2},
        ),
        _section(
            "Destinations",
            ("query", "destination", "kind", "delivered", "failures", "error"),
            destinations,
            right={3, 4},
        ),
    )
    text = "\n\n".join(section for section in sections if section)
    if not text:
        return "The warehouse is empty. CREATE TABLE makes a table, \\? shows the commands."
    return f"{text}\n\nNewest commit version: {overview.newest}"


def describe_name(overview: Overview, name: str) -> str:
    """One table or continuous query with everything that its definition and position say.

    Raises:
        CatalogError: there is no such table or query.
    """
    wanted = name.strip().rstrip(";").strip().strip("`").lower()
    for query in overview.state.queries.values():
        if query.name.lower() == wanted:
            return _describe_query(query, overview)
    for table in overview.state.tables.values():
        if table.name.lower() == wanted:
            return _describe_table(table, overview)
    raise CatalogError(
        f"there is no table and no continuous query {name.strip()}", hint="\\d lists what the warehouse has"
    )


def _describe_query(query: ContinuousQuery, overview: Overview) -> str:
    status = overview.status.get(query.name, QueryStatus(position=0))
    behind = overview.newest - status.position
    last = f"{status.last_refresh:%Y-%m-%d %H:%M:%SZ}" if status.last_refresh is not None else "never"
    facts: list[tuple[str, str]] = [
        ("State", status.state),
        ("Error", status.error),
        ("Verdict", query.verdict),
        *(("Reason" if i == 0 else "", reason) for i, reason in enumerate(query.reasons)),
        ("Key", _query_key(query)),
        ("Mode", query.mode),
        ("Markers", ", ".join(query.markers)),
        ("When", format_when(query.when)),
        (
            "Position",
            f"{status.position} of {overview.newest}" if behind else f"{status.position} (up to date)",
        ),
        ("Last refresh", last),
        ("Sources", ", ".join(query.sources)),
        ("Stored state", ", ".join(label for label, _ in query.states)),
        ("Options", _options(query.options)),
    ]
    columns = _columns_text(query.result.columns, query.key or ())
    cursors = [_destination_row(query, ref, overview)[1:] for ref in query.destinations]
    delivered = _section(
        "Destinations", ("destination", "kind", "delivered", "failures", "error"), cursors, right={2, 3}
    )
    parts = (
        f"Continuous query {query.name}",
        columns,
        _facts(facts),
        delivered,
        f"Defining query\n{_indent(query.query)}",
    )
    return "\n\n".join(part for part in parts if part)


def _describe_table(table: Table, overview: Overview) -> str:
    enforced = "" if table.primary_key_enforced else " (not enforced)"
    key = (
        "none"
        if table.primary_key is None and table.remote is not None
        else "none; rows have a hidden identity"
        if table.primary_key is None
        else _names(table.primary_key) + enforced
    )
    readers = sorted(
        query.name
        for query in overview.state.queries.values()
        if table.name.lower() in (source.lower() for source in query.sources)
    )
    referring = [
        f"{other.name} ({', '.join(key.columns)})"
        for other in overview.state.tables.values()
        for key in other.foreign_keys
        if key.references.lower() == table.name.lower()
    ]
    keys = [
        f"{key.name}: ({', '.join(key.columns)}) to {key.references} ({', '.join(key.ref_columns)})"
        f"{' ENFORCED' if key.enforced else ' NOT ENFORCED'}{' RELY' if key.rely else ''}"
        for key in table.foreign_keys
    ]
    facts: list[tuple[str, str]] = [
        ("Primary key", key),
        (
            "Stays at",
            "" if table.remote is None else f"{table.remote.source}, TABLE '{table.remote.relation}'",
        ),
        *(("Foreign keys" if i == 0 else "", text) for i, text in enumerate(keys)),
        ("Referenced by", ", ".join(referring)),
        ("Clustered by", ", ".join(table.storage.cluster_by)),
        ("Read by", ", ".join(readers)),
        ("Written by", table.created_by or ""),
        ("Options", _options(table.options)),
    ]
    return "\n\n".join(
        (f"Table {table.name}", _columns_text(table.columns, table.primary_key or ()), _facts(facts))
    )


def _columns_text(columns: Sequence[Column], key: Sequence[str]) -> str:
    rows = [
        (
            column.name,
            column.type,
            "" if column.nullable else "NOT NULL",
            "key" if column.name in key else "",
            column.comment or "",
        )
        for column in columns
    ]
    return _table(("column", "type", "null", "key", "comment"), rows)


def _query_row(query: ContinuousQuery, overview: Overview) -> tuple[str, ...]:
    status = overview.status.get(query.name, QueryStatus(position=0))
    return (
        query.name,
        status.state,
        str(status.position),
        query.verdict,
        query.mode,
        format_when(query.when),
        ", ".join(query.sources),
    )


def _destination_row(query: ContinuousQuery, ref: DestinationRef, overview: Overview) -> tuple[str, ...]:
    cursor = _cursor(overview.cursors, query.name, ref.name)
    if cursor is None:
        return (query.name, ref.name, ref.kind or "", "", "", "")
    failures = str(cursor.failures) if cursor.failures else ""
    return (query.name, ref.name, ref.kind or "", str(cursor.version), failures, cursor.error)


def _cursor(cursors: Iterable[Cursor], query: str, destination: str) -> Cursor | None:
    # The catalog names a cursor by kind and name: table:alerts.
    wanted = (query.lower(), destination.lower())
    found = (c for c in cursors if (c.query.lower(), c.destination.rpartition(":")[2].lower()) == wanted)
    return next(found, None)


def _query_key(query: ContinuousQuery) -> str:
    if query.key is None:
        return "none; rows may repeat"
    if not query.key:
        return "(); at most one row"
    return _names(query.key) + (" (declared, checked)" if query.key_checked else "")


def _names(columns: Sequence[str] | None) -> str:
    return ", ".join(columns or ())


def _options(options: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in options)


def _indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.strip().splitlines())


def _facts(facts: Iterable[tuple[str, str]]) -> str:
    """Lines of name and value, without those that have no value."""
    told = [(name, value) for name, value in facts if value]
    width = max((len(name) for name, _ in told), default=0)
    return "\n".join(f"{name + ':' if name else '':<{width + 1}} {value}" for name, value in told)


def _section(title: str, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]], right: set[int]) -> str:
    return f"{title}\n{_table(columns, rows, right)}" if rows else ""


def _table(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]], right: Iterable[int] = ()) -> str:
    """A table without the columns that are empty in every row."""
    kept = [i for i in range(len(columns)) if i == 0 or any(row[i] for row in rows)]
    to_right = set(right)
    return render_grid(
        Grid(
            tuple(columns[i] for i in kept),
            tuple(i in to_right for i in kept),
            tuple(tuple(row[i] for i in kept) for row in rows),
        )
    )
