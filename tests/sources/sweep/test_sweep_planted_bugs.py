"""The checkers are worth what they find: each part of the compensation is broken on purpose, and they must notice."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from cq_engine.sources.sweep import nested, queue, rows, sweeping
from cq_engine.sources.sweep.asking import Asker, Term
from cq_engine.sources.sweep.images import Images
from cq_engine.sources.sweep.model import Change, Consistency, Row
from cq_engine.sources.sweep.queue import Queue
from tests.sources.sweep.checkers import History, Inconsistent, complete, ordered
from tests.sources.sweep.test_sweep_interleavings import Interleavings
from tests.sources.sweep.warehouse import random_run

RUNS = 200
"""In so many runs a planted bug has to be found."""


def left_out(patch: pytest.MonkeyPatch) -> None:
    """Answers are used as they are."""
    patch.setattr(Images, "touched", lambda self, key: False)
    patch.setattr(Images, "matching", lambda self, index, values: ())


def added_only(patch: pytest.MonkeyPatch) -> None:
    """What was deleted is put in again, but what was inserted is not taken out."""
    patch.setattr(Images, "touched", lambda self, key: False)


def taken_out_only(patch: pytest.MonkeyPatch) -> None:
    """What was inserted is taken out, but what was deleted is not put in again."""
    patch.setattr(Images, "matching", lambda self, index, values: ())


def moved_by(patch: pytest.MonkeyPatch, move: Callable[[Images, int], None]) -> None:
    """Whatever moves images for an answer moves them so."""
    fill, right, answering = Asker._fill, Images.move, []

    def broken(self: Asker, *args: Any) -> None:
        answering.append(self)
        fill(self, *args)
        answering.pop()

    patch.setattr(Asker, "_fill", broken)
    patch.setattr(
        Images, "move", lambda self, version: move(self, version) if answering else right(self, version)
    )


def twice(patch: pytest.MonkeyPatch) -> None:
    """One more update is undone than has to be."""
    right = Images.move
    moved_by(patch, lambda images, version: right(images, version - 1))


def once_too_few(patch: pytest.MonkeyPatch) -> None:
    """One update fewer is undone than has to be."""
    right = Images.move
    moved_by(patch, lambda images, version: right(images, version + 1))


def in_the_wrong_order(patch: pytest.MonkeyPatch) -> None:
    """Updates are undone from the first to the last, so a key has its last before-image."""
    right = Images.move

    def move(images: Images, version: int) -> None:
        log = images._log[images._start :]
        right(images, version)
        for at, key, before, _ in log:
            if at > version:
                images._put(key, before)

    moved_by(patch, move)


def not_waiting(patch: pytest.MonkeyPatch) -> None:
    """Answers are used before the channel has brought what they have seen."""
    right = Queue._read
    patch.setattr(
        Queue,
        "_read",
        lambda self, channels, source, upto: right(self, channels, source, upto) if upto is None else (),
    )


def stale_taken_for_current(patch: pytest.MonkeyPatch) -> None:
    """Answers from before what is known are used."""
    right = Queue.reach

    def reach(self: Queue, *args: Any) -> int:
        return right(self, *args) or self.end(args[1])

    patch.setattr(Queue, "reach", reach)


def transactions_at_their_start(patch: pytest.MonkeyPatch) -> None:
    """What one transaction changes of two relations is not joined with each other."""
    right = sweeping.terms_of

    def terms_of(*args: Any) -> list[Term]:
        return [dataclasses.replace(term, high=term.low) for term in right(*args)]

    for module in (sweeping, nested):
        patch.setattr(module, "terms_of", terms_of)
    patch.setattr("cq_engine.sources.sweep.maintain.terms_of", terms_of)


def keys_do_not_change(patch: pytest.MonkeyPatch) -> None:
    """A change of a key is taken for a change of the row that had it, and nobody looks whether changes fit each other."""
    patch.setattr(Images, "contradiction", lambda self, changes: None)

    def net(changes: Sequence[Change], key: Callable[[Row], Row]) -> rows.Net:
        found: dict[Row, tuple[Row | None, Row | None]] = {}
        for change in changes:
            row = change.before if change.before is not None else change.after
            assert row is not None
            at = key(rows.settled(row))
            before = found[at][0] if at in found else change.before and rows.settled(change.before)
            found[at] = (before, change.after and rows.settled(change.after))
        return found

    patch.setattr(queue, "net", net)


def absorbed_and_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Updates join a nested sweep, but nothing is worked out for them."""

    def catch_up(state: nested.Nested, covered: Any) -> list[Term]:
        for name in list(state.later):
            if name in covered:
                del state.later[name]
        return []

    patch.setattr(nested, "_catch_up", catch_up)


def absorbed_at_the_start(patch: pytest.MonkeyPatch) -> None:
    """Absorbed updates are joined with the state before the sweep rather than with what it has absorbed before."""
    right = sweeping.terms_of

    def terms_of(given: Queue, step: int, low: Any, high: Any) -> list[Term]:
        found = right(given, step, low, high)
        changed = next(source for source in low if low[source] != high[source])
        before = {**given.done, changed: low[changed]}
        return [
            dataclasses.replace(term, low=before, high={**before, changed: high[changed]}) for term in found
        ]

    patch.setattr(nested, "terms_of", terms_of)


BUGS: dict[Callable[[pytest.MonkeyPatch], None], tuple[Consistency, ...]] = {
    left_out: tuple(Consistency),
    added_only: tuple(Consistency),
    taken_out_only: tuple(Consistency),
    twice: tuple(Consistency),
    once_too_few: tuple(Consistency),
    in_the_wrong_order: tuple(Consistency),
    not_waiting: tuple(Consistency),
    stale_taken_for_current: tuple(Consistency),
    transactions_at_their_start: tuple(Consistency),
    keys_do_not_change: tuple(Consistency),
    absorbed_and_forgotten: (Consistency.STRONG,),
    absorbed_at_the_start: (Consistency.STRONG,),
}


def random_runs(consistency: Consistency) -> None:
    for seed in range(RUNS):
        random_run(seed, consistency)


@pytest.mark.parametrize(
    ("bug", "consistency"),
    [(bug, consistency) for bug, levels in BUGS.items() for consistency in levels],
    ids=lambda value: getattr(value, "__name__", None) or value.value,
)
def test_the_checkers_find(
    bug: Callable[[pytest.MonkeyPatch], None], consistency: Consistency, monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    with pytest.raises(Inconsistent):
        random_runs(consistency)


@pytest.mark.parametrize("bug", [left_out, twice, not_waiting], ids=lambda bug: bug.__name__)
def test_hypothesis_finds(bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(
            Interleavings, settings=settings(Interleavings.TestCase.settings, phases=[Phase.generate])
        )


def test_the_checkers_find_states_in_the_wrong_order() -> None:
    found = 0
    for seed in range(RUNS // 5):
        run = random_run(seed, Consistency.COMPLETE)
        for place in range(1, len(run.states) - 1):
            (one, before), (other, after) = run.states[place : place + 2]
            swapped = [*run.states[:place], (one, after), (other, before), *run.states[place + 2 :]]
            if before != after:
                found += 1
                with pytest.raises(Inconsistent):
                    complete(History(run.network), swapped)
    assert found


def test_the_checkers_find_a_state_that_is_left_out() -> None:
    run = next(
        run
        for run in (random_run(seed, Consistency.COMPLETE) for seed in range(RUNS))
        if len(run.states) > 3 and run.states[1][1] != run.states[2][1]
    )
    states = [*run.states[:1], *run.states[2:]]
    with pytest.raises(Inconsistent):
        complete(History(run.network), states)
    with pytest.raises(Inconsistent):
        ordered(History(run.network), [view for _, view in states], one_by_one=True)
    ordered(History(run.network), [view for _, view in states], one_by_one=False)
