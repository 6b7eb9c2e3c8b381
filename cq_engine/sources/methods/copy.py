"""USING COPY and USING VIEW (Carnes & Hanson §3.4 MDS and §3.7 VBD): all rows of the source beside all rows of the table.

The table is itself the copy that the paper keeps: what differs is found by a full outer join of the two. `copies/` keeps one
at the source.
"""

from __future__ import annotations

from cq_engine.sources.methods.relational import Asked, Relational
from cq_engine.sources.tick import Tick

__all__ = ["Copy"]


class Copy(Relational):
    """Has no position: every tick begins anew."""

    def ask(self, tick: Tick, asked: Asked) -> None:
        with asked.database.connect() as session:
            tick.replace(asked.whole(session, tick.columns), {})
