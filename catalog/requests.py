"""What processes without the duties ask of the one that has them: a row each, which the holder answers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from cq_engine.catalog import schema
from cq_engine.catalog.store import Catalog
from cq_engine.catalog.view import WriteSet
from cq_engine.core.errors import CatalogError

__all__ = ["LOOK_SECONDS", "Request", "answer", "answered", "ask", "take", "waiting", "withdraw"]

LOOK_SECONDS = 0.02
"""Between two looks at what another process has done."""

_ROWS = schema.requests


@dataclass(frozen=True)
class Request:
    """`taken` is the epoch of the holder that has begun with it, 0 where none has."""

    number: int
    kind: str
    argument: dict[str, Any]
    taken: int


def ask(catalog: Catalog, kind: str, argument: dict[str, Any]) -> int:
    """Asks the holder of the duties, who sees it as it sees a commit; the request's number."""
    row = {"process": catalog.number, "kind": kind, "argument": json.dumps(argument), "taken": 0}
    numbers: list[int] = []

    def insert(connection: sa.Connection) -> None:
        numbers.extend(connection.execute(_ROWS.insert().values(**row)).inserted_primary_key or ())

    catalog.write_set(WriteSet(), also=insert, by_any=True)
    return numbers[0]


def waiting(catalog: Catalog) -> list[Request]:
    """What has no answer yet, in the order in which it was asked."""
    chosen = sa.select(_ROWS).where(_ROWS.c.answer.is_(None)).order_by(_ROWS.c.id)
    with catalog.reading() as connection:
        rows = connection.execute(chosen).all()
    return [Request(row.id, row.kind, json.loads(row.argument), row.taken) for row in rows]


def take(catalog: Catalog, number: int) -> None:
    """The holder begins with a request."""
    mine = _ROWS.update().where(_ROWS.c.id == number).values(taken=catalog.epoch)
    catalog.write_set(WriteSet(), also=lambda connection: connection.execute(mine))


def answer(catalog: Catalog, number: int, said: dict[str, Any]) -> None:
    """The holder has done what was asked."""
    done = _ROWS.update().where(_ROWS.c.id == number).values(answer=json.dumps(said))
    catalog.write_set(WriteSet(), also=lambda connection: connection.execute(done), by_any=True)


def answered(catalog: Catalog, number: int) -> dict[str, Any] | None:
    """The answer, if it is there. CatalogError where the request is not, because its process was taken for dead."""
    with catalog.reading() as connection:
        row = connection.execute(sa.select(_ROWS.c.answer).where(_ROWS.c.id == number)).one_or_none()
    if row is None:
        raise CatalogError(
            "this process was taken for dead while it waited for the one that has the duties",
            hint="see whether what it asked for was done, and ask again if not",
        )
    return None if row.answer is None else json.loads(row.answer)


def withdraw(catalog: Catalog, number: int) -> None:
    """Takes a request away, with its answer."""
    gone = _ROWS.delete().where(_ROWS.c.id == number)
    catalog.write_set(WriteSet(), also=lambda connection: connection.execute(gone), by_any=True)
