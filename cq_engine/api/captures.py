"""What statements about sources and captures do, and how both are shown."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from functools import singledispatch

import pyarrow as pa

from cq_engine.api.locating import word_place
from cq_engine.api.show import facts, typed_rows
from cq_engine.api.warehouse import Warehouse
from cq_engine.catalog.model import Capture
from cq_engine.catalog.sources import captures_of, find_capture, find_source, remote_tables
from cq_engine.core.errors import CQError, location_at
from cq_engine.destinations.urls import HUSH
from cq_engine.grammar import (
    AdviseCapture,
    AlterCapture,
    AlterSource,
    CreateCapture,
    CreateSource,
    CreateTable,
    DropCapture,
    DropSource,
    RefreshCapture,
    Statement,
)
from cq_engine.grammar.format import format_when
from cq_engine.lifecycle import captures
from cq_engine.lifecycle.remote import create_remote, drop_remote
from cq_engine.query.result import Result
from cq_engine.sources.advice.advise import advise
from cq_engine.sources.kinds import shown_method

__all__ = ["describe_capture", "describe_source", "run", "show_captures", "show_sources"]

_CAPTURES = {
    "name": pa.string(), "source": pa.string(), "table": pa.string(), "method": pa.string(), "state": pa.string(),
    "position": pa.string(), "lag": pa.float64(), "last": pa.timestamp("us", tz="UTC"), "rows": pa.int64(),
    "error": pa.string(),
}  # fmt: skip


def run(statement: Statement, engine: Warehouse, sql: str) -> Result:
    """Runs a statement about sources and captures, whose text is `sql`. Raises CQError's subclasses."""
    place = word_place(sql)
    try:
        return _run(statement, engine, place)
    except CQError as error:
        relation = getattr(statement, "relation", None)
        if error.location is None and relation is not None and error.message.endswith(f" {relation}"):
            error.location = location_at(sql, sql.find(relation))
        raise


@singledispatch
def _run(statement: Statement, engine: Warehouse, place: captures.Place) -> Result:
    raise NotImplementedError(type(statement).__name__)


@_run.register
def _(statement: CreateSource, engine: Warehouse, place: captures.Place) -> Result:
    return Result(message=captures.create_source(engine.queries.registry, statement, place))


@_run.register
def _(statement: AlterSource, engine: Warehouse, place: captures.Place) -> Result:
    return Result(message=captures.alter_source(engine.queries.registry, statement, place))


@_run.register
def _(statement: DropSource, engine: Warehouse, place: captures.Place) -> Result:
    del place
    gone = drop_remote(engine.queries.registry, statement)
    said = captures.remove_source(engine.queries.registry, statement) + (f"; {gone}" if gone else "")
    engine.forget_gone()
    engine.capturing.schedule_all()
    return Result(message=said)


@_run.register
def _(statement: CreateTable, engine: Warehouse, place: captures.Place) -> Result:
    if statement.remote is not None:
        return Result(message=create_remote(engine.queries.registry, statement, place))
    said = captures.create_from_delta(engine.queries.registry, statement, place)
    engine.capturing.schedule_all()
    return Result(message=said)


@_run.register
def _(statement: CreateCapture, engine: Warehouse, place: captures.Place) -> Result:
    said = captures.create_capture(engine.queries.registry, statement, place)
    engine.capturing.schedule_all()
    return Result(message=said)


@_run.register
def _(statement: AlterCapture, engine: Warehouse, place: captures.Place) -> Result:
    said = captures.alter_capture(engine.queries.registry, statement, place)
    found = find_capture(engine.catalog.state, statement.name)
    engine.capturing.schedule(found, now=statement.action == "RESUME")
    return Result(message=said)


@_run.register
def _(statement: DropCapture, engine: Warehouse, place: captures.Place) -> Result:
    del place
    said = captures.remove_capture(engine.queries.registry, statement)
    engine.capturing.schedule_all()
    return Result(message=said)


@_run.register
def _(statement: RefreshCapture, engine: Warehouse, place: captures.Place) -> Result:
    del place
    done = engine.refresh_capture(statement.name)
    last = done.commit_versions[-1] if done.commit_versions else None
    said = f"{statement.name}: {done.rows} change row{'' if done.rows == 1 else 's'}"
    said += f", version {last}" if last is not None else ", nothing has changed"
    return Result(message=said, rowcount=done.rows, commit_version=last)


@_run.register
def _(statement: AdviseCapture, engine: Warehouse, place: captures.Place) -> Result:
    del place
    source = find_source(engine.catalog.state, statement.source)
    rows, said = advise(
        source, statement.relation, engine.services.limits.advice_seconds, verbose=statement.verbose
    )
    return Result(arrow=rows, message=said, whole=True)


# ---------------------------------------------------------------- looking


def show_sources(engine: Warehouse) -> Result:
    """SHOW SOURCES: name, type, and how many captures read it."""
    state = engine.catalog.state
    found = [state.sources[name] for name in sorted(state.sources)]
    columns = {
        "name": pa.array([each.name for each in found], pa.string()),
        "type": pa.array([each.type for each in found], pa.string()),
        "captures": pa.array([len(captures_of(state, each.name)) for each in found], pa.int64()),
    }
    return Result(arrow=pa.table(columns))


def show_captures(engine: Warehouse) -> Result:
    """SHOW CAPTURES: where each stands. `lag` are the seconds since the last tick that succeeded, `rows` the change rows
    that the capture has written."""
    rows = [_row(engine, capture) for _, capture in sorted(engine.catalog.state.captures.items())]
    return typed_rows(_CAPTURES, rows)


def _row(engine: Warehouse, capture: Capture) -> tuple[object, ...]:
    status = engine.catalog.capture_status(capture.name)
    reading = engine.capturing.reading(capture.name)
    state = f"READING ({reading})" if reading and status.state == "ACTIVE" else status.state
    waiting = engine.capturing.scheduler.waiting(capture.name.lower())
    error = str(waiting) if waiting is not None and status.state == "ACTIVE" else status.error
    source, position = capture.source, status.position or None
    if capture.tables:
        from cq_engine.sources.remote.report import position_shown

        found = (engine.catalog.state.tables[name].remote for name in capture.tables)
        source = ", ".join(dict.fromkeys(remote.source for remote in found if remote is not None))
        position = None if position is None else position_shown(position)
    return (
        capture.name, source, capture.table, capture.method.kind, state, position,
        _age(status.last, engine.now), status.last, status.rows, error,
    )  # fmt: skip


def _age(last: datetime | None, now: datetime) -> float | None:
    return None if last is None else round(max(0.0, (now - last).total_seconds()), 3)


def describe_source(engine: Warehouse, name: str) -> Result:
    """DESCRIBE SOURCE: what was declared, and which captures read it. What `${NAME}` stands for is not shown."""
    state = engine.catalog.state
    found = find_source(state, name)
    known = [
        ("name", found.name),
        ("type", found.type),
        *(("option", f"{key} = {_hushed(key, value)}") for key, value in found.options),
        *(("capture", f"{each.name} into {each.table}") for each in captures_of(state, found.name)),
        *(("table", f"{each.name}, which stays there") for each in remote_tables(state, found.name)),
    ]
    return facts(known)


def _hushed(key: str, value: str) -> str:
    return "***" if HUSH.search(key) and not value.startswith("${") else value


def describe_capture(engine: Warehouse, name: str) -> Result:
    """DESCRIBE CAPTURE: what was declared, and where it stands."""
    found = find_capture(engine.catalog.state, name)
    return facts([*_declared(found), *_standing(engine, found)])


def _declared(found: Capture) -> Iterator[tuple[str, str]]:
    yield "name", found.name
    yield "source", found.source
    if found.relation is not None:
        yield "relation", found.relation
    yield "table", found.table
    yield "method", shown_method(found.method)
    yield "schedule", format_when(found.when)
    for each in found.columns:
        yield "column", each.target if each.name == each.target else f"{each.name} AS {each.target}"
    if found.where is not None:
        yield "where", found.where
    for key, value in found.options:
        yield "option", f"{key} = {value}"


def _standing(engine: Warehouse, found: Capture) -> Iterator[tuple[str, str]]:
    row = dict(zip(_CAPTURES, _row(engine, found)))
    for key in ("state", "position", "lag", "last", "rows", "error"):
        if row[key] not in (None, ""):
            yield key, str(row[key])
