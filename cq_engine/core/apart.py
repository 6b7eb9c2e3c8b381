"""Work in a thread of its own, for which the thread that asks for it waits: what waits for a network inside a library would not notice
Ctrl-C, and the main thread does."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import NoReturn, TypeVar

from cq_engine.core.calls import carried

__all__ = ["apart", "in_thread"]

R = TypeVar("R")

_LOOK_SECONDS = 0.5
_SILENT_SECONDS = 1.0


def apart(work: Callable[[], R], undo: Callable[[], object] | None = None) -> R:
    """What `work` gives. It is done in another thread while the main thread waits, which Ctrl-C reaches there. Nobody hears of what comes
    of it then: where it comes to its end after all, it is undone."""
    if threading.current_thread() is not threading.main_thread():
        return work()
    return in_thread(work, "cq-apart", undo)


def in_thread(work: Callable[[], R], name: str, undo: Callable[[], object] | None = None) -> R:
    """What `work` gives, done in a thread of its own as part of the call of this one, which waits. Where it does not wait any longer,
    `undo` takes back what has been done."""
    answers: SimpleQueue[Callable[[], R]] = SimpleQueue()
    left = threading.Event()
    carry = carried(work)

    def run() -> None:
        try:
            found = carry()
        except BaseException as error:  # noqa: BLE001 - the caller's
            answers.put(partial(_fail, error))
            return
        answers.put(lambda: found)
        if left.is_set() and undo is not None:
            with suppress(Exception):  # nobody would hear of it
                undo()

    thread = threading.Thread(target=run, name=name, daemon=True)
    try:
        answer = _waited_for(answers) if _begins(thread) else work
    except BaseException:
        left.set()
        _left.add(thread)
        atexit.unregister(_wait_for_left)
        atexit.register(_wait_for_left)  # before what libraries have registered meanwhile
        raise
    return answer()


def _begins(thread: threading.Thread) -> bool:
    """Starts it; false where none can be started, since the program ends."""
    try:
        thread.start()
    except RuntimeError:
        return False
    return True


def _waited_for(answers: SimpleQueue[R]) -> R:
    """What is put there. A signal just before the waiting begins does not end it: so it begins again and again."""
    while True:
        with suppress(Empty):
            return answers.get(timeout=_LOOK_SECONDS)


def _fail(error: BaseException) -> NoReturn:
    raise error


_left: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
"""Threads for which nobody waits any more."""


def _wait_for_left() -> None:
    """At the end of the program: Arrow's libraries may end it with an error while one of them is inside. Ctrl-C ends it at once, which
    a person at a terminal is told after a while."""
    told = not sys.stderr.isatty()
    try:
        for thread in [each for each in _left if each.is_alive()]:
            thread.join(_SILENT_SECONDS)
            if thread.is_alive() and not told:
                sys.stderr.write("(waiting for a store that does not answer; Ctrl-C leaves at once)\n")
                told = True
            thread.join()
    except KeyboardInterrupt:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(128 + signal.SIGINT)
