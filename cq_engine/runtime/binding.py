"""Leaves of a delta plan to relations: which rows of which table a refresh reads, and how little of them."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from cq_engine.algebra.emit import Emitter, quote
from cq_engine.algebra.nodes import FROM, TO, VERSION, WEIGHT, Changes, History, KeyHint, Node, Scan, StateRows
from cq_engine.catalog.model import VersionedTable
from cq_engine.delta.images import changes_sql, history_sql, net_sql
from cq_engine.runtime.reader import Reader
from cq_engine.runtime.rows import change_columns, empty
from cq_engine.runtime.sql import fresh_name
from cq_engine.types import arrow_type

__all__ = ["ImageBinder", "IntervalBinder"]

HINT_VALUES = 20_000
"""More distinct join keys than this are not worth a look-up by key; the table is scanned."""
HINT_ROWS = 100_000
"""More change rows than this are not looked at by the driver for keys."""


class ImageBinder:
    """Binds scans to the tables' images at one version."""

    def __init__(self, reader: Reader, tables: Mapping[str, VersionedTable], version: int | None) -> None:
        self.reader = reader
        self.tables = tables
        self.version = version
        self.relations: dict[str, DataFrame] = {}
        self._names: dict[str, str] = {}

    def __call__(self, leaf: Node) -> str:
        assert isinstance(leaf, Scan)
        if leaf.table not in self._names:
            table = self.tables[leaf.table]
            name = self._names[leaf.table] = fresh_name(leaf.table)
            if self.version is None:
                self.relations[name] = self.reader.frame(empty(table.physical_columns), table.physical_columns)
            else:
                self.relations[name] = self.reader.image(table, self.version)
        return _select(leaf.fields, self._names[leaf.table])


class IntervalBinder:
    """Binds the leaves of a delta plan over (a, b]. `relations` are the DataFrames that the emitted SQL names."""

    def __init__(
        self,
        reader: Reader,
        tables: Mapping[str, VersionedTable],
        states: Mapping[str, VersionedTable],
        a: int,
        b: int,
        compressed: bool,
    ) -> None:
        self.reader = reader
        self.tables = tables
        self.states = states
        self.a = a
        self.b = b
        self.compressed = compressed
        self.relations: dict[str, DataFrame] = {}
        self.emitter: Emitter | None = None
        self._tails: dict[str, tuple[str | None, bool, int]] = {}
        self._histories: dict[tuple[str, tuple[str, ...]], str] = {}
        self._restrictions: dict[tuple[str, str, int], pa.Array | None] = {}
        self.reads: list[str] = []
        """What was read of each table, for EXPLAIN."""

    def __call__(self, leaf: Node) -> str:
        if isinstance(leaf, Changes):
            return self._changes(leaf)
        if isinstance(leaf, History):
            return self._history(leaf)
        assert isinstance(leaf, StateRows)
        return self._state(leaf)

    def attach(self, emitter: Emitter) -> None:
        """Says where the CTEs go that the leaves need."""
        self.emitter = emitter

    # ------------------------------------------------------------ tails

    def _tail(self, name: str) -> tuple[str | None, bool, int]:
        """(CTE of the net change rows or None, are they all inserts, the version they go on from)."""
        if name not in self._tails:
            table = self.tables[name]
            small = self.reader.is_small(table, self.a)
            base = self.a if small else self.reader.catalog.layout(table.id, self.a).base
            sets = [s for s in self.reader.catalog.layout(table.id, base).changes if base < s.high and s.low <= self.b]
            if not sets:
                self._tails[name] = (None, True, base)
            else:
                tail = fresh_name(f"tail_{name}")
                arrow = self.reader.changes_arrow(table, base, self.b, HINT_ROWS)
                self.relations[tail] = (
                    self.reader.changes(table, base, self.b) if arrow is None else self._change_frame(table, arrow)
                )
                columns = [c.name for c in table.physical_columns]
                net = f"net_{len(self._tails) + 1}"
                sql = net_sql(tail, columns, table.identity, self.a, self.b, self.compressed)
                self._cte(net, sql)
                self._tails[name] = (net, all(s.kinds <= {"INSERT"} for s in sets), base)
        return self._tails[name]

    def _change_frame(self, table: VersionedTable, arrow: pa.Table) -> DataFrame:
        return self.reader.frame(arrow, change_columns(table))

    def _cte(self, name: str, sql: str) -> None:
        assert self.emitter is not None
        self.emitter.ctes[name] = sql

    def _changes(self, leaf: Changes) -> str:
        net, _, _ = self._tail(leaf.scan.table)
        assert net is not None  # the planner asks only for changes of changed tables
        names = [c.name for c in self.tables[leaf.scan.table].columns]
        rows = f"({changes_sql(net, names, self.a)})"
        return _select(leaf.scan.fields, rows, VERSION, WEIGHT)

    # ------------------------------------------------------------ histories

    def _history(self, leaf: History) -> str:
        table = self.tables[leaf.scan.table]
        restrict = self._restrict(leaf)
        key = (leaf.scan.table, tuple(sorted(f"{n}:{id(v)}" for n, v in restrict.items())))
        if key not in self._histories:
            net, insert_only, start = self._tail(leaf.scan.table)
            base = fresh_name(f"base_{leaf.scan.table}")
            if start == self.a:
                self.relations[base] = self.reader.image(table, self.a, restrict or None)
            else:
                layout = self.reader.catalog.layout(table.id, start)
                self.relations[base] = self.reader.base(table, layout, restrict or None)
            self.reads.append(
                f"{leaf.scan.table}: rows by {', '.join(f'{len(v)} values of {n}' for n, v in restrict.items())}"
                if restrict
                else f"{leaf.scan.table}: all rows"
            )
            columns = [c.name for c in table.physical_columns]
            name = f"history_{len(self._histories) + 1}"
            self._cte(name, history_sql(base, net, columns, table.identity, self.a, insert_only))
            self._histories[key] = name
        return _select(leaf.scan.fields, self._histories[key], FROM, TO)

    def _restrict(self, leaf: History) -> dict[str, pa.Array]:
        """The wanted values by column that the leaf's hints amount to; {} to read everything."""
        found = {}
        table = self.tables[leaf.scan.table]
        if self.reader.is_small(table, self.a):
            return {}
        for hint in leaf.hints:
            name = leaf.scan.source_of(hint.column)
            values = self._values(hint)
            if values is not None:
                values = _fitting(values, table, name)
            if values is not None and len(values) <= HINT_VALUES:
                found[name] = values
        return found

    def _values(self, hint: KeyHint) -> pa.Array | None:
        """The distinct values of the hint's source, where the driver can know them cheaply."""
        leaf = hint.leaf
        assert isinstance(leaf, (Changes, History))
        source = leaf.scan.source_of(hint.of_column)
        key = (leaf.scan.table, source, id(leaf) if isinstance(leaf, History) else 0)
        if key not in self._restrictions:
            table = self.tables[leaf.scan.table]
            if isinstance(leaf, Changes):
                rows = self.reader.changes_arrow(table, self.a, self.b, HINT_ROWS)
            else:
                rows = self._restricted_rows(leaf, table)
            values = None if rows is None else pc.unique(rows.column(source).combine_chunks())
            self._restrictions[key] = values if values is None or len(values) <= HINT_VALUES else None
        return self._restrictions[key]

    def _restricted_rows(self, leaf: History, table: VersionedTable) -> pa.Table | None:
        """At least all versions of the rows that the hints of `leaf` let through."""
        small = self.reader.small_image(table, self.a)
        if small is not None:
            changes = self.reader.changes_arrow(table, self.a, self.b, HINT_ROWS)
            columns = small.column_names
        else:
            restrict = self._restrict(leaf)
            if not restrict:
                return None
            layout = self.reader.catalog.layout(table.id, self.a)
            small = self.reader.base_arrow(table, layout, restrict)
            changes = self.reader.changes_arrow(table, layout.base, self.b, HINT_ROWS)
            columns = [c.name for c in table.physical_columns]
        if small is None or changes is None:
            return None
        return pa.concat_tables([small.select(columns), changes.select(columns)], promote_options="permissive")

    # ------------------------------------------------------------ states

    def _state(self, leaf: StateRows) -> str:
        table = self.states[leaf.label]
        name = fresh_name(f"state_{leaf.label}")
        self.relations[name] = self.reader.image(table, self.a)
        fields = tuple(zip(leaf.names, (c.name for c in table.columns)))
        return _select(fields, name)


def _select(fields: tuple[tuple[str, str], ...], relation: str, *extra: str) -> str:
    shown = [quote(source) if name == source else f"{quote(source)} AS {quote(name)}" for name, source in fields]
    return f"(SELECT {', '.join([*shown, *extra])} FROM {relation})"


def _fitting(values: pa.Array, table: VersionedTable, name: str) -> pa.Array | None:
    """The values as the column's type, or None where a comparison in Spark would mean something else."""
    kind = arrow_type(next(c.type for c in table.physical_columns if c.name.lower() == name.lower()))
    if values.type == kind and not pa.types.is_floating(kind) and not pa.types.is_nested(kind):
        return values
    if pa.types.is_integer(values.type) and pa.types.is_integer(kind):
        try:
            return values.cast(kind)
        except pa.ArrowInvalid:
            return None
    return None
