"""CREATE, ALTER and DROP of sources and captures."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from cq_engine.catalog import apply
from cq_engine.catalog.model import Capture, CaptureStatus, CatalogState, DeclaredSource, Table
from cq_engine.catalog.sources import (
    captures_of,
    drop_capture,
    drop_source,
    find_capture,
    find_source,
    put_capture,
    put_source,
)
from cq_engine.core.errors import AnalysisError, CatalogError, CQError, Location
from cq_engine.definition.registry import Registry
from cq_engine.grammar import (
    AlterCapture,
    AlterSource,
    CreateCapture,
    CreateSource,
    CreateTable,
    DropCapture,
    DropSource,
    DropTable,
)
from cq_engine.grammar.clauses import CapturedColumn, CaptureMethod, EveryInterval
from cq_engine.sources.kinds import check_capture, check_source, method_of, reach
from cq_engine.sources.methods.base import check_key_filled
from cq_engine.sources.options import METHODS, keeps_copy, option

__all__ = [
    "alter_capture",
    "alter_source",
    "create_capture",
    "create_from_delta",
    "create_source",
    "prepare",
    "released",
    "remove_capture",
    "remove_source",
    "without",
]

Place = Callable[[str], Location | None]
"""Where a word stands in the statement."""


# ---------------------------------------------------------------- sources


def create_source(registry: Registry, statement: CreateSource, place: Place) -> str:
    """CREATE SOURCE; the message for a person. Raises AnalysisError for a type or option that is not there, SourceError
    where the source cannot be reached, CatalogError where the name is taken."""
    catalog = registry.services.catalog
    declared = DeclaredSource(statement.name, statement.type, statement.options)
    with registry.ddl:
        known = catalog.state.sources.get(statement.name.lower())
        if known is None:
            check_source(declared, place)
            _reach(registry, declared, place)
            with catalog.lock, catalog.write() as unit:
                unit.set_state(put_source(catalog.state, declared))
            return f"source {declared.name} created"
    if statement.if_not_exists:
        return f"source {known.name} exists"
    raise CatalogError(
        f"source {known.name} exists already",
        hint=f"choose another name, or ALTER SOURCE {known.name} SET WITH (...)",
    )


def alter_source(registry: Registry, statement: AlterSource, place: Place) -> str:
    """ALTER SOURCE SET WITH; the message for a person. Captures find the new options at their next tick."""
    catalog = registry.services.catalog
    with registry.ddl:
        found = find_source(catalog.state, statement.name)
        changed = replace(found, options=tuple({**dict(found.options), **dict(statement.options)}.items()))
        check_source(changed, place)
        _reach(registry, changed, place)
        with catalog.lock, catalog.write() as unit:
            unit.set_state(put_source(catalog.state, changed))
    return f"source {found.name} altered"


def remove_source(registry: Registry, statement: DropSource) -> str:
    """DROP SOURCE [RESTRICT | CASCADE]. Raises CatalogError where captures use it and CASCADE is not said."""
    catalog, name = registry.services.catalog, statement.name
    with registry.ddl:
        if statement.if_exists and name.lower() not in catalog.state.sources:
            return f"there is no source {name}"
        found = find_source(catalog.state, name)
        users = captures_of(catalog.state, name)
        _without_source(catalog.state, name, statement.cascade)  # raises where it is used
        with released(registry, users) as left, catalog.lock, catalog.write() as unit:
            unit.set_state(_without_source(catalog.state, name, statement.cascade))
    gone = ", ".join(capture.name for capture in users)
    return f"source {found.name} dropped" + (f", and with it capture {gone}" if gone else "") + left


def _without_source(state: CatalogState, name: str, cascade: bool) -> CatalogState:
    for capture in captures_of(state, name) if cascade else ():
        state = without(state, capture)
    return drop_source(state, name, cascade)


# ---------------------------------------------------------------- captures


def create_capture(registry: Registry, statement: CreateCapture, place: Place) -> str:
    """CREATE CAPTURE; the message for a person.

    Raises AnalysisError for an option that is not there or a method that the source or the table does not allow,
    SourceError where the source cannot be read, CatalogError for a name that is unknown or taken.
    """
    catalog = registry.services.catalog
    with registry.ddl:
        known = catalog.state.captures.get(statement.name.lower())
        if known is not None and statement.if_not_exists:
            return f"capture {known.name} exists"
        if known is not None:
            raise CatalogError(
                f"capture {known.name} exists already",
                hint=f"choose another name, or DROP CAPTURE {known.name} first",
            )
        source = find_source(catalog.state, statement.source)
        table = apply.find_table(catalog.state, statement.table)
        capture = _capture(statement, table)
        check_capture(source, capture, place)
        put_capture(catalog.state, capture)  # its names, before the source is asked
        method = method_of(source, capture, catalog.state)
        if method.needs_key:
            _check_key(capture, table)
        if not table.has_snapshot:
            _check_method(capture, table, place)
        capture, notes = method.check(source, capture, table, place)
        with catalog.lock, catalog.write() as unit:
            state = put_capture(catalog.state, capture)
            for side in method.side_tables(capture, table):
                state = apply.create_table(state, side, catalog.newest_version)
            unit.set_state(state)
        try:
            prepare(registry, source, capture)
        except BaseException:
            with catalog.lock, catalog.write() as unit:
                unit.set_state(without(catalog.state, capture))
            raise
    return f"capture {capture.name} created" + "".join(f"; {note}" for note in notes)


def _check_method(capture: Capture, table: Table, place: Place) -> None:
    """Raises AnalysisError where the method compares the source with the rows of the table, which are not kept."""
    kind = capture.method.kind
    if kind not in ("TIMESTAMP", "LOG") and not keeps_copy(capture):
        raise AnalysisError(
            f"USING {kind} is not for table {table.name}",
            detail="it compares the source with the rows that are here, and the table was created WITHOUT SNAPSHOT",
            hint="write USING TIMESTAMP (column) or USING LOG, or create the table with a snapshot",
            location=place(kind),
        )


def alter_capture(registry: Registry, statement: AlterCapture, place: Place) -> str:
    """ALTER CAPTURE PAUSE | RESUME | SET; the message for a person."""
    catalog = registry.services.catalog
    with registry.ddl:
        found = find_capture(catalog.state, statement.name)
        if statement.action == "RESUME":
            prepare(registry, find_source(catalog.state, found.source), found)
        return _altered(registry, statement, found, place)


def _altered(registry: Registry, statement: AlterCapture, found: Capture, place: Place) -> str:
    catalog = registry.services.catalog
    with catalog.lock:
        status = catalog.capture_status(found.name)
        with catalog.write() as unit:
            if statement.action == "SET":
                _check_free(catalog.state, found)
                options = {**dict(found.options), **dict(statement.options)}
                when = statement.when or found.when
                changed = replace(found, when=when, options=tuple(options.items()))
                source = find_source(catalog.state, found.source)
                check_capture(source, changed, place)
                _check_unmoved(found, changed, place)
                state = put_capture(catalog.state, changed)
                table = apply.find_table(state, changed.table)
                method = method_of(source, changed, state)
                own = {each.name.lower() for each in method.side_tables(found, table)}
                for side in method.side_tables(changed, table):
                    if side.name.lower() not in own:  # raises where there is another table of this name
                        state = apply.create_table(state, side, catalog.newest_version)
                unit.set_state(state)
                return f"capture {found.name} altered"
            unit.set_capture(found.name, _stands(status, statement.action), after=status)
    said = {"PAUSE": "is paused", "RESUME": "goes on"}
    return f"capture {found.name} {said[statement.action]}"


def _check_unmoved(found: Capture, changed: Capture, place: Place) -> None:
    """Raises AnalysisError where what a capture has at its source would be another thing."""
    for name in METHODS[found.method.kind]:
        if name in ("slot", "at") and option(found, name) != option(changed, name):
            raise AnalysisError(
                f"capture {found.name} cannot change by what it reads the source",
                detail="what it has installed there would be left",
                hint=f"DROP CAPTURE {found.name}, and create it anew; its table stays",
                location=place(name),
            )


def remove_capture(registry: Registry, statement: DropCapture) -> str:
    """DROP CAPTURE: its table stays, and gets no more changes."""
    catalog, name = registry.services.catalog, statement.name
    with registry.ddl:
        if statement.if_exists and name.lower() not in catalog.state.captures:
            return f"there is no capture {name}"
        found = find_capture(catalog.state, name)
        _check_free(catalog.state, found)
        without(catalog.state, found)  # raises where a table that only it has is used
        with released(registry, [found]) as left, catalog.lock, catalog.write() as unit:
            unit.set_state(without(catalog.state, found))
    return f"capture {found.name} dropped; table {found.table} stays{left}"


def _check_free(state: CatalogState, capture: Capture) -> None:
    """Raises CatalogError for what belongs to a continuous query."""
    owner = apply.find_table(state, capture.table).part_of
    if owner is not None:
        raise CatalogError(
            f"capture {capture.name} is a part of continuous query {owner}",
            hint=f"DROP or ALTER CONTINUOUS QUERY {owner} instead; ALTER CAPTURE takes PAUSE and RESUME",
        )


def create_from_delta(registry: Registry, statement: CreateTable, place: Place) -> str:
    """CREATE TABLE ... FROM DELTA: the table, with the columns of the Delta Lake table where none are written, the source
    `<table>_source` and the capture `<table>_capture`; the message for a person."""
    from cq_engine.sources.delta.table import columns_of

    catalog, name = registry.services.catalog, statement.name
    path = statement.delta or ""
    if "://" not in path and "${" not in path:
        path = str(Path(path).expanduser().absolute())  # other processes may be elsewhere
    source = DeclaredSource(f"{name}_source", "delta", (("path", path),))
    method = CaptureMethod("LOG")
    with registry.ddl:
        _reach(registry, source, place)
        columns = statement.columns or columns_of(source)
        created = replace(statement, columns=columns, delta=None, when=None)
        with catalog.lock, catalog.write() as unit:
            state = apply.create_table(catalog.state, created, catalog.newest_version)
            table = apply.find_table(state, name)
            when = statement.when or EveryInterval(1, "MINUTE")
            wanted = CreateCapture(f"{name}_capture", name, source.name, method, when=when)
            taken = ""
            if wanted.name.lower() in state.captures:
                taken = f"capture {wanted.name}"
            elif state.sources.get(source.name.lower(), source) != source:
                taken = f"source {source.name}"
            if taken:
                raise CatalogError(
                    f"{taken} exists already", hint=f"drop it, or choose another name than {name}"
                )
            capture = _capture(wanted, table)
            capture, notes = method_of(source, capture, state).check(source, capture, table, place)
            unit.set_state(put_capture(put_source(state, source), capture))
    return f"table {name} created, filled by capture {capture.name}" + "".join(f"; {n}" for n in notes)


# ---------------------------------------------------------------- parts


def _capture(statement: CreateCapture, table: Table) -> Capture:
    """What is to be stored; without a list of columns, those of the table."""
    columns = statement.columns or tuple(CapturedColumn(c.name, c.name) for c in table.columns)
    names = {column.name.lower(): column.name for column in table.columns}
    for each in columns:
        if each.target.lower() not in names:
            raise AnalysisError(
                f"table {table.name} has no column {each.target}", hint=f"it has {', '.join(names.values())}"
            )
    columns = tuple(replace(each, target=names[each.target.lower()]) for each in columns)
    method = statement.method
    options = tuple({**dict(method.options), **dict(statement.options)}.items())
    return Capture(
        statement.name, statement.source, table.name, replace(method, options=()), statement.when,
        statement.relation, columns, statement.where, options,
    )  # fmt: skip


def _check_key(capture: Capture, table: Table) -> None:
    hint = "give the table the primary key of the source, and name its columns"
    if table.primary_key is None:
        raise AnalysisError(
            f"table {table.name} has no primary key", detail="changes find their rows by it", hint=hint
        )
    check_key_filled(capture, table, hint)


def _reach(registry: Registry, declared: DeclaredSource, place: Place) -> None:
    registry.services.rights.check_outside(f"a source of type {declared.type}", place(declared.type))
    reach(declared)


def _stands(status: CaptureStatus, action: str) -> CaptureStatus:
    if action == "PAUSE":
        return replace(status, ticks=status.ticks + 1, state="PAUSED")
    return replace(status, ticks=status.ticks + 1, state="ACTIVE", error="", failures=0)


def prepare(registry: Registry, declared: DeclaredSource, capture: Capture) -> None:
    """Makes the source ready for a capture that is new or has failed, and notes what it goes on from."""
    catalog = registry.services.catalog
    status = catalog.capture_status(capture.name)
    if status.position and status.state != "FAILED":
        return
    table = apply.find_table(catalog.state, capture.table)
    method = method_of(declared, capture, catalog.state)
    position = method.prepare(declared, capture, table, _position(status))
    if position is None:
        return
    changed = replace(status, ticks=status.ticks + 1, position=json.dumps(position))
    try:
        with catalog.lock, catalog.write() as unit:
            unit.set_capture(capture.name, changed, after=status)
    except BaseException:
        if not status.position:  # nobody will know of what is installed there
            with suppress(CQError):
                method.release(declared, capture, position)
        raise


def _position(status: CaptureStatus) -> Mapping[str, Any] | None:
    return dict(json.loads(status.position)) if status.position else None


@contextmanager
def released(registry: Registry, captures: Iterable[Capture]) -> Iterator[str]:
    """Removes from their sources what captures have there, which the block drops; what is left there, for a person."""
    captures = list(captures)
    names = {capture.name.lower() for capture in captures}
    ending = registry.services.ending
    ending |= names
    try:
        yield _release(registry, captures)
    finally:
        ending -= names


def _release(registry: Registry, captures: Sequence[Capture]) -> str:
    catalog, left = registry.services.catalog, ""
    for capture in captures:
        declared = find_source(catalog.state, capture.source)
        position = _position(catalog.capture_status(capture.name))
        try:
            method_of(declared, capture, catalog.state).release(declared, capture, position)
        except CQError as error:
            left += f"; what it has installed at source {declared.name} is still there: {error.message}"
    return left


def without(state: CatalogState, capture: Capture) -> CatalogState:
    """The state without the capture and the tables that only it has."""
    method = method_of(find_source(state, capture.source), capture, state)
    table = apply.find_table(state, capture.table)
    state = drop_capture(state, capture.name)
    for side in method.side_tables(capture, table):
        if side.name.lower() in state.tables:
            state = apply.drop_table(state, DropTable(side.name))
    return state
