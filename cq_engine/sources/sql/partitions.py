"""Partitions of a table of PostgreSQL, and tables that inherit from it: what it has besides, or instead of, rows of its own."""

from __future__ import annotations

from dataclasses import dataclass

from cq_engine.sources.sql.database import Database, Session
from cq_engine.sources.sql.model import Relation, Statement
from cq_engine.sources.sql.servers.postgresql import WITH_PARTS

__all__ = ["Partition", "members", "partitions"]

_MEMBERS = f"""
{WITH_PARTS.format("%s")}
SELECT c.oid, CAST(CAST(c.oid AS regclass) AS text), CAST(c.relkind AS text), CAST(c.relpersistence AS text),
       CAST(c.relreplident AS text), CAST(c.relfilenode AS text) || ' ' || CAST(i.xmin AS text)
FROM parts JOIN pg_class AS c ON c.oid = parts.oid JOIN pg_inherits AS i ON i.inhrelid = c.oid
WHERE c.oid <> CAST(%s AS regclass) ORDER BY c.oid, i.inhparent
"""


@dataclass(frozen=True)
class Partition:
    """A table below another one, at whatever depth."""

    oid: int
    name: str
    kind: str
    """As `pg_class` has it; r for a table with rows of its own."""
    persistence: str
    identity: str
    """REPLICA IDENTITY, as a letter."""
    state: str
    """Another one when it was attached again, emptied by TRUNCATE, or written anew."""

    @property
    def has_rows(self) -> bool:
        """False for one that has only partitions itself."""
        return self.kind != "p"


def partitions(session: Session, name: str) -> tuple[Partition, ...]:
    """What is below the table `name`, which is quoted; nothing where it is an ordinary one."""
    return tuple(Partition(*row) for row in session.rows(Statement(_MEMBERS, (name, name))))


def members(database: Database, relation: Relation) -> tuple[Partition, ...]:
    """The same of a relation as it is now, whatever a transaction that is open sees of it; of other servers nothing."""
    if database.server.name != "postgresql" or relation.query is not None:
        return ()
    names = [relation.schema, relation.name] if relation.schema else [relation.name]
    with database.connect() as session:
        return partitions(session, ".".join(map(database.server.quoted, names)))
