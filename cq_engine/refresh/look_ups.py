"""Which keys of a look-up have to be read from a base table, and which the interval's own change rows answer.

Two facts hold whatever the query is (Witkowski et al., VLDB 2007, slides 20 to 27):

*Units.* A row of the table that changed since its snapshot is in the change rows, with all of its versions. Wanted by
its whole key, it need not be looked up. What is left is the paper's anti-join, and often nothing.

*FK-PK.* A row that did not change since version s exists at every version from s to b, and by an enforced foreign key
its parent does. So no such row refers to a parent that is absent at one of these versions, that is, to one that was
inserted or deleted after s. Only parents that were changed in place are looked up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cq_engine.catalog.change_rows import CHANGE_TYPE, DELETE, UPDATE_PREIMAGE
from cq_engine.catalog.model import VersionedTable
from cq_engine.core.arrays import distinct
from cq_engine.core.limits import Limits
from cq_engine.planner.forms import LookUp, Reference
from cq_engine.refresh.report import Report
from cq_engine.storage.file_look_ups import Restrict
from cq_engine.storage.identities import KeySet
from cq_engine.storage.uncompacted_log import UncompactedLog

__all__ = ["LookUps"]


Logs = Callable[[str], "UncompactedLog | None"]


class LookUps:
    """The look-ups of one refresh.

    Args:
        tables: the query's tables, by lower-case name.
        references: the foreign keys among them that may be relied on.
        report: its decision says which of the two facts are used; it is told of the look-ups.
        log: a table's change rows, where the driver can have them.
        start: the version from which a table's change rows reach to the end of the interval.
        limits: the engine's.
    """

    def __init__(
        self,
        tables: Mapping[str, VersionedTable],
        references: Sequence[Reference],
        report: Report,
        log: Logs,
        start: Callable[[VersionedTable], int],
        limits: Limits,
    ) -> None:
        self.decision = report.decision
        self.done = report.look_ups
        self.tables = tables
        self.references = references
        self.start = start
        self._most = limits.key_combinations
        self._few = limits.relevant_rows
        self._names = {table.id: name for name, table in tables.items()}
        self._log = log

    def name_of(self, table: VersionedTable) -> str | None:
        """The lower-case name of one of the query's tables; None for a state."""
        return self._names.get(table.id)

    def reduce(self, table: VersionedTable, restrict: Restrict) -> dict[str, pa.Array]:
        """The wanted values without those of which no row has to be read; a column without values: no row at all."""
        name = self.name_of(table)
        if name is None or not restrict:
            return dict(restrict)
        never_null = table.identity if table.kind == "base" else ()
        left = {n: values.drop_null() if n in never_null else values for n, values in restrict.items()}
        counts = {"units": 0, "keys": 0}
        for fact, columns, names, excluded in self._facts(name, table, left):
            before = _count(left)
            left = _subtract(left, columns, names, excluded, self._most)
            counts[fact] += before - _count(left)
        self.done.append(
            LookUp(name, tuple(left), _count(restrict), counts["units"], counts["keys"], _count(left))
        )
        return left

    def _facts(
        self, name: str, table: VersionedTable, wanted: Restrict
    ) -> Iterator[tuple[str, tuple[str, ...], tuple[str, ...], KeySet]]:
        if self.decision.units and table.identity and wanted.keys() >= set(table.identity):
            log = self._log(name)
            if log is not None:
                log = log.among({name: wanted[name] for name in table.identity}, self._few)
                known = log.touched if self.decision.undo else log.without_image
                yield "units", table.identity, table.identity, known
        for key in self.references if self.decision.keys else ():
            if key.child == name and wanted.keys() >= set(key.columns):
                log, mine = self._log(key.parent), self._log(name)
                if log is None or (mine is None and not self.decision.undo):
                    continue
                parents = {name: wanted[c] for name, c in zip(key.parent_columns, key.columns)}
                gone = log.among(parents, self._few).absent(max(self.start(table), key.since))
                if not self.decision.undo:
                    gone = gone.without(_parent_keys(mine, key))
                yield "keys", key.columns, key.parent_columns, gone


def _parent_keys(log: UncompactedLog | None, key: Reference) -> pa.Table:
    """What the changed rows referred to, by the parent's names: without undo, what they were is read from the base."""
    assert log is not None
    rows = log.parts[1].table
    rows = rows.filter(pc.is_in(rows.column(CHANGE_TYPE), value_set=pa.array([DELETE, UPDATE_PREIMAGE])))
    return rows.select(list(key.columns)).rename_columns(list(key.parent_columns))


def _count(restrict: Restrict) -> int:
    return prod(len(values) for values in restrict.values())


def _subtract(
    restrict: Restrict, columns: Sequence[str], names: Sequence[str], excluded: KeySet, most: int
) -> dict[str, pa.Array]:
    """`restrict` without the values of `columns` of which every combination is excluded; `names` are what the columns
    are called where the excluded keys come from. More than `most` combinations are not tried."""
    left = dict(restrict)
    many = len(columns) > 1 and prod(len(left[name]) for name in columns) > most
    if many or not len(excluded):
        return left
    places = [grid.ravel() for grid in np.indices([len(left[name]) for name in columns])]
    combinations = {n: left[c].take(pa.array(place)) for n, c, place in zip(names, columns, places)}
    rest = ~excluded.holds(pa.table(combinations))
    for name, place in zip(columns, places):
        stay = distinct(place[rest])
        if len(stay) < len(left[name]):
            left[name] = left[name].take(pa.array(stay))
    return left
