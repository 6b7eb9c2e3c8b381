"""The leaves of a plan over partial changes: signed rows and row versions of tables WITHOUT SNAPSHOT, from their logs."""

from __future__ import annotations

from cq_engine.algebra import nodes
from cq_engine.algebra.nodes import FROM, TO, VERSION, WEIGHT, Node
from cq_engine.catalog.model import VersionedTable
from cq_engine.delta.partial.model import FLAG, row_versions, signed_changes
from cq_engine.planner.partial import PartialPlan
from cq_engine.refresh.binding import IntervalBinder
from cq_engine.refresh.images import select_fields
from cq_engine.spark.sql import fresh_name

__all__ = ["PartialBinder"]


class PartialBinder:
    """Binds what an `IntervalBinder` cannot. The rows of a table WITHOUT SNAPSHOT are those that its log tells of: the
    newest one of each key, as long as no later change has deleted it."""

    def __init__(self, binder: IntervalBinder, plan: PartialPlan, b: int) -> None:
        self.binder = binder
        self.plan = plan
        self.b = b
        self._logs: dict[tuple[int, int], str] = {}

    def __call__(self, leaf: Node) -> str:
        if isinstance(leaf, nodes.Given) and leaf.name in self.plan.scans:
            scan = self.plan.scans[leaf.name]
            table = self.binder.tables[scan.table]
            rows = signed_changes(
                self._log(table, self.binder.a),
                [c.name for c in table.columns],
                table.identity,
                self.b,
                compressed=self.binder.compressed,
            )
            return select_fields(scan.fields, f"({rows})", *((n, n) for n in (VERSION, WEIGHT, FLAG)))
        if isinstance(leaf, nodes.History) and not self.plan.compiled.sources[leaf.scan.table].has_snapshot:
            table = self.binder.tables[leaf.scan.table]
            names, log = [c.name for c in table.columns], self._log(table, 0)
            rows = row_versions(
                log, names, table.identity, self.binder.a, self.b, compressed=self.binder.compressed
            )
            return select_fields(leaf.scan.fields, f"({rows})", (FROM, FROM), (TO, TO))
        return self.binder(leaf)

    def _log(self, table: VersionedTable, after: int) -> str:
        """The relation of the change rows of (after, b]."""
        key = (table.id, after)
        if key not in self._logs:
            name = self._logs[key] = fresh_name(f"log_{table.name}")
            self.binder.relations[name] = self.binder.reader.changes(table, after, self.b)
            self.binder.scans = True
        return self._logs[key]
