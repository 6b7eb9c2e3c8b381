"""USING SWEEP: a table of the warehouse has the join of tables that stay at their sources, maintained without a copy of them.

It comes and goes with the continuous query whose part it is. Positions are, by source, which log is installed there, what it was
then, and how far it is read (`sources`); `whole` where the join is to be computed from all rows, as it is first. Both are read in
one state of each source. The rest is Agrawal et al. (SIGMOD 1997): see `cq_engine.sources.sweep`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from typing import Any

from cq_engine.catalog.model import Capture, CatalogState, DeclaredSource, Table
from cq_engine.core import faults
from cq_engine.core.columns import Column
from cq_engine.core.errors import ConflictError, CQError, SourceError, SourceUnavailableError
from cq_engine.core.limits import Limits
from cq_engine.refresh.sweeps import Mark, marks_after
from cq_engine.sources.bulk import merge, spool
from cq_engine.sources.methods.base import Method, Place
from cq_engine.sources.remote.channel import Channel, LogChannels, opened
from cq_engine.sources.remote.evaluate import changes_of
from cq_engine.sources.remote.log import GapError
from cq_engine.sources.remote.view import RemoteView
from cq_engine.sources.sql.installed import LAYOUT, differences
from cq_engine.sources.sql.select import image
from cq_engine.sources.sweep.maintain import Maintainer
from cq_engine.sources.sweep.model import Bounds, Consistency, Counts, Delta, TooStaleError
from cq_engine.sources.tick import Tick
from cq_engine.spark.sql import fresh_name, run_sql, translate_errors
from cq_engine.transactions.transaction import Transaction

__all__ = ["SWEEP", "Sweep", "figures", "level_of"]

_log = logging.getLogger(__name__)

SWEEP = "SWEEP"
"""The kind of method."""


def level_of(capture: Capture) -> Consistency:
    """The level of consistency that the query asks for."""
    return Consistency(dict(capture.options)["consistency"])


def figures(position: str) -> Mapping[str, Mapping[str, float]]:
    """What the sweeps of a capture have counted: `last` in the last tick that had something to do, `all` since it was created."""
    found: Mapping[str, Mapping[str, float]] = json.loads(position).get("figures", {}) if position else {}
    return found


class Sweep(Method):
    """The method over the definitions of a catalog."""

    def __init__(self, state: CatalogState) -> None:
        self.state = state

    # ------------------------------------------------------------ coming and going

    def check(
        self, declared: DeclaredSource, capture: Capture, table: Table, place: Place
    ) -> tuple[Capture, list[str]]:
        del declared, table, place
        notes: list[str] = []
        view = RemoteView.read(self.state, capture.method.query or "")
        with self._opened(capture) as channels:
            for channel in channels:
                channel.check_keys(view)
                with channel.database.connect() as session:
                    notes += channel.log.check(session)
        return capture, notes

    def prepare(
        self, declared: DeclaredSource, capture: Capture, table: Table, position: Mapping[str, Any] | None
    ) -> Mapping[str, Any] | None:
        del declared, table
        with self._opened(capture) as channels:
            if position is not None and not any(_changes(channel, position) for channel in channels):
                return None
            sources = {}
            try:
                for channel in channels:
                    sources[channel.name] = {"was": channel.log.install(channel.database), "read": None}
            except BaseException:
                for channel in channels:
                    with suppress(CQError):
                        channel.log.remove(channel.database)
                raise
        return {"sources": sources, "whole": True, "figures": {} if position is None else position["figures"]}

    def release(self, declared: DeclaredSource, capture: Capture, position: Mapping[str, Any] | None) -> None:
        del declared, position
        failure: CQError | None = None
        with self._opened(capture) as channels:
            for channel in channels:
                try:
                    channel.log.remove(channel.database)
                except CQError as error:
                    failure = error
        if failure is not None:
            raise failure

    @contextmanager
    def _opened(self, capture: Capture, most: int = 0) -> Iterator[list[Channel]]:
        view = RemoteView.read(self.state, capture.method.query or "")
        with ExitStack() as stack:
            yield opened(self.state, view, capture.name, most, stack)

    # ------------------------------------------------------------ ticks

    def run(self, tick: Tick, declared: DeclaredSource) -> None:
        del declared
        position = tick.position
        if position is None:
            raise ConflictError(f"the logs of {tick.capture.name} are not installed yet", hint="repeat it")
        view = RemoteView.read(self.state, tick.capture.method.query or "")
        with self._opened(tick.capture, tick.services.limits.sweep_rows) as channels:
            other = any(_check(tick.capture, channel, position) for channel in channels)
            whole = position["whole"] or other
            if not whole:
                try:
                    _maintain(tick, view, channels, position)
                except GapError:
                    _log.warning("%s: a log has a gap; the join is computed anew", tick.capture.name)
                    whole = True
            if whole:
                _compute(tick, view, channels, position)
            reached = tick.position or position
            for channel in channels:
                channel.log.clean(channel.database, reached["sources"][channel.name]["read"])


def _changes(channel: Channel, position: Mapping[str, Any]) -> list[str]:
    """What is not as it was at a source, in words."""
    with channel.database.connect() as session:
        return differences(position["sources"][channel.name]["was"], channel.log.state(session))


def _check(capture: Capture, channel: Channel, position: Mapping[str, Any]) -> bool:
    """Whether a table was emptied or altered at its source. Raises SourceError where what is installed is not as it was."""
    found: list[bool] = []

    def compare(was: Mapping[str, str], now: Mapping[str, str]) -> None:
        reasons = differences(was, now)
        if reasons:
            raise SourceError(
                f"what {capture.name} has installed or reads at source {channel.name} is not as it was",
                detail="; ".join(reasons),
                hint=f"ALTER CAPTURE {capture.name} RESUME installs it again, and computes the join anew",
            )
        found.append(was[LAYOUT] != now[LAYOUT])

    channel.check(position["sources"][channel.name]["was"], compare)
    return found[0]


def _bounds(limits: Limits) -> Bounds:
    return Bounds(
        together=limits.sweep_updates,
        absorbed=limits.sweep_updates,
        rows=limits.sweep_rows,
        keys=limits.sweep_keys,
        history=limits.pending_rows,
    )


def _maintain(tick: Tick, view: RemoteView, channels: list[Channel], position: Mapping[str, Any]) -> None:
    """What the logs have is a delta of the table, at the level of consistency that the query asks for."""
    for channel in channels:
        channel.tokens = [position["sources"][channel.name]["read"]]
    bounds, level = _bounds(tick.services.limits), level_of(tick.capture)
    maintainer = Maintainer(view.view, {c.name: 0 for c in channels}, LogChannels(channels), level, bounds)
    counted, wanted, reached = Counts(), dict[str, int](), dict[str, int]()
    while not wanted or any(reached[source] < number for source, number in wanted.items()):
        delta = _run(maintainer)
        if delta is None:
            if not wanted:
                tick.move(_reached(position, channels, {c.name: 0 for c in channels}))
            return
        # What comes later is for the next tick, so that this one ends.
        wanted, reached = (
            wanted or {c.name: len(c.updates) for c in channels},
            dict(delta.steps[-1].positions),
        )
        if any(_check(tick.capture, channel, position) for channel in channels):
            raise GapError
        counted.add(delta.counts)
        faults.point("sweep.gathered")
        tick.read += delta.counts.rows_received
        changes = changes_of(tick.services, view, delta, tick.columns, tick.key)
        faults.point("sweep.evaluated")
        if changes.num_rows > tick.services.limits.apply_rows:
            raise GapError
        after = _reached(position, channels, reached, (counted, _marks(tick)))
        tick.apply({tick.table.name: changes}, after, transactional=True)
        maintainer.committed(delta.steps[-1])


def _run(maintainer: Maintainer) -> Delta | None:
    try:
        return maintainer.run()
    except TooStaleError as error:
        raise SourceUnavailableError(
            f"source {error.source} answers from before what its log has told", hint="it is tried again"
        ) from error
    except ValueError as error:  # two rows with one key: the log does not tell all that happened
        _log.warning("a log contradicts itself: %s", error)
        raise GapError from error


def _reached(
    position: Mapping[str, Any],
    channels: list[Channel],
    positions: Mapping[str, int],
    found: tuple[Counts, list[Mark]] | None = None,
) -> dict[str, Any]:
    """The position after the updates up to these numbers; `found` is what that has cost, and what had been counted before."""
    sources = {c.name: {**position["sources"][c.name], "read": c.tokens[positions[c.name]]} for c in channels}
    known = position["figures"]
    if found is not None:
        last = {name: round(value, 4) for name, value in asdict(found[0]).items()}
        before = known.get("all", {})
        total = {n: round(before.get(n, 0) + value, 4) for n, value in last.items()}
        known = {"last": last, "all": total, "marks": found[1]}
    return {"sources": sources, "whole": False, "figures": known}


def _marks(tick: Tick) -> list[Mark]:
    """What had been counted by each commit that the query has not got to."""
    catalog, name = tick.services.catalog, tick.table.part_of or ""
    known = name.lower() in catalog.state.queries
    return marks_after(tick.status, catalog.status(name).position if known else 0)


def _compute(tick: Tick, view: RemoteView, channels: list[Channel], position: Mapping[str, Any]) -> None:
    """The table gets the join of all rows, each source as it is in one state."""
    reached: dict[str, Any] = {}

    def fill(transaction: Transaction) -> None:
        frames, names = {}, {alias: fresh_name(f"whole_{alias}") for alias in view.tables}
        for channel in channels:
            with channel.lock, channel.database.connect() as session:
                channel.log.hold(session)
                reached[channel.name] = {"was": channel.log.state(session), "read": channel.log.end(session)}
                for place, selection in enumerate(channel.log.selections):
                    columns: tuple[Column, ...] = channel.columns[place]
                    batches = session.batches(image(selection), columns)
                    file = f"{channel.name}_{place}"
                    frame = spool(
                        transaction, tick.table, batches, columns, tick.count, tick.capture.name, file
                    )
                    for alias, (at, _) in channel.aliases.items():
                        if at == place:
                            frames[names[alias]] = frame
        faults.point("sweep.loaded")
        with translate_errors():
            joined = run_sql(tick.services.spark(), view.statement(names), frames)
        merge(transaction, tick.table, joined, tick.columns)

    tick.in_bulk(fill, lambda: {"sources": reached, "whole": False, "figures": position["figures"]})
