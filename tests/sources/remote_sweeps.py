"""Ticks of sweeps over real sources without Spark: the view is a bag, and what is durable are its states and positions."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from cq_engine.catalog import apply
from cq_engine.catalog.model import CatalogState, DeclaredSource
from cq_engine.catalog.sources import put_source
from cq_engine.core.limits import Limits
from cq_engine.grammar import CreateTable, parse
from cq_engine.sources.remote.channel import Channel, LogChannels, opened
from cq_engine.sources.remote.log import Token
from cq_engine.sources.remote.view import RemoteView
from cq_engine.sources.sql.select import image
from cq_engine.sources.sweep.maintain import Maintainer
from cq_engine.sources.sweep.model import Consistency
from tests.sources.remote_worlds import NAMES, Bag, World
from tests.sources.sweep.evaluated import evaluate, step_deltas

__all__ = ["Died", "Sweeps"]

VIEW = (
    "SELECT r.a AS a, s.y AS y, t.n AS n, r.x AS x, s.k AS k, t.z AS z FROM r AS r, s AS s, t AS t"
    " WHERE (r.b = s.b) AND (t.k = s.k) AND (r.a <> 3) AND (t.z + s.y < 11)"
)


class Died(Exception):
    """In the place of a process that ends."""


@dataclass
class Sweeps:
    """The query of a world, maintained at a level of consistency. What is not in `seen` and `positions` a process forgets."""

    world: World
    level: Consistency
    seen: list[Bag] = field(default_factory=list)
    positions: dict[str, Token] = field(default_factory=dict)
    compensations: int = 0
    most: int = Limits().sweep_rows
    """Changes that are taken at once."""

    def __post_init__(self) -> None:
        state = CatalogState()
        for name, shop in zip(NAMES, self.world.shops):
            state = put_source(state, DeclaredSource(f"at_{name}", shop.kind, (("url", shop.url),)))
            made = parse(self.world.declaration(name))
            assert isinstance(made, CreateTable)
            state = apply.create_table(state, made, 0)
        self.state = state
        self.view = RemoteView.read(state, VIEW)

    def opened(self, stack: ExitStack) -> list[Channel]:
        return opened(self.state, self.view, "v_remote", self.most, stack)

    def start(self) -> None:
        """Installs the logs, and reads all rows."""
        with ExitStack() as stack:
            channels = self.opened(stack)
            for channel in channels:
                with channel.database.connect() as session:
                    channel.log.check(session)
                channel.log.install(channel.database)
            self.read_all(channels)

    def read_all(self, channels: list[Channel]) -> None:
        rows = {}
        for channel in channels:
            with channel.database.connect() as session:
                channel.log.hold(session)
                self.positions[channel.name] = channel.log.end(session)
                for alias, (place, wanted) in channel.aliases.items():
                    columns, selection = channel.columns[place], channel.log.selections[place]
                    read = [
                        tuple(row.values())
                        for batch in session.batches(image(selection), columns)
                        for row in batch.to_pylist()
                    ]
                    rows[alias] = [tuple(row[n] for n in wanted) for row in read]
        now = as_result(evaluate(self.view.view, rows))
        if not self.seen or self.seen[-1] != now:
            self.seen.append(now)

    def tick(self, dies: str = "") -> None:
        """Takes what the logs have. Raises Died where the process is to end: `gathered`, or `committed` and nothing else done."""
        with ExitStack() as stack:
            channels = self.opened(stack)
            self._maintain(channels, dies)
            if dies == "committed":
                raise Died
            for channel in channels:
                channel.log.clean(channel.database, self.positions[channel.name])

    def _maintain(self, channels: list[Channel], dies: str) -> None:
        for channel in channels:
            channel.tokens = [self.positions[channel.name]]
        begin = {channel.name: 0 for channel in channels}
        maintainer = Maintainer(self.view.view, begin, LogChannels(channels), self.level)
        delta = maintainer.run()
        if delta is None:
            self.positions = {channel.name: channel.tokens[0] for channel in channels}
            return
        if dies == "gathered":
            raise Died
        self.compensations += delta.counts.compensations
        now = self.seen[-1]
        for change in step_deltas(self.view.view, delta):
            after = now.copy()
            after.update(as_result(change))
            assert min(after.values(), default=0) >= 0
            after = +after
            if after != now:
                self.seen.append(after)
            now = after
        reached = delta.steps[-1].positions
        self.positions = {channel.name: channel.tokens[reached[channel.name]] for channel in channels}

    def end(self) -> None:
        """Removes the logs."""
        with ExitStack() as stack:
            for channel in self.opened(stack):
                channel.log.remove(channel.database)


def as_result(joined: Counter[Any]) -> Bag:
    """The columns of the result, of the rows that its other conditions hold for."""
    found: Bag = Counter()
    for ((a, _, x), (_, k, y), (n, _, z)), count in joined.items():
        if a != 3 and z is not None and z + y < 11:
            found[a, y, n, x, k, z] += count
    return found
