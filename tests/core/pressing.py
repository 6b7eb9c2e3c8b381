"""Ctrl-C, and calls that it ends."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

from cq_engine.core.calls import Call, Interrupted, call


def press() -> None:
    """What a terminal does."""
    os.kill(os.getpid(), signal.SIGINT)


def press_later(seconds: float = 0.1) -> None:
    threading.Timer(seconds, press).start()


def interrupted(run: Callable[[Call], object]) -> Interrupted:
    """What ends the call."""
    try:
        with call() as under_way:
            run(under_way)
    except Interrupted as error:
        return error
    raise AssertionError("it was not interrupted")
