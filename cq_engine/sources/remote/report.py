"""What EXPLAIN and SHOW say of sweeps: their order, what each source is asked, and what was counted."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from cq_engine.catalog.model import Capture, CaptureStatus, CatalogState
from cq_engine.core.errors import SourceError
from cq_engine.refresh.sweeps import in_words
from cq_engine.sources.remote.capture import figures, level_of
from cq_engine.sources.remote.channel import Channel, opened
from cq_engine.sources.remote.log import Token
from cq_engine.sources.remote.view import RemoteView
from cq_engine.sources.sweep.model import Link

__all__ = ["counted", "explained", "position_shown", "read_to"]


def explained(state: CatalogState, capture: Capture) -> Mapping[str, object]:
    """The part of a query that a capture maintains: its join, the order of the sweeps, and the SQL of every question."""
    view = RemoteView.read(state, capture.method.query or "")
    facts: dict[str, object] = {
        "consistency": level_of(capture).value,
        "kept in": capture.table,
        "join": view.sql,
        "sweeps": [_sweep(view, alias) for alias in view.tables],
    }
    try:
        with ExitStack() as stack:
            facts["questions"] = _questions(view, opened(state, view, capture.name, 0, stack))
    except SourceError as error:
        facts["questions"] = f"not known: {error.message}"
    return facts


def _sweep(view: RemoteView, alias: str) -> str:
    levels = view.view.sweep_order(alias)
    if not levels:
        return f"a change of {alias} asks nobody"
    return f"a change of {alias} asks {', then '.join(' and '.join(link.far for link in level) for level in levels)}"


def _questions(view: RemoteView, channels: Sequence[Channel]) -> list[str]:
    found: dict[str, None] = {}
    for alias in view.tables:
        for level in view.view.sweep_order(alias):
            for link in level:
                channel = next(c for c in channels if link.far in c.aliases)
                found[f"{link.far} at {channel.name}: {_sql(channel, link)}"] = None
    return list(found)


def _sql(channel: Channel, link: Link) -> str:
    """The question for two keys, whose values are marks."""
    keys = [tuple(None for _ in link.far_columns)] * 2
    return channel.statement(link.far, link.far_columns, keys).sql


def counted(status: CaptureStatus) -> Mapping[str, object]:
    """What the last tick that had something to do has counted, and all together, in words."""
    found = figures(status.position)
    named = {
        when: in_words(found[of])
        for of, when in (("last", "last tick"), ("all", "since it was created"))
        if of in found
    }
    return named or {"last tick": "has not had anything to do"}


def read_to(token: Token | None) -> str:
    """Where a log is read to, for a person.

    >>> read_to({"read": [[3, 7]], "last": 7})
    'change 7'
    >>> read_to({"snapshot": "748:753:748,750", "beyond": [760]})
    'transactions before 753 and 760, not 748, 750'
    """
    if token is None:
        return "not read yet"
    if "snapshot" not in token:
        return f"change {token['last']}" if token.get("last") else "no change yet"
    _, high, under_way = token["snapshot"].split(":")
    beyond = "".join(f" and {number}" for number in token["beyond"])
    unseen = f", not {', '.join(under_way.split(','))}" if under_way else ""
    return f"transactions before {high}{beyond}{unseen}"


def position_shown(position: str) -> str:
    """A position without what was installed, and with where each log is read to in words."""
    known = json.loads(position)
    read = {source: read_to(each["read"]) for source, each in known["sources"].items()}
    counted = {of: figures for of, figures in known["figures"].items() if of != "marks"}
    return json.dumps({"read": read, **counted})
