"""Work that another core does meanwhile: its results, its errors, and that nobody waits for a core that is busy."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from cq_engine.core import beside
from cq_engine.core.beside import Beside, together
from cq_engine.core.calls import call, current

MANY = beside.MANY_ROWS


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadPoolExecutor]:
    """One other core, whatever the machine has."""
    with ThreadPoolExecutor(1) as one:
        monkeypatch.setattr(beside, "_pool", lambda: one)
        yield one


def test_many_rows_are_left_to_another_thread(pool: ThreadPoolExecutor) -> None:
    here = threading.get_ident()
    started = threading.Event()

    def work() -> int:
        started.set()
        return threading.get_ident()

    many = Beside(work, MANY)
    assert started.wait(10)
    assert many() != here
    assert many() == many()


def test_few_rows_stay_here_until_they_are_wanted(pool: ThreadPoolExecutor) -> None:
    done: list[int] = []
    few = Beside(lambda: done.append(threading.get_ident()), MANY - 1)
    assert not done
    few()
    few()
    assert done == [threading.get_ident()]


def test_one_core_does_it_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "_pool", lambda: None)
    assert Beside(threading.get_ident, MANY)() == threading.get_ident()


def test_nobody_waits_for_a_core_that_is_busy(pool: ThreadPoolExecutor) -> None:
    free = threading.Event()
    pool.submit(free.wait, 60)
    try:
        assert Beside(threading.get_ident, MANY)() == threading.get_ident()
    finally:
        free.set()


def test_what_fails_elsewhere_fails_here(pool: ThreadPoolExecutor) -> None:
    def work() -> int:
        raise ValueError("wrong")

    for rows in (0, MANY):
        with pytest.raises(ValueError, match="wrong"):
            Beside(work, rows)()


def test_it_is_part_of_the_call(pool: ThreadPoolExecutor) -> None:
    with call() as mine:
        known = Beside(current, MANY)
        time.sleep(0.1)
        assert known() is mine


def test_results_of_pieces_are_in_order(pool: ThreadPoolExecutor) -> None:
    assert together([partial(pow, 2, n) for n in range(20)], MANY) == [2**n for n in range(20)]
    assert together([], MANY) == []


@pytest.mark.parametrize("first", [True, False])
def test_where_a_piece_fails_none_is_under_way(pool: ThreadPoolExecutor, *, first: bool) -> None:
    begun, ended = [], []
    running = threading.Event()

    def slow() -> None:
        begun.append(1)
        running.set()
        time.sleep(0.3)
        ended.append(1)

    def wrong() -> None:
        running.wait(10)
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        together([*([wrong, slow] if first else [slow, wrong]), slow, slow], MANY)
    assert begun == ended == [1]
    time.sleep(0.4)
    assert len(begun) == 1


def test_behind_the_block_it_is_not_under_way(pool: ThreadPoolExecutor) -> None:
    running, ended = threading.Event(), []

    def slow() -> None:
        running.set()
        time.sleep(0.3)
        ended.append(1)

    def wrong() -> None:
        with Beside(slow, MANY):
            assert running.wait(10)
            raise ValueError("other")

    with pytest.raises(ValueError, match="other"):
        wrong()
    assert ended
    free = threading.Event()
    pool.submit(free.wait, 60)
    ended.clear()
    with Beside(slow, MANY):
        pass
    free.set()
    pool.submit(int).result(10)
    assert not ended


def test_a_second_interrupt_waits_for_it_too(pool: ThreadPoolExecutor) -> None:
    running, ended = threading.Event(), []

    def slow() -> None:
        running.set()
        time.sleep(0.5)
        ended.append(1)

    def stopped() -> None:
        with Beside(slow, MANY):
            assert running.wait(10)
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
            raise ValueError("the first")

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert ended


def test_at_the_end_of_the_program_it_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = ThreadPoolExecutor(1)
    ended.shutdown()
    monkeypatch.setattr(beside, "_pool", lambda: ended)
    assert Beside(threading.get_ident, MANY)() == threading.get_ident()
