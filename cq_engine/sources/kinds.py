"""The kinds of sources by their type: their options, what reaches them, and by which methods they can be captured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache

from cq_engine.catalog.model import Capture, CatalogState, DeclaredSource
from cq_engine.core.errors import AnalysisError, did_you_mean
from cq_engine.destinations.options import Option, check_options
from cq_engine.destinations.urls import check_secrets
from cq_engine.grammar.format_source import format_method
from cq_engine.sources.methods.base import Method, Place
from cq_engine.sources.options import METHODS, keeps_copy, option

__all__ = ["check_capture", "check_source", "method_of", "methods_of", "reach", "shown_method"]

shown_method = format_method


@dataclass(frozen=True)
class Kind:
    """A type of sources. `methods` gives what is made when a method is used first."""

    options: Mapping[str, Option] | None
    """None where `check` looks at them."""
    reach: Callable[[DeclaredSource], None]
    methods: Mapping[str, Callable[[], Method]]
    check: Callable[[DeclaredSource, Place], None] = lambda _, __: None
    log: tuple[str, ...] = ()
    """The options that captures USING LOG have here."""
    slots: Callable[[], Method] | None = None
    """What reads the server's own log, where a capture names a slot."""
    copies: Callable[[], Method] | None = None
    """What keeps copies at the source, where it can have them."""
    no_where: str = ""
    """Why WHERE is not for captures from here."""

    def method_options(self, method: str) -> Mapping[str, Option]:
        """The options of captures by this method."""
        known = METHODS[method]
        if method == "COPY" and self.copies is None:
            return {}
        return {name: known[name] for name in self.log} if method == "LOG" else known


@cache
def _kind(name: str) -> Kind | None:
    """Imports what only this kind needs."""
    if name == "delta":
        from cq_engine.sources.delta.feed import DeltaFeed
        from cq_engine.sources.delta.table import OPTIONS

        return Kind(OPTIONS, lambda _: None, {"LOG": DeltaFeed, "COPY": DeltaFeed}, log=("initial",))
    if name == "iceberg":
        from cq_engine.sources.iceberg import table
        from cq_engine.sources.iceberg.feed import IcebergFeed

        return Kind(
            table.OPTIONS, lambda _: None, {"LOG": IcebergFeed, "COPY": IcebergFeed}, log=("initial",)
        )
    if name == "debezium":
        from cq_engine.sources.debezium.feed import DebeziumFeed, records_of
        from cq_engine.sources.topics.address import DEBEZIUM, check_debezium

        return Kind(
            DEBEZIUM, lambda declared: records_of(declared).check(), {"LOG": DebeziumFeed},
            check_debezium, log=("initial", "on_poison"), no_where="envelopes cannot be asked in SQL",
        )  # fmt: skip
    if name == "kafka":
        from cq_engine.sources.topics import address
        from cq_engine.sources.topics.feed import TopicFeed
        from cq_engine.sources.topics.topic import Topic

        return Kind(
            address.KAFKA, lambda declared: Topic(declared).check(), {"LOG": TopicFeed},
            address.check, log=("initial", "on_poison"), no_where="messages cannot be asked in SQL",
        )  # fmt: skip
    if name in _FILES:
        from cq_engine.sources.files.directory import Directory
        from cq_engine.sources.files.feed import ArrivingFiles
        from cq_engine.sources.files.image import FileImage
        from cq_engine.sources.files.options import OPTIONS as FILE_OPTIONS

        return Kind(
            FILE_OPTIONS[name], lambda declared: Directory(declared, None).check(),
            {"LOG": ArrivingFiles, "COPY": FileImage}, log=("initial", "on_poison", "changed"),
            no_where="files cannot be asked in SQL",
        )  # fmt: skip
    if name in _SQL:
        from cq_engine.sources.copies.capture import CopyAtSource
        from cq_engine.sources.methods.checksum import Checksum
        from cq_engine.sources.methods.copy import Copy
        from cq_engine.sources.methods.ranges import Ranges
        from cq_engine.sources.methods.timestamp import Timestamp
        from cq_engine.sources.sql.address import check_declaration

        methods: Mapping[str, Callable[[], Method]] = {
            "TIMESTAMP": Timestamp, "CHECKSUM": Checksum, "COPY": Copy, "RANGES": Ranges, "VIEW": Copy,
        }  # fmt: skip
        if name != "sql":
            from cq_engine.sources.triggers.capture import Triggers

            methods = {**methods, "LOG": Triggers}
        kind = Kind(
            None, _connect, methods, check_declaration, log=("initial", "install"), copies=CopyAtSource
        )
        if name == "postgresql":
            from cq_engine.sources.decoding.capture import Decoding

            return replace(kind, log=(*kind.log, "slot"), slots=Decoding)
        return kind
    return None


_SQL = ("sqlite", "postgresql", "mariadb", "sql")
_FILES = ("csv", "json", "parquet")
TYPES = (*_SQL, "delta", "iceberg", "debezium", "kafka", *_FILES)


def _connect(declared: DeclaredSource) -> None:
    from cq_engine.sources.sql.database import Database

    with Database.open(declared) as database:
        database.check()


def _of(declared: DeclaredSource, place: Place = lambda _: None) -> Kind:
    kind = _kind(declared.type)
    if kind is None:
        raise AnalysisError(
            f"there is no type {declared.type} of sources",
            hint=did_you_mean(declared.type, TYPES, f"the types are {', '.join(TYPES)}"),
            location=place(declared.type),
        )
    return kind


def check_source(declared: DeclaredSource, place: Place = lambda _: None) -> None:
    """Raises AnalysisError for a type that is not there, and for options that the type does not have or take."""
    kind = _of(declared, place)
    if kind.options is not None:
        check_options(dict(declared.options), kind.options, f"a source of type {declared.type}", place)
    if "://" in dict(declared.options).get("path", ""):
        check_secrets(dict(declared.options)["path"], "path", place)
    kind.check(declared, place)


def reach(declared: DeclaredSource) -> None:
    """Raises SourceError where the source cannot be read."""
    _of(declared).reach(declared)


def check_capture(declared: DeclaredSource, capture: Capture, place: Place = lambda _: None) -> None:
    """Raises AnalysisError for a method that the source does not have, and for options that it does not have or take."""
    kind, known = capture.method.kind, _of(declared)
    methods = known.methods
    if kind not in methods:
        raise AnalysisError(
            f"USING {kind} is not for sources of type {declared.type}",
            hint=f"these can be captured USING {' or '.join(methods)}",
            location=place(kind),
        )
    check_options(dict(capture.options), known.method_options(kind), f"a capture USING {kind}", place)
    if kind == "LOG" and option(capture, "slot") and option(capture, "install") == "true":
        raise AnalysisError(
            "slot and install are two logs",
            hint="leave install out, and the server's own log is read; without slot triggers write one",
            location=place("install"),
        )
    if known.no_where and capture.where is not None:
        raise AnalysisError(
            f"WHERE is not for sources of type {declared.type}",
            detail=known.no_where,
            hint="leave it out, and restrict the queries over the table",
            location=place("WHERE"),
        )
    if kind == "TIMESTAMP" and capture.method.deleted is None and option(capture, "purge") == "true":
        raise AnalysisError(
            "purge = true needs a delete flag",
            hint="write USING TIMESTAMP (ts, DELETED flag)",
            location=place("purge"),
        )


def methods_of(declared: DeclaredSource) -> tuple[str, ...]:
    """By which methods the source can be captured: what stands after USING, without what is in brackets."""
    return tuple(_of(declared).methods)


def method_of(declared: DeclaredSource, capture: Capture, state: CatalogState) -> Method:
    """What runs the capture, over the definitions of `state`."""
    method = capture.method.kind
    if method == "SWEEP":
        from cq_engine.sources.remote.capture import Sweep

        return Sweep(state)
    is_slot = method == "LOG" and option(capture, "slot") != ""
    return _method(declared.type, method, is_slot=is_slot, is_there=keeps_copy(capture))


@cache
def _method(kind: str, method: str, *, is_slot: bool, is_there: bool) -> Method:
    found = _kind(kind)
    assert found is not None
    other = found.slots if is_slot else found.copies if is_there else None
    return found.methods[method]() if other is None else other()
