"""How callbacks are called: per row, commit and refresh, several at once, `async`; with failures and crashes of each."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import cq_engine
from cq_engine import AnalysisError
from cq_engine.catalog.model import DeclaredDestination
from cq_engine.core import faults
from cq_engine.core.errors import DestinationError
from cq_engine.destinations import CallbackDestination, Callbacks, check_declared, give_up, resolve
from cq_engine.destinations.contract import Crash, World, crash_point
from cq_engine.destinations.contract.world import QUERY, row
from cq_engine.destinations.dead_letters import with_dead_letters
from cq_engine.grammar.clauses import DestinationRef
from tests.destinations.calls import LONG, Async, Calls, a_world, destination, filled, refreshed
from tests.limits import limit

HISTORIES = st.lists(st.lists(st.integers(0, 5), unique=True, max_size=4), min_size=1, max_size=8)
MODES = st.sampled_from(["transaction", "row", "refresh"])


@settings(max_examples=20, deadline=None, derandomize=True, phases=[Phase.generate])
@given(HISTORIES, MODES, st.integers(2, 4), st.booleans(), st.integers(0, 99))
def test_order_is_kept_per_key(
    commits: list[list[int]], batch: str, concurrency: int, is_async: bool, seed: int
) -> None:
    """Each delta once, those of a key one after another, and no cursor beyond one that was not accepted."""
    chance = random.Random(seed)
    with a_world() as world:
        wanted = filled(world, commits)
        refreshed(world, *sorted(chance.sample(range(1, len(commits) + 1), min(2, len(commits)))))
        limit(world, batch_deltas=chance.choice((2, 100)))
        if is_async:
            calls: Calls = Async(lambda _: asyncio.sleep(chance.random() / 200))
        else:
            calls = Calls(lambda _: time.sleep(chance.random() / 200))
        made = destination(world, calls, batch=batch, concurrency=concurrency)
        store = made._store

        def checked(cursor: Any, moved: Any) -> Any:
            behind = (moved.version, moved.sequence or 99)
            assert {place for place in wanted if place <= behind} <= set(calls.accepted)
            return store(cursor, moved)

        made._store = checked  # type: ignore[method-assign]
        made.deliver(len(commits))
        assert sorted(calls.accepted) == wanted
        assert all(places == sorted(places) for places in calls.by_key.values())
        assert (made.cursor.version, made.cursor.rows) == (len(commits), len(wanted))
        if batch == "row":
            assert {len(each) for each in calls.batches} <= {1}
        made.callbacks.loop.close()


@settings(max_examples=20, deadline=None, derandomize=True, phases=[Phase.generate])
@given(HISTORIES, MODES, st.integers(1, 4), st.booleans(), st.integers(0, 5), st.integers(1, 3))
def test_what_is_refused_comes_again_and_nothing_else(
    commits: list[list[int]], batch: str, concurrency: int, is_async: bool, bad: int, times: int
) -> None:
    """Also where other batches were accepted behind it meanwhile."""
    with a_world() as world:
        wanted = filled(world, commits)
        refreshed(world, len(commits))
        callbacks, refusals = Callbacks(), [0]

        def refuse(given: Any) -> None:
            if any(d.key[0] == bad for d in given) and refusals[0] < times:
                refusals[0] += 1
                raise SystemExit("no")

        calls = Async(refuse) if is_async else Calls(refuse)
        failures = 0
        while True:
            made = destination(world, calls, batch=batch, concurrency=concurrency, callbacks=callbacks)
            before = refusals[0]
            try:
                made.deliver(len(commits))
            except DestinationError:
                assert "SystemExit: no" in made.cursor.error
                assert made.cursor.failures > 0
                failures += refusals[0] - before
            else:
                break
        assert failures == refusals[0]
        assert sorted(calls.accepted) == wanted
        assert all(places == sorted(places) for places in calls.by_key.values())
        callbacks.loop.close()


@pytest.mark.parametrize("batch", ["transaction", "row", "refresh"])
@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("point", ["deliver.begin", "deliver.before_cursor", "deliver.after_cursor"])
def test_after_a_crash(
    world: World, monkeypatch: pytest.MonkeyPatch, point: str, is_async: bool, concurrency: int, batch: str
) -> None:
    """Nothing is lost, and nothing comes again but what lies behind the cursor; of a key in the same order."""
    wanted = filled(world, [[1, 2, 3], [2, 4], [5], [1, 2], [6, 7]])
    refreshed(world, 2, 5)
    calls = Async() if is_async else Calls()
    with monkeypatch.context() as patched:
        patched.setattr(faults, "point", crash_point(point, 2))
        first = destination(world, calls, batch=batch, concurrency=concurrency)
        with pytest.raises(Crash):
            first.deliver(5)
    before = list(calls.accepted)
    cursor = first.cursor
    kept = {place for place in wanted if place <= (cursor.version, cursor.sequence or 99)}
    assert kept <= set(before)
    second = destination(world, calls, batch=batch, concurrency=concurrency)
    second.deliver(5)
    after = calls.accepted[len(before) :]
    assert sorted(after) == [place for place in wanted if place not in kept]
    assert second.cursor.version == 5
    for each in (first, second):
        each.callbacks.loop.close()


# ---------------------------------------------------------------- one batch for a refresh


def test_a_batch_for_each_refresh(world: World) -> None:
    wanted = filled(world, [[1, 2], [], [2], [3], [1], [9]])
    refreshed(world, 1, 4, 5, 6)
    calls = Calls()
    seen: list[Any] = []
    calls.during = seen.append
    made = destination(world, calls, batch="refresh")
    made.deliver(5)
    assert calls.batches == [wanted[:2], wanted[2:4], wanted[4:5]]
    (_, second, _) = seen
    assert (second.commit_version, second.last, second.idempotency_key) == (4, True, ("Totals", 4, 1))
    assert second.commit_time == world.catalog.timestamp(4)
    assert [d.commit_time for d in second] == [world.catalog.timestamp(v) for v in (3, 4)]
    assert second.to_arrow().column("v").to_pylist() == [3, 4]


def test_a_large_refresh_comes_in_parts(world: World) -> None:
    wanted = filled(world, [[1, 2, 3], [4], [5], [6]])
    refreshed(world, 4)
    limit(world, batch_deltas=2)
    lasts: list[bool] = []
    calls = Calls(lambda batch: lasts.append(batch.last))
    destination(world, calls, batch="refresh").deliver(4)
    assert calls.batches == [wanted[:2], wanted[2:4], wanted[4:]]
    assert lasts == [False, False, True]


def test_a_refresh_is_the_same_batch_when_it_comes_later(world: World) -> None:
    """With further refreshes behind it, and however many of them there have been."""
    filled(world, [[1], [2], [3]])
    refreshed(world, 2, 3)
    refuse = [True]

    def during(_: Any) -> None:
        if refuse[0]:
            raise ValueError("not yet")

    keys: list[Any] = []
    calls = Calls(lambda batch: (keys.append(batch.idempotency_key), during(batch)))
    with pytest.raises(DestinationError):
        destination(world, calls, batch="refresh").deliver(2)
    filled(world, [[4] for _ in range(120)])
    refreshed(world, *range(4, 124))
    refuse[0] = False
    destination(world, calls, batch="refresh").deliver(123)
    assert keys[0] == keys[1] == ("Totals", 2, 1)
    assert len(calls.batches) == 122


# ---------------------------------------------------------------- several at once


@pytest.mark.parametrize("is_async", [False, True])
def test_so_many_run_at_once(world: World, is_async: bool) -> None:
    filled(world, [[n] for n in range(9)])
    together = threading.Barrier(3)
    calls: Calls = Calls(lambda _: together.wait(LONG))
    if is_async:
        waiting: list[asyncio.Event] = []

        async def meet() -> None:
            waiting.append(asyncio.Event())
            if len(waiting) == 3:
                for event in waiting:
                    event.set()
                waiting.clear()
            else:
                await asyncio.wait_for(waiting[-1].wait(), LONG)

        calls = Async(lambda _: meet())
    made = destination(world, calls, concurrency=3)
    made.deliver(9)
    assert (len(calls.accepted), calls.most) == (9, 3)
    made.callbacks.loop.close()


def test_one_that_waits_for_its_key_keeps_no_other_waiting(world: World) -> None:
    filled(world, [[1], [1], [2]])
    second = threading.Event()

    def during(batch: Any) -> None:
        keys = {d.key[0] for d in batch}
        if keys == {2}:
            second.set()
        else:
            assert second.wait(LONG)

    calls = Calls(during)
    destination(world, calls, concurrency=2).deliver(3)
    assert calls.accepted == [(3, 1), (1, 1), (2, 1)]


def test_equal_rows_of_a_multiset_stay_in_order(world: World) -> None:
    world.define(query=replace(QUERY, key=None))
    same = row(1, "same")
    for marker in "IDIDID":
        world.refresh((marker, same))
    seen: list[str] = []

    def slow(batch: Any) -> None:
        (delta,) = batch
        time.sleep(0.02 if delta.marker == "I" else 0)
        seen.append(delta.marker)

    destination(world, slow, concurrency=4).deliver(6)
    assert "".join(seen) == "IDIDID"


def test_replay_gives_again_what_was_accepted_out_of_turn(world: World) -> None:
    wanted = filled(world, [[1], [2], [3]])
    callbacks, refuse = Callbacks(), [True]

    def during(batch: Any) -> None:
        if refuse[0] and batch.commit_version == 1:
            raise ValueError("not now")

    calls = Calls(during)
    made = destination(world, calls, concurrency=3, callbacks=callbacks)
    with pytest.raises(DestinationError):
        made.deliver(3)
    assert sorted(calls.accepted) == wanted[1:]
    with world.catalog.write() as unit:
        unit.set_cursor(made.placed(made.cursor, 0))
    refuse[0] = False
    calls.accepted.clear()
    made.deliver(3)
    assert sorted(calls.accepted) == wanted


def test_other_batches_are_not_taken_for_accepted_ones(world: World) -> None:
    """Of a commit whose last row was accepted by itself, the others have still to be given."""
    wanted = filled(world, [[1], [2, 3]])
    callbacks, refuse = Callbacks(), [True]

    def during(batch: Any) -> None:
        if refuse[0] and any(d.key[0] < 3 for d in batch):
            raise ValueError("not now")

    calls = Calls(during)
    with pytest.raises(DestinationError):
        destination(world, calls, batch="row", concurrency=3, callbacks=callbacks).deliver(2)
    assert calls.accepted == [wanted[2]]
    refuse[0] = False
    destination(world, calls, concurrency=3, callbacks=callbacks).deliver(2)
    assert set(calls.accepted) == set(wanted)


@pytest.mark.parametrize(("batch", "buried"), [("row", 1), ("transaction", 2), ("refresh", 3)])
@pytest.mark.parametrize("concurrency", [1, 3])
def test_dead_letters(world: World, batch: str, buried: int, concurrency: int) -> None:
    """One batch goes there, whatever that is, and every other is accepted once."""
    wanted = filled(world, [[1], [2, 3], [4], [5]])
    refreshed(world, 1, 3, 4)
    with world.catalog.write() as unit:
        unit.set_state(with_dead_letters(world.catalog.state, "a", 4))

    def during(given: Any) -> None:
        if any(d.key[0] == 2 for d in given):
            raise ValueError("poison")

    callbacks, calls = Callbacks(), Calls(during)

    def made() -> CallbackDestination:
        return destination(world, calls, batch=batch, concurrency=concurrency, callbacks=callbacks)

    for _ in range(2):
        with pytest.raises(DestinationError, match="poison"):
            made().deliver(4)
    (step,) = give_up(made(), 4)
    made().deliver(4)
    assert len(calls.accepted) == len(set(calls.accepted)) == len(wanted) - buried
    assert (made().cursor.dead, step.deltas) == (buried, 0)
    assert world.image("a_dead").column("commit_version").to_pylist() == [2, 2, 3][:buried]


# ---------------------------------------------------------------- options


def test_what_a_declaration_says_counts_more(world: World) -> None:
    callbacks = Callbacks()
    callbacks.register("A", print, {"batch": "row", "concurrency": "2"})
    found = resolve(world.services, world.query, DestinationRef("a", "CALLBACK"), callbacks)
    assert isinstance(found, CallbackDestination)
    assert (found.batch, found.concurrency) == ("row", 2)
    declared = {"a": DeclaredDestination("a", "CALLBACK", (("batch", "REFRESH"),))}
    found = resolve(
        world.services, world.query, DestinationRef("a", "CALLBACK"), callbacks, declared=declared
    )
    assert isinstance(found, CallbackDestination)
    assert (found.batch, found.concurrency) == ("refresh", 2)


@pytest.mark.parametrize(
    ("option", "value", "hint"),
    [("batch", "batch", "refresh"), ("concurrency", "0", "as in concurrency"), ("concurrency", "257", "256")],
)
def test_options_that_are_not_possible(warehouse: Path, option: str, value: str, hint: str) -> None:
    with pytest.raises(AnalysisError, match="is not possible") as raised:
        check_declared(DeclaredDestination("a", "CALLBACK", ((option, value),)))
    assert hint in raised.value.hint
    with cq_engine.connect(warehouse, scheduler=False) as engine:
        given: dict[str, Any] = {option: value if option == "batch" else int(value)}
        with pytest.raises(AnalysisError, match="is not possible"):
            engine.callback("a", **given)
