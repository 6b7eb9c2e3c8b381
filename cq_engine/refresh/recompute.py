"""Results from scratch, and the difference of two.

FULL runs the query on the images before and after, and compares. It is the one plan that loops over commits, and only
over those that touch the query's tables; CREATE warns of it. A redefinition compares two queries' results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import DataFrame

from cq_engine.algebra.emit import quote
from cq_engine.catalog.model import ContinuousQuery
from cq_engine.context.services import Services
from cq_engine.core.types import columns_of
from cq_engine.planner.compiled import Compiled
from cq_engine.planner.consolidate import log_rows
from cq_engine.query.query import SourceResolver
from cq_engine.spark.arrow_io import to_arrow
from cq_engine.spark.sql import fresh_name, run_sql

if TYPE_CHECKING:
    from cq_engine.refresh.refresh import Interval

__all__ = ["difference", "recompute", "result_at", "touched_versions"]


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
    parts = []
    for before, after, tag in steps:
        old, new = (result_at(services, compiled, version) for version in (before, after))
        parts.append(to_arrow(difference(services, old, new, compiled.key, tag)))
    return pa.concat_tables(parts)


def result_at(services: Services, compiled: Compiled, version: int) -> DataFrame:
    """The query's result over the images after commit `version`, under its columns' names."""
    resolver = SourceResolver(services, compiled.sources, version)
    return resolver.frame(compiled.text).toDF(*(c.name for c in compiled.columns))


def difference(
    services: Services,
    before: DataFrame,
    after: DataFrame,
    key: Sequence[str] | None,
    version: int,
) -> DataFrame:
    """The delta log's rows, at `version`, that lead from one result to another of the same columns."""
    names = after.columns
    types = [c.type for c in columns_of(after.schema)]
    shown = ", ".join(map(quote, names))
    relations = {fresh_name("result"): before, fresh_name("result"): after}
    sides = [
        f"SELECT {shown}, CAST({version} AS bigint) AS _v, {weight} AS _w FROM {name}"
        for name, weight in zip(relations, (-1, 1))
    ]
    signed = "(" + " UNION ALL ".join(sides) + ")"
    return run_sql(services.spark(), log_rows(signed, names, key, types), relations)
