"""A query over tables WITHOUT SNAPSHOT, compiled: a dimension view, which is maintained from changes that may be partial.

The plan of a refresh is one statement, for whichever tables have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from sqlglot import exp

from cq_engine.algebra.emit import Emitter, quote
from cq_engine.algebra.nodes import Empty, Node, Scan
from cq_engine.catalog.model import PARTIAL, Table
from cq_engine.core.errors import AnalysisError
from cq_engine.delta.context import Context
from cq_engine.delta.partial.dimension import NotDimension, View, dimension_view
from cq_engine.delta.partial.model import to_change_rows
from cq_engine.delta.partial.rules import PartialContext, signed
from cq_engine.delta.rules import RULES
from cq_engine.planner.comparable import comparable
from cq_engine.planner.compiled import Compiled
from cq_engine.planner.delta_plan import log_statement
from cq_engine.planner.verdict import block

__all__ = ["PartialPlan", "as_dimension_view", "plan_partial"]


@dataclass(frozen=True)
class PartialPlan:
    """The statement of a refresh. `scans` says what its leaves `Given` stand for: partial changes of these tables."""

    compiled: Compiled
    root: Node
    scans: Mapping[str, Scan]

    def sql(self, leaves: Callable[[Node], str], attach: Callable[[Emitter], None], parts: int = 1) -> str:
        """The statement that gives the delta log's rows, numbered in so many parts of a version."""
        compiled = self.compiled
        key = compiled.key_outputs
        assert key is not None
        forms = [comparable(quote(o), c.type) for o, c in zip(compiled.outputs, compiled.columns)]
        types = [c.type for c in compiled.columns]
        rows = to_change_rows("{0}", compiled.outputs, key, forms, types, parts)
        return log_statement(compiled, self.root, rows, leaves, attach)


def as_dimension_view(compiled: Compiled, declared: tuple[str, ...] | None) -> Compiled:
    """The same query with the verdict PARTIAL, and the key of its root as its key.

    Raises AnalysisError where it is no dimension view, or where another key was `declared`.
    """
    without = [table.name for table in compiled.sources.values() if not table.has_snapshot]
    if compiled.node is None:
        raise _refusal(without, "the query", compiled.reasons[0], "give the tables a snapshot")
    try:
        found, _ = _view(compiled)
    except NotDimension as problem:
        raise _refusal(without, problem.clause, str(problem), problem.hint) from None
    names = dict(zip(compiled.outputs, (c.name for c in compiled.columns)))
    key = tuple(names[each] for each in found)
    if declared is not None and {name.lower() for name in declared} != {name.lower() for name in key}:
        raise AnalysisError(
            f"PRIMARY KEY ({', '.join(declared)}) is not by what rows of the result are known",
            detail=f"from partial changes nothing but ({', '.join(key)}) may be known of a row",
            hint=f"write PRIMARY KEY ({', '.join(key)}), or leave it out",
        )
    reason = f"a dimension view with the key ({', '.join(key)}): {PARTIAL}, by the rows that change, as far as they are known"
    return replace(
        compiled, key=key, key_checked=False, key_count=None, stored=(), verdict=PARTIAL,
        reasons=(reason, *compiled.notes),
    )  # fmt: skip


def plan_partial(compiled: Compiled, changed: frozenset[str]) -> PartialPlan | None:
    """The plan for an interval in which the tables `changed` have changes; None where the result cannot change."""
    assert compiled.node is not None
    _, views = _view(compiled)
    partial = frozenset(name for name, table in compiled.sources.items() if not table.has_snapshot)
    context = PartialContext(Context(RULES, compiled.names, changed), partial, dict(views))
    root = signed(compiled.node, context)
    return None if isinstance(root, Empty) else PartialPlan(compiled, root, context.scans)


def _view(compiled: Compiled) -> tuple[tuple[str, ...], Mapping[int, View]]:
    def key_of(table: str) -> tuple[str, ...]:
        return _key(compiled.sources[table])

    assert compiled.node is not None
    return dimension_view(compiled.node, compiled.outputs, key_of, _describe)


def _key(table: Table) -> tuple[str, ...]:
    return table.primary_key or (() if table.storage.has_row_id else table.storage.identity)


def _describe(node: Node) -> str:
    found = block(node, {})
    if found is None:
        return exp.to_identifier(type(node).__name__).name
    return found[0]


def _refusal(tables: list[str], clause: str, reason: str, hint: str) -> AnalysisError:
    many = "tables" if len(tables) > 1 else "table"
    return AnalysisError(
        f"{clause} cannot be maintained from partial changes",
        detail=f"{reason}; {many} {', '.join(tables)} WITHOUT SNAPSHOT may bring changes that do not say everything",
        hint=hint,
    )
