"""Types of destinations that installed packages bring, by the entry points of the group `cq_engine.destinations`.

Nothing is looked up before a type that is none of the engine's own is named, and no other package is imported than the one
that has it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from cq_engine.core.errors import DestinationError
from cq_engine.destinations.options import COMMON, Option

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

if TYPE_CHECKING:  # commits do without
    from cq_engine.destinations.sink import Sink

__all__ = ["GROUP", "check_class", "installed_names", "installed_sink"]

_log = logging.getLogger(__name__)

GROUP = "cq_engine.destinations"
_loaded: dict[str, type[Sink]] = {}
_told: set[str] = set()


def installed_names(own: Collection[str]) -> list[str]:
    """The types that packages bring, in lower case. One that is called like one of the engine's `own` (in upper case) is
    left out, which the log says once."""
    names = {each.name for each in _entry_points()}
    for name in sorted(n for n in names if n.upper() in own and n not in _told):
        _told.add(name)
        packages = " and ".join(_package(each) for each in _entry_points() if each.name == name)
        _log.warning("destinations of type %s are the engine's own, not those of %s", name.lower(), packages)
    return sorted({name.lower() for name in names if name.upper() not in own})


def installed_sink(name: str, own: Collection[str]) -> type[Sink] | None:
    """The class of the type `name`, regardless of case; None where no package has it, or it is one of `own`.

    Raises:
        DestinationError: two packages have it, or the one that has it cannot be used.
    """
    name = name.lower()
    if name in _loaded:
        return _loaded[name]
    if name not in installed_names(own):
        return None
    found = [each for each in _entry_points() if each.name.lower() == name]
    if len({(_package(each), each.value) for each in found}) > 1:
        raise DestinationError(
            f"{len(found)} packages have a type {name} of destinations",
            detail=" and ".join(sorted(_package(each) for each in found)),
            hint="uninstall one of them",
        )
    _loaded[name] = _load(name, found[0])
    return _loaded[name]


def _entry_points() -> list[EntryPoint]:
    from importlib.metadata import entry_points

    return list(entry_points(group=GROUP))


def _package(entry: EntryPoint) -> str:
    return "a package without a name" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"


def _load(name: str, entry: EntryPoint) -> type[Sink]:
    try:
        return check_class(entry.load())
    except (Exception, SystemExit) as error:
        said = error if isinstance(error, TypeError) else f"{type(error).__name__}: {error}"
        raise DestinationError(
            f"type {name} of package {_package(entry)} cannot be used: {said}",
            detail=f"its entry point is {entry.value}",
            hint="install what the package needs, or another version of it, where queries are refreshed",
        ) from error


def check_class(of: object) -> type[Sink]:
    """`of`, if it is a whole subclass of `Sink`. Raises TypeError."""
    from cq_engine.destinations.sink import Sink

    if not (isinstance(of, type) and issubclass(of, Sink)):
        raise TypeError(f"{of!r} is no subclass of cq_engine.destinations.Sink")
    if missing := sorted(getattr(of, "__abstractmethods__", ())):
        raise TypeError(f"{of.__name__} has no method {', '.join(missing)}")
    options: Any = of.OPTIONS
    if not isinstance(options, Mapping):
        raise TypeError(f"{of.__name__}.OPTIONS is no mapping")
    for name, option in options.items():
        if not isinstance(option, Option) or name != name.lower():
            raise TypeError(f"{of.__name__}.OPTIONS[{name!r}] is no Option with a name in lower case")
        if name in COMMON:
            raise TypeError(f"{of.__name__}.OPTIONS has {name}, which is the engine's own")
    return of
