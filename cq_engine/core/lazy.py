"""Packages whose public names are imported when they are first used (PEP 562): a process that commits needs few of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

__all__ = ["attributes"]


def attributes(package: str, names: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """The `__getattr__` of a package: `names` says which module below it has which names.

    >>> attributes("cq_engine.core", {"clock": ["Clock"]})("Clock").__module__
    'cq_engine.core.clock'
    """
    home = {name: f"{package}.{module}" for module, each in names.items() for name in each}

    def find(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(home[name]), name)

    return find
