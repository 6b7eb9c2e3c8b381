"""Destinations that have the cursor in their target: random histories with crashes, against the result that must be there."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from cq_engine.catalog.model import DeclaredDestination
from cq_engine.core.errors import DestinationError
from cq_engine.destinations.targets import target as targets
from cq_engine.destinations.targets.database import DatabaseDestination
from tests.destinations.stories import Place, Story, crashing, in_slices, same


@pytest.mark.parametrize(("mode", "slices"), [("merge", None), ("merge", 3), ("history", None)])
def test_all_is_there_once_whatever_crashes(
    place: Place, story: Story, make: Any, monkeypatch: pytest.MonkeyPatch, mode: str, slices: int | None
) -> None:
    if slices:
        in_slices(monkeypatch, slices)
    dice, world, crashes = story.dice, story.world, 0
    for _ in range(30):
        for _ in range(dice.randint(1, 4)):
            story.commit()
        newest = world.catalog.newest_version
        with monkeypatch.context() as patch:
            if dice.random() < 0.6:
                crashing(patch, make["Crash"], dice)
            try:
                place.destination(world, mode).deliver(newest)
            except make["Crash"]:
                crashes += 1
        place.destination(world, mode).deliver(newest)
        wanted = story.deltas if mode == "history" else list(story.at[newest].values())
        same(place.read(), wanted)
        cursor = place.destination(world, mode).cursor
        assert cursor.version == newest
        assert mode == "merge" or cursor.rows == len(story.deltas)
    assert crashes > 5


def test_every_transaction_ends_at_a_version(
    place: Place, story: Story, make: Any, crash_at: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = [story.commit() for _ in range(8)]
    for hit in range(1, 9):
        destination = place.destination(story.world, "merge")
        with monkeypatch.context():
            crash_at("deliver.before_cursor", 2)
            try:
                destination.deliver(versions[-1])
            except make["Crash"]:
                pass
        monkeypatch.undo()
        monkeypatch.setattr(targets, "result_blocks", lambda rows, _: iter(rows))
        with destination.open() as target:
            mark = target.mark()
        assert mark is not None
        same(place.read(), list(story.at[mark.version].values()))
        versions.append(story.commit())
        assert hit


def test_replay(place: Place, story: Story) -> None:
    world = story.world
    first, second = story.commit(), story.commit()
    history = place.destination(world, "history")
    history.deliver(second)
    with world.catalog.write() as unit:
        unit.set_cursor(history.placed(history.cursor, first))
    history.deliver(second)
    again = [line for line in story.deltas if line[-1] == second]
    same(place.read(), story.deltas + again)
    history.deliver(story.commit())
    same(place.read(), story.deltas + again)


def test_replay_writes_a_result_again(place: Place, story: Story) -> None:
    world = story.world
    first, second = story.commit(), story.commit()
    merged = place.destination(world, "merge")
    merged.deliver(first)
    with world.catalog.write() as unit:
        unit.set_cursor(merged.placed(merged.cursor, 0))
    merged.deliver(second)
    same(place.read(), list(story.at[second].values()))


def test_rows_of_somebody_else_stay(place: Place, story: Story) -> None:
    world = story.world
    place.destination(world, "merge").deliver(story.commit())
    there = place.read()
    other = place.destination(world, "merge", token="t2")
    with pytest.raises(DestinationError, match="has rows already, and none from sink"):
        other.check()
    with world.catalog.write() as unit:
        unit.set_cursor(other.placed(other.cursor, 0))
    with pytest.raises(DestinationError, match="has rows already"):
        other.deliver(story.commit())
    same(place.read(), there)
    place.destination(world, "merge").check()


def test_two_deliveries_at_once(place: Place, story: Story) -> None:
    """One that was begun before another has ended changes nothing."""
    first = story.commit()
    destination = place.destination(story.world, "merge")
    destination.deliver(first)
    second = story.commit()
    with destination.open() as late:
        late.mark()
        destination.deliver(second)
        with pytest.raises(DestinationError, match="meanwhile"):
            _replace_all(late, targets.Mark(second, 1), place)
    same(place.read(), list(story.at[second].values()))


def test_what_came_and_went_is_delivered_too(place: Place, story: Story) -> None:
    """Where no row changes the target has the mark all the same, and nothing is counted again."""
    world, destination = story.world, place.destination(story.world, "merge")
    destination.deliver(story.commit())
    row = (50, "x", Decimal("1.00"))
    world.refresh(("I", row))
    newest = world.refresh(("D", row))
    destination.deliver(newest)
    with destination.open() as target:
        mark = target.mark()
    assert mark is not None
    assert mark.version == newest
    same(place.read(), list(story.rows.values()))


def test_no_older_mark_follows_the_whole_result(
    place: Place, story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which comes instead of what is too much to be merged, and is newer than the end of that."""
    in_slices(monkeypatch, 3)
    destination = place.destination(story.world, "merge")
    destination.deliver(story.commit())
    for _ in range(8):
        newest = story.commit()
    versions: list[int] = []
    store = targets.TargetDestination._store

    def stored(self: Any, cursor: Any, moved: Any) -> Any:
        versions.append(moved.version)
        return store(self, cursor, moved)

    monkeypatch.setattr(targets.TargetDestination, "_store", stored)
    destination.deliver(newest)
    assert versions[-1] == newest
    assert versions == sorted(set(versions))
    same(place.read(), list(story.at[newest].values()))


def test_skip_gives_nothing_again_after_a_crash(
    place: Place, story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target had more than the catalog knew when it was said."""
    from cq_engine.core import faults

    world, destination = story.world, place.destination(story.world, "history")
    versions = [story.commit() for _ in range(3)]
    destination.deliver(versions[0])
    with monkeypatch.context() as patched:

        def point(name: str, *_: object) -> None:
            if name == "deliver.before_cursor":
                raise KeyboardInterrupt

        patched.setattr(faults, "point", point)
        with pytest.raises(KeyboardInterrupt):
            destination.deliver(versions[-1])
    there = place.read()
    assert {row[-1] for row in there} == set(versions)
    with world.catalog.write() as unit:
        unit.set_cursor(destination.placed(destination.cursor, versions[1]))
    destination.deliver(versions[-1])
    same(place.read(), there)
    newest = story.commit()
    destination.deliver(newest)
    same([row for row in place.read() if row[-1] != newest], there)
    assert newest in {row[-1] for row in place.read()}


@pytest.mark.parametrize("mode", ["history", "merge"])
def test_a_mark_of_a_later_time(place: Place, story: Story, mode: str) -> None:
    """A warehouse that was restored passes over nothing in silence."""
    destination = place.destination(story.world, mode)
    destination.deliver(story.commit())
    with destination.open() as target:
        known = target.mark()
        assert known is not None
        target.append(iter(()), targets.Mark(100, known.order))
    newest = story.commit()
    if mode == "merge":
        destination.deliver(newest)
        same(place.read(), list(story.at[newest].values()))
        return
    with pytest.raises(DestinationError, match="up to version 100, and the warehouse ends at version"):
        destination.deliver(newest)
    with story.world.catalog.write() as unit:
        unit.set_cursor(destination.placed(destination.cursor, newest - 1))
    rows = len(place.read())
    destination.deliver(newest)
    assert len(place.read()) > rows


@pytest.mark.postgres
def test_a_table_that_was_renamed_keeps_its_index(story: Story, fresh_postgres: Callable[[], str]) -> None:
    import psycopg

    url = fresh_postgres()
    options = (("url", url), ("table", "sink"), ("mode", "merge"))
    declared = DeclaredDestination("sink", "DATABASE", options, token="t1")
    destination = DatabaseDestination(story.world.services, story.world.query, declared)
    destination.deliver(story.commit())
    with psycopg.connect(url) as connection:
        connection.execute("ALTER TABLE sink RENAME TO kept")
    destination.deliver(story.commit())
    with psycopg.connect(url) as connection:
        found = connection.execute("SELECT count(*) FROM pg_indexes WHERE tablename IN ('sink', 'kept')")
        assert found.fetchone() == (2,)


def _replace_all(late: targets.Target, mark: targets.Mark, place: Place) -> None:
    if place.kind == "delta":
        from cq_engine.destinations.targets.delta_table import failing

        with failing("sink"):
            late.replace(iter(()), mark)
    else:
        late.replace(iter(()), mark)
