"""The kinds of fault, where each can happen, and one that is armed."""

from __future__ import annotations

import errno
import os
import random
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.exc import OperationalError

from cq_engine.catalog.storage import local
from cq_engine.core import faults

KINDS: dict[str, str] = {
    "SIGKILL": "the process is killed",
    "SIGINT": "Ctrl-C",
    "ENOSPC": "the disk is full from here to the end of the statement",
    "EIO": "the device fails from here to the end of the statement",
    "torn": "the power fails: the process is killed, and every file that was not made durable is cut or empty",
    "delay": "another thread works on the warehouse meanwhile",
    "lost": "PostgreSQL ends all connections",
    "pause": "the process is stopped until another has taken the warehouse over, and goes on then",
}

_CATALOG = ("catalog.begin", "catalog.before_commit", "open.migrating")
_WRITES = (
    *_CATALOG, "file.begin", "file.written", "publish.commit", "vacuum.remove", "cache.write", "archive.written",
)  # fmt: skip
"""Where the system is about to write, so that a full disk is noticed."""
_LAST = ("commit.after_catalog", "compact.after_catalog")
_INSIDE = (
    "catalog.before_commit", "commit.before_catalog", "refresh.before_catalog", "deliver.before_cursor",
    "open.migrating",
)  # fmt: skip
_APART = ("cache.write", "archive.written", "open.migrated")


def why_not(point: str, kind: str) -> str:
    """Why a fault of this kind cannot happen at a point; empty where it can."""
    if point.startswith(("create.", "sweep.")):
        return "only with Spark"
    if point.startswith("mesh."):
        return "only in a mesh join, see tests/mesh"
    if kind in ("ENOSPC", "EIO") and point in _LAST:
        return "nothing is written after it"
    if kind == "pause" and point in _INSIDE:
        return "nobody can take the warehouse over while its catalog is locked"
    if (kind == "pause" and point in _APART) or (kind == "lost" and point in _APART[:2]):
        return "it does not concern the warehouse"
    return ""


@dataclass
class Armed:
    """A fault at the `hit`-th time that a point is reached; `met` says whether it has happened."""

    point: str
    kind: str
    hit: int
    act: Callable[[], None] | None = None
    """What `delay` and `lost` do."""
    met: bool = False
    reached: int = 0
    failing: bool = False

    def __call__(self, name: str, file: Path | None = None) -> None:
        """In the place of `faults.point`."""
        if self.failing and name in _WRITES:
            self._fail(name, file)
        if name != self.point or threading.current_thread() is not threading.main_thread():
            return
        self.reached += 1
        if self.reached != self.hit:
            return
        if self.kind in ("ENOSPC", "EIO"):
            self.failing = True
            if name in _WRITES:
                self._fail(name, file)
            return
        self.met = True
        if self.kind in ("SIGKILL", "torn"):
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.kind == "pause":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif self.kind == "SIGINT":
            signal.raise_signal(signal.SIGINT)
        elif self.act is not None:
            self.act()
            if self.kind == "lost" and name == "catalog.after_commit":  # the answer to COMMIT does not come
                raise OperationalError("COMMIT", {}, OSError("the connection is lost"))

    def _fail(self, name: str, file: Path | None) -> None:
        self.met = True
        number = errno.ENOSPC if self.kind == "ENOSPC" else errno.EIO
        if name in _CATALOG:
            said = "database or disk is full" if number == errno.ENOSPC else "disk I/O error"
            raise OperationalError("COMMIT", {}, sqlite3.OperationalError(said))
        if file is not None and file.exists():  # half of it was written
            os.truncate(file, file.stat().st_size // 2)
        raise OSError(number, os.strerror(number))


@contextmanager
def armed(fault: Armed | None) -> Iterator[None]:
    """A block with the fault in it."""
    if fault is None:
        yield
        return
    before = faults.point
    faults.point = fault  # type: ignore[assignment]
    try:
        yield
    finally:
        faults.point = before


def note_durable(note: Path) -> None:
    """From now on this process writes down which files it has made durable."""
    make = local.make_durable
    handle = os.open(note, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def noted(path: Path, top: Path) -> None:
        make(path, top)
        os.write(handle, f"{path}\n".encode())

    local.make_durable = noted


def power_cut(warehouse: Path, before: dict[Path, int], note: Path, chance: random.Random) -> list[Path]:
    """Cuts or empties what has come since `before` (path → time of change) and was not made durable; what that was."""
    durable = set(note.read_text().splitlines()) if note.exists() else set()
    torn = []
    for path in sorted(data_files(warehouse)):
        stat = path.stat()
        if before.get(path) != stat.st_mtime_ns and str(path) not in durable:
            os.truncate(path, chance.choice([0, stat.st_size // 2]))
            torn.append(path)
    return torn


def data_files(warehouse: Path) -> dict[Path, int]:
    """Every file but the catalog's, which SQLite keeps whole by itself."""
    return {
        path: path.stat().st_mtime_ns
        for path in warehouse.rglob("*")
        if path.is_file() and not path.name.startswith("catalog.db")
    }
