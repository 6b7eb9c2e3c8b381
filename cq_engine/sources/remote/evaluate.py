"""The rows that sweeps have gathered as changes of the view: one statement of Spark joins them, whatever updates they are for."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone

import numpy as np
import pyarrow as pa

from cq_engine.context.services import Services
from cq_engine.core.arrays import is_in
from cq_engine.core.columns import Column
from cq_engine.core.types import arrow_type, spark_type
from cq_engine.core.values import encode_values
from cq_engine.sources.remote.view import RemoteView
from cq_engine.sources.sweep.model import Delta, Step
from cq_engine.sources.tick import DELETE, UPSERT, with_operation
from cq_engine.sources.triggers.log import as_changes
from cq_engine.spark.arrow_io import to_arrow
from cq_engine.spark.sql import fresh_name, run_sql, translate_errors
from cq_engine.storage.identities import Identities, Numbers
from cq_engine.storage.rows import conform, empty

__all__ = ["changes_of"]

_TERM = "_cq_term"
_SIGN = "_cq_sign"


def changes_of(
    services: Services, view: RemoteView, delta: Delta, columns: Sequence[Column], key: Sequence[str]
) -> pa.Table:
    """The delta as changes of a table with `columns` and the key `key`: upserts and deletions by key, each with the number of its
    step as the transaction, and with the commit time of that step."""
    rows = _joined(services, view, delta, columns)
    steps = (
        np.asarray(delta.terms, dtype=np.int64)[rows.column(_TERM).to_numpy()]
        if rows.num_rows
        else np.zeros(0, np.int64)
    )
    plain = conform(rows, columns).combine_chunks()
    kept, counts = _summed(Identities(plain, columns).numbers, steps, rows.column(_SIGN).to_numpy())
    identity = [column for column in columns if column.name in set(key)]
    keys = _pairs(steps, Identities(plain, identity).numbers)[kept]
    came = counts > 0
    gone = ~came & ~is_in(keys, keys[came])
    parts = [(kept[came], UPSERT), (kept[gone], DELETE)]
    changed = [with_operation(plain.take(pa.array(places)), kind) for places, kind in parts]
    places = np.concatenate([steps[each] for each, _ in parts])
    times = [_committed(delta.steps[step]) for step in places.tolist()]
    both = pa.concat_tables(changed)
    return as_changes(
        both.drop_columns(["_operation"]), both.column("_operation").to_pylist(), places.tolist(), times
    )


def _joined(services: Services, view: RemoteView, delta: Delta, columns: Sequence[Column]) -> pa.Table:
    own = [Column(_TERM, "bigint", False), Column(_SIGN, "bigint", False)]
    inputs = {alias: _input(delta, alias, [*own, *view.columns[alias]]) for alias in view.tables}
    if not all(rows.num_rows for rows in inputs.values()):
        return empty([*columns, *own])
    names = {alias: fresh_name(f"piece_{alias}") for alias in inputs}
    frames = {
        names[alias]: services.reader.frame(rows, [*own, *view.columns[alias]])
        for alias, rows in inputs.items()
    }
    with translate_errors():
        return to_arrow(run_sql(services.spark(), view.signed(names, _TERM, _SIGN), frames))


def _input(delta: Delta, alias: str, columns: Sequence[Column]) -> pa.Table:
    found = [(term, sign, *row) for term, sign, row in delta.rows(alias)]
    values = list(zip(*found)) if found else [()] * len(columns)
    arrays = [
        pa.array(encode_values(list(some), spark_type(column.type)), arrow_type(column.type))
        for some, column in zip(values, columns)
    ]
    return conform(pa.table(arrays, names=[column.name for column in columns]), columns)


def _pairs(steps: Numbers, numbers: Numbers) -> Numbers:
    """One number for each pair."""
    most = int(numbers.max()) + 1 if len(numbers) else 1
    return steps * most + numbers


def _summed(numbers: Numbers, steps: Numbers, signs: Numbers) -> tuple[Numbers, Numbers]:
    """Where the rows first stand whose signs do not cancel out within their step, and the sums."""
    _, first, places = np.unique(_pairs(steps, numbers), return_index=True, return_inverse=True)
    sums = np.zeros(len(first), np.int64)
    np.add.at(sums, places, signs)
    kept = sums != 0
    return first[kept], sums[kept]


def _committed(step: Step) -> datetime:
    times = [update.committed for update in step.updates if update.committed is not None]
    return max(times) if times else datetime.now(timezone.utc)
