"""Tells the call under way what it has made durable, so that whoever interrupts it can be told."""

from __future__ import annotations

from cq_engine.catalog.view import View, WriteSet
from cq_engine.core import calls

__all__ = ["note"]


def note(view: View, writes: WriteSet) -> None:
    """Notes commits, new positions of queries and definitions of writes that are durable; `view` is from before them."""
    call = calls.current()
    if call is None:
        return
    for version, _ in writes.commits:
        call.durable.commit(version)
    for name, status in writes.statuses.items():
        before = view.statuses.get(name)
        query = view.state.queries.get(name)
        if query is not None and before is not None and status.position > before.position:
            call.durable.position(query.name, status.position)
    if writes.state is not None:
        for kind, old, new in (
            ("table", view.state.tables, writes.state.tables),
            ("continuous query", view.state.queries, writes.state.queries),
            ("function", view.state.functions, writes.state.functions),
            ("destination", view.state.destinations, writes.state.destinations),
            ("source", view.state.sources, writes.state.sources),
            ("capture", view.state.captures, writes.state.captures),
        ):
            for name in {**old, **new}:
                if old.get(name) is not new.get(name):
                    shown = (new.get(name) or old[name]).name
                    call.durable.definition(kind, shown, old.get(name), new.get(name))
