"""FULL: the query is run on the images before and after, and the two results are compared.

The one plan that loops over commits, and only over those that touch its tables; CREATE warns of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from cq_engine.algebra.emit import quote
from cq_engine.catalog.model import ContinuousQuery
from cq_engine.planner.compiled import Compiled
from cq_engine.planner.finish import log_rows
from cq_engine.runtime.query import Resolver
from cq_engine.runtime.services import Services
from cq_engine.runtime.sql import fresh_name, run_sql

if TYPE_CHECKING:
    from cq_engine.runtime.refresh import Interval

__all__ = ["recompute", "touched_versions"]


def touched_versions(services: Services, compiled: Compiled, interval: Interval) -> list[int]:
    """The commits of the interval that changed a table of the query."""
    found: set[int] = set()
    for name in interval.changed:
        storage = compiled.sources[name].storage
        for each in services.catalog.layout(storage.id, interval.a).changes:
            if each.high <= interval.a or each.low > interval.b:
                continue
            if each.low == each.high:
                found.add(each.low)
            else:
                rows = (
                    services.reader.changes(storage, interval.a, interval.b)
                    .select("_commit_version")
                    .distinct()
                )
                found.update(rows.toArrow().column(0).to_pylist())
                break
    return sorted(found)


def recompute(services: Services, query: ContinuousQuery, compiled: Compiled, interval: Interval) -> pa.Table:
    """The delta log's rows of the interval, with `_sequence` and `_duplicate`."""
    if query.mode == "COMPRESSED":
        steps = [(interval.a, interval.b, interval.b)]
    else:
        versions = touched_versions(services, compiled, interval)
        steps = [(version - 1, version, version) for version in versions]
    parts = [_difference(services, compiled, before, after, tag) for before, after, tag in steps]
    return pa.concat_tables(parts)


def _difference(services: Services, compiled: Compiled, before: int, after: int, version: int) -> pa.Table:
    relations = {}
    sides = []
    shown = ", ".join(quote(c.name) for c in compiled.columns)
    for at, weight in ((before, -1), (after, 1)):
        name = fresh_name("result")
        relations[name] = (
            Resolver(services, at).frame(compiled.text).toDF(*(c.name for c in compiled.columns))
        )
        sides.append(f"SELECT {shown}, CAST({version} AS bigint) AS _v, {weight} AS _w FROM {name}")
    signed = "(" + " UNION ALL ".join(sides) + ")"
    return run_sql(
        services.spark(), log_rows(signed, [c.name for c in compiled.columns], compiled.key), relations
    ).toArrow()
