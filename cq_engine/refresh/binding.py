"""Leaves of a delta plan to relations: which rows of which table a refresh reads, and how little of them."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame

from cq_engine.algebra import nodes
from cq_engine.algebra.emit import Emitter
from cq_engine.algebra.nodes import FROM, TO, VERSION, WEIGHT, Node
from cq_engine.catalog.model import VersionedTable
from cq_engine.core.columns import ROW_FROM, ROW_TO, ROW_VERSION, ROW_WEIGHT, Column
from cq_engine.delta.images import changes_sql, history_sql, net_sql
from cq_engine.planner.forms import Reference
from cq_engine.refresh.images import select_fields
from cq_engine.refresh.key_combinations import KeyCombinations
from cq_engine.refresh.key_values import KeyValues, contents
from cq_engine.refresh.large_look_ups import LargeLookUps
from cq_engine.refresh.look_ups import LookUps
from cq_engine.refresh.mesh import Changes, QueryMesh
from cq_engine.refresh.report import Read, Report
from cq_engine.refresh.source_rows import (
    SourceRows,
    narrow,
    number_columns,
    row_versions,
    select_rows,
    state_rows,
    unite,
)
from cq_engine.spark.sql import fresh_name
from cq_engine.storage.file_look_ups import Choose, Restrict, filter_rows, prune_files
from cq_engine.storage.reader import Reader
from cq_engine.storage.rows import empty
from cq_engine.storage.uncompacted_log import UncompactedLog

__all__ = ["IntervalBinder"]


class IntervalBinder:
    """Binds the leaves of a delta plan over (a, b]. `relations` are the DataFrames that the emitted SQL names.

    Where a table's changes and the rows that they meet are few, the driver nets them in Arrow (`logs`) and hands them
    over as one small relation; otherwise Spark does the same in SQL (`delta.images`) over the tables' files.

    Args:
        reader: reads the tables.
        tables: the query's tables, by lower-case name.
        states: its states, by label.
        a, b: the interval.
        compressed: is a row's change the net one of the interval?
        references: the foreign keys that may be relied on.
        report: its decision says how tables are read; it is told what was.
        columns: of which tables only which columns are read, by name.
        mesh: the query's mesh join, where it has one.
    """

    def __init__(
        self,
        reader: Reader,
        tables: Mapping[str, VersionedTable],
        states: Mapping[str, VersionedTable],
        a: int,
        b: int,
        compressed: bool,
        references: Sequence[Reference] = (),
        report: Report | None = None,
        columns: Mapping[str, Collection[str]] | None = None,
        mesh: QueryMesh | None = None,
    ) -> None:
        self.reader = reader
        self.tables = tables
        self.states = states
        self.a = a
        self.b = b
        self.compressed = compressed
        self.relations: dict[str, DataFrame] = {}
        self.scans = False
        """Do statements read rows that are not at the driver? They are planned like any query then, for all cores."""
        self.too_large = False
        """Were there rows of a mesh join that are too many for the driver? Of fewer changes there may be fewer."""
        self.emitter: Emitter | None = None
        self._logs: dict[str, UncompactedLog | None] = {}
        self._names: dict[tuple[object, ...], str] = {}
        self._ctes: dict[str, str] = {}
        self._bases: dict[tuple[object, ...], pa.Table | None] = {}
        self._input_rows: dict[str, tuple[pa.Table, tuple[Column, ...]]] = {}
        self._known_rows: dict[tuple[object, ...], pa.Table | None] = {}
        self.report = Report() if report is None else report
        self._mesh = mesh
        self.given_up = threading.Event()  # set where nobody wants what is prefetched any more
        self.undo = self.report.decision.undo
        self._read = {tables[name].id: read for name, read in (columns or {}).items()}
        limits = reader.limits
        small = LookUps(tables, references, self.report, self._log, self._start, limits)
        large = LargeLookUps(reader, small, a, b)
        self._keys = KeyValues(
            tables, self._log, self._history_rows, small.reduce, large.remaining_keys, limits
        )

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
        return select_fields(self._state_fields(leaf), self._state(leaf))

    def attach(self, emitter: Emitter) -> None:
        """Says where the CTEs go that the leaves need; those of earlier statements come along."""
        self.emitter = emitter
        emitter.ctes.update(self._ctes)

    def source_rows(self, leaf: Node) -> SourceRows | None:
        """The rows of a leaf, where the driver can have them."""
        if isinstance(leaf, nodes.Changes):
            log = self._log(leaf.scan.table)
            rows = None if log is None else log.changes
            return select_rows(
                rows, self.tables[leaf.scan.table], [s for _, s in leaf.scan.fields], ROW_VERSION, ROW_WEIGHT
            )
        if isinstance(leaf, nodes.History):
            table = self.tables[leaf.scan.table]
            return select_rows(
                self._history_rows(leaf), table, [s for _, s in leaf.scan.fields], ROW_FROM, ROW_TO
            )
        if isinstance(leaf, nodes.Given):
            if leaf.name not in self._input_rows:
                return None
            rows, columns = self._input_rows[leaf.name]
            return number_columns(rows, columns)
        assert isinstance(leaf, nodes.StateRows)
        table = self.states[leaf.label]
        return select_rows(self._wanted_state(leaf), table, [c.name for c in table.columns])

    def bind_frame(self, leaf: nodes.Given, rows: DataFrame) -> None:
        """Binds rows that were computed before; `rows` have the leaf's columns by position."""
        name = self._names["input", leaf.name] = fresh_name(leaf.name)
        self.relations[name] = rows.toDF(*leaf.columns)

    def bind_rows(self, leaf: nodes.Given, rows: pa.Table, columns: Sequence[Column]) -> None:
        """Likewise; `columns` are those of `rows`."""
        self._keys.give(leaf.name, rows)
        self._input_rows[leaf.name] = (rows, tuple(columns))
        self._names.pop(("input", leaf.name), None)

    def _input_name(self, leaf: nodes.Given) -> str:
        if ("input", leaf.name) not in self._names:
            rows, columns = self._input_rows[leaf.name]
            self.bind_frame(leaf, self.reader.one_part(rows, columns))
        return self._names["input", leaf.name]

    # ------------------------------------------------------------ changes

    def _start(self, table: VersionedTable) -> int:
        """The version at or below `a` from which the table is read: its image there, and its changes since."""
        return (
            self.a
            if self.reader.is_small(table, self.a)
            else self.reader.catalog.layout(table.id, self.a).base
        )

    def _log(self, name: str) -> UncompactedLog | None:
        """The table's change rows where the driver can have them."""
        if name not in self._logs:
            table = self.tables[name]
            limits = self.reader.limits
            rows = self.reader.change_runs(
                table, self._start(table), self.b, limits.driver_changes, limits.driver_change_bytes
            )
            if rows is None:
                self._logs[name] = None
            else:
                self._note(table, "changes", rows.num_rows)
                self._logs[name] = UncompactedLog.of(table, rows, self.a, self.b, self.compressed)
        return self._logs[name]

    def _net(self, name: str) -> tuple[str | None, bool]:
        """The CTE of the net change rows (None: there are none), and whether all of them are inserts."""
        table = self.tables[name]
        start = self._start(table)
        sets = self.reader.catalog.changes(table.id, start + 1, self.b)
        if not sets:
            return None, True
        self.scans = True
        if ("net", name) not in self._names:
            relation = fresh_name(f"log_{name}")
            self.relations[relation] = self.reader.changes(table, start, self.b)
            self._note(table, "changes", sum(s.rows for s in sets), sum(len(s.files) for s in sets))
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
        log = self._log(name)
        columns = (*table.physical_columns, Column(ROW_VERSION, "bigint"), Column(ROW_WEIGHT, "int"))
        if log is not None:
            return self._name_rows(("changes", name), log.changes, columns)
        net, _ = self._net(name)
        if net is None:
            return self._name_rows(("changes", name), empty(columns), columns)
        return self._cte("changes", name, changes_sql(net, [c.name for c in table.physical_columns], self.a))

    # ------------------------------------------------------------ histories

    def _version_rows(self, leaf: nodes.History) -> tuple[tuple[object, ...], pa.Table | None]:
        """The row versions that a leaf wants, where the driver can have them: physical columns, `ROW_FROM`, `ROW_TO`.

        Before them a key that is the same for leaves with the same rows.
        """
        table = self.tables[leaf.scan.table]
        restrict = self._keys.restrict(table, leaf.filters, leaf.scan.fields)
        wanted = self._keys.wanted(table, leaf.filters, leaf.scan.fields)
        together = self._keys.combinations(table, leaf.filters, leaf.scan.fields)
        meets = leaf.meets if self._mesh is not None and not restrict else None
        by_value = contents(restrict), contents(wanted)
        key = ("history", leaf.scan.table, *by_value, together.key, id(meets) if meets else 0)
        if key not in self._known_rows:
            log = self._log(leaf.scan.table)
            base = self._base_rows(table, restrict, together) if log is not None else None
            if base is None and log is not None and meets is not None:
                base = self._meeting_rows(table, leaf.scan, meets)
            if log is None or base is None:
                self._known_rows[key] = None
            else:
                if self.undo:
                    most = self.reader.limits.relevant_rows
                    log = narrow(log, base, wanted, most)
                self._known_rows[key] = filter_rows(row_versions(log, base, self.undo), wanted)
        return key, self._known_rows[key]

    def _history_rows(self, leaf: nodes.History) -> pa.Table | None:
        return self._gather_rows(leaf) if leaf.among else self._version_rows(leaf)[1]

    def _gather_rows(self, leaf: nodes.History) -> pa.Table | None:
        """The versions of rows that change and of rows that a group of filters wants, each once."""
        key = ("gathered", id(leaf))
        if key not in self._known_rows:
            log = self._log(leaf.scan.table)
            groups = [self._version_rows(nodes.History(leaf.scan, filters))[1] for filters in leaf.among]
            found = [rows for rows in groups if rows is not None]
            known = log is not None and self.undo and len(found) == len(groups)
            self._known_rows[key] = None
            if known and log is not None:
                self._known_rows[key] = unite(log.moving(), found, log.table)
        return self._known_rows[key]

    def _history(self, leaf: nodes.History) -> str:
        assert not leaf.among, "a plan for rows that the driver has"
        table = self.tables[leaf.scan.table]
        key, versions = self._version_rows(leaf)
        if key in self._names:
            return self._names[key]
        if versions is not None:
            columns = (*table.physical_columns, Column(ROW_FROM, "bigint"), Column(ROW_TO, "bigint"))
            return self._name_rows(key, versions, columns)
        restrict = self._keys.restrict(table, leaf.filters, leaf.scan.fields)
        net, insert_only = self._net(leaf.scan.table)
        relation = fresh_name(f"base_{leaf.scan.table}")
        self.relations[relation] = self._base_frame(table, restrict)
        columns_names = [c.name for c in table.physical_columns]
        sql = history_sql(relation, net, columns_names, table.identity, self.a, insert_only, self.undo)
        name = self._cte("history", key, sql)
        self._names[key] = name
        return name

    def _base_rows(
        self, table: VersionedTable, restrict: Restrict, together: KeyCombinations
    ) -> pa.Table | None:
        """At least the wanted rows of the image that the log goes on from, where they are few; read once."""
        key = (table.id, contents(restrict), together.key)
        if key not in self._bases:
            self._bases[key] = self._read_base_rows(table, restrict, together)
        return self._bases[key]

    def _read_base_rows(
        self, table: VersionedTable, restrict: Restrict, together: KeyCombinations
    ) -> pa.Table | None:
        if any(len(values) == 0 for values in restrict.values()):
            return empty(table.physical_columns)
        rows = self.reader.small_image(table, self.a)
        if rows is not None:
            rows = filter_rows(rows, restrict)
            self._note(table, "memory", rows.num_rows)
        elif restrict:
            rows = self._look_up(table, restrict, together.choose)
        return None if rows is None or self._is_too_large(rows) else rows

    def _look_up(self, table: VersionedTable, restrict: Restrict, choose: Choose | None) -> pa.Table | None:
        """From the snapshot's files: by a mesh join, where the query has one, else by key; None where that would be many files or rows."""
        layout, wanted = self.reader.catalog.layout(table.id, self.a), self._read.get(table.id)

        def look_up() -> pa.Table | None:
            return self.reader.base_arrow(table, layout, restrict, wanted, choose)

        if self._mesh is None:
            how, rows = "look-up", look_up()
        else:
            told = self.report.meshes, self.given_up
            how, rows = self._mesh.rows(table, layout, restrict, wanted, look_up, *told)
        if rows is not None:
            self._note(table, how, rows.num_rows, len(prune_files(layout.snapshot, restrict)))
        return rows

    def _meeting_rows(self, table: VersionedTable, scan: nodes.Scan, meets: nodes.Meeting) -> pa.Table | None:
        """The rows of the snapshot that meet a change by other conditions than equality; None where only Spark finds them."""
        assert self._mesh is not None
        source = self._keys.source(meets.leaf)
        if source is None:
            return None
        layout, wanted = self.reader.catalog.layout(table.id, self.a), self._read.get(table.id)
        changes = Changes(self.tables[source[0].table], *source)
        told = self.report.meshes, self.given_up
        rows = self._mesh.rows_meeting(table, layout, scan, meets, changes, wanted, *told)
        if rows is None or self._is_too_large(rows):
            return None
        self._note(table, "mesh", rows.num_rows, len(layout.snapshot))
        return rows

    def _is_too_large(self, rows: pa.Table) -> bool:
        limits = self.reader.limits
        found = bool(rows.num_rows > limits.driver_rows or rows.nbytes > limits.driver_bytes)
        self.too_large |= found and self._mesh is not None
        return found

    def _base_frame(self, table: VersionedTable, restrict: Restrict) -> DataFrame:
        if any(len(values) == 0 for values in restrict.values()):
            return self.reader.frame(empty(table.physical_columns), table.physical_columns)
        self.scans = True
        layout = self.reader.catalog.layout(table.id, self.a)
        files = prune_files(layout.snapshot, restrict)
        self._note(table, "scan", sum(file.rows for file in files), len(files))
        if self._start(table) == self.a:
            return self.reader.image(table, self.a, restrict or None, self._read.get(table.id))
        return self.reader.base(table, layout, restrict or None, self._read.get(table.id))

    def _note(self, table: VersionedTable, how: str, rows: int, files: int = 0) -> None:
        self.report.reads.append(Read(table.name, how, rows, files))

    # ------------------------------------------------------------ states

    def _state_fields(self, leaf: nodes.StateRows) -> tuple[tuple[str, str], ...]:
        return tuple(zip(leaf.names, (c.name for c in self.states[leaf.label].columns)))

    def _state_restrict(self, leaf: nodes.StateRows) -> Restrict:
        return self._keys.restrict(self.states[leaf.label], leaf.filters, self._state_fields(leaf))

    def _wanted_state(self, leaf: nodes.StateRows) -> pa.Table | None:
        """The rows of a state that a leaf wants, where the driver can have them."""
        key = ("state", id(leaf))
        if key not in self._known_rows:
            table, fields = self.states[leaf.label], self._state_fields(leaf)
            together = self._keys.combinations(table, leaf.filters, fields)
            rows = state_rows(self.reader, table, self.a, self._state_restrict(leaf), together)
            if rows is None or rows.num_rows > self.reader.limits.driver_rows:
                self._known_rows[key] = None
            else:
                self._note(table, "state", rows.num_rows)
                self._known_rows[key] = rows
        return self._known_rows[key]

    def _state(self, leaf: nodes.StateRows) -> str:
        name = self._names.get(("state", leaf.label, id(leaf)))
        if name is not None:
            return name
        table = self.states[leaf.label]
        rows = self._wanted_state(leaf)
        if rows is not None:
            return self._name_rows(("state", leaf.label, id(leaf)), rows, table.columns)
        self.scans = True
        name = self._names["state", leaf.label, id(leaf)] = fresh_name(f"state_{leaf.label}")
        self.relations[name] = self.reader.image(table, self.a, self._state_restrict(leaf) or None)
        return name
