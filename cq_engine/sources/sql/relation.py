"""Relations of a source: a table or view by its name, or a query."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from sqlglot import exp
from sqlglot.errors import SqlglotError

from cq_engine.core.errors import SourceError, did_you_mean
from cq_engine.sources.sql.database import Database
from cq_engine.sources.sql.model import Index, Relation, SourceColumn
from cq_engine.sources.sql.servers.server import Found

__all__ = ["VIEW", "Index", "Relation", "SourceColumn", "describe", "describe_query", "query_text"]

VIEW = "cq_view"
"""The name that the query of a capture has where it is asked."""


def describe(database: Database, name: str) -> Relation:
    """The table or view `name`, such as `public.orders`, as it is now.

    Names are quoted as the source quotes them. One without quotes is found in whatever case, where that is clear. Raises
    SourceError for one that is not there.
    """
    schema, relation, is_quoted = _parts(database, name)
    server = database.server
    with database.connect() as session:
        found = server.find(session.connection, schema, relation)
        chosen = [each for each in found if each.name == relation]
        if not chosen and not is_quoted:
            chosen = list(found)
        if not chosen:
            names = server.names(session.connection, schema)
            raise SourceError(
                f"source {database.name} has no table {name}",
                detail="what the account cannot see is not there for it",
                hint=did_you_mean(
                    relation, names, "write it as the source knows it, with its schema where it has one"
                ),
            )
        if len(chosen) > 1:
            shown = " and ".join(_shown(database, each) for each in chosen)
            raise SourceError(
                f"source {database.name} has several tables {name}", hint=f"there are {shown}; quote the name"
            )
        return server.describe(session.connection, chosen[0])


def describe_query(database: Database, sql: str) -> Relation:
    """The columns of a query in the source's SQL, which is parsed by the source alone, and returns no row here.

    What a query does not say (keys, indexes, the number of rows, in SQLite types) is not known.
    """
    text = query_text(sql)
    with database.connect() as session, database.failing():
        wanted = f"SELECT * FROM ({text}\n) AS {VIEW} WHERE 1 = 0".replace("%", database.server.percent)
        result = session.connection.exec_driver_sql(wanted)
        with closing(result):
            cursor: Any = result.cursor
            columns = tuple(database.server.result_columns(session.connection, cursor))
    return Relation(database.kind, database.dialect, VIEW, columns, query=text)


def query_text(sql: str) -> str:
    """A query without the semicolon at its end. Raises SourceError for an empty one."""
    text = sql.strip().rstrip(";").rstrip()
    if not text or "\0" in text:
        raise SourceError("the query is empty" if not text else "the query has a NUL character in it")
    return text


def _parts(database: Database, name: str) -> tuple[str | None, str, bool]:
    try:
        table = exp.to_table(name, dialect=database.dialect)
        identifier = table.this
    except (SqlglotError, ValueError):
        identifier = None
    if not isinstance(identifier, exp.Identifier) or table.catalog or table.alias:
        raise SourceError(
            f"{name} is no name of a table",
            hint="write it as the source's SQL has it, such as 'public.orders'",
        )
    return table.db or None, identifier.name, bool(identifier.quoted)


def _shown(database: Database, found: Found) -> str:
    names = [found.schema, found.name] if found.schema else [found.name]
    return ".".join(database.server.quoted(name) for name in names)
