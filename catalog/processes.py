"""The processes that have a warehouse open to write: each has a number, a row with signs of life, and what it still reads.

A process says with every heartbeat the lowest version that it reads or will read (`held`). It may begin to read at any
later one without saying so, which is why a read needs no write. Who has the duties removes nothing that a row still
needs, unless the process was silent for `Limits.lease_seconds`. The row of a process that has ended is removed with its
attempts and callbacks. Of a process on another machine nobody knows: it is taken for dead after that silence, and gets
another number when it goes on nevertheless.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from cq_engine.catalog import schema
from cq_engine.catalog.lease import Holder

__all__ = [
    "Process",
    "Reads",
    "beat",
    "dead",
    "has",
    "listed",
    "lowest_held",
    "read_since",
    "register",
    "remove",
]


@dataclass(frozen=True)
class Reads:
    """What a process reads: `held` and after are versions, `clear` is the moment after which its statements began."""

    held: int
    transactions: int
    clear: int

    @classmethod
    def of(cls, reads: tuple[int, int, float], now: int) -> Reads:
        """From the version, the number, and the seconds since the oldest statement began."""
        held, transactions, seconds = reads
        return cls(held, transactions, now - int(seconds * 1_000_000))


@dataclass(frozen=True)
class Process:
    """One row: a process, and when it gave its last sign of life."""

    number: int
    holder: Holder
    heartbeat: int
    held: int
    transactions: int


def register(connection: Connection, mine: Holder, now: int, reads: Reads) -> int:
    """A row for this process; its number."""
    row = {"holder": mine.to_text(), "heartbeat": now, **_values(reads)}
    (number,) = connection.execute(schema.processes.insert().values(**row)).inserted_primary_key or (0,)
    return int(number)


def has(connection: Connection, number: int) -> bool:
    """Whether the process is on the list."""
    found = sa.select(schema.processes.c.id).where(schema.processes.c.id == number)
    return connection.execute(found).scalar() is not None


def beat(connection: Connection, number: int, now: int, reads: Reads) -> None:
    """A sign of life."""
    mine = schema.processes.update().where(schema.processes.c.id == number)
    connection.execute(mine.values(heartbeat=now, **_values(reads)))


def _values(reads: Reads) -> dict[str, int]:
    return {"held": reads.held, "transactions": reads.transactions, "clear": reads.clear}


def listed(connection: Connection) -> list[Process]:
    """All rows, in the order in which the processes came."""
    table = schema.processes
    return [
        Process(row.id, Holder.of(row.holder), row.heartbeat, row.held, row.transactions)
        for row in connection.execute(sa.select(table).order_by(table.c.id))
    ]


def dead(connection: Connection, now: int, seconds: float) -> list[int]:
    """The numbers of processes that have ended: it is known of those of this machine, and believed of those of others that
    were silent for so long. One that is suspended has not ended."""
    latest = now - seconds * 1_000_000
    return [
        each.number
        for each in listed(connection)
        if (each.holder.is_dead() if each.holder.is_here else each.heartbeat <= latest)
    ]


def remove(connection: Connection, numbers: Sequence[int]) -> None:
    """Takes processes off the list; what they asked for is not done any more."""
    connection.execute(schema.processes.delete().where(schema.processes.c.id.in_(numbers)))
    connection.execute(schema.requests.delete().where(schema.requests.c.process.in_(numbers)))


def lowest_held(connection: Connection, mine: int, since: int) -> int | None:
    """The lowest version that another process reads; None where no other has given a sign of life after `since`."""
    found: int | None = connection.execute(_of_others(schema.processes.c.held, mine, since)).scalar()
    return found


def read_since(connection: Connection, mine: int, since: int) -> int | None:
    """The moment before which no statement of another process began; None as in `lowest_held`."""
    found: int | None = connection.execute(_of_others(schema.processes.c.clear, mine, since)).scalar()
    return found


def _of_others(column: sa.Column[int], mine: int, since: int) -> sa.Select[Any]:
    processes = schema.processes.c
    return sa.select(sa.func.min(column)).where(processes.id != mine, processes.heartbeat > since)
