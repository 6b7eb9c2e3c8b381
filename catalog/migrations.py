"""The version of the catalog's schema: creates it, brings an older one up to date, refuses a newer one.

To change the schema: change catalog/schema.py, add one to VERSION and a function to MIGRATIONS that leads there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from cq_engine.catalog import schema
from cq_engine.catalog.view import LONGEST_NAME
from cq_engine.core.errors import CatalogError

__all__ = ["MIGRATIONS", "VERSION", "check", "prepare"]

VERSION = 11
_KEY = "schema_version"
_ADVISORY_LOCK = 0x63715F656E67  # "cq_eng": one process at a time creates or migrates


def _doomed_files(connection: Connection) -> None:
    schema.doomed.create(connection)


def _query_groups(_: Connection) -> None:
    """Definitions of a new kind, which an earlier version would take for functions; nothing of what is there changes."""


def _directories(connection: Connection) -> None:
    """Names on disk are given once; what no file system can hold gets another one. Writes count what they build on."""
    schema.directories.create(connection, checkfirst=True)
    stored, names = schema.storage, schema.directories
    there = {tuple(row) for row in connection.execute(sa.select(names.c.kind, names.c.name))}
    for row in connection.execute(sa.select(stored)).all():
        name = row.directory
        if len(name) > _LONGEST:  # nothing can have been written there
            name = f"{name[:LONGEST_NAME]}-{row.table_id}"
            same = stored.c.table_id == row.table_id
            connection.execute(stored.update().where(same).values(directory=name))
        if "-" not in name and (row.kind, name.lower()) not in there:
            connection.execute(names.insert().values(kind=row.kind, name=name.lower()))
    known = set(connection.execute(sa.select(schema.meta.c.key)).scalars())
    for key, value in _NUMBERS.items():
        if key not in known:
            connection.execute(schema.meta.insert().values(key=key, value=value))


def _journal(connection: Connection) -> None:
    """What each write changed is recorded from now on."""
    schema.journal.create(connection, checkfirst=True)


def _destinations(connection: Connection) -> None:
    """Cursors count deltas; definitions of a new kind, which an earlier version would take for functions."""
    for name in ("rows", "dead"):
        if name not in _columns(connection, schema.cursors.name):
            connection.execute(
                sa.text(f"ALTER TABLE {schema.cursors.name} ADD COLUMN {name} BIGINT NOT NULL DEFAULT 0")
            )


def _processes(connection: Connection) -> None:
    """Several processes write, each under its number; the journal, made anew, is what counts their writes."""
    lease = sa.table(schema.lease.name, sa.column("generation"))
    there = _columns(connection, lease.name)
    counted = 0
    if "generation" in there:
        counted = connection.execute(sa.select(lease.c.generation)).scalar_one()
    for name in {"generation", "holder", "heartbeat"} & there:
        connection.execute(sa.text(f"ALTER TABLE {lease.name} DROP COLUMN {name}"))
    schema.journal.drop(connection, checkfirst=True)
    schema.journal.create(connection)
    connection.execute(schema.journal.insert().values(generation=counted + 1, document="{}"))
    for table in (schema.processes, schema.callbacks, schema.requests):
        table.create(connection, checkfirst=True)
    for name in (schema.lease.name, schema.attempts.name):
        if "process" not in _columns(connection, name):
            connection.execute(sa.text(f"ALTER TABLE {name} ADD COLUMN process BIGINT NOT NULL DEFAULT 0"))


def _cascades(connection: Connection) -> None:
    """Commits of triggers are counted; those before have no depth."""
    schema.cascades.create(connection, checkfirst=True)


def _queues(connection: Connection) -> None:
    """Where the consumers of queues stand, of which there were none."""
    schema.queue_positions.create(connection, checkfirst=True)
    schema.queue_messages.create(connection, checkfirst=True)


def _captures(connection: Connection) -> None:
    """Where captures stand; definitions of new kinds, which an earlier version would take for functions."""
    schema.captures.create(connection, checkfirst=True)


def _remote(_: Connection) -> None:
    """Tables that stay at their sources, which an earlier version would take for empty ones; nothing of what is there changes."""


def _columns(connection: Connection, table: str) -> set[str]:
    return {column["name"] for column in sa.inspect(connection).get_columns(table)}


_NUMBERS = {"next_id": "1", "definitions": "0"}
_LONGEST = 255
"""Characters of a name in the file systems that there are."""

MIGRATIONS: Mapping[int, Callable[[Connection], None]] = {
    1: _doomed_files,
    2: _query_groups,
    3: _directories,
    4: _journal,
    5: _destinations,
    6: _processes,
    7: _cascades,
    8: _queues,
    9: _captures,
    10: _remote,
}
"""From version n to n + 1, by n."""


def stored_version(connection: Connection) -> int | None:
    """The version of the schema in the database; None where there is none."""
    if not sa.inspect(connection).has_table(schema.meta.name):
        return None
    found = connection.execute(sa.select(schema.meta.c.value).where(schema.meta.c.key == _KEY)).scalar()
    return None if found is None else int(found)


def check(connection: Connection) -> None:
    """For a reader: raises CatalogError unless the schema is there and is this version's."""
    found = stored_version(connection)
    if found is None:
        raise CatalogError(
            "there is no catalog here",
            detail="read-only, nothing is created",
            hint="open it once without read_only",
        )
    _not_newer(found)
    if found < VERSION:
        raise CatalogError(
            f"the catalog has schema version {found}, this cq-engine reads {VERSION}",
            hint="open it once without read_only: that brings it up to date",
        )


def prepare(connection: Connection, warehouse: str, bound: bool) -> None:
    """For a writer: creates or migrates the schema inside the transaction of `connection`.

    With `bound`, the database must belong to `warehouse`, else CatalogError (two warehouses in one database would
    overwrite each other); without, the database lies in the warehouse and moves with it.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_ADVISORY_LOCK)))
    found = stored_version(connection)
    if found is None:
        schema.metadata.create_all(
            connection, checkfirst=False
        )  # which would ask for each table whether it is there
        connection.execute(
            schema.meta.insert(),
            [
                {"key": key, "value": value}
                for key, value in {_KEY: str(VERSION), "warehouse": warehouse, **_NUMBERS}.items()
            ],
        )
        connection.execute(schema.lease.insert().values(id=1, epoch=0))
        return
    _not_newer(found)
    for version in range(found, VERSION):
        MIGRATIONS[version](connection)
    if found < VERSION:
        _put(connection, _KEY, str(VERSION))
    owner = connection.execute(
        sa.select(schema.meta.c.value).where(schema.meta.c.key == "warehouse")
    ).scalar()
    if bound and owner != warehouse:
        raise CatalogError(
            f"this database is the catalog of the warehouse {owner}, not of {warehouse}",
            hint="give every warehouse a database (or, on PostgreSQL, a schema by ?options=-csearch_path=name)",
        )


def _not_newer(found: int) -> None:
    if found > VERSION:
        raise CatalogError(
            f"the catalog has schema version {found}, this cq-engine knows {VERSION}",
            hint="it was written by a newer cq-engine: upgrade",
        )


def _put(connection: Connection, key: str, value: str) -> None:
    connection.execute(schema.meta.update().where(schema.meta.c.key == key).values(value=value))
