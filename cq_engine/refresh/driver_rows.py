"""The rows of a delta plan's leaves that the driver can have: changes, row versions and states over an interval, and no more of them
than the plan wants."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial

import pyarrow as pa

from cq_engine.algebra import nodes
from cq_engine.algebra.nodes import Node
from cq_engine.catalog.model import Layout, VersionedTable
from cq_engine.core.beside import Beside, is_much
from cq_engine.core.columns import ROW_FROM, ROW_TO, ROW_VERSION, ROW_WEIGHT, Column
from cq_engine.planner.forms import Reference
from cq_engine.refresh.key_combinations import KeyCombinations
from cq_engine.refresh.key_values import KeyValues, contents
from cq_engine.refresh.large_look_ups import LargeLookUps
from cq_engine.refresh.look_ups import LookUps
from cq_engine.refresh.mesh import Changes, QueryMesh
from cq_engine.refresh.report import Report
from cq_engine.refresh.source_rows import (
    SourceRows,
    image_rows,
    narrow,
    number_columns,
    row_versions,
    select_rows,
    state_rows,
    unite,
)
from cq_engine.storage.file_look_ups import Choose, Restrict, filter_rows, prune_files, value_count
from cq_engine.storage.reader import Reader
from cq_engine.storage.rows import empty
from cq_engine.storage.uncompacted_log import UncompactedLog

__all__ = ["DriverRows"]


class DriverRows:
    """Rows over (a, b]. Where there are too many of a leaf, there are none here.

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
        for_executors: do they compute with the rows? What is much they read themselves.
    """

    def __init__(
        self,
        reader: Reader,
        tables: Mapping[str, VersionedTable],
        states: Mapping[str, VersionedTable],
        a: int,
        b: int,
        compressed: bool,
        references: Sequence[Reference],
        report: Report,
        columns: Mapping[str, Collection[str]],
        mesh: QueryMesh | None,
        for_executors: bool,
    ) -> None:
        self.reader = reader
        self.tables = tables
        self.states = states
        self.a = a
        self.b = b
        self.compressed = compressed
        self.report = report
        self.undo = report.decision.undo
        self.read = {tables[name].id: read for name, read in columns.items()}
        self._mesh = mesh
        most = reader.limits.driver_changes
        self._most_changes = min(most, reader.limits.shipped_changes) if for_executors else most
        self.too_large = False
        """Were there rows of a mesh join that are too many for the driver? Of fewer changes there may be fewer."""
        self.given_up = threading.Event()  # set where nobody wants what is prefetched any more
        self._logs: dict[str, UncompactedLog | None] = {}
        self._bases: dict[tuple[object, ...], pa.Table | None] = {}
        self._given: dict[str, tuple[pa.Table, tuple[Column, ...]]] = {}
        self._known_rows: dict[tuple[object, ...], pa.Table | None] = {}
        small = LookUps(tables, references, report, self.log, self.start, reader.limits)
        large = LargeLookUps(reader, small, a, b)
        self.keys = KeyValues(
            tables, self.log, self._history_rows, small.reduce, large.remaining_keys, reader.limits
        )

    def source_rows(self, leaf: Node) -> SourceRows | None:
        """The rows of a leaf, where the driver can have them."""
        if isinstance(leaf, nodes.Changes):
            log = self.log(leaf.scan.table)
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
            if leaf.name not in self._given:
                return None
            rows, columns = self._given[leaf.name]
            return number_columns(rows, columns)
        assert isinstance(leaf, nodes.StateRows)
        table = self.states[leaf.label]
        return select_rows(self.wanted_state(leaf), table, [c.name for c in table.columns])

    def give(self, leaf: nodes.Given, rows: pa.Table, columns: Sequence[Column]) -> None:
        """The rows of a statement that has run; `columns` are those of `rows`."""
        self.keys.give(leaf.name, rows)
        self._given[leaf.name] = (rows, tuple(columns))

    def given(self, leaf: nodes.Given) -> tuple[pa.Table, tuple[Column, ...]]:
        """What `give` was given."""
        return self._given[leaf.name]

    # ------------------------------------------------------------ changes

    def start(self, table: VersionedTable) -> int:
        """The version at or below `a` from which the table is read: its image there, and its changes since."""
        return (
            self.a
            if self.reader.is_small(table, self.a)
            else self.reader.catalog.layout(table.id, self.a).base
        )

    def log(self, name: str) -> UncompactedLog | None:
        """The table's change rows where the driver can have them."""
        if name not in self._logs:
            table = self.tables[name]
            limits = self.reader.limits
            rows = self.reader.change_runs(
                table, self.start(table), self.b, self._most_changes, limits.driver_change_bytes
            )
            if rows is None:
                self._logs[name] = None
            else:
                self.report.note(table, "changes", rows.num_rows)
                self._logs[name] = UncompactedLog.of(
                    self.read_part(table), rows, self.a, self.b, self.compressed
                )
        return self._logs[name]

    def read_part(self, table: VersionedTable) -> VersionedTable:
        """The table with the columns that are read, and its identity."""
        read = self.read.get(table.id)
        if read is None:
            return table
        return replace(
            table, columns=tuple(c for c in table.columns if c.name in read or c.name in table.identity)
        )

    # ------------------------------------------------------------ row versions

    def version_rows(self, leaf: nodes.History) -> tuple[tuple[object, ...], pa.Table | None]:
        """The row versions that a leaf wants, where the driver can have them: the columns of `read_part`, `ROW_FROM`, `ROW_TO`.

        Before them a key that is the same for leaves with the same rows.
        """
        table = self.tables[leaf.scan.table]
        restrict, wanted, together = self._wishes(leaf.scan, leaf.filters)
        meets = leaf.meets if self._mesh is not None and not restrict else None
        by_value = contents(restrict), contents(wanted)
        key = ("history", leaf.scan.table, *by_value, together.key, id(meets) if meets else 0)
        if key not in self._known_rows:
            log = self.log(leaf.scan.table)
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
        return self._gather_rows(leaf) if leaf.among else self.version_rows(leaf)[1]

    def _gather_rows(self, leaf: nodes.History) -> pa.Table | None:
        """The versions of rows that change and of rows that a group of filters wants, each once."""
        key = ("gathered", id(leaf))
        if key not in self._known_rows:
            log = self.log(leaf.scan.table) if self.undo else None
            self._known_rows[key] = None
            if log is not None:
                with Beside(log.moving, log.parts[1].num_rows) as moving:
                    found = [self._image_rows(log, leaf.scan, filters) for filters in leaf.among]
                    images = [rows for rows in found if rows is not None]
                    if len(images) == len(found):
                        self._known_rows[key] = unite(log, images, moving)
        return self._known_rows[key]

    def _image_rows(
        self, log: UncompactedLog, scan: nodes.Scan, filters: Sequence[nodes.RuntimeFilter]
    ) -> pa.Table | None:
        """The rows at `a` that filters want, where the driver can have them."""
        restrict, wanted, together = self._wishes(scan, filters)
        key = ("image", scan.table, contents(restrict), contents(wanted), together.key)
        if key not in self._known_rows:
            asked = self.tables[scan.table], restrict, together
            rows = min(log.parts[0].num_rows, value_count(restrict))
            with self._begin_look_up(*asked, rows) as look_up:
                base = partial(self._base_rows, *asked, look_up)
                self._known_rows[key] = image_rows(log, base, wanted, self.reader.limits.relevant_rows)
        return self._known_rows[key]

    def _begin_look_up(
        self, table: VersionedTable, restrict: Restrict, together: KeyCombinations, rows: int
    ) -> AbstractContextManager[Callable[[], pa.Table | None] | None]:
        """The look-up in files that `_base_rows` will need, begun now to be done beside work over so many rows; None where there is none."""
        if (
            not is_much(rows)
            or self._mesh is not None
            or not restrict
            or (table.id, contents(restrict), together.key) in self._bases
            or any(len(values) == 0 for values in restrict.values())
            or self.reader.is_small(table, self.a)
        ):
            return nullcontext()
        layout = self.reader.catalog.layout(table.id, self.a)
        return Beside(self._look_up_by_key(table, layout, restrict, together.choose), rows)

    def _look_up_by_key(
        self, table: VersionedTable, layout: Layout, restrict: Restrict, choose: Choose | None
    ) -> Callable[[], pa.Table | None]:
        return partial(self.reader.base_arrow, table, layout, restrict, self.read.get(table.id), choose)

    def _wishes(
        self, scan: nodes.Scan, filters: Sequence[nodes.RuntimeFilter]
    ) -> tuple[Restrict, Restrict, KeyCombinations]:
        """What filters want of a table: values that are read from its files, values that its rows have, and combinations of them."""
        asked = self.tables[scan.table], filters, scan.fields
        return self.keys.restrict(*asked), self.keys.wanted(*asked), self.keys.combinations(*asked)

    def _base_rows(
        self,
        table: VersionedTable,
        restrict: Restrict,
        together: KeyCombinations,
        look_up: Callable[[], pa.Table | None] | None = None,
    ) -> pa.Table | None:
        """At least the wanted rows of the image that the log goes on from, where they are few; read once, by `look_up` where it has
        begun."""
        key = (table.id, contents(restrict), together.key)
        if key not in self._bases:
            self._bases[key] = self._read_base_rows(table, restrict, together, look_up)
        return self._bases[key]

    def _read_base_rows(
        self,
        table: VersionedTable,
        restrict: Restrict,
        together: KeyCombinations,
        look_up: Callable[[], pa.Table | None] | None,
    ) -> pa.Table | None:
        if any(len(values) == 0 for values in restrict.values()):
            return empty(table.physical_columns)
        rows = self.reader.small_image(table, self.a)
        if rows is not None:
            rows = filter_rows(rows, restrict)
            self.report.note(table, "memory", rows.num_rows)
        elif restrict:
            layout = self.reader.catalog.layout(table.id, self.a)
            by_key = look_up or self._look_up_by_key(table, layout, restrict, together.choose)
            rows = self._look_up(table, layout, restrict, by_key)
        return None if rows is None or self._is_too_large(rows) else rows

    def _look_up(
        self,
        table: VersionedTable,
        layout: Layout,
        restrict: Restrict,
        look_up: Callable[[], pa.Table | None],
    ) -> pa.Table | None:
        """From the snapshot's files: by a mesh join, where the query has one, else by key; None where that would be many files or rows."""
        if self._mesh is None:
            how, rows = "look-up", look_up()
        else:
            told = self.report.meshes, self.given_up
            how, rows = self._mesh.rows(table, layout, restrict, self.read.get(table.id), look_up, *told)
        if rows is not None:
            self.report.note(table, how, rows.num_rows, len(prune_files(layout.snapshot, restrict)))
        return rows

    def _meeting_rows(self, table: VersionedTable, scan: nodes.Scan, meets: nodes.Meeting) -> pa.Table | None:
        """The rows of the snapshot that meet a change by other conditions than equality; None where only Spark finds them."""
        assert self._mesh is not None
        source = self.keys.source(meets.leaf)
        if source is None:
            return None
        layout, wanted = self.reader.catalog.layout(table.id, self.a), self.read.get(table.id)
        changes = Changes(self.tables[source[0].table], *source)
        told = self.report.meshes, self.given_up
        rows = self._mesh.rows_meeting(table, layout, scan, meets, changes, wanted, *told)
        if rows is None or self._is_too_large(rows):
            return None
        self.report.note(table, "mesh", rows.num_rows, len(layout.snapshot))
        return rows

    def _is_too_large(self, rows: pa.Table) -> bool:
        limits = self.reader.limits
        found = bool(rows.num_rows > limits.driver_rows or rows.nbytes > limits.driver_bytes)
        self.too_large |= found and self._mesh is not None
        return found

    # ------------------------------------------------------------ states

    def state_fields(self, leaf: nodes.StateRows) -> tuple[tuple[str, str], ...]:
        return tuple(zip(leaf.names, (c.name for c in self.states[leaf.label].columns)))

    def state_restrict(self, leaf: nodes.StateRows) -> Restrict:
        return self.keys.restrict(self.states[leaf.label], leaf.filters, self.state_fields(leaf))

    def wanted_state(self, leaf: nodes.StateRows) -> pa.Table | None:
        """The rows of a state that a leaf wants, where the driver can have them."""
        key = ("state", id(leaf))
        if key not in self._known_rows:
            table, fields = self.states[leaf.label], self.state_fields(leaf)
            together = self.keys.combinations(table, leaf.filters, fields)
            rows = state_rows(self.reader, table, self.a, self.state_restrict(leaf), together)
            if rows is None or rows.num_rows > self.reader.limits.driver_rows:
                self._known_rows[key] = None
            else:
                self.report.note(table, "state", rows.num_rows)
                self._known_rows[key] = rows
        return self._known_rows[key]
