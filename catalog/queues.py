"""Where the consumers of queues stand: rows of the catalog database that no process keeps in memory.

A queue's messages are the deltas in its queries' logs; here is only which of them each group of consumers has been given
and has not finished. Whoever changes these rows holds the catalog (`Catalog.aside`), so that what it has read is still so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from cq_engine.catalog import schema

__all__ = [
    "DEFAULT_GROUP",
    "END",
    "TABLES",
    "Given",
    "Place",
    "Position",
    "Standing",
    "drop",
    "find",
    "finish",
    "move",
    "read",
    "standings",
    "write",
]

Place = tuple[int, int]
"""(version, sequence) of a delta."""
DEFAULT_GROUP = "default"
"""The group of consumers that name none."""
END = 2**62
"""As a sequence: the whole version."""
TABLES = (schema.queue_positions, schema.queue_messages)
_POSITIONS, _MESSAGES = TABLES


@dataclass(frozen=True)
class Position:
    """Up to where a group has been given the messages of a query, how many it has finished, and how many are dead letters."""

    query: str
    version: int
    sequence: int
    finished: int = 0
    dead: int = 0

    @property
    def place(self) -> Place:
        return self.version, self.sequence


@dataclass(frozen=True)
class Given:
    """A message up to there that is not finished.

    `due` is when it may be given (again), in microseconds since 1970. `consumer` has it, or had it when it became due;
    `receipt` says which time that was. One that was taken back, or passed over because its key was busy, has neither.
    """

    query: str
    version: int
    sequence: int
    key: int
    due: int = 0
    attempt: int = 0
    consumer: str = ""
    receipt: int = 0

    @property
    def place(self) -> Place:
        return self.version, self.sequence


@dataclass(frozen=True)
class Standing:
    """One group of a queue, by lower-case names of queries; `given` in the order of the messages of each query."""

    positions: Mapping[str, Position] = field(default_factory=dict)
    given: Sequence[Given] = ()


def read(connection: Connection, destination: str, group: str) -> Standing:
    """Where a group stands."""
    return standings(connection, destination, group).get(group, Standing())


def standings(connection: Connection, destination: str, group: str | None = None) -> dict[str, Standing]:
    """Where all groups of a queue stand, or one of them."""
    found: dict[str, tuple[dict[str, Position], list[Given]]] = {}
    for table, make in ((_POSITIONS, Position), (_MESSAGES, Given)):
        chosen = sa.select(table).where(table.c.destination == destination)
        chosen = chosen if group is None else chosen.where(table.c.consumers == group)
        for row in connection.execute(chosen).mappings():
            values = {name: row[name] for name in make.__dataclass_fields__}
            positions, given = found.setdefault(row["consumers"], ({}, []))
            if make is Position:
                positions[row["query"]] = Position(**values)
            else:
                given.append(Given(**values))
    return {
        name: Standing(positions, sorted(given, key=lambda each: (each.query, each.place)))
        for name, (positions, given) in sorted(found.items())
    }


def find(connection: Connection, destination: str, group: str, **same: object) -> list[Given]:
    """The messages of a group that are not finished and whose columns have these values."""
    wanted = {"destination": destination, "consumers": group, **same}
    chosen = sa.select(_MESSAGES).where(*(_MESSAGES.c[name] == value for name, value in wanted.items()))
    rows = connection.execute(chosen).mappings()
    return [Given(**{name: row[name] for name in Given.__dataclass_fields__}) for row in rows]


def finish(
    connection: Connection, destination: str, group: str, gone: Sequence[Given], *, dead: bool = False
) -> None:
    """Forgets messages that are finished, acknowledged or dead letters, and counts them."""
    write(connection, destination, group, gone=gone)
    counted = _POSITIONS.c["dead" if dead else "finished"]
    for query, count in Counter(each.query for each in gone).items():
        one = {"destination": destination, "consumers": group, "query": query}
        same = (_POSITIONS.c[name] == value for name, value in one.items())
        connection.execute(_POSITIONS.update().where(*same).values({counted: counted + count}))


def write(
    connection: Connection,
    destination: str,
    group: str,
    *,
    positions: Iterable[Position] = (),
    put: Iterable[Given] = (),
    gone: Iterable[Given] = (),
) -> None:
    """Moves positions, puts messages in the place of what was known of them, and forgets those that are `gone`."""
    owner = {"destination": destination, "consumers": group}
    put, moved = list(put), list(positions)
    _delete(connection, _MESSAGES, [{**owner, **_key(each)} for each in (*put, *gone)])
    _delete(connection, _POSITIONS, [{**owner, "query": each.query} for each in moved])
    for table, rows in ((_POSITIONS, moved), (_MESSAGES, put)):
        if rows:
            connection.execute(table.insert(), [{**owner, **asdict(each)} for each in rows])


def move(connection: Connection, destination: str, query: str, version: int, *, back: bool) -> None:
    """No group has been given anything of a query behind `version`; or, not `back`, all have finished what is before it."""
    for group, standing in standings(connection, destination).items():
        known = standing.positions.get(query)
        if known is not None:
            place = min(known.place, (version, END)) if back else max(known.place, (version, END))
            gone = [g for g in standing.given if g.query == query and (g.version > version) is back]
            there = Position(query, *place, known.finished, known.dead)
            write(connection, destination, group, positions=[there], gone=gone)


def drop(connection: Connection, destination: str, group: str) -> None:
    """Forgets a group: one of its name begins anew."""
    for table in TABLES:
        connection.execute(
            table.delete().where(table.c.destination == destination, table.c.consumers == group)
        )


def _key(message: Given) -> dict[str, Any]:
    return {"query": message.query, "version": message.version, "sequence": message.sequence}


def _delete(connection: Connection, table: sa.Table, keys: Sequence[Mapping[str, Any]]) -> None:
    if keys:
        same = sa.and_(*(table.c[name] == sa.bindparam(f"_{name}") for name in keys[0]))
        rows = [{f"_{name}": value for name, value in key.items()} for key in keys]
        connection.execute(table.delete().where(same), rows)
