"""Views over tables of which only changes are known, maintained in DuckDB by the plans of the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from cq_engine.algebra.emit import Emitter
from cq_engine.algebra.nodes import FROM, TO, VERSION, WEIGHT, Changes, Given, History, Node
from cq_engine.delta.partial.model import FLAG, row_versions, signed_changes
from cq_engine.planner.compiled import Compiled
from cq_engine.planner.partial import as_dimension_view, plan_partial
from cq_engine.refresh.images import select_fields
from tests.oracle.generate import History as Histories
from tests.oracle.generate import TableSpec
from tests.oracle.plans import Plans
from tests.oracle.recorded import record

Row: TypeAlias = "tuple[Any, ...]"


@dataclass(frozen=True)
class Change:
    """What became of a key of a table or of a view: an old row and a new one, as far as the kind tells them."""

    kind: str
    key: Row
    old: Row | None = None
    new: Row | None = None


@dataclass
class World:
    """Tables with logs of changes. `partial` are those that were created WITHOUT SNAPSHOT."""

    tables: Sequence[TableSpec]
    queries: Sequence[str]
    partial: frozenset[str]
    newest: int = 0
    changed: dict[int, set[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.plans = Plans(record(Histories(tuple(self.tables), (), (), tuple(self.queries), 0)))
        self.compiled = [self._compile(n) for n in range(len(self.queries))]

    def _compile(self, number: int) -> Compiled:
        found = self.plans.compile(number)
        sources = {
            name: replace(t, storage=replace(t.storage, kind="changes")) if name in self.partial else t
            for name, t in found.sources.items()
        }
        return as_dimension_view(replace(found, sources=sources), None)

    def commit(self, changes: Mapping[str, Sequence[Change]]) -> None:
        """One transaction's changes, in the logs of their tables."""
        self.newest += 1
        self.changed[self.newest] = {name for name, some in changes.items() if some}
        for name, some in changes.items():
            spec = next(each for each in self.tables if each.name == name)
            rows = [row for each in some for row in self._rows(spec, each)]
            if rows:
                marks = ", ".join("?" * len(rows[0]))
                self.plans.base.executemany(f"INSERT INTO log_{name} VALUES ({marks})", rows)

    def _rows(self, spec: TableSpec, change: Change) -> list[Row]:
        at = self.newest
        if change.kind == "update":
            assert change.old is not None
            assert change.new is not None
            return [(*change.old, "update_preimage", at), (*change.new, "update_postimage", at)]
        if change.kind == "partial_delete":
            width = len(spec.columns) - len(change.key)
            return [(*change.key, *[None] * width, change.kind, at)]
        row = change.old if change.kind == "delete" else change.new
        assert row is not None
        return [(*row, change.kind, at)]

    def deltas(self, number: int, a: int, b: int, *, compressed: bool) -> list[tuple[int, Change]]:
        """The changes of the view `number` in (a, b], each with its version."""
        compiled = self.compiled[number]
        names = {name for version in range(a + 1, b + 1) for name in self.changed[version]}
        changed = frozenset(name for name in compiled.sources if name in names)
        plan = plan_partial(compiled, changed) if changed else None
        if plan is None:
            return []

        def leaf(node: Node) -> str:
            given = isinstance(node, Given)
            scan = plan.scans[node.name] if isinstance(node, Given) else node.scan  # type: ignore[attr-defined]
            storage = compiled.sources[scan.table].storage
            columns = [c.name for c in storage.columns]
            log = f"(SELECT * FROM log_{scan.table} WHERE _commit_version <= {b})"
            if isinstance(node, History):
                rows = row_versions(log, columns, storage.identity, a, b, compressed=compressed)
                return select_fields(scan.fields, f"({rows})", (FROM, FROM), (TO, TO))
            assert given or isinstance(node, Changes)
            log = f"(SELECT * FROM {log} WHERE _commit_version > {a})"
            rows = signed_changes(log, columns, storage.identity, b, compressed=compressed)
            more = (VERSION, WEIGHT, FLAG) if given else (VERSION, WEIGHT)
            return select_fields(scan.fields, f"({rows})", *((each, each) for each in more))

        def attach(_: Emitter) -> None:
            """There are no further relations."""

        return self._changes(compiled, self.plans.run(plan.sql(leaf, attach)))

    def _changes(self, compiled: Compiled, log: Sequence[Row]) -> list[tuple[int, Change]]:
        width = len(compiled.columns)
        assert compiled.key is not None
        places = [[c.name for c in compiled.columns].index(name) for name in compiled.key]
        found: dict[tuple[int, int], dict[str, Row]] = {}
        for row in log:
            kind, version, sequence, duplicate = row[width:]
            assert not duplicate
            rows = found.setdefault((version, sequence), {})
            assert kind not in rows
            rows[kind] = row[:width]
        changes = []
        for (version, _), rows in sorted(found.items()):
            key = tuple(next(iter(rows.values()))[n] for n in places)
            if set(rows) == {"update_preimage", "update_postimage"}:
                change = Change("update", key, rows["update_preimage"], rows["update_postimage"])
            else:
                ((kind, row),) = rows.items()
                gone = kind in ("delete", "partial_delete")
                change = Change(kind, key, row if kind == "delete" else None, None if gone else row)
                if kind == "partial_delete":
                    assert all(value is None for n, value in enumerate(row) if n not in places)
            changes.append((version, change))
        return changes


def apply(view: dict[Row, Row], change: Change) -> None:
    """Applies a change to a view, by key (§4). Raises AssertionError where it says what is not so, and where a complete
    change has no effect."""
    there = view.get(change.key)
    if change.kind == "insert":
        assert there is None, f"inserted, and there: {change}"
    elif change.kind in ("update", "delete"):
        assert there == change.old, f"it was {there}: {change}"
        assert change.old != change.new, f"no change: {change}"
    elif change.kind == "partial_update":
        assert there is not None, f"updated, and not there: {change}"
    if change.new is None:
        view.pop(change.key, None)
    else:
        view[change.key] = change.new
