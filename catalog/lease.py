"""The lease: which of the processes that write to a warehouse has its duties (refreshes, delivery, merges, publishing,
vacuum).

One row of the catalog names the holder, by its number among the processes (catalog/processes.py), and an epoch, which grows
with every change of hands. Every write transaction locks that row, which keeps others from writing meanwhile; one that
belongs to the duties fails where the epoch is not the writer's. Times are real times, not the injected clock's.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from cq_engine.catalog import journal, schema
from cq_engine.core.errors import LeaseError

__all__ = ["Held", "Holder", "locked", "look", "release", "take"]


@dataclass(frozen=True)
class Holder:
    """A process. `machine` is where its `pid` means something: host, boot and, on Linux, the pid namespace."""

    pid: int
    start: str
    host: str
    machine: str
    since: str
    label: str = ""
    yields: bool = False
    """Whether it leaves the duties to any process that does them by itself."""

    @classmethod
    def this_process(cls, label: str | None, *, yields: bool = False) -> Holder:
        pid = os.getpid()
        since = datetime.now(timezone.utc).isoformat(timespec="seconds")
        return cls(
            pid, _process_start(pid) or "", socket.gethostname(), _machine(), since, label or "", yields
        )

    @classmethod
    def of(cls, text: str) -> Holder:
        return cls(**json.loads(text))

    def to_text(self) -> str:
        return json.dumps(asdict(self))

    @property
    def is_here(self) -> bool:
        """Whether it is, or was, a process of this machine, so that it is known whether it is alive."""
        return self.machine == _machine()

    def is_dead(self) -> bool:
        """True only where it is known: the process ran on this machine and is gone, or its pid is another's now."""
        return self.is_here and _process_start(self.pid) != self.start

    def __str__(self) -> str:
        label = f" ({self.label})" if self.label else ""
        return f"process {self.pid}{label} on {self.host}, since {self.since}"


@dataclass(frozen=True)
class Held:
    """Who has the duties (None where nobody has), under which epoch, and the last sign of life."""

    epoch: int
    holder: Holder | None
    heartbeat: int
    number: int = 0
    """The holder's among the processes; 0 where there is none."""

    def is_free(self, now: int, seconds: float) -> bool:
        """Whether the duties can be taken: nobody has them, or who has them is dead or has been silent for too long."""
        if self.holder is None or self.holder.is_dead():
            return True
        return now - self.heartbeat >= seconds * 1_000_000

    def refusal(self, now: int) -> LeaseError:
        """Why another process does not get them."""
        silent = max(0, now - self.heartbeat) // 1_000_000
        return LeaseError(
            f"the warehouse is in use by {self.holder}",
            detail=f"one process has the duties of a warehouse at a time; last sign of life {silent} s ago",
            hint="end that process, or open the warehouse with duties=False (cq --no-duties): it can commit, too",
        )


def look(connection: Connection) -> Held:
    """The lease as it is. The signs of life are those of the holder as a process."""
    lease, processes = schema.lease, schema.processes
    joined = lease.outerjoin(processes, processes.c.id == lease.c.process)
    chosen = sa.select(lease.c.epoch, processes.c.id, processes.c.holder, processes.c.heartbeat)
    row = connection.execute(chosen.select_from(joined)).one()
    if row.id is None:
        return Held(row.epoch, None, 0)
    return Held(row.epoch, Holder.of(row.holder), row.heartbeat, row.id)


def locked(connection: Connection) -> tuple[int, int]:
    """Epoch and generation in a write transaction, for whose end other writers then wait."""
    epoch = connection.execute(sa.select(schema.lease.c.epoch).with_for_update()).scalar_one()
    # The generation is asked for when the lock is ours: only then nobody moves it any more.
    return epoch, journal.newest(connection)


def take(connection: Connection, number: int) -> int:
    """The lease for process `number` under a new epoch, which is returned. Whether it is free the caller has seen in this
    transaction."""
    epoch = look(connection).epoch + 1
    connection.execute(schema.lease.update().values(epoch=epoch, process=number))
    return epoch


def release(connection: Connection, epoch: int) -> None:
    """Gives the lease back, if it is still under this epoch."""
    connection.execute(schema.lease.update().where(schema.lease.c.epoch == epoch).values(process=0))


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
