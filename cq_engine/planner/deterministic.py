"""A lowered query with a deterministic ordering, and its text.

The result R is what the rewritten plan gives. So whatever computes R from scratch (a first snapshot, a recompute in
full) runs the plan's text in the place of the user's, wherever the two may differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cq_engine.algebra.analysis.identity import Types
from cq_engine.algebra.analysis.keys import TableKeys
from cq_engine.algebra.emit import Emitter, quote
from cq_engine.algebra.lowering.lowered import Lowered
from cq_engine.algebra.names import Names
from cq_engine.algebra.nodes import Node, PlanError, Scan
from cq_engine.algebra.rewrite.deterministic_ordering import make_deterministic
from cq_engine.core.columns import Column
from cq_engine.planner.comparable import comparable

__all__ = ["deterministic_query", "query_text"]


def deterministic_query(
    lowered: Lowered, text: str, columns: Sequence[Column], table_keys: TableKeys, types: Types, names: Names
) -> tuple[Lowered, str, tuple[str, ...]]:
    """The query with a deterministic ordering, its text, and notes on orders that cannot be made so."""
    node, notes = make_deterministic(lowered.node, table_keys, types, comparable, names)
    if node is lowered.node:
        return lowered, text, notes
    return replace(lowered, node=node), query_text(node, lowered.outputs, columns), notes


def query_text(node: Node, outputs: Sequence[str], columns: Sequence[Column]) -> str:
    """The plan as a query over tables by name; its result has `columns`."""
    shown = ", ".join(f"{quote(o)} AS {quote(c.name)}" for o, c in zip(outputs, columns))
    return Emitter(_table).statement(f"SELECT {shown} FROM {{0}}", node)


def _table(leaf: Node) -> str:
    if not isinstance(leaf, Scan):
        raise PlanError(f"a defining query reads tables, not {type(leaf).__name__}")
    fields = ", ".join(f"{quote(source)} AS {quote(name)}" for name, source in leaf.fields)
    return f"(SELECT {fields} FROM {quote(leaf.table)})"
