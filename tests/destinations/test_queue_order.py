"""What consumers of a queue are given, case by case."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cq_engine.catalog import queues
from cq_engine.catalog.model import Cursor
from cq_engine.destinations.queues import logs as queue_log
from cq_engine.destinations.queues.message import Message
from tests.destinations.queues import SECOND, VISIBILITY, Queues
from tests.limits import limit


@pytest.fixture
def world(warehouse: Path) -> Iterator[Queues]:
    made = Queues(warehouse)
    yield made
    made.catalog.close()


def told(messages: list[Message]) -> list[tuple[int, int, int]]:
    """(version, sequence, attempt)."""
    return [(each.commit_version, each.given.sequence, each.attempt) for each in messages]


def keyed(world: Queues, *keys: int) -> None:
    world.commit({"Keyed": [("U", k, "v") for k in keys]})


class TestOrder:
    def test_a_key_is_one_consumers_at_a_time(self, world: Queues) -> None:
        keyed(world, 1, 2, 1, 2, 3)
        one, two = world.consumer(), world.consumer()
        assert told(one.take(1)) == [(1, 1, 1)]
        assert told(two.take(9)) == [(1, 2, 1), (1, 4, 1), (1, 5, 1)]
        assert told(one.take(9)) == [(1, 3, 1)]
        assert two.take(9) == []

    def test_the_next_one_comes_when_the_one_before_it_is_done(self, world: Queues) -> None:
        keyed(world, 1, 1)
        one, two = world.consumer(), world.consumer()
        (first,) = one.take(1)
        assert two.take(1) == []
        assert first.ack()
        assert told(two.take(1)) == [(1, 2, 1)]

    @pytest.mark.parametrize("count", [1, 9])
    def test_what_stands_behind_one_that_is_due_comes_after_it(self, world: Queues, count: int) -> None:
        keyed(world, 1, 1)
        one, two = world.consumer(), world.consumer()
        one.take(1)
        world.clock += 10 * SECOND
        (second,) = one.take(1)
        world.clock += 20 * SECOND
        assert two.take(9) == [], "the second one is still somebody's"
        again = one.take(count)
        assert told(again) == [(1, 1, 2), (1, 2, 1)][:count]
        assert not second.ack(), "it was taken back"
        assert two.take(9) == []
        assert again[0].ack()
        assert told(two.take(9)) == ([(1, 2, 1)] if count == 1 else [])

    def test_who_requeues_gives_back_what_stands_behind(self, world: Queues) -> None:
        keyed(world, 1, 2, 1)
        one, two = world.consumer(), world.consumer()
        first, _, third = one.take(9)
        assert first.reject(requeue=True)
        assert not third.ack()
        assert told(two.take(9)) == [(1, 1, 2), (1, 3, 1)]

    def test_a_dead_letter_lets_the_rest_go_on(self, world: Queues) -> None:
        keyed(world, 1, 1)
        consumer = world.consumer()
        for attempt in (1, 2, 3):
            (message,) = consumer.take(1)
            assert message.attempt == attempt
            world.clock += VISIBILITY
        assert told(consumer.take(9)) == [(1, 2, 1)]
        assert world.dead() == {("Keyed", 1, 1): 1}
        assert world.commits == [world.catalog.newest_version]

    def test_rows_without_a_key_are_their_own(self, world: Queues) -> None:
        world.commit({"Bag": [("I", 1, "a"), ("I", 1, "b"), ("D", 1, "a")]})
        one, two = world.consumer(), world.consumer()
        assert told(one.take(1)) == [(1, 1, 1)]
        assert told(two.take(9)) == [(1, 2, 1)], "the third one takes away the row of the first one"


class TestPlaces:
    def test_what_was_passed_over_comes_when_its_key_is_free(self, world: Queues) -> None:
        limit(world, queue_rows=2)
        keyed(world, 1, 1)
        keyed(world, 1, 1)
        keyed(world, 2)
        one, two = world.consumer(), world.consumer()
        (first,) = one.take(1)
        assert told(two.take(1)) == [(3, 1, 1)], "behind more of a key that is busy than is read at a time"
        first.ack()
        assert told(two.take(9)) == [(1, 2, 1), (2, 1, 1), (2, 2, 1)]

    def test_a_group_has_so_many_at_most(self, world: Queues) -> None:
        limit(world, queue_given=2)
        keyed(world, 1, 2, 3)
        consumer = world.consumer()
        first, _ = consumer.take(9)
        assert consumer.take(9) == []
        first.ack()
        assert told(consumer.take(9)) == [(1, 3, 1)]

    def test_a_new_group_begins_where_the_query_began(self, world: Queues) -> None:
        keyed(world, 1)
        keyed(world, 2)
        with world.catalog.write() as unit:
            unit.set_cursor(Cursor("Keyed", "queue:q", 1))
        assert told(world.consumer("new").take(9)) == [(2, 1, 1)]

    def test_what_is_not_selected_is_passed_by(self, world: Queues) -> None:
        world.commit({"Few": [("D", 1, "a"), ("I", 2, "b"), ("D", 1, "a")]})
        world.commit({"Few": [("D", 1, "a")]})
        consumer = world.consumer()
        assert told(consumer.take(9)) == [(1, 2, 1)]
        assert consumer.take(9) == []
        with world.catalog.reading() as connection:
            standing = queues.read(connection, "queue:q", "default")
        assert standing.positions["few"].place == (2, queues.END)

    def test_a_commit_of_any_size_is_taken_in_parts(
        self, world: Queues, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        limit(world, queue_rows=3)
        keyed(world, *range(20))
        keyed(world, *range(5))
        small = queue_log.read_small

        def blocks(services: Any, query: Any, cursor: Cursor, upto: int, _: object) -> Iterator[pa.Table]:
            wide = small(services, query, cursor, upto)
            assert wide is not None
            for start in range(0, wide.num_rows, 7):
                yield wide.slice(start, 7)

        monkeypatch.setattr(queue_log, "read_pairs", blocks)
        monkeypatch.setattr(queue_log, "read_small", lambda *_: None)
        consumer, found = world.consumer(), []
        while some := consumer.take(4):
            found += told(some)
            assert all(message.ack() for message in some)
            if len(found) == 12:
                world.forget()  # another process goes on in the middle of a commit
                consumer = world.consumer()
        assert found == [*((1, n, 1) for n in range(1, 21)), *((2, n, 1) for n in range(1, 6))]
