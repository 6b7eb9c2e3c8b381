"""The captured table as PostgreSQL's catalog has it: what identifies its rows in the log, and which of its values may be left out there."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from cq_engine.catalog.model import Capture
from cq_engine.core.errors import AnalysisError, SourceError
from cq_engine.sources.methods.base import Place
from cq_engine.sources.options import option
from cq_engine.sources.sql.database import Session
from cq_engine.sources.sql.installed import LAYOUT, digest
from cq_engine.sources.sql.model import Statement
from cq_engine.sources.sql.partitions import Partition, partitions
from cq_engine.sources.sql.selection import Selection

__all__ = ["Attribute", "LoggedTable", "check", "check_followed", "check_partitions", "look", "name_of"]

_TABLE = """
SELECT c.oid, c.relkind::text, c.relpersistence::text, c.relhassubclass, c.relreplident::text
FROM pg_class AS c WHERE c.oid = to_regclass(%s)
"""
_ATTRIBUTES = """
SELECT a.attname::text, a.atttypid, a.atttypmod, CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE a.atttypid END,
       a.attlen = -1 AND NOT (a.atttypid = 'numeric'::regtype AND a.atttypmod >= 0 AND (a.atttypmod - 4) >> 16 <= 28),
       a.attgenerated <> ''
FROM pg_attribute AS a JOIN pg_type AS t ON t.oid = a.atttypid
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
"""
"""Values of up to 24 bytes, as numbers of 28 digits are, stay in their rows. How a column is stored now says nothing about the values
that are there already."""
_KEYS = """
SELECT i.indisprimary, i.indisreplident, (
  SELECT array_agg(a.attname::text) FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k (number, n)
  JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.number WHERE k.n <= i.indnkeyatts)
FROM pg_index AS i
WHERE i.indrelid = %s AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
"""
_WORDS = {"d": "DEFAULT", "n": "NOTHING", "f": "FULL", "i": "USING INDEX"}


@dataclass(frozen=True)
class Attribute:
    """A column: its type and that without a domain, by their numbers; whether its values may be too large to be logged with
    an update that leaves them as they are, and whether the server computes it, so that it is never logged."""

    type_oid: int
    modifier: int
    base_oid: int
    is_large: bool
    is_generated: bool


@dataclass(frozen=True)
class LoggedTable:
    """What decides how the changes of a table can be followed."""

    oid: int
    kind: str
    persistence: str
    has_parts: bool
    identity: str
    """REPLICA IDENTITY, as a letter: d, n, f or i."""
    identity_columns: frozenset[str]
    keys: tuple[frozenset[str], ...]
    """The columns of each unique index that is checked at once."""
    attributes: dict[str, Attribute]
    partitions: tuple[Partition, ...] = ()

    @property
    def is_partitioned(self) -> bool:
        """Whether all rows are in partitions."""
        return self.kind == "p"

    @property
    def layout(self) -> dict[str, str]:
        """What of its state is another one where rows may have come or gone of which nothing is logged as the table's."""
        return {LAYOUT: digest(self.partitions)} if self.is_partitioned else {}

    @property
    def is_full(self) -> bool:
        """Whether old rows are logged as a whole."""
        return self.identity == "f"

    def identified(self) -> str:
        """REPLICA IDENTITY in words."""
        return _WORDS.get(self.identity, self.identity)

    def large(self, names: Collection[str]) -> list[str]:
        """Those of the columns whose values an update may leave out."""
        known = self.attributes
        return [name for name in names if name in known and known[name].is_large]


def name_of(selection: Selection) -> str:
    """The table's name in SQL."""
    server, relation = selection.server, selection.relation
    return f"{server.quoted(relation.schema or 'public')}.{server.quoted(relation.name)}"


def look(session: Session, selection: Selection) -> LoggedTable:
    """The table as it is now. Raises SourceError where it is gone."""
    found = session.one(Statement(_TABLE, (name_of(selection),)))
    if found is None:
        raise SourceError(
            f"source {session.database.name} has no table {selection.relation.shown} any more",
            hint="what the account cannot see is not there for it",
        )
    oid, kind, persistence, has_parts, identity = found
    attributes = {
        name: Attribute(type_oid, modifier, base, bool(large), bool(generated))
        for name, type_oid, modifier, base, large, generated in session.rows(Statement(_ATTRIBUTES, (oid,)))
    }
    keys = [
        (primary, replica, frozenset(names))
        for primary, replica, names in session.rows(Statement(_KEYS, (oid,)))
    ]
    identifying: frozenset[str] = frozenset()
    for primary, replica, names in keys:
        if (identity == "d" and primary) or (identity == "i" and replica):
            identifying = names
    if identity == "f":
        identifying = frozenset(attributes)
    unique = tuple(names for _, _, names in keys)
    parts = partitions(session, name_of(selection)) if kind == "p" else ()
    return LoggedTable(oid, kind, persistence, has_parts, identity, identifying, unique, attributes, parts)


def check(table: LoggedTable, selection: Selection, capture: Capture, place: Place = lambda _: None) -> None:
    """Raises AnalysisError where the log would not have all that the capture needs."""
    check_followed(table, selection, place)
    shown, name = selection.relation.shown, name_of(selection)
    large = table.large(
        [c.name for c in selection.columns] if capture.where is None else list(table.attributes)
    )
    begins = "initial = 'none'" if option(capture, "initial") == "none" else ""
    if large and not table.is_full and (capture.where is not None or begins):
        raise AnalysisError(
            f"{begins or 'WHERE'} needs REPLICA IDENTITY FULL of {shown}",
            detail=f"an update that leaves a large {large[0]} as it is does not log it, and the row may not be here",
            hint=f"ALTER TABLE {name} REPLICA IDENTITY FULL at the source, or leave {begins or 'WHERE'} out",
            location=place("initial" if begins else "WHERE"),
        )


def check_followed(table: LoggedTable, selection: Selection, place: Place = lambda _: None) -> None:
    """Raises AnalysisError where the log would not say which rows have changed, or not have a column."""
    shown, name = selection.relation.shown, name_of(selection)
    check_partitions(table, selection, place)
    is_own = table.kind == "r" and not table.has_parts and table.persistence == "p"
    if not table.is_partitioned and not is_own:
        raise AnalysisError(
            f"{shown} is no table of its own that is logged",
            detail="views, those that others inherit from, and unlogged tables are not followed in the log",
            hint="capture it USING COPY or CHECKSUM, or each part by itself",
            location=place("LOG"),
        )
    _check_identity(table, selection, shown, name, place)
    generated = [c.name for c in selection.columns if table.attributes[c.name].is_generated]
    if generated:
        raise AnalysisError(
            f"column {generated[0]} of {shown} is computed by the server, which does not log it",
            hint=f"leave {generated[0]} out of the capture, and compute it in queries over the table",
            location=place(generated[0]),
        )


def check_partitions(table: LoggedTable, selection: Selection, place: Place = lambda _: None) -> None:
    """Raises AnalysisError where partitions are not logged as the table says: the log has the old rows of each by its own REPLICA
    IDENTITY, and gives them as those of the whole table."""
    shown = selection.relation.shown
    for each in table.partitions:
        if each.kind not in "rp" or each.persistence != "p":
            raise AnalysisError(
                f"partition {each.name} of {shown} is no table that is logged",
                hint="capture the table USING COPY or CHECKSUM, or its other partitions each by itself",
                location=place("LOG"),
            )
    own = [each for each in table.partitions if each.has_rows and each.identity != table.identity]
    if own or (table.is_partitioned and table.identity == "i"):
        wanted = "FULL" if table.is_full else "DEFAULT"
        name = own[0].name if own else shown
        raise AnalysisError(
            f"the partitions of {shown} do not identify their rows as it does",
            detail=f"REPLICA IDENTITY of {name} is {_WORDS.get(own[0].identity if own else table.identity)}",
            hint=f"ALTER TABLE {name} REPLICA IDENTITY {wanted} at the source, so that it is the same for all",
            location=place("LOG"),
        )


def _check_identity(table: LoggedTable, selection: Selection, shown: str, name: str, place: Place) -> None:
    key = set(selection.key)
    if not table.identity_columns:
        why = (
            "its REPLICA IDENTITY is NOTHING"
            if table.identity == "n"
            else "it has no primary key that is checked at once"
        )
        raise AnalysisError(
            f"the log does not say which rows of {shown} are updated and deleted",
            detail=why,
            hint=f"give it a primary key, or ALTER TABLE {name} REPLICA IDENTITY FULL at the source",
            location=place("LOG"),
        )
    if not key <= table.identity_columns or not any(each <= key for each in table.keys):
        known = ", ".join(sorted(table.identity_columns))
        raise AnalysisError(
            f"the key of the capture ({', '.join(selection.key)}) is not what identifies the rows of {shown} in the log",
            detail=f"its REPLICA IDENTITY is {table.identified()}: {known}",
            hint="give the table here the primary key of the source, by which its log identifies rows",
            location=place("LOG"),
        )
