"""What a refresh did, for EXPLAIN ANALYZE: its form, what it read, and how long its steps took."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from cq_engine.catalog.model import VersionedTable
from cq_engine.planner.forms import Decision, LookUp
from cq_engine.refresh.mesh import MeshRun
from cq_engine.refresh.shedding import Shed

__all__ = ["Read", "Report"]


@dataclass(frozen=True)
class Read:
    """Rows that a refresh read of one table or state. `files` is 0 for what is in memory or in the catalog.

    `how` is changes, look-up, mesh, memory or scan; of a scan the rows are those of the files, before Spark skips any.
    """

    what: str
    how: str
    rows: int
    files: int = 0

    def __str__(self) -> str:
        files = "" if self.how == "memory" else f" in {self.files} files"
        return f"{self.what}, {self.how}: {self.rows} rows{files}"


@dataclass
class Report:
    """Filled while the refresh runs; `steps` are (name, seconds) in order."""

    decision: Decision = field(default_factory=Decision)
    run: str = ""
    """Who ran the plan, and why."""
    look_ups: list[LookUp] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    meshes: list[MeshRun] = field(default_factory=list)
    """What came from scans that changes share."""
    shed: Shed | None = None
    """What was left out of the result, where the query may leave rows out."""
    in_arrow: list[str] = field(default_factory=list)
    """The statements that the driver evaluated without Spark."""
    steps: list[tuple[str, float]] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """How many rows have been read so far."""
        return sum(read.rows for read in self.reads)

    def note(self, table: VersionedTable, how: str, rows: int, files: int = 0) -> None:
        """Adds a read of a table or state."""
        self.reads.append(Read(table.name, how, rows, files))

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Times the block."""
        started = time.monotonic()
        yield
        self.steps.append((name, time.monotonic() - started))
