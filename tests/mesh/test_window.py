"""The cyclic scan and its queue, simulated: what meets what, how often, and when it stands still."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cq_engine.mesh.window import Batch, Image, Page, Window


def pages(*files: str, groups: int = 4) -> list[Page]:
    return [Page(file, n) for file in files for n in range(groups)]


class Met(Batch):
    """A batch that notes what it meets."""

    def __init__(self, image: Image, needed: np.ndarray | None = None) -> None:
        super().__init__(image, needed)
        self.wanted = {page for page, left in zip(image.pages, self.left) if left}
        self.met: list[Page] = []


def step(window: Window[Met], most: int) -> list[Page]:
    """One read: what was read; expired batches leave."""
    read = window.next_pages(most)
    assert len(read) <= most
    assert len({page.file for page in read}) <= 1, "one file at a time"
    for page in read:
        met = window.meet(page)
        assert met, f"{page} was read for nobody"
        for batch in met:
            batch.met.append(page)
    for batch in [each for each in window.queue if each.expired]:
        window.leave(batch)
    return read


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.integers(0, 2**32))
def test_every_batch_meets_every_page_of_its_image_once(seed: int) -> None:
    """Whatever enters or is given up at which moment, however many pages are read at once, and whatever is compacted."""
    chance = random.Random(seed)
    window: Window[Met] = Window()
    files = [f"f{n}" for n in range(chance.randint(1, 5))]
    image = Image(pages(*files, groups=chance.randint(1, 4)))
    entered: list[Met] = []
    given_up: list[Met] = []
    reads_since: Counter[int] = Counter()
    for _ in range(chance.randint(1, 60)):
        if chance.random() < 0.3:
            needed = None
            if chance.random() < 0.4:
                needed = np.array([chance.random() < 0.5 for _ in image.pages], np.bool_)
            batch = Met(image, needed)
            entered.append(batch)
            window.enter(batch)
        if chance.random() < 0.1:  # some files are replaced
            files = sorted({*chance.sample(files, max(1, len(files) - 1)), f"f{chance.randint(0, 9)}"})
            image = Image(pages(*files, groups=chance.randint(1, 4)))
        if window.queue and chance.random() < 0.05:
            batch = chance.choice(window.queue)
            window.leave(batch)
            given_up.append(batch)
        before = list(window.queue)
        read = step(window, chance.randint(1, 3))
        for batch in before:
            reads_since[id(batch)] += len(read)
    while window.queue:
        assert step(window, chance.randint(1, 3)), "it stands still though somebody waits"
    assert step(window, 3) == []
    for batch in entered:
        assert len(set(batch.met)) == len(batch.met), "no page is met twice"
        assert set(batch.met) <= batch.wanted
        if not any(batch is each for each in given_up):
            assert set(batch.met) == batch.wanted


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.integers(1, 12), st.integers(1, 5), st.lists(st.integers(0, 20), min_size=1, max_size=6))
def test_a_batch_expires_after_one_cycle(count: int, most: int, moments: list[int]) -> None:
    """Of one image: reading as many pages as it has ends every batch that was there at the beginning; no page is read in between
    that is not the next one (the paper's scan)."""
    window: Window[Met] = Window()
    image = Image(pages("f", groups=count))
    read_at: dict[int, int] = {}
    alive: dict[int, Met] = {}
    total, moment, last = 0, 0, -1
    waiting = sorted(moments)
    while waiting or window.queue:
        while waiting and waiting[0] <= moment:
            waiting.pop(0)
            batch = Met(image)
            window.enter(batch)
            read_at[id(batch)], alive[id(batch)] = total, batch
        read = step(window, most)
        for page in read:
            if last >= 0:
                assert page.group == (last + 1) % count, (
                    "the scan goes on where it stood, also after it stood still"
                )
            last = page.group
        total += len(read)
        moment += 1
        for number, batch in list(alive.items()):
            if batch.expired:
                assert count <= total - read_at.pop(number) < count + most
                del alive[number]


def test_a_page_is_read_once_for_all_who_are_there() -> None:
    window: Window[Met] = Window()
    image = Image(pages("a", "b"))
    first, second = Met(image), Met(image)
    window.enter(first)
    assert step(window, 2) == [Page("a", 0), Page("a", 1)]
    window.enter(second)
    read = []
    while window.queue:
        read += step(window, 3)
    assert len(read) == 8, "six pages for both, and two for the second"
    assert read[-2:] == [Page("a", 0), Page("a", 1)]


def test_pages_that_nobody_needs_are_left_out() -> None:
    window: Window[Met] = Window()
    image = Image(pages("a", groups=6))
    window.enter(Met(image, np.array([False, True, False, True, True, False])))
    assert step(window, 4) == [Page("a", 1)]
    assert step(window, 4) == [Page("a", 3), Page("a", 4)]
    assert window.queue == []


def test_two_images_share_the_files_that_both_have() -> None:
    window: Window[Met] = Window()
    old, new = Met(Image(pages("a", "b", groups=1))), Met(Image(pages("b", "c", groups=1)))
    window.enter(old)
    window.enter(new)
    assert [step(window, 2) for _ in range(3)] == [[Page("a", 0)], [Page("b", 0)], [Page("c", 0)]]
    assert window.queue == []


def test_a_batch_that_needs_nothing_has_expired() -> None:
    assert Batch(Image([])).expired
    assert Batch(Image(pages("a")), np.zeros(4, np.bool_)).expired
    assert not Batch(Image(pages("a"))).expired


def test_leaving_twice_does_nothing() -> None:
    window: Window[Met] = Window()
    batch = Met(Image(pages("a")))
    window.enter(batch)
    window.leave(batch)
    window.leave(batch)
    assert window.next_pages(1) == []


@pytest.mark.parametrize("bug", ["twice", "early"])
def test_a_window_that_is_wrong_is_noticed(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that is met again, a batch that expires a page too early."""
    right = Window.meet

    again: set[int] = set()

    def meet(self: Window[Met], page: Page) -> list[Met]:
        met = right(self, page)
        for batch in met:
            if bug == "early":
                batch.remaining = max(0, batch.remaining - 1)
            elif batch.remaining and id(batch) not in again:
                again.add(id(batch))
                place = batch.image.place(page)
                batch.left[place], batch.remaining = True, batch.remaining + 1
                self._needs[id(batch.image)][1][place] += 1
        return met

    monkeypatch.setattr(Window, "meet", meet)
    with pytest.raises(AssertionError):
        test_every_batch_meets_every_page_of_its_image_once()
