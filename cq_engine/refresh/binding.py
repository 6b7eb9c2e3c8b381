"""Leaves of a delta plan to relations: which rows of which table a refresh reads, and how little of them."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import DataFrame

from cq_engine.algebra import nodes
from cq_engine.algebra.emit import Emitter
from cq_engine.algebra.nodes import FROM, TO, VERSION, WEIGHT, Node
from cq_engine.catalog.model import VersionedTable
from cq_engine.core.columns import ROW_FROM, ROW_TO, ROW_VERSION, ROW_WEIGHT, Column
from cq_engine.delta.images import changes_sql, history_sql, net_sql
from cq_engine.refresh.driver_rows import DriverRows
from cq_engine.refresh.images import select_fields
from cq_engine.refresh.source_rows import SourceRows
from cq_engine.spark.sql import fresh_name
from cq_engine.storage.file_look_ups import Restrict, prune_files
from cq_engine.storage.rows import empty

__all__ = ["IntervalBinder"]


class IntervalBinder:
    """Binds the leaves of a delta plan over (a, b]. `relations` are the DataFrames that the emitted SQL names.

    Where a table's changes and the rows that they meet are few, the driver has them (`rows`) and hands them
    over as one small relation; otherwise Spark does the same in SQL (`delta.images`) over the tables' files.
    """

    def __init__(self, rows: DriverRows) -> None:
        self.rows = rows
        self.reader = rows.reader
        self.tables = rows.tables
        self.states = rows.states
        self.a = rows.a
        self.b = rows.b
        self.compressed = rows.compressed
        self.report = rows.report
        self.relations: dict[str, DataFrame] = {}
        self.scans = False
        """Do statements read rows that are not at the driver? They are planned like any query then, for all cores."""
        self.emitter: Emitter | None = None
        self._names: dict[tuple[object, ...], str] = {}
        self._ctes: dict[str, str] = {}

    def source_rows(self, leaf: Node) -> SourceRows | None:
        """The rows of a leaf, where the driver can have them."""
        return self.rows.source_rows(leaf)

    def __call__(self, leaf: Node) -> str:
        if isinstance(leaf, nodes.Changes):
            return select_fields(
                leaf.scan.fields, self._changes(leaf.scan.table), (ROW_VERSION, VERSION), (ROW_WEIGHT, WEIGHT)
            )
        if isinstance(leaf, nodes.History):
            return select_fields(leaf.scan.fields, self._history(leaf), (ROW_FROM, FROM), (ROW_TO, TO))
        if isinstance(leaf, nodes.Given):
            return self._input_name(leaf)
        assert isinstance(leaf, nodes.StateRows)
        return select_fields(self.rows.state_fields(leaf), self._state(leaf))

    def attach(self, emitter: Emitter) -> None:
        """Says where the CTEs go that the leaves need; those of earlier statements come along."""
        self.emitter = emitter
        emitter.ctes.update(self._ctes)

    def bind_frame(self, leaf: nodes.Given, rows: DataFrame) -> None:
        """Binds rows that were computed before; `rows` have the leaf's columns by position."""
        name = self._names["input", leaf.name] = fresh_name(leaf.name)
        self.relations[name] = rows.toDF(*leaf.columns)

    def bind_rows(self, leaf: nodes.Given, rows: pa.Table, columns: Sequence[Column]) -> None:
        """Likewise; `columns` are those of `rows`."""
        self.rows.give(leaf, rows, columns)
        self._names.pop(("input", leaf.name), None)

    def _input_name(self, leaf: nodes.Given) -> str:
        if ("input", leaf.name) not in self._names:
            self.bind_frame(leaf, self.reader.one_part(*self.rows.given(leaf)))
        return self._names["input", leaf.name]

    # ------------------------------------------------------------ changes

    def _net(self, name: str) -> tuple[str | None, bool]:
        """The CTE of the net change rows (None: there are none), and whether all of them are inserts."""
        table = self.tables[name]
        start = self.rows.start(table)
        sets = self.reader.catalog.changes(table.id, start + 1, self.b)
        if not sets:
            return None, True
        self.scans = True
        if ("net", name) not in self._names:
            relation = fresh_name(f"log_{name}")
            self.relations[relation] = self.reader.changes(table, start, self.b)
            self.report.note(table, "changes", sum(s.rows for s in sets), sum(len(s.files) for s in sets))
            columns = [c.name for c in table.physical_columns]
            self._cte(
                "net", name, net_sql(relation, columns, table.identity, self.a, self.b, self.compressed)
            )
        return self._names["net", name], all(s.kinds <= {"INSERT"} for s in sets)

    def _cte(self, kind: str, key: object, sql: str) -> str:
        assert self.emitter is not None
        name = f"{kind}_{len(self._names) + 1}"
        self._names[kind, key] = name
        self._ctes[name] = self.emitter.ctes[name] = sql
        return name

    def _name_rows(self, key: tuple[object, ...], rows: pa.Table, columns: Sequence[Column]) -> str:
        """Rows of the driver as a relation, of one partition where they are not too many."""
        name = self._names[key] = fresh_name(str(key[0]))
        self.relations[name] = self.reader.one_part(rows, columns)
        return name

    def _changes(self, name: str) -> str:
        if ("changes", name) in self._names:
            return self._names["changes", name]
        table = self.tables[name]
        log = self.rows.log(name)
        shown = self.rows.read_part(table).physical_columns
        columns = (*shown, Column(ROW_VERSION, "bigint"), Column(ROW_WEIGHT, "int"))
        if log is not None:
            return self._name_rows(("changes", name), log.changes, columns)
        net, _ = self._net(name)
        if net is None:
            return self._name_rows(("changes", name), empty(columns), columns)
        return self._cte("changes", name, changes_sql(net, [c.name for c in table.physical_columns], self.a))

    # ------------------------------------------------------------ histories

    def _history(self, leaf: nodes.History) -> str:
        assert not leaf.among, "a plan for rows that the driver has"
        table = self.tables[leaf.scan.table]
        key, versions = self.rows.version_rows(leaf)
        if key in self._names:
            return self._names[key]
        if versions is not None:
            shown = self.rows.read_part(table).physical_columns
            columns = (*shown, Column(ROW_FROM, "bigint"), Column(ROW_TO, "bigint"))
            return self._name_rows(key, versions, columns)
        restrict = self.rows.keys.restrict(table, leaf.filters, leaf.scan.fields)
        net, insert_only = self._net(leaf.scan.table)
        relation = fresh_name(f"base_{leaf.scan.table}")
        self.relations[relation] = self._base_frame(table, restrict)
        columns_names = [c.name for c in table.physical_columns]
        sql = history_sql(relation, net, columns_names, table.identity, self.a, insert_only, self.rows.undo)
        name = self._cte("history", key, sql)
        self._names[key] = name
        return name

    def _base_frame(self, table: VersionedTable, restrict: Restrict) -> DataFrame:
        if any(len(values) == 0 for values in restrict.values()):
            return self.reader.frame(empty(table.physical_columns), table.physical_columns)
        self.scans = True
        layout = self.reader.catalog.layout(table.id, self.a)
        files = prune_files(layout.snapshot, restrict)
        self.report.note(table, "scan", sum(file.rows for file in files), len(files))
        if self.rows.start(table) == self.a:
            return self.reader.image(table, self.a, restrict or None, self.rows.read.get(table.id))
        return self.reader.base(table, layout, restrict or None, self.rows.read.get(table.id))

    # ------------------------------------------------------------ states

    def _state(self, leaf: nodes.StateRows) -> str:
        name = self._names.get(("state", leaf.label, id(leaf)))
        if name is not None:
            return name
        table = self.states[leaf.label]
        rows = self.rows.wanted_state(leaf)
        if rows is not None:
            return self._name_rows(("state", leaf.label, id(leaf)), rows, table.columns)
        self.scans = True
        name = self._names["state", leaf.label, id(leaf)] = fresh_name(f"state_{leaf.label}")
        self.relations[name] = self.reader.image(table, self.a, self.rows.state_restrict(leaf) or None)
        return name
