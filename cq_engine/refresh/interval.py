"""The interval of a refresh: which commits, what changed in them, and the form that its delta takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from cq_engine.algebra.rewrite.pruning import scans
from cq_engine.catalog.model import PARTIAL, ChangeSet, ContinuousQuery
from cq_engine.catalog.store import Catalog
from cq_engine.context.services import Services
from cq_engine.planner.compiled import Compiled
from cq_engine.planner.forms import Decision, Reference, Statistics, TableStatistics, choose, references
from cq_engine.refresh.frontier import frontier

__all__ = [
    "Interval",
    "cut_interval",
    "decide",
    "first_slice",
    "foreign_keys",
    "interval_between",
    "may_cut",
    "pending_interval",
    "statistics",
    "touched_versions",
]


@dataclass(frozen=True)
class Interval:
    """The commits (a, b] of a refresh and, by source table, what kinds of change they hold."""

    a: int
    b: int
    kinds: Mapping[str, frozenset[str]]
    rows: int
    divisible: bool = False
    """May it be cut where its rows turn out to be too many?"""

    @property
    def changed(self) -> frozenset[str]:
        return frozenset(self.kinds)

    @property
    def insert_only(self) -> bool:
        return all(kinds <= {"INSERT"} for kinds in self.kinds.values())


def pending_interval(
    catalog: Catalog, query: ContinuousQuery, compiled: Compiled, upto: int | None = None
) -> Interval:
    """What is to be processed: from the query's position to the newest commit, or to `upto`."""
    b = catalog.newest_version if upto is None else min(upto, catalog.newest_version)
    return interval_between(catalog, compiled, catalog.status(query.name).position, b)


def interval_between(catalog: Catalog, compiled: Compiled, a: int, b: int) -> Interval:
    """What the commits (a, b] changed of the query's tables."""
    kinds: dict[str, frozenset[str]] = {}
    rows = 0
    for name, table in compiled.sources.items() if b > a else ():
        sets = catalog.changes(table.storage.id, a + 1, b)
        if sets:
            kinds[name] = frozenset().union(*(s.kinds for s in sets))
            rows += sum(s.rows_within(a, b) for s in sets)
    return Interval(a, b, kinds, rows)


def cut_interval(
    catalog: Catalog, query: ContinuousQuery, compiled: Compiled, interval: Interval, most: int
) -> Interval:
    """The first commits of an interval with about `most` change rows at most, as far as the catalog can tell without reading them:
    at least one, and never up to a version inside of a refresh of a compressed query that this one reads."""
    if interval.rows <= most:
        return interval
    sets: list[ChangeSet] = []
    for name in interval.changed:
        sets += catalog.changes(compiled.sources[name].storage.id, interval.a + 1, interval.b)
    low, high = max(interval.a + 1, min(s.low for s in sets)), interval.b
    while low < high:
        middle = (low + high + 1) // 2
        if sum(s.rows_within(interval.a, middle) for s in sets) <= most:
            low = middle
        else:
            high = middle - 1
    end = frontier(catalog, query.sources, low)
    if end <= interval.a:
        later = sorted({s.high for s in sets if low < s.high < interval.b})
        end = next((v for v in later if frontier(catalog, query.sources, v) == v), interval.b)
    return interval if end >= interval.b else interval_between(catalog, compiled, interval.a, end)


def touched_versions(services: Services, compiled: Compiled, interval: Interval) -> list[int]:
    """The commits of the interval that changed a table of the query."""
    found: set[int] = set()
    for name in interval.changed:
        storage = compiled.sources[name].storage
        for each in services.catalog.changes(storage.id, interval.a + 1, interval.b):
            if each.low == each.high:
                found.add(each.low)
            else:
                rows = services.reader.changes(storage, interval.a, interval.b)
                versions = rows.select("_commit_version").distinct()
                found.update(versions.toArrow().column(0).to_pylist())
                break
    return sorted(found)


def foreign_keys(services: Services, compiled: Compiled) -> tuple[Reference, ...]:
    """The foreign keys among the query's tables, as they are declared now."""
    sources = {name: table.storage.id for name, table in compiled.sources.items()}
    return references(services.catalog.state, sources)


def statistics(
    services: Services, query: ContinuousQuery, compiled: Compiled, interval: Interval
) -> Statistics:
    """What the catalog knows of the interval, without reading rows."""
    tables, commits = [], set()
    occurrences = Counter(scan.table for scan in scans(compiled.node)) if compiled.node else Counter[str]()
    for name, table in sorted(compiled.sources.items()):
        layout = services.catalog.layout(table.storage.id, interval.a)
        sets = services.catalog.changes(table.storage.id, interval.a + 1, interval.b)
        rows = sum(file.rows for file in layout.snapshot)
        rows += sum(s.rows for s in layout.changes if s.high <= interval.a and s.kinds == {"INSERT"})
        if table.storage.kind == "constants":
            rows = services.reader.constants(table.storage).num_rows
        changed = sum(s.rows_within(interval.a, interval.b) for s in sets)
        kinds: frozenset[str] = frozenset().union(*(s.kinds for s in sets))
        recent = sum(s.rows for s in layout.changes if s.high <= interval.a)
        count = occurrences.get(name, 1)
        tables.append(TableStatistics(name, rows, changed, kinds, table.storage.identity, recent, count))
        commits |= {version for s in sets for version in (s.low, s.high)}
    per_commit = query.mode == "TRANSACTIONAL" and len(commits) > 1
    return Statistics(tuple(tables), foreign_keys(services, compiled), per_commit)


def decide(services: Services, query: ContinuousQuery, compiled: Compiled, interval: Interval) -> Decision:
    """The form of the refresh: what WITH (...) asks for, else what the statistics say."""
    options = {name.lower(): value.lower() for name, value in query.options}
    known = statistics(services, query, compiled, interval)
    form, pre_image = options.get("form", "auto"), options.get("pre_image", "auto")
    return choose(known, form, pre_image, services.limits)


def may_cut(services: Services, query: ContinuousQuery, compiled: Compiled, interval: Interval) -> bool:
    """Whether the deltas of the interval's commits do not depend on how they are refreshed, and it is large."""
    limits = services.limits
    if query.mode != "TRANSACTIONAL" or compiled.node is None or compiled.verdict == PARTIAL:
        return False
    if not limits.least_slice_changes < interval.rows <= limits.sliced_changes:
        return False
    return decide(services, query, compiled, interval).form != "recompute"


def first_slice(
    services: Services, query: ContinuousQuery, compiled: Compiled, interval: Interval, most: int
) -> Interval:
    """The first commits of an interval with about `most` change rows at most, or all of it; divisible where it can be cut again."""
    interval = cut_interval(services.catalog, query, compiled, interval, most)
    if interval.rows <= services.limits.least_slice_changes:
        return interval
    half = cut_interval(services.catalog, query, compiled, interval, interval.rows // 2)
    return replace(interval, divisible=half.b < interval.b)
