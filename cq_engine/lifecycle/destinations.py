"""CREATE, ALTER and DROP DESTINATION."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace

from cq_engine.catalog import apply, queues
from cq_engine.catalog.destinations import (
    MERGE,
    deliverers,
    drop_destination,
    find_destination,
    is_merge,
    merges,
    put_destination,
    reference,
)
from cq_engine.catalog.model import CatalogState, ContinuousQuery, Cursor, DeclaredDestination
from cq_engine.core.errors import AnalysisError, CatalogError, Location, did_you_mean
from cq_engine.destinations import (
    Destination,
    check_declared,
    check_script,
    class_of,
    cursor_name,
    needed_from,
    policy_of,
    reach,
    with_dead_letters,
)
from cq_engine.destinations.options import dead_letters_of
from cq_engine.grammar import AlterDestination, CreateDestination, DestinationRef, DropDestination
from cq_engine.lifecycle.queries import Queries

__all__ = ["alter", "create", "drop"]

Place = Callable[[str], Location | None]
"""Where a word stands in the statement."""


def create(
    queries: Queries, statement: CreateDestination, place: Place, at: Callable[[int], Location]
) -> str:
    """CREATE DESTINATION; the message for a person. Raises AnalysisError for a type or an option that is not there,
    CatalogError where the name is taken. `at` gives the place of an offset in the statement."""
    catalog = queries.services.catalog
    script = None if statement.script is None else replace(statement.script, offset=0, condition_offset=0)
    token = secrets.token_hex(8)
    declared = DeclaredDestination(
        statement.name, statement.type, statement.options, script=script, token=token
    )
    with queries.registry.ddl:
        known = catalog.state.destinations.get(statement.name.lower())
        if known is None:
            check_declared(declared, place)
            reach(declared, queries.services, place)
            with catalog.lock, catalog.write() as unit:
                if statement.script is not None:
                    check_script(queries.services, declared.name, statement.script, at)
                unit.set_state(_put(catalog.state, declared, catalog.newest_version))
    if known is None:
        return f"destination {statement.name} created{_note(queries, declared)}"
    if statement.if_not_exists:
        return f"destination {known.name} exists"
    raise CatalogError(
        f"destination {known.name} exists already",
        hint=f"choose another name, or ALTER DESTINATION {known.name} SET WITH (...)",
    )


def alter(queries: Queries, statement: AlterDestination, place: Place) -> str:
    """ALTER DESTINATION; the message for a person. What can go on does so at once."""
    catalog = queries.services.catalog
    with queries.registry.ddl:
        found = find_destination(catalog.state, statement.name)
        if is_merge(found) and statement.action != "SET":
            raise _merged(catalog.state, found, statement.action)
        if statement.action in ("REPLAY", "SKIP"):
            said = _move(queries, found, statement)
        elif statement.group is not None:
            said = _drop_group(queries, found, statement.group)
        else:
            said = _change(queries, found, statement, place)
        users = deliverers(catalog.state, found.name)
    for query in users:
        queries.delivery.wake(query)
    return said


def drop(queries: Queries, statement: DropDestination) -> str:
    """DROP DESTINATION [RESTRICT | CASCADE]. Raises CatalogError where queries deliver to it and CASCADE is not said."""
    catalog, name = queries.services.catalog, statement.name
    with queries.registry.ddl:
        users = deliverers(catalog.state, name)
        if statement.if_exists and not users and name.lower() not in catalog.state.destinations:
            return f"there is no destination {name}"
        with queries.registry.hold(query.name for query in users), catalog.lock, catalog.write() as unit:
            found = find_destination(catalog.state, name)
            unit.set_state(apply.without_unread(drop_destination(catalog.state, name, statement.cascade)))
            for query in users:
                unit.drop_cursor(query.name, _cursor_name(query, name))
    gone = ", ".join(query.name for query in users)
    return f"destination {found.name} dropped" + (f", and with it as a destination of {gone}" if gone else "")


# ---------------------------------------------------------------- what is declared


def _of(declared: DeclaredDestination) -> type[Destination]:
    return class_of(DestinationRef(declared.name, declared.type))


def _put(state: CatalogState, declared: DeclaredDestination, version: int) -> CatalogState:
    state = put_destination(state, declared)
    puts_aside = policy_of(state, DestinationRef(declared.name)).on_failure == "dead_letter"
    if puts_aside or _of(declared).pulled:
        return with_dead_letters(state, declared.name, version)
    return state


def _note(queries: Queries, declared: DeclaredDestination) -> str:
    known = queries.services.catalog.view.callbacks
    if declared.type == "CALLBACK" and declared.name.lower() not in known:
        return "; until its function is registered, deltas wait in the delta log"
    if declared.type == "QUEUE":
        return f"; its dead letters are the table {dead_letters_of(declared.name)}"
    if declared.name.lower() in queries.services.catalog.state.tables:
        return f"; it appends to table {declared.name}"
    return ""


def _change(queries: Queries, found: DeclaredDestination, statement: AlterDestination, place: Place) -> str:
    """PAUSE, RESUME and SET."""
    catalog = queries.services.catalog
    given = {**dict(found.options), **dict(statement.options)}
    paused = {"PAUSE": True, "RESUME": False}.get(statement.action, found.paused)
    changed = replace(found, options=tuple(given.items()), paused=paused)
    if any(dict(found.options).get(name) != given.get(name) for name in ("path", "table", "mode")):
        changed = replace(changed, token=secrets.token_hex(8))  # it is another target
    if statement.action == "SET":
        check_declared(changed, place)
        reach(changed, queries.services, place)
        state = replace(
            catalog.state, destinations={**catalog.state.destinations, found.name.lower(): changed}
        )
        for query in deliverers(state, found.name):
            queries.delivery.check(query, reference(query, found.name) or DestinationRef(found.name), state)
    with catalog.lock, catalog.write() as unit:
        unit.set_state(_put(catalog.state, changed, catalog.newest_version))
        for query in deliverers(catalog.state, found.name):
            cursor = catalog.cursor(query.name, _cursor_name(query, found.name))
            if cursor is None:
                continue
            if _is_elsewhere(found, changed):
                unit.set_cursor(_of(found).placed(cursor, cursor.version), after=cursor)
            elif statement.action == "RESUME" and cursor.failures:
                unit.set_cursor(replace(cursor, failures=0, error=""), after=cursor)
    waits = "consumers are given nothing" if _of(found).pulled else "deltas wait in the delta log"
    said = {"PAUSE": f"is paused; {waits}", "RESUME": "goes on"}
    return f"destination {found.name} {said.get(statement.action, 'altered')}"


def _is_elsewhere(before: DeclaredDestination, after: DeclaredDestination) -> bool:
    """Whether a target is to be written to although it has nothing new to receive: another one, or the whole result."""
    if not _of(after).remembers:
        return False
    moved = merges(after) and dict(before.options).get("url") != dict(after.options).get("url")
    return moved or before.token != after.token


# ---------------------------------------------------------------- where it stands


def _move(queries: Queries, found: DeclaredDestination, statement: AlterDestination) -> str:
    """REPLAY and SKIP: from now on it is as if everything up to the version had been received, and nothing more."""
    catalog, version = queries.services.catalog, statement.version or 0
    query = _query(catalog.state, found, statement.query)
    if _of(found).pulled:
        return _move_consumers(queries, found, query, statement.action, version)
    name = _cursor_name(query, found.name)
    cursor = catalog.cursor(query.name, name) or Cursor(query.name, name, 0)
    position, kept = catalog.status(query.name).position, catalog.floor(query.result.id)
    stands = f"{found.name} has received {query.name} up to version {cursor.version}"
    if statement.action == "REPLAY" and version > needed_from(cursor):
        raise AnalysisError(
            f"{stands}: nothing after {version} to replay", hint="SKIP TO VERSION goes forward"
        )
    whole = merges(found)
    if statement.action == "REPLAY" and version < kept and not whole:
        raise _not_kept(query, version, kept)
    if statement.action == "SKIP" and version <= needed_from(cursor):
        raise AnalysisError(f"{stands} already", hint="REPLAY FROM VERSION goes back")
    if statement.action == "SKIP" and version > position:
        raise AnalysisError(
            f"{query.name} has processed version {position}; what comes after it cannot be skipped yet"
        )
    if whole and statement.action == "SKIP":
        raise CatalogError(
            f"SKIP is not for {found.name}",
            detail=f"with mode = 'merge' it would not be the result of {query.name} any more",
            hint=f"REPLAY FROM VERSION {version} writes the whole result again",
        )
    moved = _of(found).placed(cursor, version)
    with catalog.write() as unit:
        unit.set_cursor(moved, after=cursor)
    if statement.action == "SKIP":
        return (
            f"{found.name} goes on after version {version} of {query.name}; what was before is not delivered"
        )
    if whole:
        return f"{found.name} receives the whole result of {query.name} again"
    return f"{found.name} receives the deltas of {query.name} after version {version} again"


def _move_consumers(
    queries: Queries, found: DeclaredDestination, query: ContinuousQuery, action: str, version: int
) -> str:
    """REPLAY and SKIP of a queue: for all groups of consumers, and for those that are new later."""
    catalog, back = queries.services.catalog, action == "REPLAY"
    name = _cursor_name(query, found.name)
    position, kept = catalog.status(query.name).position, catalog.floor(query.result.id)
    if version > position:
        raise AnalysisError(f"{query.name} has processed version {position}: there are no later messages")
    if back and version < kept:
        raise _not_kept(query, version, kept)
    with catalog.exclusive() as connection, catalog.write() as unit:
        cursor = catalog.cursor(query.name, name) or Cursor(query.name, name, 0)
        place = min(cursor.version, version) if back else max(cursor.version, version)
        unit.set_cursor(replace(cursor, version=place), after=cursor)
        queues.move(connection, name, query.name.lower(), version, back=back)
    if back:
        return (
            f"all groups of {found.name} are given the messages of {query.name} after version {version} again"
        )
    return f"all groups of {found.name} go on after version {version} of {query.name}"


def _not_kept(query: ContinuousQuery, version: int, kept: int) -> AnalysisError:
    return AnalysisError(
        f"the deltas of {query.name} after version {version} are not kept any more",
        hint=f"REPLAY FROM VERSION {kept} gives all that is kept; the option retention says for how long",
    )


def _drop_group(queries: Queries, found: DeclaredDestination, group: str) -> str:
    """DROP GROUP: whoever has messages of it finishes nothing by them, and the next one of this name begins anew."""
    if found.type != "QUEUE":
        raise AnalysisError(
            f"{found.name} has no groups", detail=f"it is a {found.type.lower()}, and no queue"
        )
    name = cursor_name("QUEUE", found.name)
    with queries.services.catalog.aside() as connection:
        known = queues.standings(connection, name)
        if group not in known:
            raise CatalogError(
                f"queue {found.name} has no group '{group}'",
                hint=did_you_mean(group, known) or f"DESCRIBE DESTINATION {found.name} shows its groups",
            )
        queues.drop(connection, name, group)
    left = len(known[group].given)
    return f"group '{group}' of {found.name} dropped" + (f"; messages in flight: {left}" if left else "")


def _query(state: CatalogState, found: DeclaredDestination, name: str | None) -> ContinuousQuery:
    users = deliverers(state, found.name)
    if name is not None:
        query = apply.find_query(state, name)
        if query in users:
            return query
        raise CatalogError(f"{query.name} does not deliver to {found.name}", hint=_users(users))
    if len(users) == 1:
        return users[0]
    raise CatalogError(
        f"{len(users) or 'no'} queries deliver to {found.name}",
        hint=f"say which one: FOR {users[0].name}"
        if users
        else "CREATE CONTINUOUS QUERY ... DESTINATION names it",
    )


def _users(users: list[ContinuousQuery]) -> str:
    names = ", ".join(query.name for query in users)
    return f"these do: {names}" if names else "no query does"


def _cursor_name(query: ContinuousQuery, name: str) -> str:
    ref = reference(query, name)
    return cursor_name((ref.kind if ref else None) or "TABLE", name)


def _merged(state: CatalogState, found: DeclaredDestination, action: str) -> CatalogError:
    users = deliverers(state, found.name)
    query = users[0].name if users else "query"
    hints = {
        "PAUSE": f"ALTER CONTINUOUS QUERY {query} PAUSE",
        "RESUME": f"ALTER CONTINUOUS QUERY {query} RESUME",
    }
    return CatalogError(
        f"{action} is not for {found.name}",
        detail=f"with mode = '{MERGE.lower()}' it is the result of {query} itself, which refreshes write",
        hint=hints.get(action, ""),
    )
