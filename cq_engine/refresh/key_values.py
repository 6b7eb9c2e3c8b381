"""Which values the keys of a delta have, and so which rows of a table a refresh can need.

A runtime filter (`delta.runtime_filters`) names a column of the delta plan. Where the rows below that column are few
and at hand, the driver follows it down to them: change rows, rows given by an earlier statement, versions that were
read before.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from sqlglot import exp

from cq_engine.algebra import nodes
from cq_engine.algebra.analysis.lineage import lineage
from cq_engine.algebra.nodes import Node, RuntimeFilter
from cq_engine.catalog.model import VersionedTable
from cq_engine.core.arrays import distinct_values
from cq_engine.core.capabilities import Use, can
from cq_engine.core.limits import Limits
from cq_engine.core.types import arrow_type
from cq_engine.refresh.conditions import is_compared, possible
from cq_engine.refresh.key_combinations import ALL_ROWS, KeyCombinations, find_rows, group_filters
from cq_engine.storage.file_look_ups import Restrict
from cq_engine.storage.rows import row_values
from cq_engine.storage.uncompacted_log import UncompactedLog

__all__ = ["KeyValues", "contents"]

_Values = TypeVar("_Values", pa.Array, pa.ChunkedArray)


def contents(restrict: Restrict) -> tuple[tuple[str, Hashable], ...]:
    """What two restrictions have in common that ask for the same rows."""
    return tuple((name, _content(values)) for name, values in sorted(restrict.items()))


def _content(values: pa.Array) -> Hashable:
    if pa.types.is_integer(values.type):
        return values.null_count, np.sort(np.asarray(values.drop_null())).tobytes()
    return frozenset(row_values(pa.table({"values": values})))


class Wanted(NamedTuple):
    """Of a leaf, by column: values of which rows are needed, and those of them of which base rows have to be read."""

    wanted: dict[str, pa.Array]
    left: dict[str, pa.Array]


class _Rows(NamedTuple):
    """Rows of a table, whose columns a scan names."""

    scan: nodes.Scan
    table: VersionedTable
    rows: pa.Table

    def column(self, name: str) -> pa.ChunkedArray:
        return self.rows.column(self.scan.source_of(name))

    def filter(self, condition: exp.Expr) -> _Rows:
        """At least those for which the condition is TRUE."""
        plain = {c.name for c in self.table.physical_columns if is_compared(c.type)}
        columns = {name: self.rows.column(source) for name, source in self.scan.fields if source in plain}
        mask = possible(condition, columns)
        return self if mask is None else self._replace(rows=self.rows.filter(mask))


class KeyValues:
    """The values of a delta plan's columns.

    Args:
        tables: the tables of the plan's scans.
        log: a table's changes, where the driver can have them.
        versions: the row versions of a leaf; None where they are many.
        reduce: what of a restriction has to be read.
        remaining: the same for a column's keys that the driver does not know; None where they are too many.
        limits: the engine's.
    """

    def __init__(
        self,
        tables: Mapping[str, VersionedTable],
        log: Callable[[str], UncompactedLog | None],
        versions: Callable[[nodes.History], pa.Table | None],
        reduce: Callable[[VersionedTable, Restrict], Restrict],
        remaining: Callable[[VersionedTable, str, RuntimeFilter, int], pa.Array | None],
        limits: Limits,
    ) -> None:
        self._limits = limits
        self._tables = tables
        self._log = log
        self._versions = versions
        self._reduce = reduce
        self._remaining = remaining
        self._restricts: dict[tuple[int, int], tuple[Sequence[RuntimeFilter], Wanted]] = {}
        self._given: dict[str, pa.Table] = {}
        self._kept: list[Node] = []
        self._known: dict[tuple[int, str], pa.Array | None] = {}

    def give(self, name: str, rows: pa.Table) -> None:
        """The rows of the leaf `Given(name)`."""
        self._given[name] = rows

    def source(self, node: Node) -> tuple[nodes.Scan, pa.Table] | None:
        """The rows of change rows or row versions, filtered or not, with the columns of their scan's table; None for other nodes, and
        where the driver does not know them."""
        found = self._rows(node)
        return None if found is None else (found.scan, found.rows)

    def restrict(
        self, table: VersionedTable, filters: Sequence[RuntimeFilter], fields: Sequence[tuple[str, str]]
    ) -> dict[str, pa.Array]:
        """The values by column of which rows have to be read; {} to read everything, a column without values: nothing."""
        return self._look_up(table, filters, fields).left

    def wanted(
        self, table: VersionedTable, filters: Sequence[RuntimeFilter], fields: Sequence[tuple[str, str]]
    ) -> dict[str, pa.Array]:
        """The values by column that rows have which the plan can need, wherever they are; {} for all rows."""
        return self._look_up(table, filters, fields).wanted

    def combinations(
        self, table: VersionedTable, filters: Sequence[RuntimeFilter], fields: Sequence[tuple[str, str]]
    ) -> KeyCombinations:
        """Which of the rows with the values of `restrict` may be needed; all of them as far as nobody knows."""
        sources, left = dict(fields), self.restrict(table, filters, fields)
        counts = {f.column: len(left.get(sources[f.column], ())) for f in filters}
        group = group_filters(filters, counts)
        if not group:
            return ALL_ROWS
        leaf, columns = group[0].leaf, {sources[f.column]: f.of_column for f in group}
        kinds = [c for c in table.physical_columns if c.name in columns]

        def find() -> pa.Table | None:
            rows = find_rows(leaf, [columns[c.name] for c in kinds], self._columns_of)
            if rows is None:
                return None
            fitting = {k.name: _fitting(column, table, k.name) for k, column in zip(kinds, rows.columns)}
            known = {name: values for name, values in fitting.items() if values is not None}
            return pa.table(known) if len(known) == len(kinds) else None

        self._kept.append(leaf)
        return KeyCombinations((id(leaf), tuple(columns.items())), find, kinds)

    def _columns_of(self, node: Node, names: Sequence[str]) -> pa.Table | None:
        """The columns of a node whose rows are at hand."""
        if isinstance(node, nodes.Given):
            given = self._given.get(node.name)
            return None if given is None else given.select([node.names.index(name) for name in names])
        rows = self._rows(node)
        return None if rows is None else pa.table([rows.column(name) for name in names], list(names))

    def _look_up(
        self, table: VersionedTable, filters: Sequence[RuntimeFilter], fields: Sequence[tuple[str, str]]
    ) -> Wanted:
        key = (table.id, id(filters))
        if key not in self._restricts:
            sources = dict(fields)
            found = {}
            for filter_ in filters:
                values = self._values(filter_.leaf, filter_.of_column)
                fitting = None if values is None else _fitting(values, table, sources[filter_.column])
                if fitting is not None:
                    found[sources[filter_.column]] = fitting
            most = self._limits.key_values
            left = {name: v for name, v in self._reduce(table, found).items() if len(v) <= most}
            if not found:
                left = self._large(table, filters, sources)
            wanted = {name: values for name, values in found.items() if len(values) <= most}
            self._restricts[key] = filters, Wanted(wanted, left)
        return self._restricts[key][1]

    def _large(
        self, table: VersionedTable, filters: Sequence[RuntimeFilter], sources: Mapping[str, str]
    ) -> dict[str, pa.Array]:
        """By the first of the filters whose keys can be found by Spark."""
        for filter_ in filters:
            values = self._remaining(table, sources[filter_.column], filter_, self._limits.key_values)
            if values is not None:
                return {sources[filter_.column]: values}
        return {}

    def _values(self, node: Node, name: str) -> pa.Array | None:
        """At least the distinct values of a delta plan's column, where the driver can know them cheaply."""
        key = (id(node), name)
        if key not in self._known:
            self._kept.append(node)  # ids stay unique while the memo lives
            values = self._find_values(node, name)
            many = values is not None and len(values) > self._limits.known_values
            self._known[key] = None if many else values
        return self._known[key]

    def _find_values(self, node: Node, name: str) -> pa.Array | None:
        if isinstance(node, (nodes.Changes, nodes.History, nodes.Filter)):
            rows = self._rows(node)
            if rows is not None:
                return _distinct(rows.column(name))
        if isinstance(node, nodes.Given):
            return self._given_values(node, name)
        if isinstance(node, nodes.Empty):
            return pa.nulls(0)
        step = lineage(node, name)
        if step is None:
            return None
        values = _together([self._values(*each) for each in step.columns])
        if values is None:
            others = (self._values(*each) for each in step.equal)
            values = next((each for each in others if each is not None), None)
        return _with_null(values) if step.padded and values is not None else values

    def _given_values(self, node: nodes.Given, name: str) -> pa.Array | None:
        rows = self._given.get(node.name)
        return None if rows is None else _distinct(rows.column(node.names.index(name)))

    def _rows(self, node: Node) -> _Rows | None:
        """Of change rows or row versions, filtered; None for other nodes and where the driver does not know them."""
        if isinstance(node, nodes.Filter):
            rows = self._rows(node.input)
            return None if rows is None else rows.filter(node.condition)
        if isinstance(node, nodes.Changes):
            log = self._log(node.scan.table)
            found = None if log is None else log.changes
        elif isinstance(node, nodes.History):
            found = self._history_rows(node)
        else:
            return None
        return None if found is None else _Rows(node.scan, self._tables[node.scan.table], found)

    def _history_rows(self, leaf: nodes.History) -> pa.Table | None:
        table = self._tables[leaf.scan.table]
        if leaf.filters and not self.restrict(table, leaf.filters, leaf.scan.fields):
            return None
        return self._versions(leaf)


def _distinct(column: pa.ChunkedArray) -> pa.Array | None:
    """The distinct values; None for types of which Arrow does not know any."""
    return None if pa.types.is_nested(column.type) else distinct_values(column.combine_chunks())


def _with_null(values: pa.Array) -> pa.Array:
    return values if values.null_count else pa.concat_arrays([values, pa.nulls(1, values.type)])


def _together(parts: Sequence[pa.Array | None]) -> pa.Array | None:
    """The union of the parts in one type: theirs, or BIGINT for integers of several; None where one is not known."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    if len(known) == 1:
        return known[0]
    known = [part for part in known if not pa.types.is_null(part.type)] or known[:1]
    kinds = {part.type for part in known}
    if len(kinds) > 1:
        if not all(pa.types.is_integer(kind) for kind in kinds):
            return None
        known = [part.cast(pa.int64()) for part in known]
    return distinct_values(pa.concat_arrays(known))


def _fitting(values: _Values, table: VersionedTable, name: str) -> _Values | None:
    """The values as the column's type, or None where a comparison in Spark would mean something else."""
    column = next(c for c in table.physical_columns if c.name.lower() == name.lower())
    kind = arrow_type(column.type)
    if not can(column.type, Use.EQUAL):
        return None
    if values.type == kind:
        return values
    if pa.types.is_integer(values.type) and pa.types.is_integer(kind):
        try:
            return values.cast(kind)
        except pa.ArrowInvalid:
            return None
    return None
