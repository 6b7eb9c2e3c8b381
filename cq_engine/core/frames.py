"""What the main thread is in the middle of where a signal comes.

Python runs a signal handler between any two steps of the main thread, also between the one that takes a lock and the one
that remembers to give it back.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from types import CodeType, FrameType

from cq_engine.core import interrupts

__all__ = ["splits", "waits"]

_PAIRED = ("threading", "contextlib", "queue", "concurrent", "weakref", "_weakrefset")
"""Modules whose steps belong together."""
_SHORT = frozenset({interrupts.BEGINNING, threading.Thread.start.__code__})
"""With all that they call."""
_JOINING: frozenset[CodeType] = frozenset(
    function.__code__
    for function in (
        threading.Thread.join,
        getattr(threading.Thread, "_wait_for_tstate_lock", None),  # of Python < 3.13
    )
    if function is not None
)


def waits(frame: FrameType | None) -> bool:
    """Is it in one of the standard library's waits for an event or a thread, which may be long? What is raised there leaves no lock taken.

    Args:
        frame: where a signal handler was called.
    """
    frame = interrupts.arrived(frame)
    if frame is not None and frame.f_code is threading.Condition.wait.__code__:
        return "gotit" in frame.f_locals and not _owns(frame)  # not before nor behind the wait itself
    return frame is not None and frame.f_code in _JOINING


def splits(frame: FrameType | None) -> bool:
    """Whether what a signal handler raises would part what belongs together: the steps in which a lock is taken or given
    back, a block begun or ended, a thread started, a deferral begun or ended. They are short, unless they wait (`waits`).
    In a finalizer what is raised would be lost.

    Args:
        frame: where the handler was called.
    """
    frame = interrupts.arrived(frame)
    owned = getattr(_entered(frame), "_is_owned", None)
    if owned is not None:
        if owned():  # else it waits for the lock
            return True
    elif _is_paired(frame) and not waits(frame):
        return True
    while frame is not None and frame.f_code not in _SHORT and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


def _entered(frame: FrameType | None) -> object:
    """The lock that the frame takes as the beginning of somebody's block. The library's own are held for a moment."""
    if frame is not None and frame.f_code is threading.Condition.__enter__.__code__:
        return None if _is_paired(frame.f_back) else frame.f_locals["self"]
    if frame is not None and frame.f_code is ExitStack.enter_context.__code__:
        return frame.f_locals.get("cm")
    return None


def _is_paired(frame: FrameType | None) -> bool:
    module = "" if frame is None else str(frame.f_globals.get("__name__", ""))
    return module == interrupts.__name__ or module.partition(".")[0] in _PAIRED


def _owns(frame: FrameType) -> bool:
    """Has the main thread the lock of the condition of which the frame is a method? Where that cannot be told, if anybody has."""
    return bool(frame.f_locals["self"]._is_owned())  # noqa: SLF001 - no other way
