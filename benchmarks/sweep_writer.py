"""Somebody who updates one table at a source, so many rows a second, each in a transaction of its own.

    python benchmarks/sweep_writer.py sqlite:////data/a.db orders oid 20000 100 10 7     # table, key, keys, a second, seconds, seed

Each row gets the moment of its write, in microseconds of Unix. Prints how many updates there were, how long they took, and the
last moment.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Sequence

import sqlalchemy as sa


def main(argv: Sequence[str]) -> None:
    """Writes, and prints what it has written."""
    url, table, key, keys, rate, seconds, seed = argv
    dice, moment, done = random.Random(int(seed)), 0, 0
    database = connected(url)
    update = sa.text(f"UPDATE {table} SET sent = :moment WHERE {key} = :key")
    begun, wanted = time.monotonic(), int(float(rate) * float(seconds))
    with database.connect() as connection:
        while done < wanted and time.monotonic() < begun + 2 * float(seconds):
            time.sleep(max(0.0, begun + done / float(rate) - time.monotonic()))
            moment = max(moment + 1, time.time_ns() // 1000)
            connection.execute(update, {"moment": moment, "key": dice.randrange(int(keys))})
            connection.commit()
            done += 1
    print(done, time.monotonic() - begun, moment)


def connected(url: str) -> sa.Engine:
    """A database, where SQLite leaves it to the system when what is written comes to the disk."""
    database = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    if database.dialect.name == "sqlite":

        @sa.event.listens_for(database, "connect")
        def hasty(connection: sa.engine.interfaces.DBAPIConnection, _: object) -> None:
            cursor = connection.cursor()
            for setting in ("journal_mode = WAL", "synchronous = OFF", "busy_timeout = 30000"):
                cursor.execute(f"PRAGMA {setting}")

    return database


if __name__ == "__main__":
    main(sys.argv[1:])
