"""Whether a refresh's keys are looked up in a huge table or meshed with a scan of it: what the cost model says, and why."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from cq_engine.core.options import JOIN
from cq_engine.mesh.cost import Tuning
from cq_engine.refresh.look_up_costs import Asking, LookUpCosts

__all__ = ["Choice", "Plan", "size"]


@dataclass(frozen=True)
class Plan:
    """What would serve look-ups in a table, and why, with what the cost model says of the mesh."""

    table: str
    mesh: bool
    why: str
    tuning: Tuning
    pages: int
    measured: bool
    """Does the model know this table from reads of it?"""

    def __str__(self) -> str:
        t = self.tuning
        chosen = "mesh" if self.mesh else "look-ups"
        factors = "factors measured" if self.measured else "factors not measured yet"
        return (
            f"{self.table}: {chosen}, {self.why}; mesh of {self.pages} pages, {t.chunk} at a time, window of {t.window:.0f} keys,"
            f" {size(t.memory)}, predicted {t.rate:.0f} keys/s, cycle {t.cycle:.3f} s ({factors})"
        )


@dataclass(frozen=True)
class Choice:
    """Of one table, for one refresh."""

    table: str
    join: str
    """The query's option."""
    costs: LookUpCosts
    copied: float
    """The share of the table's rows whose columns have copies for look-ups; of `join = 'auto'`."""
    look_up_files: int
    """The most that look-ups open."""
    tuning: Tuning
    pages: int
    waiting: int
    """How many batches share the scan already, or wait to."""
    measured: bool

    def plan(self, asking: Asking | None) -> Plan:
        """Look-ups or the mesh; without keys, since the condition is no equality, the alternative is a scan by Spark."""
        chosen, why = True, f"WITH ({JOIN} = 'mesh') asks for it"
        if self.join == "auto" and asking is None:
            why = "the condition is no equality, and Spark would scan the table, too"
        elif self.join == "auto" and asking is not None and asking.files > self.look_up_files:
            why = f"{asking.files} files are too many for look-ups"
        elif self.join == "auto" and asking is not None:
            scanned, looked_up = self._scanned(asking), self._looked_up(asking)
            chosen = scanned < looked_up
            why = f"{asking.keys} keys in {asking.pages} pages, {scanned:.3f} s by a scan, {looked_up:.3f} s by look-ups"
        return Plan(self.table, chosen, why, self.tuning, self.pages, self.measured)

    def may_mesh(self, asking: Asking) -> bool:
        """Is there a number of pages for which the mesh would be chosen, between one of each file and all of them? Both costs are linear
        in the pages, so that neither is less in between where it is less at neither end. Who is told that there is none need not count."""
        return any(self.plan(asking._replace(pages=count)).mesh for count in (asking.files, self.pages))

    def learn(self, look_up: Callable[[], pa.Table | None], asking: Asking) -> pa.Table | None:
        """What the look-up gives; what it costs is noted."""
        started = time.perf_counter()
        rows = look_up()
        if rows is not None:
            self.costs.learn(asking.keys, asking.pages, self.copied, time.perf_counter() - started)
        return rows

    def _scanned(self, asking: Asking) -> float:
        """Seconds of a scan, which others share."""
        cycles = max(1.0, asking.keys / max(1.0, self.tuning.window))
        return asking.pages * self._page * cycles / (1 + self.waiting)

    def _looked_up(self, asking: Asking) -> float:
        return self.costs.seconds(asking, self.copied, self._page)

    @property
    def _page(self) -> float:
        """Seconds of a page of the scan."""
        return self.tuning.cycle / max(1, self.pages)


def size(count: float) -> str:
    """
    >>> size(3 * 2**20)
    '3.0 MB'
    """
    return f"{count / 2**10:.0f} KB" if count < 2**20 else f"{count / 2**20:.1f} MB"
