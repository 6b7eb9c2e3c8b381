"""The mesh joins of queries: which rows of a huge table a refresh gets from a shared scan rather than from look-ups.

The delta of a query is what it is by the rules of `delta`; a mesh only gives the rows of a table's snapshot that a delta's keys want, in the place of
`Reader.base_arrow`. What has changed since the snapshot comes from the table's log, as ever. So everything that holds for look-ups holds for it:
a change of commit s meets the table as of s, in both modes, under outer joins and aggregates.

The window of MESHJOIN is the change log, and its front is the query's position. Nothing of a scan is durable: after a crash the keys of
the interval enter the window again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa

from cq_engine.algebra.nodes import Meeting, Scan, references
from cq_engine.catalog.model import ContinuousQuery, Layout, VersionedTable
from cq_engine.core.capabilities import Use, can
from cq_engine.core.columns import Column
from cq_engine.core.keeping import keep
from cq_engine.core.options import JOIN, MEMORY, option_value, parse_memory
from cq_engine.core.types import arrow_type
from cq_engine.evaluation.vectors import Rows, TooLargeError, UnsupportedError, Vector
from cq_engine.mesh.calibration import load_factors
from cq_engine.mesh.cost import Factors
from cq_engine.mesh.counters import Counters
from cq_engine.mesh.packed_keys import BYTES_PER_KEY
from cq_engine.mesh.pages import Pages
from cq_engine.mesh.run import Run
from cq_engine.mesh.table_mesh import TableMesh
from cq_engine.mesh.window import Image
from cq_engine.planner.compiled import Compiled
from cq_engine.refresh.look_up_costs import Asking, LookUpCosts
from cq_engine.refresh.meeting import Meeting as Matcher
from cq_engine.refresh.mesh_choice import Choice, Plan, size
from cq_engine.storage.file_look_ups import Restrict, prune_files
from cq_engine.storage.reader import Reader
from cq_engine.storage.rows import conform

__all__ = ["Changes", "MeshRun", "Meshes", "Plan", "QueryMesh", "wants_mesh"]


def wants_mesh(query: ContinuousQuery) -> bool:
    """Do the query's options ask for a mesh join, or allow one?"""
    return option_value(JOIN, dict(query.options)).lower() != "look_up"


@dataclass(frozen=True)
class Changes:
    """Rows of a table, with the names that a scan gives its columns."""

    table: VersionedTable
    scan: Scan
    found: pa.Table

    def rows(self, names: Collection[str]) -> Rows:
        """Those of these names. Raises TooLargeError for values that evaluation does not hold."""
        by_name = {c.name: c for c in self.table.physical_columns}
        fields = [(name, by_name[source]) for name, source in self.scan.fields if name in names]
        columns = {name: Vector.of(self.found.column(c.name), c.type) for name, c in fields}
        return Rows(columns, self.found.num_rows)


@dataclass(frozen=True)
class MeshRun:
    """What a refresh got from the mesh of a table; what the scan did for others at the same time is not in it."""

    table: str
    plan: Plan
    done: Counters
    seconds: float
    """From the entry of the keys to the last of their rows."""

    def __str__(self) -> str:
        d = self.done
        return (
            f"{self.table}: {d.changes} keys in {d.batches} batches of the window, {d.rate:.0f} keys/s"
            f" (predicted {self.plan.tuning.rate:.0f}), {d.pages} of {self.plan.pages} pages in {d.reads} reads, {size(d.bytes)},"
            f" {self.seconds:.3f} s (cycle predicted {self.plan.tuning.cycle:.3f} s), memory at most {size(d.peak)}"
        )


class QueryMesh:
    """The meshes of one query with its tables, within one budget. Thread-safe."""

    def __init__(self, query: ContinuousQuery, reader: Reader, factors: Factors | None = None) -> None:
        options = dict(query.options)
        self.join = option_value(JOIN, options).lower()
        self.memory = parse_memory(option_value(MEMORY, options))
        self.options = (query.id, self.join, self.memory)
        """What is another one where a query of the same name is to have another mesh."""
        self._reader = reader
        self._factors = factors
        self._tables: dict[int, tuple[Pages, TableMesh]] = {}
        """Of the tables that have been scanned, which share the budget."""
        self._unscanned: dict[int, tuple[Pages, TableMesh]] = {}
        """Of others that were asked about; they hold nothing."""
        self._told: Callable[[], None] | None = None
        self._costs: dict[int, LookUpCosts] = {}
        """By table, what look-ups in it have cost."""
        self._guard = threading.Lock()

    @property
    def changes(self) -> int:
        """How many change rows a refresh takes at most, where it may stop after any commit: as many keys as the window holds, by
        what those of the last refresh took, and as the driver takes."""
        limits = self._reader.limits
        with self._guard:
            found = [mesh.memory / mesh.key_bytes for _, mesh in self._tables.values()]
        keys = int(5 / 8 * min(found, default=self.memory / BYTES_PER_KEY)) // (1 + limits.mesh_prefetch)
        return max(1, min(keys, limits.refresh_changes, limits.key_values, limits.known_values))

    def rows(
        self,
        table: VersionedTable,
        layout: Layout,
        restrict: Restrict,
        wanted: Collection[str] | None,
        look_up: Callable[[], pa.Table | None],
        runs: list[MeshRun],
        given_up: threading.Event,
    ) -> tuple[str, pa.Table | None]:
        """The rows of a snapshot that have wanted values, and whether a scan ("mesh") or `look_up` ("look-up") found them; None where that
        gives none. `runs` is told of the scan, which ends with a CQError when it is given up."""
        hashed = {name: values for name, values in restrict.items() if _is_hashed(table, name)}
        columns = _columns(table, hashed, wanted)
        if not hashed or any(pa.types.is_nested(arrow_type(c.type)) for c in columns):
            return "look-up", look_up()
        pages, _ = self._known(table)
        with self._reader.reading(table, layout.snapshot):
            image = pages.image(self._reader.paths(layout.snapshot), columns)
            choice = self._choice(table, layout, image, columns)
            files = prune_files(layout.snapshot, hashed)
            asking = Asking(max(len(values) for values in hashed.values()), len(image), len(files))
            needed = None
            if choice.copied < 1 or choice.may_mesh(asking):
                needed = pages.needed(image, columns, hashed, self._reader.paths(files))
                asking = asking._replace(pages=int(needed.sum()))
            plan = choice.plan(asking)
            if plan.mesh:
                run, started = Run(given_up=given_up), time.perf_counter()
                rows = self._scanned(table).rows(image, needed, hashed, columns, run)
        if not plan.mesh:
            return "look-up", choice.learn(look_up, asking)
        runs.append(MeshRun(table.name, plan, run.done, time.perf_counter() - started))
        return "mesh", conform(rows, table.physical_columns)

    def rows_meeting(
        self,
        table: VersionedTable,
        layout: Layout,
        scan: Scan,
        meets: Meeting,
        changes: Changes,
        wanted: Collection[str] | None,
        runs: list[MeshRun],
        given_up: threading.Event,
    ) -> pa.Table | None:
        """The rows of a snapshot that meet one of the changes under conditions that are no equality; None where only Spark can say
        which those are, or where the changes take more than the window's room."""
        names = frozenset(name for condition in meets.conditions for name in references(condition))
        by_name = {c.name: c for c in table.physical_columns}
        fields = {name: by_name[source] for name, source in scan.fields if name in names}
        columns = _columns(table, {c.name: None for c in fields.values()}, wanted)
        if any(pa.types.is_nested(arrow_type(c.type)) for c in columns):
            return None
        pages, mesh = self._known(table)
        try:
            met = Matcher(changes.rows(names), fields, meets.conditions, mesh.memory // 16)
        except (UnsupportedError, TooLargeError, pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return None
        if met.nbytes > mesh.memory / 2:
            return None
        with self._reader.reading(table, layout.snapshot):
            image = pages.image(self._reader.paths(layout.snapshot), columns)
            choice = self._choice(table, layout, image, columns)
            rows_there = sum(file.rows for file in layout.snapshot)
            if self.join == "auto" and rows_there * met.seconds_of_pairs > choice.tuning.cycle:
                return None  # executors ask about every pair faster
            plan = choice.plan(None)
            run, started = Run(given_up=given_up), time.perf_counter()
            rows = self._scanned(table).rows_meeting(image, met, len(met), columns, run)
        if met.failed:
            return None
        runs.append(MeshRun(table.name, plan, run.done, time.perf_counter() - started))
        return conform(rows, table.physical_columns)

    def _choice(
        self, table: VersionedTable, layout: Layout, image: Image, columns: Sequence[Column]
    ) -> Choice:
        """What says whether a refresh's keys are to be looked up or meshed."""
        _, mesh = self._known(table)
        with self._guard:
            costs = self._costs.setdefault(table.id, LookUpCosts())
        copied = self._copied(layout, columns) if self.join == "auto" else 0.0
        return Choice(
            table.name, self.join, costs, copied, self._reader.limits.look_up_files,
            mesh.tuning(image, columns), len(image), mesh.waiting, mesh.counters.reads > 0,
        )  # fmt: skip

    @contextmanager
    def told(self, tell: Callable[[], None]) -> Iterator[None]:
        """A block in which `tell` is called whenever the scan of a table has read on."""
        self._told = tell
        try:
            yield
        finally:
            self._told = None

    def _read_on(self) -> None:
        tell = self._told
        if tell is not None:
            tell()

    def close(self) -> None:
        """Ends the scans; who waits for one gets a CQError."""
        with self._guard:
            for _, mesh in (*self._tables.values(), *self._unscanned.values()):
                mesh.stop()

    def _copied(self, layout: Layout, columns: Collection[Column]) -> float:
        """The share of the table's rows whose columns have copies for look-ups."""
        rows = sum(file.rows for file in layout.snapshot)
        paths = self._reader.paths(layout.snapshot)
        indexed = self._reader.look_ups.indexed
        there = sum(f.rows for f, path in zip(layout.snapshot, paths) if indexed.has(path, columns))
        return there / rows if rows else 1.0

    def _known(self, table: VersionedTable) -> tuple[Pages, TableMesh]:
        """Of a table that was not scanned yet, with the part of the budget that it would have."""
        with self._guard:
            if table.id in self._tables:
                return self._tables[table.id]
            if table.id not in self._unscanned:
                pages = Pages(self._reader.catalog.store.filesystem, self._reader.limits.row_group_files)
                self._unscanned[table.id] = pages, TableMesh(pages, self.memory, self._factors, self._read_on)
            found = self._unscanned[table.id]
            found[1].memory = self.memory // (len(self._tables) + 1)
            return found

    def _scanned(self, table: VersionedTable) -> TableMesh:
        """That of a table which is about to be scanned: the budget is divided anew where it was not before."""
        found = self._known(table)
        with self._guard:
            self._unscanned.pop(table.id, None)
            self._tables.setdefault(table.id, found)
            for _, mesh in self._tables.values():
                mesh.memory = self.memory // len(self._tables)
            return self._tables[table.id][1]

    def explain(self, compiled: Compiled, position: int) -> list[Plan]:
        """Of each table that is not in memory, what would serve the look-up of a window full of keys at a position."""
        found = []
        for name, source in sorted(compiled.sources.items()):
            table = source.storage
            if table.kind == "constants" or self._reader.is_small(table, position):
                continue
            layout = self._reader.catalog.layout(table.id, position)
            columns = _columns(table, {}, compiled.read.get(name))
            pages, _ = self._known(table)
            with self._reader.reading(table, layout.snapshot):
                image = pages.image(self._reader.paths(layout.snapshot), columns)
                choice = self._choice(table, layout, image, columns)
                found.append(choice.plan(Asking(int(choice.tuning.window), len(image), len(layout.snapshot))))
        return found


@dataclass
class Meshes:
    """The meshes of an engine's queries, by name; that of a query whose options change is made anew. Thread-safe."""

    reader: Reader
    kept: dict[str, QueryMesh] = field(default_factory=dict)
    factors: Factors | None = None
    """Of the cost model: what `cq calibrate` has measured on this machine, where it has; read when they are needed."""
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def of(self, query: ContinuousQuery) -> QueryMesh | None:
        """The query's; None where it has none."""
        with self._guard:
            if not wants_mesh(query):
                self._forget(query.name)
                return None
            if self.factors is None:
                self.factors = load_factors() or Factors()
            made = QueryMesh(query, self.reader, self.factors)
            if query.name not in self.kept or self.kept[query.name].options != made.options:
                self._forget(query.name)
                self.kept[query.name] = made
            return self.kept[query.name]

    def forget_gone(self, there: Collection[str]) -> None:
        """Ends the scans of queries that are not `there` any more."""
        with self._guard:
            for mesh in keep(self.kept, there):
                mesh.close()

    def _forget(self, name: str) -> None:
        known = self.kept.pop(name, None)
        if known is not None:
            known.close()

    def close(self) -> None:
        """Ends all scans."""
        with self._guard:
            for mesh in self.kept.values():
                mesh.close()


def _is_hashed(table: VersionedTable, name: str) -> bool:
    return any(c.name == name and can(c.type, Use.EQUAL) for c in table.physical_columns)


def _columns(
    table: VersionedTable, restrict: Mapping[str, object], wanted: Collection[str] | None
) -> list[Column]:
    """What is read: the identity, the keys, and what is wanted."""
    names = {*table.identity, *restrict}
    return [c for c in table.physical_columns if wanted is None or c.name in wanted or c.name in names]
