"""The sliding window of a mesh join: later commits enter the scan while an earlier part of the log is refreshed.

A part of the log is an interval of commits, as many as fit. Its refresh can begin only when the one before is written; but which rows of the
huge tables it needs follows from its change rows, and gathering them takes a whole scan. So the next parts gather theirs meanwhile, each in
a thread that waits in the scan that all of them share. The rows are kept by the binder of the part, with which its refresh goes on.

What needs the rows of a statement that has not run (a join over a stored aggregate) is not prefetched; the refresh itself asks for it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from cq_engine.algebra.nodes import Given, History, Node, StateRows, children
from cq_engine.catalog.model import ContinuousQuery
from cq_engine.core.calls import carried
from cq_engine.core.errors import CQError
from cq_engine.core.interrupts import taken
from cq_engine.planner.compiled import Compiled
from cq_engine.planner.delta_plan import DeltaPlan
from cq_engine.refresh.binding import IntervalBinder
from cq_engine.refresh.choice import Choice
from cq_engine.refresh.interval import Interval
from cq_engine.refresh.report import Report

__all__ = ["Part", "Prefetch"]


@dataclass
class Part:
    """An interval, how it will be run, and the binder that gathers its rows."""

    interval: Interval
    choice: Choice
    binder: IntervalBinder
    report: Report
    failed: bool = False
    _done: threading.Event = field(default_factory=threading.Event)

    def start(self, plan: DeltaPlan) -> None:
        """Gathers in a thread."""
        threading.Thread(target=carried(self._gather), args=(plan,), name="cq-mesh-prefetch").start()

    def wait(self) -> bool:
        """Returns when the rows are gathered; False where that failed, so that the refresh has to ask for them itself."""
        try:
            self._done.wait()
        except BaseException:  # Ctrl-C
            self.give_up()
            raise
        return not self.failed

    def give_up(self) -> None:
        """Nobody will use the rows: they are gathered no further."""
        self.binder.rows.given_up.set()

    def _gather(self, plan: DeltaPlan) -> None:
        try:
            statements = [*(stage.statement for stage in plan.stages), plan.statement]
            for statement in statements:
                for leaf in statement.leaves:
                    if self.binder.rows.given_up.is_set():
                        return
                    if isinstance(leaf, History) and not _waits(leaf, set()):
                        self.binder.source_rows(leaf)
        except Exception:  # noqa: BLE001 - the refresh meets the same error, where somebody sees it
            self.failed = True
        finally:
            self._done.set()


class Prefetch:
    """The parts of one query's log that are prefetched, in order. Thread-safe."""

    def __init__(self) -> None:
        self._parts: deque[Part] = deque()
        self._definition: tuple[ContinuousQuery, Compiled] | None = None
        """Of the query for which they were planned."""
        self._begun = 0
        """The parts behind that version are those of refreshes that have not begun."""
        self._guard = threading.Lock()

    def take(self, query: ContinuousQuery, compiled: Compiled, a: int, upto: int) -> Part | None:
        """The part that begins behind version `a`, when its rows are gathered; None where there is none up to `upto`, or
        that failed. What was planned for another position, or another definition, whose states may be others, is forgotten."""
        with self._guard:
            first = self._parts[0].interval if self._parts else None
            fits = first is None or (first.a == a and first.b <= upto)
            if not fits or not self._is_of(query, compiled):
                self._give_up()
                self._definition = query, compiled
            part = self._parts.popleft() if self._parts else None
            self._begun = a if part is None else part.interval.b
        if part is None or part.wait():
            return part
        self.clear()
        return None

    def _is_of(self, query: ContinuousQuery, compiled: Compiled) -> bool:
        known = self._definition
        return known is not None and known[1] is compiled and known[0] == query

    def clear(self) -> None:
        """Gives all parts up."""
        with self._guard:
            self._give_up()

    def _give_up(self) -> None:
        while self._parts:
            self._parts.popleft().give_up()

    def fill(
        self,
        query: ContinuousQuery,
        compiled: Compiled,
        a: int,
        most: int,
        make: Callable[[int], Part | None],
    ) -> None:
        """Plans parts behind `a` until there are `most`; `make` gives the one that begins behind a version, or None. Nothing
        where a later refresh has begun meanwhile."""
        # The refresh meets the same error, where somebody sees it.
        with suppress(CQError), taken(self._guard) as alone:
            while alone and self._is_of(query, compiled) and a >= self._begun and len(self._parts) < most:
                part = make(self._parts[-1].interval.b if self._parts else a)
                if part is None:
                    return
                self._parts.append(part)


def _waits(node: Node, seen: set[int]) -> bool:
    """Does it depend on rows of statements that have not run, or of states that are not there yet?"""
    if id(node) in seen:
        return False
    seen.add(id(node))
    if isinstance(node, (Given, StateRows)):
        return True
    leaves: list[Node] = []
    if isinstance(node, History):
        leaves = [each.leaf for filters in (node.filters, *node.among) for each in filters]
    return any(_waits(each, seen) for each in (*leaves, *children(node)))
