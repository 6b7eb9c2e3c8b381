"""One call for rows of a mesh: whether they are still wanted, and what was done for it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from cq_engine.core.errors import CQError
from cq_engine.mesh.counters import Counters

__all__ = ["Run"]


@dataclass(eq=False)
class Run:
    """A call for rows, which waits in a scan that it shares with others.

    Attributes:
        done: what was done for this call: its own keys, the reads that met some of them, and the rows that it got. A read that
            several calls share counts for each; the peak is that of the structures that they share, while this call took part.
        given_up: set where nobody wants the rows any more; who waits for them gets a CQError after the next read.
    """

    done: Counters = field(default_factory=Counters)
    given_up: threading.Event = field(default_factory=threading.Event)

    def check(self) -> None:
        """Raises CQError where it was given up."""
        if self.given_up.is_set():
            raise CQError("the rows of a mesh join are not wanted any more")
