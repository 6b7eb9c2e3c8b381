"""A refresh by recomputation, where statistics say that it is cheaper: the result at b without the result at a.

The delta is that of the whole interval, so it stands for a compressed delta, or for an interval with one commit. The
stored aggregates are computed anew, too. Everything stays with the executors.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from cq_engine.catalog.model import ContinuousQuery, VersionedTable
from cq_engine.context.services import Services
from cq_engine.planner.compiled import KEY_STATE, Compiled, StoredAggregate
from cq_engine.refresh.bulk_delta import write_difference, write_state
from cq_engine.refresh.recompute import difference, result_at
from cq_engine.refresh.result_keys import two_rows
from cq_engine.spark.arrow_io import to_arrow
from cq_engine.spark.sql import quote

if TYPE_CHECKING:
    from cq_engine.refresh.refresh import Interval, Outcome

__all__ = ["recomputed_outcome"]


def recomputed_outcome(
    services: Services, query: ContinuousQuery, compiled: Compiled, interval: Interval
) -> Outcome:
    """What the refresh writes. Raises ResultKeyError where two rows of the new result have one key."""
    from cq_engine.definition.start import state_frame

    attempt = services.catalog.attempt("refresh")
    try:
        states = []
        for stored in compiled.states:
            table = dict(query.states)[stored.state.label]
            new = state_frame(services, compiled, stored, interval.b)
            if stored.state.label == KEY_STATE:
                _check_keys(query, stored, new)
            rows = new if not stored.keys else _with_leavers(services, table, new, interval.a)
            states.append((table, write_state(attempt, services, table, rows, interval.b, not stored.keys)))
        before, after = (result_at(services, compiled, v) for v in (interval.a, interval.b))
        version = interval.b if query.mode == "COMPRESSED" else _last_commit(services, compiled, interval)
        rows = difference(services, before, after, compiled.key, version)
        return write_difference(services, attempt, query, rows, states, interval)
    except BaseException:
        attempt.abandon()
        raise


def _with_leavers(services: Services, table: VersionedTable, new: DataFrame, a: int) -> DataFrame:
    """The new groups, and with a count of 0 those that the state has and they have not."""
    names = [c.name for c in table.columns]
    new = new.select(*map(quote, names))
    keys = new.select(*(f.col(quote(k)).alias(f"_k{n}") for n, k in enumerate(table.identity)))
    same = [f.col(quote(k)).eqNullSafe(f.col(f"_k{n}")) for n, k in enumerate(table.identity)]
    gone = services.reader.image(table, a).join(keys, reduce(lambda x, y: x & y, same), "left_anti")
    return new.unionAll(gone.withColumn("_n", f.lit(0).cast("bigint")).select(*map(quote, names)))


def _check_keys(query: ContinuousQuery, stored: StoredAggregate, rows: DataFrame) -> None:
    twice = to_arrow(rows.where("_n > 1").limit(1))
    if twice.num_rows:
        raise two_rows(query, [twice.column(k)[0].as_py() for k in stored.keys], None)


def _last_commit(services: Services, compiled: Compiled, interval: Interval) -> int:
    """The newest commit of the interval that changed a table of the query."""
    layouts = (services.catalog.layout(t.storage.id, interval.a) for t in compiled.sources.values())
    return max(s.high for each in layouts for s in each.changes if interval.a < s.high <= interval.b)
