"""The look-ups of an interval that is too large for the driver: the keys left to be read, by Spark from change rows.

The same facts as in `look_ups`, as the paper has them (slide 26): the delta's keys are anti-joined with the table's own
change rows first. Mostly nothing remains, and the base table is not opened; a few keys are looked up; where many
remain, the table is scanned. Where all changed parents came or went, not even that query is needed (slide 20).
"""

from __future__ import annotations

from functools import reduce

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from cq_engine.algebra.analysis.lineage import ChangeColumns, change_columns
from cq_engine.algebra.nodes import RuntimeFilter
from cq_engine.catalog.change_rows import CHANGE_TYPE, DELETE, INSERT
from cq_engine.catalog.model import ChangeSet, VersionedTable
from cq_engine.core.capabilities import Use, can
from cq_engine.core.types import arrow_type
from cq_engine.planner.forms import LookUp, Reference, worth_counting
from cq_engine.refresh.look_ups import LookUps
from cq_engine.spark.arrow_io import to_arrow
from cq_engine.spark.sql import quote
from cq_engine.storage.reader import Reader

__all__ = ["LargeLookUps"]

_KEY = "_key"


class LargeLookUps:
    """The keys that remain, for look-ups by one column over (a, b]; it tells `small` what it did."""

    def __init__(self, reader: Reader, small: LookUps, a: int, b: int) -> None:
        self._reader = reader
        self._small = small
        self._a = a
        self._b = b

    def remaining_keys(
        self, table: VersionedTable, column: str, filter_: RuntimeFilter, most: int
    ) -> pa.Array | None:
        """The values of `column` of which rows have to be read; None where they are more than `most`, or not known."""
        name = self._small.name_of(table)
        if name is None or not (self._small.decision.keys and self._small.decision.undo):
            return None
        found, kind = change_columns(filter_.leaf, filter_.of_column), _kind(table, column)
        if not found or kind is None:
            return None
        if any(_kind(self._small.tables[other], source) != kind for other, source in found):
            return None
        keys = [key for key in self._small.references if key.child == name and key.columns == (column,)]
        units = self._small.decision.units and table.identity == (column,)
        if any(self._all_gone(table, key, found) for key in keys):
            self._note(name, column, 0)
            return pa.nulls(0, arrow_type(kind))
        wanted = sum(s.rows for other, _ in found for s in self._sets(self._small.tables[other], self._a))
        base = sum(file.rows for file in self._reader.catalog.layout(table.id, self._a).snapshot)
        always = self._reader.limits.counted_changes
        if not (units or keys) or not worth_counting(wanted, base, always):
            return None
        parts = [self._values(self._small.tables[other], source, self._a) for other, source in sorted(found)]
        left = reduce(DataFrame.unionAll, parts).distinct()
        if table.kind == "base" and column in table.identity:
            left = left.where(f"{_KEY} IS NOT NULL")
        if units:
            left = _subtract(left, self._values(table, column, self._small.start(table)))
        for key in keys:
            parent, since = self._small.tables[key.parent], self._since(table, key)
            left = _subtract(left, self._values(parent, key.parent_columns[0], since, gone=True))
        rows = to_arrow(left.limit(most + 1)).column(0).combine_chunks()
        if len(rows) > most:
            return None
        self._note(name, column, len(rows))
        return rows.cast(arrow_type(kind))

    def _all_gone(self, table: VersionedTable, key: Reference, found: ChangeColumns) -> bool:
        """True where the wanted keys are those of parents, and all of them were inserted or deleted."""
        if found != {(key.parent, key.parent_columns[0])} or self._since(table, key) > self._a:
            return False
        sets = self._sets(self._small.tables[key.parent], self._a)
        return all(s.kinds <= {"INSERT", "DELETE"} for s in sets)

    def _since(self, table: VersionedTable, key: Reference) -> int:
        return max(self._small.start(table), key.since)

    def _sets(self, table: VersionedTable, after: int) -> tuple[ChangeSet, ...]:
        return self._reader.catalog.changes(table.id, after + 1, self._b)

    def _values(self, table: VersionedTable, column: str, after: int, gone: bool = False) -> DataFrame:
        rows = self._reader.changes(table, after, self._b)
        rows = rows.where(f.col(CHANGE_TYPE).isin(INSERT, DELETE)) if gone else rows
        return rows.select(f.col(quote(column)).alias(_KEY))

    def _note(self, table: str, column: str, left: int) -> None:
        self._small.done.append(LookUp(table, (column,), None, left=left))


def _kind(table: VersionedTable, name: str) -> str | None:
    """The column's type, where Arrow, Spark and file statistics agree on what is equal; None otherwise."""
    kind = next((c.type for c in table.physical_columns if c.name.lower() == name.lower()), None)
    return kind if kind is not None and can(kind, Use.EQUAL) else None


def _subtract(keys: DataFrame, others: DataFrame) -> DataFrame:
    other = others.distinct().withColumnRenamed(_KEY, "_other")
    return keys.join(other, f.col(_KEY) == f.col("_other"), "left_anti")
