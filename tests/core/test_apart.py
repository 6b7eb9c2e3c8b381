"""Work in a thread of its own: what Ctrl-C leaves, what is undone then, and how the program ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time

import pytest

from cq_engine.core.apart import apart
from tests.core.pressing import interrupted, press


@pytest.mark.parametrize("fails", [False, True])
def test_what_nobody_waits_for_any_more_is_undone(fails: bool) -> None:
    """Where it has come to its end after Ctrl-C; what has failed has done nothing."""
    begun, answer, undone = threading.Event(), threading.Event(), threading.Event()
    done: list[threading.Thread] = []

    def work() -> None:
        done.append(threading.current_thread())
        begun.set()
        answer.wait(60)
        if fails:
            raise ValueError

    threading.Thread(target=lambda: (begun.wait(60), press())).start()
    interrupted(lambda _: apart(work, undone.set))
    assert not undone.is_set()
    answer.set()
    done[0].join()
    assert undone.is_set() is not fails


def test_what_is_waited_for_to_the_end_is_not_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    undone = threading.Event()
    registered: list[object] = []
    monkeypatch.setattr("atexit.register", registered.append)
    assert apart(lambda: 7, undone.set) == 7
    with pytest.raises(ZeroDivisionError):
        apart(lambda: 1 // 0, undone.set)
    assert not undone.is_set()
    assert registered == [], "the end of the program waits for none of them"


ENDING = """
import _thread, atexit, sys, threading
from contextlib import suppress
from cq_engine.core.apart import apart
from cq_engine.core.calls import call

def work():
    _thread.interrupt_main()
    answer.wait()
    print("answered", flush=True)

answer = threading.Event()
with suppress(KeyboardInterrupt), call():
    apart(work)
atexit.register(print, "ends", flush=True)
threading.Thread(target=lambda: (sys.stdin.readline(), answer.set()), daemon=True).start()
"""
"""A program that ends while what nobody waits for any more is under way; a line of standard input is its answer."""


def test_the_end_of_the_program_waits_for_an_answer_or_for_ctrl_c() -> None:
    def ending() -> subprocess.Popen[str]:
        words = [sys.executable, "-c", ENDING]
        program = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert program.stdout is not None
        assert program.stdout.readline() == "ends\n"
        return program

    answered, interrupted = ending(), ending()
    assert answered.communicate("\n", timeout=60)[0] == "answered\n"
    assert answered.returncode == 0
    time.sleep(0.5)  # it waits
    interrupted.send_signal(signal.SIGINT)
    assert interrupted.communicate(timeout=60)[0] == ""
    assert interrupted.returncode == 130
