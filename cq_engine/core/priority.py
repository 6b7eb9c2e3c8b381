"""Work in the background that leaves the cores to what somebody waits for.

Linux gives every thread a priority of its own, and nobody but root raises it again, so the work gets a thread that ends with it. Threads and
processes that it starts would have its priority for good: it starts none, and lets Arrow start none to compute with.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from cq_engine.core.apart import in_thread

__all__ = ["yielding"]

R = TypeVar("R")

_NICE = 10
"""A tenth of the time that others get who want the same core, and all of it where nobody does."""


def yielding(work: Callable[[], R]) -> R:
    """What `work` gives, done with low priority where the system has such threads. For threads of our own: Ctrl-C ends the waiting, and
    not the work."""
    if sys.platform != "linux":
        return work()

    def run() -> R:
        me = threading.get_native_id()
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, me, max(_NICE, os.getpriority(os.PRIO_PROCESS, me)))
        return work()

    return in_thread(run, "cq-yielding")
