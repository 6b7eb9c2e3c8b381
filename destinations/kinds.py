"""The kinds of destinations: of each its options, its class, and how one is made.

A new kind is an entry of `KINDS`, or a `Sink` of an installed package. What is special about serving it is said by its class
(`Destination.exactly_once`, `background`, `registered`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from cq_engine.catalog.destinations import is_merge
from cq_engine.catalog.model import DeclaredDestination
from cq_engine.context.services import Services
from cq_engine.core.errors import AnalysisError, DestinationError, Location, did_you_mean
from cq_engine.destinations.base import Destination
from cq_engine.destinations.brokers.kafka import KafkaSink
from cq_engine.destinations.brokers.nats_jetstream import NatsSink
from cq_engine.destinations.brokers.rabbitmq import RabbitSink
from cq_engine.destinations.brokers.redis_streams import RedisSink
from cq_engine.destinations.callback import CallbackDestination
from cq_engine.destinations.installed import installed_names, installed_sink
from cq_engine.destinations.kind_parts import Place, Wanted
from cq_engine.destinations.options import COMMON, Option, count, one_of
from cq_engine.destinations.queues.queue import OPTIONS as QUEUE
from cq_engine.destinations.queues.queue import QueueDestination, make_queue
from cq_engine.destinations.sink import Sink, failure, make_sink, sink_class
from cq_engine.destinations.table import TableDestination
from cq_engine.destinations.targets.database import (
    TABLE,
    URL,
    DatabaseDestination,
    check_database,
    reach_database,
)
from cq_engine.destinations.targets.delta import PATH, DeltaDestination, reach_delta
from cq_engine.destinations.targets.target import check_mode
from cq_engine.destinations.triggers.trigger import TriggerDestination
from cq_engine.destinations.urls import check_url
from cq_engine.destinations.variables import VARIABLE
from cq_engine.destinations.webhook import OPTIONS as WEBHOOK
from cq_engine.destinations.webhook import WebhookDestination, check_webhook, make_webhook, reach_webhook
from cq_engine.grammar.statements import DestinationRef

__all__ = [
    "KINDS",
    "Kind",
    "Place",
    "Wanted",
    "check_declared",
    "class_of",
    "kind_named",
    "no_trigger",
    "reach",
    "sink_kind",
]


def _no_check(_: DeclaredDestination, __: Place) -> None:
    pass


@dataclass(frozen=True)
class Kind:
    """`make` raises DestinationError where there is no such destination. `check` is for what a declaration says as a
    whole, when each option is right by itself."""

    of: type[Destination]
    options: Mapping[str, Option]
    make: Callable[[Wanted], Destination]
    check: Callable[[DeclaredDestination, Place], None] = _no_check
    reach: Callable[[DeclaredDestination, Services], None] | None = None
    """Of a kind outside of the warehouse: asks what is there, and raises DestinationError where that answers and refuses."""


def _table(wanted: Wanted) -> Destination:
    query, reference = wanted.query, wanted.reference
    tables = wanted.state.tables
    table = tables.get(reference.name.lower())
    if table is None:
        names = [t.name for t in tables.values()] + list(wanted.callbacks.names())
        raise DestinationError(
            f"continuous query {query.name} delivers to {reference.name}, which is no table"
            + ("" if reference.kind else " and no registered callback"),
            hint=did_you_mean(reference.name, names)
            or f"create table {reference.name}, or register the callback",
        )
    return TableDestination(wanted.services, query, table)


def _check_table(destination: DeclaredDestination, place: Place) -> None:
    for name, _ in destination.options:
        if name in COMMON and is_merge(destination):
            raise AnalysisError(
                f"{name} is not for mode = 'merge'",
                detail="the query's own refreshes write the table, and there is nothing that could fail by itself",
                hint="leave it out",
                location=place(name),
            )


def _callback(wanted: Wanted) -> Destination:
    name, callbacks = wanted.reference.name, wanted.callbacks
    function = callbacks.get(name)
    if function is None:
        raise DestinationError(
            f"callback {name} of continuous query {wanted.query.name} is not registered in this process",
            detail="its deltas wait in the delta log",
            hint=did_you_mean(name, callbacks.names()) or f'register it: @engine.callback("{name}")',
        )
    options = {**callbacks.options(name), **dict(wanted.declared.options)}
    return CallbackDestination(
        wanted.services, wanted.query, name, function,
        retry=wanted.retry, stopped=wanted.stopped, batch=options.get("batch", "transaction").lower(),
        concurrency=_concurrency(options.get("concurrency", "1")), callbacks=callbacks,
    )  # fmt: skip


def _concurrency(value: str) -> int:
    if count(value) > _MOST_CALLS:
        raise ValueError
    return count(value)


_MOST_CALLS = 256
"""Each has a thread while it runs."""
_CALLS = {
    "batch": one_of("transaction", "row", "refresh"),
    "concurrency": Option(
        "1", _concurrency, f"write how many calls at once, 1 to {_MOST_CALLS}, as in concurrency = 4"
    ),
}


_MAX_DEPTH = Option("16", count, "write how many triggers may lead to one another, as in max_depth = 4")


def _trigger(wanted: Wanted) -> Destination:
    declared = wanted.declared
    if declared.script is None:
        raise no_trigger(declared.name)
    depth = count(dict(declared.options).get("max_depth", _MAX_DEPTH.default or ""))
    return TriggerDestination(
        wanted.services, wanted.query, declared.name, declared.script, max_depth=depth, stopped=wanted.stopped
    )


def no_trigger(name: str) -> DestinationError:
    """The error for a trigger that was not declared."""
    return DestinationError(
        f"there is no trigger {name}",
        hint=f"declare it first: CREATE DESTINATION {name} TYPE trigger AS BEGIN statement; ... END",
    )


def sink_kind(name: str, of: type[Sink]) -> Kind:
    """The kind that such a class is."""
    of_kind = sink_class(name)

    def ask(declared: DeclaredDestination, _: Services) -> None:
        sink = make_sink(of, declared)
        try:
            sink.check()
        except Exception as error:
            raise failure(declared, error) from error

    return Kind(
        of_kind,
        {**{each: _as_written(option) for each, option in of.OPTIONS.items()}, **COMMON},
        lambda wanted: of_kind(wanted, make_sink(of, wanted.declared)),
        reach=ask,
    )


def _as_written(option: Option) -> Option:
    """The option of a sink, whose check sees values as they are where variables are known."""

    def check(value: str) -> None:
        if option.secret and value and not VARIABLE.fullmatch(value):
            raise ValueError
        if not VARIABLE.search(value):
            try:
                option.check(value)
            except Exception as error:
                raise ValueError from error

    return replace(option, check=check)


KINDS: Mapping[str, Kind] = {
    "TABLE": Kind(TableDestination, {"mode": one_of("history", "merge"), **COMMON}, _table, _check_table),
    "CALLBACK": Kind(CallbackDestination, {**_CALLS, **COMMON}, _callback),
    "TRIGGER": Kind(TriggerDestination, {"max_depth": _MAX_DEPTH, **COMMON}, _trigger),
    "QUEUE": Kind(QueueDestination, QUEUE, make_queue),
    "WEBHOOK": Kind(WebhookDestination, {**WEBHOOK, **COMMON}, make_webhook, check_webhook, reach_webhook),
    "DELTA": Kind(
        DeltaDestination,
        {"path": PATH, "mode": one_of("history", "merge"), **COMMON},
        lambda wanted: DeltaDestination(wanted.services, wanted.query, wanted.declared, wanted.stopped),
        check_mode,
        reach_delta,
    ),
    "DATABASE": Kind(
        DatabaseDestination,
        {"url": URL, "table": TABLE, "mode": one_of("history", "merge"), **COMMON},
        lambda wanted: DatabaseDestination(wanted.services, wanted.query, wanted.declared, wanted.stopped),
        check_database,
        reach_database,
    ),
    "KAFKA": replace(sink_kind("KAFKA", KafkaSink), check=check_url),
    "NATS": replace(sink_kind("NATS", NatsSink), check=partial(check_url, user=True)),
    "RABBITMQ": replace(sink_kind("RABBITMQ", RabbitSink), check=check_url),
    "REDIS": replace(sink_kind("REDIS", RedisSink), check=check_url),
}


_OWN = frozenset(KINDS)


def class_of(reference: DestinationRef) -> type[Destination]:
    """The class of a destination whose kind is settled. Imports no package that brings a type."""
    kind = reference.kind or "TABLE"
    return KINDS[kind].of if kind in KINDS else sink_class(kind)


def kind_named(name: str) -> Kind | None:
    """The kind, the engine's own or one of an installed package; None where there is none.

    Raises DestinationError where the package cannot be used.
    """
    if name in KINDS:
        return KINDS[name]
    of = installed_sink(name, _OWN)
    return None if of is None else sink_kind(name, of)


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
    given = dict(destination.options)
    for name, value in given.items():
        if name not in kind.options:
            raise AnalysisError(
                f"there is no option {name} of a destination of type {shown}",
                hint=did_you_mean(name, kind.options, f"the options are {', '.join(kind.options)}"),
                location=place(name),
            )
        try:
            kind.options[name].check(value)
        except ValueError:
            raise AnalysisError(
                f"{name} = '{value}' is not possible", hint=kind.options[name].hint, location=place(name)
            ) from None
    for name, option in kind.options.items():
        if option.default is None and name not in given:
            raise AnalysisError(
                f"a destination of type {shown} needs the option {name}",
                hint=option.hint,
                location=place(shown),
            )
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
