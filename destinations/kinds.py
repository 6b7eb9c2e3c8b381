"""The kinds of destinations: of each its options, its class, and how one is made.

A new kind is a module with a `KIND` and its line here, or a `Sink` of an installed package. What is special about serving it is said by its class
(`Destination.exactly_once`, `background`, `registered`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module

from cq_engine.catalog.model import DeclaredDestination
from cq_engine.context.services import Services
from cq_engine.core.errors import AnalysisError, Location, did_you_mean
from cq_engine.destinations.base import Destination
from cq_engine.destinations.installed import installed_names, installed_sink
from cq_engine.destinations.kind_parts import Kind, Place
from cq_engine.destinations.options import check_options
from cq_engine.grammar.clauses import DestinationRef

__all__ = ["KINDS", "check_declared", "class_of", "kind_named", "reach"]

_MODULES: Mapping[str, str] = {
    "TABLE": "table",
    "CALLBACK": "callback",
    "TRIGGER": "triggers.trigger",
    "QUEUE": "queues.queue",
    "WEBHOOK": "webhook",
    "DELTA": "targets.delta",
    "DATABASE": "targets.database",
    "KAFKA": "brokers.kafka",
    "NATS": "brokers.nats_jetstream",
    "RABBITMQ": "brokers.rabbitmq",
    "REDIS": "brokers.redis_streams",
}
"""Each has a `KIND`. They are imported when they are asked for, so that a process that only commits starts soon."""


class _Kinds(Mapping[str, Kind]):
    def __getitem__(self, name: str) -> Kind:
        return _kind(_MODULES[name])

    def __iter__(self) -> Iterator[str]:
        return iter(_MODULES)

    def __len__(self) -> int:
        return len(_MODULES)


@cache
def _kind(module: str) -> Kind:
    found: Kind = import_module(f"cq_engine.destinations.{module}").KIND
    return found


KINDS: Mapping[str, Kind] = _Kinds()
_OWN = frozenset(_MODULES)


def class_of(reference: DestinationRef) -> type[Destination]:
    """The class of a destination whose kind is settled. Imports no package that brings a type."""
    kind = reference.kind or "TABLE"
    if kind in _OWN:
        return KINDS[kind].of
    from cq_engine.destinations.sink import sink_class

    return sink_class(kind)


def kind_named(name: str) -> Kind | None:
    """The kind, the engine's own or one of an installed package; None where there is none.

    Raises DestinationError where the package cannot be used.
    """
    if name in _OWN:
        return KINDS[name]
    of = installed_sink(name, _OWN)
    if of is None:
        return None
    from cq_engine.destinations.sink import sink_kind

    return sink_kind(name, of)


def check_declared(destination: DeclaredDestination, place: Place = lambda _: None) -> None:
    """Raises AnalysisError for a type that is not there, and for options that the type does not have or take,
    DestinationError for the type of a package that cannot be used."""
    kind = kind_named(destination.type)
    shown = destination.type.lower()
    if kind is None:
        raise _no_type(destination.type, place(shown))
    if (destination.script is None) is (destination.type == "TRIGGER"):
        raise AnalysisError(
            "a trigger needs a script" if destination.script is None else f"a {shown} has no script",
            hint="write CREATE DESTINATION name TYPE trigger AS BEGIN statement; ... END",
            location=place(shown),
        )
    check_options(dict(destination.options), kind.options, f"a destination of type {shown}", place)
    kind.check(destination, place)


def reach(destination: DeclaredDestination, services: Services, place: Place = lambda _: None) -> None:
    """Raises DestinationError where what lies outside of the warehouse answers and refuses, AnalysisError where nothing
    outside of it may be touched."""
    kind = kind_named(destination.type)
    ask = None if kind is None else kind.reach
    if ask is not None:
        shown = destination.type.lower()
        services.rights.check_outside(f"a destination of type {shown}", place(shown))
        ask(destination, services)


def _no_type(name: str, location: Location | None) -> AnalysisError:
    shown, names = name.lower(), [*(each.lower() for each in KINDS), *installed_names(_OWN)]
    return AnalysisError(
        f"there is no type {shown} of destinations",
        detail="neither the engine nor a package that is installed has it",
        hint=did_you_mean(shown, names, f"the types are {', '.join(names)}"),
        location=location,
    )
