"""The lease: which process may write to a warehouse.

One row of the catalog names the holder and an epoch, which grows with every change of hands. Every write transaction
updates that row under the condition "epoch is mine": so it locks the row, shows that the holder lives, and fails
where another process has taken over. Times are real times, not the injected clock's.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import SQLAlchemyError

from cq_engine.catalog import schema
from cq_engine.catalog.schema import Database, stale
from cq_engine.core.errors import LeaseError
from cq_engine.core.limits import DEFAULT_LIMITS, Limits

__all__ = ["Holder", "Lease"]


@dataclass(frozen=True)
class Holder:
    """A process. `machine` is where its `pid` means something: host, boot and, on Linux, the pid namespace."""

    pid: int
    start: str
    host: str
    machine: str
    since: str
    label: str = ""

    @classmethod
    def this_process(cls, label: str | None) -> Holder:
        pid = os.getpid()
        since = datetime.now(timezone.utc).isoformat(timespec="seconds")
        return cls(pid, _process_start(pid) or "", socket.gethostname(), _machine(), since, label or "")

    def is_dead(self) -> bool:
        """True only where it is known: the process ran on this machine and is gone, or its pid is another's now."""
        return self.machine == _machine() and _process_start(self.pid) != self.start

    def __str__(self) -> str:
        label = f" ({self.label})" if self.label else ""
        return f"process {self.pid}{label} on {self.host}, since {self.since}"


class Lease:
    """This process's lease on the warehouse of one catalog database."""

    def __init__(self, database: Database, epoch: int, limits: Limits) -> None:
        self.epoch = epoch
        self._pause = limits.heartbeat_seconds
        self._database = database
        self._stop = threading.Event()
        self._beat = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="cq-lease", daemon=True)
        self._thread.start()

    @classmethod
    def take(cls, database: Database, label: str | None, limits: Limits = DEFAULT_LIMITS) -> Lease:
        """Takes the lease, from a dead holder too. LeaseError names a holder that lives."""
        with database.writing() as connection:
            row = connection.execute(sa.select(schema.lease).with_for_update()).one()
            now = database.now(connection)
            if row.holder:
                holder = Holder(**json.loads(row.holder))
                if not holder.is_dead() and now - row.heartbeat < limits.lease_seconds * 1_000_000:
                    raise LeaseError(
                        f"the warehouse is in use by {holder}",
                        detail=f"one process writes to a warehouse at a time; last sign of life"
                        f" {max(0, now - row.heartbeat) // 1_000_000} s ago",
                        hint="end that process, or open the warehouse with read_only=True",
                    )
            epoch = int(row.epoch) + 1
            holder_text = json.dumps(asdict(Holder.this_process(label)))
            connection.execute(schema.lease.update().values(epoch=epoch, holder=holder_text, heartbeat=now))
        return cls(database, epoch, limits)

    def guard(self, connection: Connection, seen: int | None = None) -> None:
        """First in every write transaction, whose end others then wait for: LeaseError unless the lease is still ours.

        `seen` is given where the write changes what processes keep in memory: the generation that the writer's memory
        has. ConflictError where the database is at another one; else it goes on to the next.
        """
        table = schema.lease
        values: dict[str, object] = {"heartbeat": self._database.now(connection)}
        mine = table.update().where(table.c.epoch == self.epoch)
        if seen is not None:
            mine = mine.where(table.c.generation == seen)
            values["generation"] = seen + 1
        if connection.execute(mine.values(**values)).rowcount != 1:
            self.check(connection)
            raise stale("the catalog")
        self._beat.set()

    def check(self, connection: Connection) -> None:
        """LeaseError unless the lease is still ours."""
        row = connection.execute(sa.select(schema.lease)).one()
        if row.epoch != self.epoch:
            taken = f"{Holder(**json.loads(row.holder))} took it over" if row.holder else "it was given back"
            raise LeaseError(
                "this process no longer holds the warehouse",
                detail=f"{taken}; nothing was written",
                hint="open the warehouse again",
            )

    def release(self) -> None:
        """Gives the lease back, if it is still ours."""
        self._stop.set()
        self._thread.join(timeout=20)
        table = schema.lease
        with self._database.writing() as connection:
            connection.execute(table.update().where(table.c.epoch == self.epoch).values(holder=""))

    def _keep(self) -> None:
        table = schema.lease
        while not self._stop.wait(self._pause):
            if self._beat.is_set():  # a write since the last time was a sign of life
                self._beat.clear()
                continue
            try:
                with self._database.writing() as connection:
                    now = self._database.now(connection)
                    found = connection.execute(
                        table.update().where(table.c.epoch == self.epoch).values(heartbeat=now)
                    )
            except SQLAlchemyError:  # the next beat, or the next write, will say so if it lasts
                continue
            if found.rowcount != 1:
                return


def _process_start(pid: int) -> str | None:
    """When the process `pid` of this machine started, as opaque text; None where there is none."""
    if Path("/proc/self/stat").exists():
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        fields = stat.rpartition(")")[2].split()
        return None if fields[0] == "Z" else fields[19]
    found = subprocess.run(  # noqa: S603 - a fixed program and a number
        ["/bin/ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or None


def _machine() -> str:
    parts = [socket.gethostname()]
    try:
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    except OSError:  # not Linux: the host name must do
        pass
    return "|".join(parts)
