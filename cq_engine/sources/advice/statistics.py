"""What servers know of a relation without reading it: its size, how often it was written to, and what the account may do."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import singledispatch
from pathlib import Path
from typing import Any

from cq_engine.core.errors import SourceError
from cq_engine.sources.sql.database import Session
from cq_engine.sources.sql.model import Relation, Statement
from cq_engine.sources.sql.servers.mariadb import MariaDB
from cq_engine.sources.sql.servers.postgresql import WITH_PARTS, PostgreSQL
from cq_engine.sources.sql.servers.server import Server
from cq_engine.sources.sql.servers.sqlite import SQLite

__all__ = ["Statistics", "statistics"]


@dataclass(frozen=True)
class Statistics:
    """What is None the server does not tell."""

    rows: int | None = None
    row_bytes: float | None = None
    written: int | None = None
    """Rows inserted, updated and deleted since the server began to count."""
    deleted: int | None = None
    triggers: str = "rights to create triggers are not known here"
    """Why the account cannot create triggers and a table for them; empty where it can."""
    kept: tuple[str, ...] = ()
    """Columns that the server itself sets with every write."""
    decodes: bool = False
    """Whether the server can decode its own log, which needs no triggers."""


@singledispatch
def statistics(server: Server, session: Session, relation: Relation) -> Statistics:
    """What the server knows of the relation now, in a transaction of its own."""
    del server, session
    return Statistics(relation.rows)


_POSTGRESQL = f"""
{WITH_PARTS.format("%s")}, known AS (
  SELECT CASE WHEN s.n_live_tup > 0 THEN s.n_live_tup WHEN c.reltuples >= 0 THEN c.reltuples END AS live,
         pg_relation_size(c.oid) AS size, s.n_tup_ins + s.n_tup_upd + s.n_tup_del AS written, s.n_tup_del AS deleted
  FROM parts JOIN pg_class AS c ON c.oid = parts.oid LEFT JOIN pg_stat_user_tables AS s ON s.relid = c.oid WHERE c.relkind <> 'p'
)
SELECT (SELECT CASE WHEN count(live) = count(*) THEN sum(live) END FROM known), (SELECT sum(size) FROM known),
       (SELECT sum(written) FROM known), (SELECT sum(deleted) FROM known),
       has_table_privilege(c.oid, 'TRIGGER') AND has_schema_privilege(c.relnamespace, 'CREATE'), pg_is_in_recovery(),
       current_setting('wal_level') = 'logical'
FROM pg_class AS c WHERE c.oid = CAST(%s AS regclass)
"""


@statistics.register
def _(server: PostgreSQL, session: Session, relation: Relation) -> Statistics:
    name = f"{server.quoted(relation.schema or 'public')}.{server.quoted(relation.name)}"
    found = session.one(Statement(_POSTGRESQL, (name, name)))
    if found is None:
        return Statistics(relation.rows)
    rows, size, written, deleted, may, follows, decodes = found
    refused = "the server only follows another one" if follows else ""
    refused = refused or ("" if may else "the account may not create triggers and tables there")
    count = None if rows is None else int(rows)
    width = float(size) / count if count and size else None
    written, deleted = (None if each is None else int(each) for each in (written, deleted))
    return Statistics(count, width, written, deleted, refused, decodes=decodes and not follows)


_ME = "CONCAT(QUOTE(SUBSTRING_INDEX(CURRENT_USER(), '@', 1)), '@', QUOTE(SUBSTRING_INDEX(CURRENT_USER(), '@', -1)))"
_SIZE = "SELECT table_rows, avg_row_length FROM information_schema.tables WHERE table_schema = %s AND table_name = %s"
_KEPT = (
    "SELECT column_name FROM information_schema.columns WHERE table_schema = %s AND table_name = %s"
    " AND LOWER(extra) LIKE '%%on update current_timestamp%%'"
)
_RIGHTS = f"""
SELECT COUNT(DISTINCT privilege_type), @@read_only FROM (
  SELECT privilege_type FROM information_schema.user_privileges WHERE grantee = {_ME}
  UNION ALL SELECT privilege_type FROM information_schema.schema_privileges
            WHERE grantee = {_ME} AND %s LIKE table_schema
  UNION ALL SELECT privilege_type FROM information_schema.table_privileges
            WHERE grantee = {_ME} AND table_schema = %s AND table_name = %s
) AS p WHERE privilege_type IN ('CREATE', 'TRIGGER')
"""
_COUNTERS = (
    (
        "SELECT count_insert + count_update + count_delete, count_delete FROM performance_schema.table_io_waits_summary_by_table"
        " WHERE object_schema = %s AND object_name = %s AND @@performance_schema"
    ),
    (
        "SELECT rows_changed, NULL FROM information_schema.table_statistics"
        " WHERE table_schema = %s AND table_name = %s AND @@userstat"
    ),
)


@statistics.register
def _(server: MariaDB, session: Session, relation: Relation) -> Statistics:
    del server
    place = (relation.schema, relation.name)
    rows, size = _asked(session, _SIZE, *place) or (None, None)
    written, deleted = next(filter(None, (_asked(session, sql, *place) for sql in _COUNTERS)), (None, None))
    rights, read_only = _asked(session, _RIGHTS, relation.schema, *place) or (0, 0)
    refused = "the server is read-only" if int(read_only) else ""
    refused = refused or ("" if rights == 2 else "the account may not create triggers and tables there")
    kept = tuple(str(row[0]) for row in session.rows(Statement(_KEPT, place)))
    return Statistics(
        None if rows is None else int(rows), float(size) if size else None,
        None if written is None else int(written), None if deleted is None else int(deleted), refused, kept,
    )  # fmt: skip


def _asked(session: Session, sql: str, *parameters: Any) -> tuple[Any, ...] | None:
    """The first row; None where there is none, or the server does not have what is asked, or does not show it."""
    try:
        return session.one(Statement(sql, parameters))
    except SourceError:
        return None


@statistics.register
def _(server: SQLite, session: Session, relation: Relation) -> Statistics:
    del server
    file = Path(session.database.address.url.database or "")
    may = file.is_file() and os.access(file, os.W_OK) and os.access(file.parent, os.W_OK)
    return Statistics(relation.rows, triggers="" if may else f"the file {file.name} cannot be written to")
