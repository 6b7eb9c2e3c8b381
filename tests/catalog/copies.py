"""A continuous query that needs no Spark: it copies the rows of a table, which are only inserted, to a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from cq_engine.api.engine import Engine
from cq_engine.catalog.model import ContinuousQuery, OutputColumn, QueryStatus, RefreshRecord, VersionedTable
from cq_engine.definition.registry import Registry
from cq_engine.grammar import DestinationRef
from cq_engine.launch import lazy_session
from cq_engine.refresh.refresh import Refresh, Refresher


class NoSpark:
    """A session that nothing is asked of."""

    conf = SimpleNamespace(get=lambda _name, default=None: default)


def put_in_place(patch: Callable[[Any, str, Any], None] = setattr) -> None:
    """Refreshes copy from now on."""
    patch(Registry, "compiled", lambda _self, _query: None)
    patch(Refresher, "steps", steps)
    patch(lazy_session, "tag_jobs", lambda _session: None)
    patch(lazy_session, "has_ended", lambda _session: False)


def steps(*given: Any) -> Iterator[Refresh]:
    """Of a refresh: one."""
    yield copying(*given)


def copying(
    refresher: Refresher, query: ContinuousQuery, _compiled: object, upto: int | None = None
) -> Refresh:
    """The refresh."""
    services, catalog = refresher.services, refresher.services.catalog
    a = catalog.status(query.name).position
    b = catalog.newest_version if upto is None else upto
    if b <= a:
        return Refresh(query.name, a, a)
    (source,) = query.sources
    found = services.reader.changes_arrow(catalog.state.tables[source].storage, a, b)
    assert found is not None
    seen: Counter[int] = Counter()
    numbers = []
    for version in found.column("_commit_version").to_pylist():
        seen[version] += 1
        numbers.append(seen[version])
    rows = found.append_column("_sequence", pa.array(numbers, pa.int64()))
    times = pa.array([services.now()] * found.num_rows, pa.timestamp("us", tz="UTC"))
    rows = rows.append_column("_refresh_time", times)
    done = Refresh(query.name, a, b, found.num_rows, plan="COPY")
    with catalog.lock, catalog.write() as unit:
        unit.add_changes(query.result, a + 1, b, rows)
        unit.set_status(query.name, QueryStatus(b, catalog.status(query.name).state, "", services.now()))
        unit.add_refresh(RefreshRecord(query.name, a, b, found.num_rows, 0, 0, "COPY", 0.0, services.now()))
    return done


def define(engine: Engine, source: str, *destinations: DestinationRef) -> None:
    """The query q over a table."""
    catalog = engine.catalog
    table = catalog.state.tables[source]
    names = ", ".join(c.name for c in table.columns)
    number = catalog.state.next_id
    text = f"SELECT {names} FROM {source}"
    query = ContinuousQuery(
        name="q", id=number, statement=f"CREATE CONTINUOUS QUERY q AS {text}", query=text,
        result=VersionedTable(number + 1, "delta", "q", table.columns, table.primary_key or ()),
        key=table.primary_key or (), mode="TRANSACTIONAL", markers=("I", "D", "U"), sources=(source,),
        destinations=destinations, width=len(table.columns),
        outputs=tuple(OutputColumn(c.name, c.type, "result", n) for n, c in enumerate(table.columns)),
    )  # fmt: skip
    with catalog.write() as unit:
        unit.set_state(replace(catalog.state, queries={"q": query}, next_id=number + 2))
        unit.set_status("q", QueryStatus(0))
        engine.delivery.begin(unit, query, 0)
    engine.schedule("q")
