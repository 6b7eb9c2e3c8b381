"""The statistics of an interval, and the form that a refresh of it takes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from cq_engine.algebra.nodes import Node, Scan, children
from cq_engine.catalog.model import ContinuousQuery
from cq_engine.context.services import Services
from cq_engine.planner.compiled import Compiled
from cq_engine.planner.forms import Decision, Reference, Statistics, TableStatistics, choose, references

if TYPE_CHECKING:
    from cq_engine.refresh.refresh import Interval

__all__ = ["decide", "relied_on", "statistics"]


def relied_on(services: Services, compiled: Compiled) -> tuple[Reference, ...]:
    """The foreign keys among the query's tables, as they are declared now."""
    sources = {name: table.storage.id for name, table in compiled.sources.items()}
    return references(services.catalog.state, sources)


def statistics(
    services: Services, query: ContinuousQuery, compiled: Compiled, interval: Interval
) -> Statistics:
    """What the catalog knows of the interval, without reading rows."""
    tables, commits = [], set()
    occurrences = Counter(scan.table for scan in _scans(compiled.node)) if compiled.node else Counter[str]()
    for name, table in sorted(compiled.sources.items()):
        layout = services.catalog.layout(table.storage.id, interval.a)
        sets = [s for s in layout.changes if s.high > interval.a and s.low <= interval.b]
        rows = sum(file.rows for file in layout.snapshot)
        rows += sum(s.rows for s in layout.changes if s.high <= interval.a and s.kinds == {"INSERT"})
        if table.storage.kind == "constants":
            rows = services.reader.constants(table.storage).num_rows
        changed = sum(s.rows for s in sets)
        kinds: frozenset[str] = frozenset().union(*(s.kinds for s in sets))
        recent = sum(s.rows for s in layout.changes if s.high <= interval.a)
        scans = occurrences.get(name, 1)
        tables.append(TableStatistics(name, rows, changed, kinds, table.storage.identity, recent, scans))
        commits |= {version for s in sets for version in (s.low, s.high)}
    per_commit = query.mode == "TRANSACTIONAL" and len(commits) > 1
    return Statistics(tuple(tables), relied_on(services, compiled), per_commit)


def _scans(node: Node) -> list[Scan]:
    """The scans of a plan, each once."""
    found: dict[int, Node] = {}
    waiting = [node]
    while waiting:
        each = waiting.pop()
        if id(each) not in found:
            found[id(each)] = each
            waiting += children(each)
    return [each for each in found.values() if isinstance(each, Scan)]


def decide(services: Services, query: ContinuousQuery, compiled: Compiled, interval: Interval) -> Decision:
    """The form of the refresh: what WITH (...) asks for, else what the statistics say."""
    options = {name.lower(): value.lower() for name, value in query.options}
    found = statistics(services, query, compiled, interval)
    form, pre_image = options.get("form", "auto"), options.get("pre_image", "auto")
    return choose(found, form, pre_image, services.limits)
