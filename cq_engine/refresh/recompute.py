"""Results and states from scratch, and the difference of two results.

A recomputation is a plan like a delta plan: it compares the results before and after. FULL does so for every commit
that touches the query's tables (CREATE warns of it), a large interval of which one delta is wanted once for all of it.
A redefinition compares two queries' results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from cq_engine.algebra.emit import Emitter, quote
from cq_engine.catalog.model import ContinuousQuery, VersionedTable
from cq_engine.context.services import Services
from cq_engine.core.types import columns_of
from cq_engine.delta.stored import initial_state
from cq_engine.planner.compiled import Compiled, StoredAggregate
from cq_engine.planner.consolidate import consolidate
from cq_engine.query.query import SourceResolver
from cq_engine.refresh.images import ImageBinder
from cq_engine.refresh.interval import Interval, touched_versions
from cq_engine.spark.sql import fresh_name, run_sql, translate_errors

__all__ = [
    "Recomputation",
    "changed_state",
    "difference",
    "plan_full",
    "plan_recomputation",
    "result_at",
    "state_at",
]


@dataclass(frozen=True)
class Recomputation:
    """The plan that compares results: `steps` are (version before, version after, version of the delta's rows), and
    the stored aggregates are computed anew."""

    compiled: Compiled
    steps: tuple[tuple[int, int, int], ...]


def plan_full(
    services: Services, query: ContinuousQuery, compiled: Compiled, interval: Interval
) -> Recomputation:
    """A step per commit that touches the query's tables, or one for the interval where that is all that is wanted."""
    if query.mode == "COMPRESSED":
        return Recomputation(compiled, ((interval.a, interval.b, interval.b),))
    versions = touched_versions(services, compiled, interval)
    return Recomputation(compiled, tuple((version - 1, version, version) for version in versions))


def plan_recomputation(
    services: Services, query: ContinuousQuery, compiled: Compiled, interval: Interval
) -> Recomputation:
    """One step over the interval: for a compressed delta, or for an interval with one commit."""
    version = interval.b if query.mode == "COMPRESSED" else _last_commit(services, compiled, interval)
    return Recomputation(compiled, ((interval.a, interval.b, version),))


def _last_commit(services: Services, compiled: Compiled, interval: Interval) -> int:
    """The newest commit of the interval that changed a table of the query."""
    tables = [table.storage.id for table in compiled.sources.values()]
    sets = [s for each in tables for s in services.catalog.changes(each, interval.a + 1, interval.b)]
    return max(s.high for s in sets if s.high <= interval.b)


def result_at(services: Services, compiled: Compiled, version: int) -> DataFrame:
    """The query's result over the images after commit `version`, under its columns' names."""
    resolver = SourceResolver(services, compiled.sources, version)
    return resolver.frame(compiled.text).toDF(*(c.name for c in compiled.columns))


def state_at(services: Services, compiled: Compiled, stored: StoredAggregate, version: int) -> DataFrame:
    """The rows of a stored aggregate after commit `version`, computed from the tables."""
    storages = {name: table.storage for name, table in compiled.sources.items()}
    binder = ImageBinder(services.reader, storages, version, read=compiled.read)
    node = initial_state(stored.node, stored.state)
    text = Emitter(binder).statement("SELECT * FROM {0}", node)
    with translate_errors():
        return run_sql(services.spark(), text, binder.relations)


def changed_state(
    services: Services, compiled: Compiled, stored: StoredAggregate, table: VersionedTable, interval: Interval
) -> DataFrame:
    """The rows of a stored aggregate at the interval's end, and with a count of 0 the groups that are gone then."""
    new = state_at(services, compiled, stored, interval.b)
    if not stored.keys:
        return new
    names = [c.name for c in table.columns]
    new = new.select(*map(quote, names))
    keys = new.select(*(f.col(quote(k)).alias(f"_k{n}") for n, k in enumerate(table.identity)))
    same = [f.col(quote(k)).eqNullSafe(f.col(f"_k{n}")) for n, k in enumerate(table.identity)]
    old = services.reader.image(table, interval.a)
    gone = old.join(keys, reduce(lambda x, y: x & y, same), "left_anti")
    return new.unionAll(gone.withColumn("_n", f.lit(0).cast("bigint")).select(*map(quote, names)))


def difference(
    services: Services,
    before: DataFrame | None,
    after: DataFrame,
    key: Sequence[str] | None,
    version: int,
    parts: int,
) -> DataFrame:
    """The delta log's rows, at `version`, that lead from one result (None: no rows) to another of the same columns, numbered in so
    many parts (`delta.numbering`)."""
    names = after.columns
    types = [c.type for c in columns_of(after.schema)]
    shown = ", ".join(map(quote, names))
    relations = {
        fresh_name("result"): (weight, rows)
        for weight, rows in ((-1, before), (1, after))
        if rows is not None
    }
    sides = [
        f"SELECT {shown}, CAST({version} AS bigint) AS _v, {weight} AS _w FROM {name}"
        for name, (weight, _) in relations.items()
    ]
    signed = "(" + " UNION ALL ".join(sides) + ")"
    text = consolidate(signed, names, key, types, parts, gone=before is not None)
    return run_sql(services.spark(), text, {name: rows for name, (_, rows) in relations.items()})
