"""Who is told when queries move on or definitions change, such as those who follow a query."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from weakref import WeakMethod

__all__ = ["Watchers"]

Tell = Callable[[Collection[str] | None], None]
"""Takes the lower-case names of the queries and query groups that have moved; None: any may have, or is another one."""


class Watchers:
    """Methods that are called in the thread that has changed something, with the catalog held: they only take note.

    An object that is forgotten is told no more.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._methods: tuple[WeakMethod[Tell], ...] = ()

    def add(self, method: Tell) -> None:
        """Has a bound method told of everything from now on."""
        with self._lock:
            known = (each for each in self._methods if each() is not None)
            self._methods = (*known, WeakMethod(method))

    def remove(self, method: Tell) -> None:
        with self._lock:
            self._methods = tuple(each for each in self._methods if each() not in (None, method))

    def tell(self, moved: Collection[str] | None) -> None:
        """Tells everybody what has moved."""
        for each in self._methods:
            method = each()
            if method is not None:
                method(moved)
