"""DDL as pure functions from one CatalogState to the next.

Names are those of Spark: stored as written, compared without case. Tables and continuous queries share one name
space, since both can be read. Everything that is wrong is a CatalogError, except a type that Spark does not have
(AnalysisError, from cq_engine.core.types).
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from cq_engine.catalog.change_rows import ROW_ID
from cq_engine.catalog.column_specs import columns_of, resolve_names
from cq_engine.catalog.destinations import is_merge, merged_names
from cq_engine.catalog.graph import names_of, readers, sheds
from cq_engine.catalog.model import (
    CHANGES,
    PARTIAL,
    REMOTE,
    CatalogState,
    ContinuousQuery,
    ForeignKey,
    Table,
    VersionedTable,
)
from cq_engine.catalog.names import check_here, find_query, find_table
from cq_engine.catalog.sources import captures_into, drop_capture, without_parts
from cq_engine.core.errors import CatalogError
from cq_engine.grammar.clauses import ColumnSpec, ForeignKeySpec
from cq_engine.grammar.statements import AlterTable, CreateTable, DropTable

__all__ = [
    "add_query",
    "allocate_id",
    "alter_table",
    "create_table",
    "dependents",
    "drop_query",
    "drop_table",
    "find_query",
    "find_table",
    "replace_query",
    "with_relation",
    "without_unread",
]


def allocate_id(state: CatalogState) -> tuple[CatalogState, int]:
    """A fresh id for a versioned table or a query."""
    return replace(state, next_id=state.next_id + 1), state.next_id


def create_table(
    state: CatalogState, statement: CreateTable, version: int, created_by: str | None = None
) -> CatalogState:
    """CREATE TABLE; of CREATE TABLE ... AS the caller has filled in the columns."""
    if statement.name.lower() in state.tables and statement.if_not_exists:
        return state
    _check_free(state, statement.name)
    if not statement.columns:
        raise CatalogError(f"table {statement.name} has no columns")
    key = None if statement.primary_key is None else statement.primary_key.columns
    columns = columns_of(statement.name, statement.columns, key or ())
    key = None if key is None else resolve_names(statement.name, columns, key, "PRIMARY KEY")
    spec = statement.primary_key
    if spec is not None and not spec.enforced and not spec.rely:
        raise CatalogError(
            f"the PRIMARY KEY of {statement.name} is neither enforced nor relied on",
            detail="the deltas of continuous queries rest on keys",
            hint="write PRIMARY KEY (...), or PRIMARY KEY (...) NOT ENFORCED RELY at your own risk",
        )
    cluster_by = resolve_names(statement.name, columns, statement.cluster_by, "CLUSTER BY") or key or ()
    if not statement.snapshot:
        _check_without_snapshot(statement, key)
    state, number = allocate_id(state)
    kind = REMOTE if statement.remote is not None else "base" if statement.snapshot else CHANGES
    storage = VersionedTable(number, kind, statement.name, columns, key or (ROW_ID,), cluster_by)
    table = Table(
        name=statement.name,
        storage=storage,
        primary_key=key,
        primary_key_enforced=spec is None or spec.enforced,
        options=statement.options,
        created_version=version,
        created_by=created_by,
        remote=statement.remote,
    )
    for foreign in statement.foreign_keys:
        table = _with_foreign_key(state, table, foreign, version)
    return _put(state, table)


def _check_without_snapshot(statement: CreateTable, key: Sequence[str] | None) -> None:
    if key is None:
        raise CatalogError(
            f"table {statement.name} WITHOUT SNAPSHOT has no PRIMARY KEY",
            detail="without its rows, changes can be told apart by their keys only",
            hint="write PRIMARY KEY (...)",
        )


def drop_table(state: CatalogState, statement: DropTable) -> CatalogState:
    """DROP TABLE; with CASCADE what uses it goes, too: continuous queries, the capture that fills it, and foreign keys
    that refer to it."""
    if statement.name.lower() not in state.tables and statement.if_exists:
        return state
    table = find_table(state, statement.name)
    users = dependents(state, table.name)
    referring = _referring(state, table)
    filling = [capture.name for capture in captures_into(state, table.name)]
    if (users or referring or filling) and not statement.cascade:
        raise _in_use(f"table {table.name}", users, referring, filling)
    for query in users:
        state = drop_query(state, query, cascade=True) if query.lower() in state.queries else state
    for capture in captures_into(state, table.name):
        state = drop_capture(state, capture.name)
    tables = {
        name: replace(t, foreign_keys=tuple(k for k in t.foreign_keys if not _same(k.references, table.name)))
        for name, t in state.tables.items()
        if name != table.name.lower()
    }
    return replace(state, tables=tables)


def alter_table(state: CatalogState, statement: AlterTable, version: int = 0) -> CatalogState:
    """ALTER TABLE: ADD COLUMNS, ADD FOREIGN KEY, CLUSTER BY or RENAME, after commit `version`."""
    table = find_table(state, statement.name)
    if statement.action != "RENAME":
        check_here(table, f"ALTER TABLE {statement.action}")
    if statement.action == "ADD COLUMNS":
        return _put(state, _with_columns(table, statement.columns))
    if statement.action == "ADD FOREIGN KEY" and statement.foreign_key is not None:
        return _put(state, _with_foreign_key(state, table, statement.foreign_key, version))
    if statement.action == "CLUSTER BY":
        cluster_by = resolve_names(table.name, table.columns, statement.cluster_by, "CLUSTER BY")
        return _put(state, replace(table, storage=replace(table.storage, cluster_by=cluster_by)))
    if statement.action == "RENAME" and statement.new_name is not None:
        return _rename(state, table, statement.new_name)
    raise CatalogError(f"ALTER TABLE {table.name}: {statement.action} is not known")


def add_query(state: CatalogState, query: ContinuousQuery) -> CatalogState:
    """CREATE CONTINUOUS QUERY, with its id and those of its versioned tables from `allocate_id`."""
    _check_no_query(state, query.name)
    return replace(state, queries={**state.queries, query.name.lower(): query})


def replace_query(state: CatalogState, query: ContinuousQuery) -> CatalogState:
    """ALTER CONTINUOUS QUERY: another definition under the same name."""
    find_query(state, query.name)
    return replace(state, queries={**state.queries, query.name.lower(): query})


def drop_query(state: CatalogState, name: str, cascade: bool = False) -> CatalogState:
    """DROP CONTINUOUS QUERY; with CASCADE the queries over it go too. A table that it created stays as a table.

    What only the dropped queries read of other queries is no longer kept.
    """
    query = find_query(state, name)
    shadowed = query.name.lower() in state.tables  # whose readers these would be
    users = [] if shadowed else [u for u in dependents(state, query.name) if not _same(u, query.name)]
    if users and not cascade:
        raise _in_use(f"continuous query {query.name}", users, [])
    for user in users:
        state = drop_query(state, user, cascade=True) if user.lower() in state.queries else state
    queries = {key: q for key, q in state.queries.items() if key != query.name.lower()}
    state = state if shadowed else without_parts(state, query.name)
    tables = {
        key: replace(t, created_by=None)
        if t.created_by is not None and _same(t.created_by, query.name)
        else t
        for key, t in state.tables.items()
    }
    return without_unread(replace(state, queries=queries, tables=tables))


def with_relation(state: CatalogState, query: ContinuousQuery, version: int) -> CatalogState:
    """Gives `query` a table of its result from `version` on, for queries that read it by name."""
    state, number = allocate_id(state)
    columns = tuple(replace(c, nullable=True) for c in query.result.columns[: query.width])
    identity = (ROW_ID,) if query.key is None else query.key
    storage = VersionedTable(number, "result", query.name, columns, identity)
    relation = Table(query.name, storage, query.key, created_version=version)
    return replace_query(state, replace(query, relation=relation))


def without_unread(state: CatalogState) -> CatalogState:
    """Takes the tables of results away that no query reads any more, and that no destination is."""
    unread = {
        key: replace(q, relation=None)
        for key, q in state.queries.items()
        if q.relation is not None
        and q.verdict != PARTIAL  # nothing else has its rows
        and not sheds(q)
        and not merged_names(q)
        and not readers(state, q.name)
    }
    return replace(state, queries={**state.queries, **unread}) if unread else state


def dependents(state: CatalogState, name: str) -> list[str]:
    """The continuous queries that read `name` or deliver into it."""
    known = state.queries.get(name.lower())
    names = {name.lower()} if known is None or name.lower() in state.tables else names_of(known)
    return [
        query.name
        for query in state.queries.values()
        if not names.isdisjoint((*(source.lower() for source in query.sources), *query.remote))
        or any(_same(d.name, name) and d.kind in (None, "TABLE") for d in query.destinations)
    ]


# ---------------------------------------------------------------- columns and keys


def _with_columns(table: Table, specs: Sequence[ColumnSpec]) -> Table:
    for spec in specs:
        if not spec.nullable:
            raise CatalogError(
                f"column {spec.name} cannot be NOT NULL",
                detail=f"the rows that {table.name} has get NULL there",
                hint="add it without NOT NULL",
            )
    before = [ColumnSpec(c.name, c.type, c.nullable, c.comment) for c in table.columns]
    columns = columns_of(table.name, [*before, *specs], table.primary_key or ())
    return replace(table, storage=replace(table.storage, columns=columns))


def _with_foreign_key(state: CatalogState, table: Table, spec: ForeignKeySpec, version: int) -> Table:
    columns = resolve_names(table.name, table.columns, spec.columns, "FOREIGN KEY")
    target = table if _same(spec.references, table.name) else find_table(state, spec.references)
    check_here(target, "a FOREIGN KEY")
    if target.primary_key is None:
        raise CatalogError(
            f"FOREIGN KEY of {table.name}: {target.name} has no primary key",
            hint="a foreign key refers to a primary key",
        )
    wanted = spec.ref_columns or target.primary_key
    ref_columns = resolve_names(target.name, target.columns, wanted, "REFERENCES")
    if set(ref_columns) != set(target.primary_key) or len(columns) != len(ref_columns):
        raise CatalogError(
            f"FOREIGN KEY ({', '.join(columns)}) of {table.name} does not match the primary key of {target.name}",
            detail=f"that is ({', '.join(target.primary_key)})",
        )
    types, ref_types = _types(table), _types(target)
    for mine, other in zip(columns, ref_columns):
        if types[mine] != ref_types[other]:
            raise CatalogError(
                f"FOREIGN KEY of {table.name}: {mine} is {types[mine]}, {target.name}.{other} is {ref_types[other]}",
                hint="give both the same type",
            )
    taken = {key.name.lower() for key in table.foreign_keys}
    name = spec.name or _free_name(f"{table.name}_{'_'.join(columns)}_fkey", taken)
    if name.lower() in taken:
        raise CatalogError(f"table {table.name} has a foreign key {name} already")
    for each in (table, target):
        if spec.enforced and not each.has_snapshot:
            raise CatalogError(
                f"FOREIGN KEY {name} of {table.name} cannot be enforced",
                detail=f"table {each.name} was created WITHOUT SNAPSHOT: its rows are not kept",
                hint="write NOT ENFORCED, with RELY where it is known to hold",
            )
    key = ForeignKey(name, columns, target.name, ref_columns, spec.enforced, spec.rely, version)
    return replace(table, foreign_keys=(*table.foreign_keys, key))


def _free_name(name: str, taken: Set[str]) -> str:
    """The name, with a number where it is taken: the same columns may refer to several tables."""
    names = (name, *(f"{name}{number}" for number in range(1, len(taken) + 1)))
    return next(each for each in names if each.lower() not in taken)


def _types(table: Table) -> dict[str, str]:
    return {c.name: c.type for c in table.columns}


def _rename(state: CatalogState, table: Table, name: str) -> CatalogState:
    users = dependents(state, table.name)
    if users:
        raise _in_use(f"table {table.name}", users, [])
    if not _same(table.name, name):
        _check_free(state, name)
    renamed = replace(table, name=name, storage=replace(table.storage, name=name))
    tables = {}
    for key, other in state.tables.items():
        entry = renamed if key == table.name.lower() else other
        keys = tuple(
            replace(k, references=name) if _same(k.references, table.name) else k for k in entry.foreign_keys
        )
        tables[entry.name.lower()] = replace(entry, foreign_keys=keys)
    moved = {c.name.lower(): replace(c, table=name) for c in captures_into(state, table.name)}
    return replace(state, tables=tables, captures={**state.captures, **moved})


# ---------------------------------------------------------------- small things


def _put(state: CatalogState, table: Table) -> CatalogState:
    return replace(state, tables={**state.tables, table.name.lower(): table})


def _check_free(state: CatalogState, name: str) -> None:
    if name.lower() in state.tables:
        raise CatalogError(f"table {name} exists already", hint="choose another name, or drop it first")
    _check_no_query(state, name)


def _check_no_query(state: CatalogState, name: str) -> None:
    if name.lower() in state.groups:
        raise CatalogError(f"{name} is the engine's own name for queries that it refreshes together")
    destination = state.destinations.get(name.lower())
    if destination is not None and is_merge(destination):
        raise CatalogError(
            f"{destination.name} is the name of a destination under which a result is read",
            hint="choose another name, or drop the destination first",
        )
    if name.lower() in state.queries:
        raise CatalogError(
            f"continuous query {name} exists already", hint="choose another name, or drop it first"
        )


def _referring(state: CatalogState, table: Table) -> list[str]:
    return [
        f"{key.name} of {other.name}"
        for other in state.tables.values()
        if other.name != table.name
        for key in other.foreign_keys
        if _same(key.references, table.name)
    ]


def _in_use(
    what: str, queries: Sequence[str], keys: Sequence[str], captures: Sequence[str] = ()
) -> CatalogError:
    uses = [f"continuous query {name}" for name in queries] + [f"foreign key {name}" for name in keys]
    uses += [f"capture {name}, which fills it" for name in captures]
    return CatalogError(
        f"{what} is in use", detail=f"by {', '.join(uses)}", hint="drop those first, or say CASCADE"
    )


def _same(a: str, b: str) -> bool:
    return a.lower() == b.lower()
