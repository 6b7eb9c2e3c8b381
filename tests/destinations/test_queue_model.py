"""Consumers of a queue against a model: any history of commits, takings, acknowledgements, time-outs and crashes.

Promised are: every message at least once to every group, in order per key, each time with the next attempt, to the dead
letters when it was given too often, and nothing is held back that could be given.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as some

from cq_engine.core import faults
from cq_engine.destinations.contract import Crash, crash_point
from cq_engine.destinations.queues.consumer import Consumer
from cq_engine.destinations.queues.message import Message
from tests.destinations.queues import (
    ATTEMPTS,
    QUERIES,
    SECOND,
    VISIBILITY,
    Model,
    Queues,
    key_of,
    name_of,
)
from tests.limits import limit

GROUPS = ("a", "b")
LABELS = ("x", "y", "z")


class History:
    """The queue and the model, side by side."""

    def __init__(self, world: Queues, chance: random.Random) -> None:
        self.world, self.chance = world, chance
        self.models = {group: Model() for group in GROUPS}
        self.consumers: dict[tuple[str, str], Consumer] = {}
        self.held: dict[str, list[tuple[str, Message]]] = {group: [] for group in GROUPS}

    def commit(self) -> None:
        deltas = {
            each.name: [
                (
                    self.chance.choice("IDU" if each.key else "ID"),
                    self.chance.randrange(3),
                    self.chance.choice("vw"),
                )
                for _ in range(self.chance.randrange(4))
            ]
            for each in QUERIES
        }
        version = self.world.commit(deltas)
        for each in QUERIES:
            for sequence, (marker, k, v) in enumerate(deltas[each.name], 1):
                if marker in each.markers:
                    value = f"{v}1" if marker == "U" else f"{v}0"
                    for model in self.models.values():
                        model.add((version, each.name.lower(), sequence), key_of(each, k, value))

    def consumer(self, group: str, label: str) -> Consumer:
        if (group, label) not in self.consumers:
            self.consumers[group, label] = self.world.consumer(group, label)
        return self.consumers[group, label]

    def take(self) -> None:
        group, label = self.chance.choice(GROUPS), self.chance.choice(LABELS)
        self.take_for(group, label, self.chance.choice((1, 2, 5, 50)))

    def take_for(self, group: str, label: str, count: int) -> list[Message]:
        model, now = self.models[group], self.world.clock
        found = self.consumer(group, label).take(count)
        model.exhaust(now)
        for message in found:
            model.given(message, label, now)
            self.held[group].append((label, message))
        if len(found) < count:
            assert model.may_have(label, now) == []
        return found

    def settle(self) -> None:
        group = self.chance.choice(GROUPS)
        if not self.held[group]:
            return
        _label, message = self.held[group].pop(self.chance.randrange(len(self.held[group])))
        model, now = self.models[group], self.world.clock
        each = model.entries[name_of(message)]
        counts = not each.over and each.receipt == message.given.receipt
        kind = self.chance.choice(("ack", "ack", "dead", "requeue"))
        done = message.ack() if kind == "ack" else message.reject(requeue=kind == "requeue")
        assert done is counts
        if counts and kind == "requeue":
            each.due, each.holder, each.receipt = now, "", 0
            for other in model.of_key(name_of(message), behind=True):
                if not other.over and other.receipt:
                    model.take_back(other, now)
        elif counts:
            each.over = "done" if kind == "ack" else "dead"

    def settle_upto(self) -> None:
        """ACK UP TO, as a statement of any process."""
        group = self.chance.choice(GROUPS)
        if not self.held[group]:
            return
        _, message = self.chance.choice(self.held[group])
        model, name = self.models[group], name_of(message)
        holder = model.entries[name].holder if not model.entries[name].over else "sql"
        ids = {each.name.lower(): each.id for each in QUERIES}
        done = [
            e for n, e in model.entries.items()
            if not e.over and (n == name or (holder and e.holder == holder)) and (n[0], ids[n[1]], n[2]) <= (name[0], ids[name[1]], name[2])
        ]  # fmt: skip
        assert self.consumer(group, "sql").finish_upto(message.id) == len(done)
        for each in done:
            each.over = "done"

    def wait(self) -> None:
        self.world.clock += self.chance.choice((SECOND, VISIBILITY // 2, VISIBILITY - SECOND, VISIBILITY))

    def crash(self) -> None:
        """A process dies while it takes messages: before that is durable, or after it; or it forgets what it has."""
        group, label = self.chance.choice(GROUPS), self.chance.choice(LABELS)
        how = self.chance.choice(("catalog.before_commit", "catalog.after_commit", "forgets"))
        self.held[group] = [each for each in self.held[group] if each[0] != label]
        before = faults.point
        try:
            if how != "forgets":
                faults.point = crash_point(how)
                self.consumer(group, label).take(2)
        except Crash:
            pass
        finally:
            faults.point = before
        self.consumers.pop((group, label), None)
        self.world.forget()
        self.world.clock += VISIBILITY  # what it had, or may have had, is due again
        for each in self.models[group].entries.values():
            each.receipt = each.receipt if each.over else -1
        self.look(group)

    def look(self, group: str) -> None:
        """The model of a group learns from the catalog how often messages were given that nobody has received."""
        from cq_engine.catalog import queues

        with self.world.catalog.reading() as connection:
            standing = queues.read(connection, "queue:q", group)
        known = {(g.version, g.query, g.sequence): g for g in standing.given}
        for name, each in self.models[group].entries.items():
            if each.over:
                assert name not in known
            elif name in known:
                row = known[name]
                assert each.attempt <= row.attempt <= each.attempt + 1
                each.attempt, each.due, each.receipt, each.holder = (
                    row.attempt,
                    row.due,
                    row.receipt,
                    row.consumer,
                )

    def finish(self) -> None:
        """A consumer that comes last gets everything that is left, in order."""
        for group, model in self.models.items():
            for _ in range(ATTEMPTS + 1):
                self.world.clock += VISIBILITY
                while found := self.take_for(group, "last", 7):
                    for message in found:
                        assert message.ack()
                        model.entries[name_of(message)].over = "done"
            assert all(each.over for each in model.entries.values())
        dead = [
            (n, e) for model in self.models.values() for n, e in model.entries.items() if e.over == "dead"
        ]
        names = {each.name.lower(): each.name for each in QUERIES}
        assert sorted(self.world.dead().elements()) == sorted((names[q], v, s) for (v, q, s), _ in dead)


STEPS = {
    History.commit: 4, History.take: 6, History.settle: 6, History.settle_upto: 1, History.wait: 2, History.crash: 1,
}  # fmt: skip


@settings(
    derandomize=True,
    deadline=None,
    max_examples=10,
    phases=[
        Phase.explicit,
        Phase.generate,
    ],  # the seed says it all, and to look for a shorter history takes minutes
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(seed=some.integers(0, 2**32), length=some.integers(10, 60), window=some.sampled_from([1, 3, 10_000]))
def test_any_history(tmp_path_factory: pytest.TempPathFactory, seed: int, length: int, window: int) -> None:
    world = Queues(tmp_path_factory.mktemp("queue") / "warehouse")
    try:
        limit(world, queue_rows=window)
        history = History(world, random.Random(seed))
        for _ in range(length):
            (step,) = history.chance.choices(list(STEPS), list(STEPS.values()))
            step(history)
        history.finish()
    finally:
        world.catalog.close()
