"""What deltas do to a target that has the result: by key, as the target tells keys apart, which is byte by byte."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from cq_engine.catalog.model import ContinuousQuery
from cq_engine.core.types import collations, spark_type
from cq_engine.core.values import python_rows
from cq_engine.destinations.envelope import key_places
from cq_engine.destinations.layout import shown_columns
from cq_engine.destinations.pairs import GONE as DELETED
from cq_engine.destinations.pairs import WITH_OLD, old_column
from cq_engine.storage.rows import identity_keys

__all__ = ["GONE", "net_changes", "without_minus_zero"]

GONE = "_cq_gone"
"""The column of `net_changes` that is true where a key has no row any more."""


def net_changes(query: ContinuousQuery, wide: pa.Table) -> pa.Table:
    """What deltas in the wide layout do to the result, by key: the row that the key has after the last of them, or, with
    `GONE`, the last one that it had. The columns are those of the result, and `GONE`.

    Where a collation takes differently written keys for one, a key that is written anew is two rows: one that is gone, as the
    target has it, and the new one.
    """
    columns = query.result.columns[: query.width]
    names, places = [column.name for column in columns], key_places(query) or ()
    gone = pc.is_in(wide.column("marker"), pa.array(DELETED))
    after = pa.table(shown_columns(wide, range(query.width)), names=names)
    after = without_minus_zero(after, places).append_column(GONE, gone)
    key = [columns[n] for n in places]
    written_anew = any(collations(spark_type(column.type)) for column in key)
    versions = wide.column("version")
    first = last = list(range(wide.num_rows))
    if wide.num_rows > 1 and versions[0] != versions[-1]:  # one commit has a key but once
        keys = identity_keys(after, key)
        ends = {each: place for place, each in enumerate(keys)}
        last = sorted(ends.values())
        begins = {each: place for place, each in reversed(list(enumerate(keys)))}
        first = [begins[keys[place]] for place in last]
        after = after.take(pa.array(last, pa.int64()))
    if not written_anew:
        return after
    began = wide.take(pa.array(first, pa.int64()))
    before = began.select([old_column(n) for n in range(query.width)]).rename_columns(names)
    before = without_minus_zero(before, places)
    was_there = pc.is_in(began.column("marker"), pa.array(WITH_OLD)).to_pylist()
    key_names = [column.name for column in key]
    spelled = zip(*(map(repr, python_rows(each.select(key_names))) for each in (before, after)))
    differ = pa.array([there and a != b for there, (a, b) in zip(was_there, spelled)], pa.bool_())
    gone = pa.array(differ.filter(differ))
    left = before.filter(differ).append_column(GONE, gone)
    superseded = pc.and_(differ, after.column(GONE).combine_chunks())
    return pa.concat_tables([left, after.filter(pc.invert(superseded))])


def without_minus_zero(rows: pa.Table, places: tuple[int, ...]) -> pa.Table:
    """−0.0 and 0.0 are one key, and not everywhere equal."""
    for n in places:
        if pa.types.is_floating(rows.schema.field(n).type):
            zero = pa.scalar(0.0, rows.schema.field(n).type)
            rows = rows.set_column(n, rows.schema.field(n), pc.add(rows.column(n), zero))
    return rows
