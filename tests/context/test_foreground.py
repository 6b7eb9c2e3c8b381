"""Work in the background steps aside while somebody waits, and not for ever."""

from __future__ import annotations

import threading
import time

import pytest

from cq_engine.context.foreground import Foreground

LONG = 60.0


def test_it_waits_until_nobody_does() -> None:
    foreground, stopped, order = Foreground(), threading.Event(), list[str]()

    def work() -> None:
        foreground.step_aside(0.2, LONG, stopped)
        order.append("background")

    background = threading.Thread(target=work)
    with foreground.busy():
        background.start()
        with foreground.busy():
            time.sleep(0.3)
        order.append("foreground")
    background.join(LONG)
    assert order == ["foreground", "background"]


def test_it_waits_for_those_who_come_in_a_moment() -> None:
    foreground, stopped, order = Foreground(), threading.Event(), list[str]()

    def work() -> None:
        foreground.step_aside(1.0, LONG, stopped)
        order.append("background")

    background = threading.Thread(target=work)
    background.start()
    time.sleep(0.1)
    with foreground.busy():
        order.append("foreground")
    background.join(LONG)
    assert order == ["foreground", "background"]


@pytest.mark.parametrize("stop", [True, False], ids=["until the end", "for a while"])
def test_it_does_not_wait_for_ever(stop: bool) -> None:
    foreground, stopped = Foreground(), threading.Event()
    if stop:
        threading.Timer(0.2, stopped.set).start()
    with foreground.busy():
        begin = time.monotonic()
        foreground.step_aside(0.1, LONG if stop else 0.3, stopped)
        assert time.monotonic() - begin >= 0.19
