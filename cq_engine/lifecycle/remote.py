"""CREATE TABLE ... REMOTE FROM: a table whose rows stay at a source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from cq_engine.catalog import apply
from cq_engine.catalog.model import DeclaredSource
from cq_engine.catalog.sources import find_source, remote_tables
from cq_engine.core.errors import AnalysisError, Location, did_you_mean
from cq_engine.definition.registry import Registry
from cq_engine.destinations.options import check_options
from cq_engine.grammar import ColumnSpec, CreateTable, DropSource, DropTable, PrimaryKeySpec, RemoteRelation
from cq_engine.lifecycle.drop import drop_table
from cq_engine.sources.options import METHODS
from cq_engine.sources.sql.database import Database
from cq_engine.sources.sql.model import Relation
from cq_engine.sources.sql.relation import describe

__all__ = ["create_remote", "drop_remote"]

Place = Callable[[str], Location | None]
"""Where a word stands in the statement."""

TYPES = ("sqlite", "postgresql", "mariadb")


def create_remote(registry: Registry, statement: CreateTable, place: Place) -> str:
    """CREATE TABLE ... REMOTE FROM source TABLE 'name'; the message for a person. Without columns, the table has those of the
    source's table, and its key.

    Raises AnalysisError for a source of another type, a column or key that the source's table does not have, and options that
    are not known; SourceError where the source cannot be read; CatalogError where the name is taken.
    """
    catalog, remote = registry.services.catalog, statement.remote
    assert remote is not None
    with registry.ddl:
        source = find_source(catalog.state, remote.source)
        _check_source(source, remote, place)
        with Database.open(source) as database:
            relation = describe(database, remote.relation)
        remote = replace(remote, source=source.name)
        complete = replace(_with_columns(statement, relation, place), remote=remote)
        with catalog.lock, catalog.write(by_any=True) as unit:
            unit.set_state(apply.create_table(catalog.state, complete, catalog.newest_version))
    return f"table {statement.name} created; its rows stay at source {source.name}"


def drop_remote(registry: Registry, statement: DropSource) -> str:
    """Drops the tables that stay at a source which is about to be dropped with CASCADE, and the queries over them; the
    message for a person, empty where there are none."""
    tables = remote_tables(registry.services.catalog.state, statement.name) if statement.cascade else []
    return "; ".join(drop_table(registry, DropTable(table.name, cascade=True)) for table in tables)


def _check_source(source: DeclaredSource, remote: RemoteRelation, place: Place) -> None:
    if source.type not in TYPES:
        raise AnalysisError(
            f"a table cannot stay at source {source.name}, which is of type {source.type}",
            detail=f"sources that can be asked for rows are of type {', '.join(TYPES)}",
            hint="CREATE CAPTURE keeps a copy of what such a source has",
            location=place(remote.source),
        )
    options = dict(remote.options)
    names = ("install", "slot") if source.type == "postgresql" else ("install",)
    check_options(options, {n: METHODS["LOG"][n] for n in names}, "a table USING LOG", place)
    installs = options.get("install", "").lower() == "true"
    if installs and "slot" in options:
        raise AnalysisError(
            "slot and install are two logs",
            hint="leave install out, and the server's own log is read; without slot triggers write one",
            location=place("install"),
        )
    if remote.log and not installs and "slot" not in options:
        or_slot = " or, for the server's own log, WITH (slot = 'name')" if "slot" in names else ""
        raise AnalysisError(
            "USING LOG has to say that a log may be installed",
            detail="a continuous query over the table lets triggers write one at the source, and removes them with itself",
            hint=f"write USING LOG WITH (install = true){or_slot}, or leave USING LOG out where nothing is to be maintained",
            location=place("LOG"),
        )


def _with_columns(statement: CreateTable, relation: Relation, place: Place) -> CreateTable:
    """The statement with its columns and key, as the source's table has them."""
    key = statement.primary_key
    if not statement.columns:
        columns = tuple(
            ColumnSpec(column.name, column.type.upper(), column.nullable) for column in relation.columns
        )
        if key is None and relation.key:
            key = PrimaryKeySpec(relation.key)
        return replace(statement, columns=columns, primary_key=key)
    names = [column.name for column in relation.columns]
    known = {name.lower() for name in names}
    for column in statement.columns:
        if column.name.lower() not in known:
            raise AnalysisError(
                f"{relation.shown} has no column {column.name}",
                hint=did_you_mean(column.name, names, f"it has {', '.join(names)}"),
                location=place(column.name),
            )
    if key is not None:
        _check_key(relation, key, place)
    return statement


def _check_key(relation: Relation, key: PrimaryKeySpec, place: Place) -> None:
    """Raises AnalysisError where the columns do not identify the rows of the source's table."""
    wanted = {name.lower() for name in key.columns}
    unique = [{*map(str.lower, relation.key)}] if relation.key else []
    unique += [{*map(str.lower, index.columns)} for index in relation.indexes if index.unique]
    if any(each <= wanted for each in unique):
        return
    raise AnalysisError(
        f"({', '.join(key.columns)}) is no key of {relation.shown}",
        detail="the source does not say that it is unique there",
        hint=f"its primary key is ({', '.join(relation.key)})" if relation.key else "leave PRIMARY KEY out",
        location=place("PRIMARY"),
    )
