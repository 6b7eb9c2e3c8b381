"""The look-ups of a delta plan, in words: by which keys a table is read, and what of it is not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cq_engine.algebra.analysis.lineage import ChangeColumns, change_columns
from cq_engine.algebra.nodes import History, Node, children
from cq_engine.planner.forms import Decision, Statistics, TableStatistics

__all__ = ["terms"]


def terms(roots: Sequence[Node], statistics: Statistics, decision: Decision) -> tuple[str, ...]:
    """A line for every different way in which the plan reads a table, in the order of the plan."""
    found: dict[str, None] = {}
    for leaf in _leaves(roots, set()):
        table = next(t for t in statistics.tables if t.name == leaf.scan.table)
        if not leaf.filters:
            found[f"{table.name}: all of its {table.rows} rows"] = None
        for filter_ in leaf.filters:
            column, of = leaf.scan.source_of(filter_.column), change_columns(filter_.leaf, filter_.of_column)
            found[_say(table, column, of, statistics, decision)] = None
    return tuple(found)


def _leaves(roots: Sequence[Node], seen: set[int]) -> Iterator[History]:
    for node in roots:
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, History):
            yield from [History(node.scan, filters) for filters in node.among] or [node]
        yield from _leaves(children(node), seen)


def _say(
    table: TableStatistics, column: str, of: ChangeColumns | None, statistics: Statistics, decision: Decision
) -> str:
    source = "rows found before" if of is None else "changed " + ", ".join(sorted({name for name, _ in of}))
    shown = f"{table.name} by {column}, the keys of {source}"
    kinds = {each.name: each.kinds for each in statistics.changed}
    for key in statistics.references if decision.keys else ():
        if key.child != table.name or key.columns != (column,) or key.parent not in kinds:
            continue
        if of == frozenset({(key.parent, key.parent_columns[0])}) and kinds[key.parent] <= {
            "INSERT",
            "DELETE",
        }:
            return f"{shown}: no unchanged row, because {key} and all of those came or went"
        shown += f": not by keys of {key.parent} that came or went, because {key}"
    if decision.units and table.changed + table.recent and table.key == (column,):
        shown += f": only keys that are not in its own {table.changed + table.recent} change rows"
    return shown
