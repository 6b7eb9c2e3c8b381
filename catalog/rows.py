"""Rows of the catalog database: what is written, and compared while it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from cq_engine.catalog.schema import stale

__all__ = ["delete", "delete_in", "in_parts", "insert", "swap", "upsert"]

_Value = TypeVar("_Value")


def insert(connection: Connection, table: sa.Table, rows: Iterable[Mapping[str, Any]]) -> None:
    """Inserts rows, if there are any."""
    found = list(rows)
    if found:
        connection.execute(table.insert(), found)


def upsert(
    connection: Connection, table: sa.Table, key: Mapping[str, Any], values: Mapping[str, Any]
) -> None:
    """Updates the row with `key`, or inserts it."""
    same = sa.and_(*(table.c[name] == value for name, value in key.items()))
    if values:
        there = connection.execute(table.update().where(same).values(**values)).rowcount
    else:
        there = connection.execute(sa.select(sa.func.count()).select_from(table).where(same)).scalar_one()
    if not there:
        connection.execute(table.insert().values(**key, **values))


def delete(connection: Connection, table: sa.Table, **key: Any) -> None:
    """Deletes the rows with `key`."""
    same = sa.and_(*(table.c[name] == value for name, value in key.items()))
    connection.execute(table.delete().where(same))


def swap(
    connection: Connection, table: sa.Table, known: Mapping[str, Any], values: Mapping[str, Any], what: str
) -> None:
    """Updates the one row that is as `known`; ConflictError where there is none."""
    same = sa.and_(*(table.c[name] == value for name, value in known.items()))
    if connection.execute(table.update().where(same).values(**values)).rowcount != 1:
        raise stale(what)


def delete_in(connection: Connection, column: sa.Column[Any], values: Sequence[Any], what: str = "") -> None:
    """Deletes the rows with these values; with `what`, ConflictError where they are not all there."""
    for some in in_parts(values):
        found = connection.execute(column.table.delete().where(column.in_(some))).rowcount
        if what and found != len(some):
            raise stale(what)


def in_parts(values: Sequence[_Value]) -> Iterator[Sequence[_Value]]:
    """As many at once as a statement takes."""
    return (values[start : start + 500] for start in range(0, len(values), 500))
